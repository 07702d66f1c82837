#include "job/counters.h"

#include <string.h>

#define TIME_MAX_MS INT64_C(1000000000000000)

/* ---- window ---------------------------------------------------------------------------------------------------------- */

static void drop_first(struct restart_window *w)
{
    int64_t last = --w->part_count;

    memmove(&w->parts[0], &w->parts[1], (size_t)last * sizeof w->parts[0]);
    memset(&w->parts[last], 0, sizeof w->parts[0]);
}

/* The two neighbours with the least time between them become one, at the later time: a restart is never forgotten early. */
static void merge_closest(struct restart_window *w)
{
    int64_t at = 0, last = w->part_count - 1;

    for (int64_t i = 1; i < last; i++) {
        if (w->parts[i + 1].at_ms - w->parts[i].at_ms < w->parts[at + 1].at_ms - w->parts[at].at_ms)
            at = i;
    }
    w->parts[at + 1].restarts += w->parts[at].restarts;
    memmove(&w->parts[at], &w->parts[at + 1], (size_t)(last - at) * sizeof w->parts[0]);
    memset(&w->parts[last], 0, sizeof w->parts[0]);
    w->part_count = last;
}

void restart_window_add(struct restart_window *w, int64_t now_ms, int64_t window_ms)
{
    int64_t at_ms = w->part_count > 0 && w->parts[w->part_count - 1].at_ms > now_ms ? w->parts[w->part_count - 1].at_ms : now_ms;

    while (w->part_count > 0 && now_ms - w->parts[0].at_ms >= window_ms)
        drop_first(w);
    if (w->part_count == RESTART_WINDOW_PARTS)
        merge_closest(w);
    w->parts[w->part_count].at_ms = at_ms;
    w->parts[w->part_count++].restarts = 1;
}

int32_t restart_window_count(const struct restart_window *w)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < w->part_count; i++)
        sum += w->parts[i].restarts;
    return (int32_t)sum;
}

/* ---- of a status ----------------------------------------------------------------------------------------------------- */

void restart_counters_of(const struct job_status *s, struct restart_counters *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->restarts = s->restarts;
    ret->restarts_counted = s->restarts_counted;
    ret->disruptions = s->disruptions;
    ret->streak = s->streak;
    ret->crashes = s->crashes;
    ret->repeats = s->repeats;
    ret->last_end = s->last_end;
    memcpy(&ret->window, &s->window, sizeof ret->window);
}

void restart_counters_take(struct job_status *s, const struct restart_counters *c)
{
    s->restarts = c->restarts;
    s->restarts_counted = c->restarts_counted;
    s->disruptions = c->disruptions;
    s->streak = c->streak;
    s->crashes = c->crashes;
    s->repeats = c->repeats;
    s->last_end = c->last_end;
    memcpy(&s->window, &c->window, sizeof s->window);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------ */

static const struct { const char *key; size_t at; bool omit_zero; } NUMBERS[] = {
    { "restarts", offsetof(struct restart_counters, restarts), false },
    { "restarts_counted", offsetof(struct restart_counters, restarts_counted), false },
    { "disruptions", offsetof(struct restart_counters, disruptions), false },
    { "streak", offsetof(struct restart_counters, streak), false },
    { "crashes", offsetof(struct restart_counters, crashes), true },
    { "repeats", offsetof(struct restart_counters, repeats), true },
    { "last_end", offsetof(struct restart_counters, last_end), true },
};
#define NUMBER_COUNT (sizeof NUMBERS / sizeof NUMBERS[0])

cJSON *restart_counters_encode(const struct restart_counters *c)
{
    cJSON *o = json_object(), *window = json_array();

    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        int32_t number = *(const int32_t *)(const void *)((const char *)c + NUMBERS[i].at);
        if (number != 0 || !NUMBERS[i].omit_zero)
            json_put_int(o, NUMBERS[i].key, number);
    }
    for (int64_t i = 0; i < c->window.part_count; i++) {
        cJSON *part = json_object();
        json_put_int(part, "at_ms", c->window.parts[i].at_ms);
        json_put_int(part, "restarts", c->window.parts[i].restarts);
        json_append(window, part);
    }
    json_put(o, "window", window);
    return o;
}

static bool read_number(const cJSON *object, const char *key, int64_t most, int64_t *ret)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    int64_t number = json_int(object, key, -1);

    *ret = value == NULL ? 0 : number;
    return value == NULL || (cJSON_IsNumber(value) && number >= 0 && number <= most);
}

static bool read_window(const cJSON *list, struct restart_window *w)
{
    const cJSON *item;
    int64_t at_ms, restarts, sum = 0;

    if (list != NULL && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > RESTART_WINDOW_PARTS))
        return false;
    cJSON_ArrayForEach(item, list) {
        bool first = w->part_count == 0;
        if (!read_number(item, "at_ms", TIME_MAX_MS, &at_ms) || !read_number(item, "restarts", INT32_MAX, &restarts) ||
            restarts == 0 || (!first && at_ms < w->parts[w->part_count - 1].at_ms))
            return false;
        sum += restarts;
        w->parts[w->part_count].at_ms = at_ms;
        w->parts[w->part_count++].restarts = restarts;
    }
    return sum <= INT32_MAX - 1;
}

bool restart_counters_decode(const cJSON *object, struct restart_counters *ret)
{
    struct restart_counters c;
    int64_t number;

    memset(&c, 0, sizeof c);
    if (object != NULL && !cJSON_IsObject(object))
        return false;
    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        if (!read_number(object, NUMBERS[i].key, INT32_MAX, &number))
            return false;
        *(int32_t *)(void *)((char *)&c + NUMBERS[i].at) = (int32_t)number;
    }
    if (!read_window(cJSON_GetObjectItemCaseSensitive(object, "window"), &c.window))
        return false;
    memcpy(ret, &c, sizeof c);
    return true;
}
