#include "sidecar/ring/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/resolve.h"
#include "sidecar/ring/secure.h"

#define ATTEMPT_MS 5000 /* connecting and shaking hands once */
#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 500
#define PROVED_BYTES offsetof(struct peer_challenge, proof) /* of the challenge, by the acceptor */

enum link_state {
    LINK_IDLE,             /* waiting for the next attempt, or resolving */
    LINK_CONNECTING,
    LINK_SEND_HELLO, LINK_READ_CHALLENGE, LINK_SEND_PROOF,  /* initiator */
    LINK_READ_HELLO, LINK_SEND_CHALLENGE, LINK_READ_PROOF,  /* acceptor */
    LINK_SECURING,         /* either: TLS */
};

struct link {
    struct loop *loop;
    uint8_t key[CRYPTO_KEY_BYTES];
    char job_uid[PEER_UID_MAX], member[PEER_MEMBER_MAX];
    link_done_fn *done;
    void *ctx;

    enum link_state state;
    int fd;
    struct loop_source *source;
    struct loop_timer *timer;   /* the next attempt, or the end of this one */
    uint8_t bytes[sizeof(struct peer_hello)]; /* the struct that is being sent or read */
    size_t have, need;
    struct peer_hello hello;
    struct peer_challenge challenge;
    uint64_t fence;             /* what this side holds */
    bool tls;
    struct secure *secure;      /* SECURING */

    /* acceptor */
    struct error refusal;       /* set: say why and close instead of going on */

    /* initiator */
    char host[256];
    int32_t port;
    struct resolve *resolve;
    struct addrinfo *addresses, *next_address;
    int64_t deadline_ms, began_ms;
    int64_t retry_ms;
    struct error last;          /* of the attempts so far */
    bool told;                  /* the first failure was logged */
};

static void step(struct link *k);

/* ---- life ---- */

static void drop_socket(struct link *k)
{
    secure_free(TAKE(k->secure));
    loop_remove(k->source);
    k->source = NULL;
    if (k->fd >= 0)
        (void)close(k->fd);
    k->fd = -1;
}

static void drop_addresses(struct link *k)
{
    if (k->addresses != NULL)
        freeaddrinfo(k->addresses);
    k->addresses = k->next_address = NULL;
}

void link_cancel(struct link *k)
{
    if (k == NULL)
        return;
    drop_socket(k);
    drop_addresses(k);
    resolve_cancel(k->resolve);
    loop_timer_free(k->timer);
    crypto_wipe(k->key, sizeof k->key);
    free(k);
}

static void finish(struct link *k, const struct peer_hello *peer, const struct error *why)
{
    struct peer_hello hello = { 0 };
    struct error reason = *why;
    int fd = -1;
    link_done_fn *done = k->done;
    void *ctx = k->ctx;

    if (peer != NULL) {
        hello = *peer;
        loop_remove(k->source);
        k->source = NULL;
        fd = TAKE_FD(k->fd);
    }
    link_cancel(k);
    done(ctx, fd, peer != NULL ? &hello : NULL, &reason);
}

static void copy_text(char *to, size_t size, const char *from)
{
    memset(to, 0, size);
    (void)snprintf(to, size, "%s", from);
}

static struct link *link_new(struct loop *l, const struct link_identity *self, uint64_t fence, link_done_fn *done, void *ctx,
                             loop_timer_fn *on_timer)
{
    struct link *k = xcalloc(1, sizeof *k);

    k->loop = l;
    memcpy(k->key, self->key, sizeof k->key);
    copy_text(k->job_uid, sizeof k->job_uid, self->job_uid);
    copy_text(k->member, sizeof k->member, self->member);
    k->fence = fence;
    k->tls = self->tls;
    k->done = done;
    k->ctx = ctx;
    k->fd = -1;
    k->timer = loop_timer_new(l, on_timer, k);
    return k;
}

/* ---- proofs ---- */

static void prove_acceptor(const struct link *k, uint8_t ret_proof[CRYPTO_MAC_BYTES])
{
    const struct crypto_part parts[] = { { "acceptor", 8 }, { &k->hello, sizeof k->hello }, { &k->challenge, PROVED_BYTES } };

    crypto_hmac(k->key, parts, COUNT(parts), ret_proof);
}

static void prove_initiator(const struct link *k, uint8_t ret_proof[CRYPTO_MAC_BYTES])
{
    const struct crypto_part parts[] = { { "initiator", 9 }, { &k->hello, sizeof k->hello },
                                         { &k->challenge, sizeof k->challenge } };

    crypto_hmac(k->key, parts, COUNT(parts), ret_proof);
}

/* ---- initiator: attempts ---- */

static void retry_later(struct link *k)
{
    int64_t now = clock_mono_ms();
    uint16_t noise = 0;
    struct error ignored = ERROR_INIT;

    (void)!crypto_random(&noise, sizeof noise, &ignored); /* without noise the jitter is nil, no more */
    int64_t wait = k->retry_ms / 2 + k->retry_ms * noise / UINT16_MAX;
    k->retry_ms = k->retry_ms * 2 < RETRY_MAX_MS ? k->retry_ms * 2 : RETRY_MAX_MS;
    k->state = LINK_IDLE;
    loop_timer_at(k->timer, k->deadline_ms - now < wait ? k->deadline_ms : now + wait);
}

static void next_address(struct link *k);

static void attempt_failed(struct link *k, const struct error *why)
{
    k->last = *why;
    drop_socket(k);
    if (!k->told) {
        k->told = true;
        log_info("peer not reached yet, dialling on", KV("peer", k->host), KVI("port", k->port), KV("error", why->text));
    }
    if (clock_mono_ms() < k->deadline_ms && k->next_address != NULL)
        next_address(k);
    else
        retry_later(k);
}

static void on_io(void *ctx, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    step(ctx);
}

static void next_address(struct link *k)
{
    struct addrinfo *a = k->next_address;
    struct error why = ERROR_INIT;
    char text[RESOLVE_TEXT_MAX];
    int64_t now = clock_mono_ms();

    k->next_address = a->ai_next;
    loop_timer_at(k->timer, now + ATTEMPT_MS < k->deadline_ms ? now + ATTEMPT_MS : k->deadline_ms);
    k->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (k->fd >= 0)
        link_tune(k->fd);
    if (k->fd < 0 || (connect(k->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        (void)error_errno(&why, "connect to %s", resolve_text(a->ai_addr, a->ai_addrlen, text));
        attempt_failed(k, &why);
        return;
    }
    k->state = LINK_CONNECTING;
    if (loop_add(k->loop, k->fd, LOOP_WRITE, on_io, k, &k->source, &why) < 0)
        attempt_failed(k, &why);
}

static void on_resolved(void *ctx, struct addrinfo *addresses, const struct error *why)
{
    struct link *k = ctx;

    k->resolve = NULL;
    if (addresses == NULL) {
        attempt_failed(k, why);
        return;
    }
    k->addresses = k->next_address = addresses;
    next_address(k);
}

static void attempt(struct link *k)
{
    struct error why = ERROR_INIT;

    drop_addresses(k);
    if (resolve_literal(k->host, k->port, &k->addresses)) {
        k->next_address = k->addresses;
        next_address(k);
        return;
    }
    loop_timer_at(k->timer, k->deadline_ms);
    if (resolve_start(k->loop, k->host, k->port, on_resolved, k, &k->resolve, &why) < 0)
        attempt_failed(k, &why);
}

static void give_up(struct link *k)
{
    struct error why = k->last;
    int64_t waited = clock_mono_ms() - k->began_ms;

    if (why.kind == ERROR_NONE)
        (void)error_set(&why, ERROR_TIMEOUT, "no answer");
    if (why.kind != ERROR_DENIED && why.kind != ERROR_INVALID)
        why.kind = ERROR_TIMEOUT;
    (void)error_wrap(&why, "cannot reach %s port %d within %lld.%lld s", k->host, k->port, (long long)waited / 1000,
                     (long long)waited % 1000 / 100);
    finish(k, NULL, &why);
}

static void on_dial_timer(void *ctx)
{
    struct link *k = ctx;
    static const char *const waiting_for[] = {
        [LINK_CONNECTING] = "the connection", [LINK_SEND_HELLO] = "room to send", [LINK_READ_CHALLENGE] = "the challenge",
        [LINK_SEND_PROOF] = "room to send", [LINK_SECURING] = "TLS",
    };
    struct error why = ERROR_INIT;

    if (clock_mono_ms() >= k->deadline_ms) {
        if (k->state != LINK_IDLE && k->last.kind == ERROR_NONE)
            (void)error_set(&k->last, ERROR_TIMEOUT, "no answer while waiting for %s", waiting_for[k->state]);
        give_up(k);
    } else if (k->state == LINK_IDLE) {
        attempt(k);
    } else {
        (void)error_set(&why, ERROR_TIMEOUT, "no answer within %d ms while waiting for %s", ATTEMPT_MS, waiting_for[k->state]);
        attempt_failed(k, &why);
    }
}

int link_dial(struct loop *l, const struct link_identity *self, const char *host, int32_t port, enum peer_purpose purpose,
              uint32_t lane, uint64_t fence, int64_t deadline_ms, link_done_fn *done, void *ctx, struct link **ret_link,
              struct error *e)
{
    if (strlen(host) == 0 || strlen(host) >= sizeof ((struct link *)0)->host || port < 1 || port > 65535)
        return error_set(e, ERROR_INVALID, "\"%.64s\" port %d is no address that can be dialled", host, port);

    struct link *k = link_new(l, self, fence, done, ctx, on_dial_timer);
    copy_text(k->host, sizeof k->host, host);
    k->port = port;
    k->began_ms = clock_mono_ms();
    k->deadline_ms = deadline_ms;
    k->retry_ms = RETRY_MIN_MS;
    k->hello = (struct peer_hello){ .magic = PEER_MAGIC, .version = PEER_VERSION, .purpose = (uint16_t)purpose, .lane = lane,
                                    .security = k->tls ? PEER_TLS : PEER_PLAIN,
                                    .fence = fence };
    memcpy(k->hello.job_uid, k->job_uid, sizeof k->hello.job_uid);
    memcpy(k->hello.member, k->member, sizeof k->hello.member);
    if (peer_hello_check(&k->hello, e) < 0) {
        link_cancel(k);
        return -1;
    }
    loop_timer_at(k->timer, k->began_ms);
    *ret_link = k;
    return 0;
}

/* ---- the handshake: one struct after the other, whatever the kernel gives ---- */

static void begin_send(struct link *k, enum link_state state, const void *bytes, size_t len)
{
    k->state = state;
    memcpy(k->bytes, bytes, len);
    k->have = 0;
    k->need = len;
    loop_set(k->source, LOOP_READ | LOOP_WRITE);
}

static void begin_read(struct link *k, enum link_state state, size_t len)
{
    k->state = state;
    k->have = 0;
    k->need = len;
    loop_set(k->source, LOOP_READ);
}

/* 1: the struct is through, 0: later, -1: the connection is gone. */
static int move(struct link *k, bool sending, struct error *e)
{
    while (k->have < k->need) {
        ssize_t n = sending ? send(k->fd, k->bytes + k->have, k->need - k->have, MSG_NOSIGNAL | MSG_DONTWAIT)
                            : recv(k->fd, k->bytes + k->have, k->need - k->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n < 0)
            return error_errno(e, "handshake");
        if (n == 0)
            return error_set(e, ERROR_IO, "the other end closed the connection during the handshake");
        k->have += (size_t)n;
    }
    return 1;
}

/* -1: this attempt failed; k->last.kind ERROR_GONE: for good. */
static int read_challenge(struct link *k, struct error *e)
{
    uint8_t proof[CRYPTO_MAC_BYTES];
    char mine[PEER_FENCE_TEXT_MAX], theirs[PEER_FENCE_TEXT_MAX];
    struct peer_challenge *c = &k->challenge;

    memcpy(c, k->bytes, sizeof *c);
    if (peer_challenge_check(c, e) < 0)
        return -1;
    if (c->magic == PEER_REFUSAL)
        return error_set(e, c->fence == PEER_OTHER_JOB ? ERROR_DENIED : ERROR_INVALID, "%s refused: %s", c->member,
                         c->fence == PEER_OTHER_JOB       ? "it belongs to another job"
                         : c->fence == PEER_OTHER_VERSION ? "it is of another release"
                         : c->fence == PEER_OTHER_SECURITY ? "one side wants TLS and the other does not"
                                                          : "it did not understand the hello");
    prove_acceptor(k, proof);
    if (!crypto_equal(proof, c->proof, sizeof proof))
        return error_set(e, ERROR_DENIED, "\"%s\" answered but does not hold this job's key: compare both key files", c->member);

    enum peer_purpose purpose = (enum peer_purpose)k->hello.purpose;
    if (peer_fence_is_old(purpose, k->fence, c->fence))
        return error_set(e, ERROR_GONE, "\"%s\" is at %s, this side still at %s: start over in the new one", c->member,
                         peer_fence_text(c->fence, theirs), peer_fence_text(k->fence, mine));
    if (purpose == PEER_CONTROL && peer_fence_is_old(purpose, c->fence, k->fence))
        return error_set(e, ERROR_BUSY, "\"%s\" still is at %s, this side at %s", c->member, peer_fence_text(c->fence, theirs),
                         peer_fence_text(k->fence, mine));
    return 0;
}

static int connected(struct link *k, struct error *e)
{
    int code = 0;
    socklen_t len = sizeof code;

    if (getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &code, &len) == 0 && code == 0) {
        link_tune_connected(k->fd);
        return crypto_random(k->hello.nonce, sizeof k->hello.nonce, e);
    }
    errno = code;
    return error_errno(e, "connect");
}

static void answered(struct link *k)
{
    struct peer_hello peer = { .magic = PEER_MAGIC, .version = PEER_VERSION, .purpose = k->hello.purpose, .lane = k->hello.lane,
                               .fence = k->challenge.fence };

    memcpy(peer.member, k->challenge.member, sizeof peer.member);
    memcpy(peer.job_uid, k->job_uid, sizeof peer.job_uid);
    finish(k, &peer, &(struct error)ERROR_INIT);
}

/* Acceptor: what can be said to a hello. */
static void make_challenge(struct link *k)
{
    struct error *why = &k->refusal;
    struct peer_challenge *c = &k->challenge;
    char mine[PEER_FENCE_TEXT_MAX], theirs[PEER_FENCE_TEXT_MAX];
    uint64_t refused = 0;

    *c = (struct peer_challenge){ .magic = PEER_MAGIC, .version = PEER_VERSION, .fence = k->fence };
    memcpy(c->member, k->member, sizeof c->member);
    if (peer_hello_check(&k->hello, why) < 0) {
        refused = k->hello.magic == PEER_MAGIC && k->hello.version != PEER_VERSION ? PEER_OTHER_VERSION : PEER_BAD_HELLO;
    } else if (strcmp(k->hello.job_uid, k->job_uid) != 0) {
        refused = PEER_OTHER_JOB;
        (void)error_set(why, ERROR_DENIED, "\"%s\" belongs to job %s, not to %s", k->hello.member, k->hello.job_uid, k->job_uid);
    } else if ((k->hello.security == PEER_TLS) != k->tls) {
        refused = PEER_OTHER_SECURITY;
        (void)error_set(why, ERROR_DENIED, "\"%s\" %s TLS, this side %s", k->hello.member, k->tls ? "does without" : "wants",
                        k->tls ? "wants it" : "does not");
    } else if (crypto_random(c->nonce, sizeof c->nonce, why) < 0) {
        refused = PEER_BAD_HELLO;
    } else if (peer_fence_is_old((enum peer_purpose)k->hello.purpose, k->hello.fence, k->fence)) {
        (void)error_set(why, ERROR_GONE, "\"%s\" comes with %s, this side is at %s", k->hello.member,
                        peer_fence_text(k->hello.fence, theirs), peer_fence_text(k->fence, mine));
    }
    if (refused != 0) {
        c->magic = PEER_REFUSAL;
        c->fence = refused;
    } else {
        prove_acceptor(k, c->proof);
    }
}

static int begin_securing(struct link *k, struct error *e)
{
    const struct crypto_part parts[] = { { "tls", 3 }, { &k->hello, sizeof k->hello }, { &k->challenge, sizeof k->challenge } };
    uint8_t secret[CRYPTO_MAC_BYTES];

    crypto_hmac(k->key, parts, COUNT(parts), secret);
    int result = secure_new(k->fd, k->port == 0, secret, &k->secure, e);
    crypto_wipe(secret, sizeof secret);
    k->state = LINK_SECURING;
    loop_set(k->source, LOOP_READ | LOOP_WRITE);
    return result;
}

/* -1: failed. 1: the link is gone. 2: later. */
static int go_on_securing(struct link *k, struct error *e)
{
    bool wants_write;
    int fd, result = secure_step(k->secure, &wants_write, e);

    if (result < 0)
        return -1;
    loop_set(k->source, LOOP_READ | (wants_write ? LOOP_WRITE : 0));
    if (result == 0)
        return 2;
    loop_remove(TAKE(k->source)); /* another thread may watch it from now on */
    if (secure_take(k->secure, &fd, e) < 0)
        return -1;
    k->secure = NULL;
    k->fd = fd;
    if (k->port != 0)
        answered(k);
    else
        finish(k, &k->hello, &(struct error)ERROR_INIT);
    return 1;
}

/* A struct was sent or read whole (or the connection stands): what comes next. -1: failed. 1: the link is gone. */
static int advance(struct link *k, struct error *e)
{
    uint8_t proof[CRYPTO_MAC_BYTES];

    switch (k->state) {
    case LINK_CONNECTING:
        if (connected(k, e) < 0)
            return -1;
        begin_send(k, LINK_SEND_HELLO, &k->hello, sizeof k->hello);
        return 0;
    case LINK_SEND_HELLO:
        begin_read(k, LINK_READ_CHALLENGE, sizeof k->challenge);
        return 0;
    case LINK_READ_CHALLENGE:
        if (read_challenge(k, e) < 0)
            return -1;
        prove_initiator(k, proof);
        begin_send(k, LINK_SEND_PROOF, proof, sizeof proof);
        return 0;
    case LINK_SEND_PROOF:
        if (k->tls)
            return begin_securing(k, e);
        answered(k);
        return 1;
    case LINK_READ_HELLO:
        memcpy(&k->hello, k->bytes, sizeof k->hello);
        make_challenge(k);
        begin_send(k, LINK_SEND_CHALLENGE, &k->challenge, sizeof k->challenge);
        return 0;
    case LINK_SEND_CHALLENGE:
        if (k->refusal.kind != ERROR_NONE) {
            *e = k->refusal;
            return -1;
        }
        begin_read(k, LINK_READ_PROOF, sizeof(struct peer_proof));
        return 0;
    case LINK_READ_PROOF:
        prove_initiator(k, proof);
        if (!crypto_equal(proof, k->bytes, sizeof proof))
            return error_set(e, ERROR_DENIED, "\"%s\" does not hold this job's key: compare both key files", k->hello.member);
        if (k->tls)
            return begin_securing(k, e);
        finish(k, &k->hello, &(struct error)ERROR_INIT);
        return 1;
    case LINK_SECURING:
        return go_on_securing(k, e);
    case LINK_IDLE:
        break;
    }
    return error_set(e, ERROR_BUG, "a link that is idle has no descriptor");
}

static void step(struct link *k)
{
    bool initiator = k->port != 0;
    struct error why = ERROR_INIT;

    for (;;) {
        int moved = 1;
        if (k->state != LINK_CONNECTING && k->state != LINK_SECURING)
            moved = move(k, k->state == LINK_SEND_HELLO || k->state == LINK_SEND_PROOF || k->state == LINK_SEND_CHALLENGE, &why);
        if (moved == 0)
            return;
        int advanced = moved > 0 ? advance(k, &why) : -1;
        if (advanced > 0)
            return; /* the link may be gone */
        if (advanced < 0)
            break;
    }
    if (initiator && why.kind != ERROR_GONE)
        attempt_failed(k, &why);
    else
        finish(k, NULL, &why);
}

static void on_accept_timer(void *ctx)
{
    struct link *k = ctx;
    struct error why = ERROR_INIT;

    (void)error_set(&why, ERROR_TIMEOUT, "the other end did not complete the handshake in time");
    finish(k, NULL, &why);
}

struct link *link_accept(struct loop *l, const struct link_identity *self, int fd, uint64_t fence_now, int64_t timeout_ms,
                         link_done_fn *done, void *ctx)
{
    struct link *k = link_new(l, self, fence_now, done, ctx, on_accept_timer);
    struct error why = ERROR_INIT;

    k->fd = fd;
    link_tune(fd);
    link_tune_connected(fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        (void)error_errno(&why, "make a connection non-blocking");
        finish(k, NULL, &why);
        return NULL;
    }
    if (loop_add(l, fd, LOOP_READ, on_io, k, &k->source, &why) < 0) {
        finish(k, NULL, &why);
        return NULL;
    }
    loop_timer_at(k->timer, clock_mono_ms() + timeout_ms);
    begin_read(k, LINK_READ_HELLO, sizeof k->hello);
    return k;
}
