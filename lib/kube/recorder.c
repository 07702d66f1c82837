#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kube/client.h"
#include "kube/event.h"

#define ON_THEIR_WAY_MAX 512

static const struct kube_resource EVENTS = { "", "v1", "events", "Event", false };

struct post {
    struct kube_recorder *recorder;
    struct post *next, **link;
    struct kube_call *call;
    struct kube_key key;
    bool patch;
    struct kube_event_write *later; /* what became of the event meanwhile, or NULL: sent when this one has arrived */
};

struct kube_recorder {
    struct kube_client *client;
    struct kube_events *events;
    char *component, *instance;
    struct post *posts;
    size_t count;
    uint64_t dropped;
};

struct kube_recorder *kube_recorder_new(struct kube_client *client, const char *component, const char *instance, uint64_t seed)
{
    struct kube_recorder *r = xcalloc(1, sizeof *r);

    r->client = client;
    r->events = kube_events_new(seed);
    r->component = xstrdup(component);
    r->instance = xstrdup(instance);
    return r;
}

static void post_free(struct post *p)
{
    *p->link = p->next;
    if (p->next != NULL)
        p->next->link = p->link;
    p->recorder->count--;
    free(p->later);
    free(p);
}

static void send_write(struct kube_recorder *r, const struct kube_event_write *write, const cJSON *body);

static void posted(void *ctx, struct kube_reply *reply)
{
    struct post *p = ctx;
    struct kube_recorder *r = p->recorder;
    auto_free struct kube_event_write *later = TAKE(p->later);

    /* An Event lives for an hour. One that is gone, or that was never made, is made anew the next time. */
    if (reply->error != NULL) {
        r->dropped++;
        if (!p->patch || reply->error->kind == ERROR_NOT_FOUND)
            kube_events_lost(r->events, &p->key);
    }
    post_free(p);
    if (reply->error != NULL || later == NULL)
        return;
    auto_json cJSON *body = kube_event_patch(later);
    send_write(r, later, body);
}

static void send_write(struct kube_recorder *r, const struct kube_event_write *write, const cJSON *body)
{
    struct post *p = xcalloc(1, sizeof *p);
    struct error e;

    *p = (struct post){ .recorder = r, .next = r->posts, .link = &r->posts, .key = write->key, .patch = write->kind == KUBE_EVENT_PATCH };
    if (p->next != NULL)
        p->next->link = &p->next;
    r->posts = p;
    r->count++;
    struct kube_request request = { .verb = p->patch ? KUBE_MERGE_PATCH : KUBE_CREATE, .resource = &EVENTS, .ns = p->key.ns,
                                    .name = p->patch ? p->key.name : NULL, .body = body, .want = KUBE_WANT_NOTHING,
                                    .background = true };
    if (kube_client_send(r->client, &request, posted, p, &p->call, &e) < 0) {
        kube_events_lost(r->events, &p->key);
        r->dropped++;
        post_free(p);
    }
}

/* Requests overtake each other: a count must not arrive before its Event, nor before a lower count. */
static bool wait_for_earlier(struct kube_recorder *r, const struct kube_event_write *write)
{
    for (struct post *p = r->posts; p != NULL; p = p->next) {
        if (!kube_key_equal(&p->key, &write->key))
            continue;
        if (p->later == NULL)
            p->later = xcalloc(1, sizeof *p->later);
        *p->later = *write;
        return true;
    }
    return false;
}

void kube_recorder_post(struct kube_recorder *r, const struct kube_event *event)
{
    struct kube_event_write write;

    if (r->count >= ON_THEIR_WAY_MAX) {
        r->dropped++;
        return;
    }
    kube_events_decide(r->events, event, clock_wall_ms(), &write);
    if (write.kind == KUBE_EVENT_DROP) {
        r->dropped++;
        return;
    }
    if (wait_for_earlier(r, &write))
        return;
    auto_json cJSON *body = write.kind == KUBE_EVENT_PATCH ? kube_event_patch(&write)
                                                           : kube_event_object(event, &write, r->component, r->instance);
    send_write(r, &write, body);
}

uint64_t kube_recorder_dropped(const struct kube_recorder *r)
{
    return r->dropped;
}

void kube_recorder_free(struct kube_recorder *r)
{
    if (r == NULL)
        return;
    while (r->posts != NULL) {
        kube_client_cancel(r->client, r->posts->call);
        post_free(r->posts);
    }
    kube_events_free(r->events);
    free(r->component);
    free(r->instance);
    free(r);
}
