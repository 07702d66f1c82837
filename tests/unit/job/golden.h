/*
 * golden.h — compares a text with a file of tests/unit/job/golden/. RINGMASTER_WRITE_GOLDEN=1 writes the file anew: look at
 * the difference before it is committed.
 */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include <criterion/criterion.h>

#include "base/fs.h"
#include "base/mem.h"

static inline void expect_golden(const char *file, const char *text)
{
    auto_free char *path = xasprintf("%s/unit/job/golden/%s", TEST_DIR, file), *golden = NULL;
    struct error e = ERROR_INIT;
    size_t len = 0;

    if (getenv("RINGMASTER_WRITE_GOLDEN") != NULL)
        cr_assert(fs_write_atomic(path, text, strlen(text), 0644, &e) == 0, "%s", e.text);
    cr_assert(fs_read(path, 1 << 20, &golden, &len, &e) == 0, "%s", e.text);
    cr_expect(strcmp(golden, text) == 0, "%s is now:\n%s", file, text);
}

#endif
