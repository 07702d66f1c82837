#include "kube/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/mem.h"

#define REMEMBERED_MAX 1024
#define ALIKE_WINDOW_MS (10 * 60 * 1000)
#define ALIKE_MAX 10
#define BURST 25
#define REFILL_MS 10000
#define COMBINED "(combined from similar events): "
#define NAME_PREFIX_MAX 200 /* of the object's name in the Event's */
#define DIGEST 16           /* bytes of SHA-256 by which events are told apart */

enum kind { EXACT, ALIKE, OBJECT, KIND_COUNT };

/* One thing remembered: an event that was written, how many were alike lately, or what an object has used up. */
struct memory {
    uint8_t digest[DIGEST];  /* of kind and fields; all zero = free */
    int64_t used_ms;         /* last use */
    int64_t first_wall_ms;   /* EXACT: of the first; ALIKE: of the window */
    int64_t count;           /* EXACT: occurrences; ALIKE: in the window; OBJECT: tokens left */
    int64_t refill_ms;       /* OBJECT: when the last token was given */
    uint64_t mark;           /* EXACT: at the end of the Event's name; 0 = not written */
};

struct kube_events {
    uint64_t seed, serial;
    struct memory *memories[KIND_COUNT]; /* grow up to REMEMBERED_MAX each */
    size_t counts[KIND_COUNT];
};

struct kube_events *kube_events_new(uint64_t seed)
{
    struct kube_events *ev = xcalloc(1, sizeof *ev);

    ev->seed = seed;
    return ev;
}

void kube_events_free(struct kube_events *ev)
{
    if (ev == NULL)
        return;
    for (size_t i = 0; i < KIND_COUNT; i++)
        free(ev->memories[i]);
    free(ev);
}

size_t kube_events_count(const struct kube_events *ev)
{
    return ev->counts[EXACT];
}

static void digest(const struct kube_event *event, enum kind kind, const char *message, uint8_t ret[DIGEST])
{
    struct buf text = BUF_INIT(64 * 1024);
    uint8_t full[32];

    /* Parts end in a NUL, which none contains. */
    const char *parts[] = { event->about.resource->group, event->about.resource->kind, event->about.key.ns, event->about.key.name,
                            event->about.uid, event->warning ? "Warning" : "Normal", event->reason, message };
    size_t used = kind == OBJECT ? 5 : kind == ALIKE ? 7 : COUNT(parts);
    for (size_t i = 0; i < used; i++)
        buf_add_bytes(&text, parts[i], strlen(parts[i]) + 1);
    crypto_sha256(buf_text(&text), text.len, full);
    buf_release(&text);
    memcpy(ret, full, DIGEST);
}

/* There are at most 1024 and an event is rare: a walk is cheap enough. */
static struct memory *find(const struct kube_events *ev, enum kind kind, const uint8_t wanted[DIGEST])
{
    for (size_t i = 0; i < ev->counts[kind]; i++)
        if (memcmp(ev->memories[kind][i].digest, wanted, DIGEST) == 0)
            return &ev->memories[kind][i];
    return NULL;
}

/* The memory of this, or one made free for it. */
static struct memory *recall(struct kube_events *ev, enum kind kind, const uint8_t wanted[DIGEST], int64_t now_ms)
{
    struct memory *memories = ev->memories[kind], *oldest = NULL, *known = find(ev, kind, wanted);

    if (known != NULL) {
        known->used_ms = now_ms;
        return known;
    }
    for (size_t i = 0; i < ev->counts[kind]; i++)
        if (oldest == NULL || memories[i].used_ms < oldest->used_ms)
            oldest = &memories[i];
    if (ev->counts[kind] < REMEMBERED_MAX) {
        if ((ev->counts[kind] & (ev->counts[kind] - 1)) == 0) { /* doubles at each power of two */
            size_t room = ev->counts[kind] > 0 ? 2 * ev->counts[kind] : 1;
            memories = ev->memories[kind] = xrealloc(memories, room, sizeof *memories);
        }
        oldest = &memories[ev->counts[kind]++];
    }
    *oldest = (struct memory){ .used_ms = now_ms, .first_wall_ms = now_ms, .refill_ms = now_ms,
                               .count = kind == OBJECT ? BURST : 0 };
    memcpy(oldest->digest, wanted, DIGEST);
    return oldest;
}

static bool object_may_write(struct kube_events *ev, const struct kube_event *event, int64_t now_ms)
{
    uint8_t wanted[DIGEST];

    digest(event, OBJECT, "", wanted);
    struct memory *m = recall(ev, OBJECT, wanted, now_ms);
    int64_t tokens = (now_ms - m->refill_ms) / REFILL_MS;
    if (tokens < 0) { /* the wall clock was set back */
        m->refill_ms = now_ms;
    } else if (tokens > 0) {
        m->refill_ms += tokens * REFILL_MS;
        m->count = tokens >= BURST - m->count ? BURST : m->count + tokens;
    }
    if (m->count <= 0)
        return false;
    m->count--;
    return true;
}

static bool are_many_alike(struct kube_events *ev, const struct kube_event *event, int64_t now_ms)
{
    uint8_t wanted[DIGEST];

    digest(event, ALIKE, "", wanted);
    struct memory *m = recall(ev, ALIKE, wanted, now_ms);
    if (now_ms - m->first_wall_ms > ALIKE_WINDOW_MS || now_ms < m->first_wall_ms) {
        m->first_wall_ms = now_ms;
        m->count = 0;
    }
    return ++m->count >= ALIKE_MAX;
}

/* Cuts at a character of UTF-8. */
static void copy_message(char ret[KUBE_MESSAGE_MAX], const char *prefix, const char *message)
{
    int whole = snprintf(ret, KUBE_MESSAGE_MAX, "%s%s", prefix, message);

    if (whole < KUBE_MESSAGE_MAX)
        return;
    size_t end = KUBE_MESSAGE_MAX - 1;
    while (end > 0 && ((unsigned char)ret[end - 1] & 0xc0) == 0x80)
        end--;
    /* What stands before the continuation bytes is the first byte of a character that may not be whole. */
    if (end > 0 && (unsigned char)ret[end - 1] >= 0xc0)
        end--;
    ret[end] = '\0';
}

/* Of what it is about, and its mark. */
static void name_event(const struct kube_reference *about, uint64_t mark, struct kube_key *ret)
{
    char name[KUBE_NAME_MAX];
    size_t prefix = strnlen(about->key.name, NAME_PREFIX_MAX);

    while (prefix > 0 && strchr(".-", about->key.name[prefix - 1]) != NULL)
        prefix--; /* a name that was cut must not end in what no label may end in */
    (void)snprintf(name, sizeof name, "%.*s.%016" PRIx64, (int)prefix, about->key.name, mark);
    (void)kube_key_set(ret, about->key.ns[0] != '\0' ? about->key.ns : "default", name);
}

void kube_events_decide(struct kube_events *ev, const struct kube_event *event, int64_t wall_ms, struct kube_event_write *ret)
{
    uint8_t wanted[DIGEST];

    *ret = (struct kube_event_write){ .kind = KUBE_EVENT_DROP };
    /* Only messages that are new count as alike: the same one again is a count already. */
    digest(event, EXACT, event->message, wanted);
    bool combined = find(ev, EXACT, wanted) == NULL && are_many_alike(ev, event, wall_ms);
    if (combined)
        digest(event, EXACT, COMBINED, wanted);
    struct memory *m = recall(ev, EXACT, wanted, wall_ms);
    m->count++; /* counted though perhaps not written: the next write says how often it was */
    if (m->count == 1)
        m->first_wall_ms = wall_ms;
    if (!object_may_write(ev, event, wall_ms))
        return;
    ret->kind = m->mark != 0 ? KUBE_EVENT_PATCH : KUBE_EVENT_CREATE;
    if (ret->kind == KUBE_EVENT_CREATE) {
        m->mark = (ev->seed ^ (uint64_t)wall_ms << 20) + ++ev->serial;
        m->mark += m->mark == 0;
    }
    name_event(&event->about, m->mark, &ret->key);
    ret->count = m->count;
    ret->first_wall_ms = m->first_wall_ms;
    ret->last_wall_ms = wall_ms;
    copy_message(ret->message, combined ? COMBINED : "", event->message);
}

void kube_events_lost(struct kube_events *ev, const struct kube_key *key)
{
    const char *dot = strrchr(key->name, '.');
    uint64_t mark = dot != NULL ? strtoull(dot + 1, NULL, 16) : 0;

    for (size_t i = 0; i < ev->counts[EXACT]; i++)
        if (mark != 0 && ev->memories[EXACT][i].mark == mark)
            ev->memories[EXACT][i].mark = 0;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------------ */

static void put_time(cJSON *object, const char *name, int64_t wall_ms)
{
    char text[CLOCK_TEXT_MAX];

    clock_format(wall_ms, text);
    json_put_text(object, name, text);
}

cJSON *kube_event_object(const struct kube_event *event, const struct kube_event_write *write, const char *component,
                         const char *instance)
{
    const struct kube_reference *about = &event->about;
    cJSON *object = json_object(), *metadata = json_object(), *involved = json_object(), *source = json_object();
    char api_version[KUBE_API_VERSION_MAX];

    kube_api_version(about->resource, api_version);
    json_put_text(object, "apiVersion", "v1");
    json_put_text(object, "kind", "Event");
    json_put(object, "metadata", metadata);
    json_put_text(metadata, "namespace", write->key.ns);
    json_put_text(metadata, "name", write->key.name);
    json_put(object, "involvedObject", involved);
    json_put_text(involved, "apiVersion", api_version);
    json_put_text(involved, "kind", about->resource->kind);
    if (about->key.ns[0] != '\0')
        json_put_text(involved, "namespace", about->key.ns);
    json_put_text(involved, "name", about->key.name);
    json_put_text(involved, "uid", about->uid);
    if (about->version[0] != '\0')
        json_put_text(involved, "resourceVersion", about->version);
    json_put_text(object, "type", event->warning ? "Warning" : "Normal");
    json_put_text(object, "reason", event->reason);
    json_put_text(object, "message", write->message);
    json_put(object, "source", source);
    json_put_text(source, "component", component);
    json_put_text(object, "reportingComponent", component);
    json_put_text(object, "reportingInstance", instance);
    put_time(object, "firstTimestamp", write->first_wall_ms);
    put_time(object, "lastTimestamp", write->last_wall_ms);
    json_put_int(object, "count", write->count);
    return object;
}

cJSON *kube_event_patch(const struct kube_event_write *write)
{
    cJSON *patch = json_object();

    json_put_text(patch, "message", write->message);
    json_put_int(patch, "count", write->count);
    put_time(patch, "lastTimestamp", write->last_wall_ms);
    return patch;
}
