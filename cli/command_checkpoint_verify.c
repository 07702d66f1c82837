#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/tensors.h"
#include "cli/command_checkpoint.h"
#include "cli/progress.h"

struct verify_options { struct checkpoint_words words; };

static const struct opt_def OPTIONS[] = { CHECKPOINT_OPTIONS(struct verify_options, words) };

/* A step as it is verified. */
struct verifying { const struct store *store; struct progress *progress; int problems; };

static int take_piece(void *ctx, uint64_t offset, const uint8_t *bytes, size_t len, struct error *e)
{
    (void)offset;
    (void)bytes;
    (void)e;
    progress_add(((struct verifying *)ctx)->progress, len);
    return 0;
}

static void problem(struct verifying *v, const struct inspection *i, const char *text)
{
    progress_clear(v->progress);
    printf("step %" PRId64 ": %s\n", i->generation.id.step, text);
    fflush(stdout);
    v->problems++;
}

/* Everything that is wrong, not only the first: 0, or -1 when it could not be read. */
static int verify_step(struct verifying *v, const struct inspection *i, struct error *e)
{
    struct step_key key;
    struct error why = ERROR_INIT;
    auto_free struct manifest_entry *entries = NULL;
    auto_tensors struct tensors t = { .items = NULL };
    if (i->state == INSPECT_DAMAGED && i->note[0] != '\0')
        problem(v, i, i->note);
    if (store_check(v->store, &i->generation, &key, &entries, &why) != 0) {
        if (why.kind == ERROR_INVALID && strcmp(why.text, i->note) != 0)
            problem(v, i, why.text);
        *e = why;
        return why.kind == ERROR_INVALID ? 0 : -1;
    }
    if (tensors_read(v->store, &key, entries, &t, &why) != 0) {
        if (why.kind != ERROR_INVALID) {
            *e = why;
            return -1;
        }
        problem(v, i, why.text);
    }
    for (int32_t image = 0; image < key.world; image++)
        if (store_read_image(v->store, &key, entries, image, take_piece, v, NULL, &why) != 0) {
            if (why.kind != ERROR_INVALID) {
                *e = why;
                return -1;
            }
            problem(v, i, why.text);
        }
    return 0;
}

static void good(const struct inspection *i)
{
    char size[TEXT_SIZE_MAX];
    printf("step %" PRId64 ": good, %s in %d image%s\n", i->generation.id.step, text_bytes(i->bytes, size), i->world, i->world == 1 ? "" : "s");
    fflush(stdout);
}

/* The steps that words name, or all that a restart could take. *ret_list: owned, its entries borrowed. */
static int choose(const struct opened *at, int count, char **words, const struct inspection ***ret_list, size_t *ret_count, struct error *e)
{
    auto_free const struct inspection **list = xcalloc(at->all.count + (size_t)count + 1, sizeof *list);
    size_t n = 0;
    bool one = count > 0 || at->where.step;
    for (int k = 0; one && k < (count > 0 ? count : 1); k++)
        if (opened_find(at, count > 0 ? words[k] : NULL, &list[n++], e) != 0)
            return -1;
    for (size_t k = 0; !one && k < at->all.count; k++)
        if (at->all.items[k].state == INSPECT_COMMITTED || at->all.items[k].state == INSPECT_DAMAGED)
            list[n++] = &at->all.items[k];
    if (n == 0)
        return error_set(e, ERROR_NOT_FOUND, "%s: no step is committed here", at->store.volume->name);
    for (size_t k = 0; k < n; k++)
        if (list[k]->state != INSPECT_COMMITTED && list[k]->state != INSPECT_DAMAGED)
            return error_set(e, ERROR_NOT_FOUND, "step %" PRId64 " is not committed (%s): there is nothing to hold it against",
                             list[k]->generation.id.step, inspect_state_name(list[k]->state));
    *ret_list = TAKE(list);
    *ret_count = n;
    return 0;
}

static int verify_all(const struct opened *at, const struct inspection *const *list, size_t count)
{
    struct verifying v = { .store = &at->store };
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += list[i]->bytes;
    v.progress = progress_new("verify", total);
    for (size_t i = 0; i < count; i++) {
        struct error e = ERROR_INIT;
        int before = v.problems;
        if (verify_step(&v, list[i], &e) != 0) {
            progress_free(v.progress);
            return command_fail(CHECKPOINT_VERIFY.name, COMMAND_CANNOT_RUN, &e);
        }
        progress_clear(v.progress);
        if (v.problems == before)
            good(list[i]);
    }
    progress_free(v.progress);
    return v.problems > 0 ? COMMAND_JOB_FAILED : COMMAND_OK;
}

static int verify(int argc, char **argv)
{
    struct verify_options o = { .words = { NULL } };
    struct error e = ERROR_INIT;
    auto_opened struct opened at = OPENED_INIT;
    auto_free const struct inspection **list = NULL;
    size_t count = 0;
    int next, code;
    if (!command_parse(&CHECKPOINT_VERIFY, argc, argv, false, &o, &next, &code))
        return code;
    if (opened_init(next < argc ? argv[next] : NULL, &o.words, &at, &e) != 0)
        return command_fail(CHECKPOINT_VERIFY.name, command_code(&e), &e);
    int words = argc - next > 1 ? argc - next - 1 : 0;
    if (choose(&at, words, argv + next + 1, &list, &count, &e) != 0)
        return command_fail(CHECKPOINT_VERIFY.name, COMMAND_CANNOT_RUN, &e);
    return verify_all(&at, list, count);
}

const struct command CHECKPOINT_VERIFY = {
    .name = "checkpoint verify", .summary = "read every byte of committed steps against their checksums", .run = verify, .takes = WORDS_JOB,
    .usage = "checkpoint verify [WHERE [STEP...]]",
    .about = "Without STEP all that are committed. What is broken is told on standard output, a line each: the file, the 4 MiB in it, both\n"
             "checksums; also a manifest that is not the one committed, and images that do not make up a state together.\n\n" WHERE_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster checkpoint verify mnist latest",
    .notes = "Exit codes: 0 all is good, 1 something is broken, 2 bad usage, 3 there is no such step, or it cannot be read.",
};
