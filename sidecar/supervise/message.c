#include "sidecar/supervise/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

#define FENCE_TEXT_MAX 24
#define WORLD_MAX REPORT_MAX_MEMBERS

/* ---- pieces ---- */

static void put_u64(cJSON *o, const char *key, uint64_t value)
{
    char text[FENCE_TEXT_MAX];

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    json_put_text(o, key, text);
}

static int get_u64(const cJSON *o, const char *key, uint64_t *ret, struct error *e)
{
    const char *text = json_text(o, key, "");
    char *end = NULL;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return error_set(e, ERROR_INVALID, "%s: found \"%.40s\", expected a number in a string", key, text);
    *ret = value;
    return 0;
}

static void get_text(const cJSON *o, const char *key, char *ret, size_t size)
{
    (void)snprintf(ret, size, "%s", json_text(o, key, ""));
}

static int get_int(const cJSON *o, const char *key, int64_t least, int64_t most, int64_t *ret, struct error *e)
{
    int64_t value = json_int(o, key, INT64_MIN);

    if (value < least || value > most)
        return error_set(e, ERROR_INVALID, "%s: expected an integer from %lld to %lld", key, (long long)least, (long long)most);
    *ret = value;
    return 0;
}

static int32_t clamp32(int64_t value)
{
    return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static int need_object(const cJSON *o, const char *what, struct error *e)
{
    return cJSON_IsObject(o) ? 0 : error_set(e, ERROR_INVALID, "%s: expected a JSON object", what);
}

/* ---- trainer ---- */

cJSON *trainer_encode(const struct trainer_view *t)
{
    cJSON *o = json_object();

    json_put_text(o, "state", process_state_name(t->state));
    put_u64(o, "fence", t->fence);
    json_put_int(o, "pid", t->pid);
    json_put_int(o, "restarts", t->restarts);
    json_put_bool(o, "has_exit", t->has_exit);
    json_put_int(o, "code", t->code);
    json_put_int(o, "signal", t->signal);
    json_put_bool(o, "oom", t->oom);
    json_put_bool(o, "not_started", t->not_started);
    json_put_bool(o, "stopped", t->stopped);
    json_put_bool(o, "after_loss", t->after_loss);
    json_put_bool(o, "terminating", t->terminating);
    json_put_bool(o, "parked", t->parked);
    json_put_int(o, "age_ms", t->age_ms);
    json_put_int(o, "started_ms", t->started_ms);
    json_put_text(o, "reason", t->reason);
    if (t->tail[0] != '\0')
        json_put_text(o, "tail", t->tail);
    return o;
}

static bool parse_state(const char *text, enum process_state *ret)
{
    for (enum process_state s = PROCESS_WAITING; s <= PROCESS_LOST; s++) {
        if (strcmp(text, process_state_name(s)) == 0) {
            *ret = s;
            return true;
        }
    }
    return false;
}

int trainer_decode(const cJSON *o, struct trainer_view *ret, struct error *e)
{
    struct trainer_view t = { .state = PROCESS_LOST };
    int64_t age = 0, code = 0, signal_number = 0;

    if (need_object(o, "trainer", e) != 0 || get_u64(o, "fence", &t.fence, e) != 0)
        return -1;
    if (!parse_state(json_text(o, "state", ""), &t.state))
        return error_set(e, ERROR_INVALID, "trainer.state: found \"%.40s\", which is no state", json_text(o, "state", ""));
    if (get_int(o, "age_ms", 0, INT64_MAX, &age, e) != 0 || get_int(o, "code", 0, 255, &code, e) != 0 ||
        get_int(o, "signal", 0, 127, &signal_number, e) != 0)
        return -1;
    t.pid = clamp32(json_int(o, "pid", 0));
    t.restarts = clamp32(json_int(o, "restarts", 0));
    t.has_exit = json_bool(o, "has_exit", false);
    t.code = (int32_t)code;
    t.signal = (int32_t)signal_number;
    t.oom = json_bool(o, "oom", false);
    t.not_started = json_bool(o, "not_started", false);
    t.stopped = json_bool(o, "stopped", false);
    t.after_loss = json_bool(o, "after_loss", false);
    t.terminating = json_bool(o, "terminating", false);
    t.parked = json_bool(o, "parked", false);
    t.age_ms = age;
    t.started_ms = json_int(o, "started_ms", 0);
    get_text(o, "reason", t.reason, sizeof t.reason);
    get_text(o, "tail", t.tail, sizeof t.tail);
    *ret = t;
    return 0;
}

/* ---- progress ---- */

cJSON *progress_encode(const struct progress_view *p)
{
    cJSON *o = json_object();

    json_put_bool(o, "attached", p->attached);
    if (p->listens)
        json_put_bool(o, "listens", true);
    json_put_bool(o, "saved", p->saved);
    json_put_int(o, "step", p->step);
    json_put_int(o, "total_steps", p->total_steps);
    if (p->has_loss)
        json_put_double(o, "loss", p->loss);
    json_put_double(o, "step_ms", p->step_ms);
    json_put_int(o, "bytes_reduced", p->bytes_reduced);
    json_put_int(o, "operations", p->operations);
    json_put_double(o, "busbw_gbps", p->busbw_gbps);
    json_put_double(o, "wait_ms", p->wait_ms);
    json_put_int(o, "first_step_ms", p->first_step_ms);
    json_put_int(o, "reports", p->reports);
    json_put_int(o, "cpu_percent", p->cpu_percent);
    json_put_int(o, "written", p->written);
    if (p->traced)
        json_put_bool(o, "traced", true);
    if (p->metrics[0] != '\0')
        json_put_text(o, "metrics", p->metrics);
    return o;
}

int progress_decode(const cJSON *o, struct progress_view *ret, struct error *e)
{
    if (need_object(o, "progress", e) != 0)
        return -1;
    struct progress_view p = {
        .attached = json_bool(o, "attached", false),
        .listens = json_bool(o, "listens", false),
        .saved = json_bool(o, "saved", true),
        .step = json_int(o, "step", -1),
        .total_steps = json_int(o, "total_steps", -1),
        .has_loss = cJSON_IsNumber(json_at(o, "loss")),
        .loss = json_double(o, "loss", 0),
        .step_ms = json_double(o, "step_ms", 0),
        .bytes_reduced = json_int(o, "bytes_reduced", 0),
        .operations = json_int(o, "operations", 0),
        .busbw_gbps = json_double(o, "busbw_gbps", 0),
        .wait_ms = json_double(o, "wait_ms", 0),
        .first_step_ms = json_int(o, "first_step_ms", 0),
        .reports = json_int(o, "reports", 0),
        .cpu_percent = clamp32(json_int(o, "cpu_percent", 0)),
        .written = json_int(o, "written", 0),
        .traced = json_bool(o, "traced", false),
    };
    get_text(o, "metrics", p.metrics, sizeof p.metrics);
    if (strlen(json_text(o, "metrics", "")) >= sizeof p.metrics)
        p.metrics[0] = '\0'; /* half an object is none */
    *ret = p;
    return 0;
}

/* ---- ring ---- */

cJSON *ring_encode(const struct ring_view *r)
{
    cJSON *o = json_object();

    put_u64(o, "fence", r->fence);
    json_put_bool(o, "formed", r->formed);
    json_put_bool(o, "ok", r->ok);
    json_put_double(o, "seconds", r->seconds);
    json_put_int(o, "lost_rank", r->lost_rank);
    json_put_text(o, "text", r->text);
    return o;
}

int ring_decode(const cJSON *o, struct ring_view *ret, struct error *e)
{
    struct ring_view r = { .fence = 0 };
    int64_t rank = -1;

    if (need_object(o, "ring", e) != 0 || get_u64(o, "fence", &r.fence, e) != 0 ||
        get_int(o, "lost_rank", -1, JOB_MAX_REPLICAS, &rank, e) != 0)
        return -1;
    r.formed = json_bool(o, "formed", false);
    r.ok = json_bool(o, "ok", false);
    r.seconds = json_double(o, "seconds", 0);
    r.lost_rank = (int32_t)rank;
    get_text(o, "text", r.text, sizeof r.text);
    *ret = r;
    return 0;
}

/* ---- history: report.h has an encoding of all of it ---- */

void history_add(struct history *h, const struct round_view *round)
{
    if (h->round_count == ROUNDS_KEPT) {
        memmove(h->rounds, h->rounds + 1, (ROUNDS_KEPT - 1) * sizeof *h->rounds);
        h->round_count--;
    }
    h->rounds[h->round_count++] = *round;
}

bool history_is_newer(const struct history *a, const struct history *b)
{
    if (a->round != b->round)
        return a->round > b->round;
    if (a->counters.restarts != b->counters.restarts)
        return a->counters.restarts > b->counters.restarts;
    return a->round_count > b->round_count;
}

cJSON *history_encode(const struct history *h)
{
    struct coordinator_report r = { .round = h->round, .counters = h->counters, .round_count = h->round_count,
                                    .rounds = (struct round_view *)h->rounds, .gave_up = h->gave_up, .workers = h->workers,
                                    .checkpoint_step = -1, .resume_step = -1 };
    cJSON *o = NULL;
    struct error e = ERROR_INIT;

    (void)snprintf(r.give_up_reason, sizeof r.give_up_reason, "%s", h->give_up_reason);
    (void)snprintf(r.give_up_message, sizeof r.give_up_message, "%s", h->give_up_message);
    auto_free char *text = report_encode(&r);
    return json_parse(text, strlen(text), &o, &e) == 0 ? o : json_object();
}

int history_decode(const cJSON *o, struct history *ret, struct error *e)
{
    struct coordinator_report r = { .round = 0 };
    struct history h = { .round = 0 };

    if (!cJSON_IsObject(o)) {
        *ret = h;
        return 0;
    }
    auto_free char *text = json_print(o, false);
    if (report_decode(text, strlen(text), &r, e) != 0)
        return error_wrap(e, "history");
    h.round = r.round > 0 ? r.round : 0;
    h.counters = r.counters;
    for (size_t i = r.round_count > ROUNDS_KEPT ? r.round_count - ROUNDS_KEPT : 0; i < r.round_count; i++)
        history_add(&h, &r.rounds[i]);
    h.workers = r.workers;
    h.gave_up = r.gave_up;
    (void)snprintf(h.give_up_reason, sizeof h.give_up_reason, "%s", r.give_up_reason);
    (void)snprintf(h.give_up_message, sizeof h.give_up_message, "%s", r.give_up_message);
    report_release(&r);
    *ret = h;
    return 0;
}

/* ---- join ---- */

cJSON *join_encode(const struct join *j)
{
    cJSON *o = json_object();

    json_put_text(o, "member", j->member);
    json_put_text(o, "host", j->host);
    json_put_int(o, "port", j->port);
    put_u64(o, "fence", j->fence);
    json_put(o, "trainer", trainer_encode(&j->trainer));
    if (j->holdings != NULL)
        json_put(o, "holdings", cJSON_Duplicate(j->holdings, true));
    json_put(o, "history", history_encode(&j->history));
    return o;
}

int join_decode(const cJSON *o, struct join *ret, struct error *e)
{
    struct join j = { .holdings = NULL };
    int64_t port = 0;

    if (need_object(o, "join", e) != 0 || get_u64(o, "fence", &j.fence, e) != 0 || get_int(o, "port", 1, 65535, &port, e) != 0 ||
        trainer_decode(json_at(o, "trainer"), &j.trainer, e) != 0 || history_decode(json_at(o, "history"), &j.history, e) != 0)
        return error_wrap(e, "join");
    j.port = (int32_t)port;
    get_text(o, "member", j.member, sizeof j.member);
    get_text(o, "host", j.host, sizeof j.host);
    if (j.host[0] == '\0')
        return error_set(e, ERROR_INVALID, "join: host is missing");
    if (cJSON_IsObject(json_at(o, "holdings")))
        j.holdings = cJSON_Duplicate(json_at(o, "holdings"), true);
    *ret = j;
    return 0;
}

void join_release(struct join *j)
{
    cJSON_Delete(j->holdings);
    j->holdings = NULL;
}

/* ---- form ---- */

cJSON *form_encode(const struct form *f)
{
    cJSON *o = json_object(), *members = json_array(), *restore = json_object();

    put_u64(o, "fence", f->fence);
    json_put_bool(o, "alone", f->alone);
    for (int32_t i = 0; i < f->size; i++) {
        cJSON *m = json_object();
        json_put_text(m, "member", f->members[i].member);
        json_put_text(m, "host", f->members[i].host);
        json_put_int(m, "port", f->members[i].port);
        json_append(members, m);
    }
    json_put(o, "members", members);
    json_put_bool(restore, "found", f->restore.found);
    json_put_int(restore, "step", f->restore.step);
    put_u64(restore, "epoch", f->restore.epoch);
    json_put_int(restore, "world", f->restore.world);
    json_put(o, "restore", restore);
    json_put(o, "history", history_encode(&f->history));
    return o;
}

static int form_members(const cJSON *o, struct form *f, struct error *e)
{
    const cJSON *list = json_at(o, "members"), *item = NULL;
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;

    if (count < 0 || count > WORLD_MAX)
        return error_set(e, ERROR_INVALID, "form.members: expected a list of at most %d members", WORLD_MAX);
    f->members = xcalloc((size_t)count + 1, sizeof *f->members);
    cJSON_ArrayForEach(item, list) {
        struct ring_member *m = &f->members[f->size];
        int64_t port = 0;
        if (get_int(item, "port", 1, 65535, &port, e) != 0)
            return error_wrap(e, "form.members[%d]", f->size);
        m->port = (int32_t)port;
        get_text(item, "member", m->member, sizeof m->member);
        get_text(item, "host", m->host, sizeof m->host);
        if (m->member[0] == '\0' || m->host[0] == '\0')
            return error_set(e, ERROR_INVALID, "form.members[%d]: member or host is missing", f->size);
        f->size++;
    }
    return 0;
}

int form_decode(const cJSON *o, struct form *ret, struct error *e)
{
    struct form f = { .members = NULL };
    int64_t step = 0, world = 0;

    if (need_object(o, "form", e) != 0 || get_u64(o, "fence", &f.fence, e) != 0 ||
        need_object(json_at(o, "restore"), "form.restore", e) != 0 ||
        get_u64(json_at(o, "restore"), "epoch", &f.restore.epoch, e) != 0 ||
        get_int(o, "restore.step", -1, INT64_MAX, &step, e) != 0 ||
        get_int(o, "restore.world", 0, JOB_MAX_REPLICAS, &world, e) != 0 || history_decode(json_at(o, "history"), &f.history, e) != 0)
        return -1;
    f.alone = json_bool(o, "alone", false);
    f.restore.found = json_bool(o, "restore.found", false);
    f.restore.step = step;
    f.restore.world = (int32_t)world;
    if (form_members(o, &f, e) != 0) {
        form_release(&f);
        return -1;
    }
    *ret = f;
    return 0;
}

void form_release(struct form *f)
{
    free(f->members);
    f->members = NULL;
}

/* ---- words ---- */

cJSON *dump_encode(const struct dump_word *w)
{
    cJSON *o = json_object();

    put_u64(o, "fence", w->fence);
    json_put_text(o, "name", w->name);
    return o;
}

int dump_decode(const cJSON *o, struct dump_word *ret, struct error *e)
{
    struct dump_word w = { .fence = 0 };
    const char *name = json_text(o, "name", "");

    if (need_object(o, "dump", e) != 0 || get_u64(o, "fence", &w.fence, e) != 0)
        return -1;
    if (strlen(name) >= sizeof w.name || !text_is_dns1123_label(name))
        return error_set(e, ERROR_INVALID, "dump.name: found \"%.60s\", expected letters, digits and dashes", name);
    (void)snprintf(w.name, sizeof w.name, "%s", name);
    *ret = w;
    return 0;
}

cJSON *start_encode(const struct start_word *w)
{
    cJSON *o = json_object();

    put_u64(o, "fence", w->fence);
    json_put_int(o, "restarts", w->restarts);
    return o;
}

int start_decode(const cJSON *o, struct start_word *ret, struct error *e)
{
    struct start_word w = { .fence = 0 };

    if (need_object(o, "start", e) != 0 || get_u64(o, "fence", &w.fence, e) != 0)
        return -1;
    w.restarts = clamp32(json_int(o, "restarts", 0));
    *ret = w;
    return 0;
}

cJSON *abort_encode(const struct abort_word *w)
{
    cJSON *o = json_object();

    put_u64(o, "fence", w->fence);
    json_put_int(o, "grace_ms", w->grace_ms);
    json_put_bool(o, "stay", w->stay);
    json_put_text(o, "text", w->text);
    return o;
}

int abort_decode(const cJSON *o, struct abort_word *ret, struct error *e)
{
    struct abort_word w = { .fence = 0 };

    if (need_object(o, "abort", e) != 0 || get_u64(o, "fence", &w.fence, e) != 0 ||
        get_int(o, "grace_ms", 0, 86400000, &w.grace_ms, e) != 0)
        return -1;
    w.stay = json_bool(o, "stay", false);
    get_text(o, "text", w.text, sizeof w.text);
    *ret = w;
    return 0;
}
