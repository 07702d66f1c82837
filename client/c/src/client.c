#include "client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "wire/local.h"

#ifndef RINGMASTER_VERSION
#error "RINGMASTER_VERSION is set by the Makefile"
#endif

#define CONNECT_TIMEOUT_MS 10000 /* the sidecar started this process: it is there, or about to come back */
#define ATTACH_TIMEOUT_MS 60000
#define ELASTIC_TIMEOUT_MS 600000
#define GPU_SETTLE_MS 10000

struct client the_client = { .init_lock = PTHREAD_MUTEX_INITIALIZER, .send_lock = PTHREAD_MUTEX_INITIALIZER,
                             .lock = PTHREAD_MUTEX_INITIALIZER, .gpu.lock = PTHREAD_MUTEX_INITIALIZER, .talk.fd = -1,
                             .gpu_settle_ms = GPU_SETTLE_MS };

int64_t client_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int client_ready(void)
{
    struct client *c = &the_client;
    if (atomic_load(&c->forked))
        return text_fail(RM_NOT_INITIALIZED, "this process was forked after rm_init; only the process that called rm_init can use it");
    int state = atomic_load(&c->state);
    if (state == CLIENT_NONE || state == CLIENT_LEAVING)
        return text_fail(RM_NOT_INITIALIZED, state == CLIENT_NONE ? "rm_init was not called" : "rm_shutdown was called");
    return RM_OK;
}

/* The child has neither the completion thread nor a say in the sidecar's connection: close what would keep it open. */
static void after_fork_in_child(void)
{
    struct client *c = &the_client;
    int state = atomic_load(&c->state);
    if (state != CLIENT_ATTACHED && state != CLIENT_LEAVING)
        return;
    atomic_store(&c->forked, true);
    close(c->talk.fd);
    close(c->shared.ring_engine);
    close(c->shared.ring_us);
}

static void once_a_process(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&the_client.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* ---- talking to the sidecar ---- */

void client_lose(struct client *c, const char *why)
{
    if (c->lost)
        return;
    c->lost = true;
    c->round_lost |= !c->stopping;
    snprintf(c->lost_text, sizeof(c->lost_text), "%s", why);
    pthread_cond_broadcast(&c->changed);
    if (c->shared.base != NULL)
        shared_wake_us(&c->shared); /* the completion thread ends what is in flight */
}

int client_send(struct client *c, uint16_t type, const void *payload, size_t length)
{
    pthread_mutex_lock(&c->send_lock);
    int status = talk_send(&c->talk, type, payload, length);
    pthread_mutex_unlock(&c->send_lock);
    if (status == RM_PEER_LOST) {
        pthread_mutex_lock(&c->lock);
        client_lose(c, text_last());
        pthread_mutex_unlock(&c->lock);
    }
    return status;
}


bool client_wait_changed(struct client *c, int64_t deadline)
{
    if (deadline < 0) {
        pthread_cond_wait(&c->changed, &c->lock);
        return true;
    }
    struct timespec t = { .tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000 };
    return pthread_cond_timedwait(&c->changed, &c->lock, &t) != ETIMEDOUT;
}

int client_call(struct client *c, enum call_kind kind, uint16_t type, const void *payload, size_t length, int64_t timeout_ms,
                struct call *ret_answer)
{
    int64_t deadline = timeout_ms < 0 ? -1 : client_now_ms() + timeout_ms;
    struct call *call = &c->calls[kind];
    pthread_mutex_lock(&c->lock);
    while (call->busy && !c->lost)
        if (!client_wait_changed(c, deadline)) {
            pthread_mutex_unlock(&c->lock);
            return text_fail(RM_TIMEOUT, "another thread's request of this kind is not answered yet");
        }
    if (c->lost) {
        text_fail(RM_PEER_LOST, "%s", c->lost_text);
        pthread_mutex_unlock(&c->lock);
        return RM_PEER_LOST;
    }
    *call = (struct call){ .busy = true };
    pthread_mutex_unlock(&c->lock);

    int status = client_send(c, type, payload, length);
    pthread_mutex_lock(&c->lock);
    while (status == RM_OK && !call->answered && !c->lost)
        if (!client_wait_changed(c, deadline) && !call->answered)
            status = text_fail(RM_TIMEOUT, "the sidecar did not answer within %lld ms", (long long)timeout_ms);
    if (call->answered) {
        *ret_answer = *call;
        status = call->refused ? text_fail(RM_INVALID, "the sidecar refuses: %s", call->text) : RM_OK;
    } else if (c->lost) {
        status = text_fail(RM_PEER_LOST, "%s", c->lost_text);
    }
    if (status == RM_TIMEOUT)
        call->abandoned = true; /* stays busy: its late answer must not be taken for the next one's */
    else
        call->busy = false;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- the time line ---- */

/* The sidecar works in another directory. */
static int absolute_path(const char *path, char *ret_path, size_t size)
{
    char dir[512];
    if (path[0] == '/')
        return snprintf(ret_path, size, "%s", path) < (int)size ? RM_OK : text_fail(RM_INVALID, "the path of the time line is too long");
    if (getcwd(dir, sizeof(dir)) == NULL)
        return text_fail(RM_IO, "the directory of the time line: %s", strerror(errno));
    if (snprintf(ret_path, size, "%s/%s", dir, path) >= (int)size)
        return text_fail(RM_INVALID, "the path of the time line, %s/%s, is over %zu bytes", dir, path, size - 1);
    return RM_OK;
}

static int timeline(bool on, const char *path, bool mark_cycles)
{
    struct local_timeline t = { .on = on, .mark_cycles = mark_cycles };
    int status = client_ready();
    if (status != RM_OK)
        return status;
    if (path == NULL || strlen(path) >= sizeof(t.path) || (on && path[0] == '\0'))
        return text_fail(RM_INVALID, "the path of a time line has 1 to %zu bytes", sizeof(t.path) - 1);
    status = on ? absolute_path(path, t.path, sizeof(t.path)) : RM_OK;
    if (status != RM_OK)
        return status;
    if (atomic_load(&the_client.state) == CLIENT_ALONE)
        return RM_OK;
    return client_send(&the_client, LOCAL_TIMELINE, &t, sizeof(t));
}

/* Horovod's variable and ours; "DYNAMIC" is begun by a call alone. A wish that cannot be carried out stops no training. */
static void timeline_from_environment(void)
{
    const char *path = getenv("RINGMASTER_TIMELINE"), *mark = getenv("HOROVOD_TIMELINE_MARK_CYCLES");
    if (path == NULL || path[0] == '\0')
        path = getenv("HOROVOD_TIMELINE");
    if (path == NULL || path[0] == '\0' || strcmp(path, "DYNAMIC") == 0)
        return;
    if (timeline(true, path, mark != NULL && mark[0] != '\0' && strcmp(mark, "0") != 0) != RM_OK)
        fprintf(stderr, "ringmaster: no time line: %s\n", rm_error_text());
}

/* ---- rm_init ---- */

static int connect_socket(const char *path, int *ret_fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof(address.sun_path))
        return text_fail(RM_INVALID, "RINGMASTER_SOCKET=%s is over %zu bytes", path, sizeof(address.sun_path) - 1);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int64_t deadline = client_now_ms() + CONNECT_TIMEOUT_MS;
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return text_fail(RM_IO, "socket: %s", strerror(errno));
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
            *ret_fd = fd;
            return RM_OK;
        }
        int why = errno;
        close(fd);
        bool may_come = why == ENOENT || why == ECONNREFUSED || why == EAGAIN;
        if (!may_come || client_now_ms() >= deadline)
            return text_fail(RM_IO, "connecting to the sidecar at RINGMASTER_SOCKET=%s: %s", path, strerror(why));
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
}

static bool fence_from_environment(uint64_t *ret_fence)
{
    const char *text = getenv("RINGMASTER_FENCE");
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    *ret_fence = strtoull(text, &end, 10);
    return *end == '\0' && errno == 0;
}

static int take_ready(struct client *c, struct talk_message *m)
{
    struct local_client_ready ready;
    if (m->length < sizeof(ready) || m->fd_count != 3)
        return text_fail(RM_PEER_LOST, "the sidecar's welcome has %u bytes and %zu descriptors, expected %zu and 3: both must come "
                                       "from the same release", m->length, m->fd_count, sizeof(ready));
    memcpy(&ready, m->payload, sizeof(ready));
    bool in_ring = ready.size > 0 && ready.size <= INT32_MAX && ready.rank < ready.size;
    if (in_ring && (ready.local_size == 0 || ready.local_rank >= ready.local_size))
        return text_fail(RM_PEER_LOST, "the sidecar says local rank %u of %u", ready.local_rank, ready.local_size);
    int status = shared_map(&c->shared, m->fds[0], m->fds[1], m->fds[2], ready.shm_bytes, ready.fence);
    if (status != RM_OK)
        return status;
    m->fds[1] = m->fds[2] = -1; /* taken */
    struct areas areas = request_areas(c->shared.arena_bytes, in_ring ? ready.size : 1);
    uint64_t arena = c->shared.arena_offset;
    if (!arena_init(&c->small, arena, areas.small_bytes) || !arena_init(&c->large, arena + areas.small_bytes, areas.large_bytes)
        || !requests_attach(&c->requests, &areas))
        return text_fail(RM_NO_MEMORY, "out of memory for the client's tables");
    c->fence = ready.fence;
    c->resume_step = ready.resume_step;
    c->rank = in_ring ? (int)ready.rank : 0; /* an evaluator or ps is a world of its own */
    c->size = in_ring ? (int)ready.size : 1;
    c->local_rank = in_ring ? (int)ready.local_rank : 0;
    c->local_size = in_ring ? (int)ready.local_size : 1;
    return RM_OK;
}

/* Until the next round begins: as long as it takes to bring a lost rank back. */
static int elastic_timeout_ms(void)
{
    static const char *const names[] = { "RINGMASTER_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT" };
    for (int i = 0; i < 2; i++) {
        const char *text = getenv(names[i]);
        char *end;
        double seconds = text == NULL ? 0 : strtod(text, &end);
        if (text != NULL && end != text && *end == '\0' && seconds > 0)
            return seconds < 1e6 ? (int)(seconds * 1000) : 1000000000;
    }
    return ELASTIC_TIMEOUT_MS;
}

static int await_ready(struct client *c, int timeout_ms)
{
    struct talk_message m = { 0 };
    int got = talk_receive(&c->talk, timeout_ms, &m);
    if (got < 0)
        return got;
    if (got == 0)
        return text_fail(RM_TIMEOUT, "the sidecar did not let this process in within %d s", timeout_ms / 1000);
    int status;
    if (m.type == LOCAL_CLIENT_READY)
        status = take_ready(c, &m);
    else if (m.type == LOCAL_REFUSED && m.length > 4)
        status = text_fail(RM_INVALID, "the sidecar refuses this process: %.*s", (int)(m.length - 4), (const char *)m.payload + 4);
    else
        status = text_fail(RM_PEER_LOST, "the sidecar answered with message %u in place of a welcome", m.type);
    talk_drop(&c->talk, &m);
    return status;
}

static void forget(struct client *c)
{
    talk_close(&c->talk);
    requests_detach(&c->requests);
    arena_release(&c->small);
    arena_release(&c->large);
    if (c->gpu_settled)
        shared_unmap(&c->shared);
    else
        shared_abandon(&c->shared);
}

/* Signals are the program's business: none is delivered to our thread. */
static int start_thread(struct client *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&c->thread, NULL, client_thread, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why == 0 ? RM_OK : text_fail(RM_NO_MEMORY, "starting the completion thread: %s", strerror(why));
}

static int attach(struct client *c, const char *path, const char *framework)
{
    struct local_client_hello hello = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .pid = (uint32_t)getpid() };
    bool again = c->fence != 0; /* rm_shutdown went before: the environment may tell of a round that is over */
    hello.next_round = again && c->round_lost;
    if (again)
        hello.fence = c->fence;
    else if (!fence_from_environment(&hello.fence))
        return text_fail(RM_INVALID, "RINGMASTER_SOCKET is set but RINGMASTER_FENCE is not a number: this process was not started by "
                                     "ringmaster-launch; unset RINGMASTER_SOCKET to run alone");
    snprintf(hello.framework, sizeof(hello.framework), "%s", framework == NULL ? "" : framework);
    int fd = -1;
    int status = connect_socket(path, &fd);
    if (status != RM_OK)
        return status;
    talk_init(&c->talk, fd);
    c->lost = c->stopping = false;
    c->gpu_settled = true;
    c->report = (struct report){ 0 };
    memset(c->calls, 0, sizeof(c->calls));
    c->committed_step = -1;
    c->save_wanted = false;
    c->hosts = 0;
    c->stage_refused[0] = '\0';
    status = talk_send(&c->talk, LOCAL_CLIENT_HELLO, &hello, sizeof(hello));
    if (status == RM_OK)
        status = await_ready(c, hello.next_round ? elastic_timeout_ms() : ATTACH_TIMEOUT_MS);
    if (status == RM_OK)
        c->round_lost = false;
    if (status == RM_OK && c->listens)
        status = talk_send(&c->talk, LOCAL_LISTEN, NULL, 0);
    if (status == RM_OK)
        status = start_thread(c);
    if (status != RM_OK)
        forget(c);
    return status;
}

static bool is_own_thread(const struct client *c)
{
    int state = atomic_load(&c->state);
    return (state == CLIENT_ATTACHED || state == CLIENT_LEAVING) && pthread_equal(pthread_self(), c->thread);
}

/* The rest of rm_shutdown, once the completion thread has been told to end. With init_lock held. */
static void leave(struct client *c)
{
    pthread_join(c->thread, NULL);
    checkpoint_forget();
    gpu_close(&c->gpu, c->gpu_settled); /* without lock, which host functions take */
    pthread_mutex_lock(&c->lock);
    while (c->requests.pieces_in_flight > 0 || c->looking) /* other threads still copy into the arena, or look at the queue */
        pthread_cond_wait(&c->changed, &c->lock);
    forget(c);
    sets_forget(&c->sets);
    c->stopping = false;
    pthread_mutex_unlock(&c->lock);
    atomic_store(&c->state, CLIENT_NONE);
}

static int init_locked(struct client *c, const char *framework)
{
    static bool prepared;
    if (atomic_load(&c->forked))
        return client_ready();
    if (atomic_load(&c->state) == CLIENT_LEAVING)
        leave(c);
    if (atomic_load(&c->state) != CLIENT_NONE)
        return RM_OK;
    if (!prepared)
        once_a_process();
    prepared = true;
    gpu_allow(&c->gpu);
    const char *path = getenv("RINGMASTER_SOCKET");
    if (path == NULL || path[0] == '\0') {
        c->rank = c->local_rank = 0;
        c->size = c->local_size = 1;
        c->resume_step = -1;
        atomic_store(&c->state, CLIENT_ALONE);
        return RM_OK;
    }
    int status = attach(c, path, framework);
    if (status != RM_OK)
        return status;
    atomic_store(&c->state, CLIENT_ATTACHED);
    timeline_from_environment();
    return RM_OK;
}

RM_API int rm_init(const char *framework)
{
    if (is_own_thread(&the_client))
        return text_fail(RM_INVALID, "rm_init was called by a done callback, which runs on the library's own thread");
    pthread_mutex_lock(&the_client.init_lock);
    int status = init_locked(&the_client, framework);
    pthread_mutex_unlock(&the_client.init_lock);
    return status;
}

static void tell_to_stop(struct client *c)
{
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    shared_wake_us(&c->shared);
    pthread_mutex_unlock(&c->lock);
}

RM_API int rm_shutdown(void)
{
    struct client *c = &the_client;
    if (atomic_load(&c->forked))
        return RM_OK; /* nothing of it is ours */
    if (is_own_thread(c)) { /* a done callback: the thread cannot wait for itself; who comes next cleans up */
        tell_to_stop(c);
        int attached = CLIENT_ATTACHED;
        (void)atomic_compare_exchange_strong(&c->state, &attached, CLIENT_LEAVING);
        return RM_OK;
    }
    pthread_mutex_lock(&c->init_lock);
    int state = atomic_load(&c->state);
    if (state == CLIENT_ATTACHED || state == CLIENT_LEAVING) {
        tell_to_stop(c);
        leave(c);
    } else {
        checkpoint_forget();
        gpu_close(&c->gpu, true);
        atomic_store(&c->state, CLIENT_NONE);
    }
    pthread_mutex_unlock(&c->init_lock);
    return RM_OK;
}

/* ---- the time line, by call ---- */

RM_API int rm_timeline_start(const char *path, int mark_cycles)
{
    return timeline(true, path, mark_cycles != 0);
}

RM_API int rm_timeline_stop(void)
{
    return timeline(false, "", false);
}

/* ---- other rounds ---- */

RM_API int rm_hosts_listen(void)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    bool said = c->listens;
    c->listens = true;
    pthread_mutex_unlock(&c->lock);
    return said || atomic_load(&c->state) == CLIENT_ALONE ? RM_OK : client_send(c, LOCAL_LISTEN, NULL, 0);
}

RM_API int rm_hosts_updated(void)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    uint32_t bits = c->hosts;
    c->hosts = 0;
    pthread_mutex_unlock(&c->lock);
    return (int)(bits & (LOCAL_HOSTS_REMOVED | LOCAL_HOSTS_ADDED));
}

RM_API int rm_next_round(void)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    c->round_lost = true;
    pthread_mutex_unlock(&c->lock);
    return RM_OK;
}

/* ---- small answers ---- */

RM_API const char *rm_version(void)
{
    return RINGMASTER_VERSION;
}

RM_API const char *rm_error_text(void)
{
    return text_last();
}

RM_API int rm_abi_version(void)
{
    return RM_ABI_VERSION;
}

RM_API int rm_is_initialized(void)
{
    int state = atomic_load(&the_client.state);
    return !atomic_load(&the_client.forked) && (state == CLIENT_ALONE || state == CLIENT_ATTACHED);
}

RM_API int rm_rank(void)
{
    return client_ready() == RM_OK ? the_client.rank : RM_NOT_INITIALIZED;
}

RM_API int rm_size(void)
{
    return client_ready() == RM_OK ? the_client.size : RM_NOT_INITIALIZED;
}

RM_API int rm_local_rank(void)
{
    return client_ready() == RM_OK ? the_client.local_rank : RM_NOT_INITIALIZED;
}

RM_API int rm_local_size(void)
{
    return client_ready() == RM_OK ? the_client.local_size : RM_NOT_INITIALIZED;
}

RM_API int64_t rm_resume_step(void)
{
    return client_ready() == RM_OK ? the_client.resume_step : -1;
}
