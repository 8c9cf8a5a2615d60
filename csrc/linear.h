// y = f(x) W^T with 8-bit activations: weights in groups of GROUP along K with a scale each, activations quantised per
// row and group, integers summed inside a group, groups summed in order. No sum crosses rows or is split between
// threads, so a row's result is the same bits alone or in any batch.
#pragma once

#include <omp.h>

#include <algorithm>
#include <vector>

#include "calls.h"
#include "simd.h"

namespace SIMD_VARIANT {

constexpr int64_t GROUP = 32;  // numbers along K that share a scale
constexpr int64_t LANES = 16;  // outputs of a tile
constexpr int64_t QUADS = GROUP / 4;

// A tile holds LANES outputs; for each of its groups along K it has LANES scales in float16, then
//   4 bits: LANES minima in float16 and 4 blocks of 64 bytes; block b has numbers 8b .. 8b + 3 of each output in its low
//           halves, 8b + 4 .. 8b + 7 in its high ones; weight = code * scale + minimum;
//   8 bits: 8 blocks of 64 bytes; block b has numbers 4b .. 4b + 3 of each output; weight = (code - 128) * scale.
constexpr int64_t group_bytes(int64_t bits) { return bits == 4 ? 2 * LANES * 2 + 4 * 64 : LANES * 2 + 8 * 64; }

// Activations of a step, quantised: value = code * scale.
struct Activations {
    std::vector<int8_t> codes;     // [rows, K]
    std::vector<float> scales;     // [rows, K / GROUP]
    std::vector<float> sums;       // [rows, K / GROUP], scale times the sum of the group's codes
    std::vector<int32_t> offsets;  // [rows, K / GROUP], -128 times the sum of the group's codes
    int64_t k = 0;

    void resize(int64_t rows, int64_t width) {
        k = width;
        if (int64_t(codes.size()) < rows * k) codes.resize(rows * k);
        if (int64_t(scales.size()) < rows * k / GROUP) {
            scales.resize(rows * k / GROUP);
            sums.resize(rows * k / GROUP);
            offsets.resize(rows * k / GROUP);
        }
    }

    // Symmetric, to -127 .. 127, half to even.
    void quantise(int64_t row, const float* x) {
        for (int64_t g = 0; g < k / GROUP; g++, x += GROUP) {
            F top = abs(load(x));
            for (int64_t i = W; i < GROUP; i += W) top = max(top, abs(load(x + i)));
            const float amax = largest(top);
            const F inverse = fill(amax > 0.0f ? 127.0f / amax : 0.0f);
            int8_t* out = codes.data() + row * k + g * GROUP;
            F total = zeros();
            for (int64_t i = 0; i < GROUP; i += W) {
                const F code = round(load(x + i) * inverse);
                total = total + code;
                store_bytes(out + i, code);
            }
            const int64_t at = row * (k / GROUP) + g;
            scales[at] = amax / 127.0f;
            sums[at] = scales[at] * sum(total);
            offsets[at] = -128 * int32_t(sum(total));
        }
    }
};

inline void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
    F squares = zeros();
    for (int64_t i = 0; i < n; i += W) squares = fma(load(x + i), load(x + i), squares);
    const F scale = fill(1.0f / std::sqrt(sum(squares) / float(n) + eps));
    for (int64_t i = 0; i < n; i += W) store(out + i, load(x + i) * scale * load(weight + i));
}

// out = silu(gate) * up, of x = gate, up side by side.
inline void silu_times(const float* x, int64_t n, float* out) {
    const F one = fill(1.0f);
    for (int64_t i = 0; i < n; i += W) {
        const F gate = load(x + i), e = exp_negative(zeros() - abs(gate));
        const F sigmoid = where_less(gate, zeros(), e, one) / (one + e);
        store(out + i, gate * sigmoid * load(x + n + i));
    }
}

// Integer dot products of ROWS rows with one group of a tile, turned to float and added to `held`.
#if defined(__AVX512VNNI__)

constexpr int ROWS = 12;

struct Sums {
    __m512 v;
};
inline Sums no_sums() { return {_mm512_setzero_ps()}; }
inline void put_sums(float* out, Sums s) { _mm512_storeu_ps(out, s.v); }

template <int BITS, int N>
inline void add_group(const uint8_t* group, const Activations& x, int64_t row, int64_t g, Sums (&held)[N]) {
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)group));
    const uint8_t* blocks = group + (BITS == 4 ? 4 : 2) * LANES;
    __m512i w[QUADS];
    if constexpr (BITS == 4) {
        const __m512i low = _mm512_set1_epi8(15);
        for (int b = 0; b < 4; b++) {
            const __m512i packed = _mm512_loadu_si512(blocks + 64 * b);
            w[2 * b] = _mm512_and_si512(packed, low);
            w[2 * b + 1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
        }
    } else {
        for (int b = 0; b < QUADS; b++) w[b] = _mm512_loadu_si512(blocks + 64 * b);
    }
    const int64_t groups = x.k / GROUP;
    for (int r = 0; r < N; r++) {
        const int64_t at = (row + r) * groups + g;
        const int8_t* codes = x.codes.data() + (row + r) * x.k + g * GROUP;
        __m512i dot = BITS == 4 ? _mm512_setzero_si512() : _mm512_set1_epi32(x.offsets[at]);
        for (int b = 0; b < QUADS; b++) {
            int32_t quad;
            std::memcpy(&quad, codes + 4 * b, 4);
            dot = _mm512_dpbusd_epi32(dot, w[b], _mm512_set1_epi32(quad));
        }
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[at]));
        held[r].v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, held[r].v);
        if constexpr (BITS == 4) {
            const __m512 least = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(group + 2 * LANES)));
            held[r].v = _mm512_fmadd_ps(least, _mm512_set1_ps(x.sums[at]), held[r].v);
        }
    }
}

#elif defined(__AVX2__)

constexpr int ROWS = 6;

struct Sums {
    __m256 v[2];
};
inline Sums no_sums() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
inline void put_sums(float* out, Sums s) {
    _mm256_storeu_ps(out, s.v[0]);
    _mm256_storeu_ps(out + 8, s.v[1]);
}

// Codes below 16 leave room: eight products of pairs, at most 15 * 127 * 2 each, fit into 16 bits.
inline __m256i narrow_dot(const __m256i (&w)[QUADS], const int8_t* codes) {
    __m256i pairs = _mm256_setzero_si256();
    for (int b = 0; b < QUADS; b++) {
        int32_t quad;
        std::memcpy(&quad, codes + 4 * b, 4);
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[b], _mm256_set1_epi32(quad)));
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <int BITS, int N>
inline void add_group(const uint8_t* group, const Activations& x, int64_t row, int64_t g, Sums (&held)[N]) {
    const uint8_t* blocks = group + (BITS == 4 ? 4 : 2) * LANES;
    const __m256i low = _mm256_set1_epi8(15);
    const int64_t groups = x.k / GROUP;
    for (int half = 0; half < 2; half++) {
        const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(group + 16 * half)));
        __m256i dots[N];
        __m256i w[QUADS];
        if constexpr (BITS == 4) {
            for (int b = 0; b < 4; b++) {
                const __m256i packed = _mm256_loadu_si256((const __m256i*)(blocks + 64 * b + 32 * half));
                w[2 * b] = _mm256_and_si256(packed, low);
                w[2 * b + 1] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
            }
            for (int r = 0; r < N; r++) dots[r] = narrow_dot(w, x.codes.data() + (row + r) * x.k + g * GROUP);
        } else {  // code = 16 * high + low
            for (int b = 0; b < QUADS; b++) {
                const __m256i codes = _mm256_loadu_si256((const __m256i*)(blocks + 64 * b + 32 * half));
                w[b] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
            }
            for (int r = 0; r < N; r++) {
                dots[r] = _mm256_slli_epi32(narrow_dot(w, x.codes.data() + (row + r) * x.k + g * GROUP), 4);
            }
            for (int b = 0; b < QUADS; b++) {
                w[b] = _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(blocks + 64 * b + 32 * half)), low);
            }
            for (int r = 0; r < N; r++) {
                const __m256i offset = _mm256_set1_epi32(x.offsets[(row + r) * groups + g]);
                dots[r] = _mm256_add_epi32(_mm256_add_epi32(dots[r], offset),
                                           narrow_dot(w, x.codes.data() + (row + r) * x.k + g * GROUP));
            }
        }
        for (int r = 0; r < N; r++) {
            const int64_t at = (row + r) * groups + g;
            const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[at]));
            held[r].v[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), factor, held[r].v[half]);
            if constexpr (BITS == 4) {
                const __m256 least = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(group + 2 * LANES + 16 * half)));
                held[r].v[half] = _mm256_fmadd_ps(least, _mm256_set1_ps(x.sums[at]), held[r].v[half]);
            }
        }
    }
}

#else

constexpr int ROWS = 4;

struct Sums {
    float v[LANES];
};
inline Sums no_sums() { return {{}}; }
inline void put_sums(float* out, Sums s) { std::memcpy(out, s.v, sizeof s.v); }

template <int BITS, int N>
inline void add_group(const uint8_t* group, const Activations& x, int64_t row, int64_t g, Sums (&held)[N]) {
    const uint8_t* blocks = group + (BITS == 4 ? 4 : 2) * LANES;
    int16_t w[GROUP][LANES];
    for (int k = 0; k < GROUP; k++) {
        for (int n = 0; n < LANES; n++) {
            if constexpr (BITS == 4) {
                const uint8_t packed = blocks[64 * (k / 8) + 4 * n + k % 4];
                w[k][n] = k % 8 < 4 ? packed & 15 : packed >> 4;
            } else {
                w[k][n] = int16_t(blocks[64 * (k / 4) + 4 * n + k % 4] - 128);
            }
        }
    }
    float scale[LANES], least[LANES];
    for (int n = 0; n < LANES; n += W) store(scale + n, load_half((const uint16_t*)group + n));
    if (BITS == 4) {
        for (int n = 0; n < LANES; n += W) store(least + n, load_half((const uint16_t*)group + LANES + n));
    }
    for (int r = 0; r < N; r++) {
        const int64_t at = (row + r) * (x.k / GROUP) + g;
        const int8_t* codes = x.codes.data() + (row + r) * x.k + g * GROUP;
        int32_t dot[LANES] = {};
        for (int k = 0; k < GROUP; k++) {
            for (int n = 0; n < LANES; n++) dot[n] += int32_t(w[k][n]) * codes[k];
        }
        for (int n = 0; n < LANES; n++) {
            held[r].v[n] += float(dot[n]) * (scale[n] * x.scales[at]);
            if (BITS == 4) held[r].v[n] += least[n] * x.sums[at];
        }
    }
}

#endif

class Linear {
  public:
    Linear(const LinearCall& call, const float* x, float* out) : call_(call), x_(x), out_(out) {}

    void run() {
        static thread_local Activations shared;
        Activations& activations = shared;
        activations.resize(call_.rows, call_.k);
#pragma omp parallel
        {
            static thread_local std::vector<float> changed;
            if (int64_t(changed.size()) < call_.k) changed.resize(call_.k);
#pragma omp for schedule(static)
            for (int64_t row = 0; row < call_.rows; row++) activations.quantise(row, prepared(row, changed.data()));
#pragma omp for schedule(static)
            for (int64_t tile = 0; tile < (call_.n + LANES - 1) / LANES; tile++) {
                if (call_.bits == 4) {
                    run_tile<4>(activations, tile);
                } else {
                    run_tile<8>(activations, tile);
                }
            }
        }
    }

  private:
    const LinearCall& call_;
    const float* x_;
    float* out_;

    const float* prepared(int64_t row, float* changed) const {
        if (call_.norm != nullptr) {
            rms_norm(x_ + row * call_.k, call_.norm, call_.eps, call_.k, changed);
            return changed;
        }
        if (call_.gated) {
            silu_times(x_ + row * 2 * call_.k, call_.k, changed);
            return changed;
        }
        return x_ + row * call_.k;
    }

    template <int BITS>
    void run_tile(const Activations& x, int64_t tile) {
        int64_t row = 0;
        for (; row + ROWS <= call_.rows; row += ROWS) run_rows<BITS, ROWS>(x, tile, row);
        if constexpr (ROWS > 8) {
            for (; row + 8 <= call_.rows; row += 8) run_rows<BITS, 8>(x, tile, row);
        }
        for (; row + 4 <= call_.rows; row += 4) run_rows<BITS, 4>(x, tile, row);
        for (; row + 2 <= call_.rows; row += 2) run_rows<BITS, 2>(x, tile, row);
        for (; row < call_.rows; row++) run_rows<BITS, 1>(x, tile, row);
    }

    template <int BITS, int N>
    void run_rows(const Activations& x, int64_t tile, int64_t row) {
        const int64_t groups = call_.k / GROUP;
        const uint8_t* group = call_.weights + tile * groups * group_bytes(BITS);
        Sums held[N];
        for (int r = 0; r < N; r++) held[r] = no_sums();
        for (int64_t g = 0; g < groups; g++, group += group_bytes(BITS)) add_group<BITS, N>(group, x, row, g, held);
        for (int r = 0; r < N; r++) put(held[r], row + r, tile * LANES);
    }

    void put(Sums held, int64_t row, int64_t first) {
        float result[LANES];
        put_sums(result, held);
        float* out = out_ + row * call_.n + first;
        const int64_t count = std::min(LANES, call_.n - first);
        for (int64_t i = 0; i < count; i++) {
            const float value = call_.bias != nullptr ? result[i] + call_.bias[first + i] : result[i];
            out[i] = call_.accumulate ? out[i] + value : value;
        }
    }
};

inline void linear(const LinearCall& call, const float* x, float* out) { Linear(call, x, out).run(); }

}  // namespace SIMD_VARIANT
