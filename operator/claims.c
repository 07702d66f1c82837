/*
 * Volume claims of replicas that are no more: listed once after each change of a job's size, and deleted where the policy says so.
 * (A claim is made as any other child, in execute.c.)
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "job/child.h"
#include "operator/work.h"

static void on_deleted(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    enum error_kind kind = reply->error != NULL ? reply->error->kind : ERROR_NONE;
    bool well = kind == ERROR_NONE || kind == ERROR_NOT_FOUND || kind == ERROR_CONFLICT; /* conflict: another one has the name */

    if (!well)
        work_fail(s->work, "delete a volume claim", reply);
    step_done(s, well);
}

static bool delete_claim(struct work *w, const struct item *item, const cJSON *claim)
{
    struct step *s = step_new(w, item, &RESOURCE_CLAIM, kube_name(claim));
    struct kube_request r = { .verb = KUBE_DELETE, .resource = &RESOURCE_CLAIM, .ns = w->key.ns, .name = s->name,
                              .delete_uid = kube_uid(claim), .want = KUBE_WANT_NOTHING };
    struct error e = ERROR_INIT;

    log_info("volume claim deleted", KV("namespace", w->key.ns), KV("job", w->key.name), KV("name", s->name), KV("because", item->action->reason));
    if (controller_may_write(w->c) && step_send(s, &r, on_deleted, &e) == 0) {
        w->outstanding++;
        return true;
    }
    step_free(s);
    return false;
}

static void on_listed(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    struct work *w = s->work;
    const cJSON *claim;
    bool well = reply->error == NULL;

    if (!well)
        work_fail(w, "list volume claims", reply);
    cJSON_ArrayForEach(claim, json_at(reply->object, "items")) {
        if (volume_claim_is_surplus(w->job, claim) && !kube_deleting(claim))
            well = delete_claim(w, &s->item, claim) && well;
    }
    step_done(s, well);
}

bool claims_trim(struct work *w, const struct item *item)
{
    char selector[KUBE_NAME_MAX];
    struct error e = ERROR_INIT;

    (void)snprintf(selector, sizeof selector, LABEL_JOB_NAME "=%s", w->key.name);
    struct step *s = step_new(w, item, &RESOURCE_CLAIM, "");
    struct kube_request r = { .verb = KUBE_LIST, .resource = &RESOURCE_CLAIM, .ns = w->key.ns, .label_selector = selector, .want = KUBE_WANT_METADATA };
    if (step_send(s, &r, on_listed, &e) == 0)
        return true;
    step_free(s);
    return false;
}
