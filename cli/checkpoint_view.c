#include "cli/checkpoint_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/line.h"
#include "wire/peer.h"

#define SHAPE_MAX 200

/* ---- the list ---------------------------------------------------------------------------------------------------------- */

static const char *state_color(enum inspect_state state)
{
    return state == INSPECT_COMMITTED ? SGR_GREEN : state == INSPECT_DAMAGED ? SGR_RED : state == INSPECT_RETIRED ? SGR_DIM : SGR_YELLOW;
}

/* What there is to say of it, "" = nothing. */
static void note_of(const struct inspection *i, char *ret, size_t size)
{
    const char *what = "";
    if (i->newest)
        what = "newest";
    else if (i->state == INSPECT_COMMITTED && !i->visible)
        what = "not in the job's history: never restored";
    snprintf(ret, size, "%s%s%s", what, *what && i->base ? ", " : "", i->base ? "base of the newest round" : "");
    size_t at = strlen(ret);
    if ((i->state == INSPECT_PARTIAL || i->state == INSPECT_COMPLETE) && i->world > 0)
        snprintf(ret + at, size - at, "%s%d of %d ranks have written theirs", at ? ", " : "", i->votes, i->world);
    else if (*i->note)
        snprintf(ret + at, size - at, "%s%s", at ? ", " : "", i->note);
    text_make_plain(ret);
}

static void saved_in(const struct inspection *i, char ret[48])
{
    uint64_t epoch = i->generation.id.epoch;
    snprintf(ret, 48, "attempt %" PRIu32 " round %" PRIu32, FENCE_ATTEMPT(epoch), FENCE_ROUND(epoch));
}

static void list_row(const struct inspection *i, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    char size[TEXT_SIZE_MAX], old[VIEW_AGE_MAX], state[16], ranks[16] = "-", epoch[48], note[320];
    struct line l = line_start(out, style->width, style->color);
    snprintf(state, sizeof state, "%-9s", inspect_state_name(i->state));
    if (i->world > 0)
        snprintf(ranks, sizeof ranks, "%d", i->world);
    saved_in(i, epoch);
    note_of(i, note, sizeof note);
    line_textf(&l, "%8" PRId64 "  ", i->generation.id.step);
    line_colored(&l, state_color(i->state), state);
    line_textf(&l, "  %5s  %10s  %5s  %-20s  %s", ranks, text_bytes(i->bytes, size), view_age(i->time_wall_ms, now_ms, old), epoch, note);
    while (out->len > 0 && out->text[out->len - 1] == ' ') /* no note */
        out->text[--out->len] = '\0';
    line_end(&l);
}

void checkpoint_table(const struct inspections *all, const struct view_style *style, int64_t now_wall_ms, struct buf *out)
{
    char title[128];
    struct line l = line_start(out, style->width, style->color);
    snprintf(title, sizeof title, "%8s  %-9s  %5s  %10s  %5s  %-20s  %s", "STEP", "STATE", "RANKS", "SIZE", "AGE", "SAVED IN", "NOTE");
    line_colored(&l, SGR_DIM, title);
    line_end(&l);
    for (size_t i = 0; i < all->count; i++)
        list_row(&all->items[i], style, now_wall_ms, out);
}

static cJSON *inspection_json(const struct inspection *i)
{
    char time[CLOCK_TEXT_MAX], name[LAYOUT_NAME_MAX];
    uint64_t epoch = i->generation.id.epoch;
    cJSON *o = json_object();
    layout_generation(&i->generation, name);
    json_put_int(o, "step", i->generation.id.step);
    json_put_text(o, "state", inspect_state_name(i->state));
    json_put_int(o, "attempt", FENCE_ATTEMPT(epoch));
    json_put_int(o, "round", FENCE_ROUND(epoch));
    json_put_int(o, "ranks", i->world);
    json_put_int(o, "votes", i->votes);
    json_put_int(o, "bytes", (int64_t)i->bytes);
    if (i->time_wall_ms > 0) {
        clock_format(i->time_wall_ms, time);
        json_put_text(o, "time", time);
    }
    json_put_bool(o, "inHistory", i->visible);
    json_put_bool(o, "newest", i->newest);
    json_put_bool(o, "base", i->base);
    json_put_text(o, "directory", name);
    if (*i->note)
        json_put_text(o, "note", i->note);
    return o;
}

cJSON *checkpoint_list_json(const struct inspections *all, const char *volume)
{
    cJSON *o = json_object(), *list = json_array();
    for (size_t i = 0; i < all->count; i++)
        json_append(list, inspection_json(&all->items[i]));
    json_put_text(o, "volume", volume);
    json_put(o, "checkpoints", list);
    return o;
}

/* ---- one step ---------------------------------------------------------------------------------------------------------- */

static const char *numbers(const uint64_t *values, uint32_t dims, char ret[SHAPE_MAX])
{
    size_t at = (size_t)snprintf(ret, SHAPE_MAX, "[");
    for (uint32_t d = 0; d < dims && at < SHAPE_MAX; d++)
        at += (size_t)snprintf(ret + at, SHAPE_MAX - at, "%s%" PRIu64, d > 0 ? ", " : "", values[d]);
    if (at < SHAPE_MAX)
        snprintf(ret + at, SHAPE_MAX - at, "]");
    return ret;
}

static void title(const char *text, const struct view_style *style, struct buf *out)
{
    struct line l = line_start(out, style->width, style->color);
    line_colored(&l, SGR_DIM, text);
    line_end(&l);
}

static void head(const struct checkpoint_step *s, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    const struct inspection *i = s->inspection;
    char size[TEXT_SIZE_MAX], old[VIEW_AGE_MAX], epoch[48], note[320];
    struct line l = line_start(out, style->width, style->color);
    saved_in(i, epoch);
    note_of(i, note, sizeof note);
    line_color(&l, SGR_BOLD);
    line_textf(&l, "step %" PRId64, i->generation.id.step);
    line_color(&l, SGR_RESET);
    line_text(&l, "  ");
    line_colored(&l, state_color(i->state), inspect_state_name(i->state));
    line_textf(&l, "  %d rank%s  %s  %s old  %s", i->world, i->world == 1 ? "" : "s", text_bytes(i->bytes, size),
               view_age(i->time_wall_ms, now_ms, old), epoch);
    if (*note)
        line_textf(&l, "  %s", note);
    line_end(&l);
    buf_addf(out, "%s\n\n", s->directory); /* whole: it is there to be copied */
}

static void images(const struct checkpoint_step *s, const struct view_style *style, struct buf *out)
{
    title("IMAGE         BYTES  CRC64NVME         TENSORS  FILE", style, out);
    for (int32_t i = 0; i < s->tensors->world; i++) {
        char name[LAYOUT_NAME_MAX];
        struct line l = line_start(out, style->width, style->color);
        layout_shard(i, name);
        line_textf(&l, "%5d  %12" PRIu64 "  %016" PRIx64 "  %7zu  %s", i, s->entries[i].bytes, s->entries[i].crc64nvme,
                   s->tensors->headers[i].tensor_count, name);
        line_end(&l);
    }
}

static int name_width(const struct tensors *t)
{
    size_t width = strlen("TENSOR");
    for (size_t i = 0; i < t->count; i++)
        width = strlen(t->items[i].name) > width ? strlen(t->items[i].name) : width;
    return width < 80 ? (int)width : 80;
}

static void tensor_rows(const struct checkpoint_step *s, size_t index, int width, const struct view_style *style, struct buf *out)
{
    const struct tensor *t = &s->tensors->items[index];
    char shape[SHAPE_MAX], offset[SHAPE_MAX];
    auto_free char *name = xstrdup(t->name);
    text_make_plain(name);
    struct line l = line_start(out, style->width, style->color);
    line_textf(&l, "%-*s  %-8s  %14" PRIu64 "  ", width, name, t->dtype, t->bytes);
    bool spread = t->part_count > 1;
    if (s->part_crc32c)
        spread ? line_text(&l, "          ") : line_textf(&l, "%08" PRIx32 "  ", s->part_crc32c[index][0]);
    if (spread)
        line_textf(&l, "%5s  %s", "all", numbers(t->shape, t->dims, shape));
    else
        line_textf(&l, "%5d  %s", t->parts[0].image, numbers(t->shape, t->dims, shape));
    line_end(&l);
    for (size_t k = 0; spread && k < t->part_count; k++) {
        const struct tensor_part *p = &t->parts[k];
        l = line_start(out, style->width, style->color);
        line_textf(&l, "%-*s  %-8s  %14" PRIu64 "  ", width, "", "", p->end - p->begin);
        if (s->part_crc32c)
            line_textf(&l, "%08" PRIx32 "  ", s->part_crc32c[index][k]);
        line_textf(&l, "%5d  %s at %s", p->image, numbers(p->box.shape, t->dims, shape), numbers(p->box.offset, t->dims, offset));
        line_end(&l);
    }
}

void checkpoint_format(const struct checkpoint_step *s, const struct view_style *style, int64_t now_wall_ms, struct buf *out)
{
    head(s, style, now_wall_ms, out);
    if (!s->tensors)
        return;
    int width = name_width(s->tensors);
    char text[160];
    images(s, style, out);
    snprintf(text, sizeof text, "%-*s  %-8s  %14s  %s%5s  %s", width, "TENSOR", "DTYPE", "BYTES", s->part_crc32c ? "CRC32C    " : "", "IMAGE", "SHAPE");
    buf_add(out, "\n");
    title(text, style, out);
    for (size_t i = 0; i < s->tensors->count; i++)
        tensor_rows(s, i, width, style, out);
}

static cJSON *numbers_json(const uint64_t *values, uint32_t dims)
{
    cJSON *array = json_array();
    for (uint32_t d = 0; d < dims; d++)
        json_append(array, cJSON_CreateNumber((double)values[d]));
    return array;
}

static cJSON *tensor_json(const struct checkpoint_step *s, size_t index)
{
    const struct tensor *t = &s->tensors->items[index];
    cJSON *o = json_object(), *parts = json_array();
    json_put_text(o, "name", t->name);
    json_put_text(o, "dtype", t->dtype);
    json_put(o, "shape", numbers_json(t->shape, t->dims));
    json_put_int(o, "bytes", (int64_t)t->bytes);
    for (size_t k = 0; k < t->part_count; k++) {
        const struct tensor_part *p = &t->parts[k];
        char crc[12];
        cJSON *part = json_object();
        json_put_int(part, "image", p->image);
        json_put_int(part, "begin", (int64_t)p->begin);
        json_put_int(part, "end", (int64_t)p->end);
        json_put(part, "offset", numbers_json(p->box.offset, t->dims));
        json_put(part, "shape", numbers_json(p->box.shape, t->dims));
        if (s->part_crc32c) {
            snprintf(crc, sizeof crc, "%08" PRIx32, s->part_crc32c[index][k]);
            json_put_text(part, "crc32c", crc);
        }
        json_append(parts, part);
    }
    json_put(o, "parts", parts);
    return o;
}

static cJSON *image_json(const struct checkpoint_step *s, int32_t image)
{
    const struct safetensors *header = &s->tensors->headers[image];
    char name[LAYOUT_NAME_MAX], crc[20];
    cJSON *o = json_object(), *metadata = json_object();
    layout_shard(image, name);
    json_put_text(o, "file", name);
    json_put_int(o, "bytes", (int64_t)s->entries[image].bytes);
    crc64_format(s->entries[image].crc64nvme, crc);
    json_put_text(o, "crc64nvme", crc);
    for (size_t i = 0; i < header->metadata_count; i++)
        json_put_text(metadata, header->metadata[i].key, header->metadata[i].value);
    json_put(o, "metadata", metadata);
    return o;
}

cJSON *checkpoint_step_json(const struct checkpoint_step *s)
{
    cJSON *o = inspection_json(s->inspection), *list = json_array(), *tensors = json_array();
    json_put_text(o, "path", s->directory);
    for (int32_t i = 0; s->tensors && i < s->tensors->world; i++)
        json_append(list, image_json(s, i));
    for (size_t i = 0; s->tensors && i < s->tensors->count; i++)
        json_append(tensors, tensor_json(s, i));
    json_put(o, "images", list);
    json_put(o, "tensors", tensors);
    return o;
}
