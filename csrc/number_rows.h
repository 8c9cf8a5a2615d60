// Attention to rows that are turned into float32 before they are used.
#pragma once

#include <vector>

#include "calls.h"
#include "rows.h"
#include "scores.h"
#include "softmax.h"

namespace SIMD_VARIANT {

constexpr int64_t MANY = 16;              // query vectors for which turning the keys of a block pays
constexpr int QUERIES = W == 16 ? 4 : 3;  // query vectors that share loads of values
constexpr int CHUNKS = 4;                 // vectors of values that a loop holds

// What one thread works with while a tile of query vectors meets blocks of rows: `start`, fill `queries`, `prepare`,
// then for each block `take`, `score`, `weigh` for each vector, `add_values`; at the end `finish`.
template <class Row>
class NumberRows {
  public:
    void start(int64_t vectors, int64_t d) {
        d_ = d;
        Softmax::grow(queries_, vectors * d);
        for (auto* buffer : {&keys_, &turned_, &values_}) Softmax::grow(*buffer, BLOCK * d);
    }

    // [d], to be filled: query vector v, scaled.
    float* query(int64_t v) { return &queries_[v * d_]; }

    void prepare(int64_t) {}

    // The rows of a block, at most BLOCK; what stands behind them is the last one again.
    void take(const PagedCall& call, const int64_t* slots, int64_t rows) {
        for (int64_t r = 0; r < rows; r++) {
            const uint8_t* key = (const uint8_t*)call.keys + slots[r] * call.key_bytes;
            const uint8_t* value = (const uint8_t*)call.values + slots[r] * call.value_bytes;
            if constexpr (Row::is_plain) {
                key_rows_[r] = (const float*)key;
                value_rows_[r] = (const float*)value;
            } else {
                Row::decode(key, &keys_[r * d_], d_);
                Row::decode(value, &values_[r * d_], d_);
                key_rows_[r] = &keys_[r * d_];
                value_rows_[r] = &values_[r * d_];
            }
        }
        for (int64_t r = rows; r < (rows + W - 1) / W * W; r++) key_rows_[r] = key_rows_[rows - 1];
    }

    // Of query vectors `first` to last - 1; rows is a multiple of W.
    void score(Softmax& softmax, int64_t first, int64_t last, int64_t rows) {
        if (last - first >= MANY) {
            turn_rows(key_rows_, rows, d_, BLOCK, turned_.data());
            score_turned_rows(query(first), last - first, turned_.data(), rows, d_, BLOCK, softmax.scores(first));
            return;
        }
        for (int64_t v = first; v < last; v++) score_rows(query(v), key_rows_, rows, d_, softmax.scores(v));
    }

    void weigh(Softmax& softmax, int64_t v, int64_t rows) const {
        softmax.weigh(v, rows, [](int64_t, F) {});
    }

    void add_values(Softmax& softmax, int64_t first, int64_t last, int64_t rows) const {
        int64_t v = first;
        for (; v + QUERIES <= last; v += QUERIES) add_to<QUERIES>(softmax, v, rows);
        if (v + 3 <= last) {
            add_to<3>(softmax, v, rows);
            v += 3;
        }
        if (v + 2 <= last) {
            add_to<2>(softmax, v, rows);
            v += 2;
        }
        if (v < last) add_to<1>(softmax, v, rows);
    }

    void finish(Softmax&, int64_t) const {}

  private:
    int64_t d_ = 0;
    std::vector<float> queries_, keys_, turned_, values_;
    const float* key_rows_[BLOCK];
    const float* value_rows_[BLOCK];

    template <int N>
    void add_to(Softmax& softmax, int64_t v, int64_t rows) const {
        float* sums = softmax.sums(v);
        const float* weights = softmax.scores(v);
        int64_t k = 0;
        for (; k + CHUNKS * W <= d_; k += CHUNKS * W) add_block<N, CHUNKS>(sums + k, weights, k, rows);
        for (; k < d_; k += W) add_block<N, 1>(sums + k, weights, k, rows);
    }

    template <int N, int C>
    void add_block(float* sums, const float* weights, int64_t k, int64_t rows) const {
        F held[N][C];
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < C; j++) held[i][j] = load(sums + i * d_ + j * W);
        }
        for (int64_t r = 0; r < rows; r++) {
            F value[C];
            for (int j = 0; j < C; j++) value[j] = load(value_rows_[r] + k + j * W);
            for (int i = 0; i < N; i++) {
                const F weight = fill(weights[i * BLOCK + r]);
                for (int j = 0; j < C; j++) held[i][j] = fma(weight, value[j], held[i][j]);
            }
        }
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < C; j++) store(sums + i * d_ + j * W, held[i][j]);
        }
    }
};

}  // namespace SIMD_VARIANT
