/* Our declarations of the CUDA driver against NVIDIA's own: signatures, the versions that they came with, constants. */
#include <cuda.h>
#include <cudaTypedefs.h>

#include <criterion/criterion.h>

#include "client/c/src/cuda.h"

#define SAME(entry, since, parameters)                                                                                 \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct cuda_driver *)0)->entry), PFN_##entry##_v##since), \
                   #entry " is declared as NVIDIA does");
CUDA_ENTRIES(SAME)

Test(cuda, constants_are_nvidias)
{
    static const struct { const char *name; long ours, theirs; } rows[] = {
#define ROW(ours, theirs) { #theirs, (long)(ours), (long)(theirs) }
        ROW(CUDA_OK, CUDA_SUCCESS),
        ROW(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY),
        ROW(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE),
        ROW(CUDA_NOT_READY, CUDA_ERROR_NOT_READY),
        ROW(CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS),
        ROW(CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED),
        ROW(CUDA_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY),
        ROW(CUDA_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
        ROW(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING),
        ROW(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING),
        ROW(CUDA_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE),
        ROW(CUDA_HOST_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP),
        ROW(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
        ROW(CUDA_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
        ROW(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE),
        ROW(CUDA_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE),
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect_eq(rows[i].ours, rows[i].theirs, "case %s: %ld, NVIDIA has %ld", rows[i].name, rows[i].ours, rows[i].theirs);
}

/* What libcuda exports for good, and the fake too, is asked for by the name that NVIDIA's header gives it. */
Test(cuda, the_loader_has_the_signature_that_is_called)
{
    cr_assert(__builtin_types_compatible_p(PFN_cuGetProcAddress_v12000,
                                           CUresult (*)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)));
    cr_expect_eq(sizeof(CUdriverProcAddressQueryResult), sizeof(int));
    cr_expect_eq(sizeof(cuuint64_t), sizeof(uint64_t));
    cr_expect_eq(sizeof(CUdeviceptr), sizeof(uint64_t));
}
