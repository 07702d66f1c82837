/*
 * inspect.h — what a store holds, told for a person: every generation, whether it counts, and why not.
 */
#ifndef CHECKPOINT_INSPECT_H
#define CHECKPOINT_INSPECT_H

#include "checkpoint/store.h"

enum inspect_state {
    INSPECT_COMMITTED, /* the reader's rule accepts it */
    INSPECT_COMPLETE,  /* every rank has voted, only COMMIT is missing: the next coordinator finishes it */
    INSPECT_PARTIAL,   /* being saved, or left by a crash */
    INSPECT_ABORTED,
    INSPECT_RETIRED,   /* about to be removed */
    INSPECT_DAMAGED,   /* committed, and marked BAD or refused by the reader's rule */
};
#define INSPECT_STATES 6

struct inspection {
    struct generation generation;
    enum inspect_state state;
    bool visible;         /* in the history: a restart may use it */
    bool newest;          /* the newest of those that are committed: what a restart takes from the volume */
    bool base;            /* what the newest epoch began from */
    int32_t world, votes; /* world 0 = not known */
    uint64_t bytes;       /* of the images that are there */
    int64_t time_wall_ms; /* of COMMIT, or of the newest vote; 0 = not known */
    char note[256];       /* why it is damaged or given up, "" = nothing to say */
};

struct inspections {
    struct inspection *items; /* newest first */
    size_t count;
    struct store_scan scan;   /* what it was made from */
};

/* Headers and data of images are not read. */
MUST_CHECK int inspect_store(const struct store *s, struct inspections *ret_inspections, struct error *e);
void inspections_release(struct inspections *i);
#define auto_inspections __attribute__((cleanup(inspections_release)))

const char *inspect_state_name(enum inspect_state state); /* "committed"; static */

/* What is meant by "latest", a step's number, or the name of a generation's directory: the committed one of the history where there are
 * several of a step, else the newest. NOT_FOUND says which steps there are. Pure; borrowed. */
MUST_CHECK int inspect_find(const struct inspections *i, const char *which, const struct inspection **ret_inspection, struct error *e);

#endif
