#include "cli/tracemerge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "base/json.h"
#include "base/mem.h"

#define LINE_MAX_BYTES (64u << 10)

struct reader { FILE *in; const char *path; char *line; size_t cap; int64_t number; };

static int reader_open(struct reader *r, const char *path, struct error *e)
{
    *r = (struct reader){ .in = fopen(path, "re"), .path = path };
    if (r->in == NULL)
        return error_errno(e, "open %s", path);
    (void)flock(fileno(r->in), LOCK_SH); /* a sidecar may be writing to it */
    return 0;
}

static void reader_close(struct reader *r)
{
    free(r->line);
    if (r->in != NULL)
        (void)fclose(r->in);
}

/* 1: an event; 0: the end; -1. */
static int reader_next(struct reader *r, cJSON **ret_event, struct error *e)
{
    for (;;) {
        ssize_t len = getline(&r->line, &r->cap, r->in);
        if (len < 0)
            return ferror(r->in) ? error_errno(e, "read %s", r->path) : 0;
        r->number++;
        while (len > 0 && strchr(",\n\r ", r->line[len - 1]) != NULL)
            len--;
        if (len == 0 || (len == 1 && (r->line[0] == '[' || r->line[0] == ']')))
            continue;
        if (len > (ssize_t)LINE_MAX_BYTES)
            return error_set(e, ERROR_LIMIT, "%s line %lld: too long for a time line", r->path, (long long)r->number);
        if (json_parse(r->line, (size_t)len, ret_event, e) < 0)
            return error_wrap(e, "%s line %lld is no event of a time line", r->path, (long long)r->number);
        return 1;
    }
}

/* ---- heads ---- */

static void take_head(const cJSON *event, struct trace_file *f, bool *ret_is_ours)
{
    const char *name = json_text(event, "name", "");

    if (strcmp(json_text(event, "ph", ""), "M") != 0)
        return;
    if (strcmp(name, "start_time_since_epoch_in_micros") == 0) {
        f->start_us = json_int(event, "args.start_time_since_epoch_in_micros", 0);
    } else if (strcmp(name, "ringmaster") == 0) {
        f->rank = (int32_t)json_int(event, "args.rank", 0);
        f->size = (int32_t)json_int(event, "args.size", 0);
        (void)snprintf(f->member, sizeof f->member, "%s", json_text(event, "args.member", ""));
        (void)snprintf(f->job_uid, sizeof f->job_uid, "%s", json_text(event, "args.job_uid", ""));
        *ret_is_ours = f->rank >= 0 && f->size > f->rank && f->start_us > 0;
    } else if (strcmp(name, "clock") == 0) {
        int64_t error_ns = json_int(event, "args.error_ns", -1);
        if (error_ns >= 0 && (f->error_ns < 0 || error_ns <= f->error_ns)) {
            f->error_ns = error_ns;
            f->offset_ns = json_int(event, "args.offset_ns", 0);
        }
    }
}

int trace_file_read(const char *path, struct trace_file *ret, struct error *e)
{
    struct trace_file f = { .error_ns = -1 };
    struct reader r;
    bool is_ours = false;
    int got;

    if (reader_open(&r, path, e) < 0)
        return -1;
    for (;;) {
        auto_json cJSON *event = NULL;
        got = reader_next(&r, &event, e);
        if (got <= 0)
            break;
        take_head(event, &f, &is_ours);
        if (!is_ours && r.number > 3) {
            got = 0;
            break;
        }
    }
    reader_close(&r);
    if (got < 0)
        return -1;
    if (!is_ours)
        return error_set(e, ERROR_INVALID, "%s is no time line of Ringmaster", path);
    f.path = xasprintf("%s", path);
    *ret = f;
    return 0;
}

int trace_files_check(const struct trace_file *files, size_t count, struct error *e)
{
    for (size_t i = 1; i < count; i++) {
        if (strcmp(files[i].job_uid, files[0].job_uid) != 0)
            return error_set(e, ERROR_INVALID, "%s and %s are of different jobs", files[0].path, files[i].path);
        for (size_t k = 0; k < i; k++) {
            if (files[i].rank == files[k].rank)
                return error_set(e, ERROR_INVALID, "%s and %s are both of rank %d", files[k].path, files[i].path, files[i].rank);
        }
    }
    return 0;
}

/* ---- events ---- */

static double on_common_clock_us(const struct trace_file *f, int64_t base_us)
{
    return (double)(f->start_us - base_us) + (double)f->offset_ns / 1000;
}

static void put(FILE *out, const cJSON *event, int64_t *events)
{
    auto_free char *text = json_print(event, false);

    (void)fprintf(out, "%s%s", (*events)++ == 0 ? "" : ",\n", text);
}

static void put_name(FILE *out, const char *what, int32_t pid, int64_t tid, const char *name, int64_t *events)
{
    auto_json cJSON *o = json_object();
    cJSON *args = json_object();

    json_put_text(o, "name", what);
    json_put_text(o, "ph", "M");
    json_put_int(o, "pid", pid);
    json_put_int(o, "tid", tid);
    json_put_text(args, "name", name);
    json_put(o, "args", args);
    put(out, o, events);
}

static void replace(cJSON *o, const char *key, double number)
{
    cJSON_DeleteItemFromObjectCaseSensitive(o, key);
    json_put_double(o, key, number);
}

/* Rank and tensor change places: pid was the tensor. */
static void put_event(FILE *out, const struct trace_file *f, cJSON *event, double shift_us, int64_t *events)
{
    int64_t row = json_int(event, "pid", 0);
    const char *name = json_text(event, "name", "");

    if (strcmp(json_text(event, "ph", ""), "M") == 0) {
        if (strcmp(name, "process_name") == 0)
            put_name(out, "thread_name", f->rank, row, json_text(event, "args.name", ""), events);
        return;
    }
    replace(event, "ts", json_double(event, "ts", 0) + shift_us);
    replace(event, "pid", f->rank);
    replace(event, "tid", (double)row);
    put(out, event, events);
}

static int merge_one(const struct trace_file *f, int64_t base_us, FILE *out, int64_t *events, struct error *e)
{
    auto_free char *name = xasprintf("rank %d (%s)", f->rank, f->member);
    struct reader r;
    int got;

    if (reader_open(&r, f->path, e) < 0)
        return -1;
    put_name(out, "process_name", f->rank, 0, name, events);
    put_name(out, "thread_name", f->rank, 0, "the round", events);
    for (;;) {
        auto_json cJSON *event = NULL;
        got = reader_next(&r, &event, e);
        if (got <= 0)
            break;
        put_event(out, f, event, on_common_clock_us(f, base_us), events);
    }
    reader_close(&r);
    return got;
}

int trace_merge(const struct trace_file *files, size_t count, FILE *out, int64_t *ret_events, struct error *e)
{
    int64_t base_us = INT64_MAX;

    *ret_events = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t began_us = files[i].start_us + files[i].offset_ns / 1000;
        base_us = began_us < base_us ? began_us : base_us;
    }
    (void)fputs("[\n", out);
    for (size_t i = 0; i < count; i++) {
        if (merge_one(&files[i], base_us, out, ret_events, e) < 0)
            return -1;
    }
    (void)fputs("\n]\n", out);
    return fflush(out) != 0 || ferror(out) ? error_errno(e, "write the time line") : 0;
}
