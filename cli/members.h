/*
 * members.h — which members of a job somebody asks for: by name, by role, by rank; all where nothing is said. Pure.
 */
#ifndef CLI_MEMBERS_H
#define CLI_MEMBERS_H

#include "job/job.h"

struct members_wish {
    char *const *words; size_t count;  /* "worker-1", borrowed */
    const char *role;                  /* "worker", or NULL */
    int64_t rank;                      /* -1 = not given */
};
struct members { char (*names)[80]; size_t count; bool all; };

/* ERROR_INVALID for a member, role or rank that the job has not. Names are in the job's order, or that of the words. */
MUST_CHECK int members_choose(const struct training_job *job, const struct members_wish *wish, struct members *ret, struct error *e);
bool members_have(const struct members *m, const char *member);
int members_width(const struct members *m); /* of the longest name */
void members_release(struct members *m);

#endif
