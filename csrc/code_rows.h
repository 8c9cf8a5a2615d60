// Attention to rows of codes of at most 8 bits in whole numbers, without turning them into float32. Queries, and
// weights times the scales of values, are rounded to 16 bits of their largest number, which is far less than rows lose
// by their codes. Products of whole numbers add up to the same in any order: with tile registers, vectors or plain
// loops, for one query or for many.
#pragma once

#include "calls.h"
#include "coded.h"
#include "softmax.h"
#include "whole.h"
#include "whole_tiles.h"

namespace SIMD_VARIANT {

constexpr float SHORT = 32767.0f;
constexpr int TOGETHER = W == 16 ? 3 : 1;  // query vectors that share loads of keys
constexpr int64_t ENOUGH = 12;             // query vectors for which it pays to arrange the codes of a block for them

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

// See NumberRows, whose place this takes. A vector of a `Row` has PARTS parts of equal width, each with a scale and a
// zero of its own. What there is of a part is kept part by part, each for a multiple of 16 query vectors.
template <class Row>
class CodeRows {
  public:
    static constexpr int PARTS = Row::PARTS;

    void start(int64_t vectors, int64_t d) {
        d_ = d;
        width_ = d / PARTS;
        padded_ = (width_ + 2 * W - 1) / (2 * W) * (2 * W);
        places_ = (vectors + 15) / 16 * 16;
        is_arranged_ = vectors >= ENOUGH;
        Softmax::grow(queries_, vectors * d);
        for (auto* buffer : {&steps_, &inputs_, &outputs_}) Softmax::grow(*buffer, PARTS * places_);
        zeros_.assign(PARTS * places_ * W, 0.0f);
        coded_.start(d);
#if defined(__AMX_INT8__)
        has_tiles_ = is_arranged_ && d % 64 == 0 && width_ % 32 == 0 && d <= MOST_TILED;
        if (has_tiles_) {
            query_planes_.resize(PARTS * places_ * d);
            weight_planes_.resize(PARTS * places_ * BLOCK);
            _tile_loadconfig(&whole_tiles);
            return;
        }
#endif
        query_codes_.assign(vectors * PARTS * padded_, 0);
        grow(weight_codes_, PARTS * places_ * BLOCK);
        grow(turned_, BLOCK * PARTS * padded_);
        grow(values_, BLOCK * d);
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
            steps_[v] = shorts.step;
            for (int part = 0; part < PARTS; part++) {
                I total = no_numbers();
                for (int64_t k = 0; k < width_; k += W) {
                    const I codes = shorts.codes(load(query(v) + part * width_ + k));
                    total = total + codes;
                    put_query(v, part, k, codes);
                }
                inputs_[place(v, part)] = sum(fma(to_float(total), fill(shorts.step), any));
            }
        }
    }

    void take(const PagedCall& call, const int64_t* slots, int64_t rows) {
        coded_.take(call, slots, rows, has_tiles_ ? BLOCK : (rows + W - 1) / W * W);
        if (has_tiles_) {
            arrange_tiles(rows);
        } else if (is_arranged_) {
            turn_keys(rows);
            pair_values(rows);
        }
    }

    void score(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        if (has_tiles_) return score_tiles(softmax, first, last, rows);
        int64_t v = first;
        if (is_arranged_) {
            for (; v + 4 <= last; v += 4) score_turned<4>(softmax, v, rows);
            for (; v < last; v++) score_turned<1>(softmax, v, rows);
        } else if (d_ == 64) {
            for (; v + TOGETHER <= last; v += TOGETHER) score_rows<TOGETHER, 64 / (2 * W)>(softmax, v, rows);
            for (; v < last; v++) score_rows<1, 64 / (2 * W)>(softmax, v, rows);
        } else {
            for (; v < last; v++) score_row(softmax, v, rows);
        }
    }

    void weigh(Softmax& softmax, int64_t v, int64_t rows) {
        float scaled[PARTS][BLOCK];
        F top[PARTS], zero[PARTS];
        for (int part = 0; part < PARTS; part++) top[part] = zero[part] = zeros();
        const F shrink = softmax.weigh(v, rows, [&](int64_t r, F weight) {
            for (int part = 0; part < PARTS; part++) {
                const F product = weight * load(coded_.value_scales[part] + r);
                zero[part] = fma(weight, load(coded_.value_zeros[part] + r), zero[part]);
                top[part] = max(top[part], product);
                store(scaled[part] + r, product);
            }
        });
        for (int part = 0; part < PARTS; part++) {
            float* zeros_so_far = &zeros_[place(v, part) * W];
            store(zeros_so_far, fma(load(zeros_so_far), shrink, zero[part]));
            const Shorts shorts(largest(top[part]));
            outputs_[place(v, part)] = shorts.step;
            for (int64_t r = 0; r < rows; r += W) put_weight(place(v, part), r, shorts.codes(load(scaled[part] + r)));
            for (int64_t r = rows; has_tiles_ && r < BLOCK; r += W) put_weight(place(v, part), r, no_numbers());
        }
    }

    void add_values(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        if (has_tiles_) return add_tiles(softmax, first, last);
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
            for (int part = 0; part < PARTS; part++) {
                const F zero = fill(sum(load(&zeros_[place(v, part) * W])));
                float* sums = softmax.sums(v) + part * width_;
                for (int64_t k = 0; k < width_; k += W) store(sums + k, load(sums + k) + zero);
            }
        }
#if defined(__AMX_INT8__)
        if (has_tiles_) _tile_release();
#endif
    }

  private:
    int64_t d_ = 0, width_ = 0, padded_ = 0, places_ = 0;
    bool is_arranged_ = false, has_tiles_ = false;
    Coded<Row> coded_;
    std::vector<float> queries_;
    std::vector<float> steps_;           // [places], of queries
    std::vector<float> inputs_;          // [PARTS, places], the sums of what queries were rounded to
    std::vector<float> outputs_;         // [PARTS, places], the steps of weights
    std::vector<float> zeros_;           // [PARTS, places, W], weights times the zeros of values
    std::vector<int16_t> query_codes_;   // [vectors, PARTS, padded], zeros behind each part
    std::vector<int16_t> weight_codes_;  // [PARTS, places, BLOCK]
    std::vector<int16_t> turned_;        // [PARTS, padded / 2, BLOCK, 2], keys
    std::vector<int16_t> values_;        // [BLOCK / 2, d, 2]

    int64_t place(int64_t v, int part) const { return part * places_ + v; }

    int16_t* query_codes(int64_t v, int part) { return &query_codes_[(v * PARTS + part) * padded_]; }
    const int16_t* query_codes(int64_t v, int part) const { return &query_codes_[(v * PARTS + part) * padded_]; }

    static void grow(std::vector<int16_t>& buffer, int64_t numbers) {
        if (int64_t(buffer.size()) < numbers) buffer.resize(numbers);
    }

    // What makes scores of W rows from the products of their codes, which `scored` does.
    struct Scales {
        F scale[PARTS], zero[PARTS];

        Scales(const Coded<Row>& rows, int64_t first) {
            for (int part = 0; part < PARTS; part++) {
                scale[part] = load(rows.key_scales[part] + first);
                zero[part] = load(rows.key_zeros[part] + first);
            }
        }
    };

    F scored(int64_t v, const Scales& rows, const I (&products)[PARTS]) const {
        F score = rows.zero[0] * fill(inputs_[v]);
        for (int part = 1; part < PARTS; part++) score = fma(rows.zero[part], fill(inputs_[place(v, part)]), score);
        const F step = fill(steps_[v]);
        for (int part = 0; part < PARTS; part++) score = fma(to_float(products[part]) * step, rows.scale[part], score);
        return score;
    }

    // W numbers of a sum, and the products of a block's weights with values.
    static F added(I products, float step, F sum) { return fma(to_float(products), fill(step), sum); }

    // Of N vectors, whose numbers fill K vectors of pairs, without a gap.
    template <int N, int K>
    void score_rows(Softmax& softmax, int64_t v, int64_t rows) const {
        I queries[N][K];
        for (int i = 0; i < N; i++) {
            for (int k = 0; k < K; k++) queries[i][k] = load_numbers(query_codes(v + i, 0) + 2 * W * k);
        }
        for (int64_t r = 0; r < rows; r += W) {
            I products[N][PARTS][W];
            for (int j = 0; j < W; j++) {
                I key[K];
                repeat<K>([&](auto k) { key[k] = load_wide_pairs(coded_.keys[r + j] + 2 * W * k); });
                repeat<N * PARTS>([&](auto n) {
                    constexpr int i = n / PARTS, part = n % PARTS, first = part * (K / PARTS);
                    I sum = no_numbers();
                    repeat<K / PARTS>([&](auto k) { sum = add_pairs(sum, queries[i][first + k], key[first + k]); });
                    products[i][part][j] = sum;
                });
            }
            put_scores(softmax, v, r, products);
        }
    }

    // Of one vector of any width. What stands behind a part of a key meets zeros.
    void score_row(Softmax& softmax, int64_t v, int64_t rows) const {
        for (int64_t r = 0; r < rows; r += W) {
            I products[1][PARTS][W];
            for (int n = 0; n < W * PARTS; n++) {
                const int part = n % PARTS, j = n / PARTS;
                const int16_t* query = query_codes(v, part);
                const uint8_t* key = coded_.keys[r + j] + part * width_;
                I sum = no_numbers();
                for (int64_t k = 0; k < padded_; k += 2 * W) {
                    sum = add_pairs(sum, load_numbers(query + k), load_wide_pairs(key + k));
                }
                products[0][part][j] = sum;
            }
            put_scores(softmax, v, r, products);
        }
    }

    // Scores of W rows from products that are still to be added across each vector.
    template <int N>
    void put_scores(Softmax& softmax, int64_t v, int64_t r, const I (&products)[N][PARTS][W]) const {
        const Scales scales(coded_, r);
        for (int i = 0; i < N; i++) {
            I joined[PARTS];
            for (int part = 0; part < PARTS; part++) joined[part] = sums(products[i][part]);
            store(softmax.scores(v + i) + r, scored(v + i, scales, joined));
        }
    }

    int16_t* turned(int part, int64_t k) { return &turned_[(part * padded_ + k) * BLOCK]; }
    const int16_t* turned(int part, int64_t k) const { return &turned_[(part * padded_ + k) * BLOCK]; }

    void turn_keys(int64_t rows) {
        for (int64_t r = 0; r < rows; r += W) {
            for (int part = 0; part < PARTS; part++) {
                for (int64_t k = 0; k < padded_; k += 2 * W) {
                    F square[W];
                    for (int j = 0; j < W; j++) {
                        square[j] = as_floats(load_wide_pairs(coded_.keys[r + j] + part * width_ + k));
                    }
                    transpose(square);
                    for (int j = 0; j < W; j++) store_numbers(turned(part, k + 2 * j) + 2 * r, as_numbers(square[j]));
                }
            }
        }
    }

    template <int N>
    void score_turned(Softmax& softmax, int64_t v, int64_t rows) const {
        for (int64_t r = 0; r < rows; r += W) {
            I products[N][PARTS];
            for (int part = 0; part < PARTS; part++) {
                I held[N];
                for (int i = 0; i < N; i++) held[i] = no_numbers();
                for (int64_t k = 0; k < width_; k += 2) {
                    const I keys = load_numbers(turned(part, k) + 2 * r);
                    for (int i = 0; i < N; i++) {
                        held[i] = add_pairs(held[i], fill_pair(query_codes(v + i, part) + k), keys);
                    }
                }
                for (int i = 0; i < N; i++) products[i][part] = held[i];
            }
            const Scales scales(coded_, r);
            for (int i = 0; i < N; i++) store(softmax.scores(v + i) + r, scored(v + i, scales, products[i]));
        }
    }

    // Codes of two rows from number k on, side by side.
    I paired(int64_t row, int64_t k) const {
        return load_wide(coded_.values[row] + k) | shifted<16>(load_wide(coded_.values[row + 1] + k));
    }

    void pair_values(int64_t rows) {
        for (int64_t r = 0; r < rows; r += 2) {
            for (int64_t k = 0; k < d_; k += W) store_numbers(&values_[r * d_ + 2 * k], paired(r, k));
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
        for (int part = 0; part < PARTS; part++) {
            int64_t k = part * width_;
            const int64_t end = k + width_;
            for (; k + 4 * W <= end; k += 4 * W) add_block<N, 4>(softmax, v, part, k, rows, pairs);
            for (; k + 2 * W <= end; k += 2 * W) add_block<N, 2>(softmax, v, part, k, rows, pairs);
            if (k < end) add_block<N, 1>(softmax, v, part, k, rows, pairs);
        }
    }

    template <int N, int C, class Pairs>
    void add_block(Softmax& softmax, int64_t v, int part, int64_t k, int64_t rows, Pairs pairs) const {
        I held[N][C];
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < C; j++) held[i][j] = no_numbers();
        }
        const int16_t* weights = &weight_codes_[place(v, part) * BLOCK];
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
            const float step = outputs_[place(v + i, part)];
            for (int j = 0; j < C; j++) store(sums + j * W, added(held[i][j], step, load(sums + j * W)));
        }
    }

    // Number k of a part.
    void put_query(int64_t v, int part, int64_t k, I codes) {
#if defined(__AMX_INT8__)
        if (has_tiles_) {  // the plane of a part holds zeros where others are
            for (int other = 0; other < PARTS; other++) {
                query_planes_.put(place(v, other) * d_ + part * width_ + k, other == part ? codes : no_numbers());
            }
            return;
        }
#endif
        store_shorts(query_codes(v, part) + k, codes);
    }

    void put_weight(int64_t place, int64_t r, I codes) {
#if defined(__AMX_INT8__)
        if (has_tiles_) return weight_planes_.put(place * BLOCK + r, codes);
#endif
        store_shorts(&weight_codes_[place * BLOCK + r], codes);
    }

#if defined(__AMX_INT8__)

    Planes query_planes_, weight_planes_;           // [PARTS, places, d] and [PARTS, places, BLOCK]
    alignas(64) uint8_t key_tiles_[BLOCK * MOST_TILED];    // [BLOCK / 16, d / 64, 16, 16, 4]
    alignas(64) uint8_t value_tiles_[BLOCK * MOST_TILED];  // [d / 16, BLOCK / 4, 16, 4]
    TileProducts products_[2][PARTS];

    void arrange_tiles(int64_t rows) {
        for (int64_t r = 0; r < rows; r += 16) {
            for (int64_t k = 0; k < d_; k += 64) {
                F square[W];
                for (int j = 0; j < W; j++) square[j] = as_floats(load_numbers(coded_.keys[r + j] + k));
                transpose(square);
                for (int j = 0; j < W; j++) store_numbers(key_tile(r, k) + 64 * j, as_numbers(square[j]));
            }
        }
        for (int64_t r = 0; r < BLOCK; r += 4) {
            for (int64_t k = 0; k < d_; k += 16) {
                I quads = no_numbers();
                for (int i = 3; i >= 0; i--) quads = shifted<8>(quads) | load_wide(coded_.values[r + i] + k);
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
            const int64_t begin = std::max(first, vector), end = std::min(last, vector + 16);
            const auto& products = products_[(i - 1) % 2];
            for (int half = 0; half < 2 && column + 16 * half < columns; half++) {
                use(products, half, vector, begin, end, column + 16 * half);
            }
        }
    }

    void score_tiles(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        const auto multiply = [&](TileProducts(&products)[PARTS], int64_t v, int64_t r) {
            for (int part = 0; part < PARTS; part++) {
                const int64_t start = place(v, part) * d_;
                const uint8_t *high = &query_planes_.high[start], *low = &query_planes_.low[start];
                products[part].multiply(high, low, d_, key_tile(r, 0), key_tile(r + 16, 0), 1024);
            }
        };
        const auto use = [&](const auto& products, int half, int64_t start, int64_t begin, int64_t end, int64_t r) {
            const Scales scales(coded_, r);
            for (int64_t v = begin; v < end; v++) {
                I joined[PARTS];
                for (int part = 0; part < PARTS; part++) joined[part] = products[part].of(half, v - start);
                store(softmax.scores(v) + r, scored(v, scales, joined));
            }
        };
        run_tiles(first, last, rows, multiply, use);
    }

    void add_tiles(Softmax& softmax, int64_t first, int64_t last) {
        const auto multiply = [&](TileProducts(&products)[PARTS], int64_t v, int64_t k) {
            const int64_t start = place(v, int(k / width_)) * BLOCK;
            const uint8_t *high = &weight_planes_.high[start], *low = &weight_planes_.low[start];
            products[0].multiply(high, low, BLOCK, value_tile(k), value_tile(k + 16), 0);
        };
        const auto use = [&](const auto& products, int half, int64_t start, int64_t begin, int64_t end, int64_t k) {
            const float* steps = &outputs_[place(0, int(k / width_))];
            float* sums = softmax.sums(begin) + k;
            for (int64_t v = begin; v < end; v++, sums += d_) {
                store(sums, added(products[0].of(half, v - start), steps[v], load(sums)));
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
