#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "operator/state.h"

static struct kube_key key_of(const char *ns, const char *name)
{
    struct kube_key key;

    cr_assert(kube_key_set(&key, ns, name));
    return key;
}

Test(state, another_job_under_the_name_begins_anew)
{
    struct state_table *t = state_table_new();
    struct kube_key key = key_of("ml", "mnist");
    struct job_state *s = state_get(t, &key, "u-1");

    s->key_known = true;
    state_own_add(s, &(struct own_pod){ .uid = "p-1", .until_ms = 10 });
    state_set_fresh(s, "1", "2", xstrdup("{}"), 0);
    cr_expect_eq(state_get(t, &key, "u-1"), s);
    cr_expect_eq(s->own_count, 1);
    cr_expect_eq(state_get(t, &key, "u-2"), s, "the place stays, what was known goes");
    cr_expect(!s->key_known && s->own_count == 0 && s->fresh_text == NULL);
    cr_expect_eq(state_count(t), 1);
    state_table_free(t);
}

Test(state, many_jobs_are_found_and_dropped)
{
    struct state_table *t = state_table_new();
    char name[32];

    for (int i = 0; i < 2000; i++) {
        (void)snprintf(name, sizeof name, "job-%d", i);
        struct kube_key key = key_of(i % 2 ? "a" : "b", name);
        state_get(t, &key, name);
    }
    cr_expect_eq(state_count(t), 2000);
    int wrong = 0;
    for (int i = 0; i < 2000; i++) {
        (void)snprintf(name, sizeof name, "job-%d", i);
        struct kube_key key = key_of(i % 2 ? "a" : "b", name), other = key_of(i % 2 ? "b" : "a", name);
        struct job_state *s = state_find(t, &key);
        wrong += s == NULL || strcmp(s->uid, name) != 0 || state_find(t, &other) != NULL;
        if (i % 3 == 0)
            state_drop(t, &key);
        wrong += i % 3 == 0 && state_find(t, &key) != NULL;
    }
    cr_expect_eq(wrong, 0);
    cr_expect_eq(state_count(t), 2000 - 667);
    state_table_free(t);
}

Test(state, what_is_in_work_is_not_dropped)
{
    struct state_table *t = state_table_new();
    struct kube_key key = key_of("ml", "mnist");
    struct job_state *s = state_get(t, &key, "u");

    s->in_work = true;
    state_drop(t, &key);
    cr_expect_eq(state_find(t, &key), s);
    s->in_work = false;
    state_drop(t, &key);
    cr_expect_null(state_find(t, &key));
    state_table_free(t);
}

Test(state, our_own_write_is_newer_than_what_it_replaced_and_than_nothing_else)
{
    struct job_state s = { .uid = "u" };

    cr_expect(!state_is_newer(&s, "5"));
    state_set_fresh(&s, "5", "6", xstrdup("six"), 0);
    state_set_fresh(&s, "6", "8", xstrdup("eight"), 0);
    cr_expect(state_is_newer(&s, "5") && state_is_newer(&s, "6"), "the cache is behind");
    cr_expect(!state_is_newer(&s, "8"), "the cache has it");
    cr_expect(!state_is_newer(&s, "9"), "somebody else wrote after us");
    cr_expect_str_eq(s.fresh_text, "eight");
    state_clear_fresh(&s);
    cr_expect(!state_is_newer(&s, "5"));
}

Test(state, a_watch_that_is_far_behind_does_not_bring_back_what_was_replaced)
{
    struct job_state s = { .uid = "u" };
    char old[8], new[8];

    for (int v = 95; v < 120; v++) { /* more writes than the ring of older versions holds */
        (void)snprintf(old, sizeof old, "%d", v);
        (void)snprintf(new, sizeof new, "%d", v + 1);
        state_set_fresh(&s, old, new, xstrdup(new), 1000);
    }
    cr_expect(state_is_newer(&s, "95") && state_is_newer(&s, "99") && state_is_newer(&s, "100"), "however long ago");
    cr_expect(!state_is_newer(&s, "120") && !state_is_newer(&s, "121") && !state_is_newer(&s, "1000"));
    cr_expect(!state_is_stale(&s, 31000) && state_is_stale(&s, 31001), "then it is asked for again");
    state_clear_fresh(&s);
    cr_expect(!state_is_stale(&s, 99999));
}

Test(state, versions_that_are_no_numbers_are_known_by_the_last_writes)
{
    struct job_state s = { .uid = "u" };

    state_set_fresh(&s, "x5", "x6", xstrdup("six"), 0);
    cr_expect(state_is_newer(&s, "x5") && !state_is_newer(&s, "x6") && !state_is_newer(&s, "x4"));
    state_clear_fresh(&s);
}

Test(state, own_pods_are_forgotten_when_seen_or_old)
{
    struct job_state s = { .uid = "u" };

    state_own_add(&s, &(struct own_pod){ .uid = "a", .until_ms = 100 });
    state_own_add(&s, &(struct own_pod){ .uid = "b", .until_ms = 200 });
    state_own_add(&s, &(struct own_pod){ .uid = "a", .deleted = true, .until_ms = 300 });
    state_own_forget(&s, "a", false);
    cr_expect_null(state_own_find(&s, "a", false));
    cr_expect_not_null(state_own_find(&s, "a", true), "the deletion is another matter");
    state_own_expire(&s, 200);
    cr_expect_null(state_own_find(&s, "b", false));
    state_own_expire(&s, 299);
    cr_expect_eq(s.own_count, 1);
    state_own_expire(&s, 300);
    cr_expect(s.own_count == 0 && s.own == NULL);
}
