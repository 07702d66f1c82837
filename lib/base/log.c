#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

#define LINE_MAX_BYTES (8 * 1024)

static struct {
    const char *component, *who;
    enum log_level least;
    bool as_json;
} settings = { .component = "", .who = NULL, .least = LOG_INFO, .as_json = false };

static const char *const level_names[] = { "debug", "info", "warn", "error" };

void log_setup(const char *component, const char *who, enum log_level least, bool as_json)
{
    settings.component = component;
    settings.who = who;
    settings.least = least;
    settings.as_json = as_json;
}

bool log_level_parse(const char *text, enum log_level *ret_level)
{
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

/* A logfmt value is quoted when it is empty or has a character that would end or confuse it. */
static bool needs_quotes(const char *text)
{
    return *text == '\0' || strpbrk(text, " \"=\\\n\r\t") != NULL;
}

static void add_pair(struct buf *line, const char *key, const char *text)
{
    if (settings.as_json) {
        buf_add(line, line->len > 1 ? "," : "");
        buf_add_json_string(line, key);
        buf_add(line, ":");
        buf_add_json_string(line, text);
        return;
    }
    buf_addf(line, "%s%s=", line->len > 0 ? " " : "", key);
    if (needs_quotes(text))
        buf_add_json_string(line, text);
    else
        buf_add(line, text);
}

static void add_number(struct buf *line, const char *key, int64_t number)
{
    if (settings.as_json)
        buf_addf(line, "%s\"%s\":%lld", line->len > 1 ? "," : "", key, (long long)number);
    else
        buf_addf(line, "%s%s=%lld", line->len > 0 ? " " : "", key, (long long)number);
}

void log_fields(enum log_level level, const char *message, const struct log_field *fields)
{
    if (level < settings.least)
        return;

    auto_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);
    int64_t now_ms = clock_wall_ms();
    char seconds[CLOCK_TEXT_MAX], stamp[CLOCK_TEXT_MAX + 8];
    clock_format(now_ms, seconds);
    (void)snprintf(stamp, sizeof stamp, "%.19s.%03dZ", seconds, (int)(now_ms % 1000));

    if (settings.as_json)
        buf_add(&line, "{");
    add_pair(&line, "time", stamp);
    add_pair(&line, "level", level_names[level]);
    add_pair(&line, "component", settings.component);
    if (settings.who != NULL)
        add_pair(&line, "member", settings.who);
    add_pair(&line, "msg", message);
    for (const struct log_field *f = fields; f->key != NULL; f++) {
        if (f->text != NULL)
            add_pair(&line, f->key, f->text);
        else
            add_number(&line, f->key, f->number);
    }
    buf_add(&line, settings.as_json ? "}\n" : "\n");

    /* One write, so that lines of several processes on one descriptor do not mix. There is nowhere to report that it failed. */
    (void)!write(STDERR_FILENO, buf_text(&line), line.len);
}
