/*
 * yaml_scalar.h — what a plain scalar means: the YAML 1.2 core schema, with kubectl's reading of a leading 0 (octal).
 * Internal to yaml.c. Pure.
 */
#ifndef BASE_YAML_SCALAR_H
#define BASE_YAML_SCALAR_H

#include <cjson/cJSON.h>

/* *ret_value is owned by the caller, or NULL when the scalar is text. Returns NULL, or what is wrong with the scalar, to be
 * said behind it. */
const char *yaml_resolve(const char *text, cJSON **ret_value);

#endif
