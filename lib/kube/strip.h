/*
 * strip.h — a JSON text without what nobody here reads, before it is parsed. Pure.
 *
 * Nine tenths of a pod are managedFields, environment and mounts. To step over them costs a look at each byte; to parse them
 * costs an allocation for each key and value.
 */
#ifndef KUBE_STRIP_H
#define KUBE_STRIP_H

#include <stddef.h>

#include "base/buf.h"

#define KUBE_STRIP_MAX 32 /* paths */

/* Appends `text` to `out`, null in the place of the value of every member that `paths` (ends with NULL) names: keys from the root
 * joined by '.', arrays stepped through ("spec.containers.env"). `under` is the member of the root in which the paths begin
 * ("object", "items"), NULL for the root itself. What is no JSON stays none: the parser behind this says what is wrong with it,
 * unless it is wrong within what was left out. */
void kube_strip(const char *text, size_t len, const char *under, const char *const *paths, struct buf *out);

#endif
