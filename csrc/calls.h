// What callers hand over: plain structs, mirrored field by field in library.py. All tensors are contiguous.
#pragma once

#include <cstdint>

extern "C" {

enum RowFormat : int64_t { ROW_FLOAT32 = 0, ROW_BFLOAT16 = 1, ROW_INT8 = 2, ROW_INT4 = 3 };

enum Measure : int64_t { MEASURE_PROBABILITY = 0, MEASURE_SQUARE = 1, MEASURE_UNIMPORTANT = 2 };

// The pool and one step's view of the tables; see paged_kv/pool.py and paged_kv/batch.py.
struct PagedCall {
    void* keys;      // [pages, page_size, key_bytes]
    void* values;    // [pages, page_size, value_bytes]
    uint8_t* state;  // [pages, page_size, state_bytes]
    int64_t format;
    int64_t page_size;
    int64_t head_dim;
    int64_t key_bytes;
    int64_t value_bytes;
    int64_t state_bytes;

    const int64_t* tables;     // [slots, lanes, table_width]
    const int64_t* slots;      // [sequences], which of the tables are meant
    const int64_t* kept;       // [sequences, lanes], the new rows counted in
    const int64_t* starts;     // [sequences + 1], the first new token of each
    const int64_t* positions;  // [tokens]
    const int64_t* new_slots;  // [tokens, lanes]
    const uint8_t* observed;   // [sequences]

    // What vectors are multiplied by before they are stored or meet stored ones, see paged_kv/basis.py; null: nothing.
    const float* key_basis;    // [basis_lanes, head_dim, head_dim]
    const float* query_basis;  // the same
    const float* value_basis;  // [head_dim, head_dim]
    const float* output_basis;  // [head_dim, head_dim], undoes that of values in their sums
    int64_t basis_lanes;       // 1: all lanes alike
    int64_t uneven;            // the first half of a key takes more bits

    // The newest rows again, in ROW_INT8, see paged_kv/fresh.py. `new_*` are those that a step's tokens see, of the layer
    // under way: token t of sequence s is row (s + 1) * fresh_rows + t, and before a sequence's first stand older ones.
    uint8_t* fresh_keys;    // [slots, lanes, fresh_rows, fresh_bytes]
    uint8_t* fresh_values;  // the same
    uint8_t* new_keys;      // [sequences * fresh_rows + tokens, kv_heads, fresh_bytes]
    uint8_t* new_values;    // the same
    int64_t fresh_rows;     // 0: none
    int64_t fresh_bytes;

    int64_t sequences;
    int64_t lanes;
    int64_t table_width;
    int64_t kv_heads;
    int64_t group;  // query heads per KV head

    int64_t measure;
    int64_t window;  // queries; 0: a float32 sum over all
    int64_t sums;    // that the window is split into, float16 for probabilities and else bytes; 0: a bit per query
    float decay;

    // What scores a row when it is written, float16 each, in its state; see paged_kv/scoring.py.
    const float* score_weights;  // [layers, kv_heads, scores, (group + 2) * kv_heads * head_dim]
    const float* score_bias;     // [layers, kv_heads, scores]
    int64_t scores;              // 0: none
};

// RoPE at each token's position; both null: none.
struct RotaryCall {
    const float* cosine;  // [tokens, head_dim / 2]
    const float* sine;
};

// out = f(x) W^T + bias, of `rows` rows of x, [rows, k] or, if gated, [rows, 2 * k]; out [rows, n].
struct LinearCall {
    const uint8_t* weights;  // packed, see tiles.h
    const float* bias;       // [n] or null
    const float* norm;       // [k] or null: f is the RMS norm with these weights
    int64_t n;
    int64_t k;
    int64_t bits;        // of the weights: 4 or 8
    int64_t gated;       // f is silu(first half) * second half
    int64_t accumulate;  // add to out
    int64_t rows;
    float eps;
};

}  // extern "C"
