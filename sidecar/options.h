/*
 * options.h — how a sidecar is told what it is: flags, or the RINGMASTER_* variables that the pod sets
 * (docs/internals/processes.md). Const after options_read.
 */
#ifndef SIDECAR_OPTIONS_H
#define SIDECAR_OPTIONS_H

#include <stdio.h>

#include "base/crypto.h"
#include "job/restart.h"
#include "s3/config.h"

struct options {
    /* as given */
    const char *job, *job_uid, *role, *members, *coordinator, *address, *dir, *shm_dir, *checkpoint_dir, *key_file, *policy,
        *counters, *control, *ring_memory, *control_ca, *last_word, *install, *library_dir, *evidence_dir;
    struct s3_config s3;
    int64_t index, rank, size, attempt, port, checkpoint_keep, peer_timeout_ms, connect_timeout_ms, grace_ms;
    bool checksums;
    int wire; /* place in the list of its names */
    int64_t arena_bytes, results_bytes, chunk_bytes, stall_warning_ms, stall_shutdown_ms;
    bool tls, probe, die_with_parent, leave_with_launcher, version, log_json;
    int log_level, socket_access;

    /* made from that by options_check */
    char member[80], coordinator_host[256];
    int32_t coordinator_port;
    char **names; size_t name_count; /* members */
    uint8_t key[CRYPTO_KEY_BYTES];
    struct training_job *policy_job;
    struct restart_counters restart_counters;
    char *socket, *evidence;         /* evidence: the directory for it */
};

/* Reads flags and environment. *ret_help: the user asked for help. */
MUST_CHECK int options_read(int argc, char **argv, struct options *o, bool *ret_help, struct error *e);
/* What a sidecar needs to run, checked and made ready to use. */
MUST_CHECK int options_check(struct options *o, struct error *e);
void options_help(FILE *out);
void options_release(struct options *o);

#endif
