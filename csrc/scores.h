// Scores of queries for keys. A score's sum has the same order in all functions: number k of both is multiplied in lane
// k % W, and the lanes are joined as `sums` does it. So it is the same bits whichever function makes it.
#pragma once

#include "simd.h"

namespace SIMD_VARIANT {

// scores[r] = query . keys[r]; rows is a multiple of W.
inline void score_rows(const float* query, const float* const* keys, int64_t rows, int64_t d, float* scores) {
    for (int64_t r = 0; r < rows; r += W) {
        F products[W];
        const F first = load(query);
        for (int j = 0; j < W; j++) products[j] = first * load(keys[r + j]);
        for (int64_t k = W; k < d; k += W) {
            const F part = load(query + k);
            for (int j = 0; j < W; j++) products[j] = fma(part, load(keys[r + j] + k), products[j]);
        }
        store(scores + r, sums(products));
    }
}

// turned[k * stride + r] = keys[r][k]; rows is a multiple of W.
inline void turn_rows(const float* const* keys, int64_t rows, int64_t d, int64_t stride, float* turned) {
    for (int64_t r = 0; r < rows; r += W) {
        for (int64_t k = 0; k < d; k += W) {
            F square[W];
            for (int j = 0; j < W; j++) square[j] = load(keys[r + j] + k);
            transpose(square);
            for (int j = 0; j < W; j++) store(turned + (k + j) * stride + r, square[j]);
        }
    }
}

constexpr int SCORED_QUERIES = W == 16 ? 4 : 2;  // that share loads of keys
constexpr int SCORED_VECTORS = W == 16 ? 2 : 1;  // of keys, that share loads of queries

// Sums of N queries, `d` numbers each, and R vectors of turned keys, `stride` floats from number to number.
template <int N, int R>
struct Scores {
    const float* queries;
    const float* turned;
    int64_t d, stride;

    struct Sums {
        F of[N][R];
    };

    static Sums plus(Sums x, const Sums& y) {
        for (int i = 0; i < N; i++) {
            for (int r = 0; r < R; r++) x.of[i][r] = x.of[i][r] + y.of[i][r];
        }
        return x;
    }

    // Two of every W numbers.
    Sums lane_and_next_but_one(int64_t lane) const {
        Sums a, b;
        multiply(lane, a);
        multiply(lane + 2, b);
        for (int64_t k = lane + W; k < d; k += W) {
            add(k, a);
            add(k + 2, b);
        }
        return plus(a, b);
    }

    void multiply(int64_t k, Sums& sums) const {
        for (int i = 0; i < N; i++) {
            for (int r = 0; r < R; r++) sums.of[i][r] = fill(queries[i * d + k]) * load(turned + k * stride + r * W);
        }
    }

    void add(int64_t k, Sums& sums) const {
        for (int i = 0; i < N; i++) {
            const F query = fill(queries[i * d + k]);
            for (int r = 0; r < R; r++) sums.of[i][r] = fma(query, load(turned + k * stride + r * W), sums.of[i][r]);
        }
    }

    // Of `count` lanes from `lane` on, a power of two from 4 up.
    template <int COUNT>
    Sums lanes(int64_t lane) const {
        if constexpr (COUNT == 4) {
            return plus(lane_and_next_but_one(lane), lane_and_next_but_one(lane + 1));
        } else {
            return plus(lanes<COUNT / 2>(lane), lanes<COUNT / 2>(lane + COUNT / 2));
        }
    }

    void put(float* scores) const {
        const Sums sums = lanes<W>(0);
        for (int i = 0; i < N; i++) {
            for (int r = 0; r < R; r++) store(scores + i * stride + r * W, sums.of[i][r]);
        }
    }
};

template <int N>
inline void score_turned(const float* queries, const float* turned, int64_t rows, int64_t d, int64_t stride, float* scores) {
    int64_t r = 0;
    for (; r + SCORED_VECTORS * W <= rows; r += SCORED_VECTORS * W) {
        Scores<N, SCORED_VECTORS>{queries, turned + r, d, stride}.put(scores + r);
    }
    for (; r < rows; r += W) Scores<N, 1>{queries, turned + r, d, stride}.put(scores + r);
}

// scores[i * stride + r] = queries[i] . key r, of keys that turn_rows has turned; rows is a multiple of W.
inline void score_turned_rows(const float* queries, int64_t count, const float* turned, int64_t rows, int64_t d,
                              int64_t stride, float* scores) {
    int64_t i = 0;
    for (; i + SCORED_QUERIES <= count; i += SCORED_QUERIES) {
        score_turned<SCORED_QUERIES>(queries + i * d, turned, rows, d, stride, scores + i * stride);
    }
    for (; i < count; i++) score_turned<1>(queries + i * d, turned, rows, d, stride, scores + i * stride);
}

}  // namespace SIMD_VARIANT
