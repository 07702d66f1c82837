#include "sidecar/ring/resolve.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

/* Shared by the thread and the loop's side; whoever lets go last frees it. The thread knows nothing of the loop, which may be
 * gone when a look-up returns. */
struct job {
    atomic_int holders;
    int done_fd; /* eventfd: the answer is there */
    int code;
    struct addrinfo *addresses;
    char host[256], service[16];
};

struct resolve {
    struct job *job;
    struct loop_source *source;
    resolve_done_fn *done;
    void *ctx;
};

static void let_go(struct job *job)
{
    if (atomic_fetch_sub(&job->holders, 1) != 1)
        return;
    if (job->addresses != NULL)
        freeaddrinfo(job->addresses);
    if (job->done_fd >= 0)
        (void)close(job->done_fd);
    free(job);
}

static void unbracket(const char *host, int32_t port, char ret_host[256], char ret_service[16])
{
    size_t len = strlen(host);

    if (len > 2 && host[0] == '[' && host[len - 1] == ']')
        (void)snprintf(ret_host, 256, "%.*s", (int)(len - 2), host + 1);
    else
        (void)snprintf(ret_host, 256, "%s", host);
    (void)snprintf(ret_service, 16, "%d", port);
}

int resolve_literal(const char *host, int32_t port, struct addrinfo **ret_addresses)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
    char name[256], service[16];

    unbracket(host, port, name, service);
    return getaddrinfo(name, service, &hints, ret_addresses) == 0;
}

static void *look_up(void *ctx)
{
    struct job *job = ctx;
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG };
    uint64_t one = 1;

    job->code = getaddrinfo(job->host, job->service, &hints, &job->addresses);
    if (job->code != 0)
        job->addresses = NULL;
    (void)!write(job->done_fd, &one, sizeof one);
    let_go(job);
    return NULL;
}

static void on_answer(void *ctx, int fd, unsigned events)
{
    struct resolve *r = ctx;
    struct error why = ERROR_INIT;
    uint64_t count;

    (void)events;
    if (read(fd, &count, sizeof count) != (ssize_t)sizeof count)
        return;
    struct addrinfo *addresses = r->job->addresses;
    r->job->addresses = NULL;
    if (addresses == NULL)
        (void)error_set(&why, ERROR_NOT_FOUND, "look up \"%s\": %s", r->job->host, gai_strerror(r->job->code));

    resolve_done_fn *done = r->done;
    void *done_ctx = r->ctx;
    resolve_cancel(r);
    done(done_ctx, addresses, &why);
}

int resolve_start(struct loop *l, const char *host, int32_t port, resolve_done_fn *done, void *ctx, struct resolve **ret,
                  struct error *e)
{
    struct job *job = xcalloc(1, sizeof *job);
    struct resolve *r = xcalloc(1, sizeof *r);

    *r = (struct resolve){ .job = job, .done = done, .ctx = ctx };
    atomic_init(&job->holders, 2);
    unbracket(host, port, job->host, job->service);
    job->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    pthread_t thread;
    pthread_attr_t attributes;
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int code = job->done_fd < 0 ? errno : 0;
    if (code == 0 && loop_add(l, job->done_fd, LOOP_READ, on_answer, r, &r->source, e) < 0)
        code = e->os_errno;
    if (code == 0)
        code = pthread_create(&thread, &attributes, look_up, job);
    (void)pthread_attr_destroy(&attributes);
    if (code == 0) {
        *ret = r;
        return 0;
    }
    errno = code;
    (void)error_errno(e, "start looking up \"%s\"", host);
    let_go(job); /* the thread's share */
    resolve_cancel(r);
    return -1;
}

void resolve_cancel(struct resolve *r)
{
    if (r == NULL)
        return;
    loop_remove(r->source);
    let_go(r->job);
    free(r);
}

const char *resolve_text(const struct sockaddr *address, socklen_t len, char ret_text[RESOLVE_TEXT_MAX])
{
    char host[64], service[8];

    if (getnameinfo(address, len, host, sizeof host, service, sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        (void)snprintf(ret_text, RESOLVE_TEXT_MAX, "unknown address");
    else
        (void)snprintf(ret_text, RESOLVE_TEXT_MAX, "%s%s%s:%s", strchr(host, 0x3a) ? "[" : "", host, strchr(host, 0x3a) ? "]" : "",
                       service);
    return ret_text;
}
