/*
 * error.h — what went wrong, in words for a person and a kind for the program.
 *
 * Every function that can fail returns 0 or -1 and takes `struct error *e` as its last argument, never NULL. Output
 * arguments (`ret_x`) are written only on success. An error owns no memory, so nothing has to be released.
 *
 * The kind is chosen by what the caller does next (retry, start over, give up, have the input mended), so that no one
 * parses text. Text: lower case, no full stop, names the thing and the cause; the last part says what to do where a
 * person can do something. Thread rule: an error belongs to one thread at a time.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#define FORMAT(fmt, args) __attribute__((format(printf, fmt, args)))
#define MUST_CHECK __attribute__((warn_unused_result))

enum error_kind {
    ERROR_NONE,
    ERROR_INVALID,   /* the input is wrong: have it mended, do not retry */
    ERROR_NOT_FOUND, /* the thing is not there */
    ERROR_CONFLICT,  /* somebody else changed or holds it: look again, then retry */
    ERROR_GONE,      /* stale: start over from a fresh view (old fence, 410) */
    ERROR_BUSY,      /* later */
    ERROR_DENIED,    /* not allowed, or a peer that could not prove who it is */
    ERROR_TIMEOUT,
    ERROR_LIMIT,     /* over a bound of ours, or out of memory for something sized by input */
    ERROR_IO,        /* the operating system said no; os_errno says why */
    ERROR_PEER_LOST, /* another rank is gone: the collective ended, the group re-forms */
    ERROR_BUG,       /* cannot happen */
};

struct error {
    enum error_kind kind;
    int os_errno; /* 0 when no system call was involved */
    char text[320];
};

#define ERROR_INIT { .kind = ERROR_NONE, .os_errno = 0, .text = "" }

/* Sets e and returns -1, so that `return error_set(e, ...)` is a whole statement. */
int error_set(struct error *e, enum error_kind kind, const char *fmt, ...) FORMAT(3, 4);

/* The same from errno: kind by errno, text is "<fmt>: <strerror>". Returns -1. */
int error_errno(struct error *e, const char *fmt, ...) FORMAT(2, 3);

/* Puts context before an error that is already set: "<fmt>: <what was there>". Keeps the kind. Returns -1. */
int error_wrap(struct error *e, const char *fmt, ...) FORMAT(2, 3);

/* The kind's name for logs, "invalid", "peer-lost". Static. */
const char *error_kind_name(enum error_kind kind);

#endif
