#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "wire/shm.h"

#define SIZE_MAX_BYTES (1ll << 40)

struct options {
    struct bench_options bench;
    int64_t processes;
    int dtype, redop, transport;
    const char *install_dir, *socket;
};

#define AT(field, type) OPT_AT(struct options, field, type)

static const char *const DTYPES[] = { "float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", NULL };
static const unsigned DTYPE_OF[] = { SHM_F32, SHM_F64, SHM_F16, SHM_BF16, SHM_I32, SHM_I64, SHM_I8, SHM_U8 };
static const char *const REDOPS[] = { "sum", "average", "min", "max", "product", NULL };
static const char *const TRANSPORTS[] = { "memory", "tcp", NULL };
static const unsigned REDOP_OF[] = { SHM_SUM, SHM_AVERAGE, SHM_MIN, SHM_MAX, SHM_PRODUCT };

static const struct opt_def OPTIONS[] = {
    { .flag = "ranks", .letter = 'n', .def = "2", .type = OPT_INT, .at = AT(processes, int64_t), .min = 1, .max = 64, .value = "N",
      .help = "processes on this machine; not used inside a job, which has its own" },
    { .flag = "min", .letter = 'b', .def = "4", .type = OPT_SIZE, .at = AT(bench.min_bytes, int64_t), .min = 1, .max = SIZE_MAX_BYTES,
      .value = "SIZE", .help = "smallest size" },
    { .flag = "max", .letter = 'e', .def = "64Mi", .type = OPT_SIZE, .at = AT(bench.max_bytes, int64_t), .min = 1, .max = SIZE_MAX_BYTES,
      .value = "SIZE", .help = "largest size" },
    { .flag = "factor", .def = "4", .type = OPT_INT, .at = AT(bench.factor, int64_t), .min = 2, .max = 1 << 20, .value = "N",
      .help = "from one size to the next" },
    { .flag = "iterations", .type = OPT_INT, .at = AT(bench.iterations, int64_t), .min = 0, .max = 1000000, .value = "N",
      .help = "of each size (default: what moves 1 GiB, 5 to 1000)" },
    { .flag = "warmup", .def = "5", .type = OPT_INT, .at = AT(bench.warmup, int64_t), .min = 0, .max = 1000000, .value = "N",
      .help = "iterations before that, which are not measured" },
    { .flag = "dtype", .letter = 'd', .def = "float32", .type = OPT_ENUM, .at = AT(dtype, int), .names = DTYPES, .help = "of the elements" },
    { .flag = "redop", .letter = 'o', .def = "sum", .type = OPT_ENUM, .at = AT(redop, int), .names = REDOPS, .help = "the reduction" },
    { .flag = "arena", .type = OPT_BOOL, .at = AT(bench.in_arena, bool),
      .help = "buffers in the memory that is shared with the sidecar: nothing is copied" },
    { .flag = "check", .def = "true", .type = OPT_BOOL, .at = AT(bench.check, bool), .help = "compare every element of the last result" },
    { .flag = "percentiles", .type = OPT_BOOL, .at = AT(bench.percentiles, bool), .help = "two more columns: median and 99th percentile" },
    { .flag = "ring-transport", .def = "memory", .type = OPT_ENUM, .at = AT(transport, int), .names = TRANSPORTS,
      .help = "between the sidecars of this machine; not used inside a job" },
    { .flag = "install-dir", .env = "RINGMASTER_INSTALL_DIR", .type = OPT_TEXT, .at = AT(install_dir, const char *), .value = "DIR",
      .help = "prefix or build directory of launcher, sidecar and libraries (default: where this program is)" },
    /* What the launcher of a job sets: then this process is a rank, and not the one to start ranks. */
    { .flag = "socket", .env = "RINGMASTER_SOCKET", .type = OPT_TEXT, .at = AT(socket, const char *), .help = "of the sidecar",
      .hidden = true },
    { .flag = "library-dir", .env = "RINGMASTER_LIBRARY_DIR", .type = OPT_TEXT, .at = AT(bench.library_dir, const char *),
      .help = "of the client library", .hidden = true },
};

static int be_a_rank(const struct options *o)
{
    struct error e = ERROR_INIT;
    int64_t wrong;

    if (bench_allreduce(&o->bench, &wrong, &e) < 0)
        return command_fail("bench", command_code(&e), &e);
    return wrong == 0 ? COMMAND_OK : COMMAND_JOB_FAILED;
}

/* A job on this machine whose processes are this very command. */
static int start_ranks(const struct options *o, int argc, char **argv)
{
    char self[4096], directory[] = "/tmp/ringmaster-bench-XXXXXX", count[24], job_dir[64], install[4096], transport[32];
    struct error e = ERROR_INIT;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);

    if (len < 0 || mkdtemp(directory) == NULL) {
        (void)error_errno(&e, "prepare a job for the measurement in /tmp");
        return command_fail("bench", COMMAND_CANNOT_RUN, &e);
    }
    self[len] = '\0';
    (void)snprintf(count, sizeof count, "%lld", (long long)o->processes);
    (void)snprintf(job_dir, sizeof job_dir, "--job-dir=%s", directory);
    (void)snprintf(install, sizeof install, "--install-dir=%s", o->install_dir != NULL ? o->install_dir : "");
    (void)snprintf(transport, sizeof transport, "--ring-transport=%s", TRANSPORTS[o->transport]);
    char **words = xcalloc((size_t)argc + 16, sizeof *words);
    const char *const before[] = { "run", "-np", count, "--name=bench", job_dir, transport, "--plain", "--no-log-prefix" };
    size_t n = 0;
    for (; n < COUNT(before); n++)
        words[n] = xstrdup(before[n]);
    if (o->install_dir != NULL)
        words[n++] = xstrdup(install);
    words[n++] = xstrdup("--");
    words[n++] = xstrdup(self);
    for (int i = 0; i < argc; i++)
        words[n++] = xstrdup(argv[i]);
    char **kept = xcalloc(n, sizeof *kept); /* the command moves words about */
    memcpy(kept, words, n * sizeof *kept);
    int code = COMMAND_RUN.run((int)n, words);
    for (size_t i = 0; i < n; i++)
        free(kept[i]);
    free(kept);
    free(words);
    /* The logs of a measurement that failed say why. */
    if (code == COMMAND_OK && fs_remove_tree(directory, &e) < 0)
        return command_fail("bench", COMMAND_CANNOT_RUN, &e);
    if (code != COMMAND_OK)
        fprintf(stderr, "ringmaster bench: what the processes wrote is in %s\n", directory);
    return code;
}

static int bench(int argc, char **argv)
{
    struct options o = { .processes = 2 };
    struct error e = ERROR_INIT;
    int next, code;
    char **given = xcalloc((size_t)argc + 1, sizeof *given); /* parsing moves words about */

    for (int i = 0; i < argc; i++)
        given[i] = argv[i];
    if (!command_parse(&COMMAND_BENCH, argc, argv, false, &o, &next, &code)) {
        free(given);
        return code;
    }
    o.bench.dtype = DTYPE_OF[o.dtype];
    o.bench.redop = REDOP_OF[o.redop];
    if (argc - next != 1 || strcmp(argv[next], "allreduce") != 0)
        (void)error_set(&e, ERROR_INVALID, "what is to be measured? there is: ringmaster bench allreduce");
    else if (o.bench.min_bytes > o.bench.max_bytes)
        (void)error_set(&e, ERROR_INVALID, "--min %lld is more than --max %lld", (long long)o.bench.min_bytes, (long long)o.bench.max_bytes);
    else if (o.bench.redop == SHM_AVERAGE && !shm_dtype_is_float(o.bench.dtype))
        (void)error_set(&e, ERROR_INVALID, "--redop average is measured with floating types");
    if (e.kind != ERROR_NONE)
        code = command_usage("bench", &e);
    else
        code = o.socket != NULL && o.socket[0] != '\0' ? be_a_rank(&o) : start_ranks(&o, argc, given);
    opt_release(OPTIONS, COUNT(OPTIONS), &o);
    free(given);
    return code;
}

static const char *const WORDS[] = { "allreduce", NULL };

const struct command COMMAND_BENCH = {
    .name = "bench", .summary = "measure the all-reduce, on this machine or in a job's pods", .run = bench,
    .takes = WORDS_OWN, .words = WORDS,
    .usage = "bench allreduce [OPTIONS]",
    .about = "Measures all-reduces from process to process, through the sidecars. Outside of a job it runs one on this machine; as the\n"
             "command of a job's replicas it measures that job's ring. Rank 0 prints a line for each size: time of one all-reduce, bytes\n"
             "over time (algbw), the same times 2(N-1)/N, which compares with the speed of a link (busbw), and wrong elements.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster bench allreduce -n 4\n"
                "ringmaster bench allreduce --min 1Mi --max 256Mi --dtype bfloat16 --arena",
    .notes = "Exit codes: 0 all results were right, 1 some were not or a rank was lost, 2 bad usage, 3 could not run here.",
};
