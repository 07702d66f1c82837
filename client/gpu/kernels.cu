/*
 * kernels.cu — what the client library lets a GPU do itself. Everything else is moved by its copy engines, which take nothing
 * from the multiprocessors; a kernel is used only where that is better:
 *
 *   ringmaster_copy_many   many small tensors into one piece of memory, and back: one launch in place of a copy for each
 *   ringmaster_scale       a tensor times a factor, in a world of one rank, where nobody else would do it
 *
 * The file is compiled twice: by nvcc into the fatbin that the library carries, and by the tests as plain C++ against a header that
 * declares threads as loops (tests/gpu/host_kernels.h), so that its arithmetic is tested where there is no GPU. So it uses no header of
 * CUDA's. Arguments are declared for the host in client/c/src/gpu_kernels.h.
 */
#include "client/c/src/gpu_kernels.h"

typedef unsigned short u16;

/* ---- copies ---- */

/* One row of blocks for each entry; the blocks of a row stride through it. Sixteen bytes a thread where both ends allow it. */
extern "C" __global__ void ringmaster_copy_many(struct gpu_copy_table table)
{
    const struct gpu_copy entry = table.copies[blockIdx.y];
    unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x, words = 0;

    if (((entry.to | entry.from) & 15) == 0) {
        words = entry.bytes / 16;
        for (unsigned long long i = first; i < words; i += threads)
            ((uint4 *)entry.to)[i] = ((const uint4 *)entry.from)[i];
    }
    for (unsigned long long i = 16 * words + first; i < entry.bytes; i += threads)
        ((unsigned char *)entry.to)[i] = ((const unsigned char *)entry.from)[i];
}

/* ---- half types: to float, and back to the nearest, ties to even ---- */

static __device__ float from_half(u16 h)
{
#ifdef __CUDA_ARCH__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#else
    return host_from_half(h);
#endif
}

static __device__ u16 to_half(float f)
{
#ifdef __CUDA_ARCH__
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#else
    return host_to_half(f);
#endif
}

static __device__ float from_bfloat(u16 b)
{
    return __uint_as_float((unsigned)b << 16);
}

static __device__ u16 to_bfloat(float f)
{
    unsigned bits = __float_as_uint(f);

    if (f != f)
        return (u16)(bits >> 16 | 0x40); /* a quiet NaN: rounding could make it infinite */
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- scaling ---- */

/* What client/c/src/alone.c does on the host, to the bit: float types in float (float64 in double), integers in double, the fraction
 * dropped and held within the type. */
static __device__ double scaled(double value, double factor)
{
    return value * factor;
}

static __device__ float scaled(float value, double factor)
{
    return value * (float)factor;
}

template <typename T> static __device__ T scaled(T value, double factor)
{
    const T low = (T)-1 > 0 ? (T)0 : (T)((T)1 << (8 * sizeof(T) - 1)), high = (T)~low;
    double x = (double)value * factor;

    if (!(x == x))
        return 0;
    return x <= (double)low ? low : x >= (double)high ? high : (T)x;
}

template <typename T>
static __device__ void scale_each(const void *in, void *out, unsigned long long count, double factor)
{
    unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;

    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        ((T *)out)[i] = scaled(((const T *)in)[i], factor);
}

template <float from(u16), u16 to(float)>
static __device__ void scale_halves(const void *in, void *out, unsigned long long count, double factor)
{
    unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;

    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        ((u16 *)out)[i] = to(from(((const u16 *)in)[i]) * (float)factor);
}

extern "C" __global__ void ringmaster_scale(const void *in, void *out, unsigned long long count, unsigned dtype, double factor)
{
    switch (dtype) {
    case GPU_U8: scale_each<unsigned char>(in, out, count, factor); break;
    case GPU_I8: scale_each<signed char>(in, out, count, factor); break;
    case GPU_I32: scale_each<int>(in, out, count, factor); break;
    case GPU_I64: scale_each<long long>(in, out, count, factor); break;
    case GPU_F16: scale_halves<from_half, to_half>(in, out, count, factor); break;
    case GPU_BF16: scale_halves<from_bfloat, to_bfloat>(in, out, count, factor); break;
    case GPU_F32: scale_each<float>(in, out, count, factor); break;
    case GPU_F64: scale_each<double>(in, out, count, factor); break;
    default: break;
    }
}
