#include "sidecar/supervise/hang.h"

#define QUIET_DEFAULT_S 1800
#define HANG_BEATS 3
#define LOOKS_A_LIMIT 10
#define LOOK_LEAST_MS 100
#define LOOK_MOST_MS 10000

struct hang_rule hang_rule_of(const struct training_job *policy)
{
    const struct optional_int *quiet = &policy->spec.health.progress_timeout_s;

    return (struct hang_rule){ .quiet_ms = (quiet->set ? quiet->value : QUIET_DEFAULT_S) * 1000,
                               .first_ms = policy->spec.health.first_step_timeout_s * 1000, .strict = quiet->set };
}

void hang_begin(struct hang_signs *s, int64_t now_ms)
{
    *s = (struct hang_signs){ .step = -1, .trained_ms = now_ms, .alive_ms = now_ms };
}

void hang_trained(struct hang_signs *s, int64_t now_ms)
{
    s->shown = true;
    s->trained_ms = s->alive_ms = now_ms;
}

/* Counts go on from round to round, and the last words of the process before may come late: the first that is told is where the round
 * begins, and what goes down begins anew. */
void hang_note(struct hang_signs *s, const struct progress_view *p, int64_t now_ms)
{
    bool worked = s->noted && p->operations > s->operations;
    bool told = s->noted && (p->step > s->step || p->reports > s->reports);

    s->attached |= p->attached;
    s->traced = p->traced;
    if (p->cpu_percent >= HANG_BUSY_PERCENT || p->written != s->written || p->traced)
        s->alive_ms = now_ms;
    if (worked || told)
        hang_trained(s, now_ms);
    s->beats += worked && s->beats < HANG_BEATS;
    s->trained |= s->beats >= HANG_BEATS || (told && p->first_step_ms > 0);
    s->noted = true;
    s->step = p->step;
    s->operations = p->operations;
    s->reports = p->reports;
    s->written = p->written;
}

void hang_excuse(struct hang_signs *s, int64_t pause_ms)
{
    s->trained_ms += pause_ms;
    s->alive_ms += pause_ms;
}

struct look { const struct hang_signs *ranks; int64_t limit_ms, now_ms; bool some_shown; };

static bool is_busy(const struct look *l, int32_t rank)
{
    return l->now_ms - l->ranks[rank].alive_ms < l->limit_ms / 2;
}

static bool stands_still(const struct look *l, int32_t rank)
{
    return l->now_ms - l->ranks[rank].trained_ms >= (is_busy(l, rank) ? HANG_PATIENCE * l->limit_ms : l->limit_ms);
}

static bool is_judged(const struct look *l, int32_t rank)
{
    return l->ranks[rank].judged && (l->ranks[rank].shown || !l->some_shown);
}

/* Is rank a, rather than b, the one that the others wait for? */
static bool is_behind(const struct hang_signs *a, const struct hang_signs *b)
{
    if (a->step != b->step && a->step >= 0 && b->step >= 0)
        return a->step < b->step;
    return a->trained_ms < b->trained_ms;
}

static int32_t find_culprit(const struct look *l, int32_t count, int32_t lacking)
{
    int32_t culprit = -1;

    if (lacking >= 0 && lacking < count && l->ranks[lacking].judged)
        return lacking;
    for (int32_t i = 0; i < count; i++) {
        if (is_judged(l, i) && (culprit < 0 || is_behind(&l->ranks[i], &l->ranks[culprit])))
            culprit = i;
    }
    return culprit;
}

struct hang_found hang_look(const struct hang_signs *ranks, int32_t count, int32_t lacking, const struct hang_rule *rule, int64_t now_ms)
{
    struct hang_found found = { .verdict = HANG_NONE, .rank = -1 };
    struct look l = { .ranks = ranks, .now_ms = now_ms };
    bool some_attached = false;

    if (rule->quiet_ms <= 0)
        return found;
    for (int32_t i = 0; i < count; i++) {
        if (ranks[i].judged && ranks[i].traced)
            return found;
        found.started |= ranks[i].judged && ranks[i].trained;
        l.some_shown |= ranks[i].judged && ranks[i].shown;
        some_attached |= ranks[i].judged && ranks[i].attached;
    }
    l.limit_ms = found.started || rule->first_ms < rule->quiet_ms ? rule->quiet_ms : rule->first_ms;
    if (l.limit_ms < HANG_SMALL_MS)
        l.limit_ms = HANG_SMALL_MS;
    int32_t culprit = find_culprit(&l, count, lacking);
    if (culprit < 0 || !stands_still(&l, culprit))
        return found;
    found.verdict = some_attached || rule->strict ? HANG_FOUND : HANG_SUSPECTED;
    found.rank = culprit;
    found.quiet_ms = now_ms - ranks[culprit].trained_ms;
    found.busy = is_busy(&l, culprit);
    return found;
}

int64_t hang_interval_ms(const struct hang_rule *rule)
{
    int64_t interval = rule->quiet_ms / LOOKS_A_LIMIT;

    if (rule->quiet_ms <= 0)
        return 0;
    return interval < LOOK_LEAST_MS ? LOOK_LEAST_MS : interval > LOOK_MOST_MS ? LOOK_MOST_MS : interval;
}
