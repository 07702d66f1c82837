#include "base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *checked(void *p)
{
    if (p == NULL) {
        static const char message[] = "out of memory\n";
        (void)!write(STDERR_FILENO, message, sizeof message - 1);
        abort();
    }
    return p;
}

void *xcalloc(size_t count, size_t size)
{
    return checked(calloc(count > 0 ? count : 1, size > 0 ? size : 1));
}

void *xrealloc(void *p, size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes))
        return checked(NULL);
    return checked(realloc(p, bytes > 0 ? bytes : 1));
}

char *xstrdup(const char *s)
{
    return s != NULL ? checked(strdup(s)) : NULL;
}

char *xstrndup(const char *s, size_t len)
{
    return checked(strndup(s, len));
}

char *xasprintf(const char *fmt, ...)
{
    char *text = NULL;
    va_list args;

    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    return checked(n >= 0 ? text : NULL);
}

void cleanup_free(void *p)
{
    free(*(void **)p);
}

void cleanup_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

void cleanup_file(void *p)
{
    FILE *file = *(FILE **)p;

    if (file != NULL)
        (void)fclose(file);
}
