/*
 * Bytes of a watch stream, cut as its first byte says: lines, frames, objects into a cache, the watch's own steps, a Status, a
 * Lease. What the API server sends is not trusted to be what it should.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kube/cache.h"
#include "kube/lease.h"
#include "kube/line.h"
#include "kube/request.h"
#include "kube/strip.h"
#include "kube/watch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world { struct kube_cache *cache; struct kube_watch *watch; int64_t now_ms; };

static bool project(void *ctx, const cJSON *object, void *ret_entry)
{
    (void)ctx;
    *(int64_t *)ret_entry = json_int(object, "status.phase", 1);
    return !kube_deleting(object);
}

/* JSON stays JSON, and what no path names stays as it is. */
static void check_strip(const char *line, size_t len)
{
    static const char *const PATHS[] = { "metadata.managedFields", "spec.containers.env", "status", NULL };
    static const char *const NONE[] = { "x.y.z", NULL };
    auto_buf struct buf stripped = BUF_INIT(JSON_MAX_BYTES), same = BUF_INIT(JSON_MAX_BYTES);
    auto_json cJSON *tree = NULL;
    struct error e;

    kube_strip(line, len, "object", PATHS, &stripped);
    if (json_parse(buf_text(&stripped), stripped.len, &tree, &e) < 0 || json_at(json_at(tree, "object"), "status") != NULL)
        abort();
    kube_strip(line, len, "object", NONE, &same);
    if (same.len != len || memcmp(buf_text(&same), line, len) != 0)
        abort();
}

static void on_line(void *ctx, const char *line, size_t len)
{
    struct world *w = ctx;
    struct kube_status status;
    struct kube_lease_record record;
    struct kube_watch_output out;
    struct kube_key key;
    auto_json cJSON *frame = NULL;
    struct error e;

    if (strlen(line) > len || len == 0)
        abort(); /* a NUL may be in it, an end not past it */
    w->now_ms += 100;
    if (json_parse(line, len, &frame, &e) < 0)
        return;
    check_strip(line, len);
    const cJSON *object = json_at(frame, "object");
    int code;
    kube_status_object_error(object, &code, &status, &e);
    kube_status_error(code, line, len, "fuzz", &status, &e);
    (void)kube_lease_read(object, &record);
    auto_json cJSON *patch = kube_finalizer_patch(object, "ringmaster.dev/job", true);
    auto_json cJSON *undo = kube_finalizer_patch(object, "ringmaster.dev/job", false);
    if (patch != NULL && undo != NULL)
        abort();
    kube_watch_step(w->watch, &(struct kube_watch_input){ .kind = KUBE_WATCH_EVENT, .event = KUBE_ADDED, .version = kube_version(object) },
                    w->now_ms, &out);
    kube_cache_put(w->cache, object);
    if (kube_object_key(object, &key) && strcmp(json_text(frame, "type", ""), "DELETED") == 0)
        kube_cache_drop(w->cache, &key, kube_uid(object));
    if (strcmp(json_text(frame, "type", ""), "BOOKMARK") == 0) {
        kube_cache_commit(w->cache);
        kube_cache_begin(w->cache);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w = { .cache = kube_cache_new(&(struct kube_cache_def){ .entry_size = sizeof(int64_t), .project = project }),
                       .watch = kube_watch_new(&(struct kube_watch_options){ .seed = 1, .no_streaming = true }), .now_ms = 1000 };
    struct kube_watch_output out;
    struct kube_lines lines;
    struct error e;

    kube_watch_step(w.watch, &(struct kube_watch_input){ .kind = KUBE_WATCH_START }, w.now_ms, &out);
    kube_watch_step(w.watch, &(struct kube_watch_input){ .kind = KUBE_WATCH_PAGE, .version = "1" }, w.now_ms, &out);
    kube_lines_init(&lines, 4096, size > 0 && data[0] % 2 != 0);
    size_t piece = size > 0 ? data[0] % 61 + 1 : 1;
    for (size_t at = 0; at < size; at += piece)
        if (kube_lines_feed(&lines, (const char *)data + at, size - at < piece ? size - at : piece, on_line, &w, &e) < 0)
            break;
    kube_lines_end(&lines, on_line, &w);
    kube_lines_release(&lines);
    kube_watch_free(w.watch);
    kube_cache_free(w.cache);
    return 0;
}
