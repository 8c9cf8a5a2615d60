// Rows copied from slot to slot, as they are. Plain C++: nothing is computed.
#pragma once

#include <cstdint>

// In `plane`, of rows of `bytes` each, copy row sources[i] to targets[i] for all i in starts[l] .. starts[l + 1] - 1 of
// every lane l, in this order; lanes have no rows in common.
void move_rows(uint8_t* plane, int64_t bytes, const int64_t* sources, const int64_t* targets, const int64_t* starts,
               int64_t lanes);
