#include "kube/lease.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kube/random.h"

#define DURATION_MS 15000
#define RENEW_DEADLINE_MS 10000
#define RETRY_MS 2000
#define DURATION_MAX_MS (3600 * 1000) /* a holder that claims more is not waited for longer */

void kube_lease_init(struct kube_lease *l, const struct kube_lease_options *options)
{
    *l = (struct kube_lease){
        .duration_ms = options->duration_ms > 0 ? options->duration_ms : DURATION_MS,
        .renew_deadline_ms = options->renew_deadline_ms > 0 ? options->renew_deadline_ms : RENEW_DEADLINE_MS,
        .retry_ms = options->retry_ms > 0 ? options->retry_ms : RETRY_MS,
        .random = options->seed,
    };
    assert(options->identity != NULL && options->identity[0] != '\0');
    assert(l->renew_deadline_ms < l->duration_ms && l->retry_ms < l->renew_deadline_ms);
    snprintf(l->identity, sizeof l->identity, "%s", options->identity);
}

bool kube_lease_is_held(const struct kube_lease *l, int64_t now_ms)
{
    return l->held && !l->releasing && now_ms < l->renewed_ms + l->renew_deadline_ms;
}

int64_t kube_lease_held_until_ms(const struct kube_lease *l)
{
    return l->held ? l->renewed_ms + l->renew_deadline_ms : 0;
}

/* ---- what is seen ------------------------------------------------------------------------------------------------------ */

static bool is_mine(const struct kube_lease *l, const struct kube_lease_record *record)
{
    return strcmp(record->holder, l->identity) == 0;
}

static void see(struct kube_lease *l, const struct kube_lease_record *record, int64_t now_ms)
{
    if (l->seen_changed_ms == 0 || strcmp(l->seen.version, record->version) != 0 || strcmp(l->seen.holder, record->holder) != 0)
        l->seen_changed_ms = now_ms;
    l->seen = *record;
}

/* A time from which the record may be taken: nobody holds it, or its holder has not renewed it for its whole duration. */
static int64_t free_at_ms(const struct kube_lease *l)
{
    int64_t duration = l->seen.duration_ms;

    if (l->seen.holder[0] == '\0' || l->seen.version[0] == '\0')
        return INT64_MIN;
    return l->seen_changed_ms + (duration > l->duration_ms ? duration : l->duration_ms);
}

static void lose(struct kube_lease *l, struct kube_lease_output *out)
{
    if (l->held)
        out->lost = true;
    l->held = false;
}

/* ---- what is done ------------------------------------------------------------------------------------------------------ */

static void wait(struct kube_lease *l, int64_t now_ms, struct kube_lease_output *out)
{
    /* A fifth of jitter, so that candidates do not all ask at the same moment. */
    out->action = KUBE_LEASE_WAIT;
    out->wake_at_ms = now_ms + l->retry_ms + kube_random_below(&l->random, l->retry_ms / 5 + 1);
    if (l->held && out->wake_at_ms > l->renewed_ms + l->renew_deadline_ms)
        out->wake_at_ms = l->renewed_ms + l->renew_deadline_ms;
}

static void request(struct kube_lease *l, enum kube_lease_action action, int64_t now_ms, struct kube_lease_output *out)
{
    /* Two tries fit into the deadline of a holder; one that hangs is given up before it is too late for another. */
    int64_t deadline = l->renew_deadline_ms / 2;
    if (l->held && deadline > l->renewed_ms + l->renew_deadline_ms - now_ms)
        deadline = l->renewed_ms + l->renew_deadline_ms - now_ms;
    out->action = action;
    out->deadline_ms = deadline > 1 ? deadline : 1;
    out->wake_at_ms = now_ms + out->deadline_ms + 1000; /* the answer, or the client's own deadline, comes before */
    if (l->held && out->wake_at_ms > l->renewed_ms + l->renew_deadline_ms)
        out->wake_at_ms = l->renewed_ms + l->renew_deadline_ms;
    l->sent_ms = now_ms;
    l->writing = action != KUBE_LEASE_GET;
}

static void write_record(struct kube_lease *l, int64_t now_ms, int64_t wall_ms, struct kube_lease_output *out)
{
    bool mine = is_mine(l, &l->seen), absent = l->seen.version[0] == '\0';

    out->write = l->seen;
    snprintf(out->write.holder, sizeof out->write.holder, "%s", l->releasing ? "" : l->identity);
    out->write.duration_ms = l->releasing ? 1000 : l->duration_ms;
    out->write.renewed_wall_ms = wall_ms;
    if (!mine && !l->releasing) {
        out->write.acquired_wall_ms = wall_ms;
        out->write.transitions = absent ? 0 : l->seen.transitions + 1;
    }
    request(l, absent ? KUBE_LEASE_CREATE : KUBE_LEASE_UPDATE, now_ms, out);
}

/* The record is known: take it, renew it, or wait for it. */
static void decide(struct kube_lease *l, int64_t now_ms, int64_t wall_ms, struct kube_lease_output *out)
{
    bool mine = is_mine(l, &l->seen);

    if (l->releasing) {
        if (mine && l->seen.version[0] != '\0')
            write_record(l, now_ms, wall_ms, out);
        return;
    }
    if (!mine)
        lose(l, out);
    /* A record in our name that we do not hold: our last write was carried out though we never heard of it. It is ours. */
    if (mine || now_ms >= free_at_ms(l)) {
        write_record(l, now_ms, wall_ms, out);
        return;
    }
    wait(l, now_ms, out);
    if (out->wake_at_ms > free_at_ms(l))
        out->wake_at_ms = free_at_ms(l);
}

static void on_written(struct kube_lease *l, const struct kube_lease_record *record, int64_t now_ms, int64_t wall_ms,
                       struct kube_lease_output *out)
{
    int64_t sent_ms = l->sent_ms;

    see(l, record, now_ms);
    l->sent_ms = 0;
    if (l->releasing) {
        lose(l, out);
        if (is_mine(l, record)) /* a renewal that was on its way when we were told to let go */
            write_record(l, now_ms, wall_ms, out);
        return;
    }
    if (!is_mine(l, record)) {
        lose(l, out);
        wait(l, now_ms, out);
        return;
    }
    /* An answer so late that the deadline is past does not make us a holder: another may be one already. */
    if (now_ms >= sent_ms + l->renew_deadline_ms) {
        lose(l, out);
        wait(l, now_ms, out);
        return;
    }
    out->acquired = !l->held;
    l->held = true;
    l->renewed_ms = sent_ms;
    wait(l, now_ms, out);
}

static void on_failed(struct kube_lease *l, enum error_kind kind, int64_t now_ms, struct kube_lease_output *out)
{
    bool writing = l->writing;

    l->sent_ms = 0;
    /* What we know of the record is no longer true, or may not be: a write that timed out can have been carried out. */
    if (writing)
        l->seen.version[0] = '\0';
    if (l->releasing && kind != ERROR_CONFLICT) {
        lose(l, out); /* it runs out by itself */
        return;
    }
    if (kind == ERROR_CONFLICT && writing && (l->held || l->releasing)) {
        request(l, KUBE_LEASE_GET, now_ms, out);
        return;
    }
    if (!l->releasing)
        wait(l, now_ms, out);
}

void kube_lease_step(struct kube_lease *l, const struct kube_lease_input *in, int64_t now_ms, int64_t wall_ms,
                     struct kube_lease_output *ret)
{
    *ret = (struct kube_lease_output){ .action = KUBE_LEASE_WAIT };
    if (l->held && now_ms >= l->renewed_ms + l->renew_deadline_ms)
        lose(l, ret);
    switch (in->kind) {
    case KUBE_LEASE_RELEASE:
        l->releasing = true;
        if (l->sent_ms == 0)
            request(l, KUBE_LEASE_GET, now_ms, ret);
        else
            ret->wake_at_ms = l->sent_ms + l->renew_deadline_ms;
        break;
    case KUBE_LEASE_WAKE:
        if (l->sent_ms != 0 && now_ms < l->sent_ms + l->renew_deadline_ms)
            ret->wake_at_ms = l->sent_ms + l->renew_deadline_ms; /* still under way; the fence has been looked at above */
        else if (l->held && l->seen.version[0] != '\0' && !l->releasing)
            write_record(l, now_ms, wall_ms, ret); /* a holder renews without reading: the version says whether it still may */
        else
            request(l, KUBE_LEASE_GET, now_ms, ret);
        break;
    case KUBE_LEASE_READ:
    case KUBE_LEASE_ABSENT:
        l->sent_ms = 0;
        see(l, in->kind == KUBE_LEASE_READ ? in->record : &(struct kube_lease_record){ .transitions = 0 }, now_ms);
        decide(l, now_ms, wall_ms, ret);
        break;
    case KUBE_LEASE_WRITTEN: on_written(l, in->record, now_ms, wall_ms, ret); break;
    case KUBE_LEASE_FAILED: on_failed(l, in->error, now_ms, ret); break;
    }
}

/* ---- objects ----------------------------------------------------------------------------------------------------------- */

bool kube_lease_read(const cJSON *object, struct kube_lease_record *ret)
{
    const char *holder = json_text(object, "spec.holderIdentity", ""), *version = kube_version(object);
    int64_t seconds = json_int(object, "spec.leaseDurationSeconds", 0), transitions = json_int(object, "spec.leaseTransitions", 0);

    if (!cJSON_IsObject(object) || version[0] == '\0' || strlen(version) >= sizeof ret->version || strlen(holder) >= sizeof ret->holder)
        return false;
    *ret = (struct kube_lease_record){ .transitions = transitions > 0 && transitions < INT32_MAX ? transitions : 0 };
    snprintf(ret->holder, sizeof ret->holder, "%s", holder);
    snprintf(ret->version, sizeof ret->version, "%s", version);
    ret->duration_ms = seconds < 1 ? 0 : seconds > DURATION_MAX_MS / 1000 ? DURATION_MAX_MS : seconds * 1000;
    (void)clock_parse(json_text(object, "spec.acquireTime", ""), &ret->acquired_wall_ms);
    (void)clock_parse(json_text(object, "spec.renewTime", ""), &ret->renewed_wall_ms);
    return true;
}

/* metav1.MicroTime: six digits of fraction, always. */
static void put_micro_time(cJSON *spec, const char *name, int64_t wall_ms)
{
    char seconds[CLOCK_TEXT_MAX], text[CLOCK_TEXT_MAX + 8];

    clock_format(wall_ms, seconds);
    seconds[strcspn(seconds, ".Z")] = '\0';
    snprintf(text, sizeof text, "%s.%03d000Z", seconds, (int)(((wall_ms % 1000) + 1000) % 1000));
    json_put_text(spec, name, text);
}

cJSON *kube_lease_object(const struct kube_lease_record *record, const char *ns, const char *name)
{
    cJSON *object = json_object(), *metadata = json_object(), *spec = json_object();

    json_put_text(object, "apiVersion", "coordination.k8s.io/v1");
    json_put_text(object, "kind", "Lease");
    json_put(object, "metadata", metadata);
    json_put_text(metadata, "namespace", ns);
    json_put_text(metadata, "name", name);
    if (record->version[0] != '\0')
        json_put_text(metadata, "resourceVersion", record->version);
    json_put(object, "spec", spec);
    json_put_text(spec, "holderIdentity", record->holder);
    json_put_int(spec, "leaseDurationSeconds", record->duration_ms >= 1000 ? record->duration_ms / 1000 : 1);
    put_micro_time(spec, "acquireTime", record->acquired_wall_ms);
    put_micro_time(spec, "renewTime", record->renewed_wall_ms);
    json_put_int(spec, "leaseTransitions", record->transitions);
    return object;
}
