#include "job/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

void problems_add(struct problems *p, const struct yaml_doc *doc, const cJSON *value, const char *path, const char *fmt, ...)
{
    if (p->count == SCHEMA_ERRORS_MAX) {
        p->more = true;
        return;
    }
    struct problem *problem = &p->items[p->count++];
    struct yaml_place at = doc != NULL && value != NULL ? yaml_place_of(doc, value) : (struct yaml_place){ 0, 0 };
    va_list args;

    problem->line = at.line;
    problem->column = at.column;
    (void)snprintf(problem->path, sizeof problem->path, "%s", path);
    va_start(args, fmt);
    (void)vsnprintf(problem->text, sizeof problem->text, fmt, args);
    va_end(args);
}

char *problems_format(const struct problems *p, const char *file)
{
    auto_buf struct buf out = BUF_INIT(SCHEMA_ERRORS_MAX * 8192);

    for (size_t i = 0; i < p->count; i++) {
        const struct problem *problem = &p->items[i];
        buf_addf(&out, "%.4096s:", file);
        if (problem->line > 0)
            buf_addf(&out, "%d:%d:", problem->line, problem->column);
        buf_addf(&out, " %s%s%s\n", problem->path, problem->path[0] != '\0' ? ": " : "", problem->text);
    }
    if (p->more)
        buf_addf(&out, "%.4096s: and more problems; the first %d are listed\n", file, SCHEMA_ERRORS_MAX);
    buf_add(&out, "");
    return buf_take(&out);
}

static int compare_problems(const void *a, const void *b)
{
    const struct problem *x = a, *y = b;

    if (x->line != y->line)
        return x->line - y->line;
    return x->column != y->column ? x->column - y->column : strcmp(x->path, y->path);
}

void problems_sort(struct problems *p)
{
    qsort(p->items, p->count, sizeof p->items[0], compare_problems);
}
