/*
 * job_fixture.h — jobs built by hand for the tests of lib/job, with the CRD's defaults.
 */
#ifndef TEST_JOB_FIXTURE_H
#define TEST_JOB_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "job/job.h"

static inline cJSON *fixture_json(const char *text)
{
    cJSON *tree = NULL;
    struct error e = ERROR_INIT;

    if (json_parse(text, strlen(text), &tree, &e) < 0) {
        (void)fprintf(stderr, "fixture: %s in %s\n", e.text, text);
        abort();
    }
    return tree;
}

#define FIXTURE_TEMPLATE "{\"spec\":{\"containers\":[{\"name\":\"tensorflow\",\"image\":\"trainer\",\"command\":[\"python\",\"train.py\"]}]}}"

static inline void fixture_role(struct training_job *job, enum job_role role, int32_t replicas)
{
    struct replica_spec *spec = &job->spec.roles[role];

    cJSON_Delete(spec->template);
    *spec = (struct replica_spec){ .present = replicas > 0, .replicas = replicas, .restart_policy = RESTART_EXIT_CODE };
    if (replicas > 0)
        spec->template = fixture_json(FIXTURE_TEMPLATE);
}

/* replicas by role: chief, master, worker, ps, evaluator. Owned by the caller. */
static inline struct training_job *fixture_job(int32_t chief, int32_t master, int32_t worker, int32_t ps, int32_t evaluator)
{
    struct training_job *job = xcalloc(1, sizeof *job);
    struct job_spec *spec = &job->spec;

    job->name = xstrdup("mnist");
    job->namespace = xstrdup("ml");
    job->uid = xstrdup("0b1e8a3c");
    job->generation = 1;
    job->labels = json_object();
    job->annotations = json_object();
    spec->frameworks[FRAMEWORK_TENSORFLOW] = true;
    spec->clean_pod_policy = CLEAN_RUNNING;
    spec->backoff_limit = 6;
    spec->failure.backoff_base_s = 1;
    spec->failure.backoff_max_s = 300;
    spec->failure.oom_action = OOM_RESTART;
    spec->failure.oom_factor = 2;
    spec->failure.avoid_nodes = true;
    spec->failure.avoid_nodes_ttl_s = 86400;
    spec->failure.avoid_nodes_max_percent = 10;
    spec->network.publish_not_ready = true;
    spec->tf_config.master_as_chief = true;
    spec->tf_config.port = 2222;
    spec->checkpoint.enabled = true;
    spec->checkpoint.path = xstrdup("/ckpt");
    spec->checkpoint.keep_last = 3;
    spec->sidecar.ring_port = 7700;
    spec->sidecar.image = xstrdup("");
    fixture_role(job, ROLE_CHIEF, chief);
    fixture_role(job, ROLE_MASTER, master);
    fixture_role(job, ROLE_WORKER, worker);
    fixture_role(job, ROLE_PS, ps);
    fixture_role(job, ROLE_EVALUATOR, evaluator);
    return job;
}

static inline struct failure_rule *fixture_rule(struct training_job *job, enum rule_action action)
{
    struct failure_policy *failure = &job->spec.failure;

    failure->rules = xrealloc(failure->rules, failure->rule_count + 1, sizeof *failure->rules);
    struct failure_rule *rule = &failure->rules[failure->rule_count++];
    *rule = (struct failure_rule){ .name = xstrdup("rule"), .action = action, .any_role = true };
    return rule;
}

static inline void fixture_rule_codes(struct failure_rule *rule, bool in, size_t count, const int32_t *codes)
{
    rule->has_exit_codes = true;
    rule->exit_codes_in = in;
    rule->exit_code_count = count;
    rule->exit_codes = xcalloc(count, sizeof *rule->exit_codes);
    memcpy(rule->exit_codes, codes, count * sizeof *codes);
}

static inline char **fixture_texts(size_t count, const char *const *texts)
{
    char **list = xcalloc(count, sizeof *list);

    for (size_t i = 0; i < count; i++)
        list[i] = xstrdup(texts[i]);
    return list;
}

#endif
