#include "base/error.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

Test(error, errno_gives_kind_and_reason)
{
    static const struct { int code; enum error_kind kind; } rows[] = {
        { ENOENT, ERROR_NOT_FOUND }, { EACCES, ERROR_DENIED }, { EEXIST, ERROR_CONFLICT },
        { EAGAIN, ERROR_BUSY },      { ENOMEM, ERROR_LIMIT },  { ENOSPC, ERROR_IO },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct error e = ERROR_INIT;
        errno = rows[i].code;
        cr_expect_eq(error_errno(&e, "open %s", "x"), -1);
        cr_expect_eq(e.kind, rows[i].kind, "case %d", rows[i].code);
        cr_expect_eq(e.os_errno, rows[i].code);
        cr_expect_eq(strncmp(e.text, "open x: ", 8), 0);
    }
}

Test(error, wrapping_keeps_the_kind_and_cuts_what_is_too_long)
{
    struct error e = ERROR_INIT;
    char longer[400];

    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)error_set(&e, ERROR_GONE, "inner");
    cr_expect_eq(error_wrap(&e, "outer %d", 1), -1);
    cr_expect_str_eq(e.text, "outer 1: inner");
    cr_expect_eq(e.kind, ERROR_GONE);
    (void)error_wrap(&e, "%s", longer);
    cr_expect_eq(strlen(e.text), sizeof e.text - 1);
}

Test(error, every_kind_has_a_name)
{
    for (int k = ERROR_NONE; k <= ERROR_BUG; k++)
        cr_expect_not_null(error_kind_name((enum error_kind)k), "kind %d", k);
}
