// Vectors of whole numbers beside `F`: `I` holds W of 32 bits, or W pairs of 16 bits, low half first. Sums of them are
// exact, so they are the same bits in any order and on any CPU. `low_halves`: of such pairs, as numbers in float16.
#pragma once

#include "simd.h"

namespace SIMD_VARIANT {

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

struct I {
    __m512i v;
};
inline I no_numbers() { return {_mm512_setzero_si512()}; }
inline I load_numbers(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_numbers(void* p, I a) { _mm512_storeu_si512(p, a.v); }
inline I fill_number(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I operator|(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
inline I operator&(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int BITS>
inline I shifted_down(I a) {
    return {_mm512_srai_epi32(a.v, BITS)};
}
template <int BITS>
inline I shifted(I a) {
    return {_mm512_slli_epi32(a.v, BITS)};
}
inline I load_wide(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline I load_wide_pairs(const uint8_t* p) { return {_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }
inline I add_pairs(I sum, I a, I b) { return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I to_number(F a) { return {_mm512_cvtps_epi32(a.v)}; }
inline void store_shorts(int16_t* p, I a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(a.v)); }
inline F low_halves(I a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a.v))}; }
inline F high_halves(I a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(a.v, 16)))}; }
inline F as_floats(I a) { return {_mm512_castsi512_ps(a.v)}; }
inline I as_numbers(F a) { return {_mm512_castps_si512(a.v)}; }

#elif defined(__AVX2__)

struct I {
    __m256i v;
};
inline I no_numbers() { return {_mm256_setzero_si256()}; }
inline I load_numbers(const void* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
inline void store_numbers(void* p, I a) { _mm256_storeu_si256((__m256i*)p, a.v); }
inline I fill_number(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I operator+(I a, I b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline I operator|(I a, I b) { return {_mm256_or_si256(a.v, b.v)}; }
inline I operator&(I a, I b) { return {_mm256_and_si256(a.v, b.v)}; }
template <int BITS>
inline I shifted_down(I a) {
    return {_mm256_srai_epi32(a.v, BITS)};
}
template <int BITS>
inline I shifted(I a) {
    return {_mm256_slli_epi32(a.v, BITS)};
}
inline I load_wide(const uint8_t* p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))}; }
inline I load_wide_pairs(const uint8_t* p) { return {_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p))}; }
inline I add_pairs(I sum, I a, I b) { return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v))}; }
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I to_number(F a) { return {_mm256_cvtps_epi32(a.v)}; }
inline void store_shorts(int16_t* p, I a) {
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    _mm_storeu_si128((__m128i*)p, packed);
}
inline F high_halves(I a) {
    const __m256i high = _mm256_srli_epi32(a.v, 16);
    return {_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)))};
}
inline F low_halves(I a) { return high_halves(shifted<16>(a)); }
inline F as_floats(I a) { return {_mm256_castsi256_ps(a.v)}; }
inline I as_numbers(F a) { return {_mm256_castps_si256(a.v)}; }

#else

typedef int32_t N4 __attribute__((vector_size(16)));
struct I {
    N4 v;
};
inline I no_numbers() { return {N4{}}; }
inline I load_numbers(const void* p) {
    I a;
    std::memcpy(&a.v, p, sizeof a.v);
    return a;
}
inline void store_numbers(void* p, I a) { std::memcpy(p, &a.v, sizeof a.v); }
inline I fill_number(int32_t x) { return {N4{x, x, x, x}}; }
inline I operator+(I a, I b) { return {a.v + b.v}; }
inline I operator|(I a, I b) { return {a.v | b.v}; }
inline I operator&(I a, I b) { return {a.v & b.v}; }
template <int BITS>
inline I shifted_down(I a) {
    return {a.v >> BITS};
}
template <int BITS>
inline I shifted(I a) {
    return {a.v << BITS};
}
inline I load_wide(const uint8_t* p) { return {N4{p[0], p[1], p[2], p[3]}}; }
inline I load_wide_pairs(const uint8_t* p) {
    return {N4{p[0] | p[1] << 16, p[2] | p[3] << 16, p[4] | p[5] << 16, p[6] | p[7] << 16}};
}
inline I add_pairs(I sum, I a, I b) {
#if defined(__SSE2__)
    return {(N4)_mm_add_epi32((__m128i)sum.v, _mm_madd_epi16((__m128i)a.v, (__m128i)b.v))};
#else
    return {sum.v + (a.v << 16 >> 16) * (b.v << 16 >> 16) + (a.v >> 16) * (b.v >> 16)};
#endif
}
inline F to_float(I a) { return {__builtin_convertvector(a.v, V4)}; }
inline I to_number(F a) {
    I result;
    for (int i = 0; i < W; i++) result.v[i] = a.v[i] == a.v[i] ? int32_t(std::nearbyintf(a.v[i])) : INT32_MIN;
    return result;
}
inline void store_shorts(int16_t* p, I a) {
    for (int i = 0; i < W; i++) p[i] = int16_t(a.v[i] < -32768 ? -32768 : a.v[i] > 32767 ? 32767 : a.v[i]);
}
inline F low_halves(I a) {
    return each([&](int i) {
        const uint16_t bits = uint16_t(uint32_t(a.v[i]));
        _Float16 x;
        std::memcpy(&x, &bits, 2);
        return float(x);
    });
}
inline F high_halves(I a) { return low_halves({a.v >> 16}); }
inline F as_floats(I a) {
    F result;
    std::memcpy(&result.v, &a.v, sizeof a.v);
    return result;
}
inline I as_numbers(F a) {
    I result;
    std::memcpy(&result.v, &a.v, sizeof a.v);
    return result;
}

#endif

// Element i of the result is the sum of rows[i].
inline I sums(const I (&rows)[W]) {
    F bits[W];
    for (int i = 0; i < W; i++) bits[i] = as_floats(rows[i]);
    return as_numbers(folded(bits, [](F a, F b) { return as_floats(as_numbers(a) + as_numbers(b)); }));
}

// A pair of 16 bits in every place.
inline I fill_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return fill_number(pair);
}

}  // namespace SIMD_VARIANT
