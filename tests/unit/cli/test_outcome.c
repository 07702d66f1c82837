#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "cli/outcome.h"

static cJSON *job_of(const char *phase, const char *condition, const char *status)
{
    cJSON *job = json_object(), *s = json_object(), *list = json_array(), *c = json_object();
    json_put_text(s, "phase", phase);
    json_put_text(c, "type", condition);
    json_put_text(c, "status", status);
    json_put_text(c, "reason", "Because");
    json_put_text(c, "message", "of\nthis");
    json_append(list, c);
    json_put(s, "conditions", list);
    json_put(job, "status", s);
    return job;
}

Test(outcome, what_is_waited_for)
{
    static const struct { const char *goal, *phase; enum wait_verdict verdict; } ROWS[] = {
        { "succeeded", "Running", WAIT_ON }, { "succeeded", "Succeeded", WAIT_REACHED }, { "succeeded", "Failed", WAIT_NEVER },
        { "Failed", "Failed", WAIT_REACHED }, { "failed", "Succeeded", WAIT_NEVER }, { "finished", "Failed", WAIT_REACHED },
        { "finished", "Succeeded", WAIT_REACHED }, { "finished", "Restarting", WAIT_ON }, { "running", "Running", WAIT_REACHED },
        { "running", "Succeeded", WAIT_NEVER }, { "suspended", "Suspended", WAIT_REACHED }, { "deleted", "Succeeded", WAIT_ON },
        { "deleted", NULL, WAIT_REACHED }, { "running", NULL, WAIT_NEVER }, { "condition=cooperating", "Running", WAIT_REACHED },
        { "condition=Degraded", "Running", WAIT_ON }, { "condition=Degraded", "Failed", WAIT_NEVER }, { "running", "", WAIT_ON },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_json cJSON *job = ROWS[i].phase ? job_of(ROWS[i].phase, "Cooperating", "True") : NULL;
        cr_expect_eq(wait_verdict_of(ROWS[i].goal, job), ROWS[i].verdict, "case %s of %s", ROWS[i].goal, ROWS[i].phase ? ROWS[i].phase : "none");
        cr_expect(wait_goal_known(ROWS[i].goal), "case %s", ROWS[i].goal);
    }
    cr_expect_not(wait_goal_known("done"));
    cr_expect_not(wait_goal_known("condition="));
    cr_expect_not(wait_goal_known(""));
    auto_json cJSON *not_yet = job_of("Running", "Cooperating", "False");
    cr_expect_eq(wait_verdict_of("condition=Cooperating", not_yet), WAIT_ON);
}

Test(outcome, a_checkpoint_that_was_asked_for)
{
    static const struct { const char *value, *state; enum wait_verdict verdict; } ROWS[] = {
        { "v1", "Pending", WAIT_ON }, { "v1", "Committed", WAIT_REACHED }, { "v1", "Missed", WAIT_NEVER }, { "v0", "Committed", WAIT_ON },
        { "", "", WAIT_ON },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_json cJSON *job = job_of("Running", "Running", "True");
        cJSON *request = json_object();
        json_put_text(request, "value", ROWS[i].value);
        json_put_text(request, "state", ROWS[i].state);
        json_put(cJSON_GetObjectItem(job, "status"), "checkpointRequest", request);
        cr_expect_eq(wait_verdict_of(WAIT_CHECKPOINT "v1", job), ROWS[i].verdict, "case %zu", i);
    }
}

Test(outcome, in_words)
{
    char text[100];
    auto_json cJSON *failed = job_of("Failed", "Failed", "True"), *nothing = json_object();
    cr_expect_str_eq(outcome_text(failed, text, sizeof text), "Failed: Because: of this");
    cr_expect_str_eq(outcome_text(nothing, text, sizeof text), "Pending");
    cr_expect_eq(outcome_of(failed), OUTCOME_FAILED);
    cr_expect_eq(outcome_of(nothing), OUTCOME_NONE);
    cr_expect_eq(outcome_of(NULL), OUTCOME_NONE);
}
