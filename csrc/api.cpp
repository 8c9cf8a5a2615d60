// The library's C functions. They trust their arguments: library.py, their only caller, checks them.
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "kernels.h"
#include "moving.h"
#include "packing.h"

namespace {

#if defined(__x86_64__)

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

// Linux saves the large tile registers only for a process that has asked for them.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long ASK_FOR_PERMISSION = 0x1023, TILE_DATA = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool has_tiles = (d >> 24 & 1) && (d >> 25 & 1);  // AMX-TILE and AMX-INT8
    return has_tiles && syscall(SYS_arch_prctl, ASK_FOR_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

#endif

bool runs_here(const Kernels& kernels) {
#if defined(__x86_64__)
    if (&kernels == &amx_kernels) return has_avx512() && may_use_tiles();
    if (&kernels == &avx512_kernels) return has_avx512();
    if (&kernels == &avx2_kernels) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    }
#endif
    return true;
}

const Kernels* const variants[] = {
#if defined(__x86_64__)
    &amx_kernels,
    &avx512_kernels,
    &avx2_kernels,
#endif
    &portable_kernels,
};

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// The kernels called `name`, or the best ones for this CPU if it is null; null if there are none that run here.
EXPORTED const Kernels* kernels_find(const char* name) {
    for (const Kernels* kernels : variants) {
        if (runs_here(*kernels) && (name == nullptr || std::strcmp(name, kernels->name) == 0)) return kernels;
    }
    return nullptr;
}

EXPORTED const char* kernels_name(const Kernels* kernels) { return kernels->name; }

EXPORTED void kernels_append(const Kernels* kernels, const PagedCall* call, int64_t layer, const RotaryCall* rotary,
                             const float* fused, float* queries) {
    kernels->append(*call, layer, *rotary, fused, queries);
}

EXPORTED void kernels_attend(const Kernels* kernels, const PagedCall* call, int64_t layer, const float* queries, float* output) {
    kernels->attend(*call, layer, queries, output);
}

EXPORTED void kernels_linear(const Kernels* kernels, const LinearCall* call, const float* x, float* out) {
    kernels->linear(*call, x, out);
}

EXPORTED void kernels_argmax(const Kernels* kernels, const float* x, int64_t rows, int64_t stride, int64_t n,
                             int64_t* out) {
    kernels->argmax(x, rows, stride, n, out);
}

EXPORTED void kernels_move_rows(uint8_t* plane, int64_t bytes, const int64_t* sources, const int64_t* targets,
                                const int64_t* starts, int64_t lanes) {
    move_rows(plane, bytes, sources, targets, starts, lanes);
}

EXPORTED int64_t kernels_packed_bytes(int64_t n, int64_t k, int64_t bits) { return packed_bytes(n, k, bits); }

EXPORTED int64_t kernels_pack_exactly(const float* weights, int64_t n, int64_t k, uint8_t* out) {
    return pack_exactly(weights, n, k, out);
}

EXPORTED void kernels_pack_rounded(const float* weights, int64_t n, int64_t k, uint8_t* out) {
    pack_rounded(weights, n, k, out);
}

}  // extern "C"
