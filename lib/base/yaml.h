/*
 * yaml.h — YAML (and JSON, which is YAML) read by libyaml into cJSON trees that remember where each value stood.
 *
 * Scalars are typed by the YAML 1.2 core schema as kubectl does: plain `true/false/null`, integers and floats are typed,
 * quoted scalars are strings; YAML 1.1's yes/no/on/off stay strings. Anchors and aliases are expanded within a bound of
 * nodes (no billion laughs); duplicate keys, tags other than the core ones and non-string keys are errors.
 */
#ifndef BASE_YAML_H
#define BASE_YAML_H

#include "base/json.h"

#define YAML_MAX_BYTES (4u << 20)

struct yaml_place { int line, column; }; /* from 1; 0 = unknown */

struct yaml_doc; /* one or more documents of a file with the places of every value and key */

/* Parses all documents of text. `name` (a file name, or "<stdin>") is copied and used in messages:
 * "job.yaml:12:7: found a tab where indentation was expected". */
MUST_CHECK int yaml_parse(const char *name, const char *text, size_t len, struct yaml_doc **ret_doc, struct error *e);
size_t yaml_count(const struct yaml_doc *d);
const cJSON *yaml_tree(const struct yaml_doc *d, size_t index); /* borrowed */
const char *yaml_name(const struct yaml_doc *d);
struct yaml_place yaml_place_of(const struct yaml_doc *d, const cJSON *value); /* a mapping's value: where its key stands */
void yaml_doc_free(struct yaml_doc *d); /* NULL is fine. (libyaml itself has a yaml_free.) */

/* Writes a tree as YAML in block style, keys in the tree's order, two spaces of indentation. Owned by the caller. */
char *yaml_print(const cJSON *tree);

void cleanup_yaml(struct yaml_doc **d);
#define auto_yaml __attribute__((cleanup(cleanup_yaml)))

#endif
