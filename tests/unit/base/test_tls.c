/* The client's end against OpenSSL's own server, over a socket pair, in one thread. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/tls.h"

#define HOUR_MS 3600000ll
#define TURNS 1000

struct pair { int fds[2]; SSL_CTX *context; SSL *server; struct tls *client; };

static struct certificate authority(void)
{
    struct certificate c = { .pem = NULL };
    struct error e = ERROR_INIT;

    cr_assert_eq(certificate_make_authority("test", NULL, clock_wall_ms(), 100 * HOUR_MS, &c, &e), 0, "%s", e.text);
    return c;
}

static struct certificate serving(const struct certificate *ca, const char *host, int64_t now_ms)
{
    struct certificate c = { .pem = NULL };
    struct error e = ERROR_INIT;

    cr_assert_eq(certificate_issue(ca, host, now_ms, HOUR_MS, &c, &e), 0, "%s", e.text);
    return c;
}

static struct pair pair(const struct certificate *shown, const char *trusted, const char *host)
{
    struct pair p = { .context = SSL_CTX_new(TLS_server_method()) };
    struct error e = ERROR_INIT;

    (void)signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p.fds), 0);
    cr_assert_eq(tls_server_use(p.context, shown, &e), 0, "%s", e.text);
    p.server = SSL_new(p.context);
    (void)SSL_set_fd(p.server, p.fds[1]);
    cr_assert_eq(tls_client_new(p.fds[0], host, trusted, &p.client, &e), 0, "%s", e.text);
    return p;
}

static int shake(struct pair *p, struct error *e)
{
    bool wants_write;
    int result = 0;

    for (int i = 0; i < TURNS && (result == 0 || (result == 1 && !SSL_is_init_finished(p->server))); i++) {
        result = result == 0 ? tls_handshake(p->client, &wants_write, e) : result;
        (void)SSL_accept(p->server);
    }
    return result;
}

static void end(struct pair *p)
{
    tls_free(p->client);
    SSL_free(p->server);
    SSL_CTX_free(p->context);
    (void)close(p->fds[0]);
    (void)close(p->fds[1]);
}

Test(tls, bytes_pass_both_ways_and_the_end_is_told)
{
    struct certificate ca = authority(), c = serving(&ca, "operator.ns.svc", clock_wall_ms());
    struct pair p = pair(&c, ca.pem, "operator.ns.svc");
    struct error e = ERROR_INIT;
    static char big[4 << 20], back[sizeof big];
    size_t sent = 0, got = 0;

    cr_assert_eq(shake(&p, &e), 1, "%s", e.text);
    cr_expect_str_eq(SSL_get_version(p.server), "TLSv1.3");
    cr_expect_eq(tls_receive(p.client, back, sizeof back), -1);
    cr_expect_eq(errno, EAGAIN);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 31);
    while (got < sizeof big) { /* more than the socket holds: later, and then the rest */
        ssize_t n = sent < sizeof big ? tls_send(p.client, big + sent, sizeof big - sent) : 0;
        cr_assert(n >= 0 || errno == EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        int m = SSL_read(p.server, back + got, (int)(sizeof back - got));
        got += m > 0 ? (size_t)m : 0;
    }
    cr_expect(memcmp(big, back, sizeof big) == 0);
    cr_expect_eq(SSL_write(p.server, "down", 4), 4);
    cr_expect_eq(tls_receive(p.client, back, sizeof back), 4);
    (void)SSL_shutdown(p.server);
    cr_expect_eq(tls_receive(p.client, back, sizeof back), 0);
    end(&p);
    certificate_release(&c);
    certificate_release(&ca);
}

Test(tls, a_server_that_cannot_be_trusted_is_told_why)
{
    static const struct { const char *name, *issued, *asked, *words; bool other_authority; int64_t at_ms; } ROWS[] = {
        { "right", "a.svc", "a.svc", NULL, false, 0 },
        { "right by address", "10.0.0.1", "10.0.0.1", NULL, false, 0 },
        { "another host", "a.svc", "b.svc", "hostname mismatch", false, 0 },
        { "another address", "10.0.0.1", "10.0.0.2", "IP address mismatch", false, 0 },
        { "another authority", "a.svc", "a.svc", "unable to get local issuer", true, 0 },
        { "expired", "a.svc", "a.svc", "expired", false, -2 * HOUR_MS },
        { "not yet valid", "a.svc", "a.svc", "not yet valid", false, 2 * HOUR_MS },
    };
    struct certificate ca = authority(), other = authority();

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct certificate c = serving(&ca, ROWS[i].issued, clock_wall_ms() + ROWS[i].at_ms);
        struct pair p = pair(&c, ROWS[i].other_authority ? other.pem : ca.pem, ROWS[i].asked);
        struct error e = ERROR_INIT;
        int result = shake(&p, &e);
        cr_expect_eq(result, ROWS[i].words == NULL ? 1 : -1, "case %s: %s", ROWS[i].name, e.text);
        cr_expect(ROWS[i].words == NULL || strstr(e.text, ROWS[i].words) != NULL, "case %s: %s", ROWS[i].name,
                  e.text);
        cr_expect(ROWS[i].words == NULL || e.kind == ERROR_DENIED, "case %s", ROWS[i].name);
        end(&p);
        certificate_release(&c);
    }
    certificate_release(&ca);
    certificate_release(&other);
}

Test(tls, of_several_authorities_any_will_do_and_none_is_an_error)
{
    struct certificate ca = authority(), other = authority(), c = serving(&ca, "h", clock_wall_ms());
    auto_free char *both = xasprintf("%s%s", other.pem, ca.pem);
    struct pair p = pair(&c, both, "h");
    struct error e = ERROR_INIT;
    struct tls *none = NULL;

    cr_expect_eq(shake(&p, &e), 1, "%s", e.text);
    cr_expect_eq(tls_client_new(p.fds[0], "h", "no certificate in here", &none, &e), -1);
    cr_expect_eq(e.kind, ERROR_INVALID);
    end(&p);
    certificate_release(&c);
    certificate_release(&ca);
    certificate_release(&other);
}

Test(tls, a_peer_that_is_gone_or_speaks_something_else_is_an_error)
{
    struct certificate ca = authority(), c = serving(&ca, "h", clock_wall_ms());
    struct error e = ERROR_INIT;
    bool wants_write;
    char byte;

    struct pair p = pair(&c, ca.pem, "h");
    cr_assert_eq(tls_handshake(p.client, &wants_write, &e), 0);
    cr_assert_eq(write(p.fds[1], "HTTP/1.1 400 Bad Request\r\n\r\n", 28), 28);
    cr_expect_eq(tls_handshake(p.client, &wants_write, &e), -1);
    cr_expect_eq(e.kind, ERROR_IO);
    end(&p);

    p = pair(&c, ca.pem, "h");
    cr_assert_eq(shake(&p, &e), 1, "%s", e.text);
    cr_assert_eq(shutdown(p.fds[1], SHUT_RDWR), 0);
    cr_expect_eq(tls_receive(p.client, &byte, 1), -1, "an end without a word is no orderly one");
    cr_expect_neq(errno, EAGAIN);
    cr_expect_eq(tls_send(p.client, "x", 1), -1);
    end(&p);
    certificate_release(&c);
    certificate_release(&ca);
}
