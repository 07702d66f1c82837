/*
 * line.h — a stream of bytes cut into lines, however the network cut it. Pure, bounded.
 *
 * A line ends in \n (a \r before it goes too); empty lines are not given. Bytes after the last \n wait for more, or for
 * kube_lines_end.
 */
#ifndef KUBE_LINE_H
#define KUBE_LINE_H

#include "base/buf.h"

typedef void kube_line_give_fn(void *ctx, const char *line, size_t len); /* NUL-terminated; borrowed for the call */

struct kube_lines {
    struct buf rest;   /* the beginning of a line whose end has not come */
    size_t max;        /* longest line in bytes */
    bool cut_long;     /* a longer line is given in pieces; otherwise it is an error, and stays one */
    bool too_long;
};

void kube_lines_init(struct kube_lines *l, size_t max, bool cut_long);
/* ERROR_LIMIT when a line is longer than max. `give` must not feed the same struct. */
MUST_CHECK int kube_lines_feed(struct kube_lines *l, const char *bytes, size_t len, kube_line_give_fn *give, void *ctx, struct error *e);
void kube_lines_end(struct kube_lines *l, kube_line_give_fn *give, void *ctx); /* gives what waits */
void kube_lines_release(struct kube_lines *l);

#endif
