#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kube/queue.h"

static struct kube_key key_of(const char *ns, const char *name)
{
    struct kube_key key;

    cr_assert(kube_key_set(&key, ns, name));
    return key;
}

static void add(struct kube_queue *q, const char *ns, const char *name, int64_t at_ms)
{
    struct kube_key key = key_of(ns, name);

    kube_queue_add(q, &key, "test", at_ms);
}

/* "ns/name", or "-" when nothing is due. Static. */
static const char *take(struct kube_queue *q, int64_t now_ms)
{
    static char text[KUBE_NS_MAX + KUBE_NAME_MAX];
    struct kube_key key;

    if (!kube_queue_take(q, now_ms, &key, NULL))
        return "-";
    snprintf(text, sizeof text, "%s/%s", key.ns, key.name);
    return text;
}

static void done(struct kube_queue *q, const char *ns, const char *name)
{
    struct kube_key key = key_of(ns, name);

    kube_queue_done(q, &key);
}

static struct kube_queue *make(int64_t spacing_ms)
{
    return kube_queue_new(&(struct kube_queue_options){ .retry_base_ms = 100, .retry_max_ms = 1000, .spacing_ms = spacing_ms, .seed = 1 });
}

Test(queue, holds_a_key_once_and_the_earliest_time_wins)
{
    struct kube_queue *q = make(0);

    add(q, "n", "a", 500);
    add(q, "n", "a", 100);
    add(q, "n", "a", 900);
    cr_expect_eq(kube_queue_length(q), 1u);
    cr_expect_eq(kube_queue_next_due(q), 100);
    cr_expect_str_eq(take(q, 99), "-");
    cr_expect_str_eq(take(q, 100), "n/a");
    cr_expect_str_eq(take(q, 10000), "-");
    done(q, "n", "a");
    cr_expect_eq(kube_queue_next_due(q), INT64_MAX);
    kube_queue_free(q);
}

Test(queue, counts_those_that_were_due_at_the_last_take)
{
    struct kube_queue *q = make(0);

    add(q, "a", "x", 10);
    add(q, "a", "y", 10);
    add(q, "b", "z", 10);
    add(q, "b", "later", 500);
    cr_expect_eq(kube_queue_ready(q), 0u);
    cr_expect_str_eq(take(q, 10), "a/x");
    cr_expect_eq(kube_queue_ready(q), 2u);
    cr_expect_eq(kube_queue_length(q), 3u);
    kube_queue_free(q);
}

Test(queue, never_hands_a_key_out_twice_at_a_time)
{
    struct kube_queue *q = make(0);

    add(q, "n", "a", 0);
    cr_expect_str_eq(take(q, 0), "n/a");
    add(q, "n", "a", 0);
    cr_expect_str_eq(take(q, 5), "-");
    cr_expect_eq(kube_queue_in_work(q), 1u);
    done(q, "n", "a");
    cr_expect_str_eq(take(q, 5), "n/a", "what came while it was in work is not lost");
    done(q, "n", "a");
    cr_expect_str_eq(take(q, 5), "-");
    done(q, "n", "a"); /* of one that is not in work: nothing */
    kube_queue_free(q);
}

Test(queue, namespaces_take_turns)
{
    struct kube_queue *q = make(0);
    char name[16];

    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "j%d", i);
        add(q, "big", name, 0);
    }
    cr_expect_str_eq(take(q, 1), "big/j0");
    add(q, "small", "x", 1);
    add(q, "other", "y", 1);
    add(q, "other", "z", 1);
    static const char *const ORDER[] = { "big/j1", "small/x", "other/y", "big/j2", "other/z", "big/j3", "big/j4" };
    for (size_t i = 0; i < COUNT(ORDER); i++) {
        const char *got = take(q, 2);
        cr_expect_str_eq(got, ORDER[i], "turn %zu: %s", i, got);
    }
    kube_queue_free(q);
}

Test(queue, retries_double_to_a_ceiling_and_are_forgotten)
{
    struct kube_queue *q = make(0);
    struct kube_key a = key_of("n", "a");
    int64_t now = 0, nominal = 100;

    add(q, "n", "a", 0);
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert_str_eq(take(q, now), "n/a");
        kube_queue_retry(q, &a, now, 0);
        cr_expect_eq(kube_queue_failures(q, &a), i + 1);
        int64_t due = kube_queue_next_due(q) - now;
        cr_expect(due >= nominal - nominal / 5 && due <= nominal, "retry %u after %lld of %lld", i, (long long)due, (long long)nominal);
        now = kube_queue_next_due(q);
        nominal = nominal * 2 > 1000 ? 1000 : nominal * 2;
    }
    cr_assert_str_eq(take(q, now), "n/a");
    kube_queue_forget(q, &a);
    kube_queue_done(q, &a);
    cr_expect_eq(kube_queue_failures(q, &a), 0u);
    add(q, "n", "a", now);
    cr_assert_str_eq(take(q, now), "n/a");
    kube_queue_retry(q, &a, now, 5000);
    cr_expect_eq(kube_queue_next_due(q), now + 5000, "the server's Retry-After is longer");
    kube_queue_free(q);
}

Test(queue, a_change_shortens_the_wait_of_a_retry)
{
    struct kube_queue *q = make(0);
    struct kube_key a = key_of("n", "a");
    const char *reason;
    struct kube_key got;

    add(q, "n", "a", 0);
    (void)take(q, 0);
    kube_queue_retry(q, &a, 0, 60000);
    kube_queue_add(q, &a, "changed", 10);
    cr_expect(kube_queue_take(q, 10, &got, &reason));
    cr_expect_str_eq(reason, "changed");
    kube_queue_add(q, &a, "changed while in work", 11);
    kube_queue_retry(q, &a, 11, 60000);
    cr_expect(kube_queue_take(q, 11, &got, &reason));
    cr_expect_str_eq(reason, "changed while in work");
    kube_queue_free(q);
}

Test(queue, spacing_makes_one_look_of_a_burst)
{
    struct kube_queue *q = make(50);

    add(q, "n", "a", 0);
    cr_expect_str_eq(take(q, 0), "n/a", "the first one at once");
    done(q, "n", "a");
    for (int64_t now = 1; now < 50; now++) {
        add(q, "n", "a", now);
        cr_expect_str_eq(take(q, now), "-", "at %lld", (long long)now);
    }
    cr_expect_eq(kube_queue_next_due(q), 50);
    cr_expect_str_eq(take(q, 50), "n/a");
    add(q, "n", "a", 51); /* in work, too */
    done(q, "n", "a");
    cr_expect_str_eq(take(q, 99), "-");
    cr_expect_str_eq(take(q, 100), "n/a");
    kube_queue_free(q);
}

/* 30,000 random adds, takes, dones and retries over 200 keys in 7 namespaces, against a table. */
Test(queue, loses_and_doubles_nothing_under_random_use)
{
    enum { KEYS = 200 };
    static struct { bool wanted, in_work; } model[KEYS];
    struct kube_queue *q = make(0);
    uint32_t random = 9;
    char ns[16], name[16];

    memset(model, 0, sizeof model);
    for (int64_t now = 1; now <= 30000; now++) {
        random = random * 1664525u + 1013904223u;
        int k = (int)((random >> 8) % KEYS);
        snprintf(ns, sizeof ns, "n%d", k % 7);
        snprintf(name, sizeof name, "k%d", k);
        struct kube_key key = key_of(ns, name), got;
        switch (random >> 29) {
        case 0: case 1: case 2:
            kube_queue_add(q, &key, "test", now + (random >> 16) % 50);
            model[k].wanted = true;
            break;
        case 3: case 4: case 5:
            if (!kube_queue_take(q, now, &got, NULL))
                break;
            k = (int)strtol(got.name + 1, NULL, 10);
            cr_assert(model[k].wanted && !model[k].in_work, "k%d at %lld", k, (long long)now);
            model[k].wanted = false;
            model[k].in_work = true;
            break;
        case 6:
            if (model[k].in_work)
                kube_queue_done(q, &key);
            model[k].in_work = false;
            break;
        default:
            if (model[k].in_work) {
                kube_queue_retry(q, &key, now, 0);
                model[k].wanted = true;
            }
            model[k].in_work = false;
        }
    }
    size_t wanted = 0, in_work = 0;
    for (int k = 0; k < KEYS; k++) {
        wanted += model[k].wanted && !model[k].in_work;
        in_work += model[k].in_work;
    }
    cr_expect_eq(kube_queue_length(q), wanted);
    cr_expect_eq(kube_queue_in_work(q), in_work);
    size_t drained = 0;
    while (strcmp(take(q, INT64_MAX - 1), "-") != 0)
        drained++;
    cr_expect_eq(drained, wanted);
    kube_queue_free(q);
}
