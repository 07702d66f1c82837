/*
 * sets.c — process sets of the public API. The engine gives them their numbers; every rank is told the same.
 */
#include "sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "submit.h"

static struct process_set *find(struct sets *s, int id)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->items[i].id == id)
            return &s->items[i];
    return NULL;
}

static int place_of(const struct process_set *set, int rank)
{
    for (int i = 0; i < set->count; i++)
        if (set->ranks[i] == rank)
            return i;
    return -1;
}

void set_look(struct client *c, int id, struct set_view *ret)
{
    if (id == 0) {
        *ret = (struct set_view){ .count = c->size, .place = c->rank };
        return;
    }
    pthread_mutex_lock(&c->lock);
    const struct process_set *set = find(&c->sets, id);
    *ret = set == NULL ? (struct set_view){ .place = -1 } : (struct set_view){ .count = set->count, .place = place_of(set, c->rank) };
    pthread_mutex_unlock(&c->lock);
}

bool set_holds(struct client *c, int id, int rank)
{
    if (id == 0)
        return rank >= 0 && rank < c->size;
    pthread_mutex_lock(&c->lock);
    const struct process_set *set = find(&c->sets, id);
    bool holds = set != NULL && place_of(set, rank) >= 0;
    pthread_mutex_unlock(&c->lock);
    return holds;
}

void sets_forget(struct sets *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->items[i].ranks);
    free(s->items);
    *s = (struct sets){ 0 };
}

/* Takes ranks. False: out of memory. With lock held. */
static bool insert(struct sets *s, int id, int *ranks, int count)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity == 0 ? 8 : 2 * s->capacity;
        struct process_set *items = realloc(s->items, capacity * sizeof(*items));
        if (items == NULL)
            return false;
        s->items = items;
        s->capacity = capacity;
    }
    size_t at = s->count++;
    for (; at > 0 && s->items[at - 1].id > id; at--)
        s->items[at] = s->items[at - 1];
    s->items[at] = (struct process_set){ .id = id, .count = count, .ranks = ranks };
    return true;
}

static void erase(struct sets *s, int id)
{
    struct process_set *set = find(s, id);
    if (set == NULL)
        return;
    free(set->ranks);
    size_t after = (size_t)(s->items + s->count - set) - 1;
    memmove(set, set + 1, after * sizeof(*set));
    s->count--;
}

static int by_number(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* The ranks in ascending order, on the heap. */
static int sorted(const int *ranks, size_t count, int **ret)
{
    int size = the_client.size;
    if (count == 0 || count > (size_t)size)
        return text_fail(RM_INVALID, "a process set of %zu ranks in a world of %d", count, size);
    int *copy = malloc(count * sizeof(*copy));
    if (copy == NULL)
        return text_fail(RM_NO_MEMORY, "out of memory for a process set");
    memcpy(copy, ranks, count * sizeof(*copy));
    qsort(copy, count, sizeof(*copy), by_number);
    for (size_t i = 0; i < count; i++) {
        if (copy[i] >= 0 && copy[i] < size && (i == 0 || copy[i] != copy[i - 1]))
            continue;
        int rank = copy[i];
        free(copy);
        return text_fail(RM_INVALID, "a process set cannot have rank %d%s: ranks are 0 to %d, each once", rank,
                         rank >= 0 && rank < size ? " twice" : "", size - 1);
    }
    *ret = copy;
    return RM_OK;
}

/* Runs a collective of all ranks that is about process sets. *ret_answer: the engine's out_count. */
static int run(struct submission *s, uint64_t *ret_answer)
{
    struct client *c = &the_client;
    rm_handle handle;
    s->ret_handle = &handle;
    s->segments = &s->one;
    s->segment_count = 1;
    s->prescale = s->postscale = 1;
    int status = submission_start(s);
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    struct request *r = request_find(&c->requests, handle);
    while (r != NULL && r->state != REQUEST_DONE) {
        (void)client_wait_changed(c, -1);
        r = request_find(&c->requests, handle);
    }
    status = r == NULL ? text_fail(RM_PEER_LOST, "rm_shutdown was called") : r->status;
    if (r != NULL) {
        *ret_answer = r->answer;
        if (status != RM_OK)
            status = text_fail(status, "%s", r->text);
        request_release(c, r);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

static int remember(int id, int *ranks, size_t count)
{
    struct client *c = &the_client;
    pthread_mutex_lock(&c->lock);
    bool kept = find(&c->sets, id) == NULL && insert(&c->sets, id, ranks, (int)count);
    pthread_mutex_unlock(&c->lock);
    if (!kept)
        free(ranks);
    return kept ? id : text_fail(RM_NO_MEMORY, "out of memory for a process set");
}

/* A world of one has the set {0}, and that is set 0. */
static int only_set(void)
{
    return text_fail(RM_EXISTS, "process set 0 has these ranks already");
}

RM_API int rm_process_set_add(const int *ranks, size_t count)
{
    struct client *c = &the_client;
    int *copy = NULL, status = client_ready();
    if (status == RM_OK)
        status = sorted(ranks, count, &copy);
    if (status != RM_OK)
        return status;
    if (c->size == 1) {
        free(copy);
        return only_set();
    }
    struct submission s = { .name = "ringmaster.process_set.add", .op = SHM_OP_SET_ADD, .split_count = (uint32_t)count,
                            .splits = calloc(count, sizeof(*s.splits)) };
    uint64_t id;
    for (size_t i = 0; s.splits != NULL && i < count; i++)
        s.splits[i] = (uint64_t)copy[i];
    status = s.splits == NULL ? text_fail(RM_NO_MEMORY, "out of memory for a process set") : run(&s, &id);
    if (status != RM_OK) {
        free(copy);
        return status == RM_EXISTS ? text_fail(RM_EXISTS, "process set %llu has these ranks already", (unsigned long long)id) : status;
    }
    return remember((int)id, copy, count);
}

RM_API int rm_process_set_remove(int set)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status != RM_OK)
        return status;
    if (set <= 0)
        return text_fail(set == 0 ? RM_INVALID : RM_NOT_FOUND, set == 0 ? "process set 0, all ranks, cannot be removed"
                                                                       : "process sets have numbers from 0");
    if (c->size == 1)
        return text_fail(RM_NOT_FOUND, "there is no process set %d", set);
    struct submission s = { .name = "ringmaster.process_set.remove", .op = SHM_OP_SET_REMOVE, .count = (uint64_t)set };
    uint64_t removed = 0;
    status = run(&s, &removed);
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    erase(&c->sets, set);
    pthread_mutex_unlock(&c->lock);
    return removed != 0 ? RM_OK : text_fail(RM_NOT_FOUND, "there is no process set %d", set);
}

static int look(int id, struct set_view *ret)
{
    int status = client_ready();
    if (status != RM_OK)
        return status;
    set_look(&the_client, id, ret);
    return ret->count > 0 ? RM_OK : text_fail(RM_NOT_FOUND, "there is no process set %d", id);
}

RM_API int rm_process_set_size(int set)
{
    struct set_view view;
    int status = look(set, &view);
    return status == RM_OK ? view.count : status;
}

RM_API int rm_process_set_rank(int set)
{
    struct set_view view;
    int status = look(set, &view);
    if (status == RM_OK && view.place < 0)
        return text_fail(RM_INVALID, "rank %d is not included in process set %d", the_client.rank, set);
    return status == RM_OK ? view.place : status;
}

RM_API int rm_process_set_included(int set)
{
    struct set_view view;
    int status = look(set, &view);
    return status == RM_OK ? view.place >= 0 : status;
}

RM_API int rm_process_set_ranks(int set, int *ret_ranks, size_t size)
{
    struct client *c = &the_client;
    struct set_view view;
    int status = look(set, &view);
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    const struct process_set *found = set == 0 ? NULL : find(&c->sets, set);
    int count = set == 0 ? c->size : found == NULL ? 0 : found->count;
    for (int i = 0; i < count && (size_t)i < size; i++)
        ret_ranks[i] = set == 0 ? i : found->ranks[i];
    pthread_mutex_unlock(&c->lock);
    return count;
}

RM_API int rm_process_sets(int *ret_sets, size_t size)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    int count = 1 + (int)c->sets.count;
    for (int i = 0; i < count && (size_t)i < size; i++)
        ret_sets[i] = i == 0 ? 0 : c->sets.items[i - 1].id;
    pthread_mutex_unlock(&c->lock);
    return count;
}
