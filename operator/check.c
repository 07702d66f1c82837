/*
 * A pod of each role is shown to the API server before the first one is made: what its schema, its admission and its policies say
 * against a template is said of the job as a whole, in their own words, and nothing is left half made. Of many jobs that are alike
 * (a sweep) the first one's pods are shown, and no other's for a minute.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "operator/work.h"

#define ACCEPTED_FOR_MS 60000 /* what the API server takes changes with its policies, and seldom */

/* ---- jobs that are alike ------------------------------------------------------------------------------------------------- */

/* FNV-1a over namespace and spec: one who makes two alike saves a dry run, and nothing else. */
static uint64_t hash_of(const struct work *w)
{
    auto_free char *spec = json_print(cJSON_GetObjectItemCaseSensitive(w->object, "spec"), false);
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = w->key.ns; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    for (const char *p = spec; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    return h ^ (h >> 32);
}

bool check_is_known(const struct work *w)
{
    uint64_t hash = hash_of(w);
    bool try_native = w->c->gang.served[GANG_NATIVE] && !w->c->gang.native_checked;

    return !try_native && w->c->accepted[hash % CHECKS_KEPT].hash == hash && w->c->accepted[hash % CHECKS_KEPT].until_ms > clock_mono_ms();
}

void check_note_accepted(struct work *w)
{
    uint64_t hash = hash_of(w);

    w->c->accepted[hash % CHECKS_KEPT].hash = hash;
    w->c->accepted[hash % CHECKS_KEPT].until_ms = clock_mono_ms() + ACCEPTED_FOR_MS;
}

/* ---- the request --------------------------------------------------------------------------------------------------------- */

/* Whether the field that makes a pod part of a native group is still there: with its feature gate off it is dropped in silence. */
static void learn_native(struct controller *c, const cJSON *pod)
{
    c->gang.native_checked = true;
    c->gang.native_works = json_at(pod, "spec.schedulingGroup.podGroupName") != NULL;
    log_info("pod groups of the API server were tried", KV("work", c->gang.native_works ? "yes" : "no"));
}

static void on_checked(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    struct work *w = s->work;
    bool well = reply->error == NULL || reply->already_exists; /* somebody has the name: the real creation looks who */

    if (reply->error == NULL && w->c->gang.served[GANG_NATIVE] && !w->c->gang.native_checked) {
        learn_native(w->c, reply->object);
    } else if (!well && reply->error->kind == ERROR_INVALID) {
        (void)snprintf(w->state->pod_refused, sizeof w->state->pod_refused, "the API server refuses a pod of %s: %.400s",
                       role_key(s->item.role), reply->error->text);
        w->again = true;
    } else if (!well) {
        execute_refused(w, s->name, reply);
    }
    step_done(s, well);
}

bool check_pod(struct work *w, const struct item *item)
{
    const struct gang_view *g = &w->c->gang;
    bool try_native = g->served[GANG_NATIVE] && !g->native_checked;
    auto_json cJSON *pod = execute_pod(w, item, try_native ? GANG_NATIVE : w->status->gang.kind);
    struct kube_request r = { .verb = KUBE_CREATE, .resource = &RESOURCE_POD, .ns = w->key.ns, .body = pod, .field_manager = FIELD_MANAGER,
                              .dry_run = true, .want = try_native ? KUBE_WANT_OBJECT : KUBE_WANT_NOTHING };
    char name[KUBE_NAME_MAX];
    struct error e = ERROR_INIT;

    (void)snprintf(name, sizeof name, "Pod %s", kube_name(pod));
    log_debug("a pod is shown to the API server", KV("namespace", w->key.ns), KV("name", kube_name(pod)));
    struct step *s = step_new(w, item, &RESOURCE_POD, name);
    if (step_send(s, &r, on_checked, &e) == 0)
        return true;
    struct kube_reply refused = { .error = &e, .reason = "" };
    execute_refused(w, name, &refused);
    step_free(s);
    return false;
}
