/*
 * volume_posix.h — a volume that is a directory. The discipline of its writes is in io.h.
 */
#ifndef CHECKPOINT_VOLUME_POSIX_H
#define CHECKPOINT_VOLUME_POSIX_H

#include "checkpoint/volume.h"

struct volume *volume_posix_new(const char *root);

#endif
