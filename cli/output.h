/*
 * output.h — what a command writes: kept byte for byte in its log, handed on in lines, its end remembered.
 *
 * Lines are handed on as a terminal would have shown them: of a line that was overwritten with carriage returns (a progress
 * bar) only the last state, without control characters except colours.
 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "base/buf.h"
#include "base/loop.h"

struct output;
typedef void output_line_fn(void *ctx, const char *text, size_t len);
typedef void output_error_fn(void *ctx, const struct error *why); /* the log cannot be written (disk full); called once */

/* *ret_write_fd is for the child; close it after the start. Appends to the file at path. */
MUST_CHECK int output_new(struct loop *loop, const char *path, output_line_fn *line, output_error_fn *failed, void *ctx,
                          struct output **ret, int *ret_write_fd, struct error *e);
/* What comes from now on is written to this file, too, beside what it holds. Its directory has to be there. */
MUST_CHECK int output_copy(struct output *o, const char *path, struct error *e);
void output_drain(struct output *o);   /* the writer has ended: takes what is still in the pipe, hands on a last half line */
void output_tail(const struct output *o, char *ret_text, size_t size); /* the last whole lines that fit */
void output_free(struct output *o);    /* NULL is fine */

/* Pure: one raw line as it is handed on. */
void output_clean(const char *raw, size_t len, struct buf *out);

#endif
