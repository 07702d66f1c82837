/* The coordinator's watch over a round: who shows signs of training (hang.h), and what follows when nobody does: every rank's stacks and
 * the state of the ring are written down first, then the round ends with the culprit as its cause. */

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "sidecar/supervise/step.h"
#include "sidecar/supervise/trainer.h"

#define DUMP_LIMIT_MS 10000  /* then the round ends with what is written */
#define SLEPT_MS 5000        /* a look that comes so late: this process did not run, so nobody may have */

void vigil_init(struct coordinator *c)
{
    c->hang_rule = hang_rule_of(c->policy);
    c->lacking = -1;
    c->dump.member = -1;
}

static void next_look(struct step *s)
{
    int64_t interval = hang_interval_ms(&s->c->hang_rule);

    s->c->looked_ms = s->now->mono_ms;
    s->c->look_at_ms = interval > 0 ? s->now->mono_ms + interval : 0;
}

static void forget_dump(struct coordinator *c)
{
    c->dump = (struct dump){ .member = -1 };
}

void vigil_begin(struct step *s)
{
    struct coordinator *c = s->c;

    for (int32_t i = 0; i < c->count; i++)
        hang_begin(&c->members[i].signs, s->now->mono_ms);
    c->lacking = -1;
    c->suspected[0] = '\0';
    forget_dump(c);
    next_look(s);
}

void vigil_started(struct step *s, int32_t member)
{
    hang_begin(&s->c->members[member].signs, s->now->mono_ms);
}

void vigil_note(struct step *s, int32_t member)
{
    struct coordinator *c = s->c;

    hang_note(&c->members[member].signs, &c->members[member].progress, s->now->mono_ms);
}

void vigil_committed(struct step *s)
{
    for (int32_t i = 0; i < s->c->world; i++)
        hang_trained(&s->c->members[i].signs, s->now->mono_ms);
}

/* ---- in words ---- */

static void describe(const struct coordinator *c, const struct coordinator_member *m, const struct hang_found *f, char ret[256])
{
    char since[64] = "", lacks[160] = "";

    if (m->progress.step >= 0)
        (void)snprintf(since, sizeof since, " since step %lld", (long long)m->progress.step);
    if (c->stalled[0] != '\0')
        (void)snprintf(lacks, sizeof lacks, "; %.*s", (int)strcspn(c->stalled, ";"), c->stalled);
    (void)snprintf(ret, 256, "%.60s made no %s for %lld s%s and %s%.140s", m->name, f->started ? "progress" : "first step",
                   (long long)(f->quiet_ms / 1000), since, f->busy ? "still uses CPU" : "uses no CPU", lacks);
}

void coordinator_describe_ring(const struct coordinator *c, const struct coordinator_now *now, struct buf *out)
{
    buf_addf(out, "%s, attempt %d round %d, %d ranks\n", c->job, (int)c->attempt, (int)c->history.round, (int)c->world);
    buf_addf(out, "%s\n", c->dump.cause.text);
    buf_addf(out, "collectives: %s\n\n", c->stalled[0] != '\0' ? c->stalled : "none that some ranks have sent and others have not for long");
    buf_add(out, "member        rank  process   step      operations  waited s  cpu %  no training s  no life s\n");
    for (int32_t i = 0; i < c->count; i++) {
        const struct coordinator_member *m = &c->members[i];
        buf_addf(out, "%-12s  %4d  %-8s  %-8lld  %-10lld  %8.1f  %5d  %13lld  %9lld%s\n", m->name, (int)m->rank,
                 m->joined ? process_state_name(m->trainer.state) : "lost", (long long)m->progress.step, (long long)m->progress.operations,
                 m->progress.wait_ms / 1000, (int)m->progress.cpu_percent, (long long)((now->mono_ms - m->signs.trained_ms) / 1000),
                 (long long)((now->mono_ms - m->signs.alive_ms) / 1000), i == c->dump.member ? "  <- taken for the cause" : "");
    }
}

/* ---- a look ---- */

static bool runs(const struct coordinator *c, const struct coordinator_member *m)
{
    return m->joined && !m->ignored && !m->released && m->trainer.state == PROCESS_RUNNING && !m->trainer.parked && m->trainer.fence == c->fence;
}

static void begin_dump(struct step *s, int32_t member, const struct hang_found *f)
{
    struct coordinator *c = s->c;
    struct coordinator_member *m = &c->members[member];
    struct dump *d = &c->dump;

    *d = (struct dump){ .member = member, .until_ms = s->now->mono_ms + DUMP_LIMIT_MS };
    d->cause = (struct cause){ .kind = CAUSE_HANG, .member = member, .direct = true, .at_ms = s->now->mono_ms };
    describe(c, m, f, d->cause.text);
    (void)snprintf(d->name, sizeof d->name, "hang-%d-%d-%.30s", (int)c->attempt, (int)c->history.round, m->name);
    if (c->evidence_dir[0] != '\0')
        (void)snprintf(c->evidence, sizeof c->evidence, "%.180s/%s", c->evidence_dir, d->name);
    for (int32_t i = 0; i < c->count; i++) {
        bool wanted = c->members[i].joined && (c->group ? i < c->world : i == member);
        c->members[i].dumping = wanted;
        if (wanted)
            (void)snprintf(step_emit(s, OUTPUT_DUMP, i)->text, 64, "%s", d->name);
    }
}

/* The training of a group is over when one of its ranks has ended well: what another still does (an upload, a last evaluation) has no
 * signs of training. */
static bool is_finishing(const struct coordinator *c)
{
    for (int32_t i = 0; c->group && i < c->world; i++) {
        if (c->members[i].trainer.state == PROCESS_DONE && c->members[i].trainer.fence == c->fence)
            return true;
    }
    return false;
}

static void suspect(struct step *s, int32_t member, const struct hang_found *f)
{
    struct coordinator *c = s->c;

    if (f->verdict == HANG_FOUND && (c->hang_rule.strict || !is_finishing(c))) {
        begin_dump(s, member, f);
    } else if (f->verdict != HANG_NONE && c->suspected[0] == '\0') {
        describe(c, &c->members[member], f, c->suspected);
        (void)step_emit(s, OUTPUT_REPORT, -1);
    }
}

static void look_at_group(struct step *s)
{
    struct coordinator *c = s->c;
    struct hang_signs signs[REPORT_MAX_MEMBERS];

    for (int32_t i = 0; i < c->world; i++) {
        signs[i] = c->members[i].signs;
        signs[i].judged = runs(c, &c->members[i]);
    }
    struct hang_found f = hang_look(signs, c->world, c->lacking, &c->hang_rule, s->now->mono_ms);
    if (f.rank >= 0)
        suspect(s, f.rank, &f);
    else if (c->suspected[0] != '\0') {
        c->suspected[0] = '\0';
        (void)step_emit(s, OUTPUT_REPORT, -1);
    }
}

/* Workers beside a ps train each at its own pace; a ps and an evaluator wait for work for as long as there is none. */
static void look_at_each(struct step *s)
{
    struct coordinator *c = s->c;

    for (int32_t i = 0; i < c->world && c->dump.member < 0; i++) {
        struct hang_signs signs = c->members[i].signs;
        signs.judged = runs(c, &c->members[i]);
        struct hang_found f = hang_look(&signs, 1, -1, &c->hang_rule, s->now->mono_ms);
        if (f.rank >= 0)
            suspect(s, i, &f);
    }
}

static void conclude(struct step *s)
{
    struct coordinator *c = s->c;
    struct cause cause = c->dump.cause;

    forget_dump(c);
    if (!c->group) {
        step_abort(s, cause.member, cause.text);
        verdict_alone(s, &cause);
        return;
    }
    c->cause = cause;
    verdict_conclude(s);
}

static bool all_dumped(const struct coordinator *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        if (c->members[i].joined && c->members[i].dumping)
            return false;
    }
    return true;
}

void vigil_dumped(struct step *s, int32_t member)
{
    struct coordinator *c = s->c;

    c->members[member].dumping = false;
    if (c->phase == COORDINATOR_RUN && c->dump.member >= 0 && all_dumped(c))
        conclude(s);
}

void vigil_tick(struct step *s)
{
    struct coordinator *c = s->c;
    int64_t pause = s->now->mono_ms - c->look_at_ms;

    if (c->phase != COORDINATOR_RUN || c->look_at_ms == 0)
        return;
    if (c->dump.member >= 0) {
        if (s->now->mono_ms >= c->dump.until_ms)
            conclude(s);
        return;
    }
    if (pause < 0)
        return;
    for (int32_t i = 0; pause >= SLEPT_MS && i < c->count; i++)
        hang_excuse(&c->members[i].signs, pause);
    if (c->group)
        look_at_group(s);
    else
        look_at_each(s);
    next_look(s);
}

int64_t vigil_deadline(const struct coordinator *c)
{
    if (c->phase != COORDINATOR_RUN || c->look_at_ms == 0)
        return INT64_MAX;
    return c->dump.member >= 0 ? c->dump.until_ms : c->look_at_ms;
}
