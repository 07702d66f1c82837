/* checkpoint ls, checkpoint show. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc.h"
#include "base/mem.h"
#include "cli/checkpoint_view.h"
#include "cli/command_checkpoint.h"
#include "cli/progress.h"
#include "cli/screen.h"

static const char *const OUTPUTS[] = { "text", "json", NULL };
enum output_format { AS_TEXT, AS_JSON };

struct show_options { struct checkpoint_words words; int output; bool crc32c; };

#define AT(field, type) OPT_AT(struct show_options, field, type)
#define OUTPUT_ROW { .flag = "output", .letter = 'o', .def = "text", .type = OPT_ENUM, .at = AT(output, int), .names = OUTPUTS, .value = "FORMAT", \
                     .help = "how it is printed" }

static const struct opt_def LS_OPTIONS[] = { OUTPUT_ROW, CHECKPOINT_OPTIONS(struct show_options, words) };
static const struct opt_def SHOW_OPTIONS[] = {
    OUTPUT_ROW,
    { .flag = "crc32c", .type = OPT_BOOL, .at = AT(crc32c, bool), .help = "the CRC32C of every tensor, too: reads all images" },
    CHECKPOINT_OPTIONS(struct show_options, words),
};

static void print_tree(cJSON *tree /* taken */)
{
    auto_json cJSON *held = tree;
    auto_free char *text = json_print(held, true);
    puts(text);
}

static int ls(int argc, char **argv)
{
    struct show_options o = { .output = AS_TEXT };
    struct error e = ERROR_INIT;
    auto_opened struct opened at = OPENED_INIT;
    int next, code;
    if (!command_parse(&CHECKPOINT_LS, argc, argv, false, &o, &next, &code))
        return code;
    if (argc - next > 1) {
        (void)error_set(&e, ERROR_INVALID, "one place at a time: \"%.80s\" is too much", argv[next + 1]);
        return command_usage(CHECKPOINT_LS.name, &e);
    }
    if (opened_init(next < argc ? argv[next] : NULL, &o.words, &at, &e) != 0)
        return command_fail(CHECKPOINT_LS.name, command_code(&e), &e);
    if (o.output == AS_JSON) {
        print_tree(checkpoint_list_json(&at.all, at.store.volume->name));
        return COMMAND_OK;
    }
    struct view_style style = screen_stdout_style();
    auto_buf struct buf text = BUF_INIT(64u << 20);
    checkpoint_table(&at.all, &style, clock_wall_ms(), &text);
    fputs(buf_text(&text), stdout);
    if (at.all.scan.damage.kind != ERROR_NONE)
        fprintf(stderr, "ringmaster checkpoint ls: the history cannot be read whole, newer steps are in none: %s\n", at.all.scan.damage.text);
    return COMMAND_OK;
}

/* ---- checksums of tensors ---------------------------------------------------------------------------------------------- */

/* Parts of one image as their bytes come by. */
struct summing { const struct tensors *t; int32_t image; uint32_t **crcs; struct progress *progress; };

static int sum_piece(void *ctx, uint64_t offset, const uint8_t *bytes, size_t len, struct error *e)
{
    struct summing *s = ctx;
    (void)e;
    for (size_t i = 0; i < s->t->count; i++)
        for (size_t k = 0; k < s->t->items[i].part_count; k++) {
            const struct tensor_part *p = &s->t->items[i].parts[k];
            uint64_t from = p->begin > offset ? p->begin : offset, to = p->end < offset + len ? p->end : offset + len;
            if (p->image == s->image && from < to)
                s->crcs[i][k] = crc32c(s->crcs[i][k], bytes + (from - offset), (size_t)(to - from));
        }
    progress_add(s->progress, len);
    return 0;
}

static int sum_tensors(const struct store *store, const struct step_key *key, const struct manifest_entry *entries, const struct tensors *t,
                       uint32_t **crcs, struct error *e)
{
    struct summing s = { .t = t, .crcs = crcs };
    uint64_t total = 0;
    int result = 0;
    for (int32_t i = 0; i < key->world; i++)
        total += entries[i].bytes;
    s.progress = progress_new("reading", total);
    for (s.image = 0; s.image < key->world && result == 0; s.image++)
        result = store_read_image(store, key, entries, s.image, sum_piece, &s, NULL, e);
    progress_free(s.progress);
    return result;
}

/* ---- show -------------------------------------------------------------------------------------------------------------- */

static void print_step(const struct checkpoint_step *step, int output)
{
    if (output == AS_JSON) {
        print_tree(checkpoint_step_json(step));
        return;
    }
    struct view_style style = screen_stdout_style();
    auto_buf struct buf text = BUF_INIT(256u << 20);
    checkpoint_format(step, &style, clock_wall_ms(), &text);
    fputs(buf_text(&text), stdout);
}

static int show_step(const struct opened *at, const struct inspection *i, const struct show_options *o, struct error *e)
{
    struct step_key key;
    auto_free struct manifest_entry *entries = NULL;
    auto_tensors struct tensors t = { .items = NULL };
    auto_free char *directory = NULL;
    store_generation_path(&at->store, &i->generation, &directory);
    struct checkpoint_step step = { .inspection = i, .directory = directory };
    if (i->state != INSPECT_COMMITTED) { /* what its images are is not vouched for */
        print_step(&step, o->output);
        return 0;
    }
    if (store_check(&at->store, &i->generation, &key, &entries, e) != 0 || tensors_read(&at->store, &key, entries, &t, e) != 0)
        return -1;
    uint32_t **crcs = xcalloc(t.count + 1, sizeof *crcs);
    for (size_t k = 0; k < t.count; k++)
        crcs[k] = xcalloc(t.items[k].part_count, sizeof **crcs);
    int result = o->crc32c ? sum_tensors(&at->store, &key, entries, &t, crcs, e) : 0;
    step.entries = entries;
    step.tensors = &t;
    step.part_crc32c = o->crc32c ? (const uint32_t *const *)crcs : NULL;
    if (result == 0)
        print_step(&step, o->output);
    for (size_t k = 0; k < t.count; k++)
        free(crcs[k]);
    free(crcs);
    return result;
}

static int show(int argc, char **argv)
{
    struct show_options o = { .output = AS_TEXT };
    struct error e = ERROR_INIT;
    auto_opened struct opened at = OPENED_INIT;
    const struct inspection *i;
    int next, code;
    if (!command_parse(&CHECKPOINT_SHOW, argc, argv, false, &o, &next, &code))
        return code;
    if (argc - next > 2) {
        (void)error_set(&e, ERROR_INVALID, "one step at a time: \"%.80s\" is too much", argv[next + 2]);
        return command_usage(CHECKPOINT_SHOW.name, &e);
    }
    if (opened_init(next < argc ? argv[next] : NULL, &o.words, &at, &e) != 0)
        return command_fail(CHECKPOINT_SHOW.name, command_code(&e), &e);
    if (opened_find(&at, argc - next > 1 ? argv[next + 1] : NULL, &i, &e) != 0)
        return command_fail(CHECKPOINT_SHOW.name, COMMAND_CANNOT_RUN, &e);
    if (show_step(&at, i, &o, &e) == 0)
        return COMMAND_OK;
    return command_fail(CHECKPOINT_SHOW.name, e.kind == ERROR_INVALID ? COMMAND_JOB_FAILED : COMMAND_CANNOT_RUN, &e);
}

const struct command CHECKPOINT_LS = {
    .name = "checkpoint ls", .summary = "list the steps of a job: what counts, what does not, and why", .run = ls, .takes = WORDS_JOB,
    .usage = "checkpoint ls [WHERE] [--job UID] [-o json]",
    .about = "A step is committed when all ranks' parts of it are on the volume; complete: only the commit is missing, and the next start makes\n"
             "up for it; partial: being saved, or left by a crash; aborted; retired: about to be removed; damaged: a reader found it so.\n"
             "RANKS is the number that saved it. Nothing is read but names, sizes and manifests.\n\n" WHERE_RULE,
    .options = LS_OPTIONS, .option_count = COUNT(LS_OPTIONS),
    .examples = "ringmaster checkpoint ls mnist\nringmaster checkpoint ls /ckpt --job 0b7c2f6e-95d1-4f0e-8a36-0d7f4d1c6f52 -o json",
    .notes = "Exit codes: 0 listed, 2 bad usage, 3 there are no checkpoints, or they cannot be read.",
};

const struct command CHECKPOINT_SHOW = {
    .name = "checkpoint show", .summary = "show a step: its images with their checksums, its tensors and who has which part", .run = show,
    .takes = WORDS_JOB,
    .usage = "checkpoint show [WHERE [STEP]] [--crc32c] [-o json]",
    .about = "STEP is a number or the name of its directory; the newest committed one where there is none. Of a tensor that is spread over\n"
             "ranks every part is shown with its box. Headers are checked against the manifest; the tensors' bytes are read with --crc32c alone.\n\n"
             WHERE_RULE,
    .options = SHOW_OPTIONS, .option_count = COUNT(SHOW_OPTIONS),
    .examples = "ringmaster checkpoint show mnist 1200",
    .notes = "Exit codes: 0 shown, 1 it is damaged, 2 bad usage, 3 there is no such step, or it cannot be read.",
};
