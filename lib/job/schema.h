/*
 * schema.h — a manifest against the CRD's own schema (structural OpenAPI v3, as the API server reads it). Pure.
 *
 * The CRD manifests in crd/ are embedded in the programs: there is one source of what a field is called, its type, range,
 * enum and default. All errors are found in one pass. Each reads
 *   job.yaml:14:9: spec.replicaSpecs.Worker.replicas: found "four", expected an integer from 0 to 10000
 *   job.yaml:9:5: spec.runPolcy: unknown field; did you mean "runPolicy"?
 */
#ifndef JOB_SCHEMA_H
#define JOB_SCHEMA_H

#include "base/yaml.h"

#define SCHEMA_ERRORS_MAX 50

struct problem { int line, column; char path[256]; char text[320]; };
struct problems { struct problem items[SCHEMA_ERRORS_MAX]; size_t count; bool more; };

void problems_add(struct problems *p, const struct yaml_doc *doc, const cJSON *value, const char *path, const char *fmt, ...) FORMAT(5, 6);
void problems_sort(struct problems *p); /* in the order of the file */
/* One problem a line, "file:line:column: path: text"; line and column are left out where unknown. Owned. */
char *problems_format(const struct problems *p, const char *file);

/* doc gives places and may be NULL (objects from the API server). */
void schema_check(const cJSON *schema, const cJSON *manifest, const struct yaml_doc *doc, struct problems *problems);
/* Fills defaults in place as the API server does. */
void schema_default(const cJSON *schema, cJSON *manifest);
/* Takes away what the schema does not know, as the API server does with its own: an object may come from a cluster whose CRD is newer. */
void schema_prune(const cJSON *schema, cJSON *manifest);
/* openAPIV3Schema of a kind of ours from the embedded CRDs ("TrainingJob"). Static lifetime; NULL for an unknown kind. */
const cJSON *schema_of_kind(const char *kind);

#endif
