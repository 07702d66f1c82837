/*
 * address.h — where the members of a job find each other. Pure.
 *
 * On a cluster: stable DNS names through the job's headless Service, <pod>.<subdomain>.<namespace>.svc[.domain]; with
 * network.servicePerPod <pod>.<namespace>.svc, TFJob's form. On one machine: 127.1.<net>.<ordinal+1>; because most
 * frameworks listen on every interface, each replica also has its own framework port there: tfConfig.port + ordinal.
 */
#ifndef JOB_ADDRESS_H
#define JOB_ADDRESS_H

#include "job/job.h"

enum address_kind { ADDRESS_CLUSTER, ADDRESS_LOCAL };
struct address_plan { enum address_kind kind; int32_t local_net; /* third octet, 0..255 */ };

#define ADDRESS_MAX 320
void address_host(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index,
                  char ret_host[ADDRESS_MAX]);
int32_t address_port(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index); /* TF_CONFIG's */
void address_endpoint(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index,
                      char ret_endpoint[ADDRESS_MAX]); /* host:port */

#endif
