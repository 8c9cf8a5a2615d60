// Shares loops between threads. Unlike an OpenMP team, whose members all have to turn up for every loop, a caller here
// does what nobody else has begun, so a loop never waits for a thread that the system has not scheduled.
#pragma once

#include <cstdint>

// Calls function(context, begin, end) for ranges of at most `chunk` that together make 0 .. count. Returns when all are
// done. `threads`: how many may take part, the caller among them.
void share_ranges(int64_t count, int64_t chunk, int64_t threads, void (*function)(void*, int64_t, int64_t), void* context);

// How many threads torch computes with.
int64_t torch_threads();

// share_ranges for a callable, with as many threads as torch has.
template <class Function>
inline void parallel_ranges(int64_t count, int64_t chunk, Function&& function) {
    share_ranges(
        count, chunk, torch_threads(),
        [](void* context, int64_t begin, int64_t end) { (*static_cast<Function*>(context))(begin, end); }, &function);
}
