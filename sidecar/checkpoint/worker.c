#include "sidecar/checkpoint/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

struct queue { struct worker_job *first, **last; };

struct worker {
    const char *name;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct queue to_do, done; /* under lock */
    bool stop;                /* under lock */
    int event_fd;             /* rung when done gets a job */
    struct loop_source *source;
};

static void queue_init(struct queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

static void queue_add(struct queue *q, struct worker_job *job)
{
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
}

static struct worker_job *queue_take(struct queue *q)
{
    struct worker_job *job = q->first;
    if (job != NULL && (q->first = job->next) == NULL)
        q->last = &q->first;
    return job;
}

static struct worker_job *next_job(struct worker *w)
{
    (void)pthread_mutex_lock(&w->lock);
    while (!w->stop && w->to_do.first == NULL)
        (void)pthread_cond_wait(&w->more, &w->lock);
    struct worker_job *job = w->stop ? NULL : queue_take(&w->to_do);
    (void)pthread_mutex_unlock(&w->lock);
    return job;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    (void)pthread_setname_np(pthread_self(), w->name);
    for (struct worker_job *job; (job = next_job(w)) != NULL;) {
        job->work(job);
        (void)pthread_mutex_lock(&w->lock);
        queue_add(&w->done, job);
        (void)pthread_mutex_unlock(&w->lock);
        (void)eventfd_write(w->event_fd, 1);
    }
    return NULL;
}

static void on_done(void *ctx, int fd, unsigned events)
{
    struct worker *w = ctx;
    eventfd_t count;
    (void)events;
    (void)eventfd_read(fd, &count);
    (void)pthread_mutex_lock(&w->lock);
    struct worker_job *jobs = w->done.first;
    queue_init(&w->done);
    (void)pthread_mutex_unlock(&w->lock);
    for (struct worker_job *next; jobs != NULL; jobs = next) {
        next = jobs->next;
        jobs->done(jobs);
        jobs->release(jobs);
    }
}

int worker_new(struct loop *loop, const char *name, struct worker **ret_worker, struct error *e)
{
    struct worker *w = xcalloc(1, sizeof(*w));
    w->name = name;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->more, NULL);
    queue_init(&w->to_do);
    queue_init(&w->done);
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event_fd < 0) {
        (void)error_errno(e, "make eventfd");
        free(w);
        return -1;
    }
    if (loop_add(loop, w->event_fd, LOOP_READ, on_done, w, &w->source, e) != 0) {
        (void)close(w->event_fd);
        free(w);
        return -1;
    }
    errno = pthread_create(&w->thread, NULL, worker_main, w);
    if (errno != 0) {
        (void)error_errno(e, "start thread %s", name);
        loop_remove(w->source);
        (void)close(w->event_fd);
        free(w);
        return -1;
    }
    *ret_worker = w;
    return 0;
}

void worker_run(struct worker *w, struct worker_job *job)
{
    (void)pthread_mutex_lock(&w->lock);
    queue_add(&w->to_do, job);
    (void)pthread_cond_signal(&w->more);
    (void)pthread_mutex_unlock(&w->lock);
}

void worker_free(struct worker *w)
{
    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    (void)pthread_cond_signal(&w->more);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    loop_remove(w->source);
    (void)close(w->event_fd);
    for (struct worker_job *job; (job = queue_take(&w->to_do)) != NULL;)
        job->release(job);
    for (struct worker_job *job; (job = queue_take(&w->done)) != NULL;)
        job->release(job);
    (void)pthread_cond_destroy(&w->more);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
