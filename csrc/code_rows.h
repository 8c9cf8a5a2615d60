// Attention to rows of 8-bit codes in whole numbers, without turning them into float32. Queries, and weights times the
// scales of values, are rounded to 16 bits of their largest number, which is far less than rows lose by their 8 bits.
// Products of whole numbers add up to the same in any order: with tile registers, vectors or plain loops, for one query
// or for many.
#pragma once

#include "calls.h"
#include "rows.h"
#include "softmax.h"
#include "whole.h"

namespace SIMD_VARIANT {

constexpr float SHORT = 32767.0f;
constexpr int64_t MOST_TILED = 256;  // numbers of a vector that tile registers are used for
constexpr int TOGETHER = W == 16 ? 3 : 1;  // query vectors that share loads of keys
constexpr int64_t ENOUGH = 12;  // query vectors for which it pays to arrange the codes of a block for them

// Numbers in 16 bits, as step * code; all zeros where the largest is too small to tell.
struct Shorts {
    float step, inverse;

    explicit Shorts(float largest) {
        const bool is_something = largest > 1e-30f;
        step = is_something ? largest * (1.0f / SHORT) : 0.0f;
        inverse = is_something ? SHORT / largest : 0.0f;
    }
    I codes(F x) const { return to_number(x * fill(inverse)); }
};

#if defined(__AMX_INT8__)

// All tile registers hold 16 rows of 64 bytes. A constant, for the reason told in linear.h.
struct WholeTiles {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
alignas(64) static const WholeTiles whole_tiles;

// 16-bit numbers in two planes of bytes, the high ones with the sign: [vectors, width] each.
struct Planes {
    std::vector<uint8_t> high, low;

    void resize(int64_t bytes) {
        if (int64_t(high.size()) < bytes) {
            high.resize(bytes);
            low.resize(bytes);
        }
    }
    void put(int64_t place, I codes) {
        _mm_storeu_si128((__m128i*)&low[place], _mm512_cvtepi32_epi8(codes.v));
        _mm_storeu_si128((__m128i*)&high[place], _mm512_cvtepi32_epi8(_mm512_srai_epi32(codes.v, 8)));
    }
};

// Products of 16 vectors, `depth` numbers each, with 32 columns; depth is a multiple of 64.
struct TileProducts {
    alignas(64) int32_t high[2][16][16], low[2][16][16];

    // `columns`: for each 64 of depth and each 16 columns a tile [16, 16, 4]; `first` and `second` are two of them, the
    // next 64 of depth lie `step` bytes behind.
    void multiply(const uint8_t* high_codes, const uint8_t* low_codes, int64_t depth, const uint8_t* first,
                  const uint8_t* second, int64_t step) {
        _tile_zero(4);
        _tile_zero(5);
        _tile_zero(6);
        _tile_zero(7);
        for (int64_t k = 0; k < depth; k += 64, first += step, second += step) {
            _tile_loadd(0, high_codes + k, depth);
            _tile_loadd(1, low_codes + k, depth);
            _tile_loadd(2, first, 64);
            _tile_loadd(3, second, 64);
            _tile_dpbsud(4, 0, 2);
            _tile_dpbuud(5, 1, 2);
            _tile_dpbsud(6, 0, 3);
            _tile_dpbuud(7, 1, 3);
        }
        _tile_stored(4, high[0], 64);
        _tile_stored(5, low[0], 64);
        _tile_stored(6, high[1], 64);
        _tile_stored(7, low[1], 64);
    }
    I of(int64_t half, int64_t vector) const {
        return shifted<8>(load_numbers(high[half][vector])) + load_numbers(low[half][vector]);
    }
};

#endif

// See NumberRows, whose place this takes.
class CodeRows {
  public:
    void start(int64_t vectors, int64_t d) {
        d_ = d;
        has_tiles_ = false;
        is_arranged_ = vectors >= ENOUGH;
        const int64_t places = (vectors + 15) / 16 * 16;
        Softmax::grow(queries_, vectors * d);
        for (auto* buffer : {&steps_, &inputs_, &outputs_}) Softmax::grow(*buffer, vectors);
        zeros_.assign(vectors * W, 0.0f);
        grow(query_codes_, vectors * d);
        grow(weight_codes_, vectors * BLOCK);
        grow(turned_, BLOCK * d);
        grow(values_, BLOCK * d);
#if defined(__AMX_INT8__)
        has_tiles_ = is_arranged_ && d % 64 == 0 && d <= MOST_TILED;
        if (!has_tiles_) return;
        query_planes_.resize(places * d);
        weight_planes_.resize(places * BLOCK);
        _tile_loadconfig(&whole_tiles);
#else
        (void)places;
#endif
    }

    float* query(int64_t v) { return &queries_[v * d_]; }

    void prepare(int64_t vectors) {
        for (int64_t v = 0; v < vectors; v++) {
            F top = zeros(), any = zeros();
            for (int64_t k = 0; k < d_; k += W) {
                const F x = load(query(v) + k);
                top = max(top, abs(x));
                any = any + x * zeros();  // NaN if there is one
            }
            const Shorts shorts(largest(top));
            I total = no_numbers();
            for (int64_t k = 0; k < d_; k += W) {
                const I codes = shorts.codes(load(query(v) + k));
                total = total + codes;
                put_query(v, k, codes);
            }
            steps_[v] = shorts.step;
            inputs_[v] = sum(fma(to_float(total), fill(shorts.step), any));
        }
    }

    void take(const PagedCall& call, const int64_t* slots, int64_t rows) {
        int32_t key_ends[BLOCK], value_ends[BLOCK];
        const int64_t needed = has_tiles_ ? BLOCK : (rows + W - 1) / W * W;
        for (int64_t r = 0; r < needed; r++) {
            const int64_t slot = slots[std::min(r, rows - 1)];
            key_rows_[r] = (const uint8_t*)call.keys + slot * call.key_bytes;
            value_rows_[r] = (const uint8_t*)call.values + slot * call.value_bytes;
            std::memcpy(&key_ends[r], key_rows_[r] + d_, sizeof *key_ends);
            std::memcpy(&value_ends[r], value_rows_[r] + d_, sizeof *value_ends);
        }
        for (int64_t r = 0; r < rows; r += W) {
            const I key = load_numbers(key_ends + r), value = load_numbers(value_ends + r);
            store(key_scales_ + r, low_halves(key));
            store(key_zeros_ + r, high_halves(key));
            store(value_scales_ + r, low_halves(value));
            store(value_zeros_ + r, high_halves(value));
        }
        if (has_tiles_) {
            arrange_tiles(rows);
        } else if (is_arranged_) {
            turn_keys(rows);
            pair_values(rows);
        }
    }

    void score(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        if (has_tiles_) {
            score_tiles(softmax, first, last, rows);
        } else if (is_arranged_) {
            int64_t v = first;
            for (; v + 4 <= last; v += 4) score_turned<4>(softmax, v, rows);
            for (; v < last; v++) score_turned<1>(softmax, v, rows);
        } else {
            score_few(softmax, first, last, rows);
        }
    }

    void weigh(Softmax& softmax, int64_t v, int64_t rows) {
        F top = zeros(), zero = zeros();
        const F shrink = softmax.weigh(v, rows, [&](int64_t r, F weight) {
            const F scaled = weight * load(value_scales_ + r);
            zero = fma(weight, load(value_zeros_ + r), zero);
            top = max(top, scaled);
            return scaled;
        });
        store(&zeros_[v * W], fma(load(&zeros_[v * W]), shrink, zero));
        const Shorts shorts(largest(top));
        outputs_[v] = shorts.step;
        const float* weights = softmax.scores(v);
        for (int64_t r = 0; r < rows; r += W) put_weight(v, r, shorts.codes(load(weights + r)));
        for (int64_t r = rows; has_tiles_ && r < BLOCK; r += W) put_weight(v, r, no_numbers());
    }

    void add_values(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        if (has_tiles_) {
            add_tiles(softmax, first, last);
            return;
        }
        int64_t v = first;
        for (; v + 4 <= last; v += 4) add_to<4>(softmax, v, rows);
        if (v + 3 <= last) {
            add_to<3>(softmax, v, rows);
            v += 3;
        }
        for (; v < last; v++) add_to<1>(softmax, v, rows);
    }

    void finish(Softmax& softmax, int64_t vectors) {
        for (int64_t v = 0; v < vectors; v++) {
            const F zero = fill(sum(load(&zeros_[v * W])));
            for (int64_t k = 0; k < d_; k += W) store(softmax.sums(v) + k, load(softmax.sums(v) + k) + zero);
        }
#if defined(__AMX_INT8__)
        if (has_tiles_) _tile_release();
#endif
    }

  private:
    int64_t d_ = 0;
    bool is_arranged_ = false, has_tiles_ = false;
    std::vector<float> queries_;
    std::vector<float> steps_, inputs_;  // [vectors], of queries: their steps, the sums of what they were rounded to
    std::vector<float> outputs_;         // [vectors], the steps of weights
    std::vector<float> zeros_;           // [vectors, W], weights times the zeros of values
    std::vector<int16_t> query_codes_;   // [vectors, d]
    std::vector<int16_t> weight_codes_;  // [vectors, BLOCK]
    std::vector<int16_t> turned_;        // [d / 2, BLOCK, 2]
    std::vector<int16_t> values_;        // [BLOCK / 2, d, 2]
    const uint8_t *key_rows_[BLOCK], *value_rows_[BLOCK];
    float key_scales_[BLOCK], key_zeros_[BLOCK], value_scales_[BLOCK], value_zeros_[BLOCK];

    static void grow(std::vector<int16_t>& buffer, int64_t numbers) {
        if (int64_t(buffer.size()) < numbers) buffer.resize(numbers);
    }

    // Scores of W rows, which have these scales and zeros, from their products with the codes of a query.
    static F scored(I products, float step, float input, F scale, F zero) {
        return fma(to_float(products) * fill(step), scale, zero * fill(input));
    }

    void put_scores(Softmax& softmax, int64_t v, int64_t r, I products) const {
        const F scale = load(key_scales_ + r), zero = load(key_zeros_ + r);
        store(softmax.scores(v) + r, scored(products, steps_[v], inputs_[v], scale, zero));
    }

    // W numbers of a sum, and the products of a block's weights with values.
    static F added(I products, float step, F sum) { return fma(to_float(products), fill(step), sum); }

    // Of N vectors, whose numbers fill K vectors of pairs.
    template <int N, int K>
    void score_rows(Softmax& softmax, int64_t v, int64_t rows) const {
        I queries[N][K];
        for (int i = 0; i < N; i++) {
            for (int k = 0; k < K; k++) queries[i][k] = load_numbers(&query_codes_[(v + i) * d_ + 2 * W * k]);
        }
        for (int64_t r = 0; r < rows; r += W) {
            I products[N][W];
            for (int j = 0; j < W; j++) {
                I key[K];
                repeat<K>([&](auto k) { key[k] = load_wide_pairs(key_rows_[r + j] + 2 * W * k); });
                repeat<N>([&](auto i) {
                    I product = no_numbers();
                    repeat<K>([&](auto k) { product = add_pairs(product, queries[i][k], key[k]); });
                    products[i][j] = product;
                });
            }
            for (int i = 0; i < N; i++) put_scores(softmax, v + i, r, sums(products[i]));
        }
    }

    // Of any width.
    void score_rows(Softmax& softmax, int64_t v, int64_t rows) const {
        for (int64_t r = 0; r < rows; r += W) {
            I products[W];
            for (int j = 0; j < W; j++) {
                products[j] = no_numbers();
                for (int64_t k = 0; k < d_; k += 2 * W) {
                    const I query = load_numbers(&query_codes_[v * d_ + k]);
                    products[j] = add_pairs(products[j], query, load_wide_pairs(key_rows_[r + j] + k));
                }
            }
            put_scores(softmax, v, r, sums(products));
        }
    }

    void score_few(Softmax& softmax, int64_t first, int64_t last, int64_t rows) const {
        int64_t v = first;
        if (d_ == 64) {
            for (; v + TOGETHER <= last; v += TOGETHER) score_rows<TOGETHER, 64 / (2 * W)>(softmax, v, rows);
            for (; v < last; v++) score_rows<1, 64 / (2 * W)>(softmax, v, rows);
        }
        if (d_ == 128) {
            for (; v < last; v++) score_rows<1, 128 / (2 * W)>(softmax, v, rows);
        }
        for (; v < last; v++) score_rows(softmax, v, rows);
    }

    void turn_keys(int64_t rows) {
        for (int64_t r = 0; r < rows; r += W) {
            for (int64_t k = 0; k < d_; k += 2 * W) {
                F square[W];
                for (int j = 0; j < W; j++) square[j] = as_floats(load_wide_pairs(key_rows_[r + j] + k));
                transpose(square);
                for (int j = 0; j < W; j++) store_numbers(&turned_[(k + 2 * j) * BLOCK + 2 * r], as_numbers(square[j]));
            }
        }
    }

    // Codes of two rows from number k on, side by side.
    I paired(int64_t row, int64_t k) const {
        return load_wide(value_rows_[row] + k) | shifted<16>(load_wide(value_rows_[row + 1] + k));
    }

    void pair_values(int64_t rows) {
        for (int64_t r = 0; r < rows; r += 2) {
            for (int64_t k = 0; k < d_; k += W) store_numbers(&values_[r * d_ + 2 * k], paired(r, k));
        }
    }

    template <int N>
    void score_turned(Softmax& softmax, int64_t v, int64_t rows) const {
        for (int64_t r = 0; r < rows; r += W) {
            I products[N];
            for (int i = 0; i < N; i++) products[i] = no_numbers();
            for (int64_t k = 0; k < d_; k += 2) {
                const I keys = load_numbers(&turned_[k * BLOCK + 2 * r]);
                for (int i = 0; i < N; i++) {
                    products[i] = add_pairs(products[i], fill_pair(&query_codes_[(v + i) * d_ + k]), keys);
                }
            }
            for (int i = 0; i < N; i++) put_scores(softmax, v + i, r, products[i]);
        }
    }

    template <int N>
    void add_to(Softmax& softmax, int64_t v, int64_t rows) const {
        if (is_arranged_) {
            add_with<N>(softmax, v, rows, [&](int64_t r, int64_t k) { return load_numbers(&values_[r * d_ + 2 * k]); });
        } else {
            add_with<N>(softmax, v, rows, [&](int64_t r, int64_t k) { return paired(r, k); });
        }
    }

    template <int N, class Pairs>
    void add_with(Softmax& softmax, int64_t v, int64_t rows, Pairs pairs) const {
        int64_t k = 0;
        for (; k + 4 * W <= d_; k += 4 * W) add_block<N, 4>(softmax, v, k, rows, pairs);
        for (; k < d_; k += W) add_block<N, 1>(softmax, v, k, rows, pairs);
    }

    template <int N, int C, class Pairs>
    void add_block(Softmax& softmax, int64_t v, int64_t k, int64_t rows, Pairs pairs) const {
        I held[N][C];
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < C; j++) held[i][j] = no_numbers();
        }
        const int16_t* weights = &weight_codes_[v * BLOCK];
        for (int64_t r = 0; r < rows; r += 2) {
            I values[C];
            for (int j = 0; j < C; j++) values[j] = pairs(r, k + j * W);
            for (int i = 0; i < N; i++) {
                const I weight = fill_pair(weights + i * BLOCK + r);
                for (int j = 0; j < C; j++) held[i][j] = add_pairs(held[i][j], weight, values[j]);
            }
        }
        for (int i = 0; i < N; i++) {
            float* sums = softmax.sums(v + i) + k;
            for (int j = 0; j < C; j++) store(sums + j * W, added(held[i][j], outputs_[v + i], load(sums + j * W)));
        }
    }

    void put_query(int64_t v, int64_t k, I codes) {
#if defined(__AMX_INT8__)
        if (has_tiles_) return query_planes_.put(v * d_ + k, codes);
#endif
        store_shorts(&query_codes_[v * d_ + k], codes);
    }

    void put_weight(int64_t v, int64_t r, I codes) {
#if defined(__AMX_INT8__)
        if (has_tiles_) return weight_planes_.put(v * BLOCK + r, codes);
#endif
        store_shorts(&weight_codes_[v * BLOCK + r], codes);
    }

#if defined(__AMX_INT8__)

    Planes query_planes_, weight_planes_;
    alignas(64) uint8_t key_tiles_[BLOCK * MOST_TILED];    // [BLOCK / 16, d / 4, 16, 4]
    alignas(64) uint8_t value_tiles_[BLOCK * MOST_TILED];  // [d / 16, BLOCK / 4, 16, 4]
    TileProducts products_[2];

    void arrange_tiles(int64_t rows) {
        for (int64_t r = 0; r < rows; r += 16) {
            for (int64_t k = 0; k < d_; k += 64) {
                F square[W];
                for (int j = 0; j < W; j++) square[j] = as_floats(load_numbers(key_rows_[r + j] + k));
                transpose(square);
                for (int j = 0; j < W; j++) store_numbers(key_tile(r, k) + 64 * j, as_numbers(square[j]));
            }
        }
        for (int64_t r = 0; r < BLOCK; r += 4) {
            for (int64_t k = 0; k < d_; k += 16) {
                I quads = no_numbers();
                for (int i = 3; i >= 0; i--) quads = shifted<8>(quads) | load_wide(value_rows_[r + i] + k);
                store_numbers(value_tile(k) + 16 * r, quads);
            }
        }
    }

    uint8_t* key_tile(int64_t row, int64_t k) { return key_tiles_ + row * d_ + k * 16; }
    uint8_t* value_tile(int64_t k) { return value_tiles_ + k * BLOCK; }

    // Of 16 vectors at a time with 32 columns at a time: the products of the next ones are on their way while those of
    // the last ones are used.
    template <class Multiply, class Use>
    void run_tiles(int64_t first, int64_t last, int64_t columns, Multiply multiply, Use use) {
        const int64_t start = first / 16 * 16, wide = (columns + 31) / 32, steps = (last - start + 15) / 16 * wide;
        for (int64_t i = 0; i <= steps; i++) {
            if (i < steps) multiply(products_[i % 2], start + i / wide * 16, i % wide * 32);
            if (i == 0) continue;
            const int64_t vector = start + (i - 1) / wide * 16, column = (i - 1) % wide * 32;
            const int64_t begin = std::max(first - vector, int64_t(0)), end = std::min(last - vector, int64_t(16));
            use(products_[(i - 1) % 2], 0, vector, begin, end, column);
            if (column + 16 < columns) use(products_[(i - 1) % 2], 1, vector, begin, end, column + 16);
        }
    }

    void score_tiles(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        const auto multiply = [&](TileProducts& products, int64_t v, int64_t r) {
            const uint8_t* high = &query_planes_.high[v * d_];
            products.multiply(high, &query_planes_.low[v * d_], d_, key_tile(r, 0), key_tile(r + 16, 0), 1024);
        };
        const auto use = [&](const TileProducts& products, int half, int64_t v, int64_t begin, int64_t end, int64_t r) {
            const F scale = load(key_scales_ + r), zero = load(key_zeros_ + r);
            const float *steps = &steps_[v], *inputs = &inputs_[v];
            float* scores = softmax.scores(v) + r;
            for (int64_t i = begin; i < end; i++) {
                store(scores + i * BLOCK, scored(products.of(half, i), steps[i], inputs[i], scale, zero));
            }
        };
        run_tiles(first, last, rows, multiply, use);
    }

    void add_tiles(Softmax& softmax, int64_t first, int64_t last) {
        const auto multiply = [&](TileProducts& products, int64_t v, int64_t k) {
            const uint8_t* high = &weight_planes_.high[v * BLOCK];
            products.multiply(high, &weight_planes_.low[v * BLOCK], BLOCK, value_tile(k), value_tile(k + 16), 0);
        };
        const auto use = [&](const TileProducts& products, int half, int64_t v, int64_t begin, int64_t end, int64_t k) {
            const float* steps = &outputs_[v];
            float* sums = softmax.sums(v) + k;
            for (int64_t i = begin; i < end; i++) {
                store(sums + i * d_, added(products.of(half, i), steps[i], load(sums + i * d_)));
            }
        };
        run_tiles(first, last, d_, multiply, use);
    }

#else

    void arrange_tiles(int64_t) {}
    void score_tiles(Softmax&, int64_t, int64_t, int64_t) {}
    void add_tiles(Softmax&, int64_t, int64_t) {}

#endif
};

}  // namespace SIMD_VARIANT
