#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *e, enum error_kind kind, const char *fmt, ...)
{
    va_list args;

    e->kind = kind;
    e->os_errno = 0;
    va_start(args, fmt);
    (void)vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);
    return -1;
}

static enum error_kind kind_of_errno(int code)
{
    switch (code) {
    case ENOENT:
        return ERROR_NOT_FOUND;
    case EACCES:
    case EPERM:
        return ERROR_DENIED;
    case EEXIST:
        return ERROR_CONFLICT;
    case EBUSY:
    case EAGAIN:
        return ERROR_BUSY;
    case ETIMEDOUT:
        return ERROR_TIMEOUT;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
        return ERROR_LIMIT;
    default:
        return ERROR_IO;
    }
}

int error_errno(struct error *e, const char *fmt, ...)
{
    int code = errno;
    char reason[96];
    va_list args;

    e->kind = kind_of_errno(code);
    e->os_errno = code;
    va_start(args, fmt);
    (void)vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);

    size_t used = strlen(e->text);
    (void)snprintf(e->text + used, sizeof e->text - used, ": %s", strerror_r(code, reason, sizeof reason));
    return -1;
}

int error_wrap(struct error *e, const char *fmt, ...)
{
    char inner[sizeof e->text];
    va_list args;

    memcpy(inner, e->text, sizeof inner);
    va_start(args, fmt);
    (void)vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);

    size_t used = strlen(e->text);
    (void)snprintf(e->text + used, sizeof e->text - used, ": %s", inner);
    return -1;
}

const char *error_kind_name(enum error_kind kind)
{
    static const char *const names[] = {
        [ERROR_NONE] = "none",           [ERROR_INVALID] = "invalid",     [ERROR_NOT_FOUND] = "not-found",
        [ERROR_CONFLICT] = "conflict",   [ERROR_GONE] = "gone",           [ERROR_BUSY] = "busy",
        [ERROR_DENIED] = "denied",       [ERROR_TIMEOUT] = "timeout",     [ERROR_LIMIT] = "limit",
        [ERROR_IO] = "io",               [ERROR_PEER_LOST] = "peer-lost", [ERROR_BUG] = "bug",
    };

    return names[kind];
}
