#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kube/lease.h"

#define WALL 1700000000123

static void make(struct kube_lease *l, const char *identity)
{
    kube_lease_init(l, &(struct kube_lease_options){ .identity = identity, .seed = 1 });
}

static struct kube_lease_output step(struct kube_lease *l, enum kube_lease_input_kind kind, const struct kube_lease_record *record,
                                     enum error_kind error, int64_t now_ms)
{
    struct kube_lease_output out;

    kube_lease_step(l, &(struct kube_lease_input){ .kind = kind, .record = record, .error = error }, now_ms, WALL, &out);
    return out;
}

static struct kube_lease_record record_of(const char *holder, const char *version)
{
    struct kube_lease_record r = { .duration_ms = 15000, .transitions = 4 };

    snprintf(r.holder, sizeof r.holder, "%s", holder);
    snprintf(r.version, sizeof r.version, "%s", version);
    return r;
}

/* A holder that sent its write at `sent_ms` and heard of it at `heard_ms`. */
static void hold(struct kube_lease *l, int64_t sent_ms, int64_t heard_ms)
{
    make(l, "me");
    cr_assert_eq(step(l, KUBE_LEASE_WAKE, NULL, 0, sent_ms).action, KUBE_LEASE_GET);
    struct kube_lease_output out = step(l, KUBE_LEASE_ABSENT, NULL, 0, sent_ms);
    cr_assert_eq(out.action, KUBE_LEASE_CREATE);
    struct kube_lease_record written = out.write;
    snprintf(written.version, sizeof written.version, "1");
    out = step(l, KUBE_LEASE_WRITTEN, &written, 0, heard_ms);
    cr_assert(out.acquired);
}

Test(lease, that_is_absent_is_created_and_held_from_the_moment_of_sending)
{
    struct kube_lease l;

    hold(&l, 1000, 4000);
    cr_expect_eq(kube_lease_held_until_ms(&l), 11000);
    cr_expect(kube_lease_is_held(&l, 10999));
    cr_expect_not(kube_lease_is_held(&l, 11000), "ten seconds after it was sent, not after it was heard of");
}

Test(lease, of_another_is_taken_only_when_it_did_not_change_for_its_duration)
{
    struct kube_lease l;
    struct kube_lease_record theirs = record_of("other", "7"), renewed = record_of("other", "8");

    make(&l, "me");
    (void)step(&l, KUBE_LEASE_WAKE, NULL, 0, 1000);
    cr_expect_eq(step(&l, KUBE_LEASE_READ, &theirs, 0, 1000).action, KUBE_LEASE_WAIT);
    (void)step(&l, KUBE_LEASE_WAKE, NULL, 0, 14000);
    cr_expect_eq(step(&l, KUBE_LEASE_READ, &renewed, 0, 14000).action, KUBE_LEASE_WAIT);
    (void)step(&l, KUBE_LEASE_WAKE, NULL, 0, 28000);
    struct kube_lease_output out = step(&l, KUBE_LEASE_READ, &renewed, 0, 28999);
    cr_expect_eq(out.action, KUBE_LEASE_WAIT);
    cr_expect_eq(out.wake_at_ms, 29000);
    (void)step(&l, KUBE_LEASE_WAKE, NULL, 0, 29000);
    out = step(&l, KUBE_LEASE_READ, &renewed, 0, 29000);
    cr_expect_eq(out.action, KUBE_LEASE_UPDATE);
    cr_expect_str_eq(out.write.version, "8", "the write is refused when somebody else was faster");
    cr_expect_str_eq(out.write.holder, "me");
    cr_expect_eq(out.write.transitions, 5);
    cr_expect_eq(out.write.acquired_wall_ms, WALL);
    out = step(&l, KUBE_LEASE_FAILED, NULL, ERROR_CONFLICT, 29100);
    cr_expect(!out.acquired && !kube_lease_is_held(&l, 29100));
}

Test(lease, given_up_or_in_our_own_name_is_taken_at_once)
{
    static const char *const HOLDERS[] = { "", "me" };
    for (size_t i = 0; i < COUNT(HOLDERS); i++) {
        struct kube_lease l;
        struct kube_lease_record r = record_of(HOLDERS[i], "7");
        make(&l, "me");
        (void)step(&l, KUBE_LEASE_WAKE, NULL, 0, 1000);
        cr_expect_eq(step(&l, KUBE_LEASE_READ, &r, 0, 1000).action, KUBE_LEASE_UPDATE, "holder \"%s\"", HOLDERS[i]);
    }
}

Test(lease, holder_that_cannot_renew_stops_before_anybody_may_take_over)
{
    struct kube_lease l;
    struct kube_lease_output out;
    int64_t now = 1100, lost_at = 0;

    hold(&l, 1000, 1100);
    for (int i = 0; i < 40 && lost_at == 0; i++) {
        now = now < 3000 ? 3000 : now + 500;
        out = step(&l, KUBE_LEASE_WAKE, NULL, 0, now);
        if (out.lost)
            lost_at = now;
        else if (out.action != KUBE_LEASE_WAIT)
            cr_expect_leq(now + out.deadline_ms, 11000, "no request outlives the lease");
        if (out.action != KUBE_LEASE_WAIT) {
            out = step(&l, KUBE_LEASE_FAILED, NULL, ERROR_IO, now);
            cr_expect(lost_at != 0 || out.wake_at_ms <= 11000, "it wakes in time to stop");
        }
    }
    cr_expect_eq(lost_at, 11000);
    cr_expect_lt(lost_at, 1000 + 15000, "another one takes over 15 s after it last saw a change, at the earliest");
}

Test(lease, answer_that_is_later_than_the_deadline_makes_no_holder)
{
    struct kube_lease l;
    struct kube_lease_record mine;

    make(&l, "me");
    (void)step(&l, KUBE_LEASE_WAKE, NULL, 0, 0);
    mine = step(&l, KUBE_LEASE_ABSENT, NULL, 0, 0).write;
    snprintf(mine.version, sizeof mine.version, "1");
    cr_expect_not(step(&l, KUBE_LEASE_WRITTEN, &mine, 0, 10000).acquired);
    cr_expect_not(kube_lease_is_held(&l, 10000));
}

Test(lease, somebody_elses_name_ends_it)
{
    struct kube_lease l;
    struct kube_lease_record theirs = record_of("other", "9");

    hold(&l, 1000, 1000);
    cr_expect_eq(step(&l, KUBE_LEASE_WAKE, NULL, 0, 3000).action, KUBE_LEASE_UPDATE);
    struct kube_lease_output out = step(&l, KUBE_LEASE_FAILED, NULL, ERROR_CONFLICT, 3010);
    cr_expect_eq(out.action, KUBE_LEASE_GET, "who was it?");
    out = step(&l, KUBE_LEASE_READ, &theirs, 0, 3020);
    cr_expect(out.lost);
    cr_expect_not(kube_lease_is_held(&l, 3020));
}

Test(lease, released_is_given_to_the_next_at_once)
{
    struct kube_lease l, next;

    hold(&l, 1000, 1000);
    cr_expect_eq(step(&l, KUBE_LEASE_RELEASE, NULL, 0, 2000).action, KUBE_LEASE_GET);
    cr_expect_not(kube_lease_is_held(&l, 2000), "the fence is down from the first moment on");
    struct kube_lease_record mine = record_of("me", "3");
    struct kube_lease_output out = step(&l, KUBE_LEASE_READ, &mine, 0, 2010);
    cr_expect_eq(out.action, KUBE_LEASE_UPDATE);
    cr_expect_str_eq(out.write.holder, "");
    struct kube_lease_record free_record = out.write;
    out = step(&l, KUBE_LEASE_WRITTEN, &free_record, 0, 2020);
    cr_expect(out.lost && out.wake_at_ms == 0);
    make(&next, "next");
    (void)step(&next, KUBE_LEASE_WAKE, NULL, 0, 2100);
    cr_expect_eq(step(&next, KUBE_LEASE_READ, &free_record, 0, 2100).action, KUBE_LEASE_UPDATE);
}

Test(lease, renewal_on_its_way_at_the_release_is_taken_back)
{
    struct kube_lease l;

    hold(&l, 1000, 1000);
    struct kube_lease_record renewal = step(&l, KUBE_LEASE_WAKE, NULL, 0, 3000).write;
    (void)step(&l, KUBE_LEASE_RELEASE, NULL, 0, 3005);
    struct kube_lease_output out = step(&l, KUBE_LEASE_WRITTEN, &renewal, 0, 3010);
    cr_expect_eq(out.action, KUBE_LEASE_UPDATE);
    cr_expect_str_eq(out.write.holder, "");
    out = step(&l, KUBE_LEASE_FAILED, NULL, ERROR_IO, 3020);
    cr_expect_eq(out.wake_at_ms, 0, "best effort: it runs out by itself");
}

/*
 * Two candidates, one server, random delays, losses and drifting steps: never two who think that they hold it. A request may be
 * carried out although its answer is lost.
 */
struct world { struct kube_lease_record server; int version; };
struct candidate { struct kube_lease lease; int64_t wake_ms, arrives_ms, answers_ms; enum kube_lease_action action; struct kube_lease_record write;
                   struct kube_lease_input answer; struct kube_lease_record answer_record; bool lost_answer; };

static void arrive(struct world *w, struct candidate *c)
{
    bool current = strcmp(c->write.version, w->server.version) == 0;

    c->answer = (struct kube_lease_input){ .kind = KUBE_LEASE_FAILED, .error = ERROR_CONFLICT };
    if (c->action == KUBE_LEASE_GET) {
        c->answer.kind = w->server.version[0] != '\0' ? KUBE_LEASE_READ : KUBE_LEASE_ABSENT;
    } else if (current) {
        w->server = c->write;
        snprintf(w->server.version, sizeof w->server.version, "%d", ++w->version);
        c->answer.kind = KUBE_LEASE_WRITTEN;
    }
    c->answer_record = w->server;
    c->answer.record = &c->answer_record;
    if (c->lost_answer)
        c->answer = (struct kube_lease_input){ .kind = KUBE_LEASE_FAILED, .error = ERROR_TIMEOUT };
}

Test(lease, is_never_held_by_two_whatever_the_network_does)
{
    uint32_t random = 1;
    int acquired = 0, changes = 0;

    for (int round = 0; round < 30; round++) {
        struct world w = { .version = 0 };
        struct candidate c[2] = { { .wake_ms = 1 }, { .wake_ms = 5 } };
        make(&c[0].lease, "a");
        make(&c[1].lease, "b");
        for (int64_t now = 1; now < 300000; now += 50) {
            for (int i = 0; i < 2; i++) {
                struct candidate *k = &c[i];
                struct kube_lease_input in;
                if (k->arrives_ms != 0 && now >= k->arrives_ms) {
                    k->arrives_ms = 0;
                    arrive(&w, k);
                }
                if (k->answers_ms != 0 && now >= k->answers_ms && k->arrives_ms == 0) {
                    k->answers_ms = 0;
                    in = k->answer;
                } else if (now >= k->wake_ms && k->wake_ms != 0) {
                    in = (struct kube_lease_input){ .kind = KUBE_LEASE_WAKE };
                } else {
                    continue;
                }
                struct kube_lease_output out;
                kube_lease_step(&k->lease, &in, now, WALL, &out);
                acquired += out.acquired;
                changes += out.lost;
                k->wake_ms = out.wake_at_ms;
                if (out.action == KUBE_LEASE_WAIT)
                    continue;
                random = random * 1664525u + 1013904223u;
                bool bad = (now / 40000 + i) % 3 == 0; /* spells of a bad network, not the same ones for both */
                k->action = out.action;
                k->write = out.write;
                k->arrives_ms = now + (random >> 20) % (bad ? 6000 : 100);
                k->lost_answer = bad && (random >> 8) % 3 != 0;
                k->answers_ms = now + (k->lost_answer ? out.deadline_ms : k->arrives_ms - now + (random >> 12) % 100);
                if (k->answers_ms > now + out.deadline_ms) {
                    k->answers_ms = now + out.deadline_ms;
                    k->lost_answer = true;
                }
            }
            cr_assert_not(kube_lease_is_held(&c[0].lease, now) && kube_lease_is_held(&c[1].lease, now), "round %d at %lld", round, (long long)now);
        }
    }
    cr_expect_gt(acquired, 60, "%d", acquired);
    cr_expect_gt(changes, 30, "%d", changes);
}

Test(lease, object_is_read_as_written_and_absurd_ones_are_bounded)
{
    struct kube_lease_record r = record_of("me", "12"), back;

    r.acquired_wall_ms = r.renewed_wall_ms = 1700000000000;
    auto_json cJSON *object = kube_lease_object(&r, "ns", "name");
    cr_expect_str_eq(json_text(object, "spec.renewTime", ""), "2023-11-14T22:13:20.000000Z");
    cr_assert(kube_lease_read(object, &back));
    cr_expect_str_eq(back.holder, "me");
    cr_expect_str_eq(back.version, "12");
    cr_expect_eq(back.duration_ms, 15000);
    cr_expect_eq(back.transitions, 4);
    cr_expect_eq(back.renewed_wall_ms, r.renewed_wall_ms);

    static const char ABSURD[] = "{\"metadata\":{\"resourceVersion\":\"1\"},\"spec\":{\"leaseDurationSeconds\":1e300,\"leaseTransitions\":-5,"
                                 "\"holderIdentity\":7,\"renewTime\":\"yesterday\"}}";
    struct error e;
    auto_json cJSON *absurd = NULL;
    cr_assert_eq(json_parse(ABSURD, strlen(ABSURD), &absurd, &e), 0);
    cr_assert(kube_lease_read(absurd, &back));
    cr_expect_leq(back.duration_ms, 3600000);
    cr_expect_eq(back.transitions, 0);
    cr_expect_str_eq(back.holder, "");
    cr_expect_not(kube_lease_read(NULL, &back));
}
