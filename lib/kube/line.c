#include "kube/line.h"

#include <string.h>

void kube_lines_init(struct kube_lines *l, size_t max, bool cut_long)
{
    *l = (struct kube_lines){ .rest = BUF_INIT(max), .max = max, .cut_long = cut_long, .too_long = false };
}

static void give_rest(struct kube_lines *l, kube_line_give_fn *give, void *ctx)
{
    size_t len = l->rest.len;

    if (len > 0 && l->rest.text[len - 1] == '\r')
        l->rest.text[--len] = '\0';
    if (len > 0)
        give(ctx, l->rest.text, len);
    buf_clear(&l->rest);
}

/* One line, or a part of it that brings no line end. -1: too long. */
static int add_part(struct kube_lines *l, const char *bytes, size_t len, kube_line_give_fn *give, void *ctx)
{
    while (len > l->max - l->rest.len) {
        if (!l->cut_long)
            return -1;
        size_t room = l->max - l->rest.len;
        buf_add_bytes(&l->rest, bytes, room);
        bytes += room;
        len -= room;
        give_rest(l, give, ctx);
    }
    buf_add_bytes(&l->rest, bytes, len);
    return 0;
}

int kube_lines_feed(struct kube_lines *l, const char *bytes, size_t len, kube_line_give_fn *give, void *ctx, struct error *e)
{
    while (len > 0 && !l->too_long) {
        const char *end = memchr(bytes, '\n', len);
        size_t part = end != NULL ? (size_t)(end - bytes) : len;
        if (add_part(l, bytes, part, give, ctx) < 0) {
            l->too_long = true;
            buf_release(&l->rest);
            break;
        }
        if (end == NULL)
            return 0;
        give_rest(l, give, ctx);
        bytes = end + 1;
        len -= part + 1;
    }
    return l->too_long ? error_set(e, ERROR_LIMIT, "a line of the stream is longer than %zu bytes", l->max) : 0;
}

void kube_lines_end(struct kube_lines *l, kube_line_give_fn *give, void *ctx)
{
    if (!l->too_long && l->rest.len > 0)
        give_rest(l, give, ctx);
}

void kube_lines_release(struct kube_lines *l)
{
    buf_release(&l->rest);
}
