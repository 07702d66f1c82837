#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/output.h"

Test(output, lines_look_as_a_terminal_would_have_left_them)
{
    static const struct { const char *name, *raw, *clean; } ROWS[] = {
        { "plain", "epoch 1", "epoch 1" }, { "crlf", "epoch 1\r", "epoch 1" }, { "progress bar", "10%\r20%\r30%", "30%" },
        { "overwritten and ended", "10%\r20%\r\r", "20%" }, { "colour stays", "\033[1;32mok\033[0m", "\033[1;32mok\033[0m" },
        { "cursor movement goes", "\033[2K\033[1Aok\033[?25h", "ok" }, { "backspaces go", "ab\b\bc", "abc" },
        { "bell and delete go", "a\a\x7f" "b", "ab" }, { "tab stays", "a\tb", "a\tb" }, { "utf-8 stays", "größe", "größe" },
        { "a cut sequence goes", "ok\033[3", "ok" }, { "a lone escape goes", "ok\033", "ok" }, { "empty", "", "" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_buf struct buf out = BUF_INIT(256);
        output_clean(ROWS[i].raw, strlen(ROWS[i].raw), &out);
        cr_expect_str_eq(buf_text(&out), ROWS[i].clean, "case %s", ROWS[i].name);
    }
}

struct heard { char text[65536]; size_t lines; bool failed; };

static void on_line(void *ctx, const char *text, size_t len)
{
    struct heard *h = ctx;
    strncat(h->text, text, len);
    strcat(h->text, "|");
    h->lines++;
}

static void on_failed(void *ctx, const struct error *why)
{
    (void)why;
    ((struct heard *)ctx)->failed = true;
}

/* The same text comes out whatever pieces it was written in. */
Test(output, lines_are_the_same_at_every_split)
{
    const char *text = "one\ntwo\r2\n\nthree";
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct loop *loop;
        struct output *o;
        struct error e = ERROR_INIT;
        struct heard h = { .lines = 0 };
        char path[] = "/tmp/rm-output-XXXXXX", tail[64];
        int fd, log = mkstemp(path);
        size_t len;
        auto_free char *kept = NULL;
        cr_assert_eq(loop_new(&loop, &e), 0);
        cr_assert_eq(output_new(loop, path, on_line, on_failed, &h, &o, &fd, &e), 0, "%s", e.text);
        cr_assert_eq(write(fd, text, cut), (ssize_t)cut);
        /* The reader takes the first piece before the second is written. */
        if (cut < strlen(text))
            cr_assert_eq(write(fd, text + cut, strlen(text) - cut), (ssize_t)(strlen(text) - cut));
        close(fd);
        output_drain(o);
        cr_expect_str_eq(h.text, "one|2||three|", "cut at %zu: %s", cut, h.text);
        output_tail(o, tail, sizeof tail);
        cr_expect_str_eq(tail, "one\ntwo 2\n\nthree");
        cr_assert_eq(fs_read(path, 1024, &kept, &len, &e), 0);
        cr_expect_str_eq(kept, text, "the log has every byte");
        output_free(o);
        loop_free(loop);
        close(log);
        unlink(path);
    }
}

Test(output, the_tail_begins_with_a_whole_line)
{
    struct loop *loop;
    struct output *o;
    struct error e = ERROR_INIT;
    struct heard h = { .lines = 0 };
    char path[] = "/tmp/rm-output-XXXXXX", tail[40];
    int fd, log = mkstemp(path);
    cr_assert_eq(loop_new(&loop, &e), 0);
    cr_assert_eq(output_new(loop, path, on_line, on_failed, &h, &o, &fd, &e), 0, "%s", e.text);
    for (int i = 0; i < 300; i++)
        cr_assert_gt(dprintf(fd, "line number %d\n", i), 0);
    close(fd);
    output_drain(o);
    output_tail(o, tail, sizeof tail);
    cr_expect_str_eq(tail, "line number 298\nline number 299");
    cr_expect_eq(h.lines, 300);
    output_free(o);
    loop_free(loop);
    close(log);
    unlink(path);
}

Test(output, a_full_disk_is_told_once_and_lines_go_on)
{
    struct loop *loop;
    struct output *o;
    struct error e = ERROR_INIT;
    struct heard h = { .lines = 0 };
    int fd;
    cr_assert_eq(loop_new(&loop, &e), 0);
    cr_assert_eq(output_new(loop, "/dev/full", on_line, on_failed, &h, &o, &fd, &e), 0, "%s", e.text);
    cr_assert_eq(write(fd, "a\nb\n", 4), 4);
    close(fd);
    output_drain(o);
    cr_expect(h.failed);
    cr_expect_str_eq(h.text, "a|b|");
    output_free(o);
    loop_free(loop);
}
