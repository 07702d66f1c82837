/*
 * logmerge.h — lines of many logs in the order of their times. Pure, bounded.
 *
 * A line is given out when no other log can still bring an older one (every log that goes on has a line waiting), when it has
 * waited for `patience_ms`, or when what waits has grown over the bound. Of one log, lines keep their order whatever their
 * times say.
 */
#ifndef CLI_LOGMERGE_H
#define CLI_LOGMERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct logmerge;

struct logmerge *logmerge_new(int64_t patience_ms /* -1: for ever */, size_t max_bytes);
void logmerge_free(struct logmerge *m); /* NULL is fine */

/* A new log; its number. `of` comes back with its lines. */
size_t logmerge_open(struct logmerge *m, const void *of);
void logmerge_add(struct logmerge *m, size_t log, int64_t time_ns, const char *text, size_t len, int64_t now_ms);
/* It brings nothing any more, or nothing for now: nobody waits for it until it is opened again by logmerge_wait. */
void logmerge_rest(struct logmerge *m, size_t log);
void logmerge_wait(struct logmerge *m, size_t log);

struct logmerge_line { const void *of; int64_t time_ns; const char *text; size_t len; };
/* The next line that may be given out, borrowed until the next call with m. */
bool logmerge_next(struct logmerge *m, int64_t now_ms, struct logmerge_line *ret);
/* When the next line will have waited long enough; -1 = nothing waits. */
int64_t logmerge_wake_ms(const struct logmerge *m);

#endif
