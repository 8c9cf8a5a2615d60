// How a K or V vector is stored, and plain numbers become float32 again; codes are met as they are, see coded.h. The
// layouts are those of paged_kv/formats.
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

// out = x times a matrix [n, n], of which rows lie one after the other.
inline void multiply(const float* x, const float* matrix, int64_t n, float* out) {
    constexpr int64_t AT_ONCE = 4 * W;
    int64_t k = 0;
    for (; k + AT_ONCE <= n; k += AT_ONCE) {
        F held[4] = {zeros(), zeros(), zeros(), zeros()};
        for (int64_t i = 0; i < n; i++) {
            const F number = fill(x[i]);
            for (int j = 0; j < 4; j++) held[j] = fma(number, load(matrix + i * n + k + j * W), held[j]);
        }
        for (int j = 0; j < 4; j++) store(out + k + j * W, held[j]);
    }
    for (; k < n; k += W) {
        F held = zeros();
        for (int64_t i = 0; i < n; i++) held = fma(fill(x[i]), load(matrix + i * n + k), held);
        store(out + k, held);
    }
}

// Where a step's row of `token` and KV head `head` starts among the fresh ones.
inline int64_t fresh_place(const PagedCall& call, int64_t sequence, int64_t token, int64_t head) {
    return (((sequence + 1) * call.fresh_rows + token) * call.kv_heads + head) * call.fresh_bytes;
}

inline const float* basis_of(const PagedCall& call, const float* basis, int64_t lane) {
    return call.basis_lanes == 1 ? basis : basis + lane * call.head_dim * call.head_dim;
}

struct Float32Row {
    static constexpr bool is_plain = true;
    static void decode(const uint8_t* stored, float* out, int64_t n) { std::memcpy(out, stored, n * sizeof(float)); }
    static void encode(const float* x, uint8_t* stored, int64_t n, bool) { std::memcpy(stored, x, n * sizeof(float)); }
};

struct Bfloat16Row {
    static constexpr bool is_plain = false;
    static void decode(const uint8_t* stored, float* out, int64_t n) {
        for (int64_t i = 0; i < n; i += W) store(out + i, load_bfloat16((const uint16_t*)stored + i));
    }
    static void encode(const float* x, uint8_t* stored, int64_t n, bool) {
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            std::memcpy(&bits, x + i, 4);
            const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
            const uint16_t half = is_nan ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
            std::memcpy(stored + 2 * i, &half, 2);
        }
    }
};

inline void bounds(const float* x, int64_t n, float& lowest, float& highest) {
    F low = load(x), high = low;
    for (int64_t i = W; i < n; i += W) {
        low = min(low, load(x + i));
        high = max(high, load(x + i));
    }
    lowest = -largest(zeros() - low);
    highest = largest(high);
}

// n codes of a byte, then scale and zero in float16.
struct Int8Row {
    static void encode(const float* x, uint8_t* stored, int64_t n, bool) {
        constexpr float LEVELS = 255.0f;
        float low, high;
        bounds(x, n, low, high);
        const float zero = store_half(stored + n + 2, low);
        const float scale = store_half(stored + n, (high - zero) / LEVELS);
        const F step = fill(scale > 0.0f ? scale : 1.0f), most = fill(scale > 0.0f ? LEVELS : 0.0f);
        for (int64_t i = 0; i < n; i += W) {
            store_bytes(stored + i, max(min(round((load(x + i) - fill(zero)) / step), most), zeros()));
        }
    }
};

// n / 2 bytes with the codes of numbers j and j + n / 2, then two scales, and two zeros in halves of a step; how they
// are chosen is told in paged_kv/formats/int4.py, which finds the same bytes.
struct Int4Row {
    static constexpr int LARGEST_SCALE = 254;  // 255 is no number
    static constexpr int EXPONENT = 110;       // of the smallest scale, as in float32

    static void encode(const float* x, uint8_t* stored, int64_t n, bool uneven) {
        static thread_local std::vector<uint8_t> codes_of_this_thread;
        if (int64_t(codes_of_this_thread.size()) < n) codes_of_this_thread.resize(n);
        uint8_t* codes = codes_of_this_thread.data();
        const int64_t half = n / 2;
        const int low_bits = uneven ? 5 : 4;
        uint8_t* end = stored + half;
        const Rounding low = choose(x, half, float((1 << low_bits) - 1), -128.0f, 127.0f);
        const Rounding high = choose(x + half, half, float((256 >> low_bits) - 1), -64.0f, 63.0f);
        low.apply(x, half, codes);
        high.apply(x + half, half, codes + half);
        for (int64_t i = 0; i < half; i++) stored[i] = uint8_t(codes[i] | codes[half + i] << low_bits);
        end[0] = low.place;
        end[1] = high.place;
        end[2] = uint8_t(int8_t(low.zero));
        end[3] = uint8_t((uint8_t(int8_t(high.zero)) & 127) | (uneven ? 128 : 0));
    }

  private:
    static constexpr int NOTCHES = 4;         // scales that are tried
    static constexpr float FARTHEST = 31.0f;  // steps that a zero reaches

    // What half a vector is rounded with: code = number / scale - zero / 2.
    struct Rounding {
        uint8_t place;
        float zero;
        float levels;

        F code(F steps, F& offset) const {
            offset = steps - fill(zero * 0.5f);
            return max(min(round(offset), fill(levels)), zeros());
        }
        void apply(const float* x, int64_t n, uint8_t* codes) const {
            const F scale = fill(scale_of(place));
            F offset;
            for (int64_t i = 0; i < n; i += W) store_bytes(codes + i, code(load(x + i) / scale, offset));
        }
        // Whole numbers, so that they add up to the same in any order.
        float error(const float* x, int64_t n, float weight) const {
            const F scale = fill(scale_of(place)), largest_term = fill(131072.0f);
            F total = zeros(), offset;
            for (int64_t i = 0; i < n; i += W) {
                const F nearest = code(load(x + i) / scale, offset);
                const F missed = (offset - nearest) * fill(weight);
                total = total + round(min(missed * missed, largest_term));
            }
            return sum(total);
        }
    };

    static float scale_of(uint8_t place) {
        const uint32_t bits = place > LARGEST_SCALE ? 0x7fc00000 : (uint32_t(place) << 20) + (uint32_t(EXPONENT) << 23);
        float scale;
        std::memcpy(&scale, &bits, 4);
        return scale;
    }

    static int place_above(float number) {
        const float limited = number < 0.0f ? 0.0f : number > 32768.0f ? 32768.0f : number;
        int32_t bits;
        std::memcpy(&bits, &limited, 4);
        const int place = ((bits + 0xfffff) >> 20) - (EXPONENT << 3);
        return place < 0 ? 0 : place > LARGEST_SCALE ? LARGEST_SCALE : place;
    }

    static Rounding choose(const float* x, int64_t n, float levels, float lowest, float highest) {
        float low, high;
        bounds(x, n, low, high);
        const int widest = place_above(std::fmax((high - low) / levels, std::fmax(high, -low) / FARTHEST));
        Rounding best{};
        float least = INFINITY;
        for (int notch = 0; notch < NOTCHES; notch++) {
            const uint8_t place = uint8_t(widest > notch ? widest - notch : 0);
            const float scale = scale_of(place), weight = scale / scale_of(uint8_t(widest)) * 64.0f;
            for (const float edge : {low / scale, high / scale - levels}) {
                const float zero = std::nearbyintf(edge * 2.0f);
                const Rounding found{place, zero < lowest ? lowest : zero > highest ? highest : zero, levels};
                const float error = found.error(x, n, weight);
                if (error < least || (notch == 0 && least == INFINITY)) {
                    least = error;
                    best = found;
                }
            }
        }
        return best;
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
