#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "kube/cache.h"

struct pod { int64_t phase; char *owned; };

static struct buf changes = BUF_INIT(1 << 20);
static int owned_alive;

static bool project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct pod *p = ret_entry;

    (void)ctx;
    p->phase = json_int(object, "status.phase", 0);
    p->owned = xstrdup("x");
    owned_alive++;
    return !json_bool(object, "ignored", false);
}

static void release(void *ctx, void *entry)
{
    struct pod *p = entry;

    (void)ctx;
    free(p->owned);
    owned_alive--;
}

static void changed(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    const struct pod *was = before, *is = after;

    (void)ctx;
    buf_addf(&changes, "%s%s/%s:%lld>%lld", changes.len > 0 ? " " : "", key->ns, key->name, was != NULL ? (long long)was->phase : -1,
             is != NULL ? (long long)is->phase : -1);
}

static struct kube_cache *make(void)
{
    buf_clear(&changes);
    return kube_cache_new(&(struct kube_cache_def){ .entry_size = sizeof(struct pod), .project = project, .release = release, .changed = changed });
}

static cJSON *object(const char *ns, const char *name, const char *uid, const char *version, const char *owner, int phase)
{
    cJSON *o = json_object(), *m = json_object(), *s = json_object();

    json_put(o, "metadata", m);
    json_put_text(m, "namespace", ns);
    json_put_text(m, "name", name);
    json_put_text(m, "uid", uid);
    json_put_text(m, "resourceVersion", version);
    if (owner != NULL) {
        cJSON *list = json_array();
        json_append(list, kube_owner_reference(&(struct kube_resource){ "g", "v1", "owners", "Owner", false }, "o", owner));
        json_put(m, "ownerReferences", list);
    }
    json_put(o, "status", s);
    json_put_int(s, "phase", phase);
    return o;
}

static void put(struct kube_cache *c, const char *name, const char *version, const char *owner, int phase)
{
    auto_json cJSON *o = object("n", name, "u", version, owner, phase);

    kube_cache_put(c, o);
}

static struct kube_key key_of(const char *ns, const char *name)
{
    struct kube_key key;

    cr_assert(kube_key_set(&key, ns, name));
    return key;
}

Test(cache, reports_what_is_new_changed_and_gone)
{
    struct kube_cache *c = make();
    struct kube_key a = key_of("n", "a");

    put(c, "a", "1", NULL, 10);
    put(c, "a", "1", NULL, 99);
    put(c, "a", "2", NULL, 11);
    kube_cache_drop(c, &a, "u");
    kube_cache_drop(c, &a, "u");
    cr_expect_str_eq(buf_text(&changes), "n/a:-1>10 n/a:10>11 n/a:11>-1", "%s", buf_text(&changes));
    cr_expect_null(kube_cache_get(c, &a));
    kube_cache_free(c);
    cr_expect_eq(owned_alive, 0);
}

Test(cache, a_list_reports_what_vanished_meanwhile_and_nothing_that_stayed)
{
    struct kube_cache *c = make();

    kube_cache_begin(c);
    put(c, "a", "1", NULL, 1);
    put(c, "b", "1", NULL, 2);
    put(c, "c", "1", NULL, 3);
    cr_expect_not(kube_cache_synced(c));
    kube_cache_commit(c);
    cr_expect(kube_cache_synced(c));
    put(c, "d", "2", NULL, 4);
    buf_clear(&changes);
    kube_cache_begin(c);
    put(c, "a", "1", NULL, 1);
    kube_cache_begin(c); /* the list failed half way and starts over */
    put(c, "b", "5", NULL, 20);
    put(c, "d", "2", NULL, 4);
    kube_cache_commit(c);
    cr_expect(strstr(buf_text(&changes), "n/b:2>20") && strstr(buf_text(&changes), "n/a:1>-1") && strstr(buf_text(&changes), "n/c:3>-1"),
              "%s", buf_text(&changes));
    cr_expect_null(strstr(buf_text(&changes), "n/d"));
    cr_expect_eq(kube_cache_count(c), 2u);
    kube_cache_free(c);
    cr_expect_eq(owned_alive, 0);
}

Test(cache, the_late_end_of_a_first_object_says_nothing_of_a_second_of_its_name)
{
    struct kube_cache *c = make();
    struct kube_key a = key_of("n", "a");
    auto_json cJSON *second = object("n", "a", "second", "9", NULL, 2);

    put(c, "a", "1", NULL, 1);
    kube_cache_put(c, second);
    kube_cache_drop(c, &a, "u");
    cr_expect_not_null(kube_cache_get(c, &a));
    kube_cache_drop(c, &a, "second");
    cr_expect_null(kube_cache_get(c, &a));
    kube_cache_free(c);
}

Test(cache, objects_of_no_interest_and_without_name_are_not_kept)
{
    struct kube_cache *c = make();
    auto_json cJSON *ignored = object("n", "a", "u", "2", NULL, 1);
    auto_json cJSON *nameless = object("n", NULL, "u", "2", NULL, 1);
    auto_json cJSON *number = cJSON_CreateNumber(1);

    put(c, "a", "1", NULL, 1);
    json_put_bool(ignored, "ignored", true);
    kube_cache_put(c, ignored);
    kube_cache_put(c, nameless);
    kube_cache_put(c, number);
    kube_cache_put(c, NULL);
    cr_expect_eq(kube_cache_count(c), 0u);
    cr_expect_str_eq(buf_text(&changes), "n/a:-1>1 n/a:1>-1");
    kube_cache_free(c);
    cr_expect_eq(owned_alive, 0);
}

static size_t walk_of(const struct kube_cache *c, const char *owner)
{
    struct kube_cache_at at;
    size_t n = 0;

    for (const struct pod *p = kube_cache_first_of(c, owner, &at); p != NULL; p = kube_cache_next(&at)) {
        cr_assert_str_eq(kube_entry_namespace(p), "n");
        n++;
    }
    return n;
}

Test(cache, finds_by_owner_and_follows_one_who_changes_it)
{
    struct kube_cache *c = make();

    put(c, "a", "1", "job-1", 1);
    put(c, "b", "1", "job-1", 2);
    put(c, "c", "1", "job-2", 3);
    put(c, "d", "1", NULL, 4);
    cr_expect_eq(walk_of(c, "job-1"), 2u);
    put(c, "a", "2", "job-2", 1);
    cr_expect_eq(walk_of(c, "job-1"), 1u);
    cr_expect_eq(walk_of(c, "job-2"), 2u);
    cr_expect_eq(kube_cache_count_of(c, "job-2"), 2u);
    put(c, "b", "2", NULL, 2);
    cr_expect_eq(walk_of(c, "job-1"), 0u);
    cr_expect_eq(walk_of(c, ""), 0u);
    kube_cache_free(c);
}

/* Against a table: 20,000 random changes over 3,000 names and 50 owners. */
Test(cache, is_what_a_plain_table_says_after_random_changes)
{
    enum { NAMES = 3000, OWNERS = 50 };
    static int phase[NAMES], owner[NAMES];
    struct kube_cache *c = make();
    uint32_t random = 5;
    char name[32], owner_text[32], version[32];

    memset(phase, 0, sizeof phase);
    for (int step = 1; step <= 20000; step++) {
        random = random * 1664525u + 1013904223u;
        int n = (int)((random >> 8) % NAMES);
        snprintf(name, sizeof name, "pod-%d", n);
        if ((random >> 28) < 4) {
            struct kube_key key = key_of("n", name);
            kube_cache_drop(c, &key, NULL);
            phase[n] = 0;
        } else {
            owner[n] = (int)((random >> 16) % OWNERS);
            phase[n] = step;
            snprintf(owner_text, sizeof owner_text, "job-%d", owner[n]);
            snprintf(version, sizeof version, "%d", step);
            put(c, name, version, owner_text, step);
        }
        buf_clear(&changes);
    }
    size_t count = 0, of[OWNERS] = { 0 };
    for (int n = 0; n < NAMES; n++) {
        snprintf(name, sizeof name, "pod-%d", n);
        struct kube_key key = key_of("n", name);
        const struct pod *p = kube_cache_get(c, &key);
        cr_assert_eq(p != NULL, phase[n] != 0);
        cr_assert(p == NULL || p->phase == phase[n]);
        count += p != NULL;
        of[owner[n]] += p != NULL;
    }
    cr_expect_eq(kube_cache_count(c), count);
    for (int o = 0; o < OWNERS; o++) {
        snprintf(owner_text, sizeof owner_text, "job-%d", o);
        cr_expect_eq(walk_of(c, owner_text), of[o]);
        cr_expect_eq(kube_cache_count_of(c, owner_text), of[o]);
    }
    struct kube_cache_at at;
    size_t walked = 0;
    for (const void *p = kube_cache_first(c, &at); p != NULL; p = kube_cache_next(&at))
        walked++;
    cr_expect_eq(walked, count);
    cr_expect_lt(kube_cache_bytes(c) / count, 300u, "%zu bytes an entry", kube_cache_bytes(c) / count);
    kube_cache_free(c);
    cr_expect_eq(owned_alive, 0);
    buf_release(&changes);
}
