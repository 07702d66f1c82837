#include "operator/histogram.h"

#include <inttypes.h>

void histogram_observe(struct histogram *h, const double *bounds, double value)
{
    size_t i = 0;

    while (i < HISTOGRAM_BOUNDS && value > bounds[i])
        i++;
    h->buckets[i]++;
    h->sum += value;
    h->count++;
}

void histogram_format(const struct histogram *h, const double *bounds, const char *name, const char *labels, struct buf *out)
{
    const char *comma = labels[0] != '\0' ? "," : "", *open = labels[0] != '\0' ? "{" : "", *close = labels[0] != '\0' ? "}" : "";
    uint64_t sum = 0;

    for (size_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        sum += h->buckets[i];
        buf_addf(out, "%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", name, labels, comma, bounds[i], sum);
    }
    buf_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, h->count);
    buf_addf(out, "%s_sum%s%s%s %.17g\n", name, open, labels, close, h->sum);
    buf_addf(out, "%s_count%s%s%s %" PRIu64 "\n", name, open, labels, close, h->count);
}
