#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "kube/client.h"

/* What needs an API server is in tests/cluster/test_kube_client.py. */

struct world {
    struct loop *loop;
    struct kube_config *config;
    struct kube_client *client;
    int listener, peer; /* of a server that accepts nothing by itself */
    int replies, dropped;
    enum error_kind error; /* of the last reply */
    bool may_write;
};

static bool may_write(void *ctx)
{
    return ((struct world *)ctx)->may_write;
}

static void open_world(struct world *w)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct kube_client_options options = { .max_in_flight = 1, .may_write = may_write, .ctx = w };
    socklen_t len = sizeof at;
    struct error e = ERROR_INIT;
    char text[256];

    *w = (struct world){ .listener = socket(AF_INET, SOCK_STREAM, 0), .may_write = true };
    cr_assert(w->listener >= 0 && bind(w->listener, (struct sockaddr *)&at, len) == 0 && listen(w->listener, 8) == 0);
    cr_assert_eq(getsockname(w->listener, (struct sockaddr *)&at, &len), 0);
    int used = snprintf(text, sizeof text, "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n"
                                           "clusters: [{name: k, cluster: {server: 'http://127.0.0.1:%d'}}]\n", ntohs(at.sin_port));
    struct kube_config_text config = { .path = "config", .text = text, .len = (size_t)used };
    cr_assert_eq(loop_new(&w->loop, &e), 0, "%s", e.text);
    cr_assert_eq(kube_config_parse(&config, 1, NULL, &w->config, &e), 0, "%s", e.text);
    cr_assert_eq(kube_client_new(w->loop, w->config, &options, &w->client, &e), 0, "%s", e.text);
}

static void close_world(struct world *w)
{
    kube_client_free(w->client);
    kube_config_free(w->config);
    loop_free(w->loop);
    (void)close(w->listener);
}

static void on_reply(void *ctx, struct kube_reply *reply)
{
    struct world *w = ctx;

    w->replies++;
    w->error = reply->error != NULL ? reply->error->kind : ERROR_NONE;
    loop_stop(w->loop);
}

static void drop(void *ctx)
{
    ((struct world *)ctx)->dropped++;
}

static void send_call(struct world *w, const struct kube_request *r)
{
    struct error e = ERROR_INIT;

    cr_assert_eq(kube_client_send(w->client, r, on_reply, w, NULL, &e), 0, "%s", e.text);
}

static void run(struct world *w)
{
    struct error e = ERROR_INIT;

    cr_assert_eq(loop_run(w->loop, &e), 0, "%s", e.text);
}

/* With a window of one: the first is under way, the second waits, the third is of the background. */
Test(client, what_a_call_alone_holds_goes_with_the_client)
{
    struct kube_request kept = { .verb = KUBE_GET, .path = "/version" }, r = kept, background = kept;
    struct kube_client_stats stats;
    struct world w;

    r.drop = background.drop = drop;
    background.background = true;
    open_world(&w);
    send_call(&w, &r);
    send_call(&w, &r);
    send_call(&w, &kept);
    send_call(&w, &background);
    kube_client_stats(w.client, &stats);
    cr_expect_eq(stats.in_flight, 1);
    cr_expect_eq(stats.waiting, 3);
    close_world(&w);
    cr_expect_eq(w.dropped, 3, "%d were dropped", w.dropped);
    cr_expect_eq(w.replies, 0, "%d were replied to", w.replies);
}

/* As a process that is stopped while it dials, and wakes when another leads. */
Test(client, a_write_that_waits_for_its_connection_when_the_fence_closes_is_not_sent, .timeout = 60)
{
    static const struct kube_resource PODS = { "", "v1", "pods", "Pod", false };
    struct kube_request write = { .verb = KUBE_DELETE, .resource = &PODS, .ns = "default", .name = "pod", .want = KUBE_WANT_NOTHING };
    struct world w;
    char text[16];

    open_world(&w);
    send_call(&w, &write); /* under way */
    send_call(&w, &write); /* waits */
    w.may_write = false;
    run(&w);
    cr_expect_eq(w.replies, 2, "%d replies", w.replies);
    cr_expect_eq(w.error, ERROR_TIMEOUT);
    send_call(&w, &write); /* is not begun */
    run(&w);
    cr_expect_eq(w.replies, 3, "%d replies", w.replies);
    cr_expect_eq(w.error, ERROR_TIMEOUT);
    kube_client_free(TAKE(w.client));
    (void)fcntl(w.listener, F_SETFL, O_NONBLOCK);
    for (int fd; (fd = accept(w.listener, NULL, NULL)) >= 0;) {
        cr_expect_eq(recv(fd, text, sizeof text, 0), 0, "bytes were sent");
        (void)close(fd);
    }
    close_world(&w);
}

/* Whoever dials is answered. */
static void on_dialled(void *ctx, int fd, unsigned events)
{
    static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    struct world *w = ctx;

    (void)events;
    w->peer = accept(fd, NULL, NULL);
    if (w->peer < 0 || write(w->peer, ANSWER, sizeof ANSWER - 1) != (ssize_t)sizeof ANSWER - 1)
        loop_stop(w->loop);
}

Test(client, reads_go_on_behind_a_closed_fence, .timeout = 60)
{
    struct kube_request read = { .verb = KUBE_GET, .path = "/version" };
    struct loop_source *listening = NULL;
    struct error e = ERROR_INIT;
    struct world w;

    open_world(&w);
    w.may_write = false;
    cr_assert_eq(loop_add(w.loop, w.listener, LOOP_READ, on_dialled, &w, &listening, &e), 0, "%s", e.text);
    send_call(&w, &read);
    run(&w);
    cr_expect_eq(w.replies, 1);
    cr_expect_eq(w.error, ERROR_NONE);
    loop_remove(listening);
    (void)close(w.peer);
    close_world(&w);
}
