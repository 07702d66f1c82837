/*
 * log.h — one event per line, structured.
 *
 * The message is a constant (greppable, countable); data are key=value fields. Lines go to stderr as logfmt
 * ("time=... level=info msg="pod created" pod=mnist-worker-0 rank=1") or as JSON. Levels: error = a person must act,
 * warn = degraded but going on, info = state changed, debug = why. lib/job and other pure code never log; a shell logs
 * once, where it decides what to do. Never log a secret. Thread-safe: a line is one write(2).
 *
 *     log_info("pod created", KV("pod", name), KVI("rank", rank));
 *     log_error_from("status not written", &e, KV("job", job));
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log_field {
    const char *key;
    const char *text; /* NULL: number is the value */
    int64_t number;
};

static inline const char *log_text(const char *text) { return text != NULL ? text : ""; }
#define KV(k, v) ((struct log_field){ .key = (k), .text = log_text(v), .number = 0 })
#define KVI(k, v) ((struct log_field){ .key = (k), .text = NULL, .number = (int64_t)(v) })
#define LOG_END ((struct log_field){ .key = NULL, .text = NULL, .number = 0 })

/* Process-wide setting; call once at start. `component` ("sidecar") and `who` ("mnist-worker-0" or NULL) are kept and
 * stand on every line. */
void log_setup(const char *component, const char *who, enum log_level least, bool as_json);
bool log_level_parse(const char *text, enum log_level *ret_level);
void log_fields(enum log_level level, const char *message, const struct log_field *fields);

#define log_at(level, message, ...) \
    log_fields((level), (message), (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(,) LOG_END })
#define log_debug(message, ...) log_at(LOG_DEBUG, message __VA_OPT__(,) __VA_ARGS__)
#define log_info(message, ...) log_at(LOG_INFO, message __VA_OPT__(,) __VA_ARGS__)
#define log_warn(message, ...) log_at(LOG_WARN, message __VA_OPT__(,) __VA_ARGS__)
#define log_error(message, ...) log_at(LOG_ERROR, message __VA_OPT__(,) __VA_ARGS__)
#define log_error_from(message, e, ...) \
    log_error(message, KV("error", (e)->text), KV("kind", error_kind_name((e)->kind)) __VA_OPT__(,) __VA_ARGS__)
#define log_warn_from(message, e, ...) \
    log_warn(message, KV("error", (e)->text), KV("kind", error_kind_name((e)->kind)) __VA_OPT__(,) __VA_ARGS__)

#endif
