/*
 * manifest.h — the TrainingJob that stands in a file. The only part of lib/job that reads one.
 */
#ifndef JOB_MANIFEST_H
#define JOB_MANIFEST_H

#include "base/yaml.h"

/* All documents of a file ("-": standard input), whatever they are. *ret_doc is owned by the caller. */
MUST_CHECK int manifest_read(const char *path, struct yaml_doc **ret_doc, struct error *e);

/* Reads path ("-" is stdin, at most YAML_MAX_BYTES) and finds its one TrainingJob; other kinds beside it are passed over, a lone
 * document of another kind is returned, so that job_decode complains of its kind. *ret_doc is owned by the caller; *ret_tree
 * borrows from it. */
MUST_CHECK int manifest_open(const char *path, struct yaml_doc **ret_doc, const cJSON **ret_tree, struct error *e);

#endif
