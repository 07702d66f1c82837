#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/jobdir.h"

static char *scratch(void)
{
    char path[] = "/tmp/rm-jobdir-XXXXXX";
    cr_assert_not_null(mkdtemp(path));
    return xstrdup(path);
}

static void scratch_end(char *path)
{
    struct error e = ERROR_INIT;
    cr_assert_eq(fs_remove_tree(path, &e), 0, "%s", e.text);
    free(path);
}

/* The lock belongs to the open file: another process has to ask. */
static int locked_for_others(const char *path, char *ret_text, size_t size)
{
    int fds[2], status;
    cr_assert_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct jobdir d;
        struct error e = ERROR_INIT;
        int rc = jobdir_open(path, &d, &e);
        ssize_t n = write(fds[1], e.text, strlen(e.text));
        _exit(n < 0 ? 9 : rc == 0 ? 0 : e.kind == ERROR_BUSY ? 1 : 2);
    }
    close(fds[1]);
    ssize_t n = read(fds[0], ret_text, size - 1);
    ret_text[n > 0 ? n : 0] = '\0';
    close(fds[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

Test(jobdir, one_holder_at_a_time_and_it_is_named)
{
    char *path = scratch(), text[400], expected[64];
    struct jobdir d;
    struct error e = ERROR_INIT;
    cr_assert_eq(jobdir_open(path, &d, &e), 0, "%s", e.text);
    cr_expect(jobdir_busy(&d));
    cr_expect_eq(locked_for_others(path, text, sizeof text), 1, "%s", text);
    snprintf(expected, sizeof expected, "with pid %d;", (int)getpid());
    cr_expect(strstr(text, expected) != NULL, "%s", text);
    jobdir_release(&d);
    cr_expect_eq(locked_for_others(path, text, sizeof text), 0, "%s", text);
    scratch_end(path);
}

Test(jobdir, clearing_leaves_what_is_not_ours)
{
    char *path = scratch();
    struct jobdir d;
    struct error e = ERROR_INIT;
    cr_assert_eq(jobdir_open(path, &d, &e), 0);
    cr_expect(!jobdir_used(&d));
    auto_free char *job = jobdir_path(&d, "job.json"), *mine = jobdir_path(&d, "notes.txt"), *log = jobdir_path(&d, "logs/worker-0");
    cr_assert_eq(jobdir_put(job, "{}", &e), 0, "%s", e.text);
    cr_assert_eq(jobdir_put(mine, "keep", &e), 0, "%s", e.text);
    cr_assert_eq(fs_mkdirs(log, 0755, &e), 0);
    cr_expect(jobdir_used(&d));
    cr_assert_eq(jobdir_clear(&d, &e), 0, "%s", e.text);
    cr_expect(!jobdir_used(&d));
    cr_expect_eq(access(mine, F_OK), 0);
    cr_expect_eq(access(log, F_OK), -1);
    jobdir_release(&d);
    scratch_end(path);
}

Test(jobdir, a_key_is_private_and_stays)
{
    char *path = scratch();
    struct jobdir d;
    struct error e = ERROR_INIT;
    struct stat st;
    size_t len;
    cr_assert_eq(jobdir_open(path, &d, &e), 0);
    cr_assert_eq(jobdir_make_key(&d, &e), 0, "%s", e.text);
    auto_free char *key = jobdir_path(&d, "key"), *first = NULL, *second = NULL;
    cr_assert_eq(stat(key, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0600);
    cr_assert_eq(fs_read(key, 100, &first, &len, &e), 0);
    cr_expect_eq(len, 64);
    cr_expect_eq(strspn(first, "0123456789abcdef"), 64);
    cr_assert_eq(jobdir_make_key(&d, &e), 0);
    cr_assert_eq(fs_read(key, 100, &second, &len, &e), 0);
    cr_expect_str_eq(first, second);
    jobdir_release(&d);
    scratch_end(path);
}

Test(jobdir, a_uid_that_is_no_name_is_refused_before_it_becomes_a_path)
{
    static const char *const UIDS[] = { "", "..", "../../etc", "a/b", "A" };
    struct jobdir d = JOBDIR_INIT;
    for (size_t i = 0; i < COUNT(UIDS); i++) {
        struct error e = ERROR_INIT;
        cr_expect_eq(jobdir_runtime(&d, UIDS[i], &e), -1, "\"%s\"", UIDS[i]);
        cr_expect_eq(e.kind, ERROR_INVALID);
    }
}

Test(jobdir, a_status_comes_back_and_none_is_a_fresh_one)
{
    char *path = scratch();
    struct jobdir d;
    struct error e = ERROR_INIT;
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    cr_assert_eq(jobdir_open(path, &d, &e), 0);
    cr_assert_eq(jobdir_load_status(&d, status, &e), 0, "%s", e.text);
    cr_expect_eq(status->phase, PHASE_PENDING);
    auto_free char *name = jobdir_path(&d, "status.json");
    cr_assert_eq(jobdir_put(name, "{\"phase\":\"Runn", &e), 0);
    cr_expect_eq(jobdir_load_status(&d, status, &e), -1, "half a file is told, not taken for a fresh job");
    cr_expect(strstr(e.text, "status.json") != NULL, "%s", e.text);
    jobdir_release(&d);
    scratch_end(path);
}

Test(jobfile, a_uid_is_a_version_4_uuid)
{
    char a[37], b[37];
    struct error e = ERROR_INIT;
    cr_assert_eq(jobfile_new_uid(a, &e), 0);
    cr_assert_eq(jobfile_new_uid(b, &e), 0);
    cr_expect_str_neq(a, b);
    cr_expect_eq(strlen(a), 36);
    cr_expect_eq(a[14], '4');
    cr_expect(strchr("89ab", a[19]) != NULL);
}
