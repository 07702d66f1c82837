/*
 * local.h — what travels over the sidecar's unix socket between the sidecar and its neighbours in the pod: the launcher
 * (which runs the training process) and the clients (libringmaster.so inside training processes).
 *
 * Framing is base/ipc.h's: u32 length, u16 type, u16 descriptors, payload; little endian, fixed structs below, texts as
 * NUL-terminated strings in fixed fields or as the rest of the payload. The first message on a connection is a HELLO; its
 * magic and version are checked before anything else. Every length is checked by the receiver; a bad message closes the
 * connection. Structs have no padding that is not named. The layout is an ABI: fields are only ever appended, and
 * LOCAL_VERSION rises when a meaning changes, because a launcher and a client of one release always meet a sidecar of the
 * same release but a test may replay a recorded stream.
 */
#ifndef WIRE_LOCAL_H
#define WIRE_LOCAL_H

#include <stdint.h>

#define LOCAL_MAGIC 0x314d5252u /* "RRM1" */
#define LOCAL_VERSION 1u
#define LOCAL_REASON_MAX 256
#define LOCAL_TAIL_MAX 1024
#define LOCAL_NAME_MAX 128

enum local_type {
    /* launcher → sidecar */
    LOCAL_LAUNCHER_HELLO = 1,  /* struct local_launcher_hello; when has_exited is set, LOCAL_EXITED follows with all that is known */
    LOCAL_STARTED = 2,         /* struct local_started: the process runs */
    LOCAL_EXITED = 3,          /* struct local_exited: reaped; its whole process group is gone too */
    LOCAL_SIGNALLED = 4,       /* struct local_signalled: the launcher got SIGTERM (preemption, deletion) */
    LOCAL_SIGNS = 5,           /* struct local_signs: answer to LOCAL_LOOK */
    LOCAL_STACKS = 6,          /* u32 number, then text: answer to LOCAL_LOOK */
    /* sidecar → launcher */
    LOCAL_START = 16,          /* u64 fence, then environment overrides "K=V\0K=V\0" */
    LOCAL_STOP = 17,           /* struct local_stop: end the process group, then report EXITED */
    LOCAL_LEAVE = 18,          /* struct local_leave: exit now with the code of the last process (the pod ends) */
    LOCAL_LOOK = 19,           /* struct local_look: what do the processes do? */

    /* client → sidecar */
    LOCAL_CLIENT_HELLO = 32,   /* struct local_client_hello */
    LOCAL_REPORT = 33,         /* JSON text: {"step":n,"total_steps":n,"loss":x,"step_ms":x,"metrics":{...}} any subset */
    LOCAL_SLOTS = 34,          /* struct local_slots: ask for checkpoint slots of this size; reply LOCAL_SLOTS_READY */
    LOCAL_STAGED = 35,         /* struct local_staged: a slot holds a complete image of this step */
    LOCAL_RESTORE = 36,        /* struct local_restore, or empty for the image of this rank's number; reply LOCAL_RESTORE_READY */
    LOCAL_FLUSH = 37,          /* struct local_flush: reply LOCAL_FLUSHED when nothing staged is left uncommitted */
    LOCAL_FINISHED = 38,       /* struct local_finished: the training loop is done; a clean exit follows */
    LOCAL_TIMELINE = 39,       /* struct local_timeline: begin or end a record of what the ring does; may be LOCAL_REFUSED */
    LOCAL_LISTEN = 40,         /* (empty) this program goes into another round when the number of workers changes */
    /* sidecar → client */
    LOCAL_CLIENT_READY = 48,   /* struct local_client_ready + fds: [0] memfd of shm.h, [1] eventfd client→engine, [2] eventfd engine→client */
    LOCAL_SLOTS_READY = 49,    /* struct local_slots_ready + one fd per slot */
    LOCAL_RESTORE_READY = 50,  /* struct local_restore_ready + fd of the image, when there is one */
    LOCAL_FLUSHED = 51,        /* struct local_flushed */
    LOCAL_COMMITTED = 52,      /* struct local_committed: unsolicited, the job has committed this step */
    LOCAL_REFUSED = 53,        /* u32 request type, then text: why the request cannot be done */
    LOCAL_SAVE = 54,           /* (empty) unsolicited: save a checkpoint after the step in work (a command, or the pod is to end) */

    LOCAL_HOSTS = 55,          /* struct local_hosts: unsolicited; another round waits for this process to come to it */

    /* anyone of the pod → sidecar, as the only message of a connection */
    LOCAL_PROBE = 64,          /* (empty) startup probe; reply LOCAL_PROBED */
    LOCAL_PROBED = 65,         /* struct local_probed */
};

struct local_launcher_hello {
    uint32_t magic, version;
    uint32_t launcher_pid;
    uint32_t running;        /* 1: a process is running under `fence` (the sidecar was restarted meanwhile) */
    uint64_t fence;          /* of the running or the last process; 0 before the first */
    uint32_t child_pid;      /* 0 when none runs */
    uint32_t has_exited;     /* 1: a process ended while no sidecar listened; wait_status is its status */
    int32_t wait_status;     /* as waitpid gives it */
    uint32_t terminating;    /* 1: SIGTERM was received */
};

struct local_started { uint64_t fence; uint32_t child_pid; uint32_t reserved; int64_t wall_ms; };

struct local_exited {
    uint64_t fence;
    int32_t wait_status;     /* as waitpid gives it: exact code or signal */
    uint32_t oom_killed;     /* 1: the cgroup's oom_kill counter rose while it ran */
    int64_t wall_ms;         /* when it was reaped, Unix epoch */
    uint32_t not_started;    /* 1: exec failed; wait_status is code 126 or 127 */
    uint32_t stopped;        /* 1: it ended because LOCAL_STOP asked for it */
    char reason[LOCAL_REASON_MAX]; /* "exec /app/train.py: permission denied"; else "" */
    char tail[LOCAL_TAIL_MAX]; /* the last lines that it wrote to stderr, plain text */
};

struct local_signalled { uint32_t signal_number; uint32_t reserved; };
struct local_stop { uint64_t fence; uint32_t grace_ms; uint32_t reserved; }; /* SIGTERM, after grace SIGKILL to all descendants */
struct local_leave { int32_t exit_code; uint32_t reserved; };               /* -1: the last process's own code */
enum local_look_what { LOCAL_LOOK_SIGNS = 1 /* cheap */, LOCAL_LOOK_STACKS = 2 /* of all threads, Python's and the kernel's; takes a moment */ };
struct local_look { uint32_t what, number; };
struct local_signs {         /* of the process and all below it */
    uint32_t number;         /* as asked */
    uint32_t traced;         /* 1: a debugger holds one of them */
    uint64_t cpu_ms;         /* used so far; what has ended and was waited for is in it */
    uint64_t written_bytes;  /* to stderr, as far as it passes through the launcher */
};
/* A Python process that uses the package `ringmaster` writes the stacks of its threads into a memory file of this name when it gets this
 * signal (faulthandler). The launcher sends it to processes alone that catch it and hold such a file. */
#define LOCAL_STACKS_SIGNAL 50
#define LOCAL_STACKS_FILE "ringmaster-stacks"
#define LOCAL_STACKS_MAX (512u << 10)

struct local_client_hello {
    uint32_t magic, version;
    uint32_t pid;
    uint32_t next_round;     /* 1: `fence` is a round that was lost or left; READY comes with the one after it (elastic jobs) */
    uint64_t fence;          /* of its environment, or of its last READY; another than the current one is refused */
    char framework[32];      /* "tensorflow 2.21.0"; for reports */
};

struct local_client_ready {
    uint64_t fence;
    uint32_t rank, size, local_rank, local_size;
    uint64_t shm_bytes;      /* size of the memfd */
    int64_t resume_step;     /* -1: none */
    char job[LOCAL_NAME_MAX];
};

struct local_slots { uint64_t image_bytes; };                        /* size of one image, header included */
struct local_slots_ready { uint32_t count; uint32_t reserved; uint64_t slot_bytes; }; /* layout: wire/shm.h slot control + image */
struct local_staged { uint32_t slot; uint32_t reserved; uint64_t step; uint64_t image_bytes; };
struct local_restore { uint32_t image; uint32_t reserved; };         /* of the step to resume from: the number of the rank that saved it */
struct local_restore_ready {
    uint32_t found;          /* 0: start from scratch */
    uint32_t world;          /* number of ranks whose images make up this step */
    uint64_t step;
    uint64_t image_offset;   /* of the safetensors image in the descriptor */
    uint64_t image_bytes;    /* 0: that world had no rank of this number; no descriptor comes along */
    uint32_t from_memory;    /* 1: this rank's own slot, 0: the volume */
    uint32_t reserved;
};
struct local_timeline { uint32_t on; uint32_t mark_cycles; char path[512]; }; /* path: NUL-terminated, in the sidecar's file system */
struct local_flush { uint32_t timeout_ms; uint32_t reserved; };
struct local_flushed { uint64_t committed_step; uint32_t ok; uint32_t reserved; };
struct local_committed { uint64_t step; };
enum local_hosts_bits { LOCAL_HOSTS_REMOVED = 1, LOCAL_HOSTS_ADDED = 2 }; /* Horovod's HostUpdateResult */
struct local_hosts { uint32_t bits; uint32_t reserved; };
struct local_finished { uint64_t step; };
struct local_probed { uint32_t launcher; uint32_t member; }; /* 1: a launcher is connected; the coordinator knows this member */

#endif
