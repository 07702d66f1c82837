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

/* All three ranks announce the same bytes, as rank 0 would take them; then the lists go over the wire and back. */
static const struct signature *announced(void *ctx, const char *name)
{
    const struct go_list *l = ctx;

    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->entries[i].name, name) == 0)
            return &l->entries[i].sig;
    }
    return NULL;
}

static void round_trip(struct name_cache *root, struct name_cache *rank, const struct go_list *l)
{
    auto_buf struct buf b = BUF_INIT(PEER_MAX_CONTROL);
    struct error e = ERROR_INIT;
    struct go_list *lists;
    size_t count;
    uint32_t chunk;
    struct go_list ctx = *l;

    go_begin(&b, l->sequence, 4096);
    go_add(&b, root, 3, l);
    must(buf_ok(&b));
    must(go_decode(rank, 3, (const uint8_t *)b.text, b.len, announced, &ctx, &chunk, &lists, &count, &e) == 0);
    must(count == 1 && lists[0].count == l->count && lists[0].sequence == l->sequence);
    go_lists_free(lists, count);
}

static void announcements(const uint8_t *data, size_t size)
{
    struct name_cache *root = name_cache_new(), *rank = name_cache_new();
    struct negotiation *n = negotiation_new(3, MEMBERS);
    struct error e = ERROR_INIT;
    struct announcement a;
    struct go_list l;
    bool bad = false;

    for (size_t at = 0; at < size && !bad;) {
        if (announce_decode(root, data, size, &at, &a, &e) < 0)
            break;
        must(strnlen(a.name, sizeof a.name) < sizeof a.name && a.name[0] != '\0');
        for (int32_t r = 0; r < 3 && !bad; r++)
            bad = negotiation_announce(n, r, &a, &e) < 0;
        while (!bad && negotiation_next(n, &l)) {
            if (l.status == SHM_OK)
                round_trip(root, rank, &l);
            else
                must(l.text[0] != '\0');
            go_list_release(&l);
        }
    }
    negotiation_free(n);
    name_cache_free(root);
    name_cache_free(rank);
}

static const struct signature *anything(void *ctx, const char *name)
{
    static struct signature sig;

    (void)ctx;
    sig = (struct signature){ .op = name[0] == 'g' ? SHM_OP_ALLGATHER : SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM,
                              .count = 8, .row_elements = name[0] == 'g', .prescale = 1, .postscale = 1 };
    return name[0] == 'u' ? NULL : &sig;
}

static void from_rank_0(const uint8_t *data, size_t size)
{
    struct name_cache *c = name_cache_new();
    struct signature sig = { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM };
    struct error e = ERROR_INIT;
    struct go_list *lists;
    size_t count;
    uint32_t chunk;
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];
    enum shm_status status;
    int32_t rank;

    name_cache_note(c, "cached", &sig);
    if (go_decode(c, 2, data, size, anything, NULL, &chunk, &lists, &count, &e) == 0) {
        must(count > 0 && chunk > 0 && chunk <= PEER_MAX_DATA);
        for (size_t i = 0; i < count; i++) {
            must(lists[i].count > 0 && lists[i].last_rank < 2);
            for (size_t k = 0; k < lists[i].count; k++)
                must((lists[i].entries[k].sig.op == SHM_OP_ALLGATHER) == (lists[i].entries[k].counts != NULL));
        }
        go_lists_free(lists, count);
    }
    if (op_error_decode(data, size, name, &status, text, &e) == 0)
        must(status != SHM_OK && strnlen(text, sizeof text) < sizeof text && strnlen(name, sizeof name) < sizeof name);
    if (lost_decode(data, size, 2, &rank, text, &e) == 0)
        must(rank >= -1 && rank < 2 && strnlen(text, sizeof text) < sizeof text);
    name_cache_free(c);
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
