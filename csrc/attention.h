// Attention over lane pages by an online softmax (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2, arXiv
// 2307.08691). A query's result is the same bits in any batch and any chunk: its rows are always taken in blocks of
// BLOCK and parts of PART, counted from the lane's first row, and what other queries do never enters its sums.
#pragma once

#include <algorithm>
#include <vector>

#include "calls.h"
#include "code_rows.h"
#include "number_rows.h"
#include "rows.h"
#include "simd.h"
#include "softmax.h"
#include "threads.h"

namespace SIMD_VARIANT {

constexpr int64_t AHEAD_ROWS = 32;              // rows that are asked for before they are needed
constexpr int64_t PART = 512;                   // rows that one task takes: long lanes are shared between threads
constexpr int64_t TILE = 48;                    // query vectors that share a block
constexpr int64_t WAVE_FLOATS = int64_t(8) << 20;  // weights kept at once for the observation

// A few new tokens of one sequence and one KV head: all query vectors that see the same lane.
struct Tile {
    int64_t sequence;
    int64_t head;     // KV head of the layer
    int64_t first;    // number of the first token within the batch
    int64_t count;    // tokens
    int64_t visible;  // rows that the first token sees; each later one sees one more
    int64_t fresh;    // how many of these are met as they were when they were new; the last ones
    int64_t parts;
    int64_t partial;  // where its partial results start
    int64_t scores;   // where its scores start; -1: not observed

    int64_t rows() const { return visible + count - 1; }
    int64_t paged() const { return fresh ? visible - fresh : rows(); }
    int64_t paged_parts() const { return (paged() + PART - 1) / PART; }
    int64_t tasks() const { return std::max<int64_t>(1, paged_parts()); }
    int64_t stride() const { return (rows() + BLOCK - 1) / BLOCK * BLOCK; }
};

// Rows that a part of a tile's work meets, counted from where they are stored.
struct Span {
    int64_t part;     // of the tile
    int64_t begin;
    int64_t end;
    int64_t visible;  // as in Tile, of these
    int64_t scores;   // where those of the first stored row stand among the tile's
    bool is_fresh;
};

class Attention {
  public:
    Attention(const PagedCall& call, int64_t layer, const float* queries, float* output)
        : call_(call), fresh_call_(call), queries_(queries), output_(output), first_lane_(layer * call.kv_heads),
          d_(call.head_dim) {
        fresh_call_.keys = call.new_keys;
        fresh_call_.values = call.new_values;
        fresh_call_.key_bytes = fresh_call_.value_bytes = call.fresh_bytes;
    }

    void run() {
        const std::vector<Tile> tiles = plan();
        for (size_t start = 0; start < tiles.size();) {
            std::vector<Tile> wave;
            int64_t floats = 0, partials = 0;
            for (; start < tiles.size() && (wave.empty() || floats < WAVE_FLOATS); start++) {
                Tile tile = tiles[start];
                const int64_t vectors = tile.count * call_.group;
                tile.partial = partials;
                partials += vectors * tile.parts * partial_size();
                if (call_.state_bytes && call_.observed[tile.sequence] && !is_outdated(tile, tile.count - 1)) {
                    tile.scores = floats;
                    floats += vectors * tile.stride();
                }
                wave.push_back(tile);
            }
            Softmax::grow(partials_, partials);
            Softmax::grow(scores_, floats);
            run_wave(wave);
        }
    }

  private:
    const PagedCall& call_;
    PagedCall fresh_call_;  // of which only the planes of rows are used
    const float* queries_;
    float* output_;
    int64_t first_lane_;
    int64_t d_;
    static thread_local std::vector<float> partials_, scores_;

    // A partial result: the largest score, the sum of weights, and the weighted sum of values.
    int64_t partial_size() const { return d_ + 2; }

    std::vector<Tile> plan() const {
        std::vector<Tile> tiles;
        const int64_t size = std::max<int64_t>(1, TILE / call_.group);
        for (int64_t s = 0; s < call_.sequences; s++) {
            const int64_t tokens = call_.starts[s + 1] - call_.starts[s];
            for (int64_t first = 0, count; first < tokens; first += count) {
                count = std::min(size, tokens - first);
                int64_t fresh = 0;
                if (call_.fresh_rows) {  // tokens of a tile see the same rows in pages, those before their block
                    fresh = call_.positions[call_.starts[s] + first] % call_.fresh_rows + 1;
                    count = std::min(count, call_.fresh_rows - fresh + 1);
                }
                for (int64_t head = 0; head < call_.kv_heads; head++) {
                    const int64_t kept = call_.kept[s * call_.lanes + first_lane_ + head];
                    Tile tile{s, head, call_.starts[s] + first, count, kept - tokens + first + 1, fresh, 0, 0, -1};
                    tile.parts = tile.paged_parts() + (fresh > 0);
                    tiles.push_back(tile);
                }
            }
        }
        return tiles;
    }

    // Tasks differ in length by the rows of their lanes, so threads take them one by one.
    void run_wave(const std::vector<Tile>& wave) {
        struct Task {
            int tile, part;
        };
        std::vector<Task> tasks;
        std::vector<std::vector<int>> lanes;  // tiles of one lane stay in order: they add to the same state
        std::vector<int> lane_of(call_.sequences * call_.kv_heads, -1);
        for (size_t i = 0; i < wave.size(); i++) {
            for (int64_t part = 0; part < wave[i].tasks(); part++) tasks.push_back({int(i), int(part)});
            int& lane = lane_of[wave[i].sequence * call_.kv_heads + wave[i].head];
            if (lane < 0) {
                lane = int(lanes.size());
                lanes.emplace_back();
            }
            lanes[lane].push_back(int(i));
        }
        // Where every lane has a single task, as in most decoding steps, that ends with its results.
        const bool is_simple = tasks.size() == lanes.size();
        float* partials = partials_.data();
        float* scores = scores_.data();
        parallel_ranges(tasks.size(), 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                const Tile& tile = wave[tasks[i].tile];
                attend(tile, tasks[i].part, partials, scores);
                if (is_simple) finish(tile, partials, scores);
            }
        });
        if (is_simple) return;
        parallel_ranges(lanes.size(), 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                for (int tile : lanes[i]) finish(wave[tile], partials, scores);
            }
        });
    }

    // A part of the rows in pages; with the last part come the fresh ones.
    void attend(const Tile& tile, int64_t part, float* partials, float* scores) {
        if (part < tile.paged_parts()) {
            const int64_t seen = tile.fresh ? tile.paged() : tile.visible;
            const Span span{part, part * PART, std::min((part + 1) * PART, tile.paged()), seen, 0, false};
            attend_span(call_.format, tile, span, partials, scores);
        }
        if (tile.fresh && part == tile.tasks() - 1) {
            const Span span{tile.parts - 1, 0, tile.fresh + tile.count - 1, tile.fresh, tile.paged(), true};
            attend_span(ROW_INT8, tile, span, partials, scores);
        }
    }

    void attend_span(int64_t format, const Tile& tile, const Span& span, float* partials, float* scores) {
        switch (format) {
            case ROW_FLOAT32: return attend_with<NumberRows<Float32Row>>(tile, span, partials, scores);
            case ROW_BFLOAT16: return attend_with<NumberRows<Bfloat16Row>>(tile, span, partials, scores);
            case ROW_INT8: return attend_with<CodeRows<Int8Codes>>(tile, span, partials, scores);
            default: return attend_with<CodeRows<Int4Codes>>(tile, span, partials, scores);
        }
    }

    template <class Rows>
    void attend_with(const Tile& tile, const Span& span, float* partials, float* scores) {
        static thread_local Rows work;
        static thread_local Softmax softmax;
        attend_rows(tile, span, partials, scores, work, softmax);
    }

    // Not part of its caller, where the compiler would look up the address of a thread's variables again and again.
    template <class Rows>
    [[gnu::noipa]] void attend_rows(const Tile& tile, const Span& span, float* partials, float* all_scores, Rows& work,
                                    Softmax& softmax) {
        const PagedCall& call = span.is_fresh ? fresh_call_ : call_;
        const int64_t group = call_.group, vectors = tile.count * group;
        softmax.start(vectors, d_);
        work.start(vectors, d_);
        for (int64_t v = 0; v < vectors; v++) load_query(tile, v, work.query(v));
        work.prepare(vectors);
        for (int64_t block = span.begin; block < span.end; block += BLOCK) {
            const int64_t rows = std::min(BLOCK, span.end - block), padded = (rows + W - 1) / W * W;
            int64_t slots[BLOCK + AHEAD_ROWS];
            if (span.is_fresh) {
                find_fresh(tile, block, rows, slots);
            } else {
                const int64_t known = std::min(rows + AHEAD_ROWS, tile.paged() - block);
                find_slots(tile, block, known, slots);
                ask_for(slots + std::min(AHEAD_ROWS, known), known - std::min(AHEAD_ROWS, known));
            }
            work.take(call, slots, rows);
            // The first token that sees anything here: those before it do not change by this block at all.
            const int64_t blind = std::clamp<int64_t>(block - span.visible + 1, 0, tile.count);
            work.score(softmax, blind * group, vectors, padded);
            for (int64_t v = blind * group; v < vectors; v++) {
                float* scores = softmax.scores(v);
                const int64_t seen = std::min(rows, span.visible + v / group - block);
                std::fill(scores + seen, scores + padded, HIDDEN);
                if (tile.scores >= 0) {
                    float* first = all_scores + tile.scores + v * tile.stride() + span.scores;
                    std::memcpy(first + block, scores, rows * sizeof(float));
                }
                work.weigh(softmax, v, padded);
            }
            work.add_values(softmax, blind * group, vectors, rows);
        }
        work.finish(softmax, vectors);
        float* partial = partials + tile.partial + span.part * vectors * partial_size();
        for (int64_t v = 0; v < vectors; v++, partial += partial_size()) {
            partial[0] = softmax.top(v);
            partial[1] = softmax.total(v);
            std::memcpy(partial + 2, softmax.sums(v), d_ * sizeof(float));
        }
    }

    // Query vector v of the tile, as it meets stored keys.
    void load_query(const Tile& tile, int64_t v, float* out) const {
        const F scale = fill(1.0f / std::sqrt(float(d_)));
        const int64_t heads = call_.kv_heads * call_.group;
        const int64_t token = tile.first + v / call_.group, head = tile.head * call_.group + v % call_.group;
        const float* query = queries_ + (token * heads + head) * d_;
        if (call_.query_basis != nullptr) {
            multiply(query, basis_of(call_, call_.query_basis, first_lane_ + tile.head), d_, out);
            query = out;
        }
        for (int64_t k = 0; k < d_; k += W) store(out + k, load(query + k) * scale);
    }

    const int64_t* table_of(const Tile& tile) const {
        const int64_t lane = call_.slots[tile.sequence] * call_.lanes + first_lane_ + tile.head;
        return call_.tables + lane * call_.table_width;
    }

    void ask_for(const int64_t* slots, int64_t count) const {
        for (int64_t r = 0; r < count; r++) {
            prefetch((const uint8_t*)call_.keys + slots[r] * call_.key_bytes, call_.key_bytes);
            prefetch((const uint8_t*)call_.values + slots[r] * call_.value_bytes, call_.value_bytes);
        }
    }

    // Where `count` rows of a tile's lane lie, from `row` on.
    void find_slots(const Tile& tile, int64_t row, int64_t count, int64_t* slots) const {
        const int64_t* table = table_of(tile);
        int64_t page = row / call_.page_size, offset = row % call_.page_size;
        for (int64_t r = 0; r < count; r++) {
            slots[r] = table[page] * call_.page_size + offset;
            if (++offset == call_.page_size) {
                page++;
                offset = 0;
            }
        }
    }

    // The same of fresh rows.
    void find_fresh(const Tile& tile, int64_t row, int64_t count, int64_t* slots) const {
        const int64_t token = tile.first - tile.fresh + 1 + row;
        for (int64_t r = 0; r < count; r++) {
            slots[r] = fresh_place(call_, tile.sequence, token + r, tile.head) / call_.fresh_bytes;
        }
    }

    // Join the parts of a tile, and note down the weights that its queries gave.
    void finish(const Tile& tile, const float* partials, const float* scores) const {
        static thread_local std::vector<float> weights, turned_back;
        const int64_t group = call_.group, vectors = tile.count * group, heads = call_.kv_heads * group;
        if (tile.scores >= 0) Softmax::grow(weights, tile.stride());
        Softmax::grow(turned_back, d_);
        for (int64_t i = 0; i < tile.count; i++) {
            const bool is_noted = tile.scores >= 0 && !is_outdated(tile, i);
            if (is_noted) std::fill_n(weights.begin(), tile.stride(), 0.0f);
            const int64_t seen = tile.visible + i, padded = (seen + W - 1) / W * W;
            for (int64_t g = 0; g < group; g++) {
                const int64_t v = i * group + g;
                float* out = output_ + ((tile.first + i) * heads + tile.head * group + g) * d_;
                const float* first = partials + tile.partial + v * partial_size();
                float top, total;
                float* joined = call_.output_basis == nullptr ? out : turned_back.data();
                const int64_t parts = tile.fresh ? tile.parts : (seen + PART - 1) / PART;
                join(first, vectors * partial_size(), parts, joined, top, total);
                if (joined != out) multiply(joined, call_.output_basis, d_, out);
                if (is_noted) {
                    const float* row = scores + tile.scores + v * tile.stride();
                    const F share = fill(1.0f / (total * float(group)));
                    for (int64_t r = 0; r < padded; r += W) {
                        store(&weights[r], fma(exp_negative(load(row + r) - fill(top)), share, load(&weights[r])));
                    }
                }
            }
            if (is_noted) note(tile, call_.positions[tile.first + i], seen, weights.data());
        }
    }

    // Partial results of one query vector, `step` floats apart, to its output. A single part is only divided.
    void join(const float* partial, int64_t step, int64_t parts, float* out, float& top, float& total) const {
        top = partial[0];
        for (int64_t p = 1; p < parts; p++) top = std::max(top, partial[p * step]);
        total = 0.0f;
        std::fill_n(out, d_, 0.0f);
        for (int64_t p = 0; p < parts; p++) {
            const float* held = partial + p * step;
            const F weight = exp_negative(fill(held[0] - top));
            total = std::fmaf(largest(weight), held[1], total);
            for (int64_t k = 0; k < d_; k += W) store(out + k, fma(weight, load(held + 2 + k), load(out + k)));
        }
        const F share = fill(1.0f / total);
        for (int64_t k = 0; k < d_; k += W) store(out + k, load(out + k) * share);
    }

    // Whether a later token of the same call replaces all that token i of the tile notes. See paged_kv/observation.py for
    // what the state means.
    bool is_outdated(const Tile& tile, int64_t i) const {
        const int64_t position = call_.positions[tile.first + i];
        const int64_t last = call_.positions[call_.starts[tile.sequence + 1] - 1];
        if (!call_.window) return call_.decay == 0.0f && position < last;
        const int64_t places = call_.sums ? call_.sums : call_.window, span = call_.window / places;
        return position / span + places <= last / span;
    }

    // What one token notes: in which of a row's places, whether as the first of its span, and the rows that it saw.
    struct Note {
        int64_t place;
        bool is_first;
        float seen;
    };

    void note(const Tile& tile, int64_t position, int64_t seen, const float* weights) const {
        const int64_t places = call_.sums ? call_.sums : std::max<int64_t>(call_.window, 1);
        const int64_t span = std::max<int64_t>(call_.window, 1) / places;
        const Note note{position / span % places, position % span == 0, float(seen)};
        const int64_t* table = table_of(tile);
        for (int64_t start = 0; start < seen; start += call_.page_size) {
            uint8_t* state = call_.state + table[start / call_.page_size] * call_.page_size * call_.state_bytes;
            const int64_t rows = std::min(call_.page_size, seen - start);
            if (!call_.window) {
                add_to_sums((float*)state, rows, weights + start, note);
            } else if (!call_.sums) {
                set_bits(state, rows, weights + start, note);
            } else if (call_.measure == MEASURE_PROBABILITY) {
                add_halves(state, rows, weights + start, note);
            } else {
                count(state, rows, weights + start, note);
            }
        }
    }

    void add_to_sums(float* sums, int64_t rows, const float* weights, const Note& note) const {
        for (int64_t r = 0; r < rows; r++) {
            const float p = weights[r];
            const float measured = call_.measure == MEASURE_PROBABILITY ? p
                                   : call_.measure == MEASURE_SQUARE    ? p * p
                                                                        : float(p * note.seen < 1.0f);
            sums[r] = sums[r] * call_.decay + measured;
        }
    }

    void set_bits(uint8_t* state, int64_t rows, const float* weights, const Note& note) const {
        const uint8_t mask = uint8_t(1 << (note.place % 8));
        uint8_t* held = state + note.place / 8;
        for (int64_t r = 0; r < rows; r++, held += call_.state_bytes) {
            *held = uint8_t((*held & ~mask) | (weights[r] * note.seen < 1.0f ? mask : 0));
        }
    }

    void add_halves(uint8_t* state, int64_t rows, const float* weights, const Note& note) const {
        uint8_t* held = state + 2 * note.place;
        for (int64_t r = 0; r < rows; r++, held += call_.state_bytes) {
            store_half(held, note.is_first ? weights[r] : half_to_float(held) + weights[r]);
        }
    }

    void count(uint8_t* state, int64_t rows, const float* weights, const Note& note) const {
        uint8_t* held = state + note.place;
        for (int64_t r = 0; r < rows; r++, held += call_.state_bytes) {
            *held = uint8_t((note.is_first ? 0 : *held) + (weights[r] * note.seen < 1.0f));
        }
    }
};

thread_local std::vector<float> Attention::partials_, Attention::scores_;

inline void attend(const PagedCall& call, int64_t layer, const float* queries, float* output) {
    Attention(call, layer, queries, output).run();
}

}  // namespace SIMD_VARIANT
