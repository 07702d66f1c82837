#include "base/fs.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static char *fresh_dir(void)
{
    char *dir = xstrdup("/tmp/ringmaster-fs-XXXXXX");

    cr_assert_not_null(mkdtemp(dir));
    return dir;
}

Test(fs, an_atomic_write_replaces_the_whole_file_and_leaves_nothing_else)
{
    auto_free char *dir = fresh_dir();
    auto_free char *path = fs_join(dir, "f"), *text = NULL;
    struct error e = ERROR_INIT;
    size_t len;

    cr_assert_eq(fs_write_atomic(path, "longer than the next", 20, 0600, &e), 0, "%s", e.text);
    cr_assert_eq(fs_write_atomic(path, "new", 3, 0600, &e), 0, "%s", e.text);
    cr_assert_eq(fs_read(path, 100, &text, &len, &e), 0, "%s", e.text);
    cr_expect_str_eq(text, "new");
    cr_expect_eq(len, 3);
    struct stat st;
    cr_expect_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0600);
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(rmdir(dir), 0, "a temporary file was left behind");
}

Test(fs, a_file_over_the_limit_is_refused)
{
    auto_free char *dir = fresh_dir();
    auto_free char *path = fs_join(dir, "f"), *text = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(fs_write_atomic(path, "12345", 5, 0600, &e), 0);
    cr_expect_eq(fs_read(path, 4, &text, NULL, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
    cr_expect_eq(fs_read(path, 5, &text, NULL, &e), 0);
    cr_expect_eq(fs_remove_tree(dir, &e), 0);
}

Test(fs, a_tree_is_made_and_removed_without_following_links)
{
    auto_free char *dir = fresh_dir(), *other = fresh_dir();
    auto_free char *deep = fs_join(dir, "a/b/c"), *link_path = fs_join(dir, "a/link"), *kept = fs_join(other, "kept");
    struct error e = ERROR_INIT;

    cr_assert_eq(fs_mkdirs(deep, 0700, &e), 0, "%s", e.text);
    cr_assert_eq(fs_mkdirs(deep, 0700, &e), 0, "again is fine: %s", e.text);
    cr_assert_eq(fs_write_atomic(kept, "x", 1, 0600, &e), 0);
    cr_assert_eq(symlink(other, link_path), 0);
    cr_assert_eq(fs_remove_tree(dir, &e), 0, "%s", e.text);
    cr_expect_neq(access(dir, F_OK), 0);
    cr_expect_eq(access(kept, F_OK), 0, "what a link points to stays");
    cr_expect_eq(fs_remove_tree(dir, &e), 0, "absent is fine");
    cr_expect_eq(fs_remove_tree(other, &e), 0);
}

Test(fs, a_file_in_the_way_of_a_directory_is_named)
{
    auto_free char *dir = fresh_dir();
    auto_free char *path = fs_join(dir, "f");
    struct error e = ERROR_INIT;

    cr_assert_eq(fs_write_atomic(path, "x", 1, 0600, &e), 0);
    cr_expect_eq(fs_mkdirs(path, 0700, &e), -1);
    cr_expect_not_null(strstr(e.text, path));
    cr_expect_eq(fs_remove_tree(dir, &e), 0);
}
