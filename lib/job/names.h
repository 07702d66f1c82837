/*
 * names.h — the words that the CRD uses for the values of job.h's enums, by value, each list ending with NULL. Internal to
 * lib/job: everybody else asks job.h's functions.
 */
#ifndef JOB_NAMES_H
#define JOB_NAMES_H

extern const char *const ROLE_KEYS[];           /* enum job_role, keys of replicaSpecs */
extern const char *const PHASE_NAMES[];         /* enum job_phase */
extern const char *const CONDITION_NAMES[];     /* enum condition_type */
extern const char *const FAILURE_CLASS_NAMES[]; /* enum failure_class */
extern const char *const GANG_NAMES[];          /* enum gang_kind */

#endif
