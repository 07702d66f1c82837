/*
 * fuzz_manifest.c — any bytes as a manifest and as a status. A manifest that is accepted must be accepted again with its
 * defaults filled in and give a job whose numbers hold together; one that is refused must say why. A status that is
 * accepted must read back from what is written of it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/decode.h"

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_job(const struct training_job *job)
{
    int32_t ordinal = 0;

    require(job->name[0] != '\0' && strlen(job->name) <= JOB_NAME_MAX);
    require(job_world_size(job) >= 1 && job_world_size(job) <= job_replicas(job));
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        const struct replica_spec *spec = &job->spec.roles[r];
        if (!spec->present)
            continue;
        require(spec->replicas >= 0 && spec->replicas <= JOB_MAX_REPLICAS);
        require(job_main_container(job, r)[0] != '\0');
        require(job_ordinal(job, r, 0) == ordinal);
        ordinal += spec->replicas;
    }
    require(ordinal == job_replicas(job));
    require(job->spec.failure.rule_count <= JOB_RULES_MAX);
}

static void check_manifest(const cJSON *tree, const struct yaml_doc *doc)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_job struct training_job *job = NULL, *again = NULL;
    struct error e = ERROR_INIT;

    if (job_decode(tree, doc, problems, &job, &e) < 0) {
        require(job == NULL && problems->count > 0 && e.text[0] != '\0');
        auto_free char *report = problems_format(problems, "input");
        require(report[0] != '\0');
        return;
    }
    require(problems->count == 0);
    check_job(job);
    e = (struct error)ERROR_INIT;
    require(job_check_local(job, &e) == 0 || e.kind == ERROR_INVALID);
    auto_json cJSON *filled = cJSON_Duplicate(tree, true);
    schema_default(schema_of_kind(JOB_KIND), filled);
    require(job_decode(filled, NULL, problems, &again, &e) == 0);
    require(job_replicas(again) == job_replicas(job));
}

static void check_status(const cJSON *tree)
{
    auto_free struct job_status *status = xcalloc(1, sizeof *status), *again = xcalloc(1, sizeof *again);
    struct training_job job = { .name = (char *)"fuzz" };
    struct error e = ERROR_INIT;

    if (status_decode(tree, status, &e) < 0) {
        require(e.text[0] != '\0');
        return;
    }
    for (enum job_role r = 0; r < ROLE_COUNT; r++)
        job.spec.roles[r].present = true;
    auto_json cJSON *written = status_encode(&job, status);
    require(status_decode(written, again, &e) == 0);
    auto_json cJSON *rewritten = status_encode(&job, again);
    require(cJSON_Compare(written, rewritten, true));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    auto_yaml struct yaml_doc *doc = NULL;
    struct error e = ERROR_INIT;

    if (yaml_parse("input", (const char *)data, size, &doc, &e) < 0)
        return 0;
    for (size_t i = 0; i < yaml_count(doc); i++) {
        check_manifest(yaml_tree(doc, i), doc);
        check_status(yaml_tree(doc, i));
    }
    return 0;
}
