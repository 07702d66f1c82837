#include "sidecar/ring/secure.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"

#define IDENTITY "ringmaster"
#define BUFFER_BYTES (64u << 10)
#define ROUNDS_PER_EVENT 8 /* of one connection, before the others have their turn */

static const unsigned char CIPHER[] = { 0x13, 0x01 }; /* TLS_AES_128_GCM_SHA256, which the kernel knows too */

struct secure {
    SSL_CTX *context;
    SSL *ssl;
    int fd;
    bool is_server;
    uint8_t secret[CRYPTO_MAC_BYTES];
};

/* ---- the handshake ---- */

static int fail(struct error *e, enum error_kind kind, const char *what)
{
    char text[160] = "the connection was closed";
    unsigned long code = ERR_get_error();

    if (code != 0)
        ERR_error_string_n(code, text, sizeof text);
    else if (errno != 0)
        (void)strerror_r(errno, text, sizeof text);
    ERR_clear_error();
    return error_set(e, kind, "%s: %s", what, text);
}

static SSL_SESSION *session_of(SSL *ssl)
{
    const struct secure *s = SSL_get_app_data(ssl);
    SSL_SESSION *session = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, CIPHER);

    if (session == NULL || cipher == NULL || SSL_SESSION_set1_master_key(session, s->secret, sizeof s->secret) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 || SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        return NULL;
    }
    return session;
}

static int offer(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_len, SSL_SESSION **ret_session)
{
    (void)md; /* the cipher's hash is the only one on offer */
    *ret_session = session_of(ssl);
    *ret_id = (const unsigned char *)IDENTITY;
    *ret_len = strlen(IDENTITY);
    return *ret_session != NULL;
}

static int find(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **ret_session)
{
    bool known = len == strlen(IDENTITY) && memcmp(id, IDENTITY, len) == 0;

    *ret_session = known ? session_of(ssl) : NULL;
    return 1; /* without a session the handshake fails: there is no certificate */
}

static bool prepare(struct secure *s)
{
    s->context = SSL_CTX_new(s->is_server ? TLS_server_method() : TLS_client_method());
    if (s->context == NULL || SSL_CTX_set_min_proto_version(s->context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(s->context, "TLS_AES_128_GCM_SHA256") != 1)
        return false;
    /* Nothing comes after the handshake but data: the kernel's TLS hands on nothing else. */
    (void)SSL_CTX_set_num_tickets(s->context, 0);
    (void)SSL_CTX_set_options(s->context, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(s->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    (void)SSL_CTX_set_session_cache_mode(s->context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_psk_use_session_callback(s->context, offer);
    SSL_CTX_set_psk_find_session_callback(s->context, find);
    s->ssl = SSL_new(s->context);
    if (s->ssl == NULL || SSL_set_app_data(s->ssl, s) != 1 || SSL_set_fd(s->ssl, s->fd) != 1)
        return false;
    if (s->is_server)
        SSL_set_accept_state(s->ssl);
    else
        SSL_set_connect_state(s->ssl);
    return true;
}

int secure_new(int fd, bool is_server, const uint8_t secret[CRYPTO_MAC_BYTES], struct secure **ret, struct error *e)
{
    struct secure *s = xcalloc(1, sizeof *s);

    *s = (struct secure){ .fd = fd, .is_server = is_server };
    memcpy(s->secret, secret, sizeof s->secret);
    errno = 0;
    if (!prepare(s)) {
        secure_free(s);
        return fail(e, ERROR_BUG, "TLS cannot be used");
    }
    *ret = s;
    return 0;
}

void secure_free(struct secure *s)
{
    if (s == NULL)
        return;
    SSL_free(s->ssl);
    SSL_CTX_free(s->context);
    crypto_wipe(s->secret, sizeof s->secret);
    free(s);
}

int secure_step(struct secure *s, bool *ret_wants_write, struct error *e)
{
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(s->ssl), why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, result);

    *ret_wants_write = why == SSL_ERROR_WANT_WRITE;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return 0;
    if (result != 1)
        return fail(e, why == SSL_ERROR_SSL ? ERROR_DENIED : ERROR_IO, "TLS handshake");
    if (!SSL_session_reused(s->ssl)) /* "resumed" is OpenSSL's word for a session by a key that both knew */
        return error_set(e, ERROR_DENIED, "TLS handshake: the other end did not use the connection's key");
    return 1;
}

/* ---- in user space: a thread between the connection and a socket pair ---- */

struct half { uint8_t bytes[BUFFER_BYTES]; size_t at, len; bool over; };

struct relay {
    struct secure *secure;
    int tls_fd, pair_fd;
    struct loop_source *tls_source, *pair_source;
    struct half out, in;    /* to the peer, from the peer */
};

static struct {
    pthread_once_t once;
    struct loop *loop;      /* NULL: it could not be started */
} relays = { .once = PTHREAD_ONCE_INIT };

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* > 0: bytes; 0: not now; -1: over. */
static int tls_result(const struct relay *r, int n)
{
    if (n > 0)
        return n;
    int why = SSL_get_error(r->secure->ssl, n);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static bool fill(struct half *h, int n)
{
    if (n < 0)
        h->over = true;
    h->at = 0;
    h->len = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bool drain(struct half *h, int n)
{
    if (n < 0) {
        h->over = true;
        h->len = 0;
    } else {
        h->at += (size_t)n;
        h->len -= (size_t)n;
    }
    return n > 0;
}

static int pair_result(ssize_t n)
{
    return n > 0 ? (int)n : n < 0 && would_block() ? 0 : -1;
}

/* One step of each direction; false: nothing moved. */
static bool move(struct relay *r)
{
    bool moved = false;

    if (r->out.len == 0 && !r->out.over)
        moved |= fill(&r->out, pair_result(recv(r->pair_fd, r->out.bytes, BUFFER_BYTES, MSG_DONTWAIT)));
    if (r->out.len > 0)
        moved |= drain(&r->out, tls_result(r, SSL_write(r->secure->ssl, r->out.bytes + r->out.at, (int)r->out.len)));
    if (r->in.len == 0 && !r->in.over)
        moved |= fill(&r->in, tls_result(r, SSL_read(r->secure->ssl, r->in.bytes, (int)BUFFER_BYTES)));
    if (r->in.len > 0)
        moved |= drain(&r->in, pair_result(send(r->pair_fd, r->in.bytes + r->in.at, r->in.len, MSG_DONTWAIT | MSG_NOSIGNAL)));
    return moved;
}

static void end(struct relay *r)
{
    loop_remove(r->tls_source);
    loop_remove(r->pair_source);
    secure_free(r->secure);
    (void)close(r->tls_fd);
    (void)close(r->pair_fd);
    free(r);
}

/* Either end may be the one that closes; neither keeps the other half open. */
static bool is_over(const struct relay *r)
{
    return (r->in.over && r->in.len == 0) || (r->out.over && r->out.len == 0);
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct relay *r = ctx;
    int rounds = 0;

    (void)fd;
    (void)events;
    while (rounds++ < ROUNDS_PER_EVENT && move(r))
        continue;
    if (is_over(r)) {
        end(r);
        return;
    }
    /* What OpenSSL has decrypted and not given yet is not seen by epoll: as long as there is some the pair is asked to be writable. */
    bool more = SSL_has_pending(r->secure->ssl) != 0;
    loop_set(r->tls_source, (r->in.len == 0 ? LOOP_READ : 0) | (r->out.len > 0 ? LOOP_WRITE : 0));
    loop_set(r->pair_source, (r->out.len == 0 ? LOOP_READ : 0) | (r->in.len > 0 || more ? LOOP_WRITE : 0));
}

static void begin(void *ctx)
{
    struct relay *r = ctx;
    struct error e = ERROR_INIT;

    if (loop_add(relays.loop, r->tls_fd, LOOP_READ, on_io, r, &r->tls_source, &e) < 0 ||
        loop_add(relays.loop, r->pair_fd, LOOP_READ, on_io, r, &r->pair_source, &e) < 0) {
        log_warn_from("a connection cannot be encrypted", &e);
        end(r);
        return;
    }
    on_io(r, r->tls_fd, LOOP_READ); /* what came with the end of the handshake */
}

static void *run(void *ctx)
{
    struct error e = ERROR_INIT;

    (void)ctx;
    if (loop_run(relays.loop, &e) < 0) {
        log_error_from("the thread that encrypts ended", &e);
        abort(); /* connections would hang */
    }
    return NULL;
}

/* For the life of the process. */
static void start_thread(void)
{
    struct error e = ERROR_INIT;
    sigset_t all, before;
    pthread_t thread;

    if (loop_new(&relays.loop, &e) < 0)
        return;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&thread, NULL, run, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) {
        (void)pthread_detach(thread);
        return;
    }
    loop_free(relays.loop);
    relays.loop = NULL;
}

/* ---- afterwards ---- */

static bool is_in_kernel(const struct secure *s)
{
    return BIO_get_ktls_send(SSL_get_wbio(s->ssl)) && BIO_get_ktls_recv(SSL_get_rbio(s->ssl)) && !SSL_has_pending(s->ssl);
}

int secure_take(struct secure *s, int *ret_fd, struct error *e)
{
    int ends[2];

    if (is_in_kernel(s)) {
        *ret_fd = s->fd; /* the BIO does not close it */
        secure_free(s);
        return 0;
    }
    (void)pthread_once(&relays.once, start_thread);
    if (relays.loop == NULL)
        return error_set(e, ERROR_IO, "the thread that encrypts could not be started");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
        return error_errno(e, "make a socket pair");
    struct relay *r = xcalloc(1, sizeof *r);
    r->secure = s;
    r->tls_fd = s->fd;
    r->pair_fd = ends[1];
    loop_post(relays.loop, begin, r);
    *ret_fd = ends[0];
    return 0;
}
