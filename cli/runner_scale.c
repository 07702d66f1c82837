/*
 * Another number of workers while the job runs. 'ringmaster scale' leaves the number in a file of the job directory; it becomes the spec's
 * replicas, as on a cluster, and reconcile does the rest. The coordinator is told until its reports say that it knows.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/runner_scale.h"
#include "cli/runner_state.h"
#include "job/coordinate.h"

#define REPLICAS_MOST 254 /* addresses of one machine */
#define TELL_EVERY_MS 500

int scale_check(const struct training_job *job, int64_t workers, struct error *e)
{
    const struct job_spec *spec = &job->spec;
    const struct replica_spec *role = &spec->roles[ROLE_WORKER];
    int64_t others = job_replicas(job) - (role->present ? role->replicas : 0);

    if (!role->present)
        return error_set(e, ERROR_INVALID, "job %s has no role Worker: there is nothing to scale", job->name);
    if (spec->min_replicas.set && workers < spec->min_replicas.value)
        return error_set(e, ERROR_INVALID, "%lld workers are less than spec.elasticPolicy.minReplicas, %lld", (long long)workers,
                         (long long)spec->min_replicas.value);
    if (spec->max_replicas.set && workers > spec->max_replicas.value)
        return error_set(e, ERROR_INVALID, "%lld workers are more than spec.elasticPolicy.maxReplicas, %lld", (long long)workers,
                         (long long)spec->max_replicas.value);
    if (workers + others < 1 || workers + others > REPLICAS_MOST)
        return error_set(e, ERROR_INVALID, "a job on one machine has 1 to %d replicas; these would be %lld", REPLICAS_MOST, (long long)(workers + others));
    return 0;
}

static int store(struct runner *r, int32_t workers, struct error *e)
{
    static const char *const PLACES[] = { "spec.replicaSpecs.Worker", "spec.tfReplicaSpecs.Worker" };

    for (size_t i = 0; i < COUNT(PLACES); i++) {
        cJSON *role = (cJSON *)json_at(r->file.tree, PLACES[i]);
        if (role == NULL)
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(role, "replicas");
        json_put_int(role, "replicas", workers);
    }
    r->job->spec.roles[ROLE_WORKER].replicas = workers;
    return jobdir_save_job(&r->dir, r->file.tree, e);
}

static void take_wish(struct runner *r)
{
    auto_free char *path = jobdir_path(&r->dir, JOBDIR_SCALE), *text = NULL;
    struct error e = ERROR_INIT, absent = ERROR_INIT;
    int64_t workers = 0;
    size_t len;

    if (r->end != RUNNER_GOES_ON || access(path, F_OK) < 0 || fs_read(path, 64, &text, &len, &absent) < 0)
        return;
    (void)unlink(path);
    text[strcspn(text, "\n")] = '\0';
    if (!text_int(text, &workers))
        (void)error_set(&e, ERROR_INVALID, "%s: found \"%.40s\", expected a number of workers", path, text);
    if (e.kind != ERROR_NONE || scale_check(r->job, workers, &e) < 0) {
        auto_free char *line = xasprintf("%s: not scaled: %s", r->job->name, e.text);
        runner_note(r, line);
        return;
    }
    if (store(r, (int32_t)workers, &e) < 0)
        runner_break(r, &e);
    loop_timer_at(r->again, clock_mono_ms());
}

/* What was told to a coordinator that is gone is told to the next one. */
static void tell_coordinator(struct runner *r, int64_t now_ms)
{
    struct coordinator_view *view;
    int32_t workers;

    if (!r->report || r->end != RUNNER_GOES_ON || now_ms - r->told_size_ms < TELL_EVERY_MS)
        return;
    view = xcalloc(1, sizeof *view);
    coordinate_view(r->job, r->report, clock_wall_ms(), view);
    workers = resize_is_wanted(r->job, r->status, view);
    free(view);
    if (workers > 0 && control_command(r->control, COMMAND_RESIZE, workers))
        r->told_size_ms = now_ms;
}

void runner_scale(struct runner *r, int64_t now_ms)
{
    take_wish(r);
    tell_coordinator(r, now_ms);
}
