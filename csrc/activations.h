// Rows of activations in 8 bits, as the kernels for linear layers read them.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"
#include "tiles.h"

namespace SIMD_VARIANT {

// Rows are stored in blocks, group by group, so that a kernel finds those of a block side by side.
constexpr int64_t BLOCK_ROWS = 16;

// A group of all rows of a block: value = code * scale.
struct ActivationGroup {
    int8_t codes[BLOCK_ROWS][GROUP];
    float scales[BLOCK_ROWS];
    float sums[BLOCK_ROWS];       // scale times the sum of the codes
    int32_t offsets[BLOCK_ROWS];  // -128 times the sum of the codes
};

// The activations of a call, quantised.
class Activations {
  public:
    void resize(int64_t rows, int64_t k) {
        groups_ = k / GROUP;
        const int64_t needed = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * groups_;
        if (int64_t(data_.size()) < needed) data_.resize(needed);
    }

    int64_t groups() const { return groups_; }

    // The groups of a block of rows, in order.
    const ActivationGroup* block(int64_t number) const { return data_.data() + number * groups_; }

    // Symmetric, to -127 .. 127, half to even.
    void quantise(int64_t row, const float* x) {
        ActivationGroup* groups = data_.data() + row / BLOCK_ROWS * groups_;
        for (int64_t g = 0; g < groups_; g += W) {
            quantise(groups + g, std::min<int64_t>(W, groups_ - g), row % BLOCK_ROWS, x + g * GROUP);
        }
    }

  private:
    std::vector<ActivationGroup> data_;
    int64_t groups_ = 0;

    // At most W groups of a row: what is one number of a group is computed for all of them at once.
    static void quantise(ActivationGroup* groups, int64_t count, int64_t row, const float* x) {
        F of_each[W];
        for (int64_t g = 0; g < W; g++) of_each[g] = g < count ? largest_of_lanes(x + g * GROUP) : zeros();
        const F amax = largests(of_each);
        float inverses[W], codes_sums[W], scales[W];
        store(inverses, where_less(zeros(), amax, fill(127.0f) / amax, zeros()));
        for (int64_t g = 0; g < count; g++) of_each[g] = encode(x + g * GROUP, fill(inverses[g]), groups[g].codes[row]);
        store(codes_sums, sums(of_each));
        store(scales, amax / fill(127.0f));
        for (int64_t g = 0; g < count; g++) {
            const bool is_number = codes_sums[g] == codes_sums[g];  // else NaN must come out, too
            groups[g].scales[row] = is_number ? scales[g] : codes_sums[g];
            groups[g].sums[row] = groups[g].scales[row] * codes_sums[g];
            groups[g].offsets[row] = is_number ? -128 * int32_t(codes_sums[g]) : 0;
        }
    }

    static F largest_of_lanes(const float* x) {
        F top = abs(load(x));
        for (int64_t i = W; i < GROUP; i += W) top = max(top, abs(load(x + i)));
        return top;
    }

    // The sum of what it stores, lane by lane.
    static F encode(const float* x, F inverse, int8_t* codes) {
        F total = zeros();
        for (int64_t i = 0; i < GROUP; i += W) {
            const F code = round(load(x + i) * inverse);
            total = total + code;
            store_bytes(codes + i, code);
        }
        return total;
    }
};

}  // namespace SIMD_VARIANT
