/* How the ring engine loses ranks, and forms again. A plain main, as test_engine.c. */
#include "tests/tsan/ring_checks.h"

static int killed_in_the_middle;

/* ---- losing ranks ---- */

static void submit_large(struct setup *s, uint64_t count, int but_not)
{
    for (int r = 0; r < s->world.size; r++) {
        uint64_t in = s->clients[r].h->arena_offset;
        struct shm_request q = request_of("large", SHM_OP_ALLREDUCE, SHM_F32, count, in, in + count * 4);
        struct shm_request w = request_of(r == but_not ? "mine" : "waits for one", SHM_OP_BARRIER, 0, 0, 0, 0);
        (void)client_submit(&s->clients[r], &q);
        (void)client_submit(&s->clients[r], &w);
    }
}

/* Returns how many ranks were in the middle of the large all-reduce. */
static int expect_lost(struct setup *s, int dead, const char *says)
{
    struct shm_reply reply;
    int interrupted = 0;

    for (int r = 0; r < s->world.size; r++) {
        if (r == dead)
            continue;
        bool barrier_lost = false;
        int lost = 0;
        for (int i = 0; i < 2; i++) {
            bool came = client_next(&s->clients[r], 60000, &reply);
            CHECK(came, "rank %d heard nothing", r);
            if (came && reply.status == SHM_OK)
                continue; /* the large one may have been done before */
            CHECK(came && reply.status == SHM_PEER_LOST && strstr(reply.text, says) == reply.text, "rank %d: %u \"%s\"", r,
                  reply.status, reply.text);
            barrier_lost = true;
            lost++;
        }
        CHECK(barrier_lost, "rank %d: the barrier ended well without rank %d", r, dead);
        interrupted += lost == 2;
    }
    return interrupted;
}

static void test_killed_rank(int size, int dead)
{
    struct setup s;
    struct shm_reply reply;
    char says[160];

    begin(dead == 0 ? "rank 0 killed in the middle" : "a rank killed in the middle", size);
    set_up(&s, size, 65536);
    submit_large(&s, 4 << 20, dead);
    (void)usleep(3000);
    world_call(&s.world, node_stop, &s.world.nodes[dead]);
    (void)snprintf(says, sizeof says, "peer lost: rank %d (%s)", dead, s.world.nodes[dead].member);
    killed_in_the_middle += expect_lost(&s, dead, says) > 0;
    CHECK(world_wait(&s.world, all_alive_lost, 60000), "not every rank was told");
    for (int r = 0; r < size; r++) {
        struct node *n = &s.world.nodes[r];
        if (r == dead)
            continue;
        CHECK(n->lost_rank == dead && n->lost_calls == 1 && strstr(n->lost_text, says) == n->lost_text, "rank %d: %d calls, rank %d, %s",
              r, n->lost_calls, n->lost_rank, n->lost_text);
        /* A request that comes later hears the same. */
        struct shm_request late = request_of("late", SHM_OP_BARRIER, 0, 0, 0, 0);
        (void)client_submit(&s.clients[r], &late);
        CHECK(client_next(&s.clients[r], 60000, &reply) && reply.status == SHM_PEER_LOST && strstr(reply.text, says) == reply.text,
              "rank %d, late: %u \"%s\"", r, reply.status, reply.text);
    }

    /* The dead one comes back, the same engines form again under a higher fence; new clients work, old ones do not. */
    world_call(&s.world, node_start, &s.world.nodes[dead]);
    client_drop(&s.clients[dead]);
    struct test_client old = s.clients[(dead + 1) % size];
    for (int r = 0; r < size; r++)
        client_attach(&s.clients[r], &s.world.nodes[r], FENCE(1, 2));
    struct shm_request early = request_of("early", SHM_OP_BARRIER, 0, 0, 0, 0);
    for (int r = 0; r < size; r++)
        (void)client_submit(&s.clients[r], &early); /* waits for the round to form */
    int64_t began = clock_mono_ms();
    CHECK(world_form(&s.world, FENCE(1, 2)), "the group did not form again");
    printf("  formed again in %lld ms\n", (long long)(clock_mono_ms() - began));
    struct shm_reply replies[WORLD_MAX];
    collect(&s, SHM_OK, replies);
    one_allreduce(&s, SHM_F32, SHM_SUM, 100000, false);
    struct shm_request stale = request_of("stale", SHM_OP_BARRIER, 0, 0, 0, 0);
    (void)client_submit(&old, &stale);
    CHECK(client_next(&old, 60000, &reply) && reply.status == SHM_PEER_LOST, "an old client was served: %u", reply.status);
    client_drop(&old);
    tear_down(&s);
    end();
}

static void abort_call(void *ctx)
{
    struct node *n = ctx;

    engine_abort(n->engine, n->world->fence, "peer lost: rank 1 (worker-0): said the coordinator");
}

static void test_abort(int size)
{
    struct setup s;

    begin("aborted by the coordinator", size);
    set_up(&s, size, 65536);
    submit_large(&s, 1 << 20, size - 1);
    world_call(&s.world, abort_call, &s.world.nodes[size - 1]);
    (void)expect_lost(&s, size - 1, "peer lost: rank 1 (worker-0): said the coordinator");
    CHECK(world_wait(&s.world, all_alive_lost, 60000), "not every rank was told");
    /* The same fence does not come back. */
    world_form_one(&s.world, 0, s.world.fence);
    s.world.nodes[0].formed_fence = 0;
    (void)usleep(20000);
    CHECK(s.world.nodes[0].formed_fence == 0, "an aborted fence formed again");
    CHECK(world_form(&s.world, FENCE(1, 7)), "a higher fence did not form");
    tear_down(&s);
    end();
}

static void test_client_leaves(int size)
{
    struct setup s;
    char says[128];

    begin("a training process that leaves in the middle", size);
    set_up(&s, size, 65536);
    submit_large(&s, 1000, 1);
    (void)usleep(50000); /* the large one is done, the barriers wait */
    client_detach(&s.clients[1]);
    (void)snprintf(says, sizeof says, "peer lost: rank 1 (worker-0): its training process left");
    (void)expect_lost(&s, 1, says);
    client_attach(&s.clients[1], &s.world.nodes[1], FENCE(1, 1));
    tear_down(&s);
    end();
}

static void test_rank_that_does_not_come(int size)
{
    struct world w;

    begin("a rank that does not come", size);
    world_start(&w, size, 65536);
    for (int r = 0; r < size; r++) { /* short patience, with engines of their own */
        world_call(&w, node_stop, &w.nodes[r]);
    }
    w.options.connect_timeout_ms = 1500; /* those that do come must be done by then, on a busy machine too: the first that is missing is named */
    w.fence = FENCE(2, 1);
    for (int r = 0; r < size - 1; r++) {
        world_call(&w, node_start, &w.nodes[r]);
        world_form_one(&w, r, w.fence);
    }
    CHECK(world_wait(&w, all_alive_lost, 60000), "the others wait for ever");
    char says[160];
    (void)snprintf(says, sizeof says, "peer lost: rank %d (worker-%d)", size - 1, size - 2);
    CHECK(strstr(w.nodes[0].lost_text, says) == w.nodes[0].lost_text && w.nodes[0].lost_rank == size - 1, "\"%s\"", w.nodes[0].lost_text);
    world_stop(&w);
    end();
}

static void in_memory(bool quick)
{
    for (int size = quick ? 3 : 2; size <= (quick ? 3 : 4); size++) {
        test_killed_rank(size, size - 1);
        test_killed_rank(size, 0);
        test_client_leaves(size);
    }
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;

    log_setup("test", NULL, LOG_ERROR, false);
    for (int size = quick ? 3 : 2; size <= (quick ? 3 : 4); size++) {
        for (int dead = 0; dead < size; dead++)
            test_killed_rank(size, dead);
        test_abort(size);
        test_client_leaves(size);
        test_rank_that_does_not_come(size);
    }
    through_memory(in_memory, quick);
    begin("the kills above met all-reduces under way", quick ? 3 : 4);
    CHECK(killed_in_the_middle > 0, "none did: the tensor is too small for this machine");
    end();
    return report();
}
