// How packed weights lie in memory: what packing.cpp writes and linear.h reads.
#pragma once

#include <cstdint>

constexpr int64_t GROUP = 32;  // numbers along K that share a scale
constexpr int64_t LANES = 16;  // outputs of a tile
constexpr int64_t QUADS = GROUP / 4;

// A tile holds LANES outputs; for each of its groups along K it has LANES scales in float16, then
//   4 bits: LANES minima in float16 and 4 blocks of 64 bytes; block b has numbers 8b .. 8b + 3 of each output in its low
//           halves, 8b + 4 .. 8b + 7 in its high ones; weight = code * scale + minimum;
//   8 bits: 8 blocks of 64 bytes; block b has numbers 4b .. 4b + 3 of each output; weight = (code - 128) * scale.
constexpr int64_t group_bytes(int64_t bits) { return bits == 4 ? 2 * LANES * 2 + 4 * 64 : LANES * 2 + 8 * 64; }
