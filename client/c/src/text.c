#include "text.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last[TEXT_MAX];

int text_fail(int code, const char *fmt, ...)
{
    char text[TEXT_MAX]; /* the arguments may point into `last` */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    snprintf(last, sizeof(last), "%s", text);
    return code;
}

const char *text_last(void)
{
    return last;
}
