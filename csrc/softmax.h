// The online softmax of a tile's query vectors, which meet the rows of their lane block by block.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace SIMD_VARIANT {

constexpr int64_t BLOCK = 64;        // rows whose keys and values stay in the first-level cache
constexpr float HIDDEN = -INFINITY;  // the score of a row that a query does not see

// For one thread. Its memory is kept from tile to tile, since fresh memory costs more than what is done with it.
class Softmax {
  public:
    void start(int64_t vectors, int64_t d) {
        d_ = d;
        grow(scores_, vectors * BLOCK);
        for (auto* sums : {&tops_, &totals_, &sums_}) sums->clear();
        tops_.resize(vectors, HIDDEN);
        totals_.resize(vectors * W, 0.0f);
        sums_.resize(vectors * d, 0.0f);
    }

    // [BLOCK] of vector v: scores, and after `weigh` weights.
    float* scores(int64_t v) { return &scores_[v * BLOCK]; }

    // [d]: the values of rows, each times its weight.
    float* sums(int64_t v) { return &sums_[v * d_]; }

    float top(int64_t v) const { return tops_[v]; }
    float total(int64_t v) const { return sum(load(&totals_[v * W])); }

    // Scores of a vector become weights relative to the largest score so far; what was summed before is brought down to
    // it, by the factor that is returned. Calls see(r, W weights from row r on).
    template <class See>
    F weigh(int64_t v, int64_t rows, See see) {
        return rows == BLOCK ? weigh_rows(v, std::integral_constant<int64_t, BLOCK>(), see) : weigh_rows(v, rows, see);
    }

    static void grow(std::vector<float>& buffer, int64_t floats) {
        if (int64_t(buffer.size()) < floats) buffer.resize(floats);
    }

  private:
    int64_t d_ = 0;
    std::vector<float> scores_, tops_, totals_, sums_;

    template <class Rows, class See>
    F weigh_rows(int64_t v, Rows rows, See see) {
        float* scores = this->scores(v);
        const float before = tops_[v];
        F highest = fill(before);
        for (int64_t r = 0; r < rows; r += W) highest = max(highest, load(scores + r));
        const float next = largest(highest);
        F shrink = fill(1.0f);
        if (next != before) {
            shrink = exp_negative(fill(before - next));  // 0 for the first block, where the top is -infinity
            tops_[v] = next;
            float* sums = this->sums(v);
            for (int64_t k = 0; k < d_; k += W) store(sums + k, load(sums + k) * shrink);
        }
        F total = load(&totals_[v * W]) * shrink;
        for (int64_t r = 0; r < rows; r += W) {
            const F weight = exp_negative(load(scores + r) - fill(next));
            total = total + weight;
            store(scores + r, weight);
            see(r, weight);
        }
        store(&totals_[v * W], total);
        return shrink;
    }
};

}  // namespace SIMD_VARIANT
