// The codes, scales and zeros of a block of rows, for CodeRows. The layouts are those of paged_kv/formats.
#pragma once

#include <algorithm>
#include <vector>

#include "calls.h"
#include "rows.h"
#include "softmax.h"
#include "whole.h"

namespace SIMD_VARIANT {

// A byte for each number, then scale and zero in float16.
struct Int8Codes {
    static constexpr int PARTS = 1;
    static constexpr bool is_bytes = true;

    static int64_t end(int64_t d) { return d; }
    static void scales(I ends, F (&scale)[PARTS], F (&zero)[PARTS]) {
        scale[0] = low_halves(ends);
        zero[0] = high_halves(ends);
    }
};

// See Int4Row and paged_kv/formats/int4.py.
struct Int4Codes {
    static constexpr int PARTS = 2;
    static constexpr bool is_bytes = false;

    static int64_t end(int64_t d) { return d / 2; }
    static void scales(I ends, F (&scale)[PARTS], F (&zero)[PARTS]) {
        const I byte = fill_number(255);
        scale[0] = scale_of(ends & byte);
        scale[1] = scale_of(shifted_down<8>(ends) & byte);
        zero[0] = to_float(shifted_down<24>(shifted<8>(ends))) * fill(0.5f) * scale[0];
        zero[1] = to_float(shifted_down<25>(shifted<1>(ends))) * fill(0.5f) * scale[1];
    }

    static void unpack(const uint8_t* stored, int64_t d, uint8_t* codes) {
        const int64_t half = d / 2;
        const int bits = stored[half + 3] & 128 ? 5 : 4;
        const uint64_t ones = 0x0101010101010101;
        const uint64_t low = ones * ((1 << bits) - 1), high = ones * ((256 >> bits) - 1);
        for (int64_t i = 0; i < half; i += 16) {
            uint64_t bytes[2], first[2], second[2];
            std::memcpy(bytes, stored + i, 16);
            for (int j = 0; j < 2; j++) {
                first[j] = bytes[j] & low;
                second[j] = bytes[j] >> bits & high;
            }
            std::memcpy(codes + i, first, 16);
            std::memcpy(codes + half + i, second, 16);
        }
    }

  private:
    static F scale_of(I place) {
        const F scale = as_floats(shifted<20>(place) + fill_number(Int4Row::EXPONENT << 23));
        return where_less(fill(float(Int4Row::LARGEST_SCALE)), to_float(place), fill(NAN), scale);
    }
};

template <class Row>
class Coded {
  public:
    const uint8_t *keys[BLOCK], *values[BLOCK];  // a code is a byte
    float key_scales[Row::PARTS][BLOCK], key_zeros[Row::PARTS][BLOCK];
    float value_scales[Row::PARTS][BLOCK], value_zeros[Row::PARTS][BLOCK];

    void start(int64_t d) {
        d_ = d;
        const int64_t needed = Row::is_bytes ? 0 : 2 * BLOCK * d + 2 * W;  // a load may reach beyond the last codes
        if (int64_t(bytes_.size()) < needed) bytes_.resize(needed);
    }

    // `rows` rows of a block, and pointers to the last one behind them, `needed` in all.
    void take(const PagedCall& call, const int64_t* slots, int64_t rows, int64_t needed) {
        int32_t key_ends[BLOCK], value_ends[BLOCK];
        for (int64_t r = 0; r < needed; r++) {
            const int64_t slot = slots[std::min(r, rows - 1)];
            keys[r] = put((const uint8_t*)call.keys + slot * call.key_bytes, &key_ends[r], 2 * r);
            values[r] = put((const uint8_t*)call.values + slot * call.value_bytes, &value_ends[r], 2 * r + 1);
        }
        for (int64_t r = 0; r < rows; r += W) {
            put_scales(load_numbers(key_ends + r), r, key_scales, key_zeros);
            put_scales(load_numbers(value_ends + r), r, value_scales, value_zeros);
        }
    }

  private:
    int64_t d_ = 0;
    std::vector<uint8_t> bytes_;

    const uint8_t* put(const uint8_t* stored, int32_t* end, int64_t place) {
        std::memcpy(end, stored + Row::end(d_), sizeof *end);
        if constexpr (Row::is_bytes) {
            return stored;
        } else {
            Row::unpack(stored, d_, &bytes_[place * d_]);
            return &bytes_[place * d_];
        }
    }

    static void put_scales(I ends, int64_t r, float (&scales)[Row::PARTS][BLOCK], float (&zeros)[Row::PARTS][BLOCK]) {
        F scale[Row::PARTS], zero[Row::PARTS];
        Row::scales(ends, scale, zero);
        for (int part = 0; part < Row::PARTS; part++) {
            store(scales[part] + r, scale[part]);
            store(zeros[part] + r, zero[part]);
        }
    }
};

}  // namespace SIMD_VARIANT
