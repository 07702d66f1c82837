/*
 * ringmaster.h — the C API of a training process.
 *
 * A process that `ringmaster` started finds its sidecar through the environment (RINGMASTER_SOCKET and others). Without it
 * rm_init makes a world of one, so that the same program runs alone.
 *
 * Conventions. Every function returns 0 (or what it says) or a negative enum rm_error; the reason in words is rm_error_text(), of
 * the calling thread. Tensors are contiguous, row by row, in host memory (all-reduce and broadcast: or a GPU's, see enum
 * rm_memory); the caller owns them and keeps them valid until the handle is done. A name identifies a tensor on all ranks of a
 * process set: every one of them must submit it with the same operation, dtype and shape (all-gather and all-to-all: but for the first
 * dimension), in any order; one request per name and set
 * can be in flight. Ranks that disagree all hear who sent what (RM_MISMATCH). Thread-safe after rm_init. The library never aborts the
 * process and never writes to stdout or stderr.
 *
 * Failure: when a rank is lost every request in flight on every rank ends with RM_PEER_LOST. The process should exit with a
 * non-zero code (or wait to be ended): the sidecars restart the group from the last checkpoint. In a job with an elasticPolicy it
 * may stay instead: rm_shutdown, then rm_init, which waits for the next round.
 *
 * ABI: functions and fields are only ever added; structs that may grow begin with their size. rm_abi_version() of the library that
 * was loaded is at least the RM_ABI_VERSION that a program was compiled with, or what it needs may be missing.
 */
#ifndef RINGMASTER_H
#define RINGMASTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RM_API __attribute__((visibility("default")))
#define RM_ABI_VERSION 5

enum rm_error {
    RM_OK = 0,
    RM_NOT_INITIALIZED = -1,
    RM_INVALID = -2,       /* an argument cannot be right */
    RM_MISMATCH = -3,      /* ranks disagree on what a name is */
    RM_PEER_LOST = -4,     /* a rank or the sidecar is gone */
    RM_NO_MEMORY = -5,     /* arena full, or out of memory */
    RM_IO = -6,
    RM_TIMEOUT = -7,
    RM_NOT_FOUND = -8,     /* no checkpoint to restore; no such process set */
    RM_EXISTS = -9,        /* there is a process set of these ranks already */
    RM_LEFT = -10,         /* a rank that this waits for has ended its process */
};

/*
 * What goes with what. Everything else is RM_INVALID, before anything is sent.
 *
 *                           u8 i8 i32 i64   f16 bf16 f32 f64   bool             u16 i16
 *   sum, product                 x                 x
 *   average                      x (1)             x
 *   min, max                     x                 x           x (and, or)
 *   adasum, all-reduce only                        x
 *   prescale, postscale          x (1)             x
 *   all-gather, broadcast,
 *   all-to-all                   x                 x           x                   x
 *
 *   (1) computed in double, the fraction is dropped; an average without scaling is an exact integer division
 */
enum rm_dtype {
    RM_U8 = 1, RM_I8 = 2, RM_I32 = 3, RM_I64 = 4, RM_F16 = 5, RM_BF16 = 6, RM_F32 = 7, RM_F64 = 8, RM_BOOL = 9, RM_U16 = 10, RM_I16 = 11,
};
enum rm_op { RM_SUM = 1, RM_AVERAGE = 2, RM_MIN = 3, RM_MAX = 4, RM_PRODUCT = 5, RM_ADASUM = 6 };

RM_API int rm_abi_version(void);
RM_API const char *rm_version(void);
RM_API const char *rm_error_text(void);

/* framework: "tensorflow 2.21.0", for reports; may be NULL. Idempotent. After an rm_shutdown in an elastic job it waits for the next
 * round when the last one is lost (RINGMASTER_ELASTIC_TIMEOUT seconds, default 600; then RM_TIMEOUT). */
RM_API int rm_init(const char *framework);
/* Sends the last report; ends what is in flight with RM_PEER_LOST. Memory of rm_alloc and rm_result is gone. rm_init may follow. */
RM_API int rm_shutdown(void);
RM_API int rm_is_initialized(void);
RM_API int rm_rank(void);       /* 0..size-1; RM_NOT_INITIALIZED before rm_init */
RM_API int rm_size(void);
RM_API int rm_local_rank(void);
RM_API int rm_local_size(void);

/* ---- process sets ----
 *
 * Some of the ranks, which then do collectives among themselves. Set 0 is all ranks. rm_process_set_add and _remove are collectives
 * of all ranks, those outside the set too; all have to name the same ranks (RM_MISMATCH). Numbers are the same on all ranks, and are
 * given again after a set is removed. They last until rm_shutdown. */
RM_API int rm_process_set_add(const int *ranks, size_t count); /* its number; RM_EXISTS; RM_INVALID: no such rank, or one twice */
RM_API int rm_process_set_remove(int set);                     /* RM_NOT_FOUND: there is none; RM_INVALID: set 0 */
RM_API int rm_process_set_size(int set);                       /* RM_NOT_FOUND */
RM_API int rm_process_set_rank(int set);                       /* this process's place in it; RM_INVALID: it is not included */
RM_API int rm_process_set_included(int set);                   /* 1 or 0 */
RM_API int rm_process_set_ranks(int set, int *ret_ranks, size_t size);  /* how many there are; at most `size` are written, ascending */
RM_API int rm_process_sets(int *ret_sets, size_t size);        /* the numbers in use, 0 included, ascending; as above */

/* ---- collectives ----
 *
 * Asynchronous. `done` (may be NULL) is called once on the library's own thread (in a world of one: on the caller's, before the call
 * returns), with the status; it must not block nor call rm_wait. rm_shutdown may be called there: what is in flight ends when done
 * returns. *ret_handle (may be NULL when done is given; written before done can be called) is released by rm_wait or rm_release; where
 * there is a result (all-gather, reduce-scatter, all-to-all) by rm_release alone. When a call fails, done is not called.
 *
 * A joined rank (rm_join) contributes nothing: it is as if the others were alone, except that an average still divides by the size of
 * the set, and that rows of a reduce-scatter or all-to-all that are for the joined rank are dropped. */
typedef uint64_t rm_handle;
typedef void rm_done_fn(void *ctx, int status, const char *text);

enum rm_kind {
    RM_ALLREDUCE = 1, RM_ALLGATHER = 2, RM_BROADCAST = 3, RM_BARRIER = 4, RM_REDUCESCATTER = 6, RM_ALLTOALL = 7, RM_JOIN = 8,
};

struct rm_tensor {
    const void *in;          /* broadcast: only the root's is read */
    void *out;               /* all-reduce, broadcast: as large as in, may equal it; else unused */
    const int64_t *shape;    /* ndim dimensions, >= 0; NULL with ndim 0: a scalar */
    int ndim;
    int dtype;               /* enum rm_dtype */
};

/*
 * RM_CUDA: in and out of all tensors are addresses in the memory of one NVIDIA GPU, of all-reduce and broadcast. What is in `stream` at
 * the time of the call comes before: the host waits for nothing, and work that is put into the stream afterwards waits for nothing.
 * When the handle is done the result is in `out` (in a world of one: in the order of `stream`). The stream is of the device's
 * primary context, as every framework's is, and is not being captured into a graph. Data goes by the GPU's copy engines through the
 * arena, which is pinned in whole at the first such call. RM_IO: there is no NVIDIA driver, or it fails; the words say what to do.
 */
enum rm_memory { RM_HOST = 0, RM_CUDA = 1 };

/* In which form sums travel between ranks. JOB: as the job is set up, where that goes with the dtype. F16, BF16, I8: of float32, in half or a
 * quarter of the bytes; each part is rounded once and the sum once. EXACT: of float16 and bfloat16, summed up without rounding on the way. */
enum rm_wire { RM_WIRE_JOB = 0, RM_WIRE_PLAIN = 1, RM_WIRE_F16 = 2, RM_WIRE_BF16 = 3, RM_WIRE_I8 = 4, RM_WIRE_EXACT = 5 };

struct rm_collective {
    uint32_t struct_bytes;   /* sizeof(struct rm_collective) */
    int kind;                /* enum rm_kind */
    const char *name;
    int process_set;
    int op;                  /* enum rm_op: all-reduce, reduce-scatter (not adasum) */
    double prescale, postscale; /* multiplied in before and after the reduction; 1.0 for none */
    int root;                /* broadcast: a rank of the job, not a place in the set */
    /* Several: a group, one request, all or nothing (all-reduce and reduce-scatter: of one dtype; all-gather: of any). Barrier and
     * join have none. */
    size_t tensor_count;
    const struct rm_tensor *tensors;
    /* all-to-all: rows for each rank of the set, their sum is the first dimension. NULL: all get the same number. */
    const int64_t *splits;
    rm_done_fn *done;
    void *ctx;
    int memory;              /* enum rm_memory. Since ABI 4, as is the next line */
    void *stream;            /* RM_CUDA: a CUstream (cudaStream_t); NULL: the default stream */
    int wire;                /* enum rm_wire; sums and averages of all-reduce and reduce-scatter. Since ABI 5 */
};

/*
 * all-reduce      out has the reduction of all in
 * broadcast       out has the root's in, on every rank
 * all-gather      the result has the ranks' rows, in rank order; numbers of rows may differ
 * reduce-scatter  the result has this rank's rows of the reduction: d0 / n each, one more for the first d0 mod n ranks
 * all-to-all      the result has the rows that the ranks sent to this one, in rank order
 * barrier, join   no tensors; a join ends when all ranks have joined
 *
 * RM_INVALID: what cannot be right here; through the handle RM_MISMATCH, RM_PEER_LOST, RM_LEFT, RM_NO_MEMORY (no room for a result)
 * and what the sidecar finds RM_INVALID.
 */
RM_API int rm_submit(const struct rm_collective *c, rm_handle *ret_handle);

/* The result of a handle that is done: tensor `index` of the group. Valid until rm_release. */
RM_API int rm_output(rm_handle handle, size_t index, const void **ret_data, int64_t *ret_rows);
/* all-to-all: rows that came from each rank of the set, written to ret_rows[0..count-1]. RM_INVALID: count is not the set's size. */
RM_API int rm_received_splits(rm_handle handle, int64_t *ret_rows, size_t count);
/* Blocks until all ranks have joined; *ret_last_rank (may be NULL) is the one that came last, the same on all ranks. */
RM_API int rm_join(int *ret_last_rank);
RM_API int rm_joined(rm_handle handle); /* of an rm_submit of RM_JOIN that is done: the last rank */
RM_API int rm_barrier(const char *name /* NULL: the unnamed one */); /* of all ranks; blocks */

/* The same for tensors of which only the number of elements is known, among all ranks. */

/* out may equal in. prescale and postscale are 1.0 for none. */
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

RM_API int rm_poll(rm_handle handle);  /* 1 done, 0 not yet, negative: no such handle */
RM_API int rm_wait(rm_handle handle, int64_t timeout_ms /* -1: for ever */); /* the request's status */
RM_API void rm_release(rm_handle handle);

/* Buffers inside the arena travel without a copy. NULL when it is full (rm_error_text says so). */
RM_API void *rm_alloc(size_t bytes);
RM_API void rm_free(void *p);

/* A Chrome trace of what the ring does on this rank, written by the sidecar to a path of its own file system. Recording begins and
 * ends soon after the call; without a sidecar nothing happens. RM_INVALID: the path is too long. */
RM_API int rm_timeline_start(const char *path, int mark_cycles);
RM_API int rm_timeline_stop(void);

/* Progress for status, the live view and hang detection. `json` is an object with any of step, total_steps, loss, step_ms
 * and metrics{}; see docs/clients.md. Cheap: what comes faster than 10 a second is merged. */
RM_API int rm_report(const char *json);
RM_API void rm_progress(void); /* one training step went by */

/* Elastic jobs: a program that listens is asked to come to another round when workers are added or removed. It then calls
 * rm_next_round, rm_shutdown and rm_init, on every rank after the same collective; rm_init comes back in the new round, with the new rank
 * and size. A program that does not listen is ended and started again instead. */
RM_API int rm_hosts_listen(void);  /* holds until the process ends */
/* What has happened since the last call, bits: 1 workers are removed, 2 workers are added; 0: nothing. Ranks hear of it at different
 * times: they must agree on when to go. */
RM_API int rm_hosts_updated(void);
RM_API int rm_next_round(void);    /* the next rm_init waits for the round after this one */

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
 * number of ranks that saved it. When those were fewer and none had this rank's number, the image is NULL of 0 bytes. */
RM_API int rm_checkpoint_restore(const void **ret_image, uint64_t *ret_bytes, int64_t *ret_step, int *ret_world);
/* The same for the image of another rank of those that saved the step, which takes the place of the one before. For a step of
 * another number of ranks: rank r reads the images r, r + size, r + 2 * size, ... below *ret_world. One that only its own rank's
 * memory holds is refused elsewhere. */
RM_API int rm_checkpoint_restore_image(int image, const void **ret_image, uint64_t *ret_bytes, int64_t *ret_step, int *ret_world);
RM_API void rm_checkpoint_restore_done(void);

#ifdef __cplusplus
}
#endif
#endif
