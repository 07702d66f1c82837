/*
 * evidence.h — files with what was seen of a job that hung: DIR/NAME/worker-1.txt for each member, DIR/NAME/ring.txt by the coordinator.
 *
 * DIR is on the checkpoint volume, beside the checkpoints, or in the local runner's job directory; without either, in the directory that
 * the pod's containers share. Written by a thread: a volume that hangs may be why the job does. On the loop's thread.
 */
#ifndef SUPERVISE_EVIDENCE_H
#define SUPERVISE_EVIDENCE_H

#include "base/loop.h"

struct evidence;
typedef void evidence_fn(void *ctx, const char *path, const struct error *why /* NULL: it is written */);

MUST_CHECK int evidence_new(struct loop *l, const char *dir /* kept */, struct evidence **ret, struct error *e);
/* name and file without slashes. done may be NULL. */
void evidence_write(struct evidence *v, const char *name, const char *file, char *text /* taken */, evidence_fn *done, void *ctx);
const char *evidence_dir(const struct evidence *v);
void evidence_free(struct evidence *v); /* waits for the file in work; NULL is fine */

#endif
