#include "cuda.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ringmaster.h"
#include "text.h"

#define LIBRARY "libcuda.so.1"

typedef CUresult get_proc_address(const char *name, void **ret_function, int version, uint64_t flags, int *ret_found);

static const char *advice(CUresult code)
{
    switch ((int)code) {
    case CUDA_OUT_OF_MEMORY: return ": the arena is pinned in whole; make it smaller (RINGMASTER_ARENA) or give the container more memory";
    case CUDA_NO_DEVICE: return ": this process sees no GPU; does its container ask for one (resources.limits nvidia.com/gpu), and is "
                                "CUDA_VISIBLE_DEVICES right?";
    case CUDA_ILLEGAL_ADDRESS: case CUDA_LAUNCH_FAILED: return ": a kernel of the program has failed before; compute-sanitizer finds which";
    case CUDA_SYSTEM_NOT_READY: return ": the node's GPUs are not up; are nvidia-persistenced and, with NVSwitch, the fabric manager running?";
    case CUDA_SYSTEM_DRIVER_MISMATCH: return ": the container's libcuda.so.1 is not the one of the node's kernel driver; the NVIDIA container "
                                             "runtime has to bring it, not the image";
    default: return "";
    }
}

int cuda_fail(const struct cuda_driver *d, CUresult code, const char *call, const char *what_fmt, ...)
{
    const char *name = NULL, *text = NULL;
    char what[200];
    va_list ap;
    va_start(ap, what_fmt);
    vsnprintf(what, sizeof(what), what_fmt, ap);
    va_end(ap);
    if (d->cuGetErrorName == NULL || d->cuGetErrorName(code, &name) != CUDA_OK || name == NULL)
        name = "an error that this driver has no name for";
    if (d->cuGetErrorString == NULL || d->cuGetErrorString(code, &text) != CUDA_OK || text == NULL)
        text = "no text";
    return text_fail(code == CUDA_OUT_OF_MEMORY ? RM_NO_MEMORY : RM_IO, "%s, %s: %s (%s, %d)%s", what, call, text, name, (int)code,
                     advice(code));
}

static int no_library(void)
{
    const char *why = dlerror();
    return text_fail(RM_IO, "tensors in GPU memory need NVIDIA's driver, but " LIBRARY " cannot be loaded (%s): does the container ask "
                            "for a GPU (resources.limits nvidia.com/gpu), and does its node run the NVIDIA container runtime?",
                     why == NULL ? "no reason given" : why);
}

static int too_old(const char *what, int version)
{
    return text_fail(RM_IO, "NVIDIA's driver on this node is too old: %s; it knows CUDA %d.%d, needed is %d.%d (driver 525 or newer)", what,
                     version / 1000, version % 1000 / 10, CUDA_DRIVER_MIN / 1000, CUDA_DRIVER_MIN % 1000 / 10);
}

static int find_all(struct cuda_driver *d, get_proc_address *get)
{
    char what[100];
#define CUDA_FIND(entry, since, parameters) { #entry, since, offsetof(struct cuda_driver, entry) },
    static const struct { const char *name; int since; size_t at; } entries[] = { CUDA_ENTRIES(CUDA_FIND) };
#undef CUDA_FIND
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *function = NULL;
        int found = 0;
        if (get(entries[i].name, &function, entries[i].since, 0, &found) != CUDA_OK || function == NULL) {
            snprintf(what, sizeof(what), "it lacks %s of CUDA %d.%d", entries[i].name, entries[i].since / 1000, entries[i].since % 1000 / 10);
            return too_old(what, d->version);
        }
        memcpy((char *)d + entries[i].at, &function, sizeof(function));
    }
    return RM_OK;
}

int cuda_open(struct cuda_driver *ret_driver)
{
    struct cuda_driver d = { .library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
    if (d.library == NULL)
        return no_library();
    get_proc_address *get = NULL;
    CUresult (*version)(int *) = NULL;
    *(void **)&get = dlsym(d.library, "cuGetProcAddress_v2");
    *(void **)&version = dlsym(d.library, "cuDriverGetVersion");
    if (version != NULL)
        (void)version(&d.version);
    int status = get == NULL ? too_old("it lacks cuGetProcAddress_v2", d.version) : find_all(&d, get);
    if (status == RM_OK && d.version < CUDA_DRIVER_MIN)
        status = too_old("its version says so", d.version);
    if (status == RM_OK) {
        CUresult code = d.cuInit(0);
        if (code != CUDA_OK)
            status = cuda_fail(&d, code, "cuInit", "starting NVIDIA's driver");
    }
    if (status == RM_OK)
        *ret_driver = d;
    else
        dlclose(d.library); /* the mapping stays; the reference is given back */
    return status;
}
