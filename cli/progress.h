/*
 * progress.h — how far a long reading or writing has come: one line at the bottom of a terminal, with a bar. Elsewhere nothing.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

struct progress;

/* On stderr. `total`: bytes that there will be. */
struct progress *progress_new(const char *label, uint64_t total);
void progress_add(void *progress, uint64_t bytes); /* an export_progress_fn */
void progress_clear(struct progress *p);           /* takes the line away, so that another can be printed */
void progress_free(struct progress *p);            /* NULL is fine */

#endif
