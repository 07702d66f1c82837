/*
 * gpu.h — moving tensors between GPU memory and the arena, by the GPU's copy engines and in stream order.
 *
 * The arena is pinned and mapped once; each device that tensors come from has two streams of ours, one for each direction. The program's
 * stream is only ever given an event to record: nothing waits for it on the host, and nothing is put behind what follows in it.
 *
 *   program's stream   ... backward | event |  next work, which need not wait ...
 *   to_host                           wait  | piece 0 → arena | host function: submit | piece 1 → arena | ...
 *   the ring                                                   reduces in the arena
 *   to_device                                                    arena → piece 0 | host function: landed | ...
 *
 * Many small tensors that travel as one go by one kernel launch in place of a copy each (client/gpu/kernels.cu), which writes to the arena
 * over the bus. Where the driver is older than the kernels, copies do it all.
 *
 * Threads: any. Functions push the device's primary context and pop it again. The client's lock may be held for gpu_scale alone: the
 * others may block for as long as the driver's queue of a stream is full, and what empties it takes that lock.
 */
#ifndef CLIENT_GPU_H
#define CLIENT_GPU_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda.h"
#include "gpu_kernels.h"

struct segment;

struct gpu_device {
    int ordinal;
    CUdevice device;
    CUcontext context;            /* the primary one: the frameworks' */
    CUstream to_host, to_device;
    CUmodule module;
    CUfunction copy_many, scale;  /* NULL: this driver does not take our kernels */
    CUdeviceptr arena;            /* where this device sees gpu.arena */
    struct gpu_device *next;
};

struct gpu {
    pthread_mutex_t lock;         /* guards opening; what is open stays until gpu_close */
    struct cuda_driver driver;
    bool open, closed;            /* closed: nothing may be opened until gpu_allow */
    struct gpu_device *devices;
    uint8_t *arena;               /* pinned; NULL: not yet */
    bool failed;                  /* with the client's lock: copies that were begun may never tell their end */
    bool watched;                 /* with the client's lock: the completion thread knows that it has to look at the devices */
    int64_t looked_ms;            /* the completion thread's: when gpu_check was called last */
};

/* The one device that all buffers of these segments lie on, opened and with the arena pinned (arena NULL: no arena, a world of one).
 * *ret_device is NULL when there is no byte to move. RM_INVALID: host memory, or several devices; RM_IO, RM_NO_MEMORY: the driver. */
int gpu_of(struct gpu *g, const char *name, const struct segment *segments, size_t count, void *arena, uint64_t arena_bytes,
           struct gpu_device **ret_device);
/* A mark in the program's stream: what was put into it until now. RM_INVALID: the stream is being captured into a graph. The mark is
 * given up by gpu_unmark, also while something waits for it. */
int gpu_mark(struct gpu *g, struct gpu_device *d, CUstream stream, CUevent *ret_mark);
void gpu_unmark(struct gpu *g, struct gpu_device *d, CUevent mark);

/* Starts copies; then `landed` is called with token on a thread of the driver's, where nothing of CUDA may be called. Not when the
 * device fails meanwhile: gpu_check tells. In case of an error `landed` is not called. `to` (in) and `from` (out) are host addresses
 * in the arena. mark (may be NULL): not before it. */
int gpu_copy_in(struct gpu *g, struct gpu_device *d, CUevent mark, struct gpu_copy *copies, size_t count, CUhostFn landed, void *token);
int gpu_copy_out(struct gpu *g, struct gpu_device *d, CUevent mark, struct gpu_copy *copies, size_t count, CUhostFn landed, void *token);

/* out = in * factor in the program's stream, as alone_scale does it. dtype: enum shm_dtype. */
int gpu_scale(struct gpu *g, struct gpu_device *d, CUstream stream, const void *in, void *out, uint64_t count, unsigned dtype, double factor);

/* Has anything that was started failed? RM_OK or RM_IO. */
int gpu_check(struct gpu *g);
/* Waits until nothing of ours is under way, so that the arena may go. False: after timeout_ms something still is (the program's stream
 * does not come to our mark). */
bool gpu_settle(struct gpu *g, int timeout_ms);
/* Between gpu_close and the next gpu_allow gpu_of fails with RM_NOT_INITIALIZED: nothing is pinned while the arena goes. */
void gpu_allow(struct gpu *g);
/* Gives everything back; when it has not settled, all but the arena, into which a device may still write. Not with the client's lock: a
 * driver may wait for host functions. */
void gpu_close(struct gpu *g, bool settled);

#endif
