/* The bytes of negotiate.h: the cache of names, announcements, GO lists, errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/namemap.h"
#include "sidecar/ring/negotiate.h"

enum { FORM_FULL = 1, FORM_CACHED = 2, FORM_COUNTS = 0x80 };

/* ---- the cache ---- */

struct cached { uint32_t id; char name[SHM_NAME_MAX]; struct signature sig; };

struct name_cache {
    struct namemap by_name;
    struct cached **by_id;
    size_t count, capacity;
};

struct name_cache *name_cache_new(void)
{
    return xcalloc(1, sizeof(struct name_cache));
}

void name_cache_free(struct name_cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->count; i++)
        free(c->by_id[i]);
    free(c->by_id);
    namemap_release(&c->by_name);
    free(c);
}

void name_cache_note(struct name_cache *c, const char *name, const struct signature *sig)
{
    struct cached *known = namemap_get(&c->by_name, name);

    if (known == NULL) {
        if (c->count == NEGOTIATE_CACHE_MAX)
            return;
        if (c->count == c->capacity) {
            c->capacity = c->capacity > 0 ? 2 * c->capacity : 64;
            c->by_id = xrealloc(c->by_id, c->capacity, sizeof *c->by_id);
        }
        known = xcalloc(1, sizeof *known);
        known->id = (uint32_t)c->count;
        (void)snprintf(known->name, sizeof known->name, "%s", name);
        c->by_id[c->count++] = known;
        namemap_put(&c->by_name, name, known);
    }
    known->sig = *sig;
    if (sig->op == SHM_OP_ALLGATHER)
        known->sig.count = 0; /* each rank has its own: it is said every time */
}

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

static const struct cached *take_cached(struct reader *r, const struct name_cache *c)
{
    uint64_t id = take(r, 4);

    if (r->bad || id >= c->count) {
        r->bad = true;
        return NULL;
    }
    return c->by_id[id];
}

/* ---- announcements ---- */

void announce_encode(struct buf *b, const struct name_cache *c, const char *name, const struct signature *sig)
{
    const struct cached *known = namemap_get(&c->by_name, name);

    if (known != NULL && signature_equal(&known->sig, sig)) {
        put(b, FORM_CACHED, 1);
        put(b, known->id, 4);
        put(b, sig->count, 8);
        return;
    }
    put(b, FORM_FULL, 1);
    put(b, sig->op, 1);
    put(b, sig->dtype, 1);
    put(b, sig->redop, 1);
    put(b, (uint32_t)sig->root, 4);
    put(b, sig->count, 8);
    put(b, sig->row_elements, 8);
    put_double(b, sig->prescale);
    put_double(b, sig->postscale);
    put_name(b, name);
}

/* What shm_request_check says of a request holds for an announced one too; a peer's word is not taken for it. */
static bool signature_is_sound(const struct signature *s)
{
    uint64_t bytes;
    bool is_float = s->dtype >= SHM_F16 && s->dtype <= SHM_F64;

    if (s->op == SHM_OP_BARRIER)
        return s->dtype == 0 && s->count == 0;
    if (s->op < SHM_OP_ALLREDUCE || s->op > SHM_OP_BARRIER || shm_dtype_size(s->dtype) == 0 ||
        __builtin_mul_overflow(s->count, shm_dtype_size(s->dtype), &bytes) || bytes > INT64_MAX)
        return false;
    if (s->op == SHM_OP_BROADCAST)
        return s->root >= 0;
    if (s->op == SHM_OP_ALLGATHER)
        return s->row_elements == 0 ? s->count == 0 : s->count % s->row_elements == 0;
    if (s->redop < SHM_SUM || s->redop > SHM_PRODUCT || (s->redop == SHM_AVERAGE && !is_float))
        return false;
    if (s->dtype == SHM_BOOL && s->redop != SHM_MIN && s->redop != SHM_MAX)
        return false;
    return is_float || (s->prescale == 1.0 && s->postscale == 1.0);
}

int announce_decode(const struct name_cache *c, const uint8_t *bytes, size_t len, size_t *at, struct announcement *ret,
                    struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len, .at = *at };
    struct announcement a;
    memset(&a, 0, sizeof a);

    switch (take(&r, 1)) {
    case FORM_FULL:
        a.sig.op = (uint8_t)take(&r, 1);
        a.sig.dtype = (uint8_t)take(&r, 1);
        a.sig.redop = (uint8_t)take(&r, 1);
        a.sig.root = (int32_t)take(&r, 4);
        a.sig.count = take(&r, 8);
        a.sig.row_elements = take(&r, 8);
        a.sig.prescale = take_double(&r);
        a.sig.postscale = take_double(&r);
        take_name(&r, a.name);
        break;
    case FORM_CACHED: {
        const struct cached *known = take_cached(&r, c);
        uint64_t count = take(&r, 8);
        if (r.bad)
            break;
        memcpy(a.name, known->name, sizeof a.name);
        a.sig = known->sig;
        if (known->sig.op == SHM_OP_ALLGATHER)
            a.sig.count = count;
        else if (known->sig.count != count)
            r.bad = true;
        break;
    }
    default:
        r.bad = true;
    }
    if (r.bad || !signature_is_sound(&a.sig))
        return error_set(e, ERROR_INVALID, "announcement at byte %zu of %zu cannot be right", *at, len);
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

static void go_add_entry(struct buf *b, struct name_cache *c, const struct go_entry *entry, int32_t size)
{
    const struct cached *known = namemap_get(&c->by_name, entry->name);
    unsigned counts = entry->counts != NULL ? FORM_COUNTS : 0;

    if (known != NULL) {
        put(b, FORM_CACHED | counts, 1);
        put(b, known->id, 4);
    } else {
        put(b, FORM_FULL | counts, 1);
        put_name(b, entry->name);
    }
    if (counts != 0) {
        put(b, (uint64_t)size, 2);
        for (int32_t i = 0; i < size; i++)
            put(b, entry->counts[i], 8);
    }
    name_cache_note(c, entry->name, &entry->sig);
}

void go_add(struct buf *b, struct name_cache *c, int32_t size, const struct go_list *l)
{
    put(b, l->count, 2);
    put(b, (uint64_t)l->last_rank, 2);
    for (size_t i = 0; i < l->count; i++)
        go_add_entry(b, c, &l->entries[i], size);
}

static void take_counts(struct reader *r, int32_t size, struct go_entry *entry)
{
    uint64_t total = 0;

    if (entry->sig.op != SHM_OP_ALLGATHER || take(r, 2) != (uint64_t)size || r->len - r->at < (size_t)size * 8) {
        r->bad = true;
        return;
    }
    entry->counts = xcalloc((size_t)size, sizeof *entry->counts);
    for (int32_t i = 0; i < size; i++) {
        entry->counts[i] = take(r, 8);
        if (__builtin_add_overflow(total, entry->counts[i], &total))
            r->bad = true;
    }
    uint64_t bytes;
    if (__builtin_mul_overflow(total, shm_dtype_size(entry->sig.dtype), &bytes) || bytes > INT64_MAX)
        r->bad = true;
}

struct go_context { struct name_cache *cache; int32_t size; go_lookup_fn *lookup; void *ctx; };

static int take_entry(struct reader *r, const struct go_context *go, struct go_entry *entry, struct error *e)
{
    unsigned form = (unsigned)take(r, 1);
    const struct cached *known = NULL;

    if ((form & ~(unsigned)FORM_COUNTS) == FORM_CACHED) {
        known = take_cached(r, go->cache);
        if (known != NULL)
            memcpy(entry->name, known->name, sizeof entry->name);
    } else if ((form & ~(unsigned)FORM_COUNTS) == FORM_FULL) {
        take_name(r, entry->name);
    } else {
        r->bad = true;
    }
    if (r->bad)
        return 0;

    const struct signature *sig = go->lookup(go->ctx, entry->name);
    if (sig == NULL)
        return error_set(e, ERROR_INVALID, "rank 0 starts \"%s\", which this rank did not announce", entry->name);
    entry->sig = *sig;
    if ((form & FORM_COUNTS) != 0)
        take_counts(r, go->size, entry);
    else if (sig->op == SHM_OP_ALLGATHER)
        r->bad = true;
    if (!r->bad)
        name_cache_note(go->cache, entry->name, &entry->sig);
    return 0;
}

static int take_list(struct reader *r, const struct go_context *go, struct go_list *l, struct error *e)
{
    size_t count = take(r, 2);

    l->last_rank = (int32_t)take(r, 2);
    if (r->bad || count == 0 || count > NEGOTIATE_FUSE_ENTRIES || l->last_rank >= go->size) {
        r->bad = true;
        return 0;
    }
    l->entries = xcalloc(count, sizeof *l->entries);
    for (l->count = 0; l->count < count && !r->bad; l->count++) {
        struct go_entry *entry = &l->entries[l->count];
        if (take_entry(r, go, entry, e) < 0)
            return -1;
        if (count > 1 && (entry->sig.op != SHM_OP_ALLREDUCE || !signature_can_fuse(&l->entries[0].sig, &entry->sig)))
            r->bad = true;
    }
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
    }
    if (r->bad || *count == 0)
        return error_set(e, ERROR_INVALID, "GO frame of %zu bytes cannot be right at byte %zu", r->len, r->at);
    return 0;
}

int go_decode(struct name_cache *c, int32_t size, const uint8_t *bytes, size_t len, go_lookup_fn *lookup, void *ctx,
              uint32_t *ret_chunk_bytes, struct go_list **ret_lists, size_t *ret_count, struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len };
    struct go_context go = { .cache = c, .size = size, .lookup = lookup, .ctx = ctx };
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

void op_error_encode(struct buf *b, const char *name, enum shm_status status, const char *text)
{
    put(b, status, 1);
    put_name(b, name);
    put_text(b, text);
}

int op_error_decode(const uint8_t *bytes, size_t len, char ret_name[SHM_NAME_MAX], enum shm_status *ret_status,
                    char ret_text[SHM_TEXT_MAX], struct error *e)
{
    struct reader r = { .bytes = bytes, .len = len };
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];

    uint64_t status = take(&r, 1);
    take_name(&r, name);
    take_text(&r, text);
    if (r.bad || r.at != len || status == SHM_OK || status > SHM_SHUTDOWN)
        return error_set(e, ERROR_INVALID, "OP_ERROR frame of %zu bytes cannot be right", len);
    memcpy(ret_name, name, sizeof name);
    *ret_status = (enum shm_status)status;
    memcpy(ret_text, text, strlen(text) + 1);
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
