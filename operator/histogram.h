/*
 * histogram.h — how often a figure fell between which bounds, as Prometheus wants it. Pure.
 */
#ifndef OPERATOR_HISTOGRAM_H
#define OPERATOR_HISTOGRAM_H

#include <stdint.h>

#include "base/buf.h"

#define HISTOGRAM_BOUNDS 12

struct histogram {
    uint64_t buckets[HISTOGRAM_BOUNDS + 1]; /* of each bound alone, the last one beyond all of them */
    uint64_t count;
    double sum;
};

/* bounds: HISTOGRAM_BOUNDS values that rise; always the same for one histogram. A value on a bound is within it. */
void histogram_observe(struct histogram *h, const double *bounds, double value);

/* The lines of one series, without HELP and TYPE. labels: `name="value"` pairs with commas between them, "" = none. */
void histogram_format(const struct histogram *h, const double *bounds, const char *name, const char *labels, struct buf *out);

#endif
