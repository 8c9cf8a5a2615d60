#include "moving.h"

#include <algorithm>
#include <cstring>

#include "threads.h"

namespace {

constexpr int64_t AHEAD = 8;  // rows that are asked for before they are needed

}  // namespace

void move_rows(uint8_t* plane, int64_t bytes, const int64_t* sources, const int64_t* targets, const int64_t* starts,
               int64_t lanes) {
    parallel_ranges(lanes, 1, [&](int64_t first, int64_t last) {
        const int64_t end = starts[last];
        for (int64_t i = starts[first]; i < end; i++) {
            const int64_t later = std::min(i + AHEAD, end - 1);
            for (int64_t k = 0; k < bytes; k += 64) {
                __builtin_prefetch(plane + sources[later] * bytes + k);
                __builtin_prefetch(plane + targets[later] * bytes + k, 1);
            }
            if (sources[i] != targets[i]) std::memcpy(plane + targets[i] * bytes, plane + sources[i] * bytes, bytes);
        }
    });
}
