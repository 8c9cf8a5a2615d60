// Float weights to tiles, see tiles.h. Done once, at loading, so it is plain C++ and the same for every CPU.
#pragma once

#include <cstdint>

// Bytes of weights [n, k] in `bits` (4 or 8).
int64_t packed_bytes(int64_t n, int64_t k, int64_t bits);

// Pack weights [n, k] to 4 bits if every group is 16 levels of a float16 step apart, as those of GGUF's Q4_0 and Q4_1
// are; false, with `out` unfinished, if one is not.
bool pack_exactly(const float* weights, int64_t n, int64_t k, uint8_t* out);

// Pack weights [n, k] to 8 bits, rounded to 127 levels of each group's largest; exact for GGUF's Q8_0.
void pack_rounded(const float* weights, int64_t n, int64_t k, uint8_t* out);
