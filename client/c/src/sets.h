/*
 * sets.h — the process sets that this process knows: those that its own rm_process_set_add made. Guarded by the client's lock.
 */
#ifndef CLIENT_SETS_H
#define CLIENT_SETS_H

#include <stdbool.h>
#include <stddef.h>

struct client;

struct process_set { int id, count; int *ranks; }; /* ascending */

struct sets { struct process_set *items; size_t count, capacity; }; /* ascending by id; without set 0, which is everybody */

struct set_view { int count, place; }; /* count 0: there is none; place -1: this rank is not in it */

void set_look(struct client *c, int id, struct set_view *ret); /* without lock */
bool set_holds(struct client *c, int id, int rank);            /* without lock */
void sets_forget(struct sets *s);                              /* with lock, at rm_shutdown */

#endif
