#include "sidecar/ring/suspicion.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct suspect { bool watched; int64_t heard_ms, elsewhere_ms; };

struct suspicion {
    struct suspicion_limits limits;
    int32_t size;
    int64_t ticked_ms;
    struct suspect *ranks;
};

struct suspicion_limits suspicion_limits_for(int64_t timeout_ms)
{
    return (struct suspicion_limits){ .beat_ms = timeout_ms / 10, .suspect_ms = timeout_ms * 3 / 10,
                                      .dead_ms = timeout_ms * 7 / 10, .cut_ms = timeout_ms * 9 / 10 };
}

struct suspicion *suspicion_new(const struct suspicion_limits *limits, int32_t size, int64_t now_ms)
{
    struct suspicion *s = xcalloc(1, sizeof *s);

    *s = (struct suspicion){ .limits = *limits, .size = size, .ticked_ms = now_ms };
    s->ranks = xcalloc((size_t)size, sizeof *s->ranks);
    return s;
}

void suspicion_free(struct suspicion *s)
{
    if (s == NULL)
        return;
    free(s->ranks);
    free(s);
}

static struct suspect *find(const struct suspicion *s, int32_t rank)
{
    return rank >= 0 && rank < s->size && s->ranks[rank].watched ? &s->ranks[rank] : NULL;
}

void suspicion_watch(struct suspicion *s, int32_t rank, int64_t now_ms)
{
    if (rank >= 0 && rank < s->size)
        s->ranks[rank] = (struct suspect){ .watched = true, .heard_ms = now_ms, .elsewhere_ms = now_ms };
}

void suspicion_heard(struct suspicion *s, int32_t rank, int64_t now_ms)
{
    struct suspect *r = find(s, rank);

    if (r != NULL && now_ms > r->heard_ms)
        r->heard_ms = now_ms;
}

void suspicion_vouched(struct suspicion *s, int32_t rank, int64_t silent_ms, int64_t now_ms)
{
    struct suspect *r = find(s, rank);

    if (r != NULL && silent_ms >= 0 && silent_ms < s->limits.dead_ms && now_ms - silent_ms > r->elsewhere_ms)
        r->elsewhere_ms = now_ms - silent_ms;
}

int64_t suspicion_silence(const struct suspicion *s, int32_t rank, int64_t now_ms)
{
    const struct suspect *r = find(s, rank);

    return r != NULL ? now_ms - r->heard_ms : -1;
}

/* While this process did not run, what others sent lay in the kernel and what it should have asked was not asked. */
void suspicion_tick(struct suspicion *s, int64_t now_ms)
{
    int64_t pause = now_ms - s->ticked_ms - s->limits.beat_ms;

    s->ticked_ms = now_ms;
    if (pause < s->limits.beat_ms)
        return;
    for (int32_t i = 0; i < s->size; i++) {
        struct suspect *r = &s->ranks[i];
        r->heard_ms = r->heard_ms + pause < now_ms ? r->heard_ms + pause : now_ms;
        r->elsewhere_ms = r->elsewhere_ms + pause < now_ms ? r->elsewhere_ms + pause : now_ms;
    }
}

enum suspicion_word suspicion_judge(struct suspicion *s, int32_t rank, int64_t now_ms, char ret_why[SUSPICION_WHY_MAX])
{
    const struct suspicion_limits *l = &s->limits;
    struct suspect *r = find(s, rank);

    if (r == NULL || now_ms - r->heard_ms < l->suspect_ms)
        return SUSPICION_NONE;
    int64_t silence = now_ms - r->heard_ms, anywhere = now_ms - (r->elsewhere_ms > r->heard_ms ? r->elsewhere_ms : r->heard_ms);
    if (anywhere >= l->dead_ms)
        (void)snprintf(ret_why, SUSPICION_WHY_MAX, "no sign of life for %lld ms", (long long)l->dead_ms);
    else if (silence >= l->cut_ms)
        (void)snprintf(ret_why, SUSPICION_WHY_MAX, "others hear it and one rank does not: the network between the two is broken");
    else
        return SUSPICION_ASK;
    r->watched = false;
    return SUSPICION_LOST;
}
