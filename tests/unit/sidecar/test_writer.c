/* test_store.c — the volume: a crash at every system call, stale coordinators, what a reader sees. */
#include <criterion/criterion.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "checkpoint_group.h"
#include "sidecar/checkpoint/internal.h"

#define DATA 20000u
#define EPOCH 0x100000001ull
#define WORLD 2

struct bench { char dir[64]; struct store store; int images[WORLD]; };

/* An image of a step, as it stands behind the control page of a slot. No check of Criterion's in it: it runs in forked lives
 * too, which would speak to Criterion in the name of a process that it does not know. */
static int image_of(const struct bench *b, int32_t rank, int64_t step)
{
    auto_free char *path = xasprintf("%s/image-%d-%d", b->dir, (int)rank, (int)step);
    auto_free uint8_t *image = xcalloc(1, IMAGE_HEADER + DATA);
    image_fill(image, rank, step, DATA);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || pwrite(fd, image, IMAGE_HEADER + DATA, 0) != (ssize_t)(IMAGE_HEADER + DATA))
        abort();
    return fd;
}

static void bench_init(struct bench *b)
{
    struct error e = ERROR_INIT;
    log_setup("test", NULL, LOG_ERROR + 1, false);
    (void)snprintf(b->dir, sizeof(b->dir), "/dev/shm/rm-store-XXXXXX");
    cr_assert(mkdtemp(b->dir) != NULL);
    auto_free char *volume = fs_join(b->dir, "volume");
    cr_assert(store_init(&b->store, volume, GROUP_UID, NULL, &e) == 0);
}

static void bench_release(struct bench *b)
{
    struct error e = ERROR_INIT;
    store_release(&b->store);
    cr_assert(fs_remove_tree(b->dir, &e) == 0, "%s", e.text);
}

static int claim(const struct bench *b, uint64_t fence, struct claim *ret_claim, struct error *e)
{
    struct holdings none[WORLD] = { { .slot_count = 0 } };
    uint64_t claimed;
    char nonce[LAYOUT_NONCE_MAX];
    *ret_claim = (struct claim){ .fence = fence, .world = WORLD, .member = "chief-0", .by_rank = none };
    return claim_run(&b->store, ret_claim, &claimed, nonce, e);
}

static int claim_older(const struct bench *b, uint64_t fence, struct claim *ret_claim, struct error *e)
{
    struct holdings none[WORLD] = { { .slot_count = 0 } };
    uint64_t claimed;
    char nonce[LAYOUT_NONCE_MAX];
    *ret_claim = (struct claim){ .fence = fence, .world = WORLD, .member = "chief-0", .by_rank = none, .skip_newest = true };
    return claim_run(&b->store, ret_claim, &claimed, nonce, e);
}

static int persist(const struct bench *b, const struct step_key *key, int32_t rank, struct error *e)
{
    struct vote v = { .rank = rank };
    auto_close int fd = image_of(b, rank, key->generation.id.step);
    if (store_persist(&b->store, key, rank, fd, 0, IMAGE_HEADER + DATA, &v, e) != 0)
        return -1;
    vote_release(&v);
    return 0;
}

static int prepare(const struct bench *b, uint64_t epoch, int64_t step, struct step_key *ret_key, struct error *e)
{
    bool committed;
    *ret_key = (struct step_key){ .job = GROUP_UID, .world = WORLD };
    return store_prepare(&b->store, (struct checkpoint_id){ epoch, step }, &ret_key->generation, &committed, e);
}

static int save(const struct bench *b, uint64_t epoch, int64_t step, struct error *e)
{
    struct step_key key;
    if (prepare(b, epoch, step, &key, e) != 0)
        return -1;
    for (int32_t rank = 0; rank < WORLD; rank++)
        if (persist(b, &key, rank, e) != 0)
            return -1;
    return store_commit(&b->store, &key, epoch, e);
}

/* Every rank's image of this step, to the last byte. */
static bool reads(const struct bench *b, uint64_t epoch, int64_t step)
{
    struct store_scan scan;
    struct error e = ERROR_INIT;
    bool good = false;
    cr_assert(store_scan(&b->store, &scan, &e) == 0);
    for (size_t i = 0; i < scan.count; i++) {
        const struct store_generation *g = &scan.generations[i];
        if (g->generation.id.step != step || g->generation.id.epoch != epoch || g->state != GENERATION_COMMITTED)
            continue;
        good = true;
        for (int32_t rank = 0; rank < WORLD; rank++) {
            auto_close int fd = -1;
            uint64_t bytes;
            uint8_t found[IMAGE_HEADER + DATA], expected[IMAGE_HEADER + DATA];
            image_fill(expected, rank, step, DATA);
            good = good && store_open_image(&b->store, &g->generation, rank, WORLD, &fd, &bytes, &e) == 0 && bytes == sizeof(found) &&
                   read(fd, found, sizeof(found)) == (ssize_t)sizeof(found) && memcmp(found, expected, sizeof(found)) == 0;
        }
    }
    store_scan_release(&scan);
    return good;
}

static int count(const struct bench *b, const char *what)
{
    auto_free char *command = xasprintf("find %s/volume -name '%s' | wc -l", b->dir, what);
    FILE *f = popen(command, "r");
    int n = -1;
    cr_assert(f != NULL && fscanf(f, "%d", &n) == 1 && pclose(f) == 0);
    return n;
}

struct bomb { int left, asked; };

static int count_down(void *ctx, const char *operation, const char *path)
{
    struct bomb *b = ctx;
    (void)operation;
    (void)path;
    b->asked++;
    if (--b->left == 0)
        _exit(77);
    return 0;
}

static bool never(void *ctx, struct checkpoint_id id)
{
    (void)ctx;
    (void)id;
    return false;
}

/* A life of a coordinator and its members: claim, save a step, tidy. Dies before its k-th change of the volume. Returns whether
 * it got to the end. */
static bool life(const struct bench *b, uint64_t epoch, int64_t step, int k)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct bomb bomb = { .left = k };
        struct claim c;
        struct error e = ERROR_INIT;
        fault_set(count_down, &bomb);
        bool ok = claim(b, epoch, &c, &e) == 0 && save(b, epoch, step, &e) == 0 &&
                  store_tidy(&b->store, &c.known, 2, never, NULL, &e) == 0;
        if (!ok)
            fprintf(stderr, "life at %d: %s\n", k, e.text);
        _exit(ok ? 0 : 1);
    }
    int status;
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    cr_assert(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77, "died at %d with %d", k, WEXITSTATUS(status));
    return WEXITSTATUS(status) == 0;
}

Test(store, a_crash_before_any_change_of_the_volume_leaves_the_old_or_the_new_step, .timeout = 120)
{
    int old = 0, new = 0, k = 1;
    for (bool done = false; !done; k++) {
        struct bench b;
        struct claim c;
        struct error e = ERROR_INIT;
        bench_init(&b);
        cr_assert(claim(&b, EPOCH, &c, &e) == 0 && save(&b, EPOCH, 10, &e) == 0, "%s", e.text);
        done = life(&b, EPOCH + 1, 20, k);
        cr_assert(claim(&b, EPOCH + 2, &c, &e) == 0, "crash at %d: %s", k, e.text);
        cr_assert(c.ret_restore.found && (c.ret_restore.step == 10 || c.ret_restore.step == 20), "crash at %d", k);
        cr_expect(!done || c.ret_restore.step == 20);
        old += c.ret_restore.step == 10;
        new += c.ret_restore.step == 20;
        cr_expect(reads(&b, c.ret_restore.epoch, c.ret_restore.step), "crash at %d: step %d", k, (int)c.ret_restore.step);
        cr_assert(store_tidy(&b.store, &c.known, 2, never, NULL, &e) == 0, "%s", e.text);
        cr_expect(count(&b, "*.tmp") == 0, "crash at %d leaves nothing behind", k);
        cr_expect(count(&b, "s0*") == count(&b, "COMMIT"), "crash at %d leaves no half generation", k);
        bench_release(&b);
    }
    cr_expect(k > 40 && old > 20 && new > 3, "%d places, %d old, %d new", k - 1, old, new);
}

Test(store, a_crash_while_old_ones_are_removed_loses_nothing_that_counts, .timeout = 120)
{
    for (int k = 1;; k++) {
        struct bench b;
        struct claim c;
        struct error e = ERROR_INIT;
        bench_init(&b);
        cr_assert(claim(&b, EPOCH, &c, &e) == 0);
        for (int64_t step = 10; step <= 50; step += 10)
            cr_assert(save(&b, EPOCH, step, &e) == 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct bomb bomb = { .left = k };
            fault_set(count_down, &bomb);
            for (int pass = 0; pass < 2; pass++)
                if (store_tidy(&b.store, &c.known, 2, never, NULL, &e) != 0)
                    _exit(1);
            _exit(0);
        }
        int status;
        cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
        cr_expect(reads(&b, EPOCH, 50) && reads(&b, EPOCH, 40), "crash at %d", k);
        for (int pass = 0; pass < 2; pass++)
            cr_assert(store_tidy(&b.store, &c.known, 2, never, NULL, &e) == 0, "%s", e.text);
        cr_expect(count(&b, "s0*") == 2 && count(&b, "*.tmp") == 0, "crash at %d: %d left", k, count(&b, "s0*"));
        bench_release(&b);
        if (WEXITSTATUS(status) == 0)
            break;
    }
}

Test(store, what_a_stalled_coordinator_commits_late_is_in_nobodys_history, .timeout = 60)
{
    struct bench b;
    struct claim c;
    struct error e = ERROR_INIT;
    struct step_key late;
    bench_init(&b);
    cr_assert(claim(&b, EPOCH, &c, &e) == 0 && save(&b, EPOCH, 20, &e) == 0);
    cr_assert(prepare(&b, EPOCH, 30, &late, &e) == 0 && persist(&b, &late, 0, &e) == 0);
    cr_assert(claim(&b, EPOCH + 1, &c, &e) == 0 && c.ret_restore.step == 20, "rank 1 has not voted for 30");
    cr_assert(persist(&b, &late, 1, &e) == 0);
    cr_expect(store_commit(&b.store, &late, EPOCH, &e) != 0 && e.kind == ERROR_GONE, "it looks before it commits: %s", e.text);
    cr_assert(store_commit(&b.store, &late, EPOCH + 1, &e) == 0, "it was stopped just behind that look");
    cr_expect(reads(&b, EPOCH, 30), "the step counts for a reader that knows no history");
    cr_assert(save(&b, EPOCH + 1, 25, &e) == 0);
    cr_assert(claim(&b, EPOCH + 2, &c, &e) == 0);
    cr_expect(c.ret_restore.step == 25 && c.ret_restore.epoch == EPOCH + 1, "step %d", (int)c.ret_restore.step);
    /* Its retention does not touch what the newer one has. */
    struct lineage stale = { .count = 0 };
    lineage_push(&stale, EPOCH, NULL);
    cr_expect(store_tidy(&b.store, &stale, 1, never, NULL, &e) != 0 && e.kind == ERROR_GONE);
    cr_expect(reads(&b, EPOCH + 1, 25) && reads(&b, EPOCH, 20));
    /* Ours takes the orphan away when enough good ones are there. */
    for (int pass = 0; pass < 2; pass++)
        cr_assert(store_tidy(&b.store, &c.known, 1, never, NULL, &e) == 0, "%s", e.text);
    cr_expect(!reads(&b, EPOCH, 30) && reads(&b, EPOCH + 1, 25));
    bench_release(&b);
}

Test(store, of_two_that_claim_one_epoch_one_gets_it, .timeout = 60)
{
    struct bench b;
    struct error e = ERROR_INIT;
    bench_init(&b);
    cr_expect(store_claim(&b.store, 7, "chief-0", "0123456789abcdef0123456789abcdef", 2, &e) == 0, "%s", e.text);
    cr_expect(store_claim(&b.store, 7, "chief-0", "f123456789abcdef0123456789abcdef", 2, &e) != 0 && e.kind == ERROR_CONFLICT);
    char name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len;
    layout_claim(7, name);
    auto_free char *path = xasprintf("%s/" LAYOUT_EPOCHS "/%s", b.store.volume->name, name);
    cr_assert(fs_read(path, 4096, &text, &len, &e) == 0);
    cr_expect(claim_check(text, len, GROUP_UID, 7, "0123456789abcdef0123456789abcdef", &e) == 0, "%s", e.text);
    cr_expect(claim_check(text, len, GROUP_UID, 7, "f123456789abcdef0123456789abcdef", &e) != 0 && e.kind == ERROR_CONFLICT);
    cr_expect(claim_check(text, len, "another", 7, NULL, &e) != 0 && e.kind == ERROR_INVALID);
    bench_release(&b);
}

Test(store, an_epoch_that_died_before_its_base_is_void, .timeout = 60)
{
    struct bench b;
    struct claim c;
    struct error e = ERROR_INIT;
    bench_init(&b);
    cr_assert(claim(&b, EPOCH, &c, &e) == 0 && save(&b, EPOCH, 10, &e) == 0);
    cr_assert(store_claim(&b.store, EPOCH + 1, "chief-0", "0123456789abcdef0123456789abcdef", 2, &e) == 0);
    cr_expect(claim(&b, EPOCH + 1, &c, &e) != 0 && e.kind == ERROR_CONFLICT, "%s", e.text);
    cr_assert(claim(&b, EPOCH + 2, &c, &e) == 0, "%s", e.text);
    cr_expect(c.ret_restore.found && c.ret_restore.step == 10 && c.ret_restore.epoch == EPOCH);
    bench_release(&b);
}

Test(store, a_vote_is_given_once, .timeout = 60)
{
    struct bench b;
    struct claim c;
    struct error e = ERROR_INIT;
    struct step_key key, again;
    struct vote first = { .rank = 0 }, second = { .rank = 0 };
    bench_init(&b);
    cr_assert(claim(&b, EPOCH, &c, &e) == 0 && prepare(&b, EPOCH, 10, &key, &e) == 0);
    auto_close int fd = image_of(&b, 0, 10);
    cr_assert(store_persist(&b.store, &key, 0, fd, 0, IMAGE_HEADER + DATA, &first, &e) == 0);
    cr_assert(prepare(&b, EPOCH, 10, &again, &e) == 0);
    cr_expect(strcmp(key.generation.nonce, again.generation.nonce) == 0, "a new coordinator goes on in the same place");
    cr_assert(store_persist(&b.store, &again, 0, fd, 0, IMAGE_HEADER + DATA, &second, &e) == 0);
    cr_expect(first.crc64nvme == second.crc64nvme && first.bytes == second.bytes);
    vote_release(&first);
    vote_release(&second);
    cr_expect(store_commit(&b.store, &key, EPOCH, &e) != 0 && strstr(e.text, "vote-00001") != NULL, "rank 1 has not: %s", e.text);
    cr_expect(!reads(&b, EPOCH, 10));
    bench_release(&b);
}

Test(store, two_jobs_in_one_directory_do_not_see_each_other, .timeout = 60)
{
    struct bench b;
    struct claim c;
    struct error e = ERROR_INIT;
    struct store other;
    struct store_scan scan;
    bench_init(&b);
    cr_assert(claim(&b, EPOCH, &c, &e) == 0 && save(&b, EPOCH, 10, &e) == 0);
    auto_free char *volume = fs_join(b.dir, "volume");
    cr_assert(store_init(&other, volume, "another-uid", NULL, &e) == 0);
    cr_assert(store_scan(&other, &scan, &e) == 0);
    cr_expect(scan.count == 0 && scan.newest_claim == 0);
    store_scan_release(&scan);
    store_release(&other);
    cr_expect(store_init(&other, volume, "../evil", NULL, &e) != 0 && e.kind == ERROR_INVALID);
    bench_release(&b);
}

/* A file system that is really full. Needs the right to mount; the injected faults of test_checkpoint.c need none. */
Test(store, a_full_file_system_is_an_error_and_leaves_room_for_what_is_committed, .timeout = 60)
{
    struct bench b;
    struct claim c;
    struct error e = ERROR_INIT;
    bench_init(&b);
    auto_free char *volume = fs_join(b.dir, "volume");
    cr_assert(mkdir(volume, 0755) == 0);
    if (mount("tmpfs", volume, "tmpfs", 0, "size=192k") != 0) {
        bench_release(&b);
        cr_skip("mounting is not allowed here");
    }
    cr_assert(claim(&b, EPOCH, &c, &e) == 0, "%s", e.text);
    cr_assert(save(&b, EPOCH, 10, &e) == 0, "%s", e.text);
    int64_t step = 20;
    while (step < 200 && save(&b, EPOCH, step, &e) == 0)
        step += 10;
    cr_expect(e.os_errno == ENOSPC && strstr(e.text, "No space left") != NULL, "%s", e.text);
    cr_expect(count(&b, "*.tmp") == 0, "nothing half is left");
    cr_expect(reads(&b, EPOCH, step - 10));
    for (int pass = 0; pass < 2; pass++)
        cr_assert(store_tidy(&b.store, &c.known, 1, never, NULL, &e) == 0, "%s", e.text);
    cr_expect(save(&b, EPOCH, step + 10, &e) == 0, "with the old ones gone there is room: %s", e.text);
    cr_assert(umount(volume) == 0);
    bench_release(&b);
}

Test(writer, a_poisoned_checkpoint_is_passed_over_once_and_stays_on_the_volume)
{
    struct bench b;
    struct claim c;
    struct error e = ERROR_INIT;

    bench_init(&b);
    cr_assert(claim(&b, 1, &c, &e) == 0 && !c.ret_restore.found, "%s", e.text);
    cr_assert(save(&b, 1, 10, &e) == 0 && save(&b, 1, 20, &e) == 0 && save(&b, 1, 30, &e) == 0, "%s", e.text);
    cr_assert(claim_older(&b, 2, &c, &e) == 0, "%s", e.text);
    cr_expect(c.ret_restore.found && c.ret_restore.step == 20 && c.ret_restore.skipped && c.ret_restore.skipped_step == 30 && c.ret_on_volume);
    cr_expect(reads(&b, 1, 30), "nothing is deleted");
    cr_assert(claim(&b, 3, &c, &e) == 0, "%s", e.text);
    cr_expect(c.ret_restore.step == 20 && !c.ret_restore.skipped, "what was passed over is not in the history any more");
    cr_assert(claim_older(&b, 4, &c, &e) == 0, "%s", e.text);
    cr_expect(c.ret_restore.step == 10 && c.ret_restore.skipped_step == 20);
    cr_assert(claim_older(&b, 5, &c, &e) == 0, "%s", e.text);
    cr_expect(c.ret_restore.found && c.ret_restore.step == 10 && !c.ret_restore.skipped && c.ret_on_volume, "never from scratch because of it");
    cr_expect(reads(&b, 1, 30) && reads(&b, 1, 20));
    bench_release(&b);
}
