/*
 * loop.h — one thread, one epoll loop: file descriptors, timers and messages from other threads.
 *
 * Callbacks run on the thread that calls loop_run. No callback may block. A source may be removed from inside any
 * callback, its own included. Only loop_post may be called from another thread. Times are monotonic milliseconds; the
 * loop reads the clock once per turn (loop_now).
 */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct loop;
struct loop_source; /* an fd being watched */
struct loop_timer;

/* EDGE: told once when it becomes readable or writable, not while it is; for those who go on until nothing is left. */
enum { LOOP_READ = 1, LOOP_WRITE = 2, LOOP_HANGUP = 4, LOOP_EDGE = 8 };

typedef void loop_io_fn(void *ctx, int fd, unsigned events); /* LOOP_* bits; HANGUP comes with or without being asked for */
typedef void loop_timer_fn(void *ctx);
typedef void loop_post_fn(void *ctx);
typedef void loop_signal_fn(void *ctx, int signal_number);

MUST_CHECK int loop_new(struct loop **ret_loop, struct error *e);
void loop_free(struct loop *l);

/* Watches fd, which stays the caller's: remove the source before closing it. */
MUST_CHECK int loop_add(struct loop *l, int fd, unsigned events, loop_io_fn *fn, void *ctx,
                        struct loop_source **ret_source, struct error *e);
void loop_set(struct loop_source *s, unsigned events);
void loop_remove(struct loop_source *s); /* NULL is fine */

/* Timers are created idle, set and re-set any number of times, and fire once per setting. */
struct loop_timer *loop_timer_new(struct loop *l, loop_timer_fn *fn, void *ctx);
void loop_timer_at(struct loop_timer *t, int64_t mono_ms);
void loop_timer_cancel(struct loop_timer *t);
bool loop_timer_armed(const struct loop_timer *t);
void loop_timer_free(struct loop_timer *t); /* NULL is fine */

/* Blocks the signals in the whole process (call before starting threads) and has them delivered as calls on the loop. */
MUST_CHECK int loop_signals(struct loop *l, const int *signals, size_t count, loop_signal_fn *fn, void *ctx, struct error *e);

/* Asked each time when nothing is left to do and the loop would sleep: true means that it shall look again at once instead. For
 * those who wait for something that comes in less time than waking up takes. NULL: never. */
typedef bool loop_idle_fn(void *ctx);
void loop_on_idle(struct loop *l, loop_idle_fn *fn, void *ctx);

/* Runs fn(ctx) on the loop's thread, in the order posted. From any thread. ctx must stay valid until then. */
void loop_post(struct loop *l, loop_post_fn *fn, void *ctx);

int64_t loop_now(const struct loop *l);
MUST_CHECK int loop_run(struct loop *l, struct error *e); /* until loop_stop */
void loop_stop(struct loop *l);

#endif
