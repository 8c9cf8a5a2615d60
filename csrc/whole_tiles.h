// Products of 16-bit whole numbers with bytes, in tile registers; each number is two bytes in planes of their own.
#pragma once

#include <vector>

#include "whole.h"

#if defined(__AMX_INT8__)

namespace SIMD_VARIANT {

constexpr int64_t MOST_TILED = 256;  // numbers of a vector that tile registers are used for

// All tile registers hold 16 rows of 64 bytes. A constant, for the reason told in linear.h.
struct WholeTiles {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
alignas(64) static const WholeTiles whole_tiles;

// 16-bit numbers in two planes of bytes, the high ones with the sign: [vectors, width] each.
struct Planes {
    std::vector<uint8_t> high, low;

    void resize(int64_t bytes) {
        if (int64_t(high.size()) < bytes) {
            high.resize(bytes);
            low.resize(bytes);
        }
    }
    void put(int64_t place, I codes) {
        _mm_storeu_si128((__m128i*)&low[place], _mm512_cvtepi32_epi8(codes.v));
        _mm_storeu_si128((__m128i*)&high[place], _mm512_cvtepi32_epi8(_mm512_srai_epi32(codes.v, 8)));
    }
};

// Products of 16 vectors, `depth` numbers each, with 32 columns; depth is a multiple of 64.
struct TileProducts {
    alignas(64) int32_t high[2][16][16], low[2][16][16];

    // `columns`: for each 64 of depth and each 16 columns a tile [16, 16, 4]; `first` and `second` are two of them, the
    // next 64 of depth lie `step` bytes behind.
    void multiply(const uint8_t* high_codes, const uint8_t* low_codes, int64_t depth, const uint8_t* first,
                  const uint8_t* second, int64_t step) {
        _tile_zero(4);
        _tile_zero(5);
        _tile_zero(6);
        _tile_zero(7);
        for (int64_t k = 0; k < depth; k += 64, first += step, second += step) {
            _tile_loadd(0, high_codes + k, depth);
            _tile_loadd(1, low_codes + k, depth);
            _tile_loadd(2, first, 64);
            _tile_loadd(3, second, 64);
            _tile_dpbsud(4, 0, 2);
            _tile_dpbuud(5, 1, 2);
            _tile_dpbsud(6, 0, 3);
            _tile_dpbuud(7, 1, 3);
        }
        _tile_stored(4, high[0], 64);
        _tile_stored(5, low[0], 64);
        _tile_stored(6, high[1], 64);
        _tile_stored(7, low[1], 64);
    }
    I of(int64_t half, int64_t vector) const {
        return shifted<8>(load_numbers(high[half][vector])) + load_numbers(low[half][vector]);
    }
};

}  // namespace SIMD_VARIANT

#endif
