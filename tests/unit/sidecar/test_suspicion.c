/* Silence on virtual time: peers that are dead, throttled, cut off from one rank, or only look so because this process slept. */
#include <criterion/criterion.h>

#include "sidecar/ring/pulse.h"
#include "sidecar/ring/suspicion.h"

#define SIZE 4

struct world {
    struct suspicion *s;
    int64_t now_ms, asked_ms, lost_ms;
    char why[SUSPICION_WHY_MAX];
};

static struct world world_new(void)
{
    struct suspicion_limits limits = suspicion_limits_for(1000);
    struct world w = { .s = suspicion_new(&limits, SIZE, 0), .asked_ms = -1, .lost_ms = -1 };

    for (int32_t r = 1; r < SIZE; r++)
        suspicion_watch(w.s, r, 0);
    return w;
}

/* What the thread does at every beat, for rank 1. */
static void beat(struct world *w, int64_t now_ms)
{
    char why[SUSPICION_WHY_MAX];

    w->now_ms = now_ms;
    suspicion_tick(w->s, now_ms);
    switch (suspicion_judge(w->s, 1, now_ms, why)) {
    case SUSPICION_NONE:
        break;
    case SUSPICION_ASK:
        if (w->asked_ms < 0)
            w->asked_ms = now_ms;
        break;
    case SUSPICION_LOST:
        cr_expect(w->lost_ms < 0, "lost twice");
        w->lost_ms = now_ms;
        memcpy(w->why, why, sizeof why);
        break;
    }
}

Test(suspicion, limits)
{
    struct suspicion_limits l = suspicion_limits_for(1000);

    cr_expect(l.beat_ms == 100 && l.suspect_ms == 300 && l.dead_ms == 700 && l.cut_ms == 900);
}

Test(suspicion, silence)
{
    static const struct {
        const char *name;
        int64_t beats[16];       /* when rank 1 is heard; 0 ends */
        int64_t vouch_from, vouch_to; /* others heard it last at vouch_to, and say so at every beat from vouch_from on */
        int64_t asked_ms, lost_ms;
    } rows[] = {
        { "dead from the start", { 0 }, 0, 0, 300, 700 },
        { "dead after a beat", { 50, 150 }, 0, 0, 500, 900 },
        { "beats in time", { 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200 }, 0, 0, -1, -1 },
        { "throttled for 200 ms again and again", { 200, 400, 600, 800, 1000, 1200 }, 0, 0, -1, -1 },
        { "throttled for 450 ms: asked about, not lost", { 100, 550, 1000, 1200 }, 0, 0, 400, -1 },
        { "dead, and others heard it a little later", { 100 }, 300, 180, 400, 900 },
        { "others hear it and we do not", { 100 }, 300, 99999, 400, 1000 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w = world_new();
        size_t next = 0;
        for (int64_t now = 100; now <= 1200; now += 100) {
            while (rows[i].beats[next] != 0 && rows[i].beats[next] <= now)
                suspicion_heard(w.s, 1, rows[i].beats[next++]);
            if (rows[i].vouch_from != 0 && now >= rows[i].vouch_from) {
                int64_t last = rows[i].vouch_to < now ? rows[i].vouch_to : now - 20;
                suspicion_vouched(w.s, 1, now - last, now);
            }
            beat(&w, now);
        }
        cr_expect(w.asked_ms == rows[i].asked_ms, "case %s: asked at %lld", rows[i].name, (long long)w.asked_ms);
        cr_expect(w.lost_ms == rows[i].lost_ms, "case %s: lost at %lld", rows[i].name, (long long)w.lost_ms);
        suspicion_free(w.s);
    }
}

Test(suspicion, own_pause_is_nobodys_silence)
{
    struct world w = world_new();

    beat(&w, 100);
    beat(&w, 5000); /* stopped for almost five seconds */
    cr_expect(w.asked_ms < 0 && w.lost_ms < 0);
    for (int64_t now = 5100; now <= 5800; now += 100)
        beat(&w, now);
    cr_expect(w.lost_ms == 5500, "still silent afterwards: lost at %lld", (long long)w.lost_ms);
    suspicion_free(w.s);
}

Test(suspicion, the_words_hold_no_measured_time)
{
    struct world a = world_new(), b = world_new();

    for (int64_t now = 100; now <= 1000; now += 100)
        beat(&a, now);
    for (int64_t now = 130; now <= 1000; now += 100)
        beat(&b, now);
    cr_expect_str_eq(a.why, b.why);
    cr_expect_str_eq(a.why, "no sign of life for 700 ms");
    suspicion_free(a.s);
    suspicion_free(b.s);
}

Test(suspicion, peers_cannot_name_ranks_that_are_not_there)
{
    static const int32_t ranks[] = { -1, 0, SIZE, INT32_MAX, INT32_MIN };
    struct world w = world_new();
    char why[SUSPICION_WHY_MAX];

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        suspicion_heard(w.s, ranks[i], 10);
        suspicion_vouched(w.s, ranks[i], 5, 10);
        cr_expect(suspicion_silence(w.s, ranks[i], 10000) == -1 && suspicion_judge(w.s, ranks[i], 10000, why) == SUSPICION_NONE,
                  "rank %d", ranks[i]);
    }
    suspicion_vouched(w.s, 1, -5, 10);        /* heard in the future */
    suspicion_vouched(w.s, 1, INT64_MAX, 10); /* and long before */
    for (int64_t now = 100; now <= 700; now += 100)
        beat(&w, now);
    cr_expect(w.lost_ms == 700);
    suspicion_free(w.s);
}

Test(pulse, who_watches_whom)
{
    static const struct { int32_t size, a, b; bool expected; } rows[] = {
        { 2, 0, 1, true }, { 2, 1, 1, false }, { 16, 3, 12, true }, { 17, 3, 12, false }, { 17, 0, 12, true }, { 17, 12, 0, true },
        { 17, 5, 6, true }, { 17, 5, 7, true }, { 17, 5, 8, false }, { 17, 16, 1, true }, { 17, 16, 2, false }, { 17, 15, 1, false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect(pulse_watches(rows[i].size, rows[i].a, rows[i].b) == rows[i].expected, "row %zu", i);
        cr_expect(pulse_watches(rows[i].size, rows[i].b, rows[i].a) == rows[i].expected, "row %zu, other way", i);
    }
}
