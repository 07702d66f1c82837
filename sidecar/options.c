#include "sidecar/options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/text.h"
#include "job/counters.h"
#include "wire/peer.h"

#define MEMBERS_MAX 10000
#define KEY_FILE_MAX 4096

static const char *const WIRES[] = { "plain", "float16", "bfloat16", "int8", "exact", NULL }; /* enum shm_wire from PLAIN on */
static const char *const ACCESSES[] = { "user", "pod", NULL }; /* as enum attach_access */
static const char *const LEVELS[] = { "debug", "info", "warn", "error", NULL };

#define TEXT(f) .type = OPT_TEXT, .at = OPT_AT(struct options, f, const char *)
#define INT(f, least, most) .type = OPT_INT, .at = OPT_AT(struct options, f, int64_t), .min = (least), .max = (most), .value = "N"
#define TIME(f, least, most) .type = OPT_DURATION, .at = OPT_AT(struct options, f, int64_t), .min = (least), .max = (most), .value = "TIME"
#define SIZE(f, least, most) .type = OPT_SIZE, .at = OPT_AT(struct options, f, int64_t), .min = (least), .max = (most), .value = "BYTES"
#define BOOL(f) .type = OPT_BOOL, .at = OPT_AT(struct options, f, bool)

static const struct opt_def OPTIONS[] = {
    { .flag = "job", .env = "RINGMASTER_JOB", TEXT(job), .value = "NAME", .help = "name of the job" },
    { .flag = "job-uid", .env = "RINGMASTER_JOB_UID", TEXT(job_uid), .value = "UID",
      .help = "identity of the job; connections of others are refused" },
    { .flag = "role", .env = "RINGMASTER_ROLE", TEXT(role), .value = "ROLE",
      .help = "chief, master, worker, ps or evaluator" },
    { .flag = "index", .env = "RINGMASTER_INDEX", .def = "0", INT(index, 0, JOB_MAX_REPLICAS),
      .help = "index within the role" },
    { .flag = "rank", .env = "RINGMASTER_RANK", .def = "-1", INT(rank, -1, JOB_MAX_REPLICAS),
      .help = "rank in the ring; -1 outside of it" },
    { .flag = "size", .env = "RINGMASTER_SIZE", .def = "1", INT(size, 1, JOB_MAX_REPLICAS),
      .help = "number of ranks" },
    { .flag = "attempt", .env = "RINGMASTER_ATTEMPT", .def = "1", INT(attempt, 1, INT32_MAX),
      .help = "attempt of the job that this pod belongs to" },
    { .flag = "members", .env = "RINGMASTER_MEMBERS", TEXT(members), .value = "LIST",
      .help = "all members, by rank, comma-separated" },
    { .flag = "coordinator", .env = "RINGMASTER_COORDINATOR", TEXT(coordinator), .value = "HOST:PORT",
      .help = "the sidecar of rank 0" },
    { .flag = "address", .env = "RINGMASTER_ADDRESS", TEXT(address), .value = "HOST",
      .help = "by which the others reach this sidecar; an address is listened on, with a name all are" },
    { .flag = "port", .env = "RINGMASTER_PORT", .def = "7077", INT(port, 1, 65535), .help = "port to listen on" },
    { .flag = "dir", .env = "RINGMASTER_DIR", .def = "/ringmaster", TEXT(dir), .value = "DIR",
      .help = "directory shared with the launcher" },
    { .flag = "shm-dir", .env = "RINGMASTER_SHM_DIR", .def = "/dev/shm", TEXT(shm_dir), .value = "DIR",
      .help = "memory-backed directory for checkpoint slots" },
    { .flag = "checkpoint-dir", .env = "RINGMASTER_CHECKPOINT_DIR", TEXT(checkpoint_dir), .value = "DIR",
      .help = "checkpoints on the volume, or s3://BUCKET/PREFIX; empty: memory only" },
    S3_OPTIONS(struct options, s3),
    { .flag = "checkpoint-keep", .env = "RINGMASTER_CHECKPOINT_KEEP", .def = "3", INT(checkpoint_keep, 1, 10000),
      .help = "committed checkpoints that are kept" },
    { .flag = "evidence-dir", .env = "RINGMASTER_EVIDENCE_DIR", TEXT(evidence_dir), .value = "DIR",
      .help = "what is seen of a job that hangs is written here; evidence beside the checkpoints, or in the shared directory, when it is not given" },
    { .flag = "key-file", .env = "RINGMASTER_KEY_FILE", TEXT(key_file), .value = "FILE",
      .help = "the job's key, 64 hex digits" },
    { .flag = "tls", .env = "RINGMASTER_TLS", BOOL(tls), .help = "encrypt what goes to other sidecars (TLS 1.3); all of a job must agree" },
    { .flag = "policy", .env = "RINGMASTER_POLICY", TEXT(policy), .value = "JSON",
      .help = "the part of the job that decides on restarts", .hidden = true },
    { .flag = "counters", .env = "RINGMASTER_COUNTERS", TEXT(counters), .value = "JSON",
      .help = "restarts so far", .hidden = true },
    { .flag = "control", .env = "RINGMASTER_CONTROL", TEXT(control), .value = "unix:PATH|ws://URL|wss://URL",
      .help = "where the coordinator reports" },
    { .flag = "control-ca", .env = "RINGMASTER_CONTROL_CA", TEXT(control_ca), .value = "FILE",
      .help = "with wss: certificate of the authority that the operator's is checked against" },
    { .flag = "last-word", .env = "RINGMASTER_LAST_WORD", TEXT(last_word), .value = "FILE",
      .help = "the coordinator keeps here what it would report last, for whoever drives the job and could not hear it" },
    { .flag = "socket-access", .env = "RINGMASTER_SOCKET_ACCESS", .def = "user", .type = OPT_ENUM, .at = OPT_AT(struct options, socket_access, int),
      .names = ACCESSES, .value = "WHO", .help = "who may use the socket in the shared directory: user (this one and root), or pod (all that "
      "see the directory; for one that only the containers of a pod mount)" },
    { .flag = "leave-with-launcher", .env = "RINGMASTER_LEAVE_WITH_LAUNCHER", BOOL(leave_with_launcher),
      .help = "end, as by SIGTERM, when the launcher that was there is gone; for a sidecar that is a container as any other" },
    { .flag = "peer-timeout", .env = "RINGMASTER_PEER_TIMEOUT", .def = "1s", TIME(peer_timeout_ms, 300, 600000),
      .help = "silence after which a member counts as lost" },
    { .flag = "connect-timeout", .env = "RINGMASTER_CONNECT_TIMEOUT",
      .def = "10s", TIME(connect_timeout_ms, 100, 600000), .help = "limit for connecting the ring" },
    { .flag = "grace", .env = "RINGMASTER_GRACE", .def = "20s", TIME(grace_ms, 0, 3600000),
      .help = "after SIGTERM: limit for committing what is staged" },
    { .flag = "arena", .env = "RINGMASTER_ARENA", .def = "512Mi", SIZE(arena_bytes, 1 << 20, (int64_t)1 << 40),
      .help = "memory shared with each client for tensors" },
    { .flag = "results", .env = "RINGMASTER_RESULTS",
      .def = "256Mi", SIZE(results_bytes, 1 << 20, (int64_t)1 << 40),
      .help = "memory shared with each client for gathered results" },
    { .flag = "chunk", .env = "RINGMASTER_CHUNK", .def = "256Ki", SIZE(chunk_bytes, 4096, PEER_MAX_DATA),
      .help = "bytes of one piece on the ring" },
    { .flag = "checksums", .env = "RINGMASTER_CHECKSUMS", BOOL(checksums),
      .help = "tensor data carry a CRC32C from this rank's memory to the next one's; damage there ends the round as a lost rank does" },
    { .flag = "wire", .env = "RINGMASTER_WIRE", .def = "plain", .type = OPT_ENUM, .at = OPT_AT(struct options, wire, int), .names = WIRES,
      .value = "FORM", .help = "in which form sums travel between ranks: plain; float16, bfloat16, int8 (sums of float32, in half or a quarter "
      "of the bytes); exact (sums of float16 and bfloat16 without rounding on the way). All ranks need the same" },
    { .flag = "ring-memory", .env = "RINGMASTER_RING_MEMORY", TEXT(ring_memory), .value = "DIR",
      .help = "all ranks are on this machine and move data through memory in DIR, which only this user can enter, in place of TCP" },
    { .flag = "stall-warning", .env = "RINGMASTER_STALL_WARNING", .def = "60s", TIME(stall_warning_ms, 0, 86400000),
      .help = "a collective that some ranks have sent and others have not for so long is told of; 0: never" },
    { .flag = "stall-shutdown", .env = "RINGMASTER_STALL_SHUTDOWN", .def = "0s", TIME(stall_shutdown_ms, 0, 86400000),
      .help = "... ends the round as a lost rank does; 0: never" },
    { .flag = "install", TEXT(install), .value = "DIR",
      .help = "before running, copy launcher, libraries and Python package into DIR" },
    { .flag = "library-dir", .env = "RINGMASTER_LIBRARY_DIR", TEXT(library_dir), .value = "DIR",
      .help = "with --install: where the client libraries are" },
    { .flag = "probe", BOOL(probe), .help = "ask the running sidecar whether it is up; exit status 0 or 1" },
    { .flag = "die-with-parent", BOOL(die_with_parent),
      .help = "end as by SIGTERM when the process that started this one ends" },
    { .flag = "log-level", .env = "RINGMASTER_LOG_LEVEL", .def = "info", .type = OPT_ENUM,
      .at = OPT_AT(struct options, log_level, int), .names = LEVELS, .value = "LEVEL",
      .help = "least level that is logged" },
    { .flag = "log-json", .env = "RINGMASTER_LOG_JSON", BOOL(log_json), .help = "log JSON instead of logfmt" },
    { .flag = "version", BOOL(version), .help = "print the version" },
};

void options_help(FILE *out)
{
    (void)fprintf(out, "Usage: ringmaster-sidecar [OPTIONS]\n"
                       "One per pod of a TrainingJob: rendezvous, all-reduce, checkpoints and supervision of its training process.\n\n");
    opt_help(OPTIONS, COUNT(OPTIONS), out);
}

int options_read(int argc, char **argv, struct options *o, bool *ret_help, struct error *e)
{
    int next = 0;

    *o = (struct options){ .job = NULL };
    if (opt_parse(OPTIONS, COUNT(OPTIONS), argc, argv, false, o, &next, ret_help, e) != 0)
        return -1;
    if (!*ret_help && next < argc)
        return error_set(e, ERROR_INVALID, "found \"%.80s\", expected only options; see --help", argv[next]);
    return 0;
}

static int need(const char *value, const char *env, struct error *e)
{
    if (value != NULL && value[0] != '\0')
        return 0;
    return error_set(e, ERROR_INVALID, "%s is not set; the pod sets it, see docs/internals/processes.md", env);
}

static int read_key(struct options *o, struct error *e)
{
    auto_free char *text = NULL;
    size_t len = 0;

    if (fs_read(o->key_file, KEY_FILE_MAX, &text, &len, e) != 0)
        return error_wrap(e, "RINGMASTER_KEY_FILE");
    while (len > 0 && isspace((unsigned char)text[len - 1]))
        text[--len] = '\0';
    bool well = len == 2 * CRYPTO_KEY_BYTES && crypto_unhex(text, o->key, sizeof o->key);
    crypto_wipe(text, len);
    if (!well)
        return error_set(e, ERROR_INVALID, "RINGMASTER_KEY_FILE: %s does not hold %d hex digits", o->key_file, 2 * CRYPTO_KEY_BYTES);
    return 0;
}

static int split_endpoint(struct options *o, struct error *e)
{
    const char *colon = strrchr(o->coordinator, ':');
    int64_t port = 0;
    size_t len = colon != NULL ? (size_t)(colon - o->coordinator) : 0;
    const char *host = o->coordinator;

    if (len > 2 && host[0] == '[' && host[len - 1] == ']') { /* [::1]:7077 */
        host++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof o->coordinator_host || !text_int(colon + 1, &port) || port < 1 || port > 65535)
        return error_set(e, ERROR_INVALID, "RINGMASTER_COORDINATOR: found \"%.100s\", expected HOST:PORT", o->coordinator);
    (void)snprintf(o->coordinator_host, sizeof o->coordinator_host, "%.*s", (int)len, host);
    o->coordinator_port = (int32_t)port;
    return 0;
}

static int split_members(struct options *o, struct error *e)
{
    bool found = false;

    for (const char *at = o->members; o->name_count < MEMBERS_MAX;) {
        size_t len = strcspn(at, ",");
        o->names = xrealloc(o->names, o->name_count + 1, sizeof *o->names);
        o->names[o->name_count] = xstrndup(at, len);
        found |= strcmp(o->names[o->name_count], o->member) == 0;
        o->name_count++;
        if (at[len] == '\0')
            break;
        at += len + 1;
    }
    if (!found)
        return error_set(e, ERROR_INVALID, "RINGMASTER_MEMBERS: \"%.150s\" does not name this member, %s", o->members, o->member);
    if (o->rank >= 0 && ((size_t)o->rank >= o->name_count || strcmp(o->names[o->rank], o->member) != 0))
        return error_set(e, ERROR_INVALID, "RINGMASTER_RANK: %s is not at place %d of RINGMASTER_MEMBERS", o->member, (int)o->rank);
    if (o->rank >= o->size)
        return error_set(e, ERROR_INVALID, "RINGMASTER_RANK: found %d, expected less than RINGMASTER_SIZE, %d", (int)o->rank, (int)o->size);
    return 0;
}

static int read_counters(struct options *o, struct error *e)
{
    auto_json cJSON *tree = NULL;

    if (o->counters == NULL || o->counters[0] == '\0')
        return 0;
    if (json_parse(o->counters, strlen(o->counters), &tree, e) != 0)
        return error_wrap(e, "RINGMASTER_COUNTERS");
    if (!restart_counters_decode(tree, &o->restart_counters))
        return error_set(e, ERROR_INVALID, "RINGMASTER_COUNTERS: not what the operator writes there: %.120s", o->counters);
    return 0;
}

int options_check(struct options *o, struct error *e)
{
    enum job_role role;

    if (need(o->job, "RINGMASTER_JOB", e) != 0 || need(o->job_uid, "RINGMASTER_JOB_UID", e) != 0 ||
        need(o->role, "RINGMASTER_ROLE", e) != 0 || need(o->members, "RINGMASTER_MEMBERS", e) != 0 ||
        need(o->coordinator, "RINGMASTER_COORDINATOR", e) != 0 || need(o->address, "RINGMASTER_ADDRESS", e) != 0 ||
        need(o->key_file, "RINGMASTER_KEY_FILE", e) != 0 || need(o->policy, "RINGMASTER_POLICY", e) != 0)
        return -1;
    if (strlen(o->job_uid) >= PEER_UID_MAX)
        return error_set(e, ERROR_INVALID, "RINGMASTER_JOB_UID is longer than %d characters", PEER_UID_MAX - 1);
    if (!role_parse(o->role, &role))
        return error_set(e, ERROR_INVALID, "RINGMASTER_ROLE: found \"%.40s\", expected chief, master, worker, ps or evaluator", o->role);
    job_member_name(role, (int32_t)o->index, o->member);
    if (split_endpoint(o, e) != 0 || split_members(o, e) != 0 || read_counters(o, e) != 0 || read_key(o, e) != 0)
        return -1;
    if (restart_policy_decode(o->policy, &o->policy_job, e) != 0)
        return error_wrap(e, "RINGMASTER_POLICY");
    o->socket = xasprintf("%s/sidecar.sock", o->dir);
    if (o->checkpoint_dir != NULL && o->checkpoint_dir[0] == '\0')
        o->checkpoint_dir = NULL;
    o->evidence = o->evidence_dir != NULL && o->evidence_dir[0] != '\0' ? xstrdup(o->evidence_dir)
                                                                         : fs_join(o->checkpoint_dir != NULL ? o->checkpoint_dir : o->dir, "evidence");
    if (o->control != NULL && o->control[0] == '\0')
        o->control = NULL;
    if (o->control_ca != NULL && o->control_ca[0] == '\0')
        o->control_ca = NULL;
    if (o->last_word != NULL && o->last_word[0] == '\0')
        o->last_word = NULL;
    return 0;
}

void options_release(struct options *o)
{
    for (size_t i = 0; i < o->name_count; i++)
        free(o->names[i]);
    free(o->names);
    training_job_free(o->policy_job);
    free(o->socket);
    free(o->evidence);
    crypto_wipe(o->key, sizeof o->key);
    opt_release(OPTIONS, COUNT(OPTIONS), o);
}
