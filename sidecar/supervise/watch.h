/*
 * watch.h — what this sidecar sees of its training process through the launcher: signs of life now and then, stacks when the coordinator
 * wants them. On the loop's thread.
 */
#ifndef SUPERVISE_WATCH_H
#define SUPERVISE_WATCH_H

#include "sidecar/supervise/attach.h"
#include "sidecar/supervise/evidence.h"

struct watch;
typedef void watch_dumped_fn(void *ctx); /* a dump is written, or cannot be */

/* Everything is kept. interval_ms 0: no signs are wanted. */
struct watch *watch_new(struct loop *l, struct attach *a, struct evidence *evidence, int64_t interval_ms, watch_dumped_fn *dumped, void *ctx);
void watch_free(struct watch *w); /* NULL is fine */

void watch_process(struct watch *w, bool runs); /* begins or ends looking for signs */
/* Taken into the view: CPU use since the signs before. */
void watch_signs(struct watch *w, const struct local_signs *signs, int64_t now_ms, struct progress_view *view);

/* Asks for the stacks and writes them behind `head` (taken) into the file of this member. One that is under way is not asked for again. */
void watch_dump(struct watch *w, const char *name, const char *member, char *head);
void watch_stacks(struct watch *w, const char *text, size_t len);

#endif
