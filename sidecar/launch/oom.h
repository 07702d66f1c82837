/*
 * oom.h — how often the kernel's out-of-memory killer struck in this process's memory cgroup.
 *
 * A trainer that ended by SIGKILL tells nothing: the counter's rise while it ran is the evidence. Version 2
 * (memory.events) and version 1 (memory.oom_control) are read; in a container the path that /proc/self/cgroup names may be
 * the host's while the mount shows the container's own group as its root, so both places are looked at.
 */
#ifndef LAUNCH_OOM_H
#define LAUNCH_OOM_H

#include <stdint.h>

/* -1: not readable here. `cgroup_file` and `mount` are "/proc/self/cgroup" and "/sys/fs/cgroup" except in tests. */
int64_t oom_count(const char *cgroup_file, const char *mount);

#define OOM_CGROUP_FILE "/proc/self/cgroup"
#define OOM_MOUNT "/sys/fs/cgroup"

#endif
