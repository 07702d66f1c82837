/* checkpoint.c — what tests in other languages need of the checkpoint engine.
 *
 *   checkpoint check FILE...                       is each an image? "ok", or why not; exit code 0 in any case
 *   checkpoint save VOLUME UID STEP IMAGE...       commits one image a rank in a round of its own, as the sidecars would; prints the directory
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "sidecar/checkpoint/internal.h"
#include "checkpoint/safetensors.h"

static void check(const char *path)
{
    struct error e = ERROR_INIT;
    auto_free char *bytes = NULL;
    size_t len = 0;
    struct safetensors s;
    if (fs_read(path, 1u << 30, &bytes, &len, &e) != 0 || safetensors_parse(bytes, len, len, &s, &e) != 0) {
        printf("%s\n", e.text);
        return;
    }
    safetensors_release(&s);
    printf("ok\n");
}

static int persist(const struct store *s, const struct step_key *key, int32_t rank, const char *path, struct error *e)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    auto_vote struct vote v = { .rank = rank };
    if (fd < 0 || fstat(fd, &st) != 0)
        return error_errno(e, "open %s", path);
    return store_persist(s, key, rank, fd, 0, (uint64_t)st.st_size, &v, e);
}

struct environment { struct s3_config s3; };
static const struct opt_def ENVIRONMENT[] = { S3_OPTIONS(struct environment, s3) };

static int save(const char *volume, const char *uid, int64_t step, int32_t world, char **images, struct error *e)
{
    struct store s;
    uint64_t claimed = 0;
    bool committed;
    char nonce[LAYOUT_NONCE_MAX];
    auto_free struct holdings *none = xcalloc((size_t)world, sizeof(*none));
    uint64_t newest;
    struct claim claim = { .world = world, .member = "chief-0", .by_rank = none };
    struct step_key key = { .world = world };
    (void)snprintf(key.job, sizeof(key.job), "%s", uid);
    struct environment environment;
    struct volume_options options = { .s3 = &environment.s3 };
    char name[] = "checkpoint", *nothing[] = { name, NULL };
    int next;
    bool help;
    if (opt_parse(ENVIRONMENT, COUNT(ENVIRONMENT), 1, nothing, false, &environment, &next, &help, e) != 0)
        return -1;
    if (store_init(&s, volume, uid, &options, e) != 0 || store_newest_claim(&s, &newest, e) != 0)
        return -1;
    claim.fence = newest == 0 ? 0x100000001 : newest + 1;
    if (claim_run(&s, &claim, &claimed, nonce, e) != 0 ||
        store_prepare(&s, (struct checkpoint_id){ claim.fence, step }, &key.generation, &committed, e) != 0)
        return -1;
    for (int32_t rank = 0; rank < world; rank++)
        if (persist(&s, &key, rank, images[rank], e) != 0)
            return -1;
    if (store_commit(&s, &key, claimed, e) != 0)
        return -1;
    auto_free char *dir = NULL;
    store_generation_path(&s, &key.generation, &dir);
    printf("%s\n", dir);
    store_release(&s);
    return 0;
}

int main(int argc, char **argv)
{
    struct error e = ERROR_INIT;
    if (argc > 2 && strcmp(argv[1], "check") == 0) {
        for (int i = 2; i < argc; i++)
            check(argv[i]);
        return 0;
    }
    if (argc > 5 && strcmp(argv[1], "save") == 0) {
        if (save(argv[2], argv[3], atoll(argv[4]), argc - 5, argv + 5, &e) == 0)
            return 0;
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    fprintf(stderr, "usage: checkpoint check FILE... | checkpoint save VOLUME UID STEP IMAGE...\n");
    return 2;
}
