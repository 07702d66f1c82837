/* announcements.h — what the tests of the negotiation announce. */
#ifndef TESTS_UNIT_SIDECAR_ANNOUNCEMENTS_H
#define TESTS_UNIT_SIDECAR_ANNOUNCEMENTS_H

#include <stdio.h>

#include "sidecar/ring/negotiate.h"

static inline struct signature sum_of(uint64_t count)
{
    return (struct signature){ .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = count, .prescale = 1, .postscale = 1 };
}

static inline struct announcement announcement_of(const char *name, struct signature sig)
{
    struct announcement a = { .sig = sig };

    (void)snprintf(a.name, sizeof a.name, "%s", name);
    return a;
}

#endif
