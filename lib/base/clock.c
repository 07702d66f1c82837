#include "base/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t clock_mono_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_mono_ms(void)
{
    return clock_mono_ns() / 1000000;
}

int64_t clock_wall_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void clock_format(int64_t wall_ms, char ret_text[CLOCK_TEXT_MAX])
{
    time_t seconds = (time_t)(wall_ms / 1000 - (wall_ms % 1000 < 0));
    struct tm tm;

    if (gmtime_r(&seconds, &tm) == NULL || strftime(ret_text, CLOCK_TEXT_MAX, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        (void)snprintf(ret_text, CLOCK_TEXT_MAX, "1970-01-01T00:00:00Z");
}

int clock_parse(const char *text, int64_t *ret_wall_ms)
{
    struct tm tm = { 0 };
    int used = 0;

    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &tm.tm_sec, &used) != 6)
        return -1;
    if (tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour < 0 || tm.tm_hour > 23 ||
        tm.tm_min < 0 || tm.tm_min > 59 || tm.tm_sec < 0 || tm.tm_sec > 60 || tm.tm_year < 1)
        return -1;

    int64_t fraction_ms = 0;
    const char *p = text + used;
    if (*p == '.') {
        int64_t unit = 100;
        bool any = false;
        for (p++; *p >= '0' && *p <= '9'; p++, unit /= 10, any = true)
            fraction_ms += (*p - '0') * unit;
        if (!any)
            return -1;
    }
    if (strcmp(p, "Z") != 0)
        return -1;

    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *ret_wall_ms = (int64_t)timegm(&tm) * 1000 + fraction_ms;
    return 0;
}
