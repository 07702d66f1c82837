#include "sidecar/supervise/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define STEP_MAX ((int64_t)1 << 53) /* a JSON number is exact up to here */

void progress_reset(struct progress *p, int64_t resume_step)
{
    *p = (struct progress){ .view = { .saved = true, .step = -1, .total_steps = -1 }, .at_ms = -1, .at_step = -1,
                            .resume_step = resume_step > 0 ? resume_step : 0 };
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double progress_median(const double *values, size_t count)
{
    double sorted[PROGRESS_STEPS];

    if (count == 0)
        return 0;
    count = count < PROGRESS_STEPS ? count : PROGRESS_STEPS;
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, ascending);
    return count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static int read_number(const cJSON *report, const char *key, double least, double most, bool *ret_found, double *ret, struct error *e)
{
    const cJSON *value = json_at(report, key);

    *ret_found = false;
    if (value == NULL)
        return 0;
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble) || value->valuedouble < least || value->valuedouble > most)
        return error_set(e, ERROR_INVALID, "report: \"%s\" is not a number from %g to %g", key, least, most);
    *ret_found = true;
    *ret = value->valuedouble;
    return 0;
}

static int merge_metrics(const char *before, const cJSON *report, char *ret, size_t size, struct error *e)
{
    const cJSON *metrics = json_at(report, "metrics"), *item = NULL;
    auto_json cJSON *all = NULL;
    struct error ignored = ERROR_INIT;

    (void)snprintf(ret, size, "%s", before);
    if (metrics == NULL)
        return 0;
    if (!cJSON_IsObject(metrics))
        return error_set(e, ERROR_INVALID, "report: \"metrics\" is not an object");
    if (before[0] == '\0' || json_parse(before, strlen(before), &all, &ignored) != 0)
        all = json_object();
    cJSON_ArrayForEach(item, metrics) {
        cJSON_DeleteItemFromObjectCaseSensitive(all, item->string);
        json_put(all, item->string, cJSON_Duplicate(item, true));
    }
    auto_free char *text = json_print(all, false);
    if (strlen(text) >= size)
        return error_set(e, ERROR_LIMIT, "report: metrics take %zu bytes, at most %zu are kept: report fewer or shorter ones",
                         strlen(text), size - 1);
    (void)snprintf(ret, size, "%s", text);
    return 0;
}

static void add_step_time(struct progress *p, double ms)
{
    p->step_ms[p->count % PROGRESS_STEPS] = ms;
    p->count++;
    p->view.step_ms = progress_median(p->step_ms, p->count);
}

int progress_merge(struct progress *p, const char *text, size_t len, int64_t mono_ms, int64_t wall_ms, struct error *e)
{
    auto_json cJSON *report = NULL;
    bool has_step, has_total, has_loss, has_time;
    double step = 0, total = 0, loss = 0, time = 0;
    char metrics[sizeof p->view.metrics];

    if (len > PROGRESS_REPORT_MAX)
        return error_set(e, ERROR_LIMIT, "report: %zu bytes, at most %d are read", len, PROGRESS_REPORT_MAX);
    if (json_parse(text, len, &report, e) != 0)
        return error_wrap(e, "report");
    if (!cJSON_IsObject(report))
        return error_set(e, ERROR_INVALID, "report: expected a JSON object");
    if (read_number(report, "step", 0, (double)STEP_MAX, &has_step, &step, e) != 0 ||
        read_number(report, "total_steps", 0, (double)STEP_MAX, &has_total, &total, e) != 0 ||
        read_number(report, "loss", -1e300, 1e300, &has_loss, &loss, e) != 0 ||
        read_number(report, "step_ms", 0, 1e12, &has_time, &time, e) != 0 ||
        merge_metrics(p->view.metrics, report, metrics, sizeof metrics, e) != 0)
        return -1;

    (void)snprintf(p->view.metrics, sizeof p->view.metrics, "%s", metrics);
    p->view.reports++;
    if (has_total)
        p->view.total_steps = (int64_t)total;
    if (has_loss) {
        p->view.has_loss = true;
        p->view.loss = loss;
    }
    if (has_time)
        add_step_time(p, time);
    else if (has_step && p->at_step >= 0 && (int64_t)step > p->at_step && mono_ms > p->at_ms)
        add_step_time(p, (double)(mono_ms - p->at_ms) / (double)((int64_t)step - p->at_step));
    if (has_step) {
        p->view.step = (int64_t)step;
        p->at_step = (int64_t)step;
        p->at_ms = mono_ms;
        if (p->view.first_step_ms == 0 && (int64_t)step > p->resume_step)
            p->view.first_step_ms = wall_ms;
    }
    return 0;
}
