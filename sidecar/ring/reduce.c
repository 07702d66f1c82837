/* The portable kernels (128-bit vectors, which the compiler lowers to whatever there is) and the choice between variants. */
#define VECTOR_BYTES 16
#define KERNELS reduce_kernels_portable
#define KERNELS_NAME "portable"

#include "sidecar/ring/reduce.h"
extern const struct reduce_kernels reduce_kernels_portable, reduce_kernels_avx2, reduce_kernels_avx512;

#include "sidecar/ring/reduce_kernels.h"

const struct reduce_kernels *reduce_kernels_of(enum reduce_variant variant)
{
    switch (variant) {
    case REDUCE_PORTABLE:
        return &reduce_kernels_portable;
#ifdef __x86_64__
    case REDUCE_AVX2:
        return __builtin_cpu_supports("avx2") ? &reduce_kernels_avx2 : NULL;
    case REDUCE_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                   ? &reduce_kernels_avx512
                   : NULL;
#endif
    default:
        return NULL;
    }
}

const struct reduce_kernels *reduce_kernels(void)
{
    for (int variant = REDUCE_VARIANTS - 1; variant > REDUCE_PORTABLE; variant--) {
        const struct reduce_kernels *kernels = reduce_kernels_of((enum reduce_variant)variant);
        if (kernels != NULL)
            return kernels;
    }
    return &reduce_kernels_portable;
}
