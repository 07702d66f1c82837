/*
 * event.h — Kubernetes Events (core/v1), few and meaningful: the same event again is a count, many alike become one, and an object
 * that goes on and on is cut short. Pure.
 *
 * Same = object, type, reason and message. Alike = object, type and reason: from the tenth of them in ten minutes on they share
 * one Event, "(combined from similar events): ". An object has 25 writes at once and another one every ten seconds. Memory is
 * bounded: 1024 events are remembered, the longest unused goes first.
 */
#ifndef KUBE_EVENT_H
#define KUBE_EVENT_H

#include "kube/object.h"

#define KUBE_REASON_MAX 128
#define KUBE_MESSAGE_MAX 1024

/* What an event is about; and the object's identity in Events. */
struct kube_reference {
    const struct kube_resource *resource;
    struct kube_key key;
    char uid[KUBE_UID_MAX];
    char version[KUBE_VERSION_MAX]; /* may be "" */
};

struct kube_event {
    struct kube_reference about;
    bool warning;            /* type Warning, otherwise Normal */
    const char *reason;      /* CamelCase */
    const char *message;     /* cut at KUBE_MESSAGE_MAX - 1, at a character */
};

enum kube_event_write_kind { KUBE_EVENT_DROP, KUBE_EVENT_CREATE, KUBE_EVENT_PATCH };
struct kube_event_write {
    enum kube_event_write_kind kind;
    struct kube_key key;     /* of the Event */
    char message[KUBE_MESSAGE_MAX];
    int64_t count;
    int64_t first_wall_ms, last_wall_ms;
};

struct kube_events;
struct kube_events *kube_events_new(uint64_t seed); /* the seed makes names unique between processes */
void kube_events_free(struct kube_events *events);  /* NULL is fine */
void kube_events_decide(struct kube_events *events, const struct kube_event *event, int64_t wall_ms, struct kube_event_write *ret);
void kube_events_lost(struct kube_events *events, const struct kube_key *key); /* the Event is not there any more: create the next */
size_t kube_events_count(const struct kube_events *events);

/* Bodies: of the create, of the merge patch. Owned by the caller. */
cJSON *kube_event_object(const struct kube_event *event, const struct kube_event_write *write, const char *component,
                         const char *instance);
cJSON *kube_event_patch(const struct kube_event_write *write);

/* The poster: best effort, at most 64 on their way, the rest is dropped and counted. */
struct kube_client;
struct kube_recorder;
struct kube_recorder *kube_recorder_new(struct kube_client *client, const char *component, const char *instance, uint64_t seed);
void kube_recorder_post(struct kube_recorder *r, const struct kube_event *event);
uint64_t kube_recorder_dropped(const struct kube_recorder *r);
void kube_recorder_free(struct kube_recorder *r); /* NULL is fine; before its client. What is on its way is not waited for */

#endif
