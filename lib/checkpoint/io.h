/*
 * io.h — the system calls that change the volume, each with a fault point before it, and what is built of them.
 *
 * The discipline: a file is written under a name that ends in ".tmp", synced, closed (checked: network file systems report a
 * full disk there), and only then given its name; then the directory is synced. An fsync error means that the data is lost:
 * the file is removed and never synced again. Blocking.
 */
#ifndef CHECKPOINT_IO_H
#define CHECKPOINT_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

MUST_CHECK int io_create(const char *path, int *ret_fd, struct error *e); /* a leftover of that name is removed first */
MUST_CHECK int io_reserve(int fd, const char *path, uint64_t bytes, struct error *e); /* finds a full disk early, where that is supported */
MUST_CHECK int io_write(int fd, const char *path, const void *bytes, size_t len, struct error *e);
MUST_CHECK int io_finish(int fd /* closed in any case */, const char *path, struct error *e); /* fdatasync and close */
MUST_CHECK int io_rename(const char *from, const char *to, struct error *e);
MUST_CHECK int io_sync_dir(const char *path, struct error *e);
MUST_CHECK int io_remove(const char *path, struct error *e);   /* absent is fine */

/* dir/name with this content, replacing what was there: old or new, never half. */
MUST_CHECK int io_write_file(const char *dir, const char *name, const char *text, struct error *e);
/* The same by link(2): ERROR_CONFLICT when somebody has made it already. `unique` keeps two writers' temporary files apart. */
MUST_CHECK int io_link_file(const char *dir, const char *name, const char *unique, const char *text, struct error *e);

/* Calls fn for every name in a directory that does not begin with a dot, in no order; a directory that is not there has none. */
typedef int io_entry_fn(void *ctx, const char *name, struct error *e);
MUST_CHECK int io_each_entry(const char *path, io_entry_fn *fn, void *ctx, struct error *e);

#endif
