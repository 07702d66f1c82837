#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "client/c/src/talk.h"
#include "client/c/src/text.h"
#include "ringmaster.h"
#include "tests/descriptors.h"

static struct talk talk;
static int other; /* the sidecar's end */

static void connect_pair(void)
{
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    talk_init(&talk, pair[0]);
    other = pair[1];
}

static void close_pair(void)
{
    talk_close(&talk);
    close(other);
}

static size_t put(uint8_t *at, uint32_t length, uint16_t type, uint16_t fds, const void *payload)
{
    memcpy(at, &length, 4);
    memcpy(at + 4, &type, 2);
    memcpy(at + 6, &fds, 2);
    if (payload != NULL)
        memcpy(at + 8, payload, length);
    return 8 + (payload != NULL ? length : 0);
}

static void send_with_fds(const void *bytes, size_t length, const int *fds, size_t count)
{
    cr_assert_eq(send_with_descriptors(other, bytes, length, fds, count), (ssize_t)length);
}

/* Two messages, the second with descriptors, cut at every place there is. */
Test(talk, messages_may_arrive_in_any_parts, .init = connect_pair, .fini = close_pair)
{
    uint8_t stream[64];
    size_t first = put(stream, 5, 51, 0, "hello"), total = first + put(stream + first, 3, 48, 2, "abc");

    for (size_t cut = 1; cut < total; cut++) {
        struct talk_message m = { 0 };
        int fds[2] = { open("/dev/null", O_RDONLY | O_CLOEXEC), open("/dev/zero", O_RDONLY | O_CLOEXEC) };
        bool early = cut > first; /* descriptors travel with the first byte of their message */

        send_with_fds(stream, early ? first : cut, NULL, 0);
        if (early)
            send_with_fds(stream + first, cut - first, fds, 2);
        int got = talk_receive(&talk, 0, &m);
        cr_assert_eq(got, cut >= first, "cut %zu", cut);
        if (got == 0) {
            send_with_fds(stream + cut, first - cut, NULL, 0);
            cr_assert_eq(talk_receive(&talk, 100, &m), 1, "cut %zu", cut);
        }
        cr_assert(m.type == 51 && m.length == 5 && m.fd_count == 0 && memcmp(m.payload, "hello", 5) == 0, "cut %zu", cut);
        talk_drop(&talk, &m);

        if (early)
            send_with_fds(stream + cut, total - cut, NULL, 0);
        else
            send_with_fds(stream + first, total - first, fds, 2);
        cr_assert_eq(talk_receive(&talk, 100, &m), 1, "cut %zu", cut);
        cr_assert(m.type == 48 && m.length == 3 && m.fd_count == 2 && memcmp(m.payload, "abc", 3) == 0, "cut %zu", cut);
        struct stat st;
        cr_assert_eq(fstat(m.fds[1], &st), 0);
        cr_assert(fcntl(m.fds[0], F_GETFD) & FD_CLOEXEC);
        int kept = m.fds[1];
        m.fds[1] = -1; /* taken */
        int dropped = m.fds[0];
        talk_drop(&talk, &m);
        cr_assert_eq(fstat(kept, &st), 0, "what is taken stays open");
        cr_assert_eq(fstat(dropped, &st), -1, "what is not is closed");
        close(kept);
        close(fds[0]);
        close(fds[1]);
    }
}

Test(talk, what_cannot_be_a_message_ends_it)
{
    static const struct { const char *name; uint32_t length; uint16_t fds; size_t sent_fds; const char *words; } rows[] = {
        { "too long", TALK_MAX_PAYLOAD + 1, 0, 0, "bad message" },
        { "much too long", UINT32_MAX, 0, 0, "bad message" },
        { "too many descriptors", 0, TALK_MAX_FDS + 1, 0, "bad message" },
        { "fewer descriptors than announced", 0, 2, 1, "announced 2 descriptors and sent 1" },
        { "more descriptors than fit", 0, 0, 30, "more descriptors than a message can have" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        uint8_t header[8];
        struct talk_message m;
        int fds[32];

        connect_pair();
        for (size_t k = 0; k < rows[i].sent_fds; k++)
            fds[k] = 0;
        send_with_fds(header, put(header, rows[i].length, 48, rows[i].fds, NULL), fds, rows[i].sent_fds);
        cr_expect_eq(talk_receive(&talk, 100, &m), RM_PEER_LOST, "case %s", rows[i].name);
        cr_expect_not_null(strstr(text_last(), rows[i].words), "case %s: %s", rows[i].name, text_last());
        close_pair();
    }
}

Test(talk, a_closed_socket_is_a_lost_sidecar_in_the_middle_of_a_message_too, .init = connect_pair)
{
    uint8_t header[8];
    struct talk_message m;

    cr_expect_eq(talk_receive(&talk, 0, &m), 0, "nothing yet");
    cr_expect_eq(talk_receive(&talk, 20, &m), 0, "nothing in time");
    send_with_fds(header, put(header, 100, 48, 0, NULL), NULL, 0);
    close(other);
    cr_expect_eq(talk_receive(&talk, -1, &m), RM_PEER_LOST);
    cr_expect_str_eq(text_last(), "the sidecar closed the connection");
    cr_expect_eq(talk_send(&talk, 33, "{}", 2), RM_PEER_LOST, "and no signal");
    talk_close(&talk);
    talk_close(&talk); /* nothing happens */
}

static void *drain(void *unused)
{
    uint8_t bytes[4096];
    (void)unused;
    size_t total = 0;
    while (total < 8 + TALK_MAX_PAYLOAD) {
        ssize_t n = read(other, bytes, sizeof(bytes));
        if (n <= 0)
            break;
        total += (size_t)n;
    }
    return (void *)(uintptr_t)total;
}

Test(talk, a_large_message_goes_out_whole_and_a_larger_one_not_at_all, .init = connect_pair, .fini = close_pair)
{
    auto_free char *payload = xcalloc(TALK_MAX_PAYLOAD + 1, 1);
    int small = 4096;
    pthread_t reader;
    void *total;

    setsockopt(talk.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    pthread_create(&reader, NULL, drain, NULL);
    cr_expect_eq(talk_send(&talk, 33, payload, TALK_MAX_PAYLOAD), RM_OK);
    pthread_join(reader, &total);
    cr_expect_eq((uintptr_t)total, 8 + TALK_MAX_PAYLOAD);
    cr_expect_eq(talk_send(&talk, 33, payload, TALK_MAX_PAYLOAD + 1), RM_INVALID);
}
