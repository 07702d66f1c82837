/*
 * Ringmaster's ring alone, from engine to engine: ring RANKS BYTES... forks the ranks, joins them over loopback and prints a line of
 * figures (figures.h) for each size. The tensors are memory of the engine's own process; no training process is there.
 * RING_MEMORY_DIR: data moves through memory in that directory in place of TCP. RING_SPIN_US, RING_CHUNK: see engine.h.
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "figures.h"
#include "sidecar/ring/engine_private.h"

#define RANKS_MAX 16

static const uint8_t key[32] = "of a measurement";

static struct rank {
    int32_t rank, size, listen_fd;
    struct ring_member members[RANKS_MAX];
    struct loop *loop;
    struct engine *engine;
    struct link_identity identity;
    uint64_t sizes[64];
    int count, at, turn, turns, result;
    float *in, *out;
    double began, seconds[FIGURES_ITERATIONS_MAX];
} self;

static void stop(void *ctx)
{
    loop_stop(ctx);
}

static void leave(int result)
{
    self.result = result;
    loop_post(self.loop, stop, self.loop);
}

static void submit(struct engine *g);

static void begin_size(struct engine *g)
{
    if (self.at == self.count) {
        leave(0);
        return;
    }
    uint64_t bytes = self.sizes[self.at];
    self.in = malloc(bytes + 1);
    self.out = malloc(bytes + 1);
    for (uint64_t i = 0; i < bytes / sizeof(float); i++)
        self.in[i] = (float)(i % 1000 + (uint64_t)self.rank);
    memset(self.out, 0, bytes);
    self.turns = figures_iterations(bytes, 0);
    self.turn = -self.turns / 5 - 1;
    submit(g);
}

static void end_size(struct engine *g)
{
    uint64_t bytes = self.sizes[self.at++];

    for (uint64_t i = 0; i < bytes / sizeof(float); i++) {
        if (self.out[i] != (float)(i % 1000 * (uint64_t)self.size + (uint64_t)(self.size * (self.size - 1) / 2))) {
            fprintf(stderr, "element %llu is wrong\n", (unsigned long long)i);
            leave(1);
            return;
        }
    }
    if (self.rank == 0)
        figures_print(bytes, self.seconds, self.turns);
    free(self.in);
    free(self.out);
    begin_size(g);
}

static void next(void *ctx)
{
    submit(ctx);
}

static void done(struct engine *g, struct request *q, enum shm_status status, const char *text, uint64_t out_count)
{
    (void)q;
    (void)out_count;
    if (status != SHM_OK) {
        fprintf(stderr, "%s\n", text);
        leave(1);
        return;
    }
    if (self.turn >= 0)
        self.seconds[self.turn] = figures_now() - self.began;
    if (++self.turn == self.turns)
        end_size(g);
    else
        loop_post(g->loop, next, g); /* not from inside the end of the one before */
}

static void submit(struct engine *g)
{
    struct request *q = xcalloc(1, sizeof *q);
    uint64_t count = self.sizes[self.at] / sizeof(float);

    self.began = figures_now();
    q->r = (struct shm_request){ .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = count, .prescale = 1, .postscale = 1 };
    (void)snprintf(q->r.name, sizeof q->r.name, "\1%llu bytes", (unsigned long long)self.sizes[self.at]);
    q->in = (const uint8_t *)self.in;
    q->out = (uint8_t *)self.out;
    q->out_capacity = count;
    q->done = done;
    request_add(g, q);
    order_announce(g, q);
    execute_flush(g);
}

static void begin(void *ctx)
{
    begin_size(ctx);
}

static void on_formed(void *ctx, uint64_t fence, int ok, double seconds)
{
    (void)ctx;
    (void)fence;
    (void)seconds;
    if (!ok)
        leave(1);
    else
        loop_post(self.engine->loop, begin, self.engine);
}

static void on_lost(void *ctx, uint64_t fence, int32_t rank, const char *text)
{
    (void)ctx;
    (void)fence;
    (void)rank;
    (void)text;
}

static void on_link(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    (void)ctx;
    (void)why;
    if (fd >= 0)
        engine_accept(self.engine, fd, peer);
}

static void on_connection(void *ctx, int listen_fd, unsigned events)
{
    (void)ctx;
    (void)events;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        (void)link_accept(self.loop, &self.identity, fd, 0, 5000, on_link, NULL);
}

static int run(void)
{
    struct error e = ERROR_INIT;
    struct loop_source *source;
    const char *option = getenv("RING_SPIN_US");
    self.identity = (struct link_identity){ .key = key, .job_uid = "bench", .member = self.members[self.rank].member };
    struct engine_options options = { .key = key, .job_uid = "bench", .member = self.identity.member,
                                      .memory_dir = getenv("RING_MEMORY_DIR"), .spin_us = option != NULL ? atoi(option) : 0,
                                      .chunk_bytes = getenv("RING_CHUNK") != NULL ? atoi(getenv("RING_CHUNK")) : 0 };
    struct engine_events events = { .on_formed = on_formed, .on_lost = on_lost };
    struct ring_plan plan = { .fence = FENCE(1, 1), .rank = self.rank, .size = self.size, .members = self.members };

    if (loop_new(&self.loop, &e) < 0 || engine_new(self.loop, &options, &events, &self.engine, &e) < 0 ||
        loop_add(self.loop, self.listen_fd, LOOP_READ, on_connection, NULL, &source, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    engine_form(self.engine, &plan);
    if (loop_run(self.loop, &e) < 0)
        return 1;
    usleep(50000); /* the last list may still be on its way to others */
    _exit(self.result);
}

int main(int argc, char **argv)
{
    int fds[RANKS_MAX], failed = 0, status;
    struct error e = ERROR_INIT;

    log_setup("ring", NULL, LOG_ERROR, false);
    self.size = argc > 1 ? atoi(argv[1]) : 0;
    if (self.size < 1 || self.size > RANKS_MAX || argc < 3 || argc > 64) {
        fprintf(stderr, "usage: ring RANKS BYTES...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++)
        self.sizes[self.count++] = strtoull(argv[i], NULL, 10);
    for (int32_t r = 0; r < self.size; r++) {
        uint8_t address[128];
        socklen_t len = sizeof address;
        if (link_listen("127.0.0.1", 0, &fds[r], &e) < 0 || getsockname(fds[r], (struct sockaddr *)(void *)address, &len) != 0) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        (void)snprintf(self.members[r].member, sizeof self.members[r].member, "worker-%d", r);
        (void)snprintf(self.members[r].host, sizeof self.members[r].host, "127.0.0.1");
        self.members[r].port = address[2] << 8 | address[3];
    }
    for (int32_t r = 0; r < self.size; r++) {
        if (fork() == 0) {
            self.rank = r;
            self.listen_fd = fds[r];
            _exit(run());
        }
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
