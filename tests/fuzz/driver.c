/*
 * driver.c — runs a fuzz target over files, without libFuzzer: what `make fuzz-seeds` does with every compiler.
 *
 *     fuzz_x FILE...
 *
 * Each file goes through the target whole, cut off at every length and with every byte inverted in turn (both up to
 * MUTATED_BYTES, so that a long seed does not take minutes). The input is copied into a heap block of its exact size: the
 * address sanitizer then sees the first byte that a parser reads past the end. Prints "FILE ok" for each.
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUTATED_BYTES 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char now_running[512]; /* which input it is, for a target that aborts */

static void say_which(int signal_number)
{
    ssize_t n = write(STDERR_FILENO, now_running, strlen(now_running));
    (void)n;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_copy(const char *path, const uint8_t *data, size_t size, size_t flipped /* index, or size for none */)
{
    int len = snprintf(now_running, sizeof now_running, "the target ended on %s, its first %zu bytes", path, size);
    snprintf(now_running + len, sizeof now_running - (size_t)len, flipped < size ? ", byte %zu inverted\n" : "\n", flipped);
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    if (flipped < size)
        copy[flipped] ^= 0xff;
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    size_t size = 0, room = 1 << 16;
    uint8_t *data = malloc(room);
    size_t got = 0;
    while (data && (got = fread(data + size, 1, room - size, file)) > 0) {
        size += got;
        if (size == room)
            data = realloc(data, room *= 2);
    }
    fclose(file);
    if (!data)
        abort();

    size_t mutated = size < MUTATED_BYTES ? size : MUTATED_BYTES;
    run_copy(path, data, size, size);
    for (size_t cut = 0; cut < mutated; cut++)
        run_copy(path, data, cut, cut);
    for (size_t at = 0; at < mutated; at++)
        run_copy(path, data, size, at);
    free(data);
    printf("%s ok\n", path);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGABRT, say_which);
    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    return failed;
}
