/*
 * field.h — one row for each property that stands both in the CRD and in a struct. The same rows read a JSON tree into the
 * struct and write the struct as JSON, and decode_known_paths is made of them, so that the decoder cannot know a property
 * that the test against the CRD does not see. Internal to lib/job. Pure.
 */
#ifndef JOB_FIELD_H
#define JOB_FIELD_H

#include <stddef.h>

#include "base/json.h"
#include "job/job.h"

enum field_type {
    FIELD_BOOL,     /* bool */
    FIELD_INT32,    /* int32_t */
    FIELD_INT64,    /* int64_t */
    FIELD_OPTIONAL, /* struct optional_int */
    FIELD_DOUBLE,   /* double; written when it is finite */
    FIELD_TEXT,     /* char *, owned */
    FIELD_CHARS,    /* char[size], cut to fit; written when it is not empty */
    FIELD_NAME,     /* enum or int: index into names */
    FIELD_QUANTITY, /* int64_t from a Kubernetes quantity */
    FIELD_TIME,     /* int64_t Unix milliseconds from RFC 3339; written when it is not 0 */
    FIELD_TREE,     /* cJSON *, owned copy */
    FIELD_BY_HAND,  /* nothing here: read by code next to the rows */
};

struct field {
    const char *path;         /* below the tree that is given, "runPolicy.backoffLimit" */
    enum field_type type;
    size_t at, size;
    const char *const *names; /* FIELD_NAME, NULL-terminated */
    size_t has;               /* 1 + offset of a bool that says whether the value is there; 0 = always */
    bool omit_zero;           /* not written when it is 0 */
};

/* Rows. The type of the member is checked; FIELD_NAME takes enums of the size of int. */
#define FIELD_AT(s, f, t) (offsetof(struct s, f) + 0 * sizeof(struct { \
    _Static_assert(_Generic(((struct s *)0)->f, t: 1, default: 0), #f " must be " #t); int x; }))
#define FIELD_SIZED(s, f, n) (offsetof(struct s, f) + 0 * sizeof(struct { \
    _Static_assert(sizeof(((struct s *)0)->f) == (n), #f " has another size"); int x; }))
#define ROW_BOOL(p, s, f) { .path = (p), .type = FIELD_BOOL, .at = FIELD_AT(s, f, bool) }
#define ROW_INT32(p, s, f) { .path = (p), .type = FIELD_INT32, .at = FIELD_AT(s, f, int32_t) }
#define ROW_INT64(p, s, f) { .path = (p), .type = FIELD_INT64, .at = FIELD_AT(s, f, int64_t) }
#define ROW_OPTIONAL(p, s, f) { .path = (p), .type = FIELD_OPTIONAL, .at = FIELD_AT(s, f, struct optional_int) }
#define ROW_DOUBLE(p, s, f) { .path = (p), .type = FIELD_DOUBLE, .at = FIELD_AT(s, f, double) }
#define ROW_TEXT(p, s, f) { .path = (p), .type = FIELD_TEXT, .at = FIELD_AT(s, f, char *) }
#define ROW_CHARS(p, s, f) { .path = (p), .type = FIELD_CHARS, .at = offsetof(struct s, f), .size = sizeof(((struct s *)0)->f) }
#define ROW_NAME(p, s, f, n) { .path = (p), .type = FIELD_NAME, .at = FIELD_SIZED(s, f, sizeof(int)), .names = (n) }
#define ROW_QUANTITY(p, s, f) { .path = (p), .type = FIELD_QUANTITY, .at = FIELD_AT(s, f, int64_t) }
#define ROW_TIME(p, s, f) { .path = (p), .type = FIELD_TIME, .at = FIELD_AT(s, f, int64_t) }
#define ROW_TREE(p, s, f) { .path = (p), .type = FIELD_TREE, .at = FIELD_AT(s, f, cJSON *) }
#define ROW_BY_HAND(p) { .path = (p), .type = FIELD_BY_HAND }
#define FIELD_HAS(s, f) (1 + FIELD_AT(s, f, bool))

/* What is absent in the tree, or not of the row's type, leaves the struct as it was. Numbers are cut to the member's range.
 * Rows that are written have paths without a dot. */
void fields_read(const struct field *fields, size_t count, const cJSON *tree, void *to);
void fields_write(const struct field *fields, size_t count, const void *from, cJSON *object);

void field_put_time(cJSON *object, const char *key, int64_t wall_ms); /* RFC 3339, with milliseconds where there are any */
int field_name_index(const char *const *names, const char *text);     /* -1 when it is none of them */

/* A table with the path of the tree that it is for: "spec.failurePolicy.rules[]". */
struct field_table { const char *prefix; const struct field *fields; size_t count; };
extern const struct field_table spec_tables[], status_tables[]; /* end at prefix NULL */

#endif
