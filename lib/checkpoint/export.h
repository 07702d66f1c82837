/*
 * export.h — a committed step as safetensors files that other programs take: one file, or the layout of the Hugging Face hub,
 * model-00001-of-00003.safetensors and model.safetensors.index.json. Tensors that were spread over ranks are whole in it.
 *
 * The plan is pure. Carrying it out reads every image once, in order, against its checksums; the files get their names only when
 * all of them are complete and every checksum was right, so nothing is left of an export that failed.
 */
#ifndef CHECKPOINT_EXPORT_H
#define CHECKPOINT_EXPORT_H

#include "checkpoint/tensors.h"

struct export_options {
    const char *file;         /* name of the one file, or NULL: the hub's layout */
    uint64_t max_file_bytes;  /* of the tensors in a file of the hub's layout; one tensor is never cut */
    const char *match;        /* tensors whose name fits this pattern of fnmatch(3), '/' included; NULL: all */
    const char *strip;        /* taken off the beginning of names; NULL: nothing */
    int64_t step;             /* stands in the metadata */
};

struct export_file { char *name; char *header; uint64_t header_bytes, bytes; };
struct export_place { size_t file; uint64_t offset; bool taken; }; /* of a tensor's first byte in its file */

struct export_plan {
    struct export_file *files;
    size_t file_count;
    struct export_place *places; /* by the index of the tensor */
    char *index;                 /* text of model.safetensors.index.json, NULL where there is none */
    uint64_t bytes;              /* of all tensors that are taken */
    size_t tensor_count;
};

/* INVALID: no tensor fits `match`, or two have one name without what is stripped. */
MUST_CHECK int export_plan_make(const struct tensors *t, const struct export_options *options, struct export_plan *ret_plan, struct error *e);
void export_plan_release(struct export_plan *p);
#define auto_export_plan __attribute__((cleanup(export_plan_release)))

/* Into a directory, which is made where it is not there. Files of these names are replaced. `progress` (or NULL) is told of every byte
 * of an image that was read. */
typedef void export_progress_fn(void *ctx, uint64_t bytes);
MUST_CHECK int export_run(const struct store *s, const struct step_key *key, const struct manifest_entry *entries, const struct tensors *t,
                          const struct export_plan *plan, const char *dir, export_progress_fn *progress, void *ctx, struct error *e);

#endif
