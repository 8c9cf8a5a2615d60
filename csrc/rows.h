// How a stored K or V vector becomes float32, and back. The layouts are those of paged_kv/formats.
#pragma once

#include <vector>

#include "calls.h"
#include "simd.h"

namespace SIMD_VARIANT {

inline float half_to_float(const void* p) {
#if defined(__F16C__)  // the compiler would call a function for _Float16
    uint16_t x;
    std::memcpy(&x, p, 2);
    return _cvtsh_ss(x);
#else
    _Float16 x;
    std::memcpy(&x, p, 2);
    return float(x);
#endif
}

// Rounds to float16, stores that, and returns its value.
inline float store_half(void* p, float x) {
    const float limited = x < -65504.0f ? -65504.0f : x > 65504.0f ? 65504.0f : x;
#if defined(__F16C__)
    const uint16_t half = _cvtss_sh(limited, _MM_FROUND_TO_NEAREST_INT);
#else
    const _Float16 half = _Float16(limited);
#endif
    std::memcpy(p, &half, 2);
    return half_to_float(p);
}

// Blocks of this many numbers are rotated together: 64, or the largest power of two below that divides n.
inline int64_t rotated_block(int64_t n) {
    const int64_t power = n & -n;
    return power < 64 ? power : 64;
}

// y = H (signs * x) / sqrt(block), block by block, with H the Walsh-Hadamard matrix. Keeps dot products as they are.
inline void rotate(const float* x, const float* signs, int64_t n, float* out) {
    const int64_t block = rotated_block(n);
    const float scale = 1.0f / std::sqrt(float(block));
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * signs[i];
    for (int64_t start = 0; start < n; start += block) {
        float* y = out + start;
        for (int64_t half = 1; half < block; half *= 2) {
            for (int64_t i = 0; i < block; i += 2 * half) {
                for (int64_t j = i; j < i + half; j++) {
                    const float a = y[j], b = y[j + half];
                    y[j] = a + b;
                    y[j + half] = a - b;
                }
            }
        }
    }
    for (int64_t i = 0; i < n; i++) out[i] *= scale;
}

struct Float32Row {
    static constexpr bool is_plain = true;
    static void decode(const uint8_t* stored, float* out, int64_t n) { std::memcpy(out, stored, n * sizeof(float)); }
    static void encode(const float* x, uint8_t* stored, int64_t n) { std::memcpy(stored, x, n * sizeof(float)); }
};

struct Bfloat16Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        for (int64_t i = 0; i < n; i += W) store(out + i, load_bfloat16((const uint16_t*)stored + i));
    }
    static void encode(const float* x, uint8_t* stored, int64_t n) {
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            std::memcpy(&bits, x + i, 4);
            const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
            const uint16_t half = is_nan ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
            std::memcpy(stored + 2 * i, &half, 2);
        }
    }
};

// Codes from 0 to `levels`, of which a number is code * scale + zero; scale and zero are stored in float16.
inline void quantise_row(const float* x, int64_t n, float levels, void* scale_at, void* zero_at, uint8_t* codes) {
    F low = load(x), high = low;
    for (int64_t i = W; i < n; i += W) {
        low = min(low, load(x + i));
        high = max(high, load(x + i));
    }
    const float zero = store_half(zero_at, -largest(zeros() - low));
    const float scale = store_half(scale_at, (largest(high) - zero) / levels);
    const F step = fill(scale > 0.0f ? scale : 1.0f), most = fill(scale > 0.0f ? levels : 0.0f);
    for (int64_t i = 0; i < n; i += W) {
        store_bytes(codes + i, max(min(round((load(x + i) - fill(zero)) / step), most), zeros()));
    }
}

// n codes of a byte, then scale and zero in float16.
struct Int8Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        const F scale = fill(half_to_float(stored + n)), zero = fill(half_to_float(stored + n + 2));
        for (int64_t i = 0; i < n; i += W) store(out + i, fma(load_bytes(stored + i), scale, zero));
    }
    static void encode(const float* x, uint8_t* stored, int64_t n) {
        quantise_row(x, n, 255.0f, stored + n, stored + n + 2, stored);
    }
};

// n / 2 bytes, numbers 0 .. 15 of every 32 in the low halves of 16 bytes and 16 .. 31 in the high ones; scale, zero.
struct Int4Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        const F scale = fill(half_to_float(stored + n / 2)), zero = fill(half_to_float(stored + n / 2 + 2));
        for (int64_t i = 0; i < n; i += 32) {
            for (int j = 0; j < 16; j += W) {
                store(out + i + j, fma(load_low(stored + i / 2 + j), scale, zero));
                store(out + i + 16 + j, fma(load_high(stored + i / 2 + j), scale, zero));
            }
        }
    }
    static void encode(const float* x, uint8_t* stored, int64_t n) {
        std::vector<uint8_t>& codes = codes_of_this_thread();
        if (int64_t(codes.size()) < n) codes.resize(n);
        quantise_row(x, n, 15.0f, stored + n / 2, stored + n / 2 + 2, codes.data());
        for (int64_t i = 0; i < n; i += 32) {
            for (int j = 0; j < 16; j++) stored[i / 2 + j] = uint8_t(codes[i + j] | codes[i + 16 + j] << 4);
        }
    }
    static std::vector<uint8_t>& codes_of_this_thread() {
        static thread_local std::vector<uint8_t> codes;
        return codes;
    }
};

// Calls function with the type of row that `format` stands for.
template <class Function>
inline void with_row(int64_t format, Function function) {
    switch (format) {
        case ROW_FLOAT32: return function(Float32Row{});
        case ROW_BFLOAT16: return function(Bfloat16Row{});
        case ROW_INT8: return function(Int8Row{});
        default: return function(Int4Row{});
    }
}

}  // namespace SIMD_VARIANT
