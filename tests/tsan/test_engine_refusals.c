/* What the ring engine refuses: requests that cannot be right, ranks that disagree, clients that break the queue's protocol. A plain
 * main, as test_engine.c. */
#include "tests/tsan/ring_checks.h"

static void test_no_space(int size)
{
    struct setup s;
    struct shm_reply reply;
    uint64_t bytes = (8 << 20) / (uint64_t)size; /* together the whole results area */

    begin("a result that does not fit", size);
    set_up(&s, size, 65536);
    for (int round = 0; round < 3; round++) {
        for (int r = 0; r < size; r++) {
            uint64_t in = client_alloc(&s.clients[r], bytes);
            memset(s.clients[r].base + in, r, bytes);
            struct shm_request q = request_of("large", SHM_OP_ALLGATHER, SHM_U8, bytes, in, 0);
            (void)client_submit(&s.clients[r], &q);
        }
        for (int r = 0; r < size; r++) {
            /* Rank 0 never hands its results back; the others are not to suffer. */
            enum shm_status want = r == 0 && round > 0 ? SHM_NO_SPACE : SHM_OK;
            CHECK(client_next(&s.clients[r], 60000, &reply) && reply.status == want, "round %d rank %d: %u %s", round, r,
                  reply.status, reply.text);
            if (r > 0 && reply.status == SHM_OK) {
                CHECK(s.clients[r].base[reply.out_offset + reply.out_count - 1] == size - 1, "rank %d has other data", r);
                struct shm_request back = { .op = SHM_OP_FREE, .in_offset = reply.out_offset };
                (void)client_submit(&s.clients[r], &back);
            }
        }
        rewind_arenas(&s);
    }
    tear_down(&s);
    end();
}

/* ---- what can be wrong with a request ---- */

static void test_mismatch(int size)
{
    struct setup s;
    struct shm_reply replies[WORLD_MAX];

    begin("ranks that disagree are told who sent what", size);
    set_up(&s, size, 65536);
    for (int kind = 0; kind < 6; kind++) {
        uint64_t in = s.clients[0].h->arena_offset;
        for (int r = 0; r < size; r++) {
            bool odd = r == size - 1;
            struct shm_request q = request_of("loss", SHM_OP_ALLREDUCE, SHM_F32, 100, in, in);
            if (odd && kind == 0)
                q.count = 101;
            if (odd && kind == 1)
                q.dtype = SHM_F64;
            if (odd && kind == 2)
                q.redop = SHM_MAX;
            if (odd && kind == 3)
                q.op = SHM_OP_BARRIER;
            if (kind == 4) {
                q.op = SHM_OP_BROADCAST;
                q.root = odd ? 1 : 0;
            }
            if (odd && kind == 5)
                q.postscale = 2;
            (void)client_submit(&s.clients[r], &q);
        }
        collect(&s, SHM_MISMATCH, replies);
        for (int r = 0; r < size; r++) {
            char odd[64];
            (void)snprintf(odd, sizeof odd, "rank %d (worker-%d)", size - 1, size - 2);
            CHECK(strstr(replies[r].text, "rank ") != NULL && strstr(replies[r].text, odd) != NULL &&
                      strstr(replies[r].text, "\"loss\"") != NULL, "kind %d: \"%s\"", kind, replies[r].text);
            CHECK(strcmp(replies[r].text, replies[0].text) == 0, "ranks hear different things");
        }
        one_allreduce(&s, SHM_F32, SHM_SUM, 100, false); /* and the group goes on */
    }
    tear_down(&s);
    end();
}

static const struct bad_request {
    const char *name, *says;
    struct shm_request r;
} BAD[] = {
    { "offset before the arena", "outside", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = 4, .name = "x" } },
    { "count that wraps around", "do not fit", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM,
                                                 .count = UINT64_MAX / 4, .name = "x" } },
    { "offset that wraps around", "outside", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = 4,
                                               .in_offset = UINT64_MAX - 3, .name = "x" } },
    { "unknown operation", "unknown operation", { .op = 77, .dtype = SHM_F32, .name = "x" } },
    { "unknown dtype", "unknown dtype", { .op = SHM_OP_BROADCAST, .dtype = 12, .name = "x" } },
    { "unknown reduction", "is no reduction", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = 9, .name = "x" } },
    { "adasum of integers", "floating", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I32, .redop = SHM_ADASUM, .prescale = 1,
                                          .postscale = 1, .name = "x" } },
    { "sum of int16", "not reduced", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I16, .redop = SHM_SUM, .prescale = 1, .postscale = 1,
                                       .name = "x" } },
    { "splits that are not there", "outside", { .op = SHM_OP_ALLTOALL, .dtype = SHM_F32, .splits = 2, .name = "x" } },
    { "no splits", "list of 0 ranks", { .op = SHM_OP_REDUCESCATTER, .dtype = SHM_F32, .redop = SHM_SUM, .name = "x" } },
    { "a set that is not there", "no process set 9", { .op = SHM_OP_BARRIER, .set = 9, .name = "x" } },
    { "join in a set", "all ranks have to take part", { .op = SHM_OP_JOIN, .set = 9, .name = "x" } },
    { "sum of bool", "bool", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_BOOL, .redop = SHM_SUM, .name = "x" } },
    { "no name", "name is empty", { .op = SHM_OP_BARRIER } },
    { "a control character in the name", "control character", { .op = SHM_OP_BARRIER, .name = "\1self-test all-reduce" } },
    { "root out of range", "ranks are 0 to", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .root = 55, .name = "x" } },
    { "negative root", "rank -1", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .root = -1, .name = "x" } },
    { "half a row", "rows", { .op = SHM_OP_ALLGATHER, .dtype = SHM_F32, .count = 7, .row_elements = 2, .name = "x" } },
};

static void test_bad_requests(int size)
{
    struct setup s;
    struct shm_reply reply;
    struct shm_request q;

    begin("requests that cannot be right", size);
    set_up(&s, size, 65536);
    for (size_t i = 0; i < COUNT(BAD); i++) {
        uint64_t id = client_submit(&s.clients[0], &BAD[i].r);
        CHECK(client_next(&s.clients[0], 60000, &reply) && reply.id == id && reply.status == SHM_INVALID &&
                  strstr(reply.text, BAD[i].says) != NULL, "%s: status %u, \"%s\"", BAD[i].name, reply.status, reply.text);
    }
    q = request_of("x", SHM_OP_BARRIER, 0, 0, 0, 0);
    memset(q.name, 'n', sizeof q.name);
    (void)client_submit(&s.clients[0], &q);
    CHECK(client_next(&s.clients[0], 60000, &reply) && reply.status == SHM_INVALID, "a name without an end: %u", reply.status);
    q = request_of("twice", SHM_OP_BARRIER, 0, 0, 0, 0);
    if (size > 1) {
        (void)client_submit(&s.clients[0], &q);
        (void)client_submit(&s.clients[0], &q);
        CHECK(client_next(&s.clients[0], 60000, &reply) && reply.status == SHM_INVALID && strstr(reply.text, "already in flight"),
              "a name that is in flight: %u %s", reply.status, reply.text);
        for (int r = 1; r < size; r++)
            (void)client_submit(&s.clients[r], &q);
        struct shm_reply replies[WORLD_MAX];
        collect(&s, SHM_OK, replies);
    }
    struct shm_request back = { .op = SHM_OP_FREE, .in_offset = 12345 };
    (void)client_submit(&s.clients[0], &back); /* no reply, no harm */
    one_allreduce(&s, SHM_F32, SHM_SUM, 10, false);
    tear_down(&s);
    end();
}

/* A process may attach, and ask, while its round still forms: nothing is known then of the world's size. */
static void test_early_requests(int size)
{
    static const char *const empty[] = { "nothing", "nothing either" };
    struct setup s;
    struct shm_reply reply, replies[WORLD_MAX];

    begin("requests that come before the group is formed", size);
    world_start(&s.world, size, 65536);
    for (int r = 0; r < size; r++) {
        client_attach(&s.clients[r], &s.world.nodes[r], FENCE(1, 1));
        struct shm_request q = request_of("no such root", SHM_OP_BROADCAST, SHM_F32, 1, s.clients[r].h->arena_offset,
                                          s.clients[r].h->arena_offset);
        q.root = 99;
        (void)client_submit(&s.clients[r], &q);
        for (size_t i = 0; i < COUNT(empty); i++) { /* they are fused, and that needs no memory */
            q = request_of(empty[i], SHM_OP_ALLREDUCE, SHM_F32, 0, 0, 0);
            (void)client_submit(&s.clients[r], &q);
        }
    }
    CHECK(world_form(&s.world, FENCE(1, 1)), "the group did not form");
    for (int r = 0; r < size; r++)
        CHECK(client_next(&s.clients[r], 60000, &reply) && reply.status == SHM_INVALID && strstr(reply.text, "rank 99") != NULL,
              "rank %d: status %u, \"%s\"", r, reply.status, reply.text);
    for (size_t i = 0; i < COUNT(empty); i++)
        collect(&s, SHM_OK, replies);
    one_allreduce(&s, SHM_F32, SHM_SUM, 10, false);
    tear_down(&s);
    end();
}

static void test_broken_client(int size)
{
    struct setup s;
    struct test_client bad;
    struct shm_reply reply;

    begin("a client that breaks the queue protocol", size);
    set_up(&s, size, 65536);
    client_attach(&bad, &s.world.nodes[0], FENCE(1, 1));
    atomic_store(&bad.h->sq_tail, 123456u);
    memset(bad.base, 0xff, 256);
    uint64_t one = 1;
    (void)!write(bad.fds[1], &one, sizeof one);
    CHECK(!client_next(&bad, 50, &reply), "it was served");
    one_allreduce(&s, SHM_F32, SHM_SUM, 1000, false); /* the others are */
    client_detach(&bad);
    tear_down(&s);
    end();
}

static void test_full_reply_queue(int size)
{
    struct setup s;
    struct shm_reply reply;
    int many = 6000; /* three times what the reply queue holds */

    begin("replies that nobody takes yet", size);
    set_up(&s, size, 65536);
    for (int i = 0; i < many; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "m%d", i);
        struct shm_request q = request_of(name, SHM_OP_ALLREDUCE, SHM_F32, 1, s.clients[0].h->arena_offset, s.clients[0].h->arena_offset);
        for (int r = 0; r < size; r++)
            (void)client_submit(&s.clients[r], &q);
    }
    for (int r = 0; r < size; r++) {
        int got = 0;
        while (got < many && client_next(&s.clients[r], 60000, &reply))
            got++;
        CHECK(got == many, "rank %d: %d of %d replies", r, got, many);
    }
    tear_down(&s);
    end();
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;

    log_setup("test", NULL, LOG_ERROR, false);
    for (int size = quick ? 3 : 1; size <= 3; size += 2) {
        test_bad_requests(size);
        test_early_requests(size);
        test_no_space(size);
        test_broken_client(size);
        test_full_reply_queue(size);
    }
    for (int size = quick ? 3 : 2; size <= (quick ? 3 : 4); size++)
        test_mismatch(size);
    return report();
}
