#include "sidecar/supervise/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#define STACKS_LIMIT_MS 6000 /* until the launcher has answered; the coordinator waits a little longer */
#define FILE_MAX (2u << 20)

struct watch {
    struct attach *attach;
    struct evidence *evidence;
    int64_t interval_ms;
    watch_dumped_fn *dumped;
    void *ctx;
    struct loop_timer *look, *limit;
    bool runs, has_signs;
    uint64_t cpu_ms;
    int64_t at_ms;
    char name[64], file[PEER_MEMBER_MAX + 8]; /* of the dump under way; name "" = none */
    char *head;
};

/* ---- signs ---- */

static void look(void *ctx)
{
    struct watch *w = ctx;

    if (!w->runs || w->interval_ms == 0)
        return;
    (void)attach_look(w->attach, LOCAL_LOOK_SIGNS);
    loop_timer_at(w->look, clock_mono_ms() + w->interval_ms);
}

void watch_process(struct watch *w, bool runs)
{
    if (w->runs == runs)
        return;
    w->runs = runs;
    w->has_signs = false;
    if (runs)
        look(w);
    else
        loop_timer_cancel(w->look);
}

void watch_signs(struct watch *w, const struct local_signs *signs, int64_t now_ms, struct progress_view *view)
{
    int64_t passed_ms = now_ms - w->at_ms;

    if (w->has_signs && passed_ms > 0)
        view->cpu_percent = signs->cpu_ms > w->cpu_ms ? (int32_t)((int64_t)(signs->cpu_ms - w->cpu_ms) * 100 / passed_ms) : 0;
    view->written = (int64_t)signs->written_bytes;
    view->traced = signs->traced != 0;
    w->has_signs = true;
    w->cpu_ms = signs->cpu_ms;
    w->at_ms = now_ms;
}

/* ---- stacks ---- */

static void on_written(void *ctx, const char *path, const struct error *why)
{
    struct watch *w = ctx;

    if (why != NULL)
        log_warn_from("evidence cannot be kept", why);
    else
        log_info("evidence written", KV("path", path));
    w->name[0] = '\0';
    w->dumped(w->ctx);
}

static void write_down(struct watch *w, const char *text, size_t len)
{
    auto_buf struct buf b = BUF_INIT(FILE_MAX);

    loop_timer_cancel(w->limit);
    buf_add(&b, w->head);
    buf_add_bytes(&b, text, len);
    free(w->head);
    w->head = NULL;
    char *plain = buf_take(&b);
    text_make_plain(plain);
    evidence_write(w->evidence, w->name, w->file, plain, on_written, w);
}

static void on_limit(void *ctx)
{
    static const char none[] = "\nthe launcher did not tell the stacks in time\n";

    write_down(ctx, none, sizeof none - 1);
}

void watch_stacks(struct watch *w, const char *text, size_t len)
{
    if (w->head != NULL)
        write_down(w, text, len);
}

void watch_dump(struct watch *w, const char *name, const char *member, char *head)
{
    static const char none[] = "\nno launcher is connected: nothing runs here\n";

    if (w->name[0] != '\0') {
        free(head);
        return;
    }
    (void)snprintf(w->name, sizeof w->name, "%s", name);
    (void)snprintf(w->file, sizeof w->file, "%s.txt", member);
    w->head = head;
    loop_timer_at(w->limit, clock_mono_ms() + STACKS_LIMIT_MS);
    if (!attach_look(w->attach, LOCAL_LOOK_STACKS))
        write_down(w, none, sizeof none - 1);
}

struct watch *watch_new(struct loop *l, struct attach *a, struct evidence *evidence, int64_t interval_ms, watch_dumped_fn *dumped, void *ctx)
{
    struct watch *w = xcalloc(1, sizeof *w);

    *w = (struct watch){ .attach = a, .evidence = evidence, .interval_ms = interval_ms, .dumped = dumped, .ctx = ctx };
    w->look = loop_timer_new(l, look, w);
    w->limit = loop_timer_new(l, on_limit, w);
    return w;
}

void watch_free(struct watch *w)
{
    if (w == NULL)
        return;
    loop_timer_free(w->look);
    loop_timer_free(w->limit);
    free(w->head);
    free(w);
}
