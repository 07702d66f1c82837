/*
 * fault.h — where tests make system calls fail, and kill the process between two of them.
 *
 * A wrapper asks fault() before it makes its call: 0 is "go on", anything else is the errno that the wrapper reports without
 * making the call. No hook is set outside tests; it must be set before threads that ask are started.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

typedef int fault_fn(void *ctx, const char *operation /* "write", "fsync", "rename", ... */, const char *path);

int fault(const char *operation, const char *path);
void fault_set(fault_fn *fn, void *ctx); /* NULL: none */

#endif
