#include "cli/line.h"

#include <stdarg.h>
#include <stdio.h>

struct line line_start(struct buf *out, int width, bool color)
{
    return (struct line){ .out = out, .left = width > 0 ? width : 80, .color = color };
}

void line_text(struct line *l, const char *text)
{
    for (const char *p = text; *p && l->left > 0;) {
        size_t bytes = 1;
        while (((unsigned char)p[bytes] & 0xc0) == 0x80) /* the rest of a UTF-8 character */
            bytes++;
        buf_add_bytes(l->out, p, bytes);
        p += bytes;
        l->left--;
    }
}

void line_textf(struct line *l, const char *fmt, ...)
{
    char text[1000];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    line_text(l, text);
}

void line_color(struct line *l, const char *sgr)
{
    if (l->color)
        buf_add(l->out, sgr);
}

void line_colored(struct line *l, const char *sgr, const char *text)
{
    line_color(l, sgr);
    line_text(l, text);
    line_color(l, SGR_RESET);
}

void line_bar(struct line *l, int width, double fraction, bool unicode)
{
    int full = (int)(fraction * width);
    line_color(l, SGR_GREEN);
    for (int i = 0; i < full; i++)
        line_text(l, unicode ? "━" : "#");
    line_color(l, SGR_RESET);
    line_color(l, SGR_DIM);
    for (int i = full; i < width; i++)
        line_text(l, unicode ? "─" : "-");
    line_color(l, SGR_RESET);
}

void line_end(struct line *l)
{
    buf_add(l->out, "\n");
}
