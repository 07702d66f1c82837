/*
 * gpu_kernels.h — arguments of client/gpu/kernels.cu, for both sides. Compiled by nvcc too: plain types alone.
 */
#ifndef CLIENT_GPU_KERNELS_H
#define CLIENT_GPU_KERNELS_H

#define GPU_COPIES_MAX 128 /* of one launch: the table is a kernel parameter, and those have 4 KiB on every driver */
#define GPU_BLOCK_THREADS 256

struct gpu_copy { unsigned long long to, from, bytes; };
struct gpu_copy_table { struct gpu_copy copies[GPU_COPIES_MAX]; };

/* enum shm_dtype, of what can be scaled */
enum gpu_dtype {
    GPU_U8 = 1, GPU_I8 = 2, GPU_I32 = 3, GPU_I64 = 4, GPU_F16 = 5, GPU_BF16 = 6, GPU_F32 = 7, GPU_F64 = 8,
};

#endif
