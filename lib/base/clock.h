/*
 * clock.h — the only place that asks the kernel for the time. Everything else takes `now_ms` as an argument, so that
 * tests run on virtual time.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

int64_t clock_mono_ms(void); /* CLOCK_MONOTONIC: intervals, deadlines, heartbeats */
int64_t clock_mono_ns(void);
int64_t clock_wall_ms(void); /* CLOCK_REALTIME, Unix epoch: what is written into status and reports */

/* RFC 3339 in UTC with seconds ("2026-02-03T04:05:06Z", Kubernetes' metav1.Time) and back. */
#define CLOCK_TEXT_MAX 32
void clock_format(int64_t wall_ms, char ret_text[CLOCK_TEXT_MAX]);
int clock_parse(const char *text, int64_t *ret_wall_ms); /* accepts fractions and Z; -1 when it is no such text */

#endif
