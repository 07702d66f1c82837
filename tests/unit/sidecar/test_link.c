#include <criterion/criterion.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/link.h"

#define PATIENCE_MS 60000 /* for what comes soon on an idle machine */

static const uint8_t KEY[CRYPTO_KEY_BYTES] = "the key of this job, 32 bytes..", OTHER_KEY[CRYPTO_KEY_BYTES] = "the key of another job, 32 byte";

/* One end's outcome. */
struct outcome { int fd; bool done; struct peer_hello peer; struct error why; struct ends *ends; };
struct ends {
    struct loop *loop;
    int listen_fd;
    int32_t port;
    struct loop_source *source;
    struct link_identity acceptor;
    uint64_t acceptor_fence;
    int64_t accept_timeout_ms;
    struct outcome dialled, accepted;
    int accepts_wanted;
};

static void stop_when_both(struct ends *x)
{
    if (x->dialled.done && (x->accepted.done || x->accepts_wanted == 0))
        loop_stop(x->loop);
}

static void on_done(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    struct outcome *o = ctx;

    if (o == &o->ends->accepted && o->done && o->fd < 0 && fd < 0)
        return; /* one of the retries */
    o->done = true;
    o->fd = fd;
    o->why = *why;
    if (peer != NULL)
        o->peer = *peer;
    stop_when_both(o->ends);
}

static void on_connection(void *ctx, int listen_fd, unsigned events)
{
    struct ends *x = ctx;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC); /* blocking: link_accept sees to it */

    (void)events;
    if (fd >= 0)
        (void)link_accept(x->loop, &x->acceptor, fd, x->acceptor_fence, x->accept_timeout_ms, on_done, &x->accepted);
}

static int32_t port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;

    cr_assert(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port : ((struct sockaddr_in *)&address)->sin_port);
}

static void set_up(struct ends *x, const char *host)
{
    struct error e = ERROR_INIT;

    log_setup("test", NULL, LOG_ERROR, false);
    memset(x, 0, sizeof *x);
    x->acceptor = (struct link_identity){ .key = KEY, .job_uid = "uid-1", .member = "chief-0" };
    x->acceptor_fence = FENCE(1, 1);
    x->accept_timeout_ms = PATIENCE_MS;
    x->dialled = x->accepted = (struct outcome){ .fd = -1, .ends = x };
    x->accepts_wanted = 1;
    cr_assert(loop_new(&x->loop, &e) == 0, "%s", e.text);
    cr_assert(link_listen(host, 0, &x->listen_fd, &e) == 0, "%s", e.text);
    x->port = port_of(x->listen_fd);
    cr_assert(loop_add(x->loop, x->listen_fd, LOOP_READ, on_connection, x, &x->source, &e) == 0, "%s", e.text);
}

static void dial(struct ends *x, const char *host, struct link_identity self, enum peer_purpose purpose, uint64_t fence, int64_t patience_ms)
{
    struct error e = ERROR_INIT;
    struct link *k;

    cr_assert(link_dial(x->loop, &self, host, x->port, purpose, 3, fence, clock_mono_ms() + patience_ms, on_done, &x->dialled, &k, &e) == 0,
              "%s", e.text);
    cr_assert(loop_run(x->loop, &e) == 0, "%s", e.text);
}

static void tear_down(struct ends *x)
{
    if (x->dialled.fd >= 0)
        (void)close(x->dialled.fd);
    if (x->accepted.fd >= 0)
        (void)close(x->accepted.fd);
    loop_remove(x->source);
    (void)close(x->listen_fd);
    loop_free(x->loop);
}

static bool is_unpaced(int fd)
{
    char name[16] = "";
    socklen_t len = sizeof name;

    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0 && strncmp(name, "reno", sizeof name) == 0;
}

static struct link_identity worker(void)
{
    return (struct link_identity){ .key = KEY, .job_uid = "uid-1", .member = "worker-0" };
}

static const struct { const char *name, *listen, *dial; } HOSTS[] = {
    { "IPv4", "127.0.0.1", "127.0.0.1" },
    { "IPv6", "::1", "::1" },
    { "IPv6 in brackets", "[::1]", "[::1]" },
    { "dual stack, IPv4", NULL, "127.0.0.9" },
    { "a name", "127.0.0.1", "localhost" },
};

static bool has_ipv6(void)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
    auto_close int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return fd >= 0 && bind(fd, (struct sockaddr *)&six, sizeof six) == 0;
}

Test(link, both_ends_learn_who_the_other_is, .timeout = 300)
{
    for (size_t i = 0; i < COUNT(HOSTS); i++) {
        struct ends x;
        if (strchr(HOSTS[i].dial, ':') != NULL && !has_ipv6())
            continue;
        set_up(&x, HOSTS[i].listen);
        dial(&x, HOSTS[i].dial, worker(), PEER_DATA, FENCE(1, 2), PATIENCE_MS);
        cr_expect(x.dialled.fd >= 0 && x.accepted.fd >= 0, "case %s: %s / %s", HOSTS[i].name, x.dialled.why.text, x.accepted.why.text);
        cr_expect_str_eq(x.dialled.peer.member, "chief-0");
        cr_expect(x.dialled.peer.fence == FENCE(1, 1));
        cr_expect_str_eq(x.accepted.peer.member, "worker-0");
        cr_expect(x.accepted.peer.fence == FENCE(1, 2) && x.accepted.peer.purpose == PEER_DATA && x.accepted.peer.lane == 3);
        /* Nothing but the handshake was read: what follows it is there. */
        char text[8] = "";
        cr_expect(write(x.dialled.fd, "hello", 6) == 6);
        (void)poll(&(struct pollfd){ .fd = x.accepted.fd, .events = POLLIN }, 1, PATIENCE_MS);
        cr_expect(recv(x.accepted.fd, text, sizeof text, MSG_DONTWAIT) == 6 && strcmp(text, "hello") == 0, "case %s", HOSTS[i].name);
        tear_down(&x);
    }
}

Test(link, nothing_paces_between_two_processes_of_one_machine, .timeout = 10)
{
    struct ends x;

    set_up(&x, "127.0.0.1");
    dial(&x, "127.0.0.1", worker(), PEER_DATA, FENCE(1, 1), 10000);
    cr_assert(x.dialled.fd >= 0 && x.accepted.fd >= 0, "%s / %s", x.dialled.why.text, x.accepted.why.text);
    cr_expect(is_unpaced(x.dialled.fd) && is_unpaced(x.accepted.fd));
    tear_down(&x);
}

static const struct {
    const char *name;
    const uint8_t *key;
    const char *job_uid;
    enum peer_purpose purpose;
    uint64_t fence, acceptor_fence;
    enum error_kind kind;
    const char *says, *acceptor_says;
} REFUSED[] = {
    { "wrong key", OTHER_KEY, "uid-1", PEER_DATA, FENCE(1, 1), FENCE(1, 1), ERROR_DENIED, "does not hold this job's key", NULL },
    { "other job", KEY, "uid-2", PEER_DATA, FENCE(1, 1), FENCE(1, 1), ERROR_DENIED, "another job", "belongs to job uid-2, not to uid-1" },
    { "old round", KEY, "uid-1", PEER_DATA, FENCE(1, 1), FENCE(1, 2), ERROR_GONE, "attempt 1, round 2", "attempt 1, round 1" },
    { "old attempt", KEY, "uid-1", PEER_CONTROL, FENCE(1, 9), FENCE(2, 0), ERROR_GONE, "attempt 2, round 0", "attempt 1, round 9" },
};

Test(link, strangers_and_the_late_are_refused_with_a_reason, .timeout = 300)
{
    for (size_t i = 0; i < COUNT(REFUSED); i++) {
        struct ends x;
        struct link_identity self = { .key = REFUSED[i].key, .job_uid = REFUSED[i].job_uid, .member = "worker-0" };
        /* What may be a mistake of the moment is dialled until the deadline, an old fence once. */
        int64_t patience_ms = REFUSED[i].kind == ERROR_GONE ? PATIENCE_MS : 300, began = clock_mono_ms();
        for (;; patience_ms *= 4) {
            set_up(&x, "127.0.0.1");
            x.acceptor_fence = REFUSED[i].acceptor_fence;
            dial(&x, "127.0.0.1", self, REFUSED[i].purpose, REFUSED[i].fence, patience_ms);
            if (x.dialled.why.kind != ERROR_TIMEOUT || patience_ms >= PATIENCE_MS)
                break;
            tear_down(&x); /* not one handshake in this time: the machine is busy */
        }
        cr_expect(x.dialled.fd < 0 && x.accepted.fd < 0 && x.dialled.why.kind == REFUSED[i].kind, "case %s: %s", REFUSED[i].name,
                  x.dialled.why.text);
        cr_expect(strstr(x.dialled.why.text, REFUSED[i].says) != NULL, "case %s: %s", REFUSED[i].name, x.dialled.why.text);
        cr_expect(REFUSED[i].acceptor_says == NULL || strstr(x.accepted.why.text, REFUSED[i].acceptor_says) != NULL, "case %s: %s",
                  REFUSED[i].name, x.accepted.why.text);
        if (REFUSED[i].kind == ERROR_GONE)
            cr_expect(clock_mono_ms() - began < PATIENCE_MS, "case %s: an old fence was dialled again", REFUSED[i].name);
        tear_down(&x);
    }
}

Test(link, a_restarted_sidecar_may_join_without_knowing_the_round, .timeout = 120)
{
    struct ends x;

    set_up(&x, "127.0.0.1");
    x.acceptor_fence = FENCE(1, 5);
    dial(&x, "127.0.0.1", worker(), PEER_CONTROL, FENCE(1, 0), PATIENCE_MS);
    cr_expect(x.dialled.fd >= 0 && x.dialled.peer.fence == FENCE(1, 5), "%s", x.dialled.why.text);
    tear_down(&x);
}

Test(link, nobody_there_ends_at_the_deadline, .timeout = 120)
{
    struct ends x;

    set_up(&x, "127.0.0.1");
    loop_remove(x.source);
    x.source = NULL;
    (void)close(x.listen_fd);
    x.listen_fd = -1;
    x.accepts_wanted = 0;
    int64_t began = clock_mono_ms();
    dial(&x, "127.0.0.1", worker(), PEER_DATA, FENCE(1, 1), 300);
    int64_t took = clock_mono_ms() - began;
    cr_expect(x.dialled.why.kind == ERROR_TIMEOUT && strstr(x.dialled.why.text, "Connection refused") != NULL, "%s", x.dialled.why.text);
    cr_expect(took >= 290, "%lld ms", (long long)took);
    loop_free(x.loop);
}

static void start_listening(void *ctx)
{
    struct ends *x = ctx;
    struct error e = ERROR_INIT;

    cr_assert(link_listen("127.0.0.1", x->port, &x->listen_fd, &e) == 0, "%s", e.text);
    cr_assert(loop_add(x->loop, x->listen_fd, LOOP_READ, on_connection, x, &x->source, &e) == 0);
}

Test(link, it_dials_until_the_other_end_comes_up, .timeout = 120)
{
    struct ends x;

    set_up(&x, "127.0.0.1");
    loop_remove(x.source);
    (void)close(x.listen_fd);
    struct loop_timer *later = loop_timer_new(x.loop, start_listening, &x);
    loop_timer_at(later, clock_mono_ms() + 250);
    dial(&x, "127.0.0.1", worker(), PEER_DATA, FENCE(1, 1), PATIENCE_MS);
    cr_expect(x.dialled.fd >= 0 && x.accepted.fd >= 0, "%s", x.dialled.why.text);
    loop_timer_free(later);
    tear_down(&x);
}

/* Sends bytes to an acceptor and waits for its verdict. */
static void talk(struct ends *x, const void *bytes, size_t len)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)x->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct error e = ERROR_INIT;
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    cr_assert(write(fd, bytes, len) == (ssize_t)len);
    x->dialled.done = true;
    cr_assert(loop_run(x->loop, &e) == 0);
}

Test(link, an_acceptor_is_not_impressed_by_garbage_or_silence, .timeout = 120)
{
    static const struct { const char *name; size_t len; int64_t timeout_ms; const char *says; } rows[] = {
        { "an HTTP request", 200, PATIENCE_MS, "does not speak" }, { "half a hello", 100, 100, "in time" }, { "nothing", 0, 100, "in time" },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char bytes[200] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        struct ends x;
        set_up(&x, "127.0.0.1");
        x.accept_timeout_ms = rows[i].timeout_ms;
        talk(&x, bytes, rows[i].len);
        cr_expect(x.accepted.done && x.accepted.fd < 0 && strstr(x.accepted.why.text, rows[i].says) != NULL, "case %s: %s", rows[i].name,
                  x.accepted.why.text);
        tear_down(&x);
    }
}

/* Everything right but the proof: recorded hellos are worth nothing. */
Test(link, a_hello_without_the_key_gets_no_further_than_the_challenge, .timeout = 120)
{
    struct { struct peer_hello hello; struct peer_proof proof; } bytes;
    struct ends x;

    memset(&bytes, 0, sizeof bytes);
    bytes.hello = (struct peer_hello){ .magic = PEER_MAGIC, .version = PEER_VERSION, .purpose = PEER_DATA, .fence = FENCE(1, 1),
                                       .job_uid = "uid-1", .member = "worker-0" };
    set_up(&x, "127.0.0.1");
    talk(&x, &bytes, sizeof bytes);
    cr_expect(x.accepted.done && x.accepted.fd < 0 && x.accepted.why.kind == ERROR_DENIED, "%s", x.accepted.why.text);
    tear_down(&x);
}

static void on_late(void *ctx)
{
    loop_stop(ctx);
}

Test(link, a_cancelled_link_never_calls_back, .timeout = 120)
{
    struct ends x;
    struct link *k, *named;
    struct error e = ERROR_INIT;
    struct link_identity self = worker();

    set_up(&x, "127.0.0.1");
    cr_assert(link_dial(x.loop, &self, "127.0.0.1", x.port, PEER_DATA, 0, 1, clock_mono_ms() + 5000, on_done, &x.dialled, &k, &e) == 0);
    cr_assert(link_dial(x.loop, &self, "localhost", x.port, PEER_DATA, 0, 1, clock_mono_ms() + 5000, on_done, &x.dialled, &named, &e) == 0);
    link_cancel(k);
    struct loop_timer *end = loop_timer_new(x.loop, on_late, x.loop);
    loop_timer_at(end, clock_mono_ms() + 1); /* the look-up has hardly begun */
    cr_assert(loop_run(x.loop, &e) == 0);
    if (!x.dialled.done)
        link_cancel(named);
    loop_timer_at(end, clock_mono_ms() + 100);
    cr_assert(loop_run(x.loop, &e) == 0);
    cr_expect(!x.dialled.done || x.dialled.fd >= 0);
    loop_timer_free(end);
    tear_down(&x);
}

Test(link, impossible_addresses_are_refused_at_once)
{
    static const struct { const char *name, *host; int32_t port; } rows[] = { { "no host", "", 1 }, { "port 0", "h", 0 }, { "port", "h", 65536 } };
    struct ends x;
    struct link_identity self = worker();

    set_up(&x, "127.0.0.1");
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        struct link *k;
        cr_expect(link_dial(x.loop, &self, rows[i].host, rows[i].port, PEER_DATA, 0, 1, 0, on_done, &x.dialled, &k, &e) == -1 &&
                      e.kind == ERROR_INVALID, "case %s", rows[i].name);
    }
    tear_down(&x);
}

Test(listen, a_port_in_use_says_which_and_what_to_do)
{
    struct error e = ERROR_INIT;
    int first, second;
    char want[32];

    cr_assert(link_listen("127.0.0.1", 0, &first, &e) == 0, "%s", e.text);
    (void)snprintf(want, sizeof want, "127.0.0.1:%d", port_of(first));
    cr_expect(link_listen("127.0.0.1", port_of(first), &second, &e) == -1);
    cr_expect(e.kind == ERROR_CONFLICT && strstr(e.text, want) != NULL && strstr(e.text, "in use") != NULL &&
                  strstr(e.text, "choose another port") != NULL, "%s", e.text);
    cr_expect(link_listen("192.0.2.1", 0, &second, &e) == -1 && strstr(e.text, "does not have the address") != NULL, "%s", e.text);
    cr_expect(link_listen("127.0.0.1", 70000, &second, &e) == -1 && e.kind == ERROR_INVALID);
    (void)close(first);
}

Test(listen, a_name_that_dns_does_not_know_yet_is_no_reason_to_wait)
{
    struct error e = ERROR_INIT;
    int fd;

    cr_assert(link_listen("job-worker-0.job.default.svc.invalid", 0, &fd, &e) == 0, "%s", e.text);
    cr_expect(port_of(fd) > 0);
    (void)close(fd);
}
