/*
 * What other sidecars send, as this one finds it: frames however they are cut, the structs of the handshake, announcements, GO
 * lists and errors. The first byte chooses; what is accepted must keep what the rest of the engine relies on.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/negotiate.h"
#include "sidecar/ring/stream.h"
#include "wire/peer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* The bytes arrive in two pieces; the cut comes from the input too. */
static void frames(const uint8_t *data, size_t size)
{
    if (size == 0)
        return;
    size_t cut = data[0] % size;
    struct frame_reader r = FRAME_READER_INIT;
    struct peer_frame f;
    const uint8_t *payload;
    struct error e = ERROR_INIT;
    unsigned sum = 0;
    int got = 0;

    for (int piece = 0; piece < 2 && got >= 0; piece++) {
        const uint8_t *bytes = piece == 0 ? data + 1 : data + 1 + cut;
        size_t len = piece == 0 ? (cut < size - 1 ? cut : size - 1) : size - 1 > cut ? size - 1 - cut : 0;
        while ((got = frame_reader_next(&r, bytes, len, &f, &payload, &e)) > 0) {
            must(f.length <= PEER_MAX_CONTROL);
            for (uint32_t i = 0; i < f.length; i++)
                sum += payload[i];
            len = 0;
        }
    }
    must(got >= 0 || e.text[0] != '\0');
    must(sum < UINT32_MAX);
    frame_reader_release(&r);
}

static void handshake(const uint8_t *data, size_t size)
{
    struct peer_hello h = { 0 };
    struct peer_challenge c = { 0 };
    struct error e = ERROR_INIT;

    memcpy(&h, data, size < sizeof h ? size : sizeof h);
    memcpy(&c, data, size < sizeof c ? size : sizeof c);
    if (peer_hello_check(&h, &e) == 0)
        must(strnlen(h.member, sizeof h.member) < sizeof h.member && strnlen(h.job_uid, sizeof h.job_uid) < sizeof h.job_uid);
    if (peer_challenge_check(&c, &e) == 0)
        must(strnlen(c.member, sizeof c.member) < sizeof c.member);
}

static const char *const MEMBERS[] = { "chief-0", "worker-0", "worker-1" };

/* All ranks of the set announce the same bytes, as rank 0 would take them; then the lists go over the wire and back. */
static const struct signature *announced(void *ctx, uint32_t set, const char *name)
{
    const struct go_list *l = ctx;

    for (size_t i = 0; i < l->count && l->set == set; i++) {
        if (strcmp(l->entries[i].name, name) == 0)
            return &l->entries[i].sig;
    }
    return NULL;
}

#define SET_RANKS 2

static struct process_sets *make_sets(void)
{
    struct process_sets *s = process_sets_new(3);

    must(process_sets_add(s, (int32_t[SET_RANKS]){ 0, 2 }, SET_RANKS) != NULL);
    return s;
}

/* Rank 0 is in both sets; so is the rank that reads. */
static void round_trip(struct process_sets *root, struct process_sets *rank, const struct go_list *l)
{
    auto_buf struct buf b = BUF_INIT(PEER_MAX_CONTROL);
    struct process_set *set = process_sets_get(root, l->set);
    struct error e = ERROR_INIT;
    struct go_list *lists;
    size_t count;
    uint32_t chunk;
    struct go_list ctx = *l;
    int32_t reader = l->members[l->member_count - 1];

    go_begin(&b, l->sequence, 4096);
    go_add(&b, set, reader, l);
    go_note(set, l);
    must(buf_ok(&b));
    must(go_decode(rank, reader, (const uint8_t *)b.text, b.len, announced, &ctx, &chunk, &lists, &count, &e) == 0);
    must(count == 1 && lists[0].count == l->count && lists[0].sequence == l->sequence && lists[0].member_count == l->member_count);
    if (l->entries[0].matrix != NULL) {
        int32_t place = process_set_index(set, reader);
        for (int32_t m = 0; m < l->member_count; m++)
            must(lists[0].entries[0].counts[m] == l->entries[0].matrix[m][place]);
    }
    go_lists_free(lists, count);
}

/* One announcement, from every rank of its set; a third of them have joined, left or announced it before, as `mood` says. */
static bool announce_all(struct negotiation *n, const struct process_set *set, const struct announcement *a, uint8_t mood)
{
    struct error e = ERROR_INIT;

    for (int32_t i = 0; i < set->count; i++) {
        struct announcement copy = *a;
        if (a->splits != NULL) {
            copy.splits = xcalloc((size_t)a->split_count, sizeof *copy.splits);
            memcpy(copy.splits, a->splits, (size_t)a->split_count * sizeof *copy.splits);
        }
        if (i == 1 && (mood & 1) != 0)
            copy.sig.count ^= mood; /* disagrees, or has another number of rows */
        int result = i == 1 && (mood & 2) != 0 ? 0 : negotiation_announce(n, set->ranks[i], &copy, mood, &e);
        announcement_release(&copy);
        if (result < 0)
            return false;
    }
    return true;
}

static void count_stall(void *ctx, const struct stall *s)
{
    must(s->missing_count > 0 && s->text[0] != '\0');
    (*(size_t *)ctx)++;
}

static void announcements(const uint8_t *data, size_t size)
{
    struct process_sets *root = make_sets(), *rank = make_sets();
    struct negotiation *n = negotiation_new(3, MEMBERS, root);
    struct error e = ERROR_INIT;
    struct go_list l;
    size_t stalls = 0;
    bool good = size > 0;
    uint8_t mood = good ? data[0] : 0;

    for (size_t at = 1; at < size && good;) {
        struct announcement a;
        if (announce_decode(root, data, size, &at, &a, &e) < 0)
            break;
        if (!a.set_is_known)
            continue;
        must(strnlen(a.name, sizeof a.name) < sizeof a.name && a.name[0] != '\0');
        must((a.splits != NULL) == (a.sig.op == SHM_OP_ALLTOALL));
        good = announce_all(n, process_sets_get(root, a.set), &a, mood);
        announcement_release(&a);
        while (good && negotiation_next(n, &l)) {
            if (l.status == SHM_OK)
                round_trip(root, rank, &l);
            else
                must(l.text[0] != '\0');
            go_list_release(&l);
        }
    }
    must(negotiation_stalls(n, INT64_MAX, 1, true, count_stall, &stalls) == stalls);
    negotiation_left(n, 1, true);
    negotiation_forget_set(n, 1);
    while (negotiation_next(n, &l))
        go_list_release(&l);
    negotiation_free(n);
    process_sets_free(root);
    process_sets_free(rank);
}

static const struct signature *anything(void *ctx, uint32_t set, const char *name)
{
    static struct signature sig;

    (void)ctx;
    (void)set;
    sig = (struct signature){ .op = SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM, .count = 8, .prescale = 1, .postscale = 1 };
    if (name[0] == 'g' || name[0] == 'e')
        sig = (struct signature){ .op = name[0] == 'g' ? SHM_OP_ALLGATHER : SHM_OP_ALLTOALL, .dtype = SHM_F64, .count = 8, .row_elements = 1 };
    return name[0] == 'u' ? NULL : &sig;
}

static void from_rank_0(const uint8_t *data, size_t size)
{
    struct process_sets *s = make_sets();
    struct signature sig = { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM };
    struct error e = ERROR_INIT;
    struct go_list *lists;
    size_t count;
    uint32_t chunk, set;
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];
    enum shm_status status;
    int32_t rank;
    bool left;

    name_cache_note(process_sets_get(s, 0)->cache, "cached", &sig);
    if (go_decode(s, 2, data, size, anything, NULL, &chunk, &lists, &count, &e) == 0) {
        must(count > 0 && chunk > 0 && chunk <= PEER_MAX_DATA);
        for (size_t i = 0; i < count; i++) {
            must(lists[i].count > 0 && lists[i].last_rank < 3 && lists[i].member_count > 0 && go_list_place(&lists[i], 2) >= 0);
            for (size_t k = 0; k < lists[i].count; k++)
                must(signature_count_is_free(&lists[i].entries[k].sig) == (lists[i].entries[k].counts != NULL));
        }
        go_lists_free(lists, count);
    }
    if (op_error_decode(data, size, &set, name, &status, text, &e) == 0)
        must(status != SHM_OK && strnlen(text, sizeof text) < sizeof text && strnlen(name, sizeof name) < sizeof name);
    if (lost_decode(data, size, 2, &rank, text, &e) == 0)
        must(rank >= -1 && rank < 2 && strnlen(text, sizeof text) < sizeof text);
    if (left_decode(data, size, &left, &e) == 0)
        must(size == 1);
    process_sets_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    switch (data[0] % 4) {
    case 0: frames(data + 1, size - 1); break;
    case 1: handshake(data + 1, size - 1); break;
    case 2: announcements(data + 1, size - 1); break;
    default: from_rank_0(data + 1, size - 1); break;
    }
    return 0;
}
