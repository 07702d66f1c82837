/*
 * mem.h — allocation and lifetimes.
 *
 * Small allocations go through xcalloc and friends, which abort when memory is out: every process of ours is restarted
 * by its parent and keeps its state on disk or in its peers. Anything sized by input or by tensors has a ceiling of its
 * own and returns an error instead. The public client library uses none of this and never aborts.
 *
 * `auto_x` variables release what they hold when they leave scope; TAKE moves the value out.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *xcalloc(size_t count, size_t size);
void *xrealloc(void *p, size_t count, size_t size); /* checked multiplication; new bytes are not cleared */
char *xstrdup(const char *s);                       /* NULL stays NULL */
char *xstrndup(const char *s, size_t len);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void cleanup_free(void *p);
void cleanup_close(int *fd);
void cleanup_file(void *p); /* FILE ** */

#define auto_free __attribute__((cleanup(cleanup_free)))
#define auto_close __attribute__((cleanup(cleanup_close)))
#define auto_file __attribute__((cleanup(cleanup_file)))

#define TAKE(p) __extension__({ __typeof__(p) *take_p = &(p), take_v = *take_p; *take_p = NULL; take_v; })
#define TAKE_FD(fd) __extension__({ int *take_p = &(fd), take_v = *take_p; *take_p = -1; take_v; })

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
