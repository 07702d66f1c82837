/*
 * restart_class.h — what an end means by itself: its class, whether the driver blames the hardware, and how often it is worth a try.
 * Pure; used by restart.c and restart_text.c alone.
 */
#ifndef JOB_RESTART_CLASS_H
#define JOB_RESTART_CLASS_H

#include "job/restart.h"

/* For how many ends of the same kind, of the same replica and without progress in between, a restart is tried: in place, then in a new
 * pod on another node. One more, and the job fails. */
struct restart_tries { int32_t in_place, elsewhere; const char *why; /* why not more, for a person */ };
#define TRIES_UNLIMITED INT32_MAX

const struct restart_tries *restart_tries_of(const struct failure_event *event, enum failure_class class);
bool restart_is_one_of(const char *text /* NULL is none */, const char *const *list, size_t count);
bool restart_has_condition(const struct failure_event *event, const char *type, const char *status);
bool restart_is_start_problem(const struct failure_event *event);
/* The driver's own words about broken hardware in the log: "Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus". */
bool restart_blames_hardware(const char *message /* NULL is fine */);
/* An end as one number, never 0: which replica, how. */
int32_t restart_end_of(const struct failure_event *event, enum failure_class class);

#endif
