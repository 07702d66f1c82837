/* The kernels of reduce.h over 256-bit vectors. */
#ifdef __x86_64__
#define VECTOR_BYTES 32
#define KERNELS reduce_kernels_avx2
#define KERNELS_NAME "avx2"

#include "sidecar/ring/reduce.h"
extern const struct reduce_kernels reduce_kernels_avx2;

#include "sidecar/ring/reduce_kernels.h"
#else
typedef int reduce_avx2_is_for_x86_only;
#endif
