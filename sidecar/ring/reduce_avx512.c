/* The kernels of reduce.h over 512-bit vectors. */
#ifdef __x86_64__
#define VECTOR_BYTES 64
#define KERNELS reduce_kernels_avx512
#define KERNELS_NAME "avx512"

#include "sidecar/ring/reduce.h"
extern const struct reduce_kernels reduce_kernels_avx512;

#include "sidecar/ring/reduce_kernels.h"
#else
typedef int reduce_avx512_is_for_x86_only;
#endif
