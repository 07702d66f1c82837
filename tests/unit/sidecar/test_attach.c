/* The sidecar's unix socket, with the real engine and checkpoints behind it and raw bytes in front. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fs.h"
#include "base/mem.h"
#include "sidecar/supervise/attach.h"

#define FENCE_NOW FENCE(1, 2)
#define PATIENCE_MS 60000

struct bench {
    char dir[64], path[96];
    struct loop *loop;
    struct loop_timer *stop;
    struct engine *engine;
    struct checkpoint *checkpoint;
    struct attach *attach;
    uint8_t key[CRYPTO_KEY_BYTES];
    /* what the owner of the server heard */
    char heard[512];
    int32_t exit_status;
    size_t clients;
    char report[128];
};

static void hear(struct bench *b, const char *what)
{
    size_t used = strlen(b->heard);

    (void)snprintf(b->heard + used, sizeof b->heard - used, "%s%s", used > 0 ? " " : "", what);
}

static void on_launcher(void *ctx, const struct trainer_event *event)
{
    static const char *const names[] = { "hello", "gone", "started", "exited", "signalled" };
    struct bench *b = ctx;

    hear(b, names[event->kind]);
    if (event->kind == TRAINER_EXITED)
        b->exit_status = event->exited->wait_status;
}

static void on_report(void *ctx, const char *text, size_t len, struct error *e, bool *ret_taken)
{
    struct bench *b = ctx;

    *ret_taken = len > 0 && text[0] == '{';
    if (!*ret_taken)
        (void)error_set(e, ERROR_INVALID, "report: no object");
    else
        (void)snprintf(b->report, sizeof b->report, "%.*s", (int)len, text);
}

static void on_clients(void *ctx, size_t attached, const char *framework)
{
    struct bench *b = ctx;

    b->clients = attached;
    if (framework != NULL)
        hear(b, framework);
}

static bool is_member(void *ctx)
{
    (void)ctx;
    return true;
}

static void on_formed(void *ctx, uint64_t fence, int ok, double seconds)
{
    (void)ctx;
    (void)fence;
    (void)ok;
    (void)seconds;
}

static void on_lost(void *ctx, uint64_t fence, int32_t rank, const char *text)
{
    (void)ctx;
    (void)fence;
    (void)rank;
    (void)text;
}

static void drop_message(void *ctx, cJSON *message)
{
    (void)ctx;
    cJSON_Delete(message);
}

static void on_committed(void *ctx, int64_t step, const char *uri)
{
    (void)ctx;
    (void)step;
    (void)uri;
}

static void on_failed(void *ctx, int64_t step, const struct error *why)
{
    (void)ctx;
    (void)step;
    (void)why;
}

static void on_ready(void *ctx)
{
    struct bench *b = ctx;

    attach_ready(b->attach);
}

static void stop_loop(void *ctx)
{
    struct bench *b = ctx;

    loop_stop(b->loop);
}

static void run_for(struct bench *b, int64_t ms)
{
    struct error e = ERROR_INIT;

    loop_timer_at(b->stop, clock_mono_ms() + ms);
    cr_assert_eq(loop_run(b->loop, &e), 0, "%s", e.text);
}

/* Twenty turns of the loop at the least, however busy the machine is: what has been sent is read, its end is seen. */
static void settle(struct bench *b)
{
    for (int i = 0; i < 20; i++)
        run_for(b, 1);
}

static struct bench *bench_new(void)
{
    struct bench *b = xcalloc(1, sizeof *b);
    struct error e = ERROR_INIT;

    (void)snprintf(b->dir, sizeof b->dir, "/tmp/rm-attach-XXXXXX");
    cr_assert_not_null(mkdtemp(b->dir));
    (void)snprintf(b->path, sizeof b->path, "%s/sidecar.sock", b->dir);
    cr_assert_eq(loop_new(&b->loop, &e), 0, "%s", e.text);
    b->stop = loop_timer_new(b->loop, stop_loop, b);

    struct engine_options engine = { .key = b->key, .job_uid = "uid", .member = "worker-0", .arena_bytes = 1 << 20, .results_bytes = 1 << 20,
                                     .connect_timeout_ms = 1000, .chunk_bytes = 1 << 16 };
    struct engine_events engine_events = { .on_formed = on_formed, .on_lost = on_lost, .ctx = b };
    struct checkpoint_options checkpoint = { .memory = b->dir, .job_uid = "uid", .member = "worker-0", .rank = 0, .keep_last = 1 };
    struct checkpoint_events checkpoint_events = { .send = drop_message, .broadcast = drop_message, .committed = on_committed,
                                                   .failed = on_failed, .ready = on_ready, .ctx = b };
    struct attach_events events = { .launcher = on_launcher, .report = on_report, .clients = on_clients, .is_member = is_member, .ctx = b };
    struct checkpoint_restore restore = { .found = false, .step = -1 };
    cr_assert_eq(engine_new(b->loop, &engine, &engine_events, &b->engine, &e), 0, "%s", e.text);
    cr_assert_eq(checkpoint_new(b->loop, &checkpoint, &checkpoint_events, &b->checkpoint, &e), 0, "%s", e.text);
    checkpoint_enter(b->checkpoint, FENCE_NOW, 1, &restore);
    struct attach_options options = { .path = b->path, .job = "digits", .engine = b->engine, .checkpoint = b->checkpoint };
    cr_assert_eq(attach_new(b->loop, &options, &events, &b->attach, &e), 0, "%s", e.text);
    attach_session(b->attach, FENCE_NOW, 1, 4, 30);
    return b;
}

static void bench_free(struct bench *b)
{
    struct error e = ERROR_INIT;

    attach_free(b->attach);
    checkpoint_free(b->checkpoint);
    engine_free(b->engine);
    loop_timer_free(b->stop);
    loop_free(b->loop);
    cr_expect_eq(access(b->path, F_OK), -1, "the socket file stays behind");
    cr_expect_eq(fs_remove_tree(b->dir, &e), 0, "%s", e.text);
    free(b);
}

/* ---- a process of the pod ---- */

static int guest_new(const struct bench *b)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", b->path);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0, "%s", strerror(errno));
    return fd;
}

static void put(int fd, unsigned type, const void *bytes, size_t len)
{
    uint8_t header[8] = { (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16), (uint8_t)(len >> 24), (uint8_t)type, (uint8_t)(type >> 8) };

    cr_assert_eq(send(fd, header, sizeof header, MSG_NOSIGNAL), (ssize_t)sizeof header);
    cr_assert_eq(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
}

struct answer { unsigned type; size_t len, fds; bool closed; uint8_t bytes[2048]; };

/* The next message for fd; waits for it. closed: the connection ended instead. */
static struct answer get(struct bench *b, int fd)
{
    struct answer a = { .type = 0 };
    uint8_t header[8];
    union { char space[CMSG_SPACE(sizeof(int) * 8)]; struct cmsghdr align; } control;
    struct iovec iov = { .iov_base = header, .iov_len = sizeof header };
    int64_t until = clock_mono_ms() + PATIENCE_MS;
    ssize_t n;

    for (;;) {
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space };
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        if (n >= 0) {
            for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
                a.fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                int fds[8];
                memcpy(fds, CMSG_DATA(c), a.fds * sizeof(int));
                for (size_t i = 0; i < a.fds; i++)
                    (void)close(fds[i]);
            }
            break;
        }
        cr_assert(clock_mono_ms() < until, "no answer came");
        run_for(b, 2);
    }
    a.closed = n == 0;
    if (a.closed)
        return a;
    cr_assert_eq(n, (ssize_t)sizeof header);
    a.len = header[0] | (size_t)header[1] << 8;
    a.type = header[4];
    cr_assert(a.len < sizeof a.bytes);
    if (a.len > 0)
        cr_assert_eq(recv(fd, a.bytes, a.len, 0), (ssize_t)a.len);
    return a;
}

static int launcher_new(struct bench *b)
{
    struct local_launcher_hello h = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .launcher_pid = 9 };
    int fd = guest_new(b);

    put(fd, LOCAL_LAUNCHER_HELLO, &h, sizeof h);
    settle(b);
    return fd;
}

static int client_new(struct bench *b)
{
    struct local_client_hello h = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .fence = FENCE_NOW, .framework = "numpy" };
    int fd = guest_new(b);

    put(fd, LOCAL_CLIENT_HELLO, &h, sizeof h);
    struct answer a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_CLIENT_READY);
    return fd;
}

/* ---- tests ---- */

Test(attach, what_is_no_hello_of_this_release_is_closed)
{
    struct local_launcher_hello good = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION }, magic = good, version = good;
    struct local_client_hello client = { .magic = 1, .version = LOCAL_VERSION };
    magic.magic++;
    version.version++;
    const struct { const char *name; unsigned type; const void *bytes; size_t len; } rows[] = {
        { "another protocol", LOCAL_LAUNCHER_HELLO, &magic, sizeof magic },
        { "another version", LOCAL_LAUNCHER_HELLO, &version, sizeof version },
        { "a client of another protocol", LOCAL_CLIENT_HELLO, &client, sizeof client },
        { "too short", LOCAL_LAUNCHER_HELLO, &good, sizeof good - 1 },
        { "empty", LOCAL_CLIENT_HELLO, "", 0 },
        { "no hello at all", LOCAL_REPORT, "{}", 2 },
        { "a word of the sidecar", LOCAL_START, &good, sizeof good },
        { "an unknown type", 999, "", 0 },
    };
    struct bench *b = bench_new();

    for (size_t i = 0; i < COUNT(rows); i++) {
        int fd = guest_new(b);
        put(fd, rows[i].type, rows[i].bytes, rows[i].len);
        cr_expect(get(b, fd).closed, "case %s", rows[i].name);
        (void)close(fd);
    }
    cr_expect_str_eq(b->heard, "");
    bench_free(b);
}

Test(attach, the_launcher_is_heard_and_hears)
{
    struct bench *b = bench_new();
    int fd = launcher_new(b);
    struct local_started started = { .fence = FENCE_NOW, .child_pid = 7 };
    struct local_exited exited = { .fence = FENCE_NOW, .wait_status = 3 << 8 };
    struct local_signalled signalled = { .signal_number = 15 };

    attach_start(b->attach, FENCE_NOW, "A=1\0B=2", 8);
    struct answer a = get(b, fd);
    uint64_t fence = FENCE_NOW;
    cr_expect_eq(a.type, LOCAL_START);
    cr_expect_eq(a.len, sizeof fence + 8);
    cr_expect(memcmp(a.bytes, &fence, sizeof fence) == 0 && memcmp(a.bytes + sizeof fence, "A=1\0B=2", 8) == 0);

    put(fd, LOCAL_STARTED, &started, sizeof started);
    put(fd, LOCAL_SIGNALLED, &signalled, sizeof signalled);
    put(fd, LOCAL_EXITED, &exited, sizeof exited);
    settle(b);
    cr_expect_eq(b->exit_status, 3 << 8);

    attach_stop(b->attach, FENCE_NOW, 2000);
    cr_expect_eq(get(b, fd).type, LOCAL_STOP);
    attach_leave(b->attach, -1);
    cr_expect_eq(get(b, fd).type, LOCAL_LEAVE);
    (void)close(fd);
    settle(b);
    cr_expect_str_eq(b->heard, "hello started signalled exited gone");
    attach_start(b->attach, FENCE_NOW, "", 0); /* nobody is there: no harm */
    bench_free(b);
}

Test(attach, a_pod_has_one_launcher)
{
    struct bench *b = bench_new();
    int first = launcher_new(b), second = launcher_new(b);

    struct answer a = get(b, second);
    cr_expect_eq(a.type, LOCAL_REFUSED);
    cr_expect(get(b, second).closed);
    attach_leave(b->attach, 0);
    cr_expect_eq(get(b, first).type, LOCAL_LEAVE);
    (void)close(second);
    (void)close(first);
    settle(b);
    cr_expect_str_eq(b->heard, "hello gone");
    (void)close(launcher_new(b)); /* there is room again */
    bench_free(b);
}

Test(attach, a_client_gets_its_rank_and_shared_memory)
{
    struct bench *b = bench_new();
    struct local_client_hello h = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .fence = FENCE_NOW, .framework = "numpy" };
    struct local_client_ready ready;
    int fd = guest_new(b);

    put(fd, LOCAL_CLIENT_HELLO, &h, sizeof h);
    struct answer a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_CLIENT_READY);
    cr_assert_eq(a.len, sizeof ready);
    memcpy(&ready, a.bytes, sizeof ready);
    cr_expect_eq(a.fds, 3u);
    cr_expect_eq(ready.rank, 1u);
    cr_expect_eq(ready.size, 4u);
    cr_expect_eq(ready.resume_step, 30);
    cr_expect_str_eq(ready.job, "digits");
    cr_expect(ready.shm_bytes > 2 << 20);
    cr_expect_eq(b->clients, 1u);
    cr_expect_str_eq(b->heard, "numpy");
    (void)close(fd);
    settle(b);
    cr_expect_eq(b->clients, 0u);
    bench_free(b);
}

Test(attach, a_client_of_another_round_is_refused_in_words)
{
    struct bench *b = bench_new();
    struct local_client_hello h = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .fence = FENCE(1, 1) };
    int fd = guest_new(b);

    put(fd, LOCAL_CLIENT_HELLO, &h, sizeof h);
    struct answer a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_REFUSED);
    cr_expect_eq(a.bytes[0], LOCAL_CLIENT_HELLO);
    cr_expect_str_eq((const char *)a.bytes + 4, "this process belongs to attempt 1, round 1, the job is at attempt 1, round 2: it has to end");
    (void)close(fd);

    fd = client_new(b); /* and one whose round ends while it is attached */
    attach_session(b->attach, FENCE(1, 3), 1, 4, -1);
    put(fd, LOCAL_RESTORE, "", 0);
    a = get(b, fd);
    cr_expect_eq(a.type, LOCAL_REFUSED);
    cr_expect_eq(a.bytes[0], LOCAL_RESTORE);
    (void)close(fd);
    bench_free(b);
}

Test(attach, a_clients_requests_are_answered)
{
    struct bench *b = bench_new();
    int fd = client_new(b);
    struct local_slots slots = { .image_bytes = 100000 };
    struct local_flush flush = { .timeout_ms = 1000 };
    struct local_staged staged = { .slot = 9, .step = 1, .image_bytes = 10 };
    struct local_flushed flushed;
    struct local_restore_ready restore;

    put(fd, LOCAL_REPORT, "{\"step\":1}", 11); /* with its NUL */
    settle(b);
    cr_expect_str_eq(b->report, "{\"step\":1}");
    put(fd, LOCAL_REPORT, "x", 1);
    struct answer a = get(b, fd);
    cr_expect_eq(a.type, LOCAL_REFUSED);
    cr_expect_str_eq((const char *)a.bytes + 4, "report: no object");

    put(fd, LOCAL_RESTORE, "", 0);
    a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_RESTORE_READY);
    memcpy(&restore, a.bytes, sizeof restore);
    cr_expect_eq(restore.found, 0u);
    cr_expect_eq(a.fds, 0u);

    put(fd, LOCAL_SLOTS, &slots, sizeof slots);
    a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_SLOTS_READY);
    cr_expect_eq(a.fds, 2u);

    put(fd, LOCAL_STAGED, &staged, sizeof staged); /* there is no such slot */
    a = get(b, fd);
    cr_expect_eq(a.type, LOCAL_REFUSED);
    cr_expect_eq(a.bytes[0], LOCAL_STAGED);

    put(fd, LOCAL_FLUSH, &flush, sizeof flush);
    a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_FLUSHED);
    memcpy(&flushed, a.bytes, sizeof flushed);
    cr_expect_eq(flushed.ok, 1u);
    cr_expect_eq(flushed.committed_step, UINT64_MAX, "none: -1");

    attach_committed(b->attach, 40);
    cr_expect_eq(get(b, fd).type, LOCAL_COMMITTED);
    attach_save(b->attach);
    cr_expect_eq(get(b, fd).type, LOCAL_SAVE);
    (void)close(fd);
    bench_free(b);
}

Test(attach, a_message_that_is_not_ones_own_closes_the_connection)
{
    struct bench *b = bench_new();
    struct local_exited exited = { .fence = FENCE_NOW };
    struct local_slots slots = { .image_bytes = 1 };
    int client = client_new(b), launcher = launcher_new(b);

    put(client, LOCAL_EXITED, &exited, sizeof exited);
    cr_expect(get(b, client).closed, "a client speaks for the launcher");
    put(launcher, LOCAL_SLOTS, &slots, sizeof slots);
    cr_expect(get(b, launcher).closed, "the launcher asks for slots");
    client = (close(client), client_new(b));
    put(client, LOCAL_SLOTS, &slots, sizeof slots - 1);
    cr_expect(get(b, client).closed, "a request that is too short");
    (void)close(client);
    (void)close(launcher);
    cr_expect_str_eq(b->heard, "numpy hello gone numpy");
    bench_free(b);
}

Test(attach, the_probe_is_answered)
{
    struct bench *b = bench_new();
    struct local_probed probed;
    int fd = guest_new(b);

    put(fd, LOCAL_PROBE, "", 0);
    struct answer a = get(b, fd);
    cr_assert_eq(a.type, LOCAL_PROBED);
    memcpy(&probed, a.bytes, sizeof probed);
    cr_expect_eq(probed.launcher, 0u);
    cr_expect_eq(probed.member, 1u);
    (void)close(fd);
    bench_free(b);
}
