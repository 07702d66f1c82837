/*
 * look.h — what the processes below the launcher do: signs of life, and the stacks of all their threads as text for a person.
 *
 * Stacks come without a debugger, which no training image has: Python's from the process itself (wire/local.h, LOCAL_STACKS_SIGNAL),
 * for each thread its name, state, the system call that it is in, where in which library, and what it waits for in the kernel; the
 * kernel's own stack where the kernel shows it (to root). A process that answers to nothing delays the text, for at most two seconds.
 * On the loop's thread; one dump at a time.
 */
#ifndef LAUNCH_LOOK_H
#define LAUNCH_LOOK_H

#include "base/buf.h"
#include "base/loop.h"
#include "wire/local.h"

struct look;
typedef void look_fn(void *ctx, uint32_t number, const char *text, size_t len);

struct look *look_new(struct loop *l, look_fn *fn, void *ctx);
void look_stacks(struct look *k, uint32_t number); /* fn is called later; of two that overlap the second is answered with the first */
void look_free(struct look *k);                    /* NULL is fine */

void look_signs(struct local_signs *ret); /* cpu_ms and traced */

/* Pure parts, for the test. "12 (sh) S 7 ... utime stime cutime cstime ...": false when it is none. */
bool look_parse_stat(const char *text, char *ret_state, uint64_t *ret_ticks);
/* Does the mask of /proc/PID/status's line "SigCgt:\t0000000180014a07" hold the signal? */
bool look_catches(const char *status, int signal_number);
/* Where an address lies by the text of /proc/PID/maps: "libc.so.6+0x1234"; "" when nowhere. */
void look_place(const char *maps, uint64_t address, char ret_text[160]);

#endif
