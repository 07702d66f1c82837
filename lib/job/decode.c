#include "job/decode.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "job/field.h"
#include "job/spec.h"
#include "job/validate.h"

/* ---- check -------------------------------------------------------------------------------------------------------------- */

static void check_word(const cJSON *manifest, const struct yaml_doc *doc, const char *key, const char *expected,
                       struct problems *problems)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(manifest, key);

    if (!cJSON_IsObject(manifest))
        return;
    if (value == NULL)
        problems_add(problems, doc, manifest, key, "missing, expected %s", expected);
    else if (cJSON_IsString(value) && strcmp(value->valuestring, expected) != 0)
        problems_add(problems, doc, value, key, "found \"%.60s\", expected %s%s", value->valuestring, expected,
                     strcmp(value->valuestring, "TFJob") == 0 ? "; a TFJob needs no more than this and apiVersion changed" : "");
}

static int say_problems(const struct problems *p, const char *name, struct error *e)
{
    const struct problem *first = &p->items[0];
    char where[128] = "", place[32] = "";

    if (first->line > 0)
        (void)snprintf(place, sizeof place, ":%d:%d", first->line, first->column);
    if (name[0] != '\0')
        (void)snprintf(where, sizeof where, "%.80s%s: ", name, place);
    const char *colon = first->path[0] != '\0' ? ": " : "";
    if (p->count == 1)
        return error_set(e, ERROR_INVALID, "%s%.80s%s%.100s", where, first->path, colon, first->text);
    return error_set(e, ERROR_INVALID, "%s%.80s%s%.100s (and %s%zu more)", where, first->path, colon, first->text,
                     p->more ? "over " : "", p->count - 1);
}

/* ---- decode ------------------------------------------------------------------------------------------------------------- */

static int64_t read_time(const cJSON *tree, const char *path)
{
    int64_t wall_ms;

    return clock_parse(json_text(tree, path, ""), &wall_ms) == 0 ? wall_ms : 0;
}

static cJSON *copy_object(const cJSON *tree, const char *path)
{
    const cJSON *value = json_at(tree, path);

    return cJSON_IsObject(value) ? cJSON_Duplicate(value, true) : json_object();
}

static struct training_job *read_job(const cJSON *tree)
{
    struct training_job *job = xcalloc(1, sizeof *job);

    job->name = xstrdup(json_text(tree, "metadata.name", ""));
    job->namespace = xstrdup(json_text(tree, "metadata.namespace", "default"));
    job->uid = xstrdup(json_text(tree, "metadata.uid", ""));
    job->generation = json_int(tree, "metadata.generation", 0);
    job->created_ms = read_time(tree, "metadata.creationTimestamp");
    job->deleting = json_at(tree, "metadata.deletionTimestamp") != NULL;
    job->labels = copy_object(tree, "metadata.labels");
    job->annotations = copy_object(tree, "metadata.annotations");
    spec_read(json_at(tree, "spec"), &job->spec);
    return job;
}

int job_decode(const cJSON *manifest, const struct yaml_doc *doc, struct problems *problems, struct training_job **ret_job,
               struct error *e)
{
    const cJSON *schema = schema_of_kind(JOB_KIND);
    const char *name = doc != NULL ? yaml_name(doc) : json_text(manifest, "metadata.name", "");

    check_word(manifest, doc, "apiVersion", JOB_API_VERSION, problems);
    check_word(manifest, doc, "kind", JOB_KIND, problems);
    schema_check(schema, manifest, doc, problems);
    auto_json cJSON *tree = cJSON_Duplicate(manifest, true);
    if (tree == NULL)
        return error_set(e, ERROR_LIMIT, "%.80s: nested too deep", name);
    schema_default(schema, tree);
    job_validate(tree, manifest, doc, problems);
    if (problems->count > 0) {
        problems_sort(problems);
        return say_problems(problems, name, e);
    }
    *ret_job = read_job(tree);
    return 0;
}

/* ---- local runs --------------------------------------------------------------------------------------------------------- */

int job_check_local(const struct training_job *job, struct error *e)
{
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        const cJSON *containers = json_at(job->spec.roles[r].template, "spec.containers"), *container;
        const char *wanted = job_main_container(job, r);
        int index = 0;
        if (!job->spec.roles[r].present || job->spec.roles[r].replicas == 0)
            continue;
        cJSON_ArrayForEach(container, containers) {
            if (strcmp(json_text(container, "name", ""), wanted) == 0)
                break;
            index++;
        }
        if (cJSON_GetArraySize(json_at(container, "command")) == 0)
            return error_set(e, ERROR_INVALID, "spec.replicaSpecs.%s.template.spec.containers[%d].command: missing; a run on this "
                             "machine has no image whose entrypoint it could start: add command: [python, train.py]",
                             role_key(r), index);
    }
    return 0;
}

/* ---- what is known ------------------------------------------------------------------------------------------------------ */

static const char **known_paths;
static size_t known_count;

static void collect(const struct field_table *tables)
{
    for (; tables->prefix != NULL; tables++) {
        known_paths = xrealloc(known_paths, known_count + tables->count, sizeof known_paths[0]);
        for (size_t i = 0; i < tables->count; i++)
            known_paths[known_count++] = xasprintf("%s.%s", tables->prefix, tables->fields[i].path);
    }
}

static void collect_all(void)
{
    collect(spec_tables);
    collect(status_tables);
}

const char *const *decode_known_paths(size_t *ret_count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, collect_all);
    *ret_count = known_count;
    return known_paths;
}
