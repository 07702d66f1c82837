#include "wire/shm.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"

#define PAGE 4096u
#define ENTRIES_MAX (1u << 16)
#define AREA_MAX ((uint64_t)1 << 42)

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static bool is_power_of_two(uint32_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

uint64_t shm_layout(struct shm_header *ret_header, uint64_t fence, uint32_t sq_entries, uint32_t cq_entries,
                    uint64_t arena_bytes, uint64_t results_bytes)
{
    if (!is_power_of_two(sq_entries) || !is_power_of_two(cq_entries) || sq_entries > ENTRIES_MAX || cq_entries > ENTRIES_MAX ||
        arena_bytes > AREA_MAX || results_bytes > AREA_MAX)
        return 0;

    memset(ret_header, 0, sizeof *ret_header);
    ret_header->magic = SHM_MAGIC;
    ret_header->version = SHM_VERSION;
    ret_header->fence = fence;
    ret_header->sq_entries = sq_entries;
    ret_header->cq_entries = cq_entries;
    ret_header->sq_offset = round_up(sizeof *ret_header, PAGE);
    ret_header->cq_offset = round_up(ret_header->sq_offset + sq_entries * sizeof(struct shm_request), PAGE);
    ret_header->arena_offset = round_up(ret_header->cq_offset + cq_entries * sizeof(struct shm_reply), PAGE);
    ret_header->arena_bytes = round_up(arena_bytes, PAGE);
    ret_header->results_offset = ret_header->arena_offset + ret_header->arena_bytes;
    ret_header->results_bytes = round_up(results_bytes, PAGE);
    return ret_header->results_offset + ret_header->results_bytes;
}

/* Does [offset, offset + bytes) lie wholly in [area, area + area_bytes)? Written so that nothing can wrap around. */
static bool lies_in(uint64_t offset, uint64_t bytes, uint64_t area, uint64_t area_bytes)
{
    return offset >= area && offset - area <= area_bytes && bytes <= area_bytes - (offset - area);
}

static int check_name(const struct shm_request *r, struct error *e)
{
    size_t len = strnlen(r->name, sizeof r->name);

    if (len == sizeof r->name)
        return error_set(e, ERROR_INVALID, "the name is longer than %zu bytes or not terminated", sizeof r->name - 1);
    if (len == 0)
        return error_set(e, ERROR_INVALID, "the name is empty: every collective needs one that is the same on all ranks");
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)r->name[i] < 0x20 || r->name[i] == 0x7f)
            return error_set(e, ERROR_INVALID, "the name has a control character at byte %zu", i);
    }
    return 0;
}

static bool reduces(unsigned op)
{
    return op == SHM_OP_ALLREDUCE || op == SHM_OP_REDUCESCATTER;
}

bool shm_wire_fits(unsigned wire, unsigned op, unsigned dtype, unsigned redop)
{
    if (wire == SHM_WIRE_JOB || wire == SHM_WIRE_PLAIN)
        return true;
    if (wire > SHM_WIRE_LAST || !reduces(op) || (redop != SHM_SUM && redop != SHM_AVERAGE))
        return false;
    return wire == SHM_WIRE_EXACT ? dtype == SHM_F16 || dtype == SHM_BF16 : dtype == SHM_F32;
}

static int check_wire(const struct shm_request *r, struct error *e)
{
    if (shm_wire_fits(r->wire, r->op, r->dtype, r->redop))
        return 0;
    return error_set(e, ERROR_INVALID, "\"%s\": %s on the wire does not go with %s %s of %s: %s", r->name, shm_wire_name(r->wire), shm_op_name(r->op),
                     reduces(r->op) ? shm_redop_name(r->redop) : "", shm_dtype_name(r->dtype),
                     r->wire == SHM_WIRE_EXACT ? "it is for sums and averages of float16 and bfloat16" : "it is for sums and averages of float32");
}

static int check_reduction(const struct shm_request *r, struct error *e)
{
    if (check_wire(r, e) != 0)
        return -1;
    if (r->redop < SHM_SUM || r->redop > SHM_ADASUM || (r->redop == SHM_ADASUM && r->op != SHM_OP_ALLREDUCE))
        return error_set(e, ERROR_INVALID, "\"%s\": %s (%u) is no reduction for %s", r->name, shm_redop_name(r->redop), r->redop,
                         shm_op_name(r->op));
    if (r->dtype == SHM_U16 || r->dtype == SHM_I16)
        return error_set(e, ERROR_INVALID, "\"%s\": %s can be gathered, broadcast and exchanged, but not reduced", r->name,
                         shm_dtype_name(r->dtype));
    if (r->dtype == SHM_BOOL && ((r->redop != SHM_MIN && r->redop != SHM_MAX) || r->prescale != 1.0 || r->postscale != 1.0))
        return error_set(e, ERROR_INVALID, "\"%s\": bool can be reduced by min (and) and max (or) only, not by %s or with scaling",
                         r->name, shm_redop_name(r->redop));
    if (r->redop == SHM_ADASUM && !shm_dtype_is_float(r->dtype))
        return error_set(e, ERROR_INVALID, "\"%s\": adasum is for floating types, not for %s", r->name, shm_dtype_name(r->dtype));
    return 0;
}

static int check_rows(const struct shm_request *r, struct error *e)
{
    if (r->row_elements == 0 ? r->count != 0 : r->count % r->row_elements != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": %llu elements are not a whole number of rows of %llu", r->name,
                         (unsigned long long)r->count, (unsigned long long)r->row_elements);
    return 0;
}

/* Where the list of splits lies; what is in it is looked at by shm_splits_check. */
static int check_splits_place(const struct shm_header *layout, const struct shm_request *r, struct error *e)
{
    bool needed = r->op == SHM_OP_REDUCESCATTER || r->op == SHM_OP_ALLTOALL || r->op == SHM_OP_SET_ADD;

    if (needed ? r->splits == 0 || r->splits > SHM_RANKS_MAX : r->splits != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": %s with a list of %u ranks: %s", r->name, shm_op_name(r->op), r->splits,
                         needed ? "1 to 4096 are possible" : "it has none");
    if (needed && (!lies_in(r->splits_offset, (uint64_t)r->splits * 8, layout->arena_offset, layout->arena_bytes) ||
                   r->splits_offset % 8 != 0))
        return error_set(e, ERROR_INVALID, "\"%s\": the list of %u splits at offset %llu is outside of the arena or misaligned",
                         r->name, r->splits, (unsigned long long)r->splits_offset);
    return 0;
}

static int check_data_place(const struct shm_header *layout, const struct shm_request *r, uint64_t bytes, struct error *e)
{
    if (bytes == 0)
        return 0;

    bool in_arena = lies_in(r->in_offset, bytes, layout->arena_offset, layout->arena_bytes);
    bool in_results = lies_in(r->in_offset, bytes, layout->results_offset, layout->results_bytes);
    if ((!in_arena && !in_results) || r->in_offset % shm_dtype_size(r->dtype) != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": input of %llu bytes at offset %llu is outside of the arena or misaligned",
                         r->name, (unsigned long long)bytes, (unsigned long long)r->in_offset);
    if (shm_op_has_result(r->op))
        return 0;
    if (!lies_in(r->out_offset, bytes, layout->arena_offset, layout->arena_bytes) ||
        r->out_offset % shm_dtype_size(r->dtype) != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": output of %llu bytes at offset %llu is outside of the arena or misaligned",
                         r->name, (unsigned long long)bytes, (unsigned long long)r->out_offset);
    return 0;
}

static int check_shape_text(const struct shm_request *r, struct error *e)
{
    size_t len = strnlen(r->shape, sizeof r->shape);

    if (len == sizeof r->shape)
        return error_set(e, ERROR_INVALID, "\"%s\": the text of the shape is not terminated", r->name);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)r->shape[i] < 0x20 || (unsigned char)r->shape[i] >= 0x7f)
            return error_set(e, ERROR_INVALID, "\"%s\": the text of the shape is no plain text at byte %zu", r->name, i);
    }
    return 0;
}

int shm_request_check(const struct shm_header *layout, const struct shm_request *r, int32_t size, struct error *e)
{
    uint64_t bytes;

    if (check_name(r, e) < 0)
        return -1;
    if (r->op < SHM_OP_ALLREDUCE || r->op > SHM_OP_SET_REMOVE || r->op == SHM_OP_FREE)
        return error_set(e, ERROR_INVALID, "\"%s\": unknown operation %u", r->name, r->op);
    if (check_shape_text(r, e) < 0 || check_splits_place(layout, r, e) < 0)
        return -1;
    if ((r->op == SHM_OP_JOIN || r->op == SHM_OP_SET_ADD || r->op == SHM_OP_SET_REMOVE) && r->set != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": all ranks have to take part in %s, not those of process set %u", r->name,
                         shm_op_name(r->op), r->set);
    if (!shm_op_moves_data(r->op))
        return 0;

    if (shm_dtype_size(r->dtype) == 0)
        return error_set(e, ERROR_INVALID, "\"%s\": unknown dtype %u", r->name, r->dtype);
    if (__builtin_mul_overflow(r->count, shm_dtype_size(r->dtype), &bytes))
        return error_set(e, ERROR_INVALID, "\"%s\": %llu elements of %s do not fit into memory", r->name,
                         (unsigned long long)r->count, shm_dtype_name(r->dtype));
    if (reduces(r->op) && check_reduction(r, e) < 0)
        return -1;
    if (r->op == SHM_OP_BROADCAST && (r->root < 0 || (size > 0 && r->root >= size)))
        return error_set(e, ERROR_INVALID, "\"%s\": broadcast from rank %d, but ranks are 0 to %d", r->name, r->root, size - 1);
    if ((r->op == SHM_OP_ALLGATHER || r->op == SHM_OP_ALLTOALL) && check_rows(r, e) < 0)
        return -1;
    return check_data_place(layout, r, bytes, e);
}

int shm_splits_check(const struct shm_request *r, const uint64_t *splits, int32_t size, struct error *e)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < r->splits; i++) {
        unsigned long long value = splits[i];
        if (r->op == SHM_OP_SET_ADD) {
            if (value > INT32_MAX || (size > 0 && value >= (uint64_t)size) || (i > 0 && splits[i] <= splits[i - 1]))
                return error_set(e, ERROR_INVALID, "\"%s\": rank %llu at place %u of a process set: ranks go from 0 to %d, each once, "
                                 "in ascending order", r->name, value, i, size - 1);
            continue;
        }
        if (__builtin_add_overflow(sum, splits[i], &sum) || sum > r->count)
            return error_set(e, ERROR_INVALID, "\"%s\": the splits sum up to more than the tensor's %llu elements", r->name,
                             (unsigned long long)r->count);
        if (r->op == SHM_OP_ALLTOALL && (r->row_elements == 0 ? value != 0 : value % r->row_elements != 0))
            return error_set(e, ERROR_INVALID, "\"%s\": split %u of %llu elements is not a whole number of rows of %llu", r->name, i,
                             value, (unsigned long long)r->row_elements);
    }
    if (r->op != SHM_OP_SET_ADD && sum != r->count)
        return error_set(e, ERROR_INVALID, "\"%s\": the splits sum up to %llu of the tensor's %llu elements", r->name,
                         (unsigned long long)sum, (unsigned long long)r->count);
    return 0;
}

const char *shm_op_name(unsigned op)
{
    static const char *const names[] = {
        [SHM_OP_ALLREDUCE] = "all-reduce",         [SHM_OP_ALLGATHER] = "all-gather", [SHM_OP_BROADCAST] = "broadcast",
        [SHM_OP_BARRIER] = "barrier",              [SHM_OP_FREE] = "free",            [SHM_OP_REDUCESCATTER] = "reduce-scatter",
        [SHM_OP_ALLTOALL] = "all-to-all",          [SHM_OP_JOIN] = "join",            [SHM_OP_SET_ADD] = "adding of a process set",
        [SHM_OP_SET_REMOVE] = "removal of a process set",
    };

    return op >= SHM_OP_ALLREDUCE && op <= SHM_OP_SET_REMOVE ? names[op] : "unknown operation";
}

const char *shm_dtype_name(unsigned dtype)
{
    static const char *const names[] = {
        [SHM_U8] = "uint8",     [SHM_I8] = "int8",      [SHM_I32] = "int32",   [SHM_I64] = "int64", [SHM_F16] = "float16",
        [SHM_BF16] = "bfloat16", [SHM_F32] = "float32", [SHM_F64] = "float64", [SHM_BOOL] = "bool", [SHM_U16] = "uint16",
        [SHM_I16] = "int16",
    };

    return dtype >= SHM_U8 && dtype <= SHM_DTYPE_LAST ? names[dtype] : "unknown dtype";
}

const char *shm_wire_name(unsigned wire)
{
    static const char *const names[] = { "job", "plain", "float16", "bfloat16", "int8", "exact" };

    return wire <= SHM_WIRE_LAST ? names[wire] : "unknown form";
}

const char *shm_redop_name(unsigned redop)
{
    static const char *const names[] = {
        [SHM_SUM] = "sum", [SHM_AVERAGE] = "average",     [SHM_MIN] = "min",
        [SHM_MAX] = "max", [SHM_PRODUCT] = "product", [SHM_ADASUM] = "adasum",
    };

    return redop >= SHM_SUM && redop <= SHM_ADASUM ? names[redop] : "unknown reduction";
}
