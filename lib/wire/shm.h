/*
 * shm.h — the memory that the training process (client) and the engine (sidecar) share: queues, tensor arena, slots.
 *
 * One memfd per client connection:
 *
 *   offset 0                 struct shm_header
 *   header.sq_offset         struct shm_request  sq[header.sq_entries]   client → engine
 *   header.cq_offset         struct shm_reply    cq[header.cq_entries]   engine → client
 *   header.arena_offset      tensor arena, header.arena_bytes: owned by the client's allocator
 *   header.results_offset    results area, header.results_bytes: owned by the engine; holds the outputs of all-gather,
 *                            reduce-scatter and all-to-all, whose sizes differ per rank; handed back by OP_FREE
 *
 * Queues are single-producer single-consumer rings of free-running u32 indices (entry = index mod entries, entries a power
 * of two). The producer writes the entry, then stores tail with release; the consumer loads tail with acquire and stores
 * head with release when it is done with the entry. Each side sets its *_waiting word before it sleeps and looks at the
 * queue once more; the other side rings the eventfd only when the word is set. (The words are futex-capable, so that a
 * later engine can spin and wait on them instead of on the descriptor.)
 *
 * Neither side trusts the other: every offset and count is checked against the areas before use (shm_request_check), and a
 * request is copied out before it is checked.
 */
#ifndef WIRE_SHM_H
#define WIRE_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SHM_MAGIC 0x4d48534d52ull /* "RMSHM" */
#define SHM_VERSION 2u
#define SHM_NAME_MAX 128
#define SHM_TEXT_MAX 256
#define SHM_SHAPE_MAX 64
#define SHM_RANKS_MAX 4096 /* entries of a list of splits or ranks */
#define SHM_ALIGN 64u /* of arena and result offsets */

enum shm_op {
    SHM_OP_ALLREDUCE = 1,
    SHM_OP_ALLGATHER = 2, /* along dimension 0, which may differ per rank; count = this rank's elements */
    SHM_OP_BROADCAST = 3,
    SHM_OP_BARRIER = 4,
    SHM_OP_FREE = 5,      /* local: hand back the result at in_offset; no reply */
    SHM_OP_REDUCESCATTER = 6, /* splits: elements of the reduced tensor that each rank of the set gets */
    SHM_OP_ALLTOALL = 7,      /* splits: elements that go to each rank of the set; the reply's result begins with as many u64:
                                 the elements that came from each, padded to SHM_ALIGN, then the elements */
    SHM_OP_JOIN = 8,          /* set 0 only: collectives go on without this rank until all have joined; out_count = last rank */
    SHM_OP_SET_ADD = 9,       /* splits: its ranks, ascending; out_count = its number; all ranks of the job take part */
    SHM_OP_SET_REMOVE = 10,   /* count = its number; all ranks of the job take part; out_count = 1, or 0: there was none */
};

enum shm_dtype {
    SHM_U8 = 1, SHM_I8 = 2, SHM_I32 = 3, SHM_I64 = 4, SHM_F16 = 5, SHM_BF16 = 6, SHM_F32 = 7, SHM_F64 = 8, SHM_BOOL = 9,
    SHM_U16 = 10, SHM_I16 = 11,
};
#define SHM_DTYPE_LAST SHM_I16

enum shm_redop { SHM_SUM = 1, SHM_AVERAGE = 2, SHM_MIN = 3, SHM_MAX = 4, SHM_PRODUCT = 5, SHM_ADASUM = 6 };

/* In which form sums travel between ranks. The sums themselves are computed in float32; see sidecar/ring/codec.h. */
enum shm_wire {
    SHM_WIRE_JOB = 0,    /* as the job says, where it goes with the dtype; else as they are */
    SHM_WIRE_PLAIN = 1,
    SHM_WIRE_F16 = 2, SHM_WIRE_BF16 = 3, SHM_WIRE_I8 = 4, /* float32: half or a quarter of the bytes */
    SHM_WIRE_EXACT = 5,  /* float16, bfloat16: summed up without rounding on the way, rounded once */
};
#define SHM_WIRE_LAST SHM_WIRE_EXACT

/*
 * What goes with what (shm_request_check holds requests to it):
 *
 *                    u8 i8 i32 i64   f16 bf16 f32 f64   bool   u16 i16
 *   sum, product          x                 x
 *   average               x (1)             x
 *   min, max              x                 x            x (and, or)
 *   adasum (2)                              x
 *   scaling               x (1)             x
 *   the others (3)        x                 x            x       x
 *
 *   (1) integers: computed in double, the fraction is dropped; an average without scaling is an exact integer division
 *   (2) all-reduce only    (3) all-gather, broadcast, all-to-all; reduce-scatter knows sum, average, min, max and product
 */

enum shm_status {
    SHM_OK = 0,
    SHM_PEER_LOST = 1,   /* a rank is gone; the group re-forms; text names it */
    SHM_MISMATCH = 2,    /* ranks disagree on shape, dtype, op, root or ranks of a set; text says who sent what */
    SHM_INVALID = 3,     /* this request cannot be right; text says why */
    SHM_NO_SPACE = 4,    /* results area is full */
    SHM_SHUTDOWN = 5,
    SHM_LEFT = 6,        /* a rank that this waits for has ended its training process, well; text names it */
    SHM_EXISTS = 7,      /* there is a set of these ranks already; out_count = its number */
};
#define SHM_STATUS_LAST SHM_EXISTS

struct shm_header {
    uint64_t magic;
    uint32_t version, reserved;
    uint64_t fence;
    uint32_t sq_entries, cq_entries;
    uint64_t sq_offset, cq_offset, arena_offset, arena_bytes, results_offset, results_bytes;
    _Alignas(64) _Atomic uint32_t sq_head;     /* engine */
    _Alignas(64) _Atomic uint32_t sq_tail;     /* client */
    _Alignas(64) _Atomic uint32_t sq_waiting;  /* engine sleeps: ring eventfd 1 */
    _Alignas(64) _Atomic uint32_t cq_head;     /* client */
    _Alignas(64) _Atomic uint32_t cq_tail;     /* engine */
    _Alignas(64) _Atomic uint32_t cq_waiting;  /* client sleeps: ring eventfd 2 */
    _Alignas(64) _Atomic uint64_t progress;    /* client: rises by one at every training step; hang detection */
};

struct shm_request {
    uint64_t id;            /* chosen by the client, returned in the reply */
    uint16_t op;            /* enum shm_op */
    uint16_t dtype;         /* enum shm_dtype */
    uint16_t redop;         /* enum shm_redop; all-reduce and reduce-scatter only */
    uint16_t wire;          /* enum shm_wire; sums and averages of them only */
    int32_t root;           /* broadcast: global rank */
    uint32_t set;           /* process set, 0 = all ranks. A name lives in its set */
    uint64_t count;         /* elements, of dtype */
    uint64_t row_elements;  /* all-gather, all-to-all: elements of one row (product of dimensions 1..); the same on all ranks */
    uint64_t in_offset;     /* into the memfd; arena or results area */
    uint64_t out_offset;    /* all-reduce, broadcast: where the result goes, may equal in_offset; else unused */
    double prescale;        /* multiplied in before the reduction; 1.0 = none */
    double postscale;       /* after; AVERAGE divides by the size in addition */
    char name[SHM_NAME_MAX]; /* identifies the tensor on all ranks; one in flight per name; NUL-terminated */
    uint64_t splits_offset; /* u64[splits] in the arena; see enum shm_op */
    uint32_t splits;        /* reduce-scatter, all-to-all: ranks of the set; SET_ADD: ranks that it is to have; else 0 */
    uint32_t reserved2;
    uint64_t shape_hash;    /* of the dimensions that must be equal on all ranks; 0: not told, only count is held against */
    char shape[SHM_SHAPE_MAX]; /* the same for people, "[3, 4]", "[*, 4]"; NUL-terminated, may be cut off */
};

struct shm_reply {
    uint64_t id;
    uint32_t status;        /* enum shm_status */
    uint32_t size;          /* ranks that took part */
    uint64_t out_offset;    /* all-gather, reduce-scatter, all-to-all: result in the results area */
    uint64_t out_count;     /* elements of the result; see enum shm_op */
    char text[SHM_TEXT_MAX];
};

static inline bool shm_dtype_is_float(unsigned dtype)
{
    return dtype >= SHM_F16 && dtype <= SHM_F64;
}

static inline bool shm_op_moves_data(unsigned op)
{
    return (op >= SHM_OP_ALLREDUCE && op <= SHM_OP_BROADCAST) || op == SHM_OP_REDUCESCATTER || op == SHM_OP_ALLTOALL;
}

/* Does its result come in the results area? */
static inline bool shm_op_has_result(unsigned op)
{
    return op == SHM_OP_ALLGATHER || op == SHM_OP_REDUCESCATTER || op == SHM_OP_ALLTOALL;
}

/* Bytes before the elements of an all-to-all's result. */
static inline uint64_t shm_splits_bytes(uint32_t splits)
{
    return ((uint64_t)splits * 8 + SHM_ALIGN - 1) / SHM_ALIGN * SHM_ALIGN;
}

static inline uint64_t shm_dtype_size(unsigned dtype)
{
    switch (dtype) {
    case SHM_U8: case SHM_I8: case SHM_BOOL: return 1;
    case SHM_F16: case SHM_BF16: case SHM_U16: case SHM_I16: return 2;
    case SHM_I32: case SHM_F32: return 4;
    case SHM_I64: case SHM_F64: return 8;
    default: return 0;
    }
}

/* The engine's side, in shm.c (the client library does not link it). Pure. */
struct error;

/* Fills magic, version and the layout (offsets, sizes, entries) of a header for the given areas; the queue words are zero.
 * Returns the size of the whole memory, a multiple of the page size; 0 when the sizes are out of range. */
uint64_t shm_layout(struct shm_header *ret_header, uint64_t fence, uint32_t sq_entries, uint32_t cq_entries,
                    uint64_t arena_bytes, uint64_t results_bytes);

/* Is a request, already copied out of shared memory, one that can be carried out within `layout` (the engine's own copy of the
 * header)? `size` is the number of ranks, 0 when it is not known yet. ERROR_INVALID says what is wrong with which field. */
int shm_request_check(const struct shm_header *layout, const struct shm_request *r, int32_t size, struct error *e)
    __attribute__((warn_unused_result));

/* What is in the list of splits, already copied out: they have to sum up to count in whole rows (SET_ADD: ranks in ascending
 * order, below `size` unless that is 0). */
int shm_splits_check(const struct shm_request *r, const uint64_t *splits, int32_t size, struct error *e)
    __attribute__((warn_unused_result));

const char *shm_op_name(unsigned op);       /* "all-reduce"; "unknown operation" */
const char *shm_dtype_name(unsigned dtype); /* "float32" */
const char *shm_redop_name(unsigned redop); /* "sum" */
const char *shm_wire_name(unsigned wire);   /* "float16" */
/* Does a form go with this reduction? PLAIN does with every one. */
bool shm_wire_fits(unsigned wire, unsigned op, unsigned dtype, unsigned redop);

/* A checkpoint slot: one shared file per slot, SLOT_CONTROL_BYTES of control, then the image (a complete safetensors file
 * whose header is padded with spaces so that tensor data begins at a multiple of 4096 bytes of the image). */
#define SLOT_MAGIC 0x544f4c534d52ull /* "RMSLOT" */
#define SLOT_CONTROL_BYTES 4096u

enum slot_state {
    SLOT_EMPTY = 0,
    SLOT_WRITING = 1,    /* the trainer fills it; dead writer = EMPTY */
    SLOT_STAGED = 2,     /* complete; only the sidecar moves it on */
    SLOT_PERSISTING = 3,
    SLOT_COMMITTED = 4,  /* on the volume as part of a committed step; may be overwritten by the rule of checkpoint/slots.h */
};

struct slot_control {
    uint64_t magic;
    uint32_t version, slot;
    uint64_t slot_bytes;                    /* of the image area */
    _Alignas(64) _Atomic uint32_t state;    /* enum slot_state; trainer: EMPTY|COMMITTED→WRITING→STAGED; sidecar: the rest */
    _Alignas(64) _Atomic uint64_t step;
    _Alignas(64) _Atomic uint64_t fence;    /* epoch that the step was computed in */
    _Alignas(64) _Atomic uint64_t image_bytes;
    _Alignas(64) _Atomic uint64_t writer;   /* pid of the trainer, as it sees itself */
    /* Sidecar only: what it took over as STAGED. After its restart a slot is trusted when the seal names its fence and step. */
    _Alignas(64) _Atomic uint64_t seal_fence;
    _Atomic uint64_t seal_step;
    _Atomic uint32_t seal_world, seal_rank;
};

#endif
