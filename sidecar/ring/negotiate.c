#include "sidecar/ring/negotiate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/namemap.h"

/* ---- what a name is ---- */

struct signature signature_of(const struct shm_request *r)
{
    struct signature s = { .op = (uint8_t)r->op };

    if (r->op == SHM_OP_BARRIER)
        return s;
    s.dtype = (uint8_t)r->dtype;
    s.count = r->count;
    if (r->op == SHM_OP_ALLREDUCE) {
        s.redop = (uint8_t)r->redop;
        s.prescale = r->prescale;
        s.postscale = r->postscale;
    }
    if (r->op == SHM_OP_BROADCAST)
        s.root = r->root;
    if (r->op == SHM_OP_ALLGATHER)
        s.row_elements = r->row_elements;
    return s;
}

/* By bits: a NaN that all ranks sent is agreement. */
static bool same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

bool signature_can_fuse(const struct signature *a, const struct signature *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->redop == b->redop && same_double(a->prescale, b->prescale) &&
           same_double(a->postscale, b->postscale);
}

bool signature_equal(const struct signature *a, const struct signature *b)
{
    return signature_can_fuse(a, b) && a->root == b->root && a->row_elements == b->row_elements &&
           (a->count == b->count || a->op == SHM_OP_ALLGATHER);
}

const char *signature_text(const struct signature *s, char ret_text[SIGNATURE_TEXT_MAX])
{
    unsigned long long count = s->count, row = s->row_elements;
    const char *dtype = shm_dtype_name(s->dtype);

    switch (s->op) {
    case SHM_OP_ALLREDUCE:
        if (s->prescale == 1.0 && s->postscale == 1.0)
            (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "all-reduce %s of %llu x %s", shm_redop_name(s->redop), count, dtype);
        else
            (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "all-reduce %s of %llu x %s, scaled by %g and %g",
                           shm_redop_name(s->redop), count, dtype, s->prescale, s->postscale);
        break;
    case SHM_OP_ALLGATHER:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "all-gather of rows of %llu x %s", row, dtype);
        break;
    case SHM_OP_BROADCAST:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "broadcast of %llu x %s from rank %d", count, dtype, s->root);
        break;
    default:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "%s", shm_op_name(s->op));
    }
    return ret_text;
}

/* ---- rank 0 ---- */

/* A name that at least one rank has announced. */
struct tensor {
    char name[SHM_NAME_MAX];
    struct signature sig;           /* of the first rank */
    int32_t first_rank, last_rank, announced;
    int32_t other_rank;             /* the first that sent something else; -1: all agree */
    struct signature other;
    uint64_t *counts;               /* all-gather, by rank */
    uint8_t *seen;                  /* by rank */
    struct tensor *next;            /* in the queue of ready ones */
};

struct negotiation {
    int32_t size;
    const char *const *members;
    uint64_t next_sequence;
    struct namemap tensors;         /* announced by some */
    struct tensor *ready, **ready_end;
};

struct negotiation *negotiation_new(int32_t size, const char *const *members)
{
    struct negotiation *n = xcalloc(1, sizeof *n);

    n->size = size;
    n->members = members;
    n->next_sequence = 1;
    n->ready_end = &n->ready;
    return n;
}

static void tensor_free(struct tensor *t)
{
    free(t->counts);
    free(t->seen);
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
    free(n);
}

static struct tensor *tensor_new(struct negotiation *n, int32_t rank, const struct announcement *a)
{
    struct tensor *t = xcalloc(1, sizeof *t);

    memcpy(t->name, a->name, sizeof t->name);
    t->sig = a->sig;
    t->first_rank = rank;
    t->other_rank = -1;
    t->seen = xcalloc((size_t)n->size, 1);
    if (a->sig.op == SHM_OP_ALLGATHER)
        t->counts = xcalloc((size_t)n->size, sizeof *t->counts);
    namemap_put(&n->tensors, t->name, t);
    return t;
}

int negotiation_announce(struct negotiation *n, int32_t rank, const struct announcement *a, struct error *e)
{
    struct tensor *t = namemap_get(&n->tensors, a->name);

    if (a->sig.op == SHM_OP_BROADCAST && a->sig.root >= n->size)
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\" with root %d in a group of %d", rank, n->members[rank],
                         a->name, a->sig.root, n->size);
    if (t == NULL)
        t = tensor_new(n, rank, a);
    if (t->seen[rank])
        return error_set(e, ERROR_INVALID, "rank %d (%s) announced \"%s\" twice", rank, n->members[rank], a->name);

    t->seen[rank] = 1;
    t->announced++;
    t->last_rank = rank;
    if (t->other_rank < 0 && !signature_equal(&t->sig, &a->sig)) {
        t->other_rank = rank;
        t->other = a->sig;
    }
    if (t->counts != NULL && a->sig.op == SHM_OP_ALLGATHER)
        t->counts[rank] = a->sig.count;
    if (t->announced == n->size) {
        (void)namemap_remove(&n->tensors, t->name);
        t->next = NULL;
        *n->ready_end = t;
        n->ready_end = &t->next;
    }
    return 0;
}

static uint64_t tensor_bytes(const struct tensor *t)
{
    return t->sig.count * shm_dtype_size(t->sig.dtype);
}

static bool can_fuse(const struct tensor *t)
{
    return t->other_rank < 0 && t->sig.op == SHM_OP_ALLREDUCE && tensor_bytes(t) <= NEGOTIATE_FUSE_ENTRY_BYTES;
}

static struct tensor *take_ready(struct negotiation *n, struct tensor **at)
{
    struct tensor *t = *at;

    *at = t->next;
    if (t->next == NULL)
        n->ready_end = at;
    return t;
}

/* All counts of an all-gather together, in bytes, have to fit into 63 bits. */
static bool gather_is_too_large(const struct negotiation *n, const struct tensor *t)
{
    uint64_t total = 0, bytes;

    for (int32_t r = 0; r < n->size; r++) {
        if (__builtin_add_overflow(total, t->counts[r], &total))
            return true;
    }
    return __builtin_mul_overflow(total, shm_dtype_size(t->sig.dtype), &bytes) || bytes > INT64_MAX;
}

static void say_mismatch(const struct negotiation *n, const struct tensor *t, struct go_list *ret)
{
    char a[SIGNATURE_TEXT_MAX], b[SIGNATURE_TEXT_MAX];

    ret->status = SHM_MISMATCH;
    (void)snprintf(ret->text, sizeof ret->text, "\"%.60s\": rank %d (%.24s) sent %s, rank %d (%.24s) sent %s", t->name,
                   t->first_rank, n->members[t->first_rank], signature_text(&t->sig, a), t->other_rank,
                   n->members[t->other_rank], signature_text(&t->other, b));
}

static void add_entry(struct go_list *l, struct tensor *t)
{
    struct go_entry *entry = &l->entries[l->count++];

    memcpy(entry->name, t->name, sizeof entry->name);
    entry->sig = t->sig;
    entry->counts = TAKE(t->counts);
    l->last_rank = t->last_rank;
    tensor_free(t);
}

/* Takes more all-reduces of the first one's kind out of the queue, in its order. */
static void fuse(struct negotiation *n, struct go_list *l, uint64_t bytes)
{
    size_t capacity = 1;

    for (struct tensor **at = &n->ready; *at != NULL && l->count < NEGOTIATE_FUSE_ENTRIES;) {
        struct tensor *t = *at;
        if (!can_fuse(t) || !signature_can_fuse(&l->entries[0].sig, &t->sig) ||
            bytes + tensor_bytes(t) > NEGOTIATE_FUSE_BYTES) {
            at = &t->next;
            continue;
        }
        bytes += tensor_bytes(t);
        if (l->count == capacity) {
            capacity *= 2;
            l->entries = xrealloc(l->entries, capacity, sizeof *l->entries);
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

    *ret_list = (struct go_list){ .entries = xcalloc(1, sizeof *ret_list->entries), .status = SHM_OK };
    if (t->other_rank >= 0) {
        say_mismatch(n, t, ret_list);
    } else if (t->counts != NULL && gather_is_too_large(n, t)) {
        ret_list->status = SHM_INVALID;
        (void)snprintf(ret_list->text, sizeof ret_list->text, "\"%.60s\": the result of the all-gather does not fit into memory",
                       t->name);
    }
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

void go_list_release(struct go_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->entries[i].counts);
    free(l->entries);
    *l = (struct go_list){ 0 };
}

void go_lists_free(struct go_list *lists, size_t count)
{
    for (size_t i = 0; i < count; i++)
        go_list_release(&lists[i]);
    free(lists);
}
