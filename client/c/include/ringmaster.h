/*
 * ringmaster.h — the C API of a training process.
 *
 * A process that `ringmaster` started finds its sidecar through the environment (RINGMASTER_SOCKET and others). Without it
 * rm_init makes a world of one, so that the same program runs alone.
 *
 * Conventions. Every function returns 0 or a negative enum rm_error; the reason in words is rm_error_text(), of the calling
 * thread. Tensors are contiguous, in host memory, `count` elements of `dtype`; the caller owns them and keeps them valid
 * until the handle is done. A name identifies a tensor on all ranks: every rank must submit it with the same operation,
 * dtype and (except the first dimension of an all-gather) shape, in any order; one request per name can be in flight.
 * Thread-safe after rm_init. The library never aborts the process and never writes to stdout or stderr.
 *
 * Failure: when a rank is lost every request in flight on every rank ends with RM_PEER_LOST. The process should exit with a
 * non-zero code (or wait to be ended): the sidecars restart the group from the last checkpoint.
 */
#ifndef RINGMASTER_H
#define RINGMASTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RM_API __attribute__((visibility("default")))

enum rm_error {
    RM_OK = 0,
    RM_NOT_INITIALIZED = -1,
    RM_INVALID = -2,       /* an argument cannot be right */
    RM_MISMATCH = -3,      /* ranks disagree on what a name is */
    RM_PEER_LOST = -4,     /* a rank or the sidecar is gone */
    RM_NO_MEMORY = -5,     /* arena full, or out of memory */
    RM_IO = -6,
    RM_TIMEOUT = -7,
    RM_NOT_FOUND = -8,     /* no checkpoint to restore */
};

enum rm_dtype { RM_U8 = 1, RM_I8 = 2, RM_I32 = 3, RM_I64 = 4, RM_F16 = 5, RM_BF16 = 6, RM_F32 = 7, RM_F64 = 8, RM_BOOL = 9 };
enum rm_op { RM_SUM = 1, RM_AVERAGE = 2, RM_MIN = 3, RM_MAX = 4, RM_PRODUCT = 5 };

RM_API const char *rm_version(void);
RM_API const char *rm_error_text(void);

RM_API int rm_init(const char *framework /* "tensorflow 2.21.0", for reports; may be NULL */); /* idempotent */
/* Sends the last report; ends what is in flight with RM_PEER_LOST. Memory of rm_alloc and rm_result is gone. rm_init may follow. */
RM_API int rm_shutdown(void);
RM_API int rm_is_initialized(void);
RM_API int rm_rank(void);       /* 0..size-1; RM_NOT_INITIALIZED before rm_init */
RM_API int rm_size(void);
RM_API int rm_local_rank(void);
RM_API int rm_local_size(void);

/* Asynchronous collectives. `done` (may be NULL) is called once on the library's own thread (in a world of one: on the caller's,
 * before the call returns), with the status; it must not block nor call rm_wait. *ret_handle (may be NULL when done is given;
 * written before done can be called) is released by rm_wait or rm_release. When a call fails, done is not called. */
typedef uint64_t rm_handle;
typedef void rm_done_fn(void *ctx, int status, const char *text);

/* out may equal in. prescale and postscale are 1.0 for none. AVERAGE is for floating types. */
RM_API int rm_allreduce(const char *name, const void *in, void *out, uint64_t count, enum rm_dtype dtype, enum rm_op op,
                        double prescale, double postscale, rm_done_fn *done, void *ctx, rm_handle *ret_handle);
/* Several tensors of one dtype as one request: they travel packed. in[i] and out[i] have counts[i] elements. */
RM_API int rm_allreduce_group(const char *name, size_t tensors, const void *const *in, void *const *out,
                              const uint64_t *counts, enum rm_dtype dtype, enum rm_op op, double prescale, double postscale,
                              rm_done_fn *done, void *ctx, rm_handle *ret_handle);
/* out is filled from root's in on every rank. */
RM_API int rm_broadcast(const char *name, const void *in, void *out, uint64_t count, enum rm_dtype dtype, int root,
                        rm_done_fn *done, void *ctx, rm_handle *ret_handle);
/* rows * row_elements elements from each rank, concatenated in rank order; rows may differ. The result's size is known when
 * the handle is done: rm_result gives it, valid until rm_release. Not to be released by rm_wait. */
RM_API int rm_allgather(const char *name, const void *in, uint64_t rows, uint64_t row_elements, enum rm_dtype dtype,
                        rm_done_fn *done, void *ctx, rm_handle *ret_handle);
RM_API int rm_result(rm_handle handle, const void **ret_data, uint64_t *ret_elements);
RM_API int rm_barrier(const char *name /* NULL: the unnamed one */);

RM_API int rm_poll(rm_handle handle);  /* 1 done, 0 not yet, negative: no such handle */
RM_API int rm_wait(rm_handle handle, int64_t timeout_ms /* -1: for ever */); /* the request's status */
RM_API void rm_release(rm_handle handle);

/* Buffers inside the arena travel without a copy. NULL when it is full (rm_error_text says so). */
RM_API void *rm_alloc(size_t bytes);
RM_API void rm_free(void *p);

/* Progress for status, the live view and hang detection. `json` is an object with any of step, total_steps, loss, step_ms
 * and metrics{}; see docs/clients.md. Cheap: what comes faster than 10 a second is merged. */
RM_API int rm_report(const char *json);
RM_API void rm_progress(void); /* one training step went by */

/* Checkpoints: see docs/checkpoints.md. A slot holds one complete safetensors image of this rank's share of the state. In a
 * world without a sidecar begin gives scratch memory, stage drops it, and there is nothing to restore. */
RM_API int64_t rm_resume_step(void); /* -1: start from scratch */
/* Memory for an image of up to image_bytes. RM_TIMEOUT: both slots are busy, skip this save. */
RM_API int rm_checkpoint_begin(int64_t step, uint64_t image_bytes, void **ret_image);
/* The image is complete; persist and commit go on without us. One that the sidecar does not take fails the next begin or wait. */
RM_API int rm_checkpoint_stage(int64_t step, uint64_t image_bytes);
/* 1, once: the job asks for a checkpoint soon (a command, or a pod that is to end). Ranks hear of it at different steps: they
 * must agree on one before they save. */
RM_API int rm_checkpoint_wanted(void);
/* Until nothing staged is uncommitted. *ret_committed_step is -1 when nothing ever was. */
RM_API int rm_checkpoint_wait(int64_t timeout_ms, int64_t *ret_committed_step);
/* This rank's image of the step to resume from, read-only until rm_checkpoint_restore_done. RM_NOT_FOUND: none. *ret_world is the
 * number of ranks that saved it. */
RM_API int rm_checkpoint_restore(const void **ret_image, uint64_t *ret_bytes, int64_t *ret_step, int *ret_world);
RM_API void rm_checkpoint_restore_done(void);

#ifdef __cplusplus
}
#endif
#endif
