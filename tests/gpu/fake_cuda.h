/*
 * fake_cuda.h — a libcuda.so.1 for tests: two devices whose memory is the host's, streams that are threads, and every call can fail.
 *
 * It is found as the real one is, through the loader's path. What it knows is exactly CUDA_ENTRIES (client/c/src/cuda.h): a call of
 * anything that synchronizes the host does not exist here. It is stricter than the driver: host memory of a copy must be pinned,
 * device memory allocated, the context current. Kernels are client/gpu/kernels.cu itself, compiled as plain C++ (host_kernels.cc).
 *
 * Environment: FAKE_CUDA_VERSION (13000), FAKE_CUDA_DEVICES (2), FAKE_CUDA_REFUSES_KERNELS.
 */
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What it exports besides cuGetProcAddress_v2 and cuDriverGetVersion; found by dlsym. */
struct fake_cuda {
    void *(*alloc)(int ordinal, size_t bytes);      /* device memory; NULL stream is the default one of device 0 */
    void (*free)(void *pointer);
    void *(*stream_new)(void);                      /* a stream of the program's */
    void (*stream_free)(void *stream);              /* when it has done all */
    void (*put)(void *stream, void (*fn)(void *), void *ctx); /* fn is called in stream order, and may take its time */
    void (*capture)(void *stream, bool on);
    void (*fail_at)(int call);                      /* the call of this number from now on, 1 is the next, fails; 0: none */
    void (*break_at)(int copy);                     /* this copy or kernel fails when it is carried out, and the device with it */
    void (*reset)(void);                            /* forgets failures; counts begin anew */
    int (*calls)(void);                             /* that could have failed, since reset */
    int (*kernels)(void);                           /* launched, since reset */
    int (*live)(void);                              /* streams, events, modules, contexts and pinned memory that were not given back */
    int (*depth)(void);                             /* contexts that this thread has pushed and not popped */
};

/* host_kernels.cc. The arguments are taken at once, as a launch does; NULL: there is no such kernel. */
void *host_kernel_take(const char *name, const unsigned grid[3], const unsigned block[3], void **arguments);
void host_kernel_run(void *launch);
void host_kernel_drop(void *launch); /* after it was run, or in place of that */

#ifdef __cplusplus
}
#endif
#endif
