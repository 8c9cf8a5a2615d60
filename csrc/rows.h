// How a stored K or V vector becomes float32, and back. The layouts are those of paged_kv/formats.
#pragma once

#include "calls.h"
#include "simd.h"

namespace SIMD_VARIANT {

inline float half_to_float(const void* p) {
    _Float16 x;
    std::memcpy(&x, p, 2);
    return float(x);
}

struct Float32Row {
    static constexpr bool is_plain = true;
    static void decode(const uint8_t* stored, float* out, int64_t n) { std::memcpy(out, stored, n * sizeof(float)); }
};

struct Bfloat16Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        for (int64_t i = 0; i < n; i += W) store(out + i, load_bfloat16((const uint16_t*)stored + i));
    }
};

// n codes of a byte, then scale and zero in float16.
struct Int8Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        const F scale = fill(half_to_float(stored + n)), zero = fill(half_to_float(stored + n + 2));
        for (int64_t i = 0; i < n; i += W) store(out + i, fma(load_bytes(stored + i), scale, zero));
    }
};

// n / 2 bytes, numbers 0 .. 15 of every 32 in the low halves of 16 bytes and 16 .. 31 in the high ones; scale, zero.
struct Int4Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        const F scale = fill(half_to_float(stored + n / 2)), zero = fill(half_to_float(stored + n / 2 + 2));
        alignas(16) uint8_t codes[32];
        for (int64_t i = 0; i < n; i += 32) {
            for (int j = 0; j < 16; j++) codes[j] = stored[i / 2 + j] & 15;
            for (int j = 0; j < 16; j++) codes[16 + j] = stored[i / 2 + j] >> 4;
            for (int j = 0; j < 32; j += W) store(out + i + j, fma(load_bytes(codes + j), scale, zero));
        }
    }
};

}  // namespace SIMD_VARIANT
