/*
 * fs.h — files that are either old or new, never half, and small helpers around paths.
 *
 * fs_write_atomic: temporary file in the same directory, write, fsync, rename, fsync of the directory. An fsync error
 * means that the data is lost: the temporary file is removed and never fsynced again.
 */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

MUST_CHECK int fs_write_atomic(const char *path, const void *bytes, size_t len, mode_t mode, struct error *e);
MUST_CHECK int fs_read(const char *path, size_t max, char **ret_bytes, size_t *ret_len, struct error *e); /* NUL after */
MUST_CHECK int fs_mkdirs(const char *path, mode_t mode, struct error *e);   /* like mkdir -p */
MUST_CHECK int fs_sync_dir(const char *path, struct error *e);
MUST_CHECK int fs_remove_tree(const char *path, struct error *e);           /* does not follow links; absent is fine */
char *fs_join(const char *dir, const char *name);                           /* owned by the caller */

#endif
