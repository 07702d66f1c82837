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

static bool is_float(unsigned dtype)
{
    return dtype == SHM_F16 || dtype == SHM_BF16 || dtype == SHM_F32 || dtype == SHM_F64;
}

static int check_allreduce(const struct shm_request *r, struct error *e)
{
    if (r->redop < SHM_SUM || r->redop > SHM_PRODUCT)
        return error_set(e, ERROR_INVALID, "\"%s\": unknown reduction %u", r->name, r->redop);
    if (r->dtype == SHM_BOOL && r->redop != SHM_MIN && r->redop != SHM_MAX)
        return error_set(e, ERROR_INVALID, "\"%s\": bool can be reduced by min (and) and max (or) only, not by %s", r->name,
                         shm_redop_name(r->redop));
    if (r->redop == SHM_AVERAGE && !is_float(r->dtype))
        return error_set(e, ERROR_INVALID, "\"%s\": average is for floating types, not for %s: use sum and divide", r->name,
                         shm_dtype_name(r->dtype));
    if (!is_float(r->dtype) && (r->prescale != 1.0 || r->postscale != 1.0))
        return error_set(e, ERROR_INVALID, "\"%s\": scaling is for floating types, not for %s", r->name,
                         shm_dtype_name(r->dtype));
    return 0;
}

int shm_request_check(const struct shm_header *layout, const struct shm_request *r, int32_t size, struct error *e)
{
    uint64_t bytes;

    if (check_name(r, e) < 0)
        return -1;
    if (r->op < SHM_OP_ALLREDUCE || r->op > SHM_OP_BARRIER)
        return error_set(e, ERROR_INVALID, "\"%s\": unknown operation %u", r->name, r->op);
    if (r->op == SHM_OP_BARRIER)
        return 0;

    if (shm_dtype_size(r->dtype) == 0)
        return error_set(e, ERROR_INVALID, "\"%s\": unknown dtype %u", r->name, r->dtype);
    if (__builtin_mul_overflow(r->count, shm_dtype_size(r->dtype), &bytes))
        return error_set(e, ERROR_INVALID, "\"%s\": %llu elements of %s do not fit into memory", r->name,
                         (unsigned long long)r->count, shm_dtype_name(r->dtype));
    if (r->op == SHM_OP_ALLREDUCE && check_allreduce(r, e) < 0)
        return -1;
    if (r->op == SHM_OP_BROADCAST && (r->root < 0 || (size > 0 && r->root >= size)))
        return error_set(e, ERROR_INVALID, "\"%s\": broadcast from rank %d, but ranks are 0 to %d", r->name, r->root, size - 1);
    if (r->op == SHM_OP_ALLGATHER && (r->row_elements == 0 ? r->count != 0 : r->count % r->row_elements != 0))
        return error_set(e, ERROR_INVALID, "\"%s\": %llu elements are not a whole number of rows of %llu", r->name,
                         (unsigned long long)r->count, (unsigned long long)r->row_elements);
    if (bytes == 0)
        return 0;

    bool in_arena = lies_in(r->in_offset, bytes, layout->arena_offset, layout->arena_bytes);
    bool in_results = lies_in(r->in_offset, bytes, layout->results_offset, layout->results_bytes);
    if ((!in_arena && !in_results) || r->in_offset % shm_dtype_size(r->dtype) != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": input of %llu bytes at offset %llu is outside of the arena or misaligned",
                         r->name, (unsigned long long)bytes, (unsigned long long)r->in_offset);
    if (r->op == SHM_OP_ALLGATHER)
        return 0;
    if (!lies_in(r->out_offset, bytes, layout->arena_offset, layout->arena_bytes) ||
        r->out_offset % shm_dtype_size(r->dtype) != 0)
        return error_set(e, ERROR_INVALID, "\"%s\": output of %llu bytes at offset %llu is outside of the arena or misaligned",
                         r->name, (unsigned long long)bytes, (unsigned long long)r->out_offset);
    return 0;
}

const char *shm_op_name(unsigned op)
{
    static const char *const names[] = {
        [SHM_OP_ALLREDUCE] = "all-reduce", [SHM_OP_ALLGATHER] = "all-gather", [SHM_OP_BROADCAST] = "broadcast",
        [SHM_OP_BARRIER] = "barrier",      [SHM_OP_FREE] = "free",
    };

    return op >= SHM_OP_ALLREDUCE && op <= SHM_OP_FREE ? names[op] : "unknown operation";
}

const char *shm_dtype_name(unsigned dtype)
{
    static const char *const names[] = {
        [SHM_U8] = "uint8",     [SHM_I8] = "int8",      [SHM_I32] = "int32",   [SHM_I64] = "int64", [SHM_F16] = "float16",
        [SHM_BF16] = "bfloat16", [SHM_F32] = "float32", [SHM_F64] = "float64", [SHM_BOOL] = "bool",
    };

    return dtype >= SHM_U8 && dtype <= SHM_BOOL ? names[dtype] : "unknown dtype";
}

const char *shm_redop_name(unsigned redop)
{
    static const char *const names[] = {
        [SHM_SUM] = "sum", [SHM_AVERAGE] = "average", [SHM_MIN] = "min", [SHM_MAX] = "max", [SHM_PRODUCT] = "product",
    };

    return redop >= SHM_SUM && redop <= SHM_PRODUCT ? names[redop] : "unknown reduction";
}
