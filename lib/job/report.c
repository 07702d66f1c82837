#include "job/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/counters.h"

enum { REPORT_MAX_BYTES = 4 << 20, REPORT_MAX_ROUNDS = 4096, ROUNDS_SENT = 64, LAST_WORD_MESSAGE = 120 };

static const char *const STATES[] = {
    [PROCESS_WAITING] = "Waiting",   [PROCESS_STARTING] = "Starting", [PROCESS_RUNNING] = "Running",
    [PROCESS_STOPPING] = "Stopping", [PROCESS_DONE] = "Done",         [PROCESS_FAILED] = "Failed",
    [PROCESS_LOST] = "Lost",
};
static const char *const COMMANDS[] = { [COMMAND_STOP] = "stop", [COMMAND_CHECKPOINT] = "checkpoint", [COMMAND_RESIZE] = "resize" };

const char *process_state_name(enum process_state s)
{
    return STATES[s];
}

/* ---- encode ------------------------------------------------------------------------------------------------------ */

/* JSON has no NaN and no infinity: a loss that is none is left out, as unknown values are. */
static void put_number(cJSON *o, const char *key, double value)
{
    if (isfinite(value))
        json_put_double(o, key, value);
}

static cJSON *encode_failure(const struct failure *f)
{
    cJSON *o = json_object();

    json_put_int(o, "attempt", f->attempt);
    json_put_int(o, "round", f->round);
    json_put_text(o, "role", role_name(f->role));
    json_put_int(o, "index", f->index);
    json_put_text(o, "pod", f->pod);
    json_put_text(o, "node", f->node);
    json_put_text(o, "container", f->container);
    if (f->has_exit)
        json_put_int(o, "exit_code", f->exit_code);
    json_put_int(o, "signal", f->signal);
    json_put_text(o, "reason", f->reason);
    json_put_text(o, "class", failure_class_name(f->class));
    json_put_text(o, "message", f->message);
    json_put_int(o, "time_ms", f->time_ms);
    if (f->lost_steps.set)
        json_put_int(o, "lost_steps", f->lost_steps.value);
    if (f->evidence[0] != '\0')
        json_put_text(o, "evidence", f->evidence);
    return o;
}

static cJSON *encode_round(const struct round_view *r)
{
    struct failure cause = r->cause;

    cause.attempt = r->attempt;
    cause.round = r->round;
    cJSON *o = encode_failure(&cause);
    json_put(o, "counters", restart_counters_encode(&r->counters));
    return o;
}

static cJSON *encode_member(const struct member_report *m)
{
    cJSON *o = json_object();

    json_put_text(o, "member", m->member);
    json_put_int(o, "rank", m->rank);
    json_put_text(o, "state", process_state_name(m->state));
    json_put_int(o, "pid", m->pid);
    json_put_int(o, "restarts", m->restarts);
    json_put_bool(o, "attached", m->attached);
    if (m->listens)
        json_put_bool(o, "listens", true);
    json_put_int(o, "step", m->step);
    json_put_int(o, "total_steps", m->total_steps);
    if (m->has_loss)
        put_number(o, "loss", m->loss);
    put_number(o, "step_ms", m->step_ms);
    json_put_int(o, "bytes_reduced", m->bytes_reduced);
    json_put_int(o, "operations", m->operations);
    put_number(o, "busbw_gbps", m->busbw_gbps);
    put_number(o, "wait_ms", m->wait_ms);
    json_put_text(o, "metrics", m->metrics);
    json_put_int(o, "started_ms", m->started_ms);
    json_put_int(o, "first_step_ms", m->first_step_ms);
    return o;
}

char *report_encode(const struct coordinator_report *r)
{
    auto_json cJSON *o = json_object();
    cJSON *rounds = json_array(), *members = json_array();

    json_put_text(o, "type", "state");
    json_put_text(o, "job_uid", r->job_uid);
    json_put_text(o, "coordinator", r->coordinator);
    json_put_int(o, "attempt", r->attempt);
    json_put_int(o, "round", r->round);
    json_put_bool(o, "formed", r->formed);
    json_put_bool(o, "self_test_ok", r->self_test_ok);
    json_put_int(o, "formed_ms", r->formed_ms);
    put_number(o, "form_seconds", r->form_seconds);
    json_put(o, "counters", restart_counters_encode(&r->counters));
    /* The newest ones: whoever listens has folded the older ones long ago. */
    for (size_t i = r->round_count > ROUNDS_SENT ? r->round_count - ROUNDS_SENT : 0; i < r->round_count; i++)
        json_append(rounds, encode_round(&r->rounds[i]));
    json_put(o, "rounds", rounds);
    for (size_t i = 0; i < r->member_count && i < REPORT_MAX_MEMBERS; i++)
        json_append(members, encode_member(&r->members[i]));
    json_put(o, "members", members);
    json_put_int(o, "checkpoint_step", r->checkpoint_step);
    json_put_int(o, "checkpoint_ms", r->checkpoint_ms);
    json_put_text(o, "checkpoint_uri", r->checkpoint_uri);
    json_put_int(o, "resume_step", r->resume_step);
    if (r->stalled[0] != '\0')
        json_put_text(o, "stalled", r->stalled);
    if (r->workers > 0)
        json_put_int(o, "workers", r->workers);
    if (r->skipped)
        json_put_int(o, "skipped_step", r->skipped_step);
    if (r->suspected[0] != '\0')
        json_put_text(o, "suspected", r->suspected);
    if (r->has_handed)
        json_put(o, "handed", encode_failure(&r->handed));
    if (r->over)
        json_put_bool(o, "over", true);
    if (r->gave_up) {
        json_put_bool(o, "gave_up", true);
        json_put_text(o, "give_up_reason", r->give_up_reason);
        json_put_text(o, "give_up_message", r->give_up_message);
    }
    json_put_int(o, "sent_ms", r->sent_ms);
    return json_print(o, false);
}

/* ---- the last word ----------------------------------------------------------------------------------------------- */

static void cut_message(char *text)
{
    size_t len = strnlen(text, LAST_WORD_MESSAGE);

    while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
        len--; /* whole characters */
    text[len] = '\0';
}

char *report_last_word(const struct coordinator_report *r)
{
    struct coordinator_report brief = *r;

    if (r->round_count == 0 && !r->gave_up && !r->has_handed)
        return NULL;
    auto_free struct round_view *rounds = xcalloc(r->round_count + 1, sizeof *rounds);
    if (r->round_count > 0)
        memcpy(rounds, r->rounds, r->round_count * sizeof *rounds);
    for (size_t i = 0; i < r->round_count; i++)
        cut_message(rounds[i].cause.message);
    cut_message(brief.give_up_message);
    cut_message(brief.handed.message);
    brief.members = NULL;
    brief.member_count = 0;
    brief.formed = false; /* of the ring as it was the members would tell */
    for (brief.rounds = rounds;; brief.rounds++, brief.round_count--) {
        char *text = report_encode(&brief);
        if (brief.round_count <= 1 || strlen(text) <= REPORT_LAST_WORD_BYTES)
            return text;
        free(text);
    }
}

bool report_is_ahead(const struct coordinator_report *a, const struct coordinator_report *b)
{
    if (b == NULL || a->attempt != b->attempt)
        return b == NULL || a->attempt > b->attempt;
    if (a->counters.restarts != b->counters.restarts)
        return a->counters.restarts > b->counters.restarts;
    if (a->round != b->round)
        return a->round > b->round;
    return (a->gave_up && !b->gave_up) || (a->has_handed && !b->has_handed);
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

struct reader { struct error *e; bool failed; };

static void fail(struct reader *r, const char *key, const char *wanted)
{
    if (!r->failed)
        (void)error_set(r->e, ERROR_INVALID, "report: \"%s\" is not %s", key, wanted);
    r->failed = true;
}

static int64_t read_int(struct reader *r, const cJSON *o, const char *key, int64_t absent, int64_t least, int64_t most)
{
    const cJSON *value = json_at(o, key);
    int64_t number = json_int(o, key, absent);

    if (value != NULL && (!cJSON_IsNumber(value) || isnan(value->valuedouble) || number < least || number > most))
        fail(r, key, "a number in its range");
    return number;
}

static int32_t read_int32(struct reader *r, const cJSON *o, const char *key, int32_t absent, int32_t least)
{
    return (int32_t)read_int(r, o, key, absent, least, INT32_MAX);
}

static double read_number(struct reader *r, const cJSON *o, const char *key)
{
    double number = json_double(o, key, 0);

    if (!isfinite(number))
        fail(r, key, "a finite number");
    return number;
}

static bool read_bool(struct reader *r, const cJSON *o, const char *key)
{
    const cJSON *value = json_at(o, key);

    if (value != NULL && !cJSON_IsBool(value))
        fail(r, key, "true or false");
    return cJSON_IsTrue(value);
}

/* Texts that a person reads are cut to fit; names must fit. */
static void read_words(struct reader *r, const cJSON *o, const char *key, char *ret_text, size_t size)
{
    const cJSON *value = json_at(o, key);

    if (value != NULL && !cJSON_IsString(value))
        fail(r, key, "a text");
    (void)snprintf(ret_text, size, "%s", cJSON_IsString(value) ? value->valuestring : "");
}

static void read_name(struct reader *r, const cJSON *o, const char *key, char *ret_text, size_t size)
{
    if (strlen(json_text(o, key, "")) >= size)
        fail(r, key, "a name of that length");
    read_words(r, o, key, ret_text, size);
}

static int read_enum(struct reader *r, const cJSON *o, const char *key, const char *const *names, size_t count)
{
    const char *text = json_text(o, key, "");

    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0)
            return (int)i;
    }
    fail(r, key, "one of its values");
    return 0;
}

static const cJSON *read_list(struct reader *r, const cJSON *o, const char *key, int most, size_t *ret_count)
{
    const cJSON *list = json_at(o, key);
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;

    if (list != NULL && (!cJSON_IsArray(list) || count > most)) {
        fail(r, key, "a list of bearable length");
        count = 0;
    }
    *ret_count = (size_t)count;
    return count > 0 ? list : NULL;
}

static void read_counters(struct reader *r, const cJSON *o, struct restart_counters *c)
{
    if (!restart_counters_decode(json_at(o, "counters"), c))
        fail(r, "counters", "counts of restarts");
}

static void read_failure(struct reader *r, const cJSON *o, struct failure *f)
{
    static const char *const classes[] = { "User", "Infrastructure", "Hang", "OOM", "Hardware" };

    f->attempt = read_int32(r, o, "attempt", 0, 0);
    f->round = read_int32(r, o, "round", 0, 0);
    if (!role_parse(json_text(o, "role", ""), &f->role))
        fail(r, "role", "a role");
    f->index = (int32_t)read_int(r, o, "index", 0, 0, JOB_MAX_REPLICAS);
    read_name(r, o, "pod", f->pod, sizeof f->pod);
    read_name(r, o, "node", f->node, sizeof f->node);
    read_name(r, o, "container", f->container, sizeof f->container);
    f->has_exit = json_at(o, "exit_code") != NULL;
    f->exit_code = (int32_t)read_int(r, o, "exit_code", 0, 0, 255);
    f->signal = (int32_t)read_int(r, o, "signal", 0, 0, 127);
    read_name(r, o, "reason", f->reason, sizeof f->reason);
    f->class = (enum failure_class)read_enum(r, o, "class", classes, COUNT(classes));
    read_words(r, o, "message", f->message, sizeof f->message);
    f->time_ms = read_int(r, o, "time_ms", 0, 0, INT64_MAX - 1);
    f->lost_steps.set = json_at(o, "lost_steps") != NULL;
    f->lost_steps.value = read_int(r, o, "lost_steps", 0, 0, INT64_MAX - 1);
    read_words(r, o, "evidence", f->evidence, sizeof f->evidence);
}

static void read_round(struct reader *r, const cJSON *o, struct round_view *round)
{
    read_failure(r, o, &round->cause);
    round->attempt = round->cause.attempt;
    round->round = round->cause.round;
    read_counters(r, o, &round->counters);
}

static void read_member(struct reader *r, const cJSON *o, struct member_report *m)
{
    read_name(r, o, "member", m->member, sizeof m->member);
    m->rank = read_int32(r, o, "rank", -1, -1);
    m->state = (enum process_state)read_enum(r, o, "state", STATES, COUNT(STATES));
    m->pid = read_int32(r, o, "pid", 0, 0);
    m->restarts = read_int32(r, o, "restarts", 0, 0);
    m->attached = read_bool(r, o, "attached");
    m->listens = read_bool(r, o, "listens");
    m->step = read_int(r, o, "step", -1, -1, INT64_MAX - 1);
    m->total_steps = read_int(r, o, "total_steps", -1, -1, INT64_MAX - 1);
    m->has_loss = json_at(o, "loss") != NULL;
    m->loss = read_number(r, o, "loss");
    m->step_ms = read_number(r, o, "step_ms");
    m->bytes_reduced = read_int(r, o, "bytes_reduced", 0, 0, INT64_MAX - 1);
    m->operations = read_int(r, o, "operations", 0, 0, INT64_MAX - 1);
    m->busbw_gbps = read_number(r, o, "busbw_gbps");
    m->wait_ms = read_number(r, o, "wait_ms");
    read_name(r, o, "metrics", m->metrics, sizeof m->metrics);
    m->started_ms = read_int(r, o, "started_ms", 0, 0, INT64_MAX - 1);
    m->first_step_ms = read_int(r, o, "first_step_ms", 0, 0, INT64_MAX - 1);
}

static void read_state(struct reader *r, const cJSON *o, struct coordinator_report *report)
{
    read_name(r, o, "job_uid", report->job_uid, sizeof report->job_uid);
    read_name(r, o, "coordinator", report->coordinator, sizeof report->coordinator);
    report->attempt = read_int32(r, o, "attempt", 0, 0);
    report->round = read_int32(r, o, "round", 0, 0);
    report->formed = read_bool(r, o, "formed");
    report->self_test_ok = read_bool(r, o, "self_test_ok");
    report->formed_ms = read_int(r, o, "formed_ms", 0, 0, INT64_MAX - 1);
    report->form_seconds = read_number(r, o, "form_seconds");
    read_counters(r, o, &report->counters);
    report->checkpoint_step = read_int(r, o, "checkpoint_step", -1, -1, INT64_MAX - 1);
    report->checkpoint_ms = read_int(r, o, "checkpoint_ms", 0, 0, INT64_MAX - 1);
    read_name(r, o, "checkpoint_uri", report->checkpoint_uri, sizeof report->checkpoint_uri);
    report->resume_step = read_int(r, o, "resume_step", -1, -1, INT64_MAX - 1);
    read_words(r, o, "stalled", report->stalled, sizeof report->stalled);
    report->workers = (int32_t)read_int(r, o, "workers", 0, 0, REPORT_MAX_MEMBERS);
    report->skipped = json_at(o, "skipped_step") != NULL;
    report->skipped_step = read_int(r, o, "skipped_step", 0, 0, INT64_MAX - 1);
    read_words(r, o, "suspected", report->suspected, sizeof report->suspected);
    report->has_handed = json_at(o, "handed") != NULL;
    if (report->has_handed)
        read_failure(r, json_at(o, "handed"), &report->handed);
    report->over = read_bool(r, o, "over");
    report->gave_up = read_bool(r, o, "gave_up");
    read_name(r, o, "give_up_reason", report->give_up_reason, sizeof report->give_up_reason);
    read_words(r, o, "give_up_message", report->give_up_message, sizeof report->give_up_message);
    report->sent_ms = read_int(r, o, "sent_ms", 0, 0, INT64_MAX - 1);
}

static void read_lists(struct reader *r, const cJSON *o, struct coordinator_report *report)
{
    size_t rounds, members;
    const cJSON *round_list = read_list(r, o, "rounds", REPORT_MAX_ROUNDS, &rounds), *item;
    const cJSON *member_list = read_list(r, o, "members", REPORT_MAX_MEMBERS, &members);

    if (r->failed)
        return;
    report->rounds = xcalloc(rounds + 1, sizeof *report->rounds);
    report->members = xcalloc(members + 1, sizeof *report->members);
    cJSON_ArrayForEach(item, round_list)
        read_round(r, item, &report->rounds[report->round_count++]);
    cJSON_ArrayForEach(item, member_list)
        read_member(r, item, &report->members[report->member_count++]);
}

static int parse(const char *text, size_t len, const char *type, cJSON **ret_tree, struct error *e)
{
    auto_json cJSON *o = NULL;

    if (len > REPORT_MAX_BYTES)
        return error_set(e, ERROR_LIMIT, "report: %zu bytes are over the limit of %d", len, REPORT_MAX_BYTES);
    if (json_parse(text, len, &o, e) < 0)
        return error_wrap(e, "report");
    if (strcmp(json_text(o, "type", ""), type) != 0)
        return error_set(e, ERROR_INVALID, "report: \"type\" is \"%.40s\", expected \"%s\"", json_text(o, "type", ""),
                         type);
    *ret_tree = TAKE(o);
    return 0;
}

int report_decode(const char *text, size_t len, struct coordinator_report *ret_report, struct error *e)
{
    auto_json cJSON *o = NULL;
    struct coordinator_report report = { .attempt = 0 };
    struct reader r = { .e = e };

    if (parse(text, len, "state", &o, e) < 0)
        return -1;
    read_state(&r, o, &report);
    read_lists(&r, o, &report);
    if (r.failed) {
        report_release(&report);
        return -1;
    }
    *ret_report = report;
    return 0;
}

void report_release(struct coordinator_report *r)
{
    free(r->rounds);
    free(r->members);
    r->rounds = NULL;
    r->members = NULL;
    r->round_count = r->member_count = 0;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

const char *report_command_name(enum report_command command)
{
    return COMMANDS[command];
}

/* What the number of a command is called. */
static const char *number_key(enum report_command command)
{
    return command == COMMAND_RESIZE ? "workers" : "grace_ms";
}

char *report_command_encode(enum report_command command, int64_t number)
{
    auto_json cJSON *o = json_object();

    json_put_text(o, "type", "command");
    json_put_text(o, "command", COMMANDS[command]);
    json_put_int(o, number_key(command), number);
    return json_print(o, false);
}

int report_command_decode(const char *text, size_t len, enum report_command *ret_command, int64_t *ret_number,
                          struct error *e)
{
    auto_json cJSON *o = NULL;
    struct reader r = { .e = e };

    if (parse(text, len, "command", &o, e) < 0)
        return -1;
    enum report_command command = (enum report_command)read_enum(&r, o, "command", COMMANDS, COUNT(COMMANDS));
    int64_t number = read_int(&r, o, number_key(command), 0, 0, command == COMMAND_RESIZE ? REPORT_MAX_MEMBERS : INT32_MAX);
    if (r.failed)
        return -1;
    *ret_command = command;
    *ret_number = number;
    return 0;
}
