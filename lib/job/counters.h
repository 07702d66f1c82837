/*
 * counters.h — the sliding window of counted restarts, and counters as JSON: in a sidecar's environment and in a coordinator's
 * report. Pure.
 */
#ifndef JOB_COUNTERS_H
#define JOB_COUNTERS_H

#include "job/restart.h"

/* What is window_ms old or older falls out, then one restart at now_ms is added. A clock that went back changes nothing about
 * what is there. */
void restart_window_add(struct restart_window *w, int64_t now_ms, int64_t window_ms);
int32_t restart_window_count(const struct restart_window *w); /* as of the last addition */

/* Between a status and its copy that travels. */
void restart_counters_of(const struct job_status *status, struct restart_counters *ret);
void restart_counters_take(struct job_status *status, const struct restart_counters *c);

cJSON *restart_counters_encode(const struct restart_counters *c); /* owned */
/* False, and nothing in *ret, for what restart_counters_encode cannot have made; absent numbers are 0. */
bool restart_counters_decode(const cJSON *object, struct restart_counters *ret);

#endif
