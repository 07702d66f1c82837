/*
 * member.h — this sidecar as a member of the job: it dials the coordinator, joins, keeps the beat, and carries out what the
 * coordinator says with its engine, its checkpoints and its launcher (which it owns).
 *
 * When the coordinator is lost the training process is left alone; the new coordinator says what becomes of it. All calls and
 * callbacks are on the loop's thread.
 */
#ifndef SUPERVISE_MEMBER_H
#define SUPERVISE_MEMBER_H

#include "base/loop.h"
#include "sidecar/checkpoint/checkpoint.h"
#include "sidecar/ring/engine.h"

#define BEAT_MS 100

struct member;

struct member_options { /* texts are kept */
    const char *job, *job_uid, *name;
    int32_t rank, size, attempt;
    const char *coordinator_host; int32_t coordinator_port;
    const char *address; int32_t port;    /* where the others reach this sidecar */
    const uint8_t *key;                   /* CRYPTO_KEY_BYTES, kept */
    bool tls;                             /* between sidecars */
    int64_t peer_timeout_ms;
    const char *socket;                   /* for launcher and clients */
    int socket_access;                    /* enum attach_access */
    const char *checkpoint_volume, *checkpoint_memory; /* volume NULL: memory only */
    int32_t checkpoint_keep;
    const struct s3_config *s3;           /* kept; for a volume that is one of S3 */
    int64_t arena_bytes, results_bytes, connect_timeout_ms;
    const char *ring_memory;    /* see engine.h, memory_dir */
    int32_t chunk_bytes;
    bool checksums;                       /* of tensor data, see engine.h */
    int wire;                             /* sums travel so: 0 as they are, else forms of enum shm_wire behind PLAIN, from 1 on */
    int64_t stall_warning_ms, stall_shutdown_ms; /* see engine.h */
    const char *evidence_dir;
    int64_t signs_interval_ms;            /* between two looks at what the process does; 0: never */
    bool elastic;                         /* the job's: a process may stay for the next round */
};

/* On the sidecar that coordinates as well. */
struct member_hub {
    void (*broadcast)(void *ctx, cJSON *message /* taken */);
    void (*committed)(void *ctx, int64_t step, const char *uri);
    void (*stalled)(void *ctx, int32_t rank, const char *text); /* the first that is missing, -1 = unknown; "": not any more */
    void *ctx;
};

MUST_CHECK int member_new(struct loop *l, const struct member_options *options, struct member **ret, struct error *e);
void member_free(struct member *m);
void member_set_hub(struct member *m, const struct member_hub *hub);
void member_begin(struct member *m); /* starts dialling */

struct checkpoint *member_checkpoint(struct member *m); /* borrowed */
struct evidence *member_evidence(struct member *m);     /* borrowed */
uint64_t member_fence(const struct member *m);          /* highest this sidecar holds */
void member_accept(struct member *m, int fd /* taken */, const struct peer_hello *hello); /* ENGINE and DATA connections */
/* Nothing is left to do here: no process runs and every staged checkpoint is committed. */
bool member_idle(const struct member *m);
bool member_launcher_is_gone(const struct member *m); /* one was there, and is not now */

#endif
