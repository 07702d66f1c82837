/* TLS between two ends with a wire in between that is listened to, and tampered with. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sidecar/ring/secure.h"

#define MARKER "the gradient of layer one"
#define LIMIT_MS 60000

static const uint8_t SECRET[CRYPTO_MAC_BYTES] = "of this connection, 32 bytes...", OTHER[CRYPTO_MAC_BYTES] = "of another connection, 32 bytes";

struct wire {
    int client, server, taps[2]; /* taps[0] is the client's other end, taps[1] the server's */
    struct buf seen;
    bool damages;                /* the next bytes */
};

static struct wire wire_new(void)
{
    struct wire w = { .seen = BUF_INIT(16u << 20) };
    int a[2], b[2];

    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, a) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, b) == 0);
    w.client = a[0];
    w.taps[0] = a[1];
    w.server = b[0];
    w.taps[1] = b[1];
    return w;
}

/* Carries what there is from one end to the other. */
static void carry(struct wire *w)
{
    char bytes[16384];

    for (int from = 0; from < 2; from++) {
        ssize_t n = recv(w->taps[from], bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0)
            (void)shutdown(w->taps[1 - from], SHUT_WR);
        if (n <= 0)
            continue;
        buf_add_bytes(&w->seen, bytes, (size_t)n);
        if (w->damages)
            bytes[n - 1] ^= 1;
        w->damages = false;
        for (ssize_t done = 0; done < n;) {
            ssize_t sent = send(w->taps[1 - from], bytes + done, (size_t)(n - done), MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN)
                return;
            done += sent > 0 ? sent : 0;
        }
    }
}

static bool saw(const struct wire *w, const char *text)
{
    return memmem(w->seen.text, w->seen.len, text, strlen(text)) != NULL;
}

/* Both handshakes until both are done or one has failed; the client's and the server's last results. */
static void shake(struct wire *w, struct secure *ends[2], int results[2], struct error *e)
{
    int64_t until = clock_mono_ms() + LIMIT_MS;
    bool wants_write;

    results[0] = results[1] = 0;
    while (results[0] >= 0 && results[1] >= 0 && results[0] + results[1] < 2 && clock_mono_ms() < until) {
        for (int i = 0; i < 2; i++)
            results[i] = results[i] == 0 ? secure_step(ends[i], &wants_write, e) : results[i];
        carry(w);
    }
}

static void open_ends(struct wire *w, const uint8_t *server_secret, int results[2], struct secure *ends[2], struct error *e)
{
    *w = wire_new();
    cr_assert(secure_new(w->client, false, SECRET, &ends[0], e) == 0, "%s", e->text);
    cr_assert(secure_new(w->server, true, server_secret, &ends[1], e) == 0, "%s", e->text);
    shake(w, ends, results, e);
}

static void take_both(struct wire *w, int fds[2])
{
    struct secure *ends[2];
    struct error e = ERROR_INIT;
    int results[2];

    open_ends(w, SECRET, results, ends, &e);
    cr_assert(results[0] == 1 && results[1] == 1, "%s", e.text);
    for (int i = 0; i < 2; i++)
        cr_assert(secure_take(ends[i], &fds[i], &e) == 0, "%s", e.text);
}

static void send_some(int fd, const char *bytes, size_t len, size_t *at)
{
    ssize_t n = *at < len ? send(fd, bytes + *at, len - *at, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

    *at += n > 0 ? (size_t)n : 0;
}

Test(secure, what_goes_over_the_wire_is_not_what_is_sent, .timeout = 20)
{
    struct wire w;
    int fds[2];
    size_t len = 3u << 20, sent[2] = { 0 }, got[2] = { 0 };
    auto_free char *data = xcalloc(1, len);
    char *back[2] = { xcalloc(1, len), xcalloc(1, len) };
    int64_t until = clock_mono_ms() + LIMIT_MS;

    for (size_t i = 0; i + sizeof MARKER < len; i += sizeof MARKER)
        memcpy(data + i, MARKER, sizeof MARKER);
    take_both(&w, fds);
    while ((got[0] < len || got[1] < len) && clock_mono_ms() < until) {
        for (int i = 0; i < 2; i++) {
            send_some(fds[i], data, len, &sent[i]);
            ssize_t n = recv(fds[i], back[i] + got[i], len - got[i], MSG_DONTWAIT);
            got[i] += n > 0 ? (size_t)n : 0;
        }
        carry(&w);
    }
    cr_expect(got[0] == len && got[1] == len, "%zu and %zu of %zu bytes", got[0], got[1], len);
    cr_expect(memcmp(back[0], data, len) == 0 && memcmp(back[1], data, len) == 0);
    cr_expect(!saw(&w, MARKER) && w.seen.len > 2 * len);
    free(back[0]);
    free(back[1]);

    (void)close(fds[0]); /* the other end hears of it */
    char byte;
    ssize_t n = -1;
    for (until = clock_mono_ms() + LIMIT_MS; n != 0 && clock_mono_ms() < until; n = recv(fds[1], &byte, 1, MSG_DONTWAIT))
        carry(&w);
    cr_expect(n == 0, "closed");
    (void)close(fds[1]);
    buf_release(&w.seen);
}

Test(secure, another_key_is_no_key, .timeout = 20)
{
    struct wire w;
    struct secure *ends[2];
    struct error e = ERROR_INIT;
    int results[2];

    open_ends(&w, OTHER, results, ends, &e);
    cr_expect(results[0] < 0 || results[1] < 0);
    cr_expect(e.kind == ERROR_DENIED, "%s", e.text);
    secure_free(ends[0]);
    secure_free(ends[1]);
    buf_release(&w.seen);
}

Test(secure, what_was_changed_on_the_way_is_not_delivered, .timeout = 20)
{
    struct wire w;
    int fds[2];
    char got[sizeof MARKER] = "";
    ssize_t n = -1;

    take_both(&w, fds);
    w.damages = true;
    cr_assert(send(fds[0], MARKER, sizeof MARKER, 0) == sizeof MARKER);
    for (int64_t until = clock_mono_ms() + LIMIT_MS; n < 0 && clock_mono_ms() < until; n = recv(fds[1], got, sizeof got, MSG_DONTWAIT))
        carry(&w);
    cr_expect(n == 0, "the connection ends: %zd", n);
    cr_expect(got[0] == '\0');
    (void)close(fds[0]);
    (void)close(fds[1]);
    buf_release(&w.seen);
}
