#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/checkpoint_prune.h"
#include "cli/command_checkpoint.h"

struct options { struct checkpoint_words words; int64_t keep, keep_every; bool dry_run; };

#define AT(field, type) OPT_AT(struct options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "keep", .type = OPT_INT, .at = AT(keep, int64_t), .min = 0, .max = 1000000, .value = "N", .help = "the newest N committed steps stay" },
    { .flag = "keep-every", .type = OPT_INT, .at = AT(keep_every, int64_t), .min = 0, .max = INT64_MAX, .value = "K",
      .help = "so do steps that K divides" },
    { .flag = "dry-run", .type = OPT_BOOL, .at = AT(dry_run, bool), .help = "only say what would go" },
    CHECKPOINT_OPTIONS(struct options, words),
};

/* Out of readers' sight first, then gone: one that has just begun on it finds that it is retired. */
static int remove_one(const struct store *s, const struct inspection *i, struct error *e)
{
    if ((i->state == INSPECT_COMMITTED || i->state == INSPECT_DAMAGED) && store_retire(s, &i->generation, e) != 0)
        return -1;
    return store_remove(s, &i->generation, e);
}

/* Uploads to a bucket whose writers died, besides. */
static int sweep(const struct opened *at, struct error *e)
{
    struct volume *v = at->store.volume;
    return v->ops->sweep ? v->ops->sweep(v, lineage_head(&at->all.scan.lineage), e) : 0;
}

static int prune_all(const struct opened *at, const bool *goes, bool dry_run)
{
    struct error failed = ERROR_INIT;
    char size[TEXT_SIZE_MAX];
    uint64_t bytes = 0;
    size_t gone = 0, kept = 0;
    for (size_t i = at->all.count; i-- > 0;) { /* oldest first: what is cut short has taken what is wanted least */
        const struct inspection *item = &at->all.items[i];
        struct error e = ERROR_INIT;
        if (!goes[i]) {
            kept++;
            continue;
        }
        if (!dry_run && remove_one(&at->store, item, &e) != 0)
            return command_fail(CHECKPOINT_PRUNE.name, COMMAND_CANNOT_RUN, &e);
        printf("step %" PRId64 " (%s, %s) %s\n", item->generation.id.step, inspect_state_name(item->state), text_bytes(item->bytes, size),
               dry_run ? "would go" : "removed");
        bytes += item->bytes;
        gone++;
    }
    if (!dry_run && sweep(at, &failed) != 0)
        return command_fail(CHECKPOINT_PRUNE.name, COMMAND_CANNOT_RUN, &failed);
    printf("%zu %s, %s; %zu stay%s\n", gone, dry_run ? "would go" : "removed", text_bytes(bytes, size), kept, kept == 1 ? "s" : "");
    return COMMAND_OK;
}

static int prune(int argc, char **argv)
{
    struct options o = { .keep = 0 };
    struct error e = ERROR_INIT;
    auto_opened struct opened at = OPENED_INIT;
    int next, code;
    if (!command_parse(&CHECKPOINT_PRUNE, argc, argv, false, &o, &next, &code))
        return code;
    if (argc - next > 1)
        (void)error_set(&e, ERROR_INVALID, "one place at a time: \"%.80s\" is too much", argv[next + 1]);
    else if (o.keep == 0 && o.keep_every == 0)
        (void)error_set(&e, ERROR_INVALID, "what is to stay? give --keep N, --keep-every K, or both");
    if (e.kind != ERROR_NONE)
        return command_usage(CHECKPOINT_PRUNE.name, &e);
    if (opened_init(next < argc ? argv[next] : NULL, &o.words, &at, &e) != 0)
        return command_fail(CHECKPOINT_PRUNE.name, command_code(&e), &e);
    if (at.all.scan.damage.kind != ERROR_NONE) {
        (void)error_set(&e, ERROR_INVALID, "the history cannot be read, so it is not known what a restart needs; nothing was removed: %.200s",
                        at.all.scan.damage.text);
        return command_fail(CHECKPOINT_PRUNE.name, COMMAND_CANNOT_RUN, &e);
    }
    auto_free bool *goes = xcalloc(at.all.count + 1, sizeof *goes);
    checkpoint_prune(&at.all, o.keep, o.keep_every, goes);
    return prune_all(&at, goes, o.dry_run);
}

const struct command CHECKPOINT_PRUNE = {
    .name = "checkpoint prune", .summary = "remove old steps; never the newest one that is whole", .run = prune, .takes = WORDS_JOB,
    .usage = "checkpoint prune [WHERE] --keep N [--keep-every K] [--dry-run]",
    .about = "The rules are those by which a running job removes its own (spec.checkpoint.keepLast), so it may run meanwhile. What stays besides:\n"
             "the newest whole step of the history, what the newest two rounds began from, whatever may still be on its way. Damaged steps and\n"
             "those that no restart would take go, too, once enough good ones are there.\n\n" WHERE_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster checkpoint prune mnist --keep 3 --keep-every 1000 --dry-run",
    .notes = "Exit codes: 0 done, 2 bad usage, 3 there are no checkpoints, or they cannot be removed.",
};
