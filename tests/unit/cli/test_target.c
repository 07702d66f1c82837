#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "cli/target.h"

Test(target, which_world_is_meant)
{
    static const struct { const char *what; struct target_words words; bool local; const char *job_dir, *name; bool used; const char *wrong; } ROWS[] = {
        { "nothing", { .name = NULL }, false, NULL, NULL, false, NULL },
        { "a name", { .name = "mnist" }, false, NULL, "mnist", true, NULL },
        { "a path", { .name = "./mnist" }, true, "./mnist", NULL, true, NULL },
        { "a path that is not there is still a path", { .name = "jobs/x" }, true, "jobs/x", NULL, true, NULL },
        { "a directory with a job", { .name = "mnist", .name_holds_job = true }, true, "mnist", NULL, true, NULL },
        { "the same, but a cluster is named", { .name = "mnist", .name_holds_job = true, .cluster_named = true }, false, NULL, "mnist", true, NULL },
        { "--job-dir", { .job_dir = "d" }, true, "d", NULL, false, NULL },
        { "--job-dir and words", { .job_dir = "d", .name = "worker-1" }, true, "d", NULL, false, NULL },
        { "environment", { .default_dir = "d" }, true, "d", NULL, false, NULL },
        { "environment, but a name", { .default_dir = "d", .name = "mnist" }, false, NULL, "mnist", true, NULL },
        { "environment, but a cluster", { .default_dir = "d", .cluster_named = true }, false, NULL, NULL, false, NULL },
        { "--job-dir before the environment", { .job_dir = "a", .default_dir = "d" }, true, "a", NULL, false, NULL },
        { "both worlds", { .job_dir = "a", .cluster_named = true }, .wrong = "--job-dir a and an option of a cluster" },
        { "a path and a cluster", { .name = "a/b", .cluster_named = true }, .wrong = "a/b is a directory" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct target t = { .local = false };
        struct error e = ERROR_INIT;
        int rc = target_choose(&ROWS[i].words, &t, &e);
        cr_expect_eq(rc, ROWS[i].wrong ? -1 : 0, "case %s: %s", ROWS[i].what, e.text);
        if (ROWS[i].wrong) {
            cr_expect(strstr(e.text, ROWS[i].wrong), "case %s: %s", ROWS[i].what, e.text);
            continue;
        }
        cr_expect_eq(t.local, ROWS[i].local, "case %s", ROWS[i].what);
        cr_expect_eq(t.name_used, ROWS[i].used, "case %s", ROWS[i].what);
        cr_expect(t.job_dir == ROWS[i].job_dir || (t.job_dir && ROWS[i].job_dir && strcmp(t.job_dir, ROWS[i].job_dir) == 0), "case %s", ROWS[i].what);
        cr_expect(t.name == ROWS[i].name || (t.name && ROWS[i].name && strcmp(t.name, ROWS[i].name) == 0), "case %s", ROWS[i].what);
    }
}
