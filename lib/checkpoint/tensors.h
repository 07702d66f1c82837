/*
 * tensors.h — the tensors of a committed step, put together from the headers of all its images.
 *
 * Images say in their metadata how they belong together (docs/checkpoints.md, "The files"): `layout` replicated — every tensor is
 * whole and in one image; boxes — some are spread, `boxes` tells which part an image has. Every element has to be in exactly one image.
 */
#ifndef CHECKPOINT_TENSORS_H
#define CHECKPOINT_TENSORS_H

#include "checkpoint/box.h"
#include "checkpoint/store.h"

struct tensor_part {
    int32_t image;
    uint64_t begin, end; /* bytes of the file */
    struct box box;
};

struct tensor {
    const char *name, *dtype;     /* borrowed from the headers */
    uint32_t dims;
    uint64_t shape[SAFETENSORS_MAX_DIMS], bytes; /* of the whole */
    struct tensor_part *parts;    /* in the order of the images */
    size_t part_count;
};

struct tensors {
    struct tensor *items;         /* by name */
    size_t count;
    struct safetensors *headers;  /* of each image */
    int32_t world;
};

/* Reads the headers alone, each against its checksum in the manifest. INVALID: damaged, or the images do not make up a state. */
MUST_CHECK int tensors_read(const struct store *s, const struct step_key *key, const struct manifest_entry *entries,
                            struct tensors *ret_tensors, struct error *e);
void tensors_release(struct tensors *t);
#define auto_tensors __attribute__((cleanup(tensors_release)))

/* Pure: the same from headers that are parsed already; they are taken. */
MUST_CHECK int tensors_join(struct safetensors *headers /* world, owned */, int32_t world, struct tensors *ret_tensors, struct error *e);

#endif
