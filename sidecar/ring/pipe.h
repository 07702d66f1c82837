/*
 * pipe.h — a byte stream each way between two processes of one machine, in memory that both map: two rings of bytes.
 *
 * It never blocks and never wakes anybody by itself: the side that is about to sleep says so (pipe_sleeps), and the other one learns
 * from the return of pipe_read and pipe_write that it has to be woken; how is the caller's business (mesh.c rings by a byte on the
 * TCP connection of the pair, which also tells of the other's end).
 *
 * The file lies in a directory that only this user can enter, and is gone from it as soon as both have it open. What the other side
 * writes into it is not believed: counts are checked against the ring's size.
 */
#ifndef SIDECAR_RING_PIPE_H
#define SIDECAR_RING_PIPE_H

#include <stdbool.h>
#include <sys/uio.h>

#include "base/error.h"

#define PIPE_BYTES (1u << 20) /* of each ring; a power of two */

struct pipe;

MUST_CHECK int pipe_create(const char *path, struct pipe **ret, struct error *e); /* replaces what lies there */
MUST_CHECK int pipe_open(const char *path, struct pipe **ret, struct error *e);   /* and takes it out of the directory */
void pipe_free(struct pipe *p); /* NULL is fine */

/* Bytes moved; 0: the ring is full, or empty; -1: the other side broke it. *ret_wake: the other one sleeps, wake it. */
ssize_t pipe_write(struct pipe *p, const struct iovec *parts, size_t count, bool *ret_wake);
ssize_t pipe_read(struct pipe *p, const struct iovec *parts, size_t count, bool *ret_wake);
bool pipe_can_read(const struct pipe *p);
bool pipe_can_write(const struct pipe *p);
/* This side is about to sleep (or awake again) and wants to be woken when something can be read, or written if it could not be. */
void pipe_sleeps(struct pipe *p, bool sleeps);

#endif
