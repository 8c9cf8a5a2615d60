#include "packing.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "threads.h"
#include "tiles.h"

namespace {

constexpr float HALF_MAX = 65504.0f;

float rounded_to_half(float x) { return float(_Float16(std::clamp(x, -HALF_MAX, HALF_MAX))); }

void put_half(uint8_t* at, float x) {
    const _Float16 half = _Float16(x);
    std::memcpy(at, &half, 2);
}

uint8_t* group_at(uint8_t* out, int64_t row, int64_t g, int64_t groups, int64_t bits) {
    return out + (row / LANES * groups + g) * group_bytes(bits);
}

// Levels of a group: its least value and the step between them, both in float16; false if it has none such.
bool find_levels(const float* x, float& least, float& step) {
    const auto [low, high] = std::minmax_element(x, x + GROUP);
    const float spread = *high - *low;
    // A coder that centres its levels (Q4_0) may leave the ends unused, so fewer steps than 15 may span the group.
    for (int steps = 15; steps >= 8 && spread > 0.0f; steps--) {
        step = rounded_to_half(spread / float(steps));
        for (int unused = 0; unused <= 15 - steps; unused++) {
            least = rounded_to_half(*low - step * float(unused));
            bool fits = true;
            for (int64_t i = 0; i < GROUP && fits; i++) {
                const float code = std::nearbyintf((x[i] - least) / step);
                const float error = std::fabs(code * step + least - x[i]);
                fits = code >= 0.0f && code <= 15.0f && error <= 1e-6f * (std::fabs(x[i]) + step);
            }
            if (fits) return true;
        }
    }
    least = rounded_to_half(*low);
    step = 0.0f;
    return spread == 0.0f && least == *low;
}

}  // namespace

int64_t packed_bytes(int64_t n, int64_t k, int64_t bits) {
    return (n + LANES - 1) / LANES * (k / GROUP) * group_bytes(bits);
}

bool pack_exactly(const float* weights, int64_t n, int64_t k, uint8_t* out) {
    const int64_t groups = k / GROUP;
    std::memset(out, 0, packed_bytes(n, k, 4));
    std::atomic<bool> fits{true};
    parallel_ranges(n, LANES, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t g = 0; g < groups && fits.load(std::memory_order_relaxed); g++) {
                const float* x = weights + row * k + g * GROUP;
                float least, step;
                if (!find_levels(x, least, step)) {
                    fits = false;
                    break;
                }
                uint8_t* group = group_at(out, row, g, groups, 4);
                const int64_t lane = row % LANES;
                put_half(group + 2 * lane, step);
                put_half(group + 2 * LANES + 2 * lane, least);
                for (int64_t i = 0; i < GROUP; i++) {
                    const int code = step > 0.0f ? int(std::nearbyintf((x[i] - least) / step)) : 0;
                    group[4 * LANES + 64 * (i / 8) + 4 * lane + i % 4] |= uint8_t(i % 8 < 4 ? code : code << 4);
                }
            }
        }
    });
    return fits;
}

void pack_rounded(const float* weights, int64_t n, int64_t k, uint8_t* out) {
    const int64_t groups = k / GROUP;
    std::memset(out, 0, packed_bytes(n, k, 8));
    parallel_ranges(n, LANES, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t g = 0; g < groups; g++) {
                const float* x = weights + row * k + g * GROUP;
                float top = 0.0f;
                for (int64_t i = 0; i < GROUP; i++) top = std::max(top, std::fabs(x[i]));
                const float step = rounded_to_half(top / 127.0f);
                uint8_t* group = group_at(out, row, g, groups, 8);
                const int64_t lane = row % LANES;
                put_half(group + 2 * lane, step);
                for (int64_t i = 0; i < GROUP; i++) {
                    const float code = step > 0.0f ? std::clamp(std::nearbyintf(x[i] / step), -127.0f, 127.0f) : 0.0f;
                    group[2 * LANES + 64 * (i / 4) + 4 * lane + i % 4] = uint8_t(int(code) + 128);
                }
            }
        }
    });
}
