/*
 * convert.h — Kubeflow's TFJob and PyTorchJob (kubeflow.org/v1) → TrainingJob. Pure.
 *
 * The result behaves as the job did under Kubeflow's training operator, defaults included: what is absent there and means
 * something else here is written out. What cannot be carried over, and what somebody should look at, becomes a note with the
 * field's path in the manifest that was read.
 */
#ifndef JOB_CONVERT_H
#define JOB_CONVERT_H

#include "job/schema.h"

/* True for the kinds that convert_job takes, whatever their apiVersion. */
bool convert_takes(const cJSON *manifest);

/* *ret_tree (owned) is a TrainingJob that job_decode has accepted. `notes` has a line for each thing that was left out or
 * changed. When it fails, `problems` says what stands in the way: paths are those of the TrainingJob that was built. doc
 * gives the places of notes and may be NULL. manifest is not changed. */
MUST_CHECK int convert_job(const cJSON *manifest, const struct yaml_doc *doc, struct problems *notes, struct problems *problems,
                           cJSON **ret_tree, struct error *e);

#endif
