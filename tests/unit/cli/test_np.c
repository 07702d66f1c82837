#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/np.h"

struct own { const char *dir; bool quiet; };
static const struct opt_def OWN[] = {
    { .flag = "job-dir", .letter = 'd', .type = OPT_TEXT, .at = OPT_AT(struct own, dir, const char *) },
    { .flag = "quiet", .letter = 'q', .type = OPT_BOOL, .at = OPT_AT(struct own, quiet, bool) },
};

/* Words of a command line and what is left of it. */
struct line { char *words[16]; int count; };

static struct line line_of(const char *text, char *store)
{
    struct line l = { .count = 0 };
    strcpy(store, text);
    for (char *word, *rest = store; (word = strsep(&rest, " ")) != NULL;)
        l.words[l.count++] = word;
    return l;
}

static void join(const struct line *l, char *ret)
{
    ret[0] = '\0';
    for (int i = 0; i < l->count; i++)
        sprintf(ret + strlen(ret), "%s%s", i ? " " : "", l->words[i]);
}

Test(np, flags_are_taken_out_and_the_rest_stays)
{
    static const struct { const char *name, *line, *left; int64_t processes; bool used; } ROWS[] = {
        { "plain", "run -np 4 python train.py", "run python train.py", 4, true },
        { "long", "run --num-proc=3 --job-dir D -- python t.py -np 9", "run --job-dir D -- python t.py -np 9", 3, true },
        { "own flag's value is not taken for a flag", "run -d -np -q x", "run -d -np -q x", 0, false },
        { "hosts and ssh port", "run -np 2 -H localhost:2 -p 22 cmd", "run cmd", 2, true },
        { "a flag of ours alone", "run --job-dir D --quiet", "run --job-dir D --quiet", 0, false },
        { "tuning", "run -np 2 --cycle-time-ms 3 --autotune --gloo cmd", "run cmd", 2, true },
        { "stops at the command", "run -q cmd -H elsewhere:1", "run -q cmd -H elsewhere:1", 0, false },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        char store[256], left[256];
        struct line l = line_of(ROWS[i].line, store);
        struct np_options np = { .reset_limit = -1 };
        struct error e = ERROR_INIT;
        cr_assert_eq(np_extract(&l.count, l.words, OWN, COUNT(OWN), &np, &e), 0, "case %s: %s", ROWS[i].name, e.text);
        join(&l, left);
        cr_expect_str_eq(left, ROWS[i].left, "case %s", ROWS[i].name);
        cr_expect_eq(np.processes, ROWS[i].processes, "case %s", ROWS[i].name);
        cr_expect_eq(np.used, ROWS[i].used, "case %s", ROWS[i].name);
        np_release(&np);
    }
}

Test(np, what_cannot_be_is_refused_with_a_reason)
{
    static const struct { const char *line, *text; } ROWS[] = {
        { "run -np", "-np needs a value" },
        { "run -np four cmd", "-np: found \"four\", expected an integer from 1 to 10000" },
        { "run -np 0 cmd", "expected an integer from 1" },
        { "run --slots-per-host 2 cmd", "--slots-per-host is not supported: ranks are not discovered" },
        { "run --mpi-args x cmd", "MPI is not used" },
        { "run --gloo=yes cmd", "--gloo takes no value" },
        { "run --config-file c.yaml cmd", "--config-file is not supported" },
        { "run --blacklist-cooldown-range 1 cmd", "--blacklist-cooldown-range" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        char store[256];
        struct line l = line_of(ROWS[i].line, store);
        struct np_options np = { .reset_limit = -1 };
        struct error e = ERROR_INIT;
        cr_expect_eq(np_extract(&l.count, l.words, OWN, COUNT(OWN), &np, &e), -1, "%s", ROWS[i].line);
        cr_expect(strstr(e.text, ROWS[i].text) != NULL, "%s: \"%s\"", ROWS[i].line, e.text);
        cr_expect_eq(e.kind, ERROR_INVALID);
    }
}

Test(np, a_flag_without_effect_leaves_a_note_and_tuning_reaches_the_script)
{
    char store[256];
    struct line l = line_of("run -np 2 --fusion-threshold-mb 64 --no-stall-check --mpi cmd", store);
    struct np_options np = { .reset_limit = -1 };
    struct error e = ERROR_INIT;
    cr_assert_eq(np_extract(&l.count, l.words, OWN, COUNT(OWN), &np, &e), 0, "%s", e.text);
    cr_expect_str_eq(np.notes, "--mpi has no effect: the ring engine in the sidecar does this itself\n");
    auto_free char *env = json_print(np.env, false);
    cr_expect_str_eq(env, "[{\"name\":\"HOROVOD_FUSION_THRESHOLD\",\"value\":\"67108864\"},"
                          "{\"name\":\"HOROVOD_STALL_CHECK_DISABLE\",\"value\":\"1\"}]");
    np_release(&np);
}

Test(np, hosts_are_this_machine)
{
    static const struct { const char *hosts; int64_t slots; const char *wrong; } ROWS[] = {
        { "localhost:4", 4, NULL }, { "localhost", 1, NULL }, { "127.0.0.1:2,here:3", 5, NULL }, { "::1", 1, NULL },
        { "gpu2:4", 0, "host \"gpu2\" is another machine" }, { "localhost:many", 0, "slots" }, { ":4", 0, "name is missing" },
        { "localhost:0", 0, "expected an integer from 1" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error e = ERROR_INIT;
        int64_t slots = 0;
        int rc = np_slots(ROWS[i].hosts, "here", &slots, &e);
        cr_expect_eq(rc, ROWS[i].wrong ? -1 : 0, "%s: %s", ROWS[i].hosts, e.text);
        cr_expect_eq(slots, ROWS[i].slots, "%s", ROWS[i].hosts);
        cr_expect(!ROWS[i].wrong || strstr(e.text, ROWS[i].wrong), "%s: %s", ROWS[i].hosts, e.text);
    }
}

Test(np, host_files)
{
    struct error e = ERROR_INIT;
    int64_t slots = 0;
    cr_expect_eq(np_hostfile_slots("# mine\nlocalhost slots=4\n\n  127.0.0.1\tslots=2 # two\n", "", &slots, &e), 0, "%s", e.text);
    cr_expect_eq(slots, 6);
    cr_expect_eq(np_hostfile_slots("far slots=1\n", "", &slots, &e), -1);
    cr_expect_eq(np_hostfile_slots("# nothing\n", "", &slots, &e), -1);
}

Test(np, names_come_from_the_script)
{
    static const struct { const char *command, *name; } ROWS[] = {
        { "python3 -u src/Train_mnist.py --epochs 3", "train-mnist" }, { "./run.sh", "run" }, { "python -m my.trainer", "my-trainer" },
        { "/usr/bin/env", "env" }, { "python 3d-net.py", "job-3d-net" }, { "sh -c exit", "sh" }, { "___", "job" },
        { "python a_very_long_name_that_goes_on_and_on_without_any_end_at_all.py", "a-very-long-name-that-goes-on-and-on-wit" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        char store[256], name[52];
        struct line l = line_of(ROWS[i].command, store);
        np_name(l.words, (size_t)l.count, name);
        cr_expect_str_eq(name, ROWS[i].name, "%s gave %s", ROWS[i].command, name);
    }
}

Test(np, the_job_has_n_workers_that_run_the_command)
{
    char python[] = "python", script[] = "train.py", *command[] = { python, script };
    struct np_options np = { .reset_limit = 3, .start_timeout_s = 30 };
    auto_json cJSON *job = np_manifest(&np, "train", 4, command, 2);
    auto_free char *text = json_print(job, false);
    cr_expect_str_eq(text,
        "{\"apiVersion\":\"ringmaster.dev/v1alpha1\",\"kind\":\"TrainingJob\",\"metadata\":{\"name\":\"train\"},\"spec\":{"
        "\"frameworks\":[\"TensorFlow\",\"PyTorch\",\"Horovod\"],"
        "\"runPolicy\":{\"backoffLimit\":3,\"schedulingPolicy\":{\"startTimeoutSeconds\":30}},"
        "\"replicaSpecs\":{\"Worker\":{\"replicas\":4,\"template\":{\"spec\":{\"containers\":["
        "{\"name\":\"main\",\"image\":\"local\",\"command\":[\"python\",\"train.py\"]}]}}}}}}");
}

/* Every flag of horovodrun 0.28 (runner/launch.py), in every spelling, and what becomes of it. */
enum fate { DONE, MAPPED, IGNORED, REFUSED };
struct flag_row { const char *flag, *value; enum fate fate; const char *env; };
static const struct flag_row EVERY_FLAG[] = {
    { "-np", "2", DONE, NULL }, { "--num-proc", "2", DONE, NULL }, { "-H", "localhost:2", DONE, NULL }, { "--hosts", "localhost:2", DONE, NULL },
    { "-hostfile", "h", DONE, NULL }, { "--hostfile", "h", DONE, NULL }, { "--min-np", "1", DONE, NULL }, { "--min-num-proc", "1", DONE, NULL },
    { "--max-np", "4", DONE, NULL }, { "--max-num-proc", "4", DONE, NULL }, { "--start-timeout", "30", DONE, NULL },
    { "--reset-limit", "3", DONE, NULL }, { "--output-filename", "out", DONE, NULL }, { "-prefix-timestamp", NULL, DONE, NULL },
    { "--prefix-output-with-timestamp", NULL, DONE, NULL },
    { "--timeline-filename", "t.json", MAPPED, "RINGMASTER_TIMELINE=t.json" },
    { "--timeline-mark-cycles", NULL, MAPPED, "HOROVOD_TIMELINE_MARK_CYCLES=1" },
    { "--no-timeline-mark-cycles", NULL, MAPPED, "HOROVOD_TIMELINE_MARK_CYCLES=0" },
    { "--fusion-threshold-mb", "32", MAPPED, "HOROVOD_FUSION_THRESHOLD=33554432" }, { "--cycle-time-ms", "2", MAPPED, "HOROVOD_CYCLE_TIME=2" },
    { "--cache-capacity", "9", MAPPED, "HOROVOD_CACHE_CAPACITY=9" }, { "--stall-check", NULL, MAPPED, "HOROVOD_STALL_CHECK_DISABLE=0" },
    { "--no-stall-check", NULL, MAPPED, "HOROVOD_STALL_CHECK_DISABLE=1" },
    { "--stall-check-warning-time-seconds", "9", MAPPED, "HOROVOD_STALL_CHECK_TIME_SECONDS=9" },
    { "--stall-check-shutdown-time-seconds", "9", MAPPED, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=9" },
    { "--thread-affinity", "0,1", MAPPED, "HOROVOD_THREAD_AFFINITY=0,1" }, { "--num-nccl-streams", "2", MAPPED, "HOROVOD_NUM_NCCL_STREAMS=2" },
    { "--gloo-timeout-seconds", "9", MAPPED, "HOROVOD_GLOO_TIMEOUT_SECONDS=9" }, { "--log-level", "DEBUG", MAPPED, "HOROVOD_LOG_LEVEL=DEBUG" },
    { "--log-with-timestamp", NULL, MAPPED, "HOROVOD_LOG_HIDE_TIME=0" }, { "--log-without-timestamp", NULL, MAPPED, "HOROVOD_LOG_HIDE_TIME=1" },
    { "--log-hide-timestamp", NULL, MAPPED, "HOROVOD_LOG_HIDE_TIME=1" }, { "--no-log-hide-timestamp", NULL, MAPPED, "HOROVOD_LOG_HIDE_TIME=0" },
    { "-p", "22", IGNORED, NULL }, { "--ssh-port", "22", IGNORED, NULL }, { "-i", "k", IGNORED, NULL }, { "--ssh-identity-file", "k", IGNORED, NULL },
    { "--disable-cache", NULL, IGNORED, NULL }, { "--network-interfaces", "eth0", IGNORED, NULL }, { "--network-interface", "eth0", IGNORED, NULL },
    { "--gloo", NULL, IGNORED, NULL }, { "--mpi", NULL, IGNORED, NULL }, { "--hierarchical-allreduce", NULL, IGNORED, NULL },
    { "--no-hierarchical-allreduce", NULL, IGNORED, NULL }, { "--hierarchical-allgather", NULL, IGNORED, NULL },
    { "--no-hierarchical-allgather", NULL, IGNORED, NULL }, { "--torus-allreduce", NULL, IGNORED, NULL }, { "--no-torus-allreduce", NULL, IGNORED, NULL },
    { "--autotune", NULL, IGNORED, NULL }, { "--no-autotune", NULL, IGNORED, NULL }, { "--autotune-log-file", "f", IGNORED, NULL },
    { "--autotune-warmup-samples", "3", IGNORED, NULL }, { "--autotune-steps-per-sample", "3", IGNORED, NULL },
    { "--autotune-bayes-opt-max-samples", "3", IGNORED, NULL }, { "--autotune-gaussian-process-noise", "0.8", IGNORED, NULL },
    { "--mpi-threads-disable", NULL, IGNORED, NULL }, { "--no-mpi-threads-disable", NULL, IGNORED, NULL }, { "--tcp", NULL, IGNORED, NULL },
    { "--jsrun", NULL, REFUSED, NULL }, { "--mpi-args", "x", REFUSED, NULL }, { "--binding-args", "x", REFUSED, NULL },
    { "--slots-per-host", "2", REFUSED, NULL }, { "--elastic-timeout", "9", REFUSED, NULL }, { "--blacklist-cooldown-range", "1", REFUSED, NULL },
    { "--host-discovery-script", "s", REFUSED, NULL }, { "--config-file", "c", REFUSED, NULL }, { "-cb", NULL, REFUSED, NULL },
    { "--check-build", NULL, REFUSED, NULL },
};

static enum fate fate_of(const struct np_options *np, const struct error *e, char *ret_env, size_t size)
{
    const cJSON *row = np->env ? np->env->child : NULL;
    ret_env[0] = '\0';
    if (e->kind != ERROR_NONE)
        return REFUSED;
    if (row)
        snprintf(ret_env, size, "%s=%s", json_text(row, "name", ""), json_text(row, "value", ""));
    return row ? MAPPED : np->notes[0] ? IGNORED : DONE;
}

Test(np, every_flag_of_horovodrun_has_its_fate)
{
    size_t known = 0;
    for (size_t i = 0; i < COUNT(EVERY_FLAG); i++) {
        const struct flag_row *row = &EVERY_FLAG[i];
        char *words[8] = { (char *)"run", (char *)row->flag, (char *)row->value, (char *)row->value, (char *)"cmd", NULL };
        struct np_options np = { .reset_limit = -1 };
        struct error e = ERROR_INIT;
        char env[200];
        int argc = row->value ? 5 : 3;
        if (!row->value)
            words[2] = (char *)"cmd";
        else if (strcmp(row->flag, "--blacklist-cooldown-range") != 0) {
            argc = 4;
            words[3] = (char *)"cmd";
        }
        words[argc] = NULL;
        (void)!np_extract(&argc, words, OWN, COUNT(OWN), &np, &e);
        cr_expect_eq(fate_of(&np, &e, env, sizeof env), row->fate, "case %s: %s%s", row->flag, e.text, np.notes);
        cr_expect_str_eq(env, row->env ? row->env : "", "case %s", row->flag);
        cr_expect(row->fate != REFUSED || strstr(e.text, "is not supported: "), "case %s: %s", row->flag, e.text);
        cr_expect(row->fate == REFUSED || (argc == 2 && strcmp(words[1], "cmd") == 0), "case %s: the command is what is left", row->flag);
        known += row->fate != REFUSED;
        np_release(&np);
    }
    const char *const *names = np_flag_names();
    size_t listed = 0;
    for (; names[listed]; listed++) {
        bool found = false;
        for (size_t i = 0; i < COUNT(EVERY_FLAG); i++)
            found |= strcmp(EVERY_FLAG[i].flag, names[listed]) == 0;
        cr_expect(found, "%s is in the table here", names[listed]);
    }
    cr_expect_eq(listed, known, "completion offers %zu flags, %zu are taken", listed, known);
}

Test(np, verbose_is_a_flag_of_ours_too)
{
    char store[64], left[256];
    struct line l = line_of("run -np 2 --verbose cmd", store);
    struct np_options np = { .reset_limit = -1 };
    struct error e = ERROR_INIT;
    cr_assert_eq(np_extract(&l.count, l.words, OWN, COUNT(OWN), &np, &e), 0);
    join(&l, left);
    cr_expect_str_eq(left, "run --verbose cmd");
    np_release(&np);
}

Test(np, bounds_of_the_number_of_processes)
{
    static const struct { int64_t min, max, processes; const char *wrong; } ROWS[] = {
        { 0, 0, 4, NULL }, { 2, 0, 4, NULL }, { 4, 4, 4, NULL }, { 2, 8, 4, NULL }, { 5, 0, 4, "--min-np 5 is more than the 4 processes" },
        { 0, 3, 4, "--max-np 3 is less than the 4 processes" }, { 6, 5, 5, "--min-np 6 is more than --max-np 5" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct np_options np = { .min_processes = ROWS[i].min, .max_processes = ROWS[i].max };
        struct error e = ERROR_INIT;
        cr_expect_eq(np_check_counts(&np, ROWS[i].processes, &e), ROWS[i].wrong ? -1 : 0, "case %zu", i);
        cr_expect_str_eq(e.text, ROWS[i].wrong ? ROWS[i].wrong : "", "case %zu", i);
    }
    struct np_options np = { .min_processes = 2, .reset_limit = -1 };
    char *command[] = { (char *)"cmd" };
    auto_json cJSON *job = np_manifest(&np, "x", 4, command, 1);
    cr_expect_eq(json_int(job, "spec.elasticPolicy.minReplicas", 0), 2);
    cr_expect_eq(json_int(job, "spec.elasticPolicy.maxReplicas", 0), 4);
}
