/*
 * json.h — cJSON (the field's choice) with the bounds and lookups that every room needs.
 *
 * Trees are `cJSON *`, owned by whoever parsed or built them (auto_json). Lookups borrow. A path is dotted
 * ("status.phase"); array elements are not addressable by path.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define JSON_MAX_BYTES (16u << 20)

/* Parses exactly one document of at most JSON_MAX_BYTES. On error says line and column. */
MUST_CHECK int json_parse(const char *text, size_t len, cJSON **ret_tree, struct error *e);

const cJSON *json_at(const cJSON *tree, const char *path);                      /* NULL when absent or null */
const char *json_text(const cJSON *tree, const char *path, const char *absent); /* absent when not a string */
int64_t json_int(const cJSON *tree, const char *path, int64_t absent);          /* saturates; absent when not a number */
double json_double(const cJSON *tree, const char *path, double absent);
bool json_bool(const cJSON *tree, const char *path, bool absent);

/* Builders that abort when memory is out (mem.h). The first argument is an object. int64 is exact up to 10^15; larger
 * identifiers travel as strings. json_put takes ownership of value. */
cJSON *json_object(void);
cJSON *json_array(void);
void json_put(cJSON *object, const char *key, cJSON *value);
void json_put_text(cJSON *object, const char *key, const char *text); /* NULL text: nothing is added */
void json_put_int(cJSON *object, const char *key, int64_t number);
void json_put_double(cJSON *object, const char *key, double number);
void json_put_bool(cJSON *object, const char *key, bool value);
void json_append(cJSON *array, cJSON *value);
char *json_print(const cJSON *tree, bool pretty); /* owned by the caller, free() */

void cleanup_json(cJSON **tree);
#define auto_json __attribute__((cleanup(cleanup_json)))

#endif
