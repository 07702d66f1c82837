/*
 * cuda.h — the CUDA driver, found at run time: a program without a GPU needs no library of NVIDIA's.
 *
 * CUDA_ENTRIES is the whole list of what is called: name, the version of CUDA that brought this signature (cuGetProcAddress is asked
 * for just that one, whatever the driver's own version), parameters. tests/unit/client/test_cuda.c holds the list and the
 * constants against NVIDIA's own header. Types have their names and shapes from there.
 */
#ifndef CLIENT_CUDA_H
#define CLIENT_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_VERSION /* NVIDIA's header is not there; it is in the test alone */
typedef int CUresult, CUdevice, CUpointer_attribute, CUstreamCaptureStatus;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void (*CUhostFn)(void *ctx);
#endif

enum {
    CUDA_OK = 0, CUDA_OUT_OF_MEMORY = 2, CUDA_NO_DEVICE = 100, CUDA_NOT_READY = 600, CUDA_ILLEGAL_ADDRESS = 700, CUDA_LAUNCH_FAILED = 719,
    CUDA_SYSTEM_NOT_READY = 802, CUDA_SYSTEM_DRIVER_MISMATCH = 803,
};
#define CUDA_STREAM_NON_BLOCKING 1u
#define CUDA_EVENT_DISABLE_TIMING 2u
#define CUDA_HOST_PORTABLE 1u
#define CUDA_HOST_DEVICE_MAP 2u
#define CUDA_POINTER_MEMORY_TYPE 2
#define CUDA_POINTER_DEVICE_ORDINAL 9
#define CUDA_MEMORY_DEVICE 2u
#define CUDA_CAPTURE_NONE 0

#define CUDA_ENTRIES(X) \
    X(cuInit, 2000, (unsigned flags)) \
    X(cuDriverGetVersion, 2020, (int *ret_version)) \
    X(cuGetErrorName, 6000, (CUresult code, const char **ret_name)) \
    X(cuGetErrorString, 6000, (CUresult code, const char **ret_text)) \
    X(cuDeviceGet, 2000, (CUdevice *ret_device, int ordinal)) \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *ret_context, CUdevice device)) \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device)) \
    X(cuCtxPushCurrent, 4000, (CUcontext context)) \
    X(cuCtxPopCurrent, 4000, (CUcontext *ret_context)) \
    X(cuPointerGetAttribute, 4000, (void *ret_value, CUpointer_attribute attribute, CUdeviceptr pointer)) \
    X(cuStreamCreate, 2000, (CUstream *ret_stream, unsigned flags)) \
    X(cuStreamDestroy, 4000, (CUstream stream)) \
    X(cuStreamQuery, 2000, (CUstream stream)) \
    X(cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus *ret_status)) \
    X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags)) \
    X(cuEventCreate, 2000, (CUevent *ret_event, unsigned flags)) \
    X(cuEventDestroy, 4000, (CUevent event)) \
    X(cuEventRecord, 2000, (CUevent event, CUstream stream)) \
    X(cuMemHostRegister, 6050, (void *memory, size_t bytes, unsigned flags)) \
    X(cuMemHostUnregister, 4000, (void *memory)) \
    X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *ret_pointer, void *memory, unsigned flags)) \
    X(cuMemcpyDtoHAsync, 3020, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoDAsync, 3020, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    X(cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn fn, void *ctx)) \
    X(cuModuleLoadData, 2000, (CUmodule *ret_module, const void *image)) \
    X(cuModuleUnload, 2000, (CUmodule module)) \
    X(cuModuleGetFunction, 2000, (CUfunction *ret_function, CUmodule module, const char *name)) \
    X(cuLaunchKernel, 4000, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra))

#define CUDA_DRIVER_MIN 12000 /* R525: cuGetProcAddress as we use it */

struct cuda_driver {
    void *library;
    int version; /* 1000 * major + 10 * minor, of the CUDA that the driver knows */
#define CUDA_MEMBER(name, since, parameters) CUresult (*name) parameters;
    CUDA_ENTRIES(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Loads and initializes the driver. RM_OK, or RM_IO: there is none, it is too old, or it does not work; the reason says what to do.
 * A driver that was loaded stays: unloading libcuda is not supported by it. */
int cuda_open(struct cuda_driver *ret_driver);

/* Says which call failed, on what, why, and where there is something to do about it, what. RM_NO_MEMORY or RM_IO. */
int cuda_fail(const struct cuda_driver *d, CUresult code, const char *call, const char *what_fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
