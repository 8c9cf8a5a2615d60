// y = f(x) W^T with 8-bit activations: weights in groups of GROUP along K with a scale each, activations quantised per
// row and group, integers summed inside a group, groups summed in order. No sum crosses rows or is split between
// threads, so a row's result is the same bits alone or in any batch.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "activations.h"
#include "calls.h"
#include "simd.h"
#include "threads.h"
#include "tiles.h"

namespace SIMD_VARIANT {

constexpr int64_t AHEAD = 4096;  // bytes from which weights are asked for in advance

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

// add_group: integer dot products of N rows of a block, from `first` on, with a group of a tile, turned to float and
// added to `held`.
#if defined(__AVX512VNNI__)

constexpr int ROWS = 16;

struct Sums {
    __m512 v;
};
inline void put_sums(float* out, Sums s) { _mm512_storeu_ps(out, s.v); }

// The codes of a group, a byte each.
template <int BITS>
inline void unpack(const uint8_t* group, __m512i (&w)[QUADS]) {
    const uint8_t* blocks = group + (BITS == 4 ? 4 : 2) * LANES;
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
}

// Scales and minima of a group of weights.
template <int BITS>
struct Factors {
    __m512 scale, least;

    explicit Factors(const uint8_t* group) {
        scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)group));
        if (BITS == 4) least = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(group + 2 * LANES)));
    }

    // A row's sum and one more dot product; the same operations in the same order wherever that comes from.
    __m512 add(__m512 sum, __m512i dot, const ActivationGroup& x, int64_t row) const {
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[row]));
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum);
        return BITS == 4 ? _mm512_fmadd_ps(least, _mm512_set1_ps(x.sums[row]), sum) : sum;
    }
};

template <int BITS, int N>
inline void add_group(const uint8_t* group, const ActivationGroup& x, int64_t first, Sums (&held)[N]) {
    const Factors<BITS> factors(group);
    __m512i w[QUADS];
    unpack<BITS>(group, w);
    repeat<N>([&](auto r) {
        const int8_t* codes = x.codes[first + r];
        __m512i dot = BITS == 4 ? _mm512_setzero_si512() : _mm512_set1_epi32(x.offsets[first + r]);
        for (int b = 0; b < QUADS; b++) {
            int32_t quad;
            std::memcpy(&quad, codes + 4 * b, 4);
            dot = _mm512_dpbusd_epi32(dot, w[b], _mm512_set1_epi32(quad));
        }
        held[r].v = factors.add(held[r].v, dot, x, first + r);
    });
}

#elif defined(__AVX2__)

constexpr int ROWS = 4;

struct Sums {
    __m256 v[2];
};
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
inline void add_group(const uint8_t* group, const ActivationGroup& x, int64_t first, Sums (&held)[N]) {
    const uint8_t* blocks = group + (BITS == 4 ? 4 : 2) * LANES;
    const __m256i low = _mm256_set1_epi8(15);
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
            for (int r = 0; r < N; r++) dots[r] = narrow_dot(w, x.codes[first + r]);
        } else {  // code = 16 * high + low
            for (int b = 0; b < QUADS; b++) {
                const __m256i codes = _mm256_loadu_si256((const __m256i*)(blocks + 64 * b + 32 * half));
                w[b] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
            }
            for (int r = 0; r < N; r++) {
                dots[r] = _mm256_slli_epi32(narrow_dot(w, x.codes[first + r]), 4);
            }
            for (int b = 0; b < QUADS; b++) {
                w[b] = _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(blocks + 64 * b + 32 * half)), low);
            }
            for (int r = 0; r < N; r++) {
                const __m256i offset = _mm256_set1_epi32(x.offsets[first + r]);
                dots[r] = _mm256_add_epi32(_mm256_add_epi32(dots[r], offset),
                                           narrow_dot(w, x.codes[first + r]));
            }
        }
        for (int r = 0; r < N; r++) {
            const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[first + r]));
            held[r].v[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), factor, held[r].v[half]);
            if constexpr (BITS == 4) {
                const __m256 least = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(group + 2 * LANES + 16 * half)));
                held[r].v[half] = _mm256_fmadd_ps(least, _mm256_set1_ps(x.sums[first + r]), held[r].v[half]);
            }
        }
    }
}

#else

constexpr int ROWS = 4;

struct Sums {
    float v[LANES];
};
inline void put_sums(float* out, Sums s) { std::memcpy(out, s.v, sizeof s.v); }

template <int BITS, int N>
inline void add_group(const uint8_t* group, const ActivationGroup& x, int64_t first, Sums (&held)[N]) {
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
        const int8_t* codes = x.codes[first + r];
        int32_t dot[LANES] = {};
        for (int k = 0; k < GROUP; k++) {
            for (int n = 0; n < LANES; n++) dot[n] += int32_t(w[k][n]) * codes[k];
        }
        for (int n = 0; n < LANES; n++) {
            held[r].v[n] += float(dot[n]) * (scale[n] * x.scales[first + r]);
            if (BITS == 4) held[r].v[n] += least[n] * x.sums[first + r];
        }
    }
}

#endif

#if defined(__AMX_INT8__)

// Tile register 0 holds activations of a block of rows, 1 a group of weights, 2 their products.
// A constant, because GCC 12 takes only the first bytes of a configuration for read, and drops stores to the others.
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {GROUP, 64, 64};
    uint8_t rows[16] = {BLOCK_ROWS, QUADS, BLOCK_ROWS};
};
alignas(64) static const TileConfig tile_config;

constexpr int64_t MOST_CODES = int64_t(256) << 10;  // bytes of unpacked weights, which stay in the second-level cache

// The codes of a group of a tile, a byte each, ready for a tile register.
struct alignas(64) UnpackedGroup {
    uint8_t codes[QUADS][64];

    template <int BITS>
    void fill(const uint8_t* group) {
        prefetch(group + AHEAD, group_bytes(BITS));
        __m512i w[QUADS];
        unpack<BITS>(group, w);
        for (int b = 0; b < QUADS; b++) _mm512_store_si512(codes[b], w[b]);
    }
};

// All groups of a tile, for a whole block of rows.
template <int BITS>
inline void add_groups(const uint8_t* group, const UnpackedGroup* unpacked, const ActivationGroup* x, int64_t groups,
                       Sums (&held)[BLOCK_ROWS]) {
    __m512 sums[BLOCK_ROWS];
    repeat<BLOCK_ROWS>([&](auto r) { sums[r] = held[r].v; });
    alignas(64) int32_t dots[2][BLOCK_ROWS][LANES];  // two, so that one is filled while the other is read
    for (int64_t g = 0; g < groups; g++, group += group_bytes(BITS)) {
        auto& products = dots[g % 2];
        _tile_loadd(0, x[g].codes, GROUP);
        _tile_loadd(1, unpacked[g].codes, 64);
        _tile_zero(2);
        _tile_dpbsud(2, 0, 1);
        _tile_stored(2, products, 64);
        const Factors<BITS> factors(group);
        repeat<BLOCK_ROWS>([&](auto r) {
            __m512i dot = _mm512_load_si512(products[r]);
            if (BITS == 8) dot = _mm512_add_epi32(dot, _mm512_set1_epi32(x[g].offsets[r]));
            sums[r] = factors.add(sums[r], dot, x[g], r);
        });
    }
    repeat<BLOCK_ROWS>([&](auto r) { held[r].v = sums[r]; });
}

#endif

// So few rows are quantised faster by one thread than two threads can meet.
constexpr int64_t FEW_ROWS = 4;
constexpr int64_t RANGES = 8;  // that the outputs are shared in

class Linear {
  public:
    Linear(const LinearCall& call, const float* x, float* out) : call_(call), x_(x), out_(out) {}

    void run() {
        static thread_local Activations of_caller;
        Activations& x = of_caller;
        x.resize(call_.rows, call_.k);
        parallel_ranges(call_.rows, FEW_ROWS, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++) quantise(x, row);
        });
        const int64_t tiles = (call_.n + LANES - 1) / LANES;
        parallel_ranges(tiles, std::max<int64_t>(1, tiles / RANGES), [&](int64_t begin, int64_t end) {
            if (call_.bits == 4) {
                run_tiles<4>(x, begin, end);
            } else {
                run_tiles<8>(x, begin, end);
            }
        });
    }

  private:
    const LinearCall& call_;
    const float* x_;
    float* out_;

    void quantise(Activations& x, int64_t row) const {
        static thread_local std::vector<float> changed;
        if (int64_t(changed.size()) < call_.k) changed.resize(call_.k);
        if (call_.norm != nullptr) {
            rms_norm(x_ + row * call_.k, call_.norm, call_.eps, call_.k, changed.data());
            x.quantise(row, changed.data());
        } else if (call_.gated) {
            silu_times(x_ + row * 2 * call_.k, call_.k, changed.data());
            x.quantise(row, changed.data());
        } else {
            x.quantise(row, x_ + row * call_.k);
        }
    }

    template <int BITS>
    void run_tiles(const Activations& x, int64_t begin, int64_t end) {
        int64_t rows = 0;
#if defined(__AMX_INT8__)
        rows = call_.rows / BLOCK_ROWS * BLOCK_ROWS;
        if (rows > 0) run_blocks<BITS>(x, begin, end, rows);
#endif
        // Blocks come first, as above: weights of a range stay in the second-level cache.
        for (; rows < call_.rows; rows += BLOCK_ROWS) {
            const int64_t stop = std::min(rows + BLOCK_ROWS, call_.rows);
            for (int64_t tile = begin; tile < end; tile++) run_tile<BITS>(x, tile, rows, stop);
        }
    }

    template <int BITS>
    const uint8_t* groups_of(const Activations& x, int64_t tile) const {
        return call_.weights + tile * x.groups() * group_bytes(BITS);
    }

    // The rows of a block, from `row` to stop - 1.
    template <int BITS>
    void run_tile(const Activations& x, int64_t tile, int64_t row, int64_t stop) {
        const uint8_t* groups = groups_of<BITS>(x, tile);
        for (; row < stop; row += ROWS) run_few<BITS, ROWS>(groups, x, tile, row, stop - row);
    }

    // `count` rows, or N if that is less, at once: what is unpacked of the weights is unpacked for all of them.
    template <int BITS, int N>
    void run_few(const uint8_t* groups, const Activations& x, int64_t tile, int64_t row, int64_t count) {
        if (count >= N) return run_rows<BITS, N>(groups, x, tile, row);
        if constexpr (N > 1) run_few<BITS, N - 1>(groups, x, tile, row, count);
    }

#if defined(__AMX_INT8__)
    // Whole blocks of rows. A block meets many tiles in turn, so that what is written of a row lies side by side; but
    // where there are few blocks, a tile is used up while it is in the first-level cache.
    template <int BITS>
    void run_blocks(const Activations& x, int64_t begin, int64_t end, int64_t rows) {
        static thread_local std::vector<UnpackedGroup> unpacked;
        const int64_t most = std::max<int64_t>(1, MOST_CODES / int64_t(sizeof(UnpackedGroup)) / x.groups());
        const int64_t size = rows < 4 * BLOCK_ROWS ? 1 : std::min(most, end - begin);
        if (int64_t(unpacked.size()) < size * x.groups()) unpacked.resize(size * x.groups());
        _tile_loadconfig(&tile_config);
        for (int64_t first = begin; first < end; first += size) {
            const int64_t last = std::min(first + size, end);
            const uint8_t* groups = groups_of<BITS>(x, first);
            for (int64_t g = 0; g < (last - first) * x.groups(); g++) {
                unpacked[g].template fill<BITS>(groups + g * group_bytes(BITS));
            }
            for (int64_t row = 0; row < rows; row += BLOCK_ROWS) {
                for (int64_t tile = first; tile < last; tile++) {
                    run_block<BITS>(x, row, tile, &unpacked[(tile - first) * x.groups()]);
                }
            }
        }
        _tile_release();
    }

    template <int BITS>
    void run_block(const Activations& x, int64_t row, int64_t tile, const UnpackedGroup* unpacked) {
        Sums held[BLOCK_ROWS] = {};
        add_groups<BITS>(groups_of<BITS>(x, tile), unpacked, x.block(row / BLOCK_ROWS), x.groups(), held);
        for (int r = 0; r < BLOCK_ROWS; r++) put(held[r], row + r, tile * LANES);
    }
#endif

    // ROWS divides BLOCK_ROWS, and row is a multiple of it, so N rows, at most ROWS, lie in one block.
    template <int BITS, int N>
    void run_rows(const uint8_t* group, const Activations& x, int64_t tile, int64_t row) {
        const ActivationGroup* groups = x.block(row / BLOCK_ROWS);
        Sums held[N] = {};
        for (int64_t g = 0; g < x.groups(); g++, group += group_bytes(BITS)) {
            if (row == 0) prefetch(group + AHEAD, group_bytes(BITS));
            add_group<BITS, N>(group, groups[g], row % BLOCK_ROWS, held);
        }
        for (int r = 0; r < N; r++) put(held[r], row + r, tile * LANES);
    }

    void put(Sums held, int64_t row, int64_t first) {
        float result[LANES];
        put_sums(result, held);
        float* out = out_ + row * call_.n + first;
        const int64_t count = std::min(LANES, call_.n - first);
        if (call_.bias != nullptr) add(call_.bias + first, count, result);
        if (call_.accumulate) add(out, count, result);
        copy(result, count, out);
    }

    static void add(const float* x, int64_t count, float (&result)[LANES]) {
        if (count == LANES) {
            for (int64_t i = 0; i < LANES; i += W) store(result + i, load(x + i) + load(result + i));
        } else {
            for (int64_t i = 0; i < count; i++) result[i] = x[i] + result[i];
        }
    }

    static void copy(const float (&result)[LANES], int64_t count, float* out) {
        if (count == LANES) {
            for (int64_t i = 0; i < LANES; i += W) store(out + i, load(result + i));
        } else {
            std::memcpy(out, result, count * sizeof(float));
        }
    }
};

inline void linear(const LinearCall& call, const float* x, float* out) { Linear(call, x, out).run(); }

}  // namespace SIMD_VARIANT
