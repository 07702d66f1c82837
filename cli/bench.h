/*
 * bench.h — measuring the all-reduce from inside a training process: the sizes, and one rank's part in it.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct bench_options {
    int64_t min_bytes, max_bytes, factor; /* sizes: min, min * factor, ... up to max */
    int64_t iterations, warmup;           /* 0 iterations: as many as a size is worth */
    unsigned dtype, redop;                /* enum shm_dtype, enum shm_redop */
    bool in_arena;                        /* buffers from rm_alloc: nothing is copied to the sidecar or back */
    bool check;
    bool percentiles;                     /* two more columns */
    const char *library_dir;              /* of libringmaster.so; NULL: where the loader looks */
};

int64_t bench_iterations(const struct bench_options *o, int64_t bytes); /* pure */

/* This rank's part; rank 0 prints the table on stdout. *ret_wrong: elements that were not what they should be, of all sizes. */
MUST_CHECK int bench_allreduce(const struct bench_options *o, int64_t *ret_wrong, struct error *e);

#endif
