/*
 * waiting.h — waits until a job of a cluster is as somebody wants it.
 */
#ifndef CLI_WAITING_H
#define CLI_WAITING_H

#include "cli/cluster.h"

/* `goal` as in outcome.h; timeout_ms 0 = for ever; `tells`: changes of the phase are said on stderr, and how it ended. Returns the
 * exit code: 0 reached, 1 the job ended and not so, 3 it is not there or the cluster cannot be asked, 4 timeout, 130. */
int wait_for_job(struct cluster *c, const char *says, const char *name, const char *goal, int64_t timeout_ms, bool tells);

#endif
