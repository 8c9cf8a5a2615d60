// The kernels of one instruction set. Each variant fills in one of these tables; api.cpp chooses among them.
#pragma once

#include "calls.h"

struct Kernels {
    const char* name;
    void (*append)(const PagedCall& call, int64_t layer, const RotaryCall& rotary, const float* fused, float* queries);
    void (*attend)(const PagedCall& call, int64_t layer, const float* queries, float* output);
    void (*linear)(const LinearCall& call, const float* x, float* out);
    void (*argmax)(const float* x, int64_t rows, int64_t stride, int64_t n, int64_t* out);
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels amx_kernels;
#endif
