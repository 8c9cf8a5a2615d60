// The best of each row of logits.
#pragma once

#include "simd.h"
#include "threads.h"

namespace SIMD_VARIANT {

// Index of the largest number, the first of equals; NaN counts as the least, and -1 if there is nothing above -infinity.
inline int64_t index_of_largest(const float* x, int64_t n) {
    F best = fill(-INFINITY);
    int64_t i = 0;
    for (; i + W <= n; i += W) best = max(load(x + i), best);  // where one is NaN, the second is taken
    float top = largest(best);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    if (top == -INFINITY) return -1;
    for (i = 0; x[i] != top; i++) {
    }
    return i;
}

inline void argmax(const float* x, int64_t rows, int64_t stride, int64_t n, int64_t* out) {
    parallel_ranges(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) out[row] = index_of_largest(x + row * stride, n);
    });
}

}  // namespace SIMD_VARIANT
