// Compiled once for every instruction set, with SIMD_VARIANT naming it: see setup.py.
#include "append.h"
#include "argmax.h"
#include "attention.h"
#include "kernels.h"
#include "linear.h"

#define STRING_OF(name) #name
#define NAME_OF(variant) STRING_OF(variant)
#define JOINED(left, right) left##right
#define TABLE_OF(variant) JOINED(variant, _kernels)

extern const Kernels TABLE_OF(SIMD_VARIANT) = {NAME_OF(SIMD_VARIANT), SIMD_VARIANT::append, SIMD_VARIANT::attend,
                                                SIMD_VARIANT::linear, SIMD_VARIANT::argmax};
