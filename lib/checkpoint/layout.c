#include "checkpoint/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool checkpoint_id_equal(struct checkpoint_id a, struct checkpoint_id b)
{
    return a.epoch == b.epoch && a.step == b.step;
}

int checkpoint_id_compare(struct checkpoint_id a, struct checkpoint_id b)
{
    if (a.step != b.step)
        return a.step < b.step ? -1 : 1;
    return a.epoch < b.epoch ? -1 : a.epoch > b.epoch;
}

void layout_generation(const struct generation *g, char ret_name[LAYOUT_NAME_MAX])
{
    (void)snprintf(ret_name, LAYOUT_NAME_MAX, "s%012" PRId64 "-e%016" PRIx64 "-%s", g->id.step, g->id.epoch, g->nonce);
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* Exactly 16 lower-case hex digits at *text, which moves behind them. */
static bool take_epoch(const char **text, uint64_t *ret_epoch)
{
    uint64_t epoch = 0;
    for (int i = 0; i < 16; i++, (*text)++) {
        if (!is_hex(**text))
            return false;
        epoch = epoch << 4 | (uint64_t)(**text <= '9' ? **text - '0' : **text - 'a' + 10);
    }
    *ret_epoch = epoch;
    return true;
}

bool layout_nonce_ok(const char *nonce)
{
    size_t n = 0;
    while (n < LAYOUT_NONCE_MAX && is_hex(nonce[n]))
        n++;
    return n == LAYOUT_NONCE_MAX - 1 && nonce[n] == '\0';
}

bool layout_generation_parse(const char *name, struct generation *ret_generation)
{
    struct generation g = { .id = { 0, 0 }, .nonce = "" };
    const char *p = name;
    if (*p++ != 's')
        return false;
    const char *digits = p;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (p - digits >= 18)
            return false;
        g.id.step = g.id.step * 10 + (*p - '0');
    }
    if (p - digits < 12 || strncmp(p, "-e", 2) != 0)
        return false;
    p += 2;
    if (!take_epoch(&p, &g.id.epoch) || *p++ != '-' || !layout_nonce_ok(p))
        return false;
    memcpy(g.nonce, p, LAYOUT_NONCE_MAX);
    /* Only the canonical form is ours: "s0000000000001-..." with one digit too many is not. */
    char canonical[LAYOUT_NAME_MAX];
    layout_generation(&g, canonical);
    if (strcmp(canonical, name) != 0)
        return false;
    *ret_generation = g;
    return true;
}

void layout_shard(int32_t rank, char ret_name[LAYOUT_NAME_MAX])
{
    /* The form that torch.distributed.checkpoint's HuggingFaceStorageReader collects. */
    (void)snprintf(ret_name, LAYOUT_NAME_MAX, "shard-%05" PRId32 "-model-00001-of-00001.safetensors", rank);
}

void layout_vote(int32_t rank, char ret_name[LAYOUT_NAME_MAX])
{
    (void)snprintf(ret_name, LAYOUT_NAME_MAX, "vote-%05" PRId32 ".json", rank);
}

void layout_claim(uint64_t epoch, char ret_name[LAYOUT_NAME_MAX])
{
    (void)snprintf(ret_name, LAYOUT_NAME_MAX, "e%016" PRIx64 ".claim", epoch);
}

void layout_base(uint64_t epoch, char ret_name[LAYOUT_NAME_MAX])
{
    (void)snprintf(ret_name, LAYOUT_NAME_MAX, "e%016" PRIx64 ".base", epoch);
}

static bool epoch_file_parse(const char *name, const char *end, uint64_t *ret_epoch)
{
    const char *p = name;
    uint64_t epoch;
    if (*p++ != 'e' || !take_epoch(&p, &epoch) || strcmp(p, end) != 0)
        return false;
    *ret_epoch = epoch;
    return true;
}

bool layout_claim_parse(const char *name, uint64_t *ret_epoch)
{
    return epoch_file_parse(name, ".claim", ret_epoch);
}

bool layout_base_parse(const char *name, uint64_t *ret_epoch)
{
    return epoch_file_parse(name, ".base", ret_epoch);
}

bool layout_is_tmp(const char *name)
{
    size_t n = strlen(name), tail = strlen(LAYOUT_TMP);
    return n > tail && strcmp(name + n - tail, LAYOUT_TMP) == 0;
}

bool layout_uid_ok(const char *uid)
{
    size_t n = strspn(uid, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
    return n > 0 && n < 64 && uid[n] == '\0' && uid[0] != '.';
}
