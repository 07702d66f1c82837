/*
 * validate.h — what the CRD says in CEL, said again in C, so that a manifest is refused on one machine for the same reason
 * and in the same words as by the API server; and a few rules that CEL cannot say. Internal to lib/job. Pure.
 */
#ifndef JOB_VALIDATE_H
#define JOB_VALIDATE_H

#include "job/schema.h"

/* `tree` is the manifest with defaults, `original` the one that doc knows the places of. Values of the wrong type, about
 * which schema_check complains, are passed over. */
void job_validate(const cJSON *tree, const cJSON *original, const struct yaml_doc *doc, struct problems *problems);

/* The messages of the rules, for the test that holds them and the CRD together. Ends with NULL. */
const char *const *validate_messages(void);

#endif
