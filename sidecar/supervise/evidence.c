#include "sidecar/supervise/evidence.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "sidecar/checkpoint/worker.h"

struct evidence {
    struct worker *worker;
    const char *dir;
};

struct writing {
    struct worker_job job; /* first */
    char *dir, *path, *text;
    struct error why;
    evidence_fn *done;
    void *ctx;
};

static int write_all(int fd, const char *text, const char *path, struct error *e)
{
    for (size_t len = strlen(text); len > 0;) {
        ssize_t n = TEMP_FAILURE_RETRY(write(fd, text, len));
        if (n <= 0)
            return error_errno(e, "write %s", path);
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

static void work(struct worker_job *job)
{
    struct writing *w = (struct writing *)(void *)job;

    if (fs_mkdirs(w->dir, 0755, &w->why) != 0)
        return;
    auto_close int fd = open(w->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        (void)error_errno(&w->why, "create %s", w->path);
    else
        (void)write_all(fd, w->text, w->path, &w->why);
}

static void done(struct worker_job *job)
{
    struct writing *w = (struct writing *)(void *)job;

    if (w->done != NULL)
        w->done(w->ctx, w->path, w->why.kind != ERROR_NONE ? &w->why : NULL);
}

static void release(struct worker_job *job)
{
    struct writing *w = (struct writing *)(void *)job;

    free(w->dir);
    free(w->path);
    free(w->text);
    free(w);
}

int evidence_new(struct loop *l, const char *dir, struct evidence **ret, struct error *e)
{
    struct evidence *v = xcalloc(1, sizeof *v);

    v->dir = dir;
    if (worker_new(l, "evidence", &v->worker, e) != 0) {
        free(v);
        return -1;
    }
    *ret = v;
    return 0;
}

void evidence_write(struct evidence *v, const char *name, const char *file, char *text, evidence_fn *fn, void *ctx)
{
    struct writing *w = xcalloc(1, sizeof *w);

    *w = (struct writing){ .job = { .work = work, .done = done, .release = release }, .text = text, .done = fn, .ctx = ctx };
    w->dir = fs_join(v->dir, name);
    w->path = fs_join(w->dir, file);
    worker_run(v->worker, &w->job);
}

const char *evidence_dir(const struct evidence *v)
{
    return v->dir;
}

void evidence_free(struct evidence *v)
{
    if (v == NULL)
        return;
    worker_free(v->worker);
    free(v);
}
