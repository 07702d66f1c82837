#include "cli/logline.h"

#include <string.h>
#include <time.h>

#define TIMESTAMP_MAX 40

static bool digits(const char *p, size_t count, int *ret)
{
    int n = 0;
    for (size_t i = 0; i < count; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        n = n * 10 + (p[i] - '0');
    }
    *ret = n;
    return true;
}

/* "2026-02-03T04:05:06": 19 characters. */
static bool date(const char *p, int64_t *ret_s)
{
    struct tm t = { .tm_isdst = 0 };
    int year, month;
    if (!digits(p, 4, &year) || !digits(p + 5, 2, &month) || !digits(p + 8, 2, &t.tm_mday) || !digits(p + 11, 2, &t.tm_hour) ||
        !digits(p + 14, 2, &t.tm_min) || !digits(p + 17, 2, &t.tm_sec) || p[4] != '-' || p[7] != '-' || p[10] != 'T' || p[13] != ':' ||
        p[16] != ':' || year < 1970 || year > 2200 || month < 1 || month > 12)
        return false;
    t.tm_year = year - 1900;
    t.tm_mon = month - 1;
    *ret_s = timegm(&t);
    return true;
}

/* ".123456789", one to nine digits. */
static size_t fraction(const char *p, int64_t *ret_ns)
{
    size_t n = 0;
    int64_t ns = 0;
    *ret_ns = 0;
    if (*p != '.')
        return 0;
    for (n = 0; n < 9 && p[1 + n] >= '0' && p[1 + n] <= '9'; n++)
        ns = ns * 10 + (p[1 + n] - '0');
    for (size_t i = n; i < 9; i++)
        ns *= 10;
    *ret_ns = ns;
    return n ? n + 1 : 0;
}

/* "Z" or "+01:00". 0: neither. */
static size_t zone(const char *p, int64_t *ret_s)
{
    int hours, minutes;
    *ret_s = 0;
    if (*p == 'Z')
        return 1;
    if ((*p != '+' && *p != '-') || !digits(p + 1, 2, &hours) || p[3] != ':' || !digits(p + 4, 2, &minutes))
        return 0;
    *ret_s = (*p == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
    return 6;
}

bool logline_split(const char *line, size_t len, int64_t *ret_ns, size_t *ret_text_at)
{
    char head[TIMESTAMP_MAX + 1] = "";
    int64_t seconds, ns, offset_s;
    memcpy(head, line, len < TIMESTAMP_MAX ? len : TIMESTAMP_MAX);
    *ret_ns = 0;
    *ret_text_at = 0;
    if (len < 20 || !date(head, &seconds))
        return false;
    size_t at = 19 + fraction(head + 19, &ns), zone_len = zone(head + at, &offset_s);
    at += zone_len;
    if (!zone_len || (at < len && head[at] != ' '))
        return false;
    *ret_ns = (seconds - offset_s) * 1000000000 + ns;
    *ret_text_at = at < len ? at + 1 : at;
    return true;
}

int64_t logline_again(struct logline_place *p)
{
    p->to_skip = p->at_last;
    p->repeating = p->last_ns > 0;
    return p->last_ns / 1000000000;
}

bool logline_is_new(struct logline_place *p, bool has_time, int64_t ns, size_t len)
{
    if (p->repeating) {
        if (!has_time || ns < p->last_ns)
            return false;
        if (ns == p->last_ns && p->to_skip > 0) {
            if (--p->to_skip > 0)
                return false;
            bool was_cut = len > p->last_len;
            p->repeating = false;
            p->last_len = len;
            return was_cut;
        }
        p->repeating = false;
    }
    if (has_time) {
        p->at_last = ns == p->last_ns ? p->at_last + 1 : 1;
        p->last_ns = ns;
        p->last_len = len;
    }
    return true;
}
