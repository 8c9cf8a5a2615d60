// New tokens enter the pool: RoPE (Su et al., arXiv 2104.09864) on queries and keys, and rows stored in their format.
#pragma once

#include <algorithm>
#include <vector>

#include "calls.h"
#include "rows.h"
#include "simd.h"
#include "threads.h"

namespace SIMD_VARIANT {

// a * b + c, rounded once where the CPU can.
inline float fused(float a, float b, float c) {
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// Turns the halves of x together; a null cosine leaves x as it is.
inline void rope(const float* x, const float* cosine, const float* sine, int64_t n, float* out) {
    if (cosine == nullptr) {
        std::memcpy(out, x, n * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n / 2; i++) {
        const float a = x[i], b = x[i + n / 2];
        out[i] = fused(a, cosine[i], -(b * sine[i]));
        out[i + n / 2] = fused(b, cosine[i], a * sine[i]);
    }
}

inline float dot(const float* a, const float* b, int64_t n) {
    F total = zeros();
    for (int64_t i = 0; i < n; i += W) total = fma(load(a + i), load(b + i), total);
    return sum(total);
}

class Append {
  public:
    Append(const PagedCall& call, int64_t layer, const RotaryCall& rotary, const float* fused, float* queries)
        : call_(call), rotary_(rotary), fused_(fused), queries_(queries), first_lane_(layer * call.kv_heads),
          features_((call.group + 2) * call.kv_heads * call.head_dim) {}

    void run() {
        const int64_t tokens = call_.starts[call_.sequences];
        with_row(call_.format, [&](auto row) {
            parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; token++) append<decltype(row)>(token);
            });
        });
        if (call_.fresh_rows) exchange_fresh();
    }

  private:
    const PagedCall& call_;
    const RotaryCall& rotary_;
    const float* fused_;
    float* queries_;
    int64_t first_lane_;
    int64_t features_;  // of a token in `fused`

    template <class Row>
    void append(int64_t token) const {
        const int64_t d = call_.head_dim, heads = call_.kv_heads * call_.group;
        static thread_local std::vector<float> buffer;
        if (int64_t(buffer.size()) < 3 * d) buffer.resize(3 * d);
        float *turned = buffer.data(), *in_basis = turned + d, *value_in_basis = in_basis + d;
        const float* cosine = rotary_.cosine == nullptr ? nullptr : rotary_.cosine + token * d / 2;
        const float* sine = rotary_.sine == nullptr ? nullptr : rotary_.sine + token * d / 2;
        const float* queries = fused_ + token * features_;
        const float* keys = queries + heads * d;
        const float* values = keys + call_.kv_heads * d;
        const int64_t sequence = std::upper_bound(call_.starts, call_.starts + call_.sequences, token) - call_.starts - 1;
        for (int64_t h = 0; h < heads; h++) rope(queries + h * d, cosine, sine, d, queries_ + (token * heads + h) * d);
        for (int64_t h = 0; h < call_.kv_heads; h++) {
            const int64_t slot = call_.new_slots[token * call_.lanes + first_lane_ + h];
            const float* key = turned;
            rope(keys + h * d, cosine, sine, d, turned);
            const float* value = values + h * d;
            if (call_.key_basis != nullptr) {
                multiply(turned, basis_of(call_, call_.key_basis, first_lane_ + h), d, in_basis);
                multiply(value, call_.value_basis, d, value_in_basis);
                key = in_basis;
                value = value_in_basis;
            }
            Row::encode(key, (uint8_t*)call_.keys + slot * call_.key_bytes, d, call_.uneven);
            Row::encode(value, (uint8_t*)call_.values + slot * call_.value_bytes, d, false);
            if (call_.fresh_rows) {
                const int64_t place = fresh_place(call_, sequence, token, h);
                Int8Row::encode(key, call_.new_keys + place, d, false);
                Int8Row::encode(value, call_.new_values + place, d, false);
            }
            if (call_.scores)
                score(queries, first_lane_ + h, call_.state + slot * call_.state_bytes);
            else if (call_.state_bytes)
                std::memset(call_.state + slot * call_.state_bytes, 0, call_.state_bytes);
        }
    }

    // What stands before a sequence's first new token in its block joins it; the rows of the last block stay for later.
    void exchange_fresh() const {
        const int64_t pairs = call_.sequences * call_.kv_heads, block = call_.fresh_rows;
        parallel_ranges(pairs, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                const int64_t s = i / call_.kv_heads, h = i % call_.kv_heads;
                const int64_t first = call_.starts[s], last = call_.starts[s + 1] - 1;
                const int64_t before = call_.positions[first] % block;
                copy_fresh(s, h, first - before, before, 0, false);
                const int64_t held = std::min(call_.positions[last] % block, last - first) + 1;
                copy_fresh(s, h, last + 1 - held, held, call_.positions[last] % block + 1 - held, true);
            }
        });
    }

    // `count` rows of a sequence and a head: between the step's, from token `token` on, and those that stay.
    void copy_fresh(int64_t s, int64_t h, int64_t token, int64_t count, int64_t row, bool stays) const {
        const int64_t lane = call_.slots[s] * call_.lanes + first_lane_ + h;
        for (int64_t r = 0; r < count; r++) {
            const int64_t held = (lane * call_.fresh_rows + row + r) * call_.fresh_bytes;
            const int64_t place = fresh_place(call_, s, token + r, h);
            uint8_t *keys = call_.fresh_keys + held, *values = call_.fresh_values + held;
            std::memcpy(stays ? keys : call_.new_keys + place, stays ? call_.new_keys + place : keys, call_.fresh_bytes);
            std::memcpy(stays ? values : call_.new_values + place, stays ? call_.new_values + place : values,
                        call_.fresh_bytes);
        }
    }

    void score(const float* token, int64_t lane, uint8_t* state) const {
        for (int64_t s = lane * call_.scores; s < (lane + 1) * call_.scores; s++, state += 2)
            store_half(state, dot(token, call_.score_weights + s * features_, features_) + call_.score_bias[s]);
    }
};

inline void append(const PagedCall& call, int64_t layer, const RotaryCall& rotary, const float* fused, float* queries) {
    Append(call, layer, rotary, fused, queries).run();
}

}  // namespace SIMD_VARIANT
