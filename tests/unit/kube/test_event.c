#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "kube/event.h"

static const struct kube_resource JOBS = { "ringmaster.dev", "v1", "trainingjobs", "TrainingJob", false };

static struct kube_event about(const char *name, const char *reason, const char *message)
{
    struct kube_event event = { .about = { .resource = &JOBS, .uid = "u" }, .reason = reason, .message = message };

    cr_assert(kube_key_set(&event.about.key, "team", name));
    return event;
}

static struct kube_event_write decide(struct kube_events *ev, const char *name, const char *reason, const char *message, int64_t now_ms)
{
    struct kube_event event = about(name, reason, message);
    struct kube_event_write write;

    kube_events_decide(ev, &event, now_ms, &write);
    return write;
}

Test(event, the_same_again_is_a_count)
{
    struct kube_events *ev = kube_events_new(1);
    struct kube_event_write first = decide(ev, "mnist", "Restarting", "worker 1 failed", 1000);

    cr_expect_eq(first.kind, KUBE_EVENT_CREATE);
    cr_expect_str_eq(first.key.ns, "team");
    cr_expect(text_is_dns1123_subdomain(first.key.name), "%s", first.key.name);
    struct kube_event_write second = decide(ev, "mnist", "Restarting", "worker 1 failed", 5000);
    cr_expect_eq(second.kind, KUBE_EVENT_PATCH);
    cr_expect(kube_key_equal(&first.key, &second.key));
    cr_expect_eq(second.count, 2);
    cr_expect_eq(second.first_wall_ms, 1000);
    struct kube_event_write other = decide(ev, "mnist", "Restarting", "worker 2 failed", 5000);
    cr_expect_eq(other.kind, KUBE_EVENT_CREATE);
    cr_expect_not(kube_key_equal(&first.key, &other.key));
    kube_events_lost(ev, &first.key);
    cr_expect_eq(decide(ev, "mnist", "Restarting", "worker 1 failed", 6000).kind, KUBE_EVENT_CREATE, "it is gone: a new one");
    kube_events_free(ev);
}

Test(event, many_alike_become_one)
{
    struct kube_events *ev = kube_events_new(1);
    struct kube_event_write w;
    char message[64];
    int created = 0;

    for (int i = 0; i < 20; i++) {
        snprintf(message, sizeof message, "pod %d is pending", i);
        w = decide(ev, "mnist", "Pending", message, i);
        created += w.kind == KUBE_EVENT_CREATE;
    }
    cr_expect_eq(created, 10, "nine of their own and one for all the others: %d", created);
    cr_expect_eq(w.kind, KUBE_EVENT_PATCH);
    cr_expect_eq(w.count, 11);
    cr_expect_str_eq(w.message, "(combined from similar events): pod 19 is pending");
    w = decide(ev, "mnist", "Pending", "pod 1000 is pending", 20 + 10 * 60 * 1000);
    cr_expect_eq(w.kind, KUBE_EVENT_CREATE, "ten minutes later they are single again");
    kube_events_free(ev);
}

Test(event, an_object_that_goes_on_and_on_is_cut_short_and_others_are_not)
{
    struct kube_events *ev = kube_events_new(1);
    int written = 0;

    for (int i = 0; i < 200; i++)
        written += decide(ev, "noisy", "Flapping", "again", i).kind != KUBE_EVENT_DROP;
    cr_expect_eq(written, 25);
    cr_expect_eq(decide(ev, "quiet", "Started", "once", 300).kind, KUBE_EVENT_CREATE);
    struct kube_event_write w = decide(ev, "noisy", "Flapping", "again", 10001);
    cr_expect_eq(w.kind, KUBE_EVENT_PATCH, "another one after ten seconds");
    cr_expect_eq(w.count, 201, "which says how often it was: %lld", (long long)w.count);
    cr_expect_eq(decide(ev, "noisy", "Flapping", "again", 10002).kind, KUBE_EVENT_DROP);
    kube_events_free(ev);
}

Test(event, memory_is_bounded_and_the_longest_unused_goes_first)
{
    struct kube_events *ev = kube_events_new(1);
    char name[32];

    (void)decide(ev, "kept", "Reason", "message", 0);
    for (int i = 1; i < 5000; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        (void)decide(ev, name, "Reason", "message", i * 20000);
        cr_assert_neq(decide(ev, "kept", "Reason", "message", i * 20000).kind, KUBE_EVENT_CREATE, "at %d", i);
    }
    cr_expect_leq(kube_events_count(ev), 1024u);
    cr_expect_eq(decide(ev, "job-1", "Reason", "message", 5000 * 20000).kind, KUBE_EVENT_CREATE);
    kube_events_free(ev);
}

Test(event, long_messages_are_cut_at_a_character_and_long_names_stay_names)
{
    struct kube_events *ev = kube_events_new(1);
    char message[3000], name[KUBE_NAME_MAX];

    for (int shift = 0; shift < 3; shift++) {
        memset(message, 'a', sizeof message);
        for (size_t i = (size_t)shift; i + 3 < sizeof message; i += 3)
            memcpy(message + i, "\xe2\x82\xac", 3);
        message[sizeof message - 1] = '\0';
        struct kube_event_write w = decide(ev, "mnist", "Reason", message, shift);
        size_t len = strlen(w.message);
        cr_expect(len >= KUBE_MESSAGE_MAX - 4 && (len - (size_t)shift) % 3 == 0, "shift %d: %zu bytes", shift, len);
    }
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = '\0';
    name[199] = '.';
    cr_expect(text_is_dns1123_subdomain(decide(ev, name, "Reason", "m", 1).key.name));
    kube_events_free(ev);
}

Test(event, bodies)
{
    struct kube_events *ev = kube_events_new(1);
    struct kube_event event = about("mnist", "Restarting", "worker 1 failed");
    struct kube_event_write write;

    event.warning = true;
    kube_events_decide(ev, &event, 1700000000000, &write);
    auto_json cJSON *object = kube_event_object(&event, &write, "ringmaster-operator", "pod-1");
    cr_expect_str_eq(json_text(object, "involvedObject.apiVersion", ""), "ringmaster.dev/v1");
    cr_expect_str_eq(json_text(object, "involvedObject.name", ""), "mnist");
    cr_expect_str_eq(json_text(object, "metadata.namespace", ""), "team");
    cr_expect_str_eq(json_text(object, "type", ""), "Warning");
    cr_expect_str_eq(json_text(object, "firstTimestamp", ""), "2023-11-14T22:13:20Z");
    cr_expect_eq(json_int(object, "count", 0), 1);
    auto_json cJSON *patch = kube_event_patch(&write);
    cr_expect_null(json_at(patch, "firstTimestamp"));
    kube_events_free(ev);
}
