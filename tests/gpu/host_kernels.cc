/* client/gpu/kernels.cu as plain C++: a thread of a GPU is one turn of four loops. */
#include <cstring>
#include <functional>
#include <immintrin.h>

#include "tests/gpu/fake_cuda.h"

#define __global__
#define __device__

namespace {

struct dim { unsigned x, y, z; };
thread_local dim gridDim, blockDim, blockIdx, threadIdx;
struct uint4 { unsigned x, y, z, w; };

inline unsigned __float_as_uint(float f)
{
    unsigned bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The processor's own conversions: a third opinion beside the GPU's and alone.c's. */
inline float host_from_half(unsigned short h) { return _cvtsh_ss(h); }
inline unsigned short host_to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }

#include "client/gpu/kernels.cu"

struct launch { dim grid, block; std::function<void()> thread; };

} // namespace

void *host_kernel_take(const char *name, const unsigned grid[3], const unsigned block[3], void **a)
{
    std::function<void()> thread;
    if (strcmp(name, "ringmaster_copy_many") == 0) {
        gpu_copy_table table = *static_cast<gpu_copy_table *>(a[0]);
        thread = [table] { ringmaster_copy_many(table); };
    } else if (strcmp(name, "ringmaster_scale") == 0) {
        auto in = *static_cast<const void **>(a[0]);
        auto out = *static_cast<void **>(a[1]);
        auto count = *static_cast<unsigned long long *>(a[2]);
        auto dtype = *static_cast<unsigned *>(a[3]);
        auto factor = *static_cast<double *>(a[4]);
        thread = [=] { ringmaster_scale(in, out, count, dtype, factor); };
    } else {
        return nullptr;
    }
    return new launch{ { grid[0], grid[1], grid[2] }, { block[0], block[1], block[2] }, thread };
}

void host_kernel_run(void *taken)
{
    auto *l = static_cast<launch *>(taken);
    gridDim = l->grid;
    blockDim = l->block;
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
                l->thread();
}

void host_kernel_drop(void *taken)
{
    delete static_cast<launch *>(taken);
}
