#include "checkpoint/volume_s3.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/layout.h"
#include "checkpoint/volume_s3_parts.h"
#include "s3/xml.h"

#define PAGES_MAX 10000
#define FIRST_KEYS 8 /* the markers of a generation are fewer, and come before all other names */

static struct volume_s3 *s3_of(struct volume *v)
{
    return (struct volume_s3 *)v;
}

char *volume_s3_key(const struct volume_s3 *s, const char *path)
{
    return path[0] == '\0' ? xstrdup(s->root) : s->root[0] == '\0' ? xstrdup(path) : xasprintf("%s/%s", s->root, path);
}

static void s3_close(struct volume *v)
{
    struct volume_s3 *s = s3_of(v);
    s3_free(s->client);
    free(s->root);
    free(s->scratch);
    free(v->name);
    free(s);
}

/* ---- listing ---------------------------------------------------------------------------------------------------------- */

struct page { char *token; bool more; };

/* The names of one page: "…/dir/NAME" of objects, "…/dir/NAME/" of what is below. */
static int page_names(struct xml answer, const char *element, const char *field, const char *prefix, volume_name_fn *fn, void *ctx, struct error *e)
{
    struct xml entry;
    size_t n = strlen(prefix);
    while (xml_next(&answer, element, &entry)) {
        auto_free char *key = xml_text(entry, field);
        if (key == NULL || strncmp(key, prefix, n) != 0)
            continue;
        size_t len = strlen(key);
        if (len > n && key[len - 1] == '/')
            key[len - 1] = '\0';
        if (key[n] != '\0' && fn(ctx, key + n, e) != 0)
            return -1;
    }
    return 0;
}

/* `delimiter` "" goes into everything below. max 0: as many as there are. */
static int list_keys(struct volume_s3 *s, const char *prefix, const char *delimiter, int max, volume_name_fn *fn, void *ctx, struct error *e)
{
    struct page page = { .token = NULL, .more = true };
    char count[12];
    int result = 0;
    (void)snprintf(count, sizeof(count), "%d", max > 0 ? max : 1000);
    for (int pages = 0; page.more && result == 0; pages++) {
        struct s3_request r = { .method = "GET", .key = "", .query = { { "list-type", "2" }, { "prefix", prefix }, { "max-keys", count } }, .query_count = 3 };
        auto_s3_answer struct s3_answer a = { .body = NULL };
        if (delimiter[0] != '\0')
            r.query[r.query_count++] = (struct sign_pair){ "delimiter", delimiter };
        if (page.token != NULL)
            r.query[r.query_count++] = (struct sign_pair){ "continuation-token", page.token };
        result = pages == PAGES_MAX ? error_set(e, ERROR_LIMIT, "%s holds too many objects", s->volume.name) : s3_call(s->client, &r, &a, e);
        if (result != 0)
            break;
        struct xml answer = { a.body, a.len };
        result = page_names(answer, "Contents", "Key", prefix, fn, ctx, e);
        if (result == 0)
            result = page_names(answer, "CommonPrefixes", "Prefix", prefix, fn, ctx, e);
        auto_free char *truncated = xml_text(answer, "IsTruncated");
        free(page.token);
        page.token = xml_text(answer, "NextContinuationToken");
        page.more = max == 0 && truncated != NULL && strcmp(truncated, "true") == 0 && page.token != NULL;
    }
    free(page.token);
    return result;
}

static int s3_list(struct volume *v, const char *dir, volume_name_fn *fn, void *ctx, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_free char *key = volume_s3_key(s, dir), *prefix = key[0] != '\0' ? xasprintf("%s/", key) : xstrdup("");
    return list_keys(s, prefix, "/", 0, fn, ctx, e);
}

struct finding { const char *const *names; size_t count; bool *there; };

static int find_name(void *ctx, const char *name, struct error *e)
{
    struct finding *f = ctx;
    (void)e;
    for (size_t i = 0; i < f->count; i++)
        f->there[i] = f->there[i] || strcmp(f->names[i], name) == 0;
    return 0;
}

static int s3_has(struct volume *v, const char *dir, const char *const *names, size_t count, bool *ret_there, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    struct finding f = { names, count, ret_there };
    auto_free char *key = volume_s3_key(s, dir), *prefix = xasprintf("%s/", key);
    memset(ret_there, 0, count * sizeof(*ret_there));
    return list_keys(s, prefix, "", FIRST_KEYS, find_name, &f, e);
}

/* ---- small objects ---------------------------------------------------------------------------------------------------- */

static int s3_stat(struct volume *v, const char *path, struct volume_stat *ret_stat, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_free char *key = volume_s3_key(s, path);
    auto_s3_answer struct s3_answer a = { .body = NULL };
    struct s3_request r = { .method = "HEAD", .key = key };
    if (s3_call(s->client, &r, &a, e) != 0)
        return -1;
    *ret_stat = (struct volume_stat){ .bytes = a.length, .modified_wall_ms = a.modified_wall_ms };
    return 0;
}

static int get(struct volume_s3 *s, const char *path, struct s3_answer *ret, struct error *e)
{
    auto_free char *key = volume_s3_key(s, path);
    struct s3_request r = { .method = "GET", .key = key };
    return s3_call(s->client, &r, ret, e);
}

static int s3_read(struct volume *v, const char *path, size_t max, char **ret_text, size_t *ret_len, struct error *e)
{
    auto_s3_answer struct s3_answer a = { .body = NULL };
    if (get(s3_of(v), path, &a, e) != 0)
        return -1;
    if (a.len > max)
        return error_set(e, ERROR_LIMIT, "%s/%s has %zu bytes, at most %zu are read", v->name, path, a.len, max);
    *ret_len = a.len;
    *ret_text = TAKE(a.body);
    return 0;
}

static int s3_read_range(struct volume *v, const char *path, uint64_t offset, void *bytes, size_t len, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_free char *key = volume_s3_key(s, path);
    return volume_s3_get_range(s, key, offset, bytes, len, e);
}

static int put(struct volume_s3 *s, const char *path, const char *text, bool only_if_absent, struct error *e)
{
    auto_free char *key = volume_s3_key(s, path);
    char sum[VOLUME_S3_CRC_MAX];
    volume_s3_crc(crc64nvme(0, text, strlen(text)), sum);
    struct s3_request r = { .method = "PUT", .key = key, .body = text, .body_len = strlen(text),
                            .headers = { { "x-amz-checksum-crc64nvme", sum } }, .header_count = 1 };
    if (only_if_absent)
        r.headers[r.header_count++] = (struct sign_pair){ "if-none-match", "*" };
    return s3_call(s->client, &r, NULL, e);
}

static int s3_replace(struct volume *v, const char *path, const char *text, struct error *e)
{
    return put(s3_of(v), path, text, false, e);
}

/* Whoever's text is there was first: ours after a lost answer too. Looked at before as well, for servers that ignore the condition: two
 * that write in the same moment are told apart there by the fence alone (docs/internals/checkpoint.md). */
static int s3_create(struct volume *v, const char *path, const char *unique, const char *text, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_s3_answer struct s3_answer a = { .body = NULL };
    (void)unique;
    if (get(s, path, &a, e) != 0) {
        if (e->kind != ERROR_NOT_FOUND || (put(s, path, text, true, e) != 0 && e->kind != ERROR_CONFLICT) || get(s, path, &a, e) != 0)
            return -1;
    }
    return strcmp(a.body, text) == 0 ? 0 : error_set(e, ERROR_CONFLICT, "%s/%s exists already: somebody else was first", v->name, path);
}

static int s3_make_dir(struct volume *v, const char *dir, struct error *e)
{
    (void)v;
    (void)dir;
    (void)e;
    return 0;
}

static int delete_key(struct volume_s3 *s, const char *key, struct error *e)
{
    struct s3_request r = { .method = "DELETE", .key = key };
    return s3_call(s->client, &r, NULL, e) == 0 || e->kind == ERROR_NOT_FOUND ? 0 : -1;
}

static int s3_remove(struct volume *v, const char *path, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_free char *key = volume_s3_key(s, path);
    return delete_key(s, key, e);
}

static int s3_move(struct volume *v, const char *dir, const char *from, const char *to, struct error *e)
{
    auto_free char *old = fs_join(dir, from), *new = fs_join(dir, to);
    auto_s3_answer struct s3_answer a = { .body = NULL };
    if (get(s3_of(v), old, &a, e) != 0 || put(s3_of(v), new, a.body, false, e) != 0)
        return -1;
    return s3_remove(v, old, e);
}

/* ---- removal ---------------------------------------------------------------------------------------------------------- */

struct names { char **items; size_t count, cap; };

static int take_name(void *ctx, const char *name, struct error *e)
{
    struct names *n = ctx;
    (void)e;
    if (n->count == n->cap) {
        n->cap = n->cap > 0 ? n->cap * 2 : 64;
        n->items = xrealloc(n->items, n->cap, sizeof(*n->items));
    }
    n->items[n->count++] = xstrdup(name);
    return 0;
}

/* COMMIT first, so that no reader begins; then everything; then what was still on its way up. */
static int s3_remove_dir(struct volume *v, const char *dir, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_free char *commit = fs_join(dir, LAYOUT_COMMIT), *key = volume_s3_key(s, dir), *prefix = xasprintf("%s/", key);
    struct names all = { .items = NULL };
    int result = s3_remove(v, commit, e);
    if (result == 0)
        result = list_keys(s, prefix, "", 0, take_name, &all, e);
    for (size_t i = 0; i < all.count; i++) {
        auto_free char *object = xasprintf("%s%s", prefix, all.items[i]);
        if (result == 0)
            result = delete_key(s, object, e);
        free(all.items[i]);
    }
    free(all.items);
    return result != 0 ? -1 : volume_s3_abort_uploads(s, prefix, UINT64_MAX, e);
}

static int s3_sweep(struct volume *v, uint64_t epoch, struct error *e)
{
    struct volume_s3 *s = s3_of(v);
    auto_free char *prefix = xasprintf("%s/", s->root);
    return volume_s3_abort_uploads(s, prefix, epoch, e);
}

static bool never(const char *name)
{
    (void)name;
    return false;
}

static const struct volume_ops OPS = {
    .close = s3_close, .list = s3_list, .has = s3_has, .stat = s3_stat, .read = s3_read, .read_range = s3_read_range, .replace = s3_replace,
    .create = s3_create, .make_dir = s3_make_dir, .move = s3_move, .remove = s3_remove, .remove_dir = s3_remove_dir,
    .write_image = volume_s3_write_image, .read_image = volume_s3_read_image, .is_leftover = never, .sweep = s3_sweep,
};

int volume_s3_new(const char *place, const char *job_uid, const struct volume_options *options, struct volume **ret_volume, struct error *e)
{
    static const struct s3_config NONE = { .endpoint = NULL };
    const char *bucket = place + strlen("s3://"), *slash = strchr(bucket, '/');
    auto_free char *name = xstrndup(bucket, slash != NULL ? (size_t)(slash - bucket) : strlen(bucket));
    auto_free char *prefix = xstrdup(slash != NULL ? slash + 1 : "");
    struct s3_client *client;
    while (prefix[0] != '\0' && prefix[strlen(prefix) - 1] == '/')
        prefix[strlen(prefix) - 1] = '\0';
    if (strlen(prefix) > 700 || strstr(prefix, "//") != NULL || prefix[0] == '/')
        return error_set(e, ERROR_INVALID, "%.200s: a prefix has at most 700 bytes and no empty parts", place);
    if (s3_new(options->s3 != NULL ? options->s3 : &NONE, name, &client, e) != 0)
        return error_wrap(e, "%.200s", place);
    struct volume_s3 *s = xcalloc(1, sizeof(*s));
    s->client = client;
    s->root = job_uid == NULL ? xstrdup(prefix) : prefix[0] != '\0' ? xasprintf("%s/%s", prefix, job_uid) : xstrdup(job_uid);
    s->scratch = xstrdup(options->scratch != NULL ? options->scratch : "/tmp");
    s->volume = (struct volume){ .ops = &OPS, .name = xasprintf("s3://%s/%s", name, s->root) };
    *ret_volume = &s->volume;
    return 0;
}
