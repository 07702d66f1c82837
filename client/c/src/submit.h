/*
 * submit.h — from a call of the public API to a request: arguments are checked here, once, before anything is queued.
 */
#ifndef CLIENT_SUBMIT_H
#define CLIENT_SUBMIT_H

#include "request.h"

/* What the engine is asked for, and what is to be remembered for its answer. */
struct submission {
    const char *name;
    struct segment one, *segments;  /* segments == &one, or on the heap */
    size_t segment_count;
    void *scratch;                  /* heap */
    uint16_t op, dtype, redop, wire, output_dtype;
    int32_t root;
    uint32_t set;
    double prescale, postscale;
    uint64_t row_elements, count;   /* count: of operations without data */
    uint64_t shape_hash;
    char shape[SHM_SHAPE_MAX];
    uint64_t *splits;               /* heap */
    uint32_t split_count;
    struct gpu_device *device;      /* NULL: host memory */
    CUstream stream;
    CUevent mark;                   /* owned */
    enum request_form form;
    struct output *outputs;         /* heap */
    size_t output_count;
    rm_done_fn *done;
    void *ctx;
    rm_handle *ret_handle;
};

/* shape.c. Checks a call and describes it; what is on the heap is the submission's also when it fails. set_size: ranks of its set;
 * place: this rank's. Pure but for the heap. */
int submission_make(const struct rm_collective *c, int set_size, int place, struct submission *ret);
void submission_release(struct submission *s);

/* collective.c. Takes what is on the heap. */
int submission_start(struct submission *s);

#endif
