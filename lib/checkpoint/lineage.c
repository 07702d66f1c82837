#include "checkpoint/lineage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t lineage_head(const struct lineage *l)
{
    return l->count > 0 ? l->links[0].epoch : 0;
}

bool lineage_visible(const struct lineage *l, struct checkpoint_id id)
{
    if (l->count == 0)
        return false;
    if (id.epoch == l->links[0].epoch)
        return true;
    for (size_t i = 0; i < l->count && l->links[i].has_base; i++)
        if (l->links[i].base.epoch == id.epoch)
            return id.step <= l->links[i].base.step;
    return false;
}

bool lineage_has_base(const struct lineage *l, struct checkpoint_id id)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->links[i].has_base && checkpoint_id_equal(l->links[i].base, id))
            return true;
    return false;
}

void lineage_push(struct lineage *l, uint64_t epoch, const struct checkpoint_id *base)
{
    /* Epochs that were left without having been restored from are not part of the new history. */
    size_t from = 0;
    while (base != NULL && from < l->count && l->links[from].epoch != base->epoch)
        from++;
    size_t kept = base == NULL ? 0 : l->count - from;
    if (kept > LINEAGE_MAX - 1)
        kept = LINEAGE_MAX - 1;
    memmove(&l->links[1], &l->links[from], kept * sizeof(l->links[0]));
    l->links[0] = (struct lineage_link){ .epoch = epoch, .has_base = base != NULL };
    if (base != NULL)
        l->links[0].base = *base;
    l->count = kept + 1;
}

void lineage_adopt(struct lineage *l, const struct lineage *other)
{
    if (lineage_head(other) > lineage_head(l))
        *l = *other;
}

void epoch_format(uint64_t epoch, char ret_text[24])
{
    (void)snprintf(ret_text, 24, "%" PRIu64, epoch);
}

bool epoch_parse(const char *text, uint64_t *ret_epoch)
{
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return false;
    *ret_epoch = value;
    return true;
}

cJSON *lineage_encode(const struct lineage *l)
{
    cJSON *array = json_array();
    for (size_t i = 0; i < l->count; i++) {
        char text[24];
        cJSON *link = json_object();
        epoch_format(l->links[i].epoch, text);
        json_put_text(link, "epoch", text);
        if (l->links[i].has_base) {
            epoch_format(l->links[i].base.epoch, text);
            json_put_text(link, "base_epoch", text);
            json_put_int(link, "base_step", l->links[i].base.step);
        }
        json_append(array, link);
    }
    return array;
}

int lineage_decode(const cJSON *array, struct lineage *ret_lineage, struct error *e)
{
    struct lineage l = { .count = 0 };
    if (array == NULL || !cJSON_IsArray(array))
        return error_set(e, ERROR_INVALID, "lineage: expected an array");
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        if (l.count == LINEAGE_MAX)
            return error_set(e, ERROR_LIMIT, "lineage: more than %d epochs", LINEAGE_MAX);
        struct lineage_link *link = &l.links[l.count];
        if (!epoch_parse(json_text(item, "epoch", NULL), &link->epoch))
            return error_set(e, ERROR_INVALID, "lineage[%zu].epoch: expected a decimal string", l.count);
        link->has_base = json_at(item, "base_epoch") != NULL;
        if (link->has_base) {
            link->base.step = json_int(item, "base_step", -1);
            if (!epoch_parse(json_text(item, "base_epoch", NULL), &link->base.epoch) || link->base.step < 0)
                return error_set(e, ERROR_INVALID, "lineage[%zu]: expected base_epoch as a decimal string and base_step >= 0", l.count);
            if (link->base.epoch >= link->epoch)
                return error_set(e, ERROR_INVALID, "lineage[%zu]: an epoch cannot be based on itself or a later one", l.count);
        }
        if (l.count > 0 && (!link[-1].has_base || link[-1].base.epoch != link->epoch))
            return error_set(e, ERROR_INVALID, "lineage[%zu]: epoch %" PRIu64 " is not what the one before it is based on", l.count,
                             link->epoch);
        l.count++;
    }
    *ret_lineage = l;
    return 0;
}
