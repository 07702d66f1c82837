/* The bytes of negotiate.h: announcements, GO lists, errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/negotiate.h"

enum { FORM_FULL = 1, FORM_CACHED = 2, FORM_ALONG = 0x40 /* data follow */, FORM_COUNTS = 0x80 /* a list of numbers follows */,
       FORM_FLAGS = FORM_ALONG | FORM_COUNTS };

/* ---- writing ---- */

static void put(struct buf *b, uint64_t value, size_t bytes)
{
    uint8_t le[8];

    for (size_t i = 0; i < bytes; i++)
        le[i] = (uint8_t)(value >> (8 * i));
    buf_add_bytes(b, le, bytes);
}

static void put_double(struct buf *b, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    put(b, bits, 8);
}

static void put_name(struct buf *b, const char *name)
{
    size_t len = strnlen(name, SHM_NAME_MAX - 1);

    put(b, len, 1);
    buf_add_bytes(b, name, len);
}

static void put_shape(struct buf *b, const struct signature *sig)
{
    size_t len = strnlen(sig->shape, sizeof sig->shape - 1);

    put(b, sig->shape_hash, 8);
    put(b, len, 1);
    buf_add_bytes(b, sig->shape, len);
}

static void put_counts(struct buf *b, const uint64_t *counts, int32_t count)
{
    put(b, (uint64_t)count, 2);
    for (int32_t i = 0; i < count; i++)
        put(b, counts[i], 8);
}

static void put_text(struct buf *b, const char *text)
{
    size_t len = strnlen(text, SHM_TEXT_MAX - 1);

    put(b, len, 2);
    buf_add_bytes(b, text, len);
}

/* ---- reading: sticky, so that one look at the end is enough ---- */

struct reader { const uint8_t *bytes; size_t len, at; bool bad; };

static uint64_t take(struct reader *r, size_t bytes)
{
    uint64_t value = 0;

    if (r->bad || r->len - r->at < bytes) {
        r->bad = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)r->bytes[r->at + i] << (8 * i);
    r->at += bytes;
    return value;
}

static double take_double(struct reader *r)
{
    uint64_t bits = take(r, 8);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* At most size - 1 bytes without NUL. */
static void take_chars(struct reader *r, size_t len, char *ret, size_t size)
{
    ret[0] = '\0';
    if (r->bad || len >= size || r->len - r->at < len || memchr(r->bytes + r->at, '\0', len) != NULL) {
        r->bad = true;
        return;
    }
    memcpy(ret, r->bytes + r->at, len);
    ret[len] = '\0';
    r->at += len;
}

static void take_name(struct reader *r, char ret_name[SHM_NAME_MAX])
{
    size_t len = take(r, 1);

    memset(ret_name, 0, SHM_NAME_MAX);
    take_chars(r, len, ret_name, SHM_NAME_MAX);
    if (len == 0)
        r->bad = true;
}

static void take_text(struct reader *r, char ret_text[SHM_TEXT_MAX])
{
    size_t len = take(r, 2);

    take_chars(r, len, ret_text, SHM_TEXT_MAX);
}

static void take_shape(struct reader *r, struct signature *sig)
{
    sig->shape_hash = take(r, 8);
    size_t len = take(r, 1);
    take_chars(r, len, sig->shape, sizeof sig->shape);
}

/* A list of exactly `count` numbers; NULL: it cannot be right. */
static uint64_t *take_counts(struct reader *r, int32_t count)
{
    if (take(r, 2) != (uint64_t)count || r->bad || r->len - r->at < (size_t)count * 8) {
        r->bad = true;
        return NULL;
    }
    uint64_t *counts = xcalloc((size_t)count, sizeof *counts);
    for (int32_t i = 0; i < count; i++)
        counts[i] = take(r, 8);
    return counts;
}

static const struct cached_name *take_cached(struct reader *r, const struct name_cache *c)
{
    uint64_t id = take(r, 4);

    const struct cached_name *known = r->bad ? NULL : name_cache_at(c, id);
    if (known == NULL)
        r->bad = true;
    return known;
}

/* ---- data that travel along ---- */

static void put_along(struct buf *b, const uint8_t *data, const struct signature *sig)
{
    size_t bytes = sig->count * shm_dtype_size(sig->dtype);

    put(b, bytes, 4);
    buf_add_bytes(b, data, bytes);
}

/* sig NULL: stepped over. NULL: there was nothing right. */
static uint8_t *take_along(struct reader *r, const struct signature *sig, int32_t set_size)
{
    uint64_t bytes = take(r, 4);

    if (r->bad || r->len - r->at < bytes ||
        (sig != NULL && (!signature_travels_along(sig, set_size) || bytes != sig->count * shm_dtype_size(sig->dtype)))) {
        r->bad = true;
        return NULL;
    }
    uint8_t *data = NULL;
    if (sig != NULL) {
        data = xcalloc(bytes, 1);
        memcpy(data, r->bytes + r->at, bytes);
    }
    r->at += bytes;
    return data;
}

/* ---- announcements ---- */

void announce_encode(struct buf *b, const struct name_cache *c, const struct announcement *a)
{
    const struct signature *sig = &a->sig;
    const struct cached_name *known = name_cache_find(c, a->name);
    unsigned counts = a->splits != NULL ? FORM_COUNTS : 0, flags = counts | (a->along != NULL ? FORM_ALONG : 0u);

    if (known != NULL && signature_equal(&known->sig, sig)) {
        put(b, FORM_CACHED | flags, 1);
        put(b, a->set, 4);
        put(b, known->id, 4);
        put(b, sig->count, 8);
    } else {
        put(b, FORM_FULL | flags, 1);
        put(b, a->set, 4);
        put(b, sig->op, 1);
        put(b, sig->dtype, 1);
        put(b, sig->redop, 1);
        put(b, sig->wire, 1);
        put(b, (uint32_t)sig->root, 4);
        put(b, sig->count, 8);
        put(b, sig->row_elements, 8);
        put_double(b, sig->prescale);
        put_double(b, sig->postscale);
        put_shape(b, sig);
        put_name(b, a->name);
    }
    if (counts != 0)
        put_counts(b, a->splits, a->split_count);
    if (a->along != NULL)
        put_along(b, a->along, sig);
}

static void take_full(struct reader *r, struct announcement *a)
{
    a->sig.op = (uint8_t)take(r, 1);
    a->sig.dtype = (uint8_t)take(r, 1);
    a->sig.redop = (uint8_t)take(r, 1);
    a->sig.wire = (uint8_t)take(r, 1);
    a->sig.root = (int32_t)take(r, 4);
    a->sig.count = take(r, 8);
    a->sig.row_elements = take(r, 8);
    a->sig.prescale = take_double(r);
    a->sig.postscale = take_double(r);
    take_shape(r, &a->sig);
    take_name(r, a->name);
}

static void take_known(struct reader *r, const struct process_set *set, struct announcement *a)
{
    if (set == NULL) {
        (void)take(r, 4);
        (void)take(r, 8);
        return;
    }
    const struct cached_name *known = take_cached(r, set->cache);
    uint64_t count = take(r, 8);
    if (r->bad)
        return;
    memcpy(a->name, known->name, sizeof a->name);
    a->sig = known->sig;
    if (signature_count_is_free(&known->sig))
        a->sig.count = count;
    else if (known->sig.count != count)
        r->bad = true;
}

/* The splits of an all-to-all: as many as the set has ranks, and their sum is the count. */
static void take_splits(struct reader *r, const struct process_set *set, struct announcement *a)
{
    uint64_t sum = 0;

    if (set == NULL) { /* stepped over */
        uint64_t count = take(r, 2);
        if (r->bad || r->len - r->at < count * 8)
            r->bad = true;
        else
            r->at += count * 8;
        return;
    }
    a->splits = take_counts(r, set->count);
    a->split_count = set->count;
    if (a->splits == NULL || a->sig.op != SHM_OP_ALLTOALL) {
        r->bad = true;
        return;
    }
    for (int32_t i = 0; i < set->count; i++) {
        if (__builtin_add_overflow(sum, a->splits[i], &sum) ||
            (a->sig.row_elements == 0 ? a->splits[i] != 0 : a->splits[i] % a->sig.row_elements != 0))
            r->bad = true;
    }
    if (sum != a->sig.count)
        r->bad = true;
}

int announce_decode(const struct process_sets *sets, const uint8_t *bytes, size_t len, size_t *at, struct announcement *ret,
                    struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len, .at = *at };
    struct announcement a;
    memset(&a, 0, sizeof a);

    unsigned form = (unsigned)take(&r, 1);
    a.set = (uint32_t)take(&r, 4);
    const struct process_set *set = r.bad ? NULL : process_sets_get(sets, a.set);
    a.set_is_known = set != NULL;
    if ((form & ~(unsigned)FORM_FLAGS) == FORM_FULL)
        take_full(&r, &a);
    else if ((form & ~(unsigned)FORM_FLAGS) == FORM_CACHED)
        take_known(&r, set, &a);
    else
        r.bad = true;
    if (!r.bad && (form & FORM_COUNTS) != 0)
        take_splits(&r, set, &a);
    else if (a.sig.op == SHM_OP_ALLTOALL)
        r.bad = true;
    bool sound = !r.bad && a.set < SETS_MAX && (!a.set_is_known || signature_is_sound(&a.sig));
    if (sound && (form & FORM_ALONG) != 0)
        a.along = take_along(&r, a.set_is_known ? &a.sig : NULL, a.set_is_known ? set->count : 0);
    if (r.bad || !sound) {
        announcement_release(&a);
        return error_set(e, ERROR_INVALID, "announcement at byte %zu of %zu cannot be right", *at, len);
    }
    *at = r.at;
    *ret = a;
    return 0;
}

/* ---- GO ---- */

void go_begin(struct buf *b, uint64_t first_sequence, uint32_t chunk_bytes)
{
    put(b, first_sequence, 8);
    put(b, chunk_bytes, 4);
}

void go_entry_for(const struct process_set *set, int32_t rank, const struct go_list *l, struct go_entry *entry)
{
    int32_t place = process_set_index(set, rank);

    if (entry->matrix == NULL || place < 0)
        return;
    free(entry->counts);
    entry->counts = xcalloc((size_t)l->member_count, sizeof *entry->counts);
    for (int32_t m = 0; m < l->member_count; m++)
        entry->counts[m] = entry->matrix[m][place];
}

static void add_entry(struct buf *b, const struct process_set *set, int32_t rank, const struct go_list *l,
                      const struct go_entry *entry)
{
    const struct cached_name *known = l->whole ? name_cache_find(set->cache, entry->name) : NULL;
    unsigned counts = entry->counts != NULL || entry->matrix != NULL ? FORM_COUNTS : 0;
    unsigned flags = counts | (l->along ? FORM_ALONG : 0u);

    if (known != NULL) {
        put(b, FORM_CACHED | flags, 1);
        put(b, known->id, 4);
    } else {
        put(b, FORM_FULL | flags, 1);
        put_name(b, entry->name);
    }
    if (entry->matrix != NULL) {
        int32_t place = process_set_index(set, rank);
        put(b, (uint64_t)l->member_count, 2);
        for (int32_t m = 0; m < l->member_count; m++)
            put(b, entry->matrix[m][place], 8);
    } else if (counts != 0) {
        put_counts(b, entry->counts, l->member_count);
    }
    if (l->along)
        put_along(b, entry->result, &entry->sig);
}

void go_add(struct buf *b, const struct process_set *set, int32_t rank, const struct go_list *l)
{
    put(b, l->set, 4);
    put(b, l->count, 2);
    put(b, (uint64_t)l->last_rank, 2);
    put(b, l->whole ? 0 : (uint64_t)l->member_count, 2);
    for (int32_t m = 0; !l->whole && m < l->member_count; m++)
        put(b, (uint32_t)l->members[m], 4);
    for (size_t i = 0; i < l->count; i++)
        add_entry(b, set, rank, l, &l->entries[i]);
}

void go_note(struct process_set *set, const struct go_list *l)
{
    for (size_t i = 0; l->whole && i < l->count; i++)
        name_cache_note(set->cache, l->entries[i].name, &l->entries[i].sig);
}

static void check_counts(struct reader *r, const struct go_list *l, const struct go_entry *entry)
{
    uint64_t total = 0, bytes;

    for (int32_t i = 0; i < l->member_count; i++) {
        if (__builtin_add_overflow(total, entry->counts[i], &total))
            r->bad = true;
    }
    if (__builtin_mul_overflow(total, shm_dtype_size(entry->sig.dtype), &bytes) || bytes > INT64_MAX)
        r->bad = true;
}

struct go_context { struct process_sets *sets; int32_t rank; go_lookup_fn *lookup; void *ctx; };

static int take_entry(struct reader *r, const struct go_context *go, const struct process_set *set, const struct go_list *l,
                      struct go_entry *entry, struct error *e)
{
    unsigned form = (unsigned)take(r, 1);
    const struct cached_name *known = NULL;

    if ((form & ~(unsigned)FORM_FLAGS) == FORM_CACHED) {
        known = take_cached(r, set->cache);
        if (known != NULL)
            memcpy(entry->name, known->name, sizeof entry->name);
    } else if ((form & ~(unsigned)FORM_FLAGS) == FORM_FULL) {
        take_name(r, entry->name);
    } else {
        r->bad = true;
    }
    if (r->bad)
        return 0;

    const struct signature *sig = go->lookup(go->ctx, l->set, entry->name);
    if (sig == NULL)
        return error_set(e, ERROR_INVALID, "rank 0 starts \"%s\", which this rank did not announce", entry->name);
    entry->sig = *sig;
    if (((form & FORM_COUNTS) != 0) != signature_count_is_free(sig))
        r->bad = true;
    else if ((form & FORM_COUNTS) != 0 && (entry->counts = take_counts(r, l->member_count)) != NULL)
        check_counts(r, l, entry);
    if (!r->bad && (form & FORM_ALONG) != 0)
        entry->result = take_along(r, sig, set->count);
    return 0;
}

/* The ranks that take part: named, or all of the set. This rank is one of them, or it would not hear of the list. */
static void take_list_members(struct reader *r, const struct go_context *go, const struct process_set *set, struct go_list *l)
{
    size_t named = take(r, 2);

    l->whole = named == 0;
    if (r->bad || named > (size_t)set->count) {
        r->bad = true;
        return;
    }
    l->members = xcalloc((size_t)set->count, sizeof *l->members);
    l->places = xcalloc((size_t)set->count, sizeof *l->places);
    l->set_size = set->count;
    l->member_count = l->whole ? set->count : (int32_t)named;
    for (int32_t i = 0; i < l->member_count; i++) {
        l->members[i] = l->whole ? set->ranks[i] : (int32_t)take(r, 4);
        l->places[i] = l->whole ? i : process_set_index(set, l->members[i]);
        if (l->places[i] < 0 || (i > 0 && l->places[i] <= l->places[i - 1]))
            r->bad = true;
    }
    if (go_list_place(l, go->rank) < 0)
        r->bad = true;
}

static int take_list(struct reader *r, const struct go_context *go, struct go_list *l, struct error *e)
{
    l->set = (uint32_t)take(r, 4);
    struct process_set *set = process_sets_get(go->sets, l->set);
    size_t count = take(r, 2);
    l->last_rank = (int32_t)take(r, 2);
    if (r->bad || set == NULL || count == 0 || count > NEGOTIATE_FUSE_ENTRIES || process_set_index(set, l->last_rank) < 0) {
        r->bad = true;
        return 0;
    }
    take_list_members(r, go, set, l);
    l->entries = xcalloc(count, sizeof *l->entries);
    for (l->count = 0; l->count < count && !r->bad; l->count++) {
        struct go_entry *entry = &l->entries[l->count];
        if (take_entry(r, go, set, l, entry, e) < 0)
            return -1;
        l->along = l->entries[0].result != NULL;
        if (l->along != (entry->result != NULL))
            r->bad = true;
        if (count > 1 && (entry->sig.op != SHM_OP_ALLREDUCE || !signature_can_fuse(&l->entries[0].sig, &entry->sig)))
            r->bad = true;
    }
    if (!r->bad)
        go_note(set, l);
    return 0;
}

static int take_lists(struct reader *r, const struct go_context *go, uint64_t sequence, struct go_list **lists, size_t *count,
                      struct error *e)
{
    size_t capacity = 0;

    while (!r->bad && r->at < r->len) {
        if (*count == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 8;
            *lists = xrealloc(*lists, capacity, sizeof **lists);
        }
        struct go_list *l = &(*lists)[(*count)++];
        *l = (struct go_list){ .sequence = sequence++ };
        if (take_list(r, go, l, e) < 0)
            return -1;
        bool changes_sets = !r->bad && (l->entries[0].sig.op == SHM_OP_SET_ADD || l->entries[0].sig.op == SHM_OP_SET_REMOVE);
        if (changes_sets && (*count > 1 || r->at < r->len))
            r->bad = true;
    }
    if (r->bad || *count == 0)
        return error_set(e, ERROR_INVALID, "GO frame of %zu bytes cannot be right at byte %zu", r->len, r->at);
    return 0;
}

int go_decode(struct process_sets *sets, int32_t rank, const uint8_t *bytes, size_t len, go_lookup_fn *lookup, void *ctx,
              uint32_t *ret_chunk_bytes, struct go_list **ret_lists, size_t *ret_count, struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len };
    struct go_context go = { .sets = sets, .rank = rank, .lookup = lookup, .ctx = ctx };
    struct go_list *lists = NULL;
    size_t count = 0;

    uint64_t sequence = take(&r, 8);
    uint32_t chunk_bytes = (uint32_t)take(&r, 4);
    if (!r.bad && (chunk_bytes == 0 || chunk_bytes > PEER_MAX_DATA))
        return error_set(e, ERROR_INVALID, "GO frame with chunks of %u bytes, allowed are 1 to %u", chunk_bytes, PEER_MAX_DATA);
    if (take_lists(&r, &go, sequence, &lists, &count, e) < 0) {
        go_lists_free(lists, count);
        return -1;
    }
    *ret_chunk_bytes = chunk_bytes;
    *ret_lists = lists;
    *ret_count = count;
    return 0;
}

/* ---- errors ---- */

void op_error_encode(struct buf *b, uint32_t set, const char *name, enum shm_status status, const char *text)
{
    put(b, set, 4);
    put(b, status, 1);
    put_name(b, name);
    put_text(b, text);
}

int op_error_decode(const uint8_t *bytes, size_t len, uint32_t *ret_set, char ret_name[SHM_NAME_MAX],
                    enum shm_status *ret_status, char ret_text[SHM_TEXT_MAX], struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len };
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];

    uint32_t set = (uint32_t)take(&r, 4);
    uint64_t status = take(&r, 1);
    take_name(&r, name);
    take_text(&r, text);
    if (r.bad || r.at != len || status == SHM_OK || status > SHM_STATUS_LAST)
        return error_set(e, ERROR_INVALID, "OP_ERROR frame of %zu bytes cannot be right", len);
    *ret_set = set;
    memcpy(ret_name, name, sizeof name);
    *ret_status = (enum shm_status)status;
    memcpy(ret_text, text, strlen(text) + 1);
    return 0;
}

void left_encode(struct buf *b, bool left)
{
    put(b, left ? 1 : 0, 1);
}

int left_decode(const uint8_t *bytes, size_t len, bool *ret_left, struct error *e)
{
    if (len != 1 || bytes[0] > 1)
        return error_set(e, ERROR_INVALID, "LEFT frame of %zu bytes cannot be right", len);
    *ret_left = bytes[0] != 0;
    return 0;
}

void lost_encode(struct buf *b, int32_t rank, const char *text)
{
    put(b, (uint32_t)rank, 4);
    put_text(b, text);
}

int lost_decode(const uint8_t *bytes, size_t len, int32_t size, int32_t *ret_rank, char ret_text[SHM_TEXT_MAX], struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len };
    char text[SHM_TEXT_MAX];

    int32_t rank = (int32_t)take(&r, 4);
    take_text(&r, text);
    if (r.bad || r.at != len || rank < -1 || rank >= size)
        return error_set(e, ERROR_INVALID, "LOST frame of %zu bytes cannot be right", len);
    *ret_rank = rank;
    memcpy(ret_text, text, strlen(text) + 1);
    return 0;
}
