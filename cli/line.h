/*
 * line.h — one line of a table or picture being written: cut at the terminal's width, coloured where that is wanted. Pure.
 */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include "base/buf.h"

#define SGR_RESET "\033[0m"
#define SGR_BOLD "\033[1m"
#define SGR_DIM "\033[2m"
#define SGR_RED "\033[31m"
#define SGR_GREEN "\033[32m"
#define SGR_YELLOW "\033[33m"
#define SGR_CYAN "\033[36m"

struct line { struct buf *out; int left; bool color; }; /* left: columns */

struct line line_start(struct buf *out, int width /* 0: 80 */, bool color);
/* UTF-8; text counts, colours do not. What is beyond the width is left out. */
void line_text(struct line *l, const char *text);
void line_textf(struct line *l, const char *fmt, ...) FORMAT(2, 3); /* at most 1000 bytes */
void line_color(struct line *l, const char *sgr);
void line_colored(struct line *l, const char *sgr, const char *text);
void line_bar(struct line *l, int width, double fraction, bool unicode); /* columns; 0 to 1 is done */
void line_end(struct line *l);

#endif
