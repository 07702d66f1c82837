#include "base/ipc.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

/* What one end has heard. */
struct heard {
    struct loop *loop;
    struct ipc *c;
    size_t messages, stop_after;
    uint16_t types[16];
    size_t lens[16];
    uint8_t last_byte[16];
    char from_fd[16];
    bool closed;
    struct error why;
};

static void on_message(void *ctx, struct ipc *c, struct ipc_message *m, const struct error *why)
{
    struct heard *h = ctx;

    if (m == NULL) {
        h->closed = true;
        h->why = *why;
        ipc_free(c);
        h->c = NULL;
        loop_stop(h->loop);
        return;
    }
    size_t i = h->messages++ % COUNT(h->types);
    h->types[i] = m->type;
    h->lens[i] = m->len;
    h->last_byte[i] = m->len > 0 ? m->bytes[m->len - 1] : 0;
    if (m->fd_count > 0)
        cr_expect_eq(read(m->fds[0], h->from_fd, sizeof h->from_fd - 1), 5);
    if (h->messages == h->stop_after)
        loop_stop(h->loop);
}

static void pair(struct loop *l, struct heard *h, int *ret_other)
{
    int fds[2];
    struct error e = ERROR_INIT;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    h->loop = l;
    cr_assert_eq(ipc_new(l, fds[0], on_message, h, &h->c, &e), 0, "%s", e.text);
    *ret_other = fds[1];
}

static struct loop *new_loop(void)
{
    struct loop *l = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(loop_new(&l, &e), 0);
    return l;
}

Test(ipc, messages_of_all_sizes_and_descriptors_arrive_whole_and_in_order)
{
    struct loop *l = new_loop();
    struct heard a = { .stop_after = 0 }, b = { .stop_after = 4 };
    struct error e = ERROR_INIT;
    int other, p[2];

    pair(l, &a, &other);
    b.loop = l;
    cr_assert_eq(ipc_new(l, other, on_message, &b, &b.c, &e), 0);
    cr_assert_eq(pipe(p), 0);
    cr_assert_eq(write(p[1], "hello", 5), 5);

    uint8_t *big = xcalloc(1, IPC_MAX_PAYLOAD);
    big[IPC_MAX_PAYLOAD - 1] = 42;
    cr_assert_eq(ipc_send(a.c, 1, "x", 1, NULL, 0, &e), 0);
    cr_assert_eq(ipc_send(a.c, 2, big, IPC_MAX_PAYLOAD, NULL, 0, &e), 0);
    cr_assert_eq(ipc_send(a.c, 3, "y", 1, p, 1, &e), 0);
    cr_assert_eq(ipc_send(a.c, 4, NULL, 0, NULL, 0, &e), 0);
    cr_expect_eq(ipc_send(a.c, 5, big, IPC_MAX_PAYLOAD + 1, NULL, 0, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
    cr_assert_eq(loop_run(l, &e), 0);
    for (uint16_t i = 0; i < 4; i++)
        cr_expect_eq(b.types[i], i + 1);
    cr_expect_eq(b.lens[1], IPC_MAX_PAYLOAD);
    cr_expect_eq(b.last_byte[1], 42);
    cr_expect_str_eq(b.from_fd, "hello");
    cr_expect(ipc_flushed(a.c));
    free(big);
    ipc_free(a.c);
    ipc_free(b.c);
    loop_free(l);
}

Test(ipc, a_stream_cut_at_every_byte_gives_the_same_messages)
{
    /* two messages: type 7 "abc", type 8 "" */
    static const uint8_t stream[] = { 3, 0, 0, 0, 7, 0, 0, 0, 'a', 'b', 'c', 0, 0, 0, 0, 8, 0, 0, 0 };

    for (size_t cut = 0; cut <= sizeof stream; cut++) {
        struct loop *l = new_loop();
        struct heard h = { .stop_after = 0 };
        struct error e = ERROR_INIT;
        int other;
        pair(l, &h, &other);
        cr_assert_eq(write(other, stream, cut), (ssize_t)cut);
        /* one turn for the first part: a second descriptor that is readable stops it */
        struct heard tick = { .stop_after = 1 };
        int tick_fd;
        pair(l, &tick, &tick_fd);
        cr_assert_eq(write(tick_fd, "\0\0\0\0\0\0\0\0", 8), 8);
        cr_assert_eq(loop_run(l, &e), 0);
        cr_assert_eq(write(other, stream + cut, sizeof stream - cut), (ssize_t)(sizeof stream - cut));
        cr_assert_eq(close(other), 0);
        cr_assert_eq(loop_run(l, &e), 0);
        cr_expect_eq(h.messages, 2, "cut at %zu", cut);
        cr_expect_eq(h.types[0], 7);
        cr_expect_eq(h.types[1], 8);
        cr_expect(h.closed);
        cr_expect_eq(h.why.kind, ERROR_NONE, "cut at %zu: %s", cut, h.why.text);
        ipc_free(tick.c);
        (void)close(tick_fd);
        loop_free(l);
    }
}

Test(ipc, a_bad_stream_closes_the_connection_with_a_reason)
{
    static const struct { const char *name; uint8_t bytes[12]; size_t len; } rows[] = {
        { "payload over the limit", { 0, 0, 0, 0xff, 1, 0, 0, 0 }, 8 },
        { "too many descriptors", { 0, 0, 0, 0, 1, 0, 9, 0 }, 8 },
        { "descriptors that did not come", { 0, 0, 0, 0, 1, 0, 1, 0 }, 8 },
        { "end in the middle", { 4, 0, 0, 0, 1, 0, 0, 0, 'x' }, 9 },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct loop *l = new_loop();
        struct heard h = { .stop_after = 0 };
        struct error e = ERROR_INIT;
        int other;
        pair(l, &h, &other);
        cr_assert_eq(write(other, rows[i].bytes, rows[i].len), (ssize_t)rows[i].len);
        (void)close(other);
        cr_assert_eq(loop_run(l, &e), 0);
        cr_expect(h.closed, "case %s", rows[i].name);
        cr_expect_eq(h.why.kind, ERROR_INVALID, "case %s: %s", rows[i].name, h.why.text);
        cr_expect_eq(h.messages, 0, "case %s", rows[i].name);
        loop_free(l);
    }
}

Test(ipc, a_listener_replaces_a_dead_socket_and_refuses_a_live_one)
{
    char dir[] = "/tmp/ringmaster-ipc-XXXXXX";
    cr_assert_not_null(mkdtemp(dir));
    auto_free char *path = xasprintf("%s/s", dir);
    struct error e = ERROR_INIT;
    int one = -1, two = -1, client = -1;

    cr_assert_eq(ipc_listen(path, &one, &e), 0, "%s", e.text);
    cr_assert_eq(ipc_connect(path, &client, &e), 0, "%s", e.text);
    cr_expect_eq(ipc_listen(path, &two, &e), -1);
    cr_expect_eq(e.kind, ERROR_CONFLICT);
    (void)close(one);
    (void)close(client);
    cr_expect_eq(ipc_listen(path, &two, &e), 0, "%s", e.text);
    (void)close(two);
    (void)unlink(path);
    (void)rmdir(dir);
}

Test(ipc, what_has_arrived_can_be_heard_at_once_to_the_end)
{
    struct loop *l = new_loop();
    struct heard h = { .stop_after = 0 };
    int other;

    pair(l, &h, &other);
    ipc_drain(h.c);
    cr_expect_eq(h.messages, 0);
    cr_expect_not(h.closed);
    cr_assert_eq(write(other, "\0\0\0\0\7\0\0\0\0\0\0\0\10\0\0\0", 16), 16);
    (void)close(other);
    ipc_drain(h.c);
    cr_expect_eq(h.messages, 2);
    cr_expect_eq(h.types[1], 8);
    cr_expect(h.closed);
    loop_free(l);
}
