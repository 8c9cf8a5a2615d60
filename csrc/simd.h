// One vector type, `F`, with W floats, for the instruction set that this translation unit is compiled for.
// Everything lies in a namespace named after it (SIMD_VARIANT), so that several variants live in one library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace SIMD_VARIANT {

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

constexpr int W = 16;
struct F {
    __m512 v;
};
inline F zeros() { return {_mm512_setzero_ps()}; }
inline F fill(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F round(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F load_bfloat16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// Whole numbers from -128 to 127, or from 0 to 255, as bytes.
inline void store_bytes(void* p, F a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v))); }
inline F times_power_of_two(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// b where x < y, else a.
inline F where_less(F x, F y, F b, F a) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), a.v, b.v)};
}
inline float sum(F a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(F a) { return _mm512_reduce_max_ps(a.v); }

// Element i of the result is what `join`, a sum or the like of two vectors, makes of all elements of rows[i].
template <class Join>
inline F folded(const F (&rows)[W], Join join) {
    F a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) {
        const __m512 x = rows[2 * i].v, y = rows[2 * i + 1].v;
        a[i] = join(F{_mm512_unpacklo_ps(x, y)}, F{_mm512_unpackhi_ps(x, y)});  // x y x y in every quarter
    }
    for (int i = 0; i < 4; i++) {
        const __m512d x = _mm512_castps_pd(a[2 * i].v), y = _mm512_castps_pd(a[2 * i + 1].v);
        b[i] = join(F{_mm512_castpd_ps(_mm512_unpacklo_pd(x, y))}, F{_mm512_castpd_ps(_mm512_unpackhi_pd(x, y))});
    }
    for (int i = 0; i < 2; i++) {  // rows 4i .. 4i + 3 stand in every quarter of b[i]: fold the quarters
        const __m512 x = b[2 * i].v, y = b[2 * i + 1].v;
        c[i] = join(F{_mm512_shuffle_f32x4(x, y, 0x88)}, F{_mm512_shuffle_f32x4(x, y, 0xdd)});
    }
    return join(F{_mm512_shuffle_f32x4(c[0].v, c[1].v, 0x88)}, F{_mm512_shuffle_f32x4(c[0].v, c[1].v, 0xdd)});
}

// Element j of the result's row i is element i of rows[j].
inline void transpose(F (&rows)[W]) {
    __m512 a[W], b[W];
    for (int i = 0; i < W; i += 2) {
        a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
        a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < W; i += 4) {  // quarter q of b[i + j] is to be quarter i / 4 of the result's row 4q + j
        for (int j = 0; j < 4; j += 2) {
            const __m512d x = _mm512_castps_pd(a[i + j / 2]), y = _mm512_castps_pd(a[i + j / 2 + 2]);
            b[i + j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            b[i + j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    }
    for (int j = 0; j < 4; j++) {
        const __m512 even = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88), odd = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd);
        const __m512 more = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
        const __m512 rest = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
        rows[j].v = _mm512_shuffle_f32x4(even, more, 0x88);
        rows[j + 4].v = _mm512_shuffle_f32x4(odd, rest, 0x88);
        rows[j + 8].v = _mm512_shuffle_f32x4(even, more, 0xdd);
        rows[j + 12].v = _mm512_shuffle_f32x4(odd, rest, 0xdd);
    }
}

#elif defined(__AVX2__)

constexpr int W = 8;
struct F {
    __m256 v;
};
inline F zeros() { return {_mm256_setzero_ps()}; }
inline F fill(float x) { return {_mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a.v); }
inline F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F round(F a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F load_half(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
inline F load_bfloat16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
inline void store_bytes(void* p, F a) {
    const __m256i low = _mm256_shuffle_epi8(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(0x0c080400));
    const int32_t first = _mm256_extract_epi32(low, 0), second = _mm256_extract_epi32(low, 4);
    std::memcpy(p, &first, 4);
    std::memcpy((char*)p + 4, &second, 4);
}
inline F times_power_of_two(F a, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}
inline F where_less(F x, F y, F b, F a) { return {_mm256_blendv_ps(a.v, b.v, _mm256_cmp_ps(x.v, y.v, _CMP_LT_OQ))}; }
inline __m128 halves_sum(__m256 a) { return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); }
inline float sum(F a) {
    __m128 s = halves_sum(a.v);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float largest(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

template <class Join>
inline F folded(const F (&rows)[W], Join join) {
    F a[4], b[2];
    for (int i = 0; i < 4; i++) {
        const __m256 x = rows[2 * i].v, y = rows[2 * i + 1].v;
        a[i] = join(F{_mm256_unpacklo_ps(x, y)}, F{_mm256_unpackhi_ps(x, y)});
    }
    for (int i = 0; i < 2; i++) {
        const __m256d x = _mm256_castps_pd(a[2 * i].v), y = _mm256_castps_pd(a[2 * i + 1].v);
        b[i] = join(F{_mm256_castpd_ps(_mm256_unpacklo_pd(x, y))}, F{_mm256_castpd_ps(_mm256_unpackhi_pd(x, y))});
    }
    const __m256 x = b[0].v, y = b[1].v;
    return join(F{_mm256_permute2f128_ps(x, y, 0x20)}, F{_mm256_permute2f128_ps(x, y, 0x31)});
}

inline void transpose(F (&rows)[W]) {
    __m256 a[W], b[W];
    for (int i = 0; i < W; i += 2) {
        a[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
        a[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < W; i += 4) {
        for (int j = 0; j < 4; j += 2) {
            const __m256d x = _mm256_castps_pd(a[i + j / 2]), y = _mm256_castps_pd(a[i + j / 2 + 2]);
            b[i + j] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            b[i + j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
    }
    for (int j = 0; j < 4; j++) {
        rows[j].v = _mm256_permute2f128_ps(b[j], b[j + 4], 0x20);
        rows[j + 4].v = _mm256_permute2f128_ps(b[j], b[j + 4], 0x31);
    }
}

#else

constexpr int W = 4;
typedef float V4 __attribute__((vector_size(16)));
struct F {
    V4 v;
};
inline F zeros() { return {V4{}}; }
inline F fill(float x) { return {V4{x, x, x, x}}; }
inline F load(const float* p) {
    F a;
    std::memcpy(&a.v, p, sizeof a.v);
    return a;
}
inline void store(float* p, F a) { std::memcpy(p, &a.v, sizeof a.v); }
inline F operator+(F a, F b) { return {a.v + b.v}; }
inline F operator-(F a, F b) { return {a.v - b.v}; }
inline F operator*(F a, F b) { return {a.v * b.v}; }
inline F operator/(F a, F b) { return {a.v / b.v}; }
inline F fma(F a, F b, F c) { return {a.v * b.v + c.v}; }
template <class Function>
inline F each(Function function) {
    F a;
    for (int i = 0; i < W; i++) a.v[i] = function(i);
    return a;
}
inline F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F abs(F a) {
    return each([&](int i) { return std::fabs(a.v[i]); });
}
inline F round(F a) {
    return each([&](int i) { return std::nearbyintf(a.v[i]); });
}
inline F load_half(const uint16_t* p) {
    return each([&](int i) {
        _Float16 x;
        std::memcpy(&x, p + i, 2);
        return float(x);
    });
}
inline F load_bfloat16(const uint16_t* p) {
    return each([&](int i) {
        const uint32_t bits = uint32_t(p[i]) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    });
}
inline void store_bytes(void* p, F a) {
    for (int i = 0; i < W; i++) ((uint8_t*)p)[i] = uint8_t(int32_t(std::nearbyintf(a.v[i])));
}
inline F times_power_of_two(F a, F n) {
    return each([&](int i) { return std::ldexp(a.v[i], int(n.v[i])); });
}
inline F where_less(F x, F y, F b, F a) {
    return each([&](int i) { return x.v[i] < y.v[i] ? b.v[i] : a.v[i]; });
}
inline float sum(F a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float largest(F a) { return std::fmax(std::fmax(a.v[0], a.v[1]), std::fmax(a.v[2], a.v[3])); }
template <class Join>
inline F folded(const F (&rows)[W], Join join) {
    F halves[W];
    for (int i = 0; i < W; i++) {
        const V4 x = rows[i].v;
        halves[i] = join(F{V4{x[0], x[1]}}, F{V4{x[2], x[3]}});
    }
    const auto part = [&](int j) { return each([&](int i) { return halves[i].v[j]; }); };
    return join(part(0), part(1));
}

inline void transpose(F (&rows)[W]) {
    for (int i = 0; i < W; i++) {
        for (int j = 0; j < i; j++) {
            const float x = rows[i].v[j];
            rows[i].v[j] = rows[j].v[i];
            rows[j].v[i] = x;
        }
    }
}

#endif

// Calls function with 0, 1, ... N - 1 as constants, so that what they index can live in registers.
template <class Function, int... N>
inline void call_each(Function function, std::integer_sequence<int, N...>) {
    (function(std::integral_constant<int, N>{}), ...);
}
template <int N, class Function>
inline void repeat(Function function) {
    call_each(function, std::make_integer_sequence<int, N>{});
}

// Element i of the result is the sum, or the largest element, of rows[i].
inline F sums(const F (&rows)[W]) {
    return folded(rows, [](F a, F b) { return a + b; });
}
inline F largests(const F (&rows)[W]) {
    return folded(rows, [](F a, F b) { return max(a, b); });
}

// Ask for memory that will be read soon; it need not be mapped.
inline void prefetch(const void* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)p + i);
}

// e^x for x <= 0, within 2 units in the last place; 0 below -87, where float32 runs out of normal numbers.
inline F exp_negative(F x) {
    const F bottom = fill(-87.0f);
    const F clamped = max(x, bottom);
    const F n = round(clamped * fill(1.44269504f));
    F r = fma(n, fill(-0.693359375f), clamped);
    r = fma(n, fill(2.12194440e-4f), r);
    F p = fill(1.9875691500e-4f);
    p = fma(p, r, fill(1.3981999507e-3f));
    p = fma(p, r, fill(8.3334519073e-3f));
    p = fma(p, r, fill(4.1665795894e-2f));
    p = fma(p, r, fill(1.6666665459e-1f));
    p = fma(p, r, fill(5.0000001201e-1f));
    p = fma(p, r * r, r + fill(1.0f));
    return where_less(x, bottom, zeros(), times_power_of_two(p, n));
}

}  // namespace SIMD_VARIANT
