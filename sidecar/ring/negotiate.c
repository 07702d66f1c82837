#include "sidecar/ring/negotiate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/namemap.h"

void announcement_release(struct announcement *a)
{
    free(a->splits);
    free(a->along);
    a->splits = NULL;
    a->along = NULL;
}

/* ---- rank 0 ---- */

/* A name that at least one rank has announced. `place` is a rank's index in the set. */
struct tensor {
    uint32_t set;
    char name[SHM_NAME_MAX];
    const struct process_set *members; /* while it waits */
    struct signature sig;           /* of the first rank */
    int32_t first_rank, last_rank, announced;
    int32_t other_rank;             /* the first that sent something else; -1: all agree */
    struct signature other;
    uint64_t *counts;               /* all-gather, by place */
    uint64_t **splits;              /* all-to-all, by place */
    uint8_t **along;                /* data that came along, by place */
    int32_t along_count;
    uint8_t *seen;                  /* by place */
    int32_t places;
    int64_t since_ms;
    bool told;                      /* of its stall */
    enum shm_status status;         /* what it fails with, and why */
    char *text;
    struct tensor *next;            /* in the queue of ready ones */
};

struct negotiation {
    int32_t size;
    const char *const *members;
    const struct process_sets *sets;
    uint64_t next_sequence;
    struct namemap tensors;         /* announced by some; by key */
    struct tensor *ready, **ready_end;
    uint8_t *joined, *left;         /* by rank */
    int32_t joined_count, left_count;
};

struct negotiation *negotiation_new(int32_t size, const char *const *members, const struct process_sets *sets)
{
    struct negotiation *n = xcalloc(1, sizeof *n);

    n->size = size;
    n->members = members;
    n->sets = sets;
    n->next_sequence = 1;
    n->ready_end = &n->ready;
    n->joined = xcalloc((size_t)size, 1);
    n->left = xcalloc((size_t)size, 1);
    return n;
}

static void tensor_free(struct tensor *t)
{
    for (int32_t i = 0; t->splits != NULL && i < t->places; i++)
        free(t->splits[i]);
    free(t->splits);
    for (int32_t i = 0; t->along != NULL && i < t->places; i++)
        free(t->along[i]);
    free(t->along);
    free(t->counts);
    free(t->seen);
    free(t->text);
    free(t);
}

void negotiation_free(struct negotiation *n)
{
    if (n == NULL)
        return;
    size_t at = 0;
    for (struct tensor *t; (t = namemap_each(&n->tensors, &at)) != NULL;)
        tensor_free(t);
    namemap_release(&n->tensors);
    while (n->ready != NULL) {
        struct tensor *t = n->ready;
        n->ready = t->next;
        tensor_free(t);
    }
    free(n->joined);
    free(n->left);
    free(n);
}

static struct tensor *tensor_new(struct negotiation *n, int32_t rank, const struct announcement *a, const struct process_set *set,
                                 const char *key, int64_t now_ms)
{
    struct tensor *t = xcalloc(1, sizeof *t);

    t->set = a->set;
    t->members = set;
    memcpy(t->name, a->name, sizeof t->name);
    t->sig = a->sig;
    t->first_rank = rank;
    t->other_rank = -1;
    t->since_ms = now_ms;
    t->places = set->count;
    t->seen = xcalloc((size_t)set->count, 1);
    if (a->sig.op == SHM_OP_ALLGATHER)
        t->counts = xcalloc((size_t)set->count, sizeof *t->counts);
    if (a->sig.op == SHM_OP_ALLTOALL)
        t->splits = xcalloc((size_t)set->count, sizeof *t->splits);
    namemap_put(&n->tensors, key, t);
    return t;
}

static bool is_complete(const struct negotiation *n, const struct tensor *t)
{
    if (t->announced == t->places)
        return true;
    if (n->joined_count == 0 || t->sig.op == SHM_OP_JOIN || t->sig.op == SHM_OP_SET_ADD || t->sig.op == SHM_OP_SET_REMOVE)
        return false;
    for (int32_t i = 0; i < t->places; i++) {
        if (!t->seen[i] && !n->joined[t->members->ranks[i]])
            return false;
    }
    return true;
}

/* A member that has not announced it and never will; -1: none. */
static int32_t missing_that_left(const struct negotiation *n, const struct tensor *t)
{
    for (int32_t i = 0; n->left_count > 0 && i < t->places; i++) {
        int32_t rank = t->members->ranks[i];
        if (!t->seen[i] && n->left[rank] && !n->joined[rank])
            return rank;
    }
    return -1;
}

static void make_ready(struct negotiation *n, struct tensor *t)
{
    char key[NAME_KEY_MAX];

    (void)namemap_remove(&n->tensors, name_key(t->set, t->name, key));
    t->next = NULL;
    *n->ready_end = t;
    n->ready_end = &t->next;
    if (t->sig.op == SHM_OP_JOIN && t->status == SHM_OK) { /* all have: from now on all are waited for again */
        memset(n->joined, 0, (size_t)n->size);
        n->joined_count = 0;
    }
}

static void fail_left(struct negotiation *n, struct tensor *t, int32_t rank)
{
    char text[SHM_TEXT_MAX];

    (void)snprintf(text, sizeof text, "\"%.80s\": rank %d (%.60s) has ended its training process and takes no part", t->name, rank,
                   n->members[rank]);
    t->status = SHM_LEFT;
    t->text = xstrdup(text);
    make_ready(n, t);
}

/* It may be that nobody is missing any more, or that somebody never will come. */
static void consider(struct negotiation *n, struct tensor *t)
{
    int32_t gone = missing_that_left(n, t);

    if (is_complete(n, t))
        make_ready(n, t);
    else if (gone >= 0)
        fail_left(n, t, gone);
}

/* Looks at every name that waits. Those that move on leave the map, so they are collected first. A join comes last: when it goes,
 * nobody counts as joined any more. */
static void look_again(struct negotiation *n)
{
    size_t at = 0, count = 0;
    struct tensor **waiting = xcalloc(n->tensors.count + 1, sizeof *waiting);

    for (struct tensor *t; (t = namemap_each(&n->tensors, &at)) != NULL;)
        waiting[count++] = t;
    for (size_t i = 0; i < count; i++) {
        if (waiting[i]->sig.op == SHM_OP_JOIN)
            continue;
        consider(n, waiting[i]);
        waiting[i] = NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (waiting[i] != NULL)
            consider(n, waiting[i]);
    }
    free(waiting);
}

/* What the rank's own engine has made sure of already. */
static int check_announcement(const struct negotiation *n, int32_t rank, const struct announcement *a,
                              const struct process_set *set, struct error *e)
{
    if (process_set_index(set, rank) < 0)
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\" in process set %u, to which it does not belong", rank,
                         n->members[rank], a->name, a->set);
    if (a->sig.op == SHM_OP_BROADCAST && process_set_index(set, a->sig.root) < 0)
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\" with root %d, which is not in process set %u", rank,
                         n->members[rank], a->name, a->sig.root, a->set);
    if (a->sig.op == SHM_OP_ALLTOALL && a->split_count != set->count)
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\" with %d splits in process set %u of %d ranks", rank,
                         n->members[rank], a->name, a->split_count, a->set, set->count);
    if (a->sig.op >= SHM_OP_JOIN && a->set != 0)
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\", a %s, in process set %u", rank, n->members[rank],
                         a->name, shm_op_name(a->sig.op), a->set);
    return 0;
}

static void note_announcement(struct tensor *t, int32_t place, int32_t rank, struct announcement *a)
{
    t->seen[place] = 1;
    t->announced++;
    t->last_rank = rank;
    if (t->other_rank < 0 && !signature_equal(&t->sig, &a->sig)) {
        t->other_rank = rank;
        t->other = a->sig;
    }
    if (t->counts != NULL && a->sig.op == SHM_OP_ALLGATHER)
        t->counts[place] = a->sig.count;
    if (t->splits != NULL && a->sig.op == SHM_OP_ALLTOALL)
        t->splits[place] = TAKE(a->splits);
    if (a->along != NULL) {
        if (t->along == NULL)
            t->along = xcalloc((size_t)t->places, sizeof *t->along);
        t->along[place] = TAKE(a->along);
        t->along_count++;
    }
}

int negotiation_announce(struct negotiation *n, int32_t rank, struct announcement *a, int64_t now_ms, struct error *e)
{
    const struct process_set *set = process_sets_get(n->sets, a->set);
    char key[NAME_KEY_MAX];

    if (set == NULL)
        return 0; /* it was removed meanwhile: the rank hears of that, and ends the request itself */
    if (check_announcement(n, rank, a, set, e) < 0)
        return -1;

    struct tensor *t = namemap_get(&n->tensors, name_key(a->set, a->name, key));
    int32_t place = process_set_index(set, rank);
    if (t == NULL)
        t = tensor_new(n, rank, a, set, key, now_ms);
    if (t->seen[place])
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\" twice", rank, n->members[rank], a->name);
    note_announcement(t, place, rank, a);
    if (a->sig.op == SHM_OP_JOIN && !n->joined[rank]) {
        n->joined[rank] = 1;
        n->joined_count++;
        look_again(n); /* t itself included */
    } else {
        consider(n, t);
    }
    return 0;
}

void negotiation_left(struct negotiation *n, int32_t rank, bool left)
{
    if ((n->left[rank] != 0) == left)
        return;
    n->left[rank] = left;
    n->left_count += left ? 1 : -1;
    if (left)
        look_again(n);
}

static struct tensor *take_ready(struct negotiation *n, struct tensor **at)
{
    struct tensor *t = *at;

    *at = t->next;
    if (t->next == NULL)
        n->ready_end = at;
    return t;
}

void negotiation_forget_set(struct negotiation *n, uint32_t set)
{
    struct tensor **gone = xcalloc(n->tensors.count + 1, sizeof *gone);
    char key[NAME_KEY_MAX];
    size_t at = 0, count = 0;

    for (struct tensor *t; (t = namemap_each(&n->tensors, &at)) != NULL;) {
        if (t->set == set)
            gone[count++] = t;
    }
    for (size_t i = 0; i < count; i++) {
        (void)namemap_remove(&n->tensors, name_key(set, gone[i]->name, key));
        tensor_free(gone[i]);
    }
    free(gone);
    for (struct tensor **link = &n->ready; *link != NULL;) {
        if ((*link)->set == set)
            tensor_free(take_ready(n, link));
        else
            link = &(*link)->next;
    }
}

static uint64_t tensor_bytes(const struct tensor *t)
{
    return t->sig.count * shm_dtype_size(t->sig.dtype);
}

static bool can_fuse(const struct tensor *t)
{
    return t->status == SHM_OK && t->other_rank < 0 && t->announced == t->places && t->sig.op == SHM_OP_ALLREDUCE &&
           t->sig.redop != SHM_ADASUM && tensor_bytes(t) <= NEGOTIATE_FUSE_ENTRY_BYTES;
}

/* All counts of an all-gather together, in bytes, have to fit into 63 bits. */
static bool gather_is_too_large(const struct tensor *t)
{
    uint64_t total = 0, bytes;

    for (int32_t i = 0; i < t->places; i++) {
        if (__builtin_add_overflow(total, t->counts[i], &total))
            return true;
    }
    return __builtin_mul_overflow(total, shm_dtype_size(t->sig.dtype), &bytes) || bytes > INT64_MAX;
}

static void say_mismatch(const struct negotiation *n, const struct tensor *t, struct go_list *ret)
{
    char a[SIGNATURE_TEXT_MAX], b[SIGNATURE_TEXT_MAX];

    ret->status = SHM_MISMATCH;
    (void)snprintf(ret->text, sizeof ret->text, "\"%.50s\": rank %d (%.24s) sent %.60s, rank %d (%.24s) sent %.60s", t->name,
                   t->first_rank, n->members[t->first_rank], signature_text(&t->sig, a), t->other_rank,
                   n->members[t->other_rank], signature_text(&t->other, b));
}

/* Why it cannot be done, if so. */
static void judge(const struct negotiation *n, const struct tensor *t, struct go_list *ret)
{
    if (t->status != SHM_OK) {
        ret->status = t->status;
        (void)snprintf(ret->text, sizeof ret->text, "%s", t->text);
    } else if (t->other_rank >= 0) {
        say_mismatch(n, t, ret);
    } else if (t->counts != NULL && gather_is_too_large(t)) {
        ret->status = SHM_INVALID;
        (void)snprintf(ret->text, sizeof ret->text, "\"%.60s\": the result of the all-gather does not fit into memory", t->name);
    } else if (t->sig.op == SHM_OP_BROADCAST && go_list_place(ret, t->sig.root) < 0) {
        ret->status = SHM_INVALID;
        (void)snprintf(ret->text, sizeof ret->text, "\"%.60s\": its root, rank %d (%.60s), has joined and has nothing to send",
                       t->name, t->sig.root, n->members[t->sig.root]);
    }
}

static void take_members(struct go_list *l, const struct negotiation *n, const struct tensor *t)
{
    const struct process_set *set = process_sets_get(n->sets, t->set);

    l->members = xcalloc((size_t)t->places, sizeof *l->members);
    l->places = xcalloc((size_t)t->places, sizeof *l->places);
    l->set_size = t->places;
    l->whole = t->announced == t->places;
    for (int32_t i = 0; set != NULL && i < t->places; i++) {
        if (!t->seen[i])
            continue;
        l->places[l->member_count] = i;
        l->members[l->member_count++] = set->ranks[i];
    }
}

/* Lists by place become lists by member. */
/* Of all that take part? */
static bool came_along(const struct tensor *t)
{
    return t->along_count > 0 && t->along_count == t->announced && t->announced > 1 && t->other_rank < 0 && t->status == SHM_OK;
}

static void add_entry(struct go_list *l, struct tensor *t)
{
    struct go_entry *entry = &l->entries[l->count++];
    int32_t member = 0;

    memcpy(entry->name, t->name, sizeof entry->name);
    entry->sig = t->sig;
    bool along = came_along(t);
    for (int32_t i = 0; i < t->places && (t->counts != NULL || t->splits != NULL || along); i++) {
        if (!t->seen[i])
            continue;
        if (t->counts != NULL)
            t->counts[member] = t->counts[i];
        if (t->splits != NULL && member != i)
            t->splits[member] = TAKE(t->splits[i]);
        if (along && member != i)
            t->along[member] = TAKE(t->along[i]);
        member++;
    }
    entry->counts = TAKE(t->counts);
    if (t->other_rank < 0) /* else some rows are not there, and it goes nowhere */
        entry->matrix = TAKE(t->splits);
    if (along)
        entry->along = TAKE(t->along);
    l->last_rank = t->last_rank;
    tensor_free(t);
}

/* Takes more all-reduces of the first one's kind out of the queue, in its order. */
static void fuse(struct negotiation *n, struct go_list *l, uint64_t bytes)
{
    size_t capacity = 1;

    uint64_t most = l->along ? NEGOTIATE_ALONG_LIST_BYTES : NEGOTIATE_FUSE_BYTES;

    for (struct tensor **at = &n->ready; *at != NULL && l->count < NEGOTIATE_FUSE_ENTRIES;) {
        struct tensor *t = *at;
        if (!can_fuse(t) || came_along(t) != l->along || t->set != l->set || !signature_can_fuse(&l->entries[0].sig, &t->sig) ||
            bytes + tensor_bytes(t) > most) {
            at = &t->next;
            continue;
        }
        bytes += tensor_bytes(t);
        if (l->count == capacity) {
            capacity *= 2;
            l->entries = xrealloc(l->entries, capacity, sizeof *l->entries);
            memset(l->entries + l->count, 0, (capacity - l->count) * sizeof *l->entries);
        }
        add_entry(l, take_ready(n, at));
    }
}

bool negotiation_next(struct negotiation *n, struct go_list *ret_list)
{
    if (n->ready == NULL)
        return false;

    struct tensor *t = take_ready(n, &n->ready);
    bool fuses = can_fuse(t);
    uint64_t bytes = fuses ? tensor_bytes(t) : 0;

    *ret_list = (struct go_list){ .set = t->set, .entries = xcalloc(1, sizeof *ret_list->entries), .status = SHM_OK };
    take_members(ret_list, n, t);
    judge(n, t, ret_list);
    ret_list->along = came_along(t);
    add_entry(ret_list, t);
    if (ret_list->status != SHM_OK)
        return true;
    if (fuses)
        fuse(n, ret_list, bytes);
    ret_list->sequence = n->next_sequence++;
    return true;
}

size_t negotiation_waiting(const struct negotiation *n)
{
    return n->tensors.count;
}

/* ---- stalls ---- */

static void stall_text(const struct negotiation *n, const struct tensor *t, const struct stall *s, char *ret, size_t size)
{
    char sent[SIGNATURE_TEXT_MAX], missing[160] = "";
    size_t len = 0;

    for (int32_t i = 0; i < s->missing_count; i++) {
        int32_t rank = s->missing[i];
        if (len + 48 > sizeof missing) {
            (void)snprintf(missing + len, sizeof missing - len, " and %d more", s->missing_count - i);
            break;
        }
        len += (size_t)snprintf(missing + len, sizeof missing - len, "%srank %d (%.24s)", i == 0 ? "" : ", ", rank, n->members[rank]);
    }
    (void)snprintf(ret, size, "\"%.80s\" has waited %lld s for %s; %d of %d ranks have sent it, rank %d (%.24s) first: %s", t->name,
                   (long long)(s->waited_ms / 1000), missing, t->announced, t->places, t->first_rank, n->members[t->first_rank],
                   signature_text(&t->sig, sent));
}

size_t negotiation_stalls(struct negotiation *n, int64_t now_ms, int64_t after_ms, bool again, stall_fn *fn, void *ctx)
{
    int32_t *missing = xcalloc((size_t)n->size, sizeof *missing);
    size_t at = 0, told = 0;
    char text[SHM_TEXT_MAX + 160];

    for (struct tensor *t; (t = namemap_each(&n->tensors, &at)) != NULL;) {
        struct stall s = { .name = t->name, .set = t->set, .waited_ms = now_ms - t->since_ms, .missing = missing, .text = text };
        if (s.waited_ms < after_ms || (t->told && !again))
            continue;
        for (int32_t i = 0; i < t->places; i++) {
            int32_t rank = t->members->ranks[i];
            if (!t->seen[i] && !n->joined[rank])
                missing[s.missing_count++] = rank;
        }
        stall_text(n, t, &s, text, sizeof text);
        t->told = true;
        told++;
        fn(ctx, &s);
    }
    free(missing);
    return told;
}

/* ---- lists ---- */

int32_t go_list_place(const struct go_list *l, int32_t rank)
{
    for (int32_t i = 0; i < l->member_count; i++) {
        if (l->members[i] == rank)
            return i;
    }
    return -1;
}

void go_list_release(struct go_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        struct go_entry *entry = &l->entries[i];
        for (int32_t m = 0; entry->matrix != NULL && m < l->member_count; m++)
            free(entry->matrix[m]);
        free(entry->matrix);
        for (int32_t m = 0; entry->along != NULL && m < l->member_count; m++)
            free(entry->along[m]);
        free(entry->along);
        free(entry->result);
        free(entry->counts);
    }
    free(l->entries);
    free(l->members);
    free(l->places);
    *l = (struct go_list){ 0 };
}

void go_lists_free(struct go_list *lists, size_t count)
{
    for (size_t i = 0; i < count; i++)
        go_list_release(&lists[i]);
    free(lists);
}
