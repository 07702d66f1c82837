#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "sidecar/ring/pipe.h"
#include "tests/unit/quietly.h"

struct ends { struct pipe *a, *b; char path[64]; };

static void ends_open(struct ends *e)
{
    struct error why = ERROR_INIT;

    (void)snprintf(e->path, sizeof e->path, "/dev/shm/ringmaster-test-%d", (int)getpid());
    cr_assert(pipe_create(e->path, &e->a, &why) == 0, "%s", why.text);
    cr_assert(pipe_open(e->path, &e->b, &why) == 0, "%s", why.text);
    cr_assert(access(e->path, F_OK) < 0, "it is still in the directory");
}

static void ends_close(struct ends *e)
{
    pipe_free(e->a);
    pipe_free(e->b);
}

static ssize_t put(struct pipe *p, const void *bytes, size_t len)
{
    bool wake;

    return pipe_write(p, &(struct iovec){ (void *)(uintptr_t)bytes, len }, 1, &wake);
}

static ssize_t get(struct pipe *p, void *bytes, size_t len)
{
    bool wake;

    return pipe_read(p, &(struct iovec){ bytes, len }, 1, &wake);
}

Test(pipe, bytes_come_in_order_both_ways_and_around_the_end)
{
    struct ends e;
    static uint8_t out[300001], in[300001];

    ends_open(&e);
    for (int turn = 0; turn < 20; turn++) { /* several times around the ring, at odd places */
        struct pipe *from = turn % 2 ? e.b : e.a, *to = turn % 2 ? e.a : e.b;
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (uint8_t)(i * 7 + (size_t)turn);
        cr_assert(put(from, out, sizeof out) == (ssize_t)sizeof out && pipe_can_read(to));
        cr_assert(get(to, in, 1000) == 1000 && get(to, in + 1000, sizeof in) == (ssize_t)sizeof in - 1000);
        cr_assert(memcmp(in, out, sizeof in) == 0 && !pipe_can_read(to), "turn %d", turn);
    }
    ends_close(&e);
}

Test(pipe, a_full_ring_takes_what_fits)
{
    struct ends e;
    uint8_t *bytes = xcalloc(PIPE_BYTES + 10, 1);

    ends_open(&e);
    cr_expect(get(e.b, bytes, 1) == 0, "empty");
    cr_expect(put(e.a, bytes, PIPE_BYTES + 10) == (ssize_t)PIPE_BYTES && !pipe_can_write(e.a) && put(e.a, bytes, 1) == 0);
    cr_expect(get(e.b, bytes, 3) == 3 && pipe_can_write(e.a) && put(e.a, bytes, 10) == 3);
    free(bytes);
    ends_close(&e);
}

Test(pipe, who_sleeps_is_woken_and_who_is_awake_is_not)
{
    struct ends e;
    uint8_t *bytes = xcalloc(PIPE_BYTES, 1);
    struct iovec all = { bytes, PIPE_BYTES }, one = { bytes, 1 };
    bool wake;

    ends_open(&e);
    cr_expect(pipe_write(e.a, &one, 1, &wake) == 1 && !wake, "the reader is awake");
    pipe_sleeps(e.b, true);
    cr_expect(pipe_write(e.a, &one, 1, &wake) == 1 && wake, "it sleeps");
    pipe_sleeps(e.b, false);
    cr_expect(pipe_write(e.a, &all, 1, &wake) == (ssize_t)PIPE_BYTES - 2 && !wake, "awake again");
    pipe_sleeps(e.a, true);
    cr_expect(pipe_read(e.b, &one, 1, &wake) == 1 && wake, "the writer waits for room");
    pipe_sleeps(e.a, true);
    cr_expect(pipe_read(e.b, &one, 1, &wake) == 1 && !wake, "there was room when it went to sleep");
    free(bytes);
    ends_close(&e);
}

/* The other side writes what it likes into the memory. */
Test(pipe, counts_that_cannot_be_are_refused)
{
    struct ends e;
    uint8_t byte = 0;
    struct error why = ERROR_INIT;

    (void)snprintf(e.path, sizeof e.path, "/dev/shm/ringmaster-test-%d", (int)getpid());
    cr_assert(pipe_create(e.path, &e.a, &why) == 0, "%s", why.text);
    FILE *f = fopen(e.path, "r+");
    cr_assert(f != NULL);
    static uint8_t ones[4096];
    memset(ones, 0xff, sizeof ones);
    cr_assert(fwrite(ones, 1, sizeof ones, f) == sizeof ones && fclose(f) == 0);
    cr_expect(put(e.a, &byte, 1) < 0 || get(e.a, &byte, 1) < 0);
    pipe_free(e.a);
    cr_expect(access(e.path, F_OK) < 0, "nobody came for it, and it is still there");
}

Test(pipe, a_file_of_another_size_or_none_is_refused)
{
    struct pipe *p;
    struct error why = ERROR_INIT;
    char path[64];

    (void)snprintf(path, sizeof path, "/dev/shm/ringmaster-test-%d", (int)getpid());
    cr_expect(pipe_open(path, &p, &why) < 0 && strstr(why.text, path) != NULL, "%s", why.text);
    FILE *f = fopen(path, "w");
    cr_assert(f != NULL && fputs("short", f) >= 0 && fclose(f) == 0);
    cr_expect(pipe_open(path, &p, &why) < 0 && strstr(why.text, "5 bytes") != NULL, "%s", why.text);
    (void)unlink(path);
}
