#include "kube/socks.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"

struct kube_sock {
    struct kube_sock *next, **link;
    struct kube_socks *all;
    struct loop_source *source;
    int fd;
    int64_t heard_ms;
};

static void on_io(void *ctx, int fd, unsigned events)
{
    struct kube_sock *s = ctx;
    int mask = (events & LOOP_READ ? CURL_CSELECT_IN : 0) | (events & LOOP_WRITE ? CURL_CSELECT_OUT : 0);

    if (events & LOOP_READ)
        s->heard_ms = clock_mono_ms();
    if ((events & LOOP_HANGUP) && mask == 0)
        mask = CURL_CSELECT_ERR;
    s->all->ready(s->all->ctx, fd, mask); /* s may be gone after this */
}

static void sock_free(struct kube_sock *s)
{
    *s->link = s->next;
    if (s->next != NULL)
        s->next->link = s->link;
    loop_remove(s->source);
    free(s);
}

static void add(struct kube_socks *all, CURLM *multi, curl_socket_t fd, unsigned events)
{
    struct kube_sock *s = xcalloc(1, sizeof *s);
    struct error e;

    *s = (struct kube_sock){ .next = all->first, .link = &all->first, .all = all, .fd = fd, .heard_ms = clock_mono_ms() };
    if (s->next != NULL)
        s->next->link = &s->next;
    all->first = s;
    if (loop_add(all->loop, fd, events, on_io, s, &s->source, &e) < 0)
        s->source = NULL; /* nothing comes from it: the request ends by its deadline */
    (void)curl_multi_assign(multi, fd, s);
}

void kube_socks_watch(struct kube_socks *all, CURLM *multi, curl_socket_t fd, int what, void *known)
{
    unsigned events = (what & CURL_POLL_IN ? LOOP_READ : 0u) | (what & CURL_POLL_OUT ? LOOP_WRITE : 0u);
    struct kube_sock *s = known;

    if (what == CURL_POLL_REMOVE && s != NULL) {
        sock_free(s);
        (void)curl_multi_assign(multi, fd, NULL);
    } else if (what != CURL_POLL_REMOVE && s == NULL) {
        add(all, multi, fd, events);
    } else if (what != CURL_POLL_REMOVE && s->source != NULL) {
        loop_set(s->source, events);
    }
}

void kube_socks_cut_silent(struct kube_socks *all, int64_t since_ms)
{
    for (struct kube_sock *s = all->first; s != NULL; s = s->next) {
        if (s->heard_ms <= since_ms)
            (void)shutdown(s->fd, SHUT_RDWR);
    }
}

void kube_socks_release(struct kube_socks *all)
{
    while (all->first != NULL)
        sock_free(all->first);
}
