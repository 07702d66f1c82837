/*
 * tail.h — the end of what the training process writes to stderr, kept for the report of its failure while it passes through.
 *
 * stderr of the process becomes a pipe whose bytes go on to the launcher's own stderr, unchanged and in order; where stdout and stderr
 * are one and the same file (the local runner, 2>&1) both go through it, so that lines keep their order. A terminal is left alone:
 * programs ask whether they have one. When whoever reads the launcher's stderr is slow, the process waits, as it would without the pipe;
 * when he is gone, the process hears of it, too. On the loop's thread; nothing blocks but tail_flush.
 */
#ifndef LAUNCH_TAIL_H
#define LAUNCH_TAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"

struct tail;

struct tail_ends { int out, err; }; /* for the process's stdout and stderr; -1: the launcher's own */

struct tail *tail_new(struct loop *l);
/* A process is about to start. The ends are borrowed until tail_started. Where no pipe can be made it runs without. */
struct tail_ends tail_begin(struct tail *t);
void tail_started(struct tail *t); /* it has its ends, or could not be started */
/* It has ended, and all who could write: takes what is still on its way. */
void tail_end(struct tail *t);
/* The last whole lines that fit, as plain text; "" when it wrote nothing or had a terminal. */
void tail_text(const struct tail *t, char *ret_text, size_t size);
uint64_t tail_bytes(const struct tail *t); /* of all processes so far */
void tail_flush(struct tail *t, int limit_ms); /* hands on what is left, for a launcher that leaves; blocks */
void tail_free(struct tail *t);                /* NULL is fine */

#endif
