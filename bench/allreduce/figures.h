/* figures.h — what the peers' loops have in common: how often a size is measured, and how a line of figures looks. */
#ifndef BENCH_ALLREDUCE_FIGURES_H
#define BENCH_ALLREDUCE_FIGURES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FIGURES_ITERATIONS_MAX 2000

static inline double figures_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Iterations that are measured for a size; a fifth as many run before. */
static inline int figures_iterations(uint64_t bytes, int most)
{
    uint64_t n = (1ull << 30) / (bytes + (bytes == 0));
    int limit = most > 0 && most < FIGURES_ITERATIONS_MAX ? most : FIGURES_ITERATIONS_MAX;
    return n > (uint64_t)limit ? limit : n < 4 ? 4 : (int)n;
}

static inline int figures_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* bytes, iterations, then median, 99th percentile and least in microseconds */
static inline void figures_print(uint64_t bytes, double *seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, figures_compare);
    printf("%llu %d %.2f %.2f %.2f\n", (unsigned long long)bytes, n, seconds[n / 2] * 1e6, seconds[n - 1 - n / 100] * 1e6, seconds[0] * 1e6);
    fflush(stdout);
}

#endif
