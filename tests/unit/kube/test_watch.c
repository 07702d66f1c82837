#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kube/watch.h"

/*
 * A watch is told what happens and its answers are written down, one word each:
 *   list(version,token,limit) stream() watch(version)   what is sent
 *   begin put drop commit cancel reread wait            what is done besides
 */
struct trace { char text[2048]; };

static void note(struct trace *t, const char *word)
{
    size_t used = strlen(t->text);

    snprintf(t->text + used, sizeof t->text - used, "%s%s", used > 0 ? " " : "", word);
}

static struct kube_watch_output told(struct kube_watch *w, struct trace *t, const struct kube_watch_input *in, int64_t now_ms)
{
    struct kube_watch_output out;
    char text[256];

    kube_watch_step(w, in, now_ms, &out);
    if (out.cancel)
        note(t, "cancel");
    if (out.reread_credentials)
        note(t, "reread");
    if (out.store != KUBE_STORE_NONE)
        note(t, out.store == KUBE_STORE_PUT ? "put" : out.store == KUBE_STORE_DROP ? "drop" : "commit");
    if (out.begin)
        note(t, "begin");
    if (out.send == KUBE_SEND_LIST)
        snprintf(text, sizeof text, "list(%s,%s,%u)", out.version, out.continue_token, out.limit);
    else if (out.send == KUBE_SEND_WATCH && out.initial_events)
        snprintf(text, sizeof text, "stream(%s)", out.version);
    else if (out.send == KUBE_SEND_WATCH)
        snprintf(text, sizeof text, "watch(%s)", out.version);
    if (out.send != KUBE_SEND_NOTHING)
        note(t, text);
    else if (strcmp(kube_watch_state_name(w), "waiting") == 0)
        note(t, "wait");
    cr_assert(out.wake_at_ms > now_ms, "every state has an end");
    return out;
}

#define START { .kind = KUBE_WATCH_START }
#define WAKE { .kind = KUBE_WATCH_WAKE }
#define PAGE(v, more) { .kind = KUBE_WATCH_PAGE, .version = (v), .continue_token = (more) }
#define EVENT(e, v) { .kind = KUBE_WATCH_EVENT, .event = (e), .version = (v) }
#define CLOSED { .kind = KUBE_WATCH_CLOSED }
#define FAILED(k, status) { .kind = KUBE_WATCH_FAILED, .error = (k), .http_status = (status) }
#define GARBLED { .kind = KUBE_WATCH_GARBLED }

/* Each input comes `every_ms` after the one before it. */
static const struct {
    const char *name;
    bool no_streaming;
    int64_t every_ms;
    struct kube_watch_input in[12];
    size_t count;
    const char *trace;
} STORIES[] = {
    { "pages, then a watch from the list's version", true, 10,
      { START, PAGE("100", "next"), PAGE("100", "more"), PAGE("100", ""), EVENT(KUBE_ADDED, "101"), EVENT(KUBE_DELETED, "102") }, 6,
      "begin list(,,500) list(,next,500) list(,more,500) commit watch(100) put drop" },
    { "a streaming list commits at its bookmark", false, 10,
      { START, EVENT(KUBE_ADDED, "7"), EVENT(KUBE_ADDED, "3"), EVENT(KUBE_INITIAL_END, "9"), EVENT(KUBE_MODIFIED, "12"), CLOSED }, 6,
      "begin stream() put put commit put watch(12)" },
    { "a streaming list that is refused becomes pages at once, for ever", false, 10,
      { START, FAILED(ERROR_INVALID, 422), PAGE("5", ""), FAILED(ERROR_GONE, 410) }, 4,
      "begin stream() cancel begin list(,,500) commit watch(5) cancel begin list(,,500)" },
    { "a streaming list that ends early starts over", false, 10,
      { START, EVENT(KUBE_ADDED, "7"), CLOSED }, 3, "begin stream() put wait" },
    { "a streaming list that falls silent becomes pages, for ever", false, 12000,
      { START, EVENT(KUBE_ADDED, "7"), WAKE, WAKE, WAKE, PAGE("9", ""), FAILED(ERROR_GONE, 410) }, 7,
      "begin stream() put cancel wait begin list(,,500) commit watch(9) cancel wait" },
    { "the server ends a watch: on from the last version, bookmarks too", true, 5000,
      { START, PAGE("5", ""), EVENT(KUBE_ADDED, "6"), CLOSED, EVENT(KUBE_BOOKMARK, "9"), CLOSED }, 6,
      "begin list(,,500) commit watch(5) put watch(6) watch(9)" },
    { "410 as an event or as a status: list at once", true, 5000,
      { START, PAGE("5", ""), EVENT(KUBE_ADDED, "6"), FAILED(ERROR_GONE, 410), PAGE("50", "") }, 5,
      "begin list(,,500) commit watch(5) put cancel begin list(,,500) commit watch(50)" },
    { "410 again and again waits", true, 50,
      { START, PAGE("5", ""), FAILED(ERROR_GONE, 410), PAGE("50", ""), FAILED(ERROR_GONE, 410) }, 5,
      "begin list(,,500) commit watch(5) cancel begin list(,,500) commit watch(50) cancel wait" },
    { "410 between pages: the list starts over", true, 50,
      { START, PAGE("5", "next"), FAILED(ERROR_GONE, 410) }, 3, "begin list(,,500) list(,next,500) cancel wait" },
    { "a page that is too large is asked for in halves", true, 50,
      { START, FAILED(ERROR_LIMIT, 200), FAILED(ERROR_LIMIT, 200), PAGE("5", "n"), PAGE("5", "") }, 5,
      "begin list(,,500) cancel list(,,250) cancel list(,,125) list(,n,125) commit watch(5)" },
    { "an error in a watch: wait, then on from the same version", true, 1000,
      { START, PAGE("5", ""), FAILED(ERROR_IO, 0), WAKE }, 4, "begin list(,,500) commit watch(5) cancel wait watch(5)" },
    { "an error between pages: wait, then the same page", true, 1000,
      { START, PAGE("5", "next"), FAILED(ERROR_IO, 0), WAKE }, 4, "begin list(,,500) list(,next,500) cancel wait list(,next,500)" },
    { "a watch that fails five times from one version: list", true, 40000,
      { START, PAGE("5", ""), FAILED(ERROR_IO, 0), WAKE, FAILED(ERROR_IO, 0), WAKE, FAILED(ERROR_IO, 0), WAKE, FAILED(ERROR_IO, 0), WAKE,
        FAILED(ERROR_IO, 0), WAKE }, 12,
      "begin list(,,500) commit watch(5) cancel wait watch(5) cancel wait watch(5) cancel wait watch(5) cancel wait watch(5) cancel wait "
      "begin list(,,500)" },
    { "401: credentials are read again", true, 1000,
      { START, FAILED(ERROR_DENIED, 401), WAKE }, 3, "begin list(,,500) cancel reread wait begin list(,,500)" },
    { "a watch that ends at once without an event waits", true, 100,
      { START, PAGE("5", ""), CLOSED }, 3, "begin list(,,500) commit watch(5) wait" },
    { "a line that is no event: everything is suspect", true, 100,
      { START, PAGE("5", ""), GARBLED }, 3, "begin list(,,500) commit watch(5) cancel wait" },
    { "an event without a version is none", true, 100,
      { START, PAGE("5", ""), EVENT(KUBE_ADDED, "") }, 3, "begin list(,,500) commit watch(5) cancel wait" },
    { "a list without a version is none", true, 100, { START, PAGE("", "") }, 2, "begin list(,,500) wait" },
    { "words that come late change nothing", true, 10,
      { START, EVENT(KUBE_ADDED, "6"), CLOSED, PAGE("5", ""), PAGE("7", ""), FAILED(ERROR_IO, 0), EVENT(KUBE_ADDED, "9"), CLOSED, GARBLED }, 9,
      "begin list(,,500) commit watch(5) cancel wait wait wait wait" },
};

Test(watch, stories)
{
    for (size_t i = 0; i < COUNT(STORIES); i++) {
        struct kube_watch_options options = { .seed = 7, .no_streaming = STORIES[i].no_streaming };
        struct kube_watch *w = kube_watch_new(&options);
        struct trace t = { .text = "" };
        for (size_t k = 0; k < STORIES[i].count; k++)
            (void)told(w, &t, &STORIES[i].in[k], 1000 + (int64_t)k * STORIES[i].every_ms);
        cr_expect_str_eq(t.text, STORIES[i].trace, "case %s:\n  %s", STORIES[i].name, t.text);
        kube_watch_free(w);
    }
}

static struct kube_watch *watching(int64_t now_ms, struct kube_watch_output *out)
{
    struct kube_watch *w = kube_watch_new(&(struct kube_watch_options){ .seed = 3, .no_streaming = true });
    struct trace t = { .text = "" };

    (void)told(w, &t, &(struct kube_watch_input)START, now_ms);
    *out = told(w, &t, &(struct kube_watch_input)PAGE("5", ""), now_ms);
    return w;
}

Test(watch, silence_beyond_the_servers_own_time_is_cut)
{
    struct kube_watch_output out;
    struct trace t = { .text = "" };
    struct kube_watch *w = watching(0, &out);

    int64_t limit = (int64_t)out.server_timeout_s * 1000 + 10000;
    cr_expect(out.server_timeout_s >= 290 && out.server_timeout_s <= 350);
    cr_expect_eq(out.wake_at_ms, limit);
    out = told(w, &t, &(struct kube_watch_input)EVENT(KUBE_BOOKMARK, "6"), 60000);
    cr_expect_eq(out.wake_at_ms, 60000 + limit, "a bookmark is a word");
    out = told(w, &t, &(struct kube_watch_input)WAKE, limit);
    cr_expect_eq(out.wake_at_ms, 60000 + limit, "an early wake changes nothing");
    (void)told(w, &t, &(struct kube_watch_input)WAKE, 60000 + limit);
    cr_expect_str_eq(t.text, "cancel wait");
    kube_watch_free(w);
}

Test(watch, waits_double_to_half_a_minute_with_jitter_and_start_anew_after_good_minutes)
{
    struct kube_watch_output out;
    struct trace t = { .text = "" };
    struct kube_watch *w = watching(0, &out);
    int64_t now = 0, nominal = 800;

    for (int i = 0; i < 10; i++) {
        out = told(w, &t, &(struct kube_watch_input)FAILED(ERROR_IO, 0), now);
        int64_t waited = out.wake_at_ms - now;
        cr_expect(waited >= nominal / 2 && waited <= nominal, "wait %d: %lld of %lld", i, (long long)waited, (long long)nominal);
        nominal = nominal * 2 > 30000 ? 30000 : nominal * 2;
        now = out.wake_at_ms;
        out = told(w, &t, &(struct kube_watch_input)WAKE, now);
        if (out.send == KUBE_SEND_LIST)
            (void)told(w, &t, &(struct kube_watch_input)PAGE("5", ""), now);
    }
    now += 130000;
    out = told(w, &t, &(struct kube_watch_input)FAILED(ERROR_IO, 0), now);
    cr_expect_leq(out.wake_at_ms - now, 800);
    kube_watch_free(w);
}

Test(watch, retry_after_is_kept)
{
    struct kube_watch_output out;
    struct trace t = { .text = "" };
    struct kube_watch *w = watching(0, &out);
    struct kube_watch_input busy = { .kind = KUBE_WATCH_FAILED, .error = ERROR_BUSY, .http_status = 429, .retry_after_ms = 20000 };

    out = told(w, &t, &busy, 0);
    cr_expect(out.wake_at_ms >= 20000 && out.wake_at_ms <= 24000, "%lld", (long long)out.wake_at_ms);
    kube_watch_free(w);
}

/* Whatever comes in whatever order: one request at a time, and always a time at which it goes on. */
Test(watch, never_two_requests_at_once_under_random_words)
{
    static const struct kube_watch_input WORDS[] = {
        WAKE, PAGE("5", ""), PAGE("5", "x"), EVENT(KUBE_ADDED, "8"), EVENT(KUBE_BOOKMARK, "9"), EVENT(KUBE_INITIAL_END, "9"), CLOSED,
        FAILED(ERROR_GONE, 410), FAILED(ERROR_IO, 0), FAILED(ERROR_INVALID, 422), FAILED(ERROR_LIMIT, 200), GARBLED,
    };
    uint32_t random = 1;

    for (int round = 0; round < 200; round++) {
        struct kube_watch *w = kube_watch_new(&(struct kube_watch_options){ .seed = (uint64_t)round });
        bool sent = false;
        int64_t now = 1000;
        for (int k = 0; k < 100; k++) {
            random = random * 1664525u + 1013904223u;
            const struct kube_watch_input *in = k == 0 ? &(struct kube_watch_input)START : &WORDS[(random >> 16) % COUNT(WORDS)];
            bool ends = in->kind == KUBE_WATCH_CLOSED || in->kind == KUBE_WATCH_FAILED || in->kind == KUBE_WATCH_PAGE;
            if (ends && !sent)
                continue; /* the informer has no request that could end */
            bool list = strcmp(kube_watch_state_name(w), "listing") == 0;
            if ((in->kind == KUBE_WATCH_PAGE && !list) || (in->kind == KUBE_WATCH_CLOSED && list))
                continue;
            struct kube_watch_output out;
            now += (random >> 8) % 20000;
            kube_watch_step(w, in, now, &out);
            sent = (sent && !ends && !out.cancel) || out.send != KUBE_SEND_NOTHING;
            cr_assert(!(sent && out.send != KUBE_SEND_NOTHING && !ends && !out.cancel && in->kind != KUBE_WATCH_WAKE && k > 0),
                      "round %d step %d", round, k);
            cr_assert(sent || strcmp(kube_watch_state_name(w), "waiting") == 0, "round %d step %d: %s", round, k, kube_watch_state_name(w));
        }
        kube_watch_free(w);
    }
}
