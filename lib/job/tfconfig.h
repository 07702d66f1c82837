/*
 * tfconfig.h — the TF_CONFIG of one replica, byte-stable. Pure.
 *
 * Dense: {"cluster":{"chief":[...],"ps":[...],"worker":[...]},"task":{"type":"worker","index":0},"environment":"cloud"},
 * cluster keys sorted, no white space. Evaluators are outside the cluster unless tfConfig.evaluatorInCluster. Master is
 * written as chief when tfConfig.masterAsChief. Sparse (enableDynamicWorker): a worker sees itself and all ps; a ps sees all
 * ps in map form; chief and evaluator see chief and ps. No TF_CONFIG for a job of one replica.
 */
#ifndef JOB_TFCONFIG_H
#define JOB_TFCONFIG_H

#include "job/address.h"

char *tfconfig_format(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index); /* NULL: none; owned */

/* Reads one back (for scripts' checks and `ringmaster`'s own tests); bounded, fuzzed. */
struct tfconfig_task { char type[32]; int32_t index; int32_t cluster_size; };
MUST_CHECK int tfconfig_parse(const char *text, size_t len, struct tfconfig_task *ret_task, struct error *e);

#endif
