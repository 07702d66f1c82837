/*
 * screen.h — the terminal: a picture at the bottom that is drawn again and again, lines that scroll above it.
 *
 * On a terminal everything is put out in one write a drawing, at most SCREEN_HZ times a second. Elsewhere (a file, a pipe,
 * TERM=dumb, --plain) lines are put out as they come and pictures not at all. An output that went away is not written to
 * again; the job goes on.
 */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include "cli/view.h"

#define SCREEN_INTERVAL_MS 200

struct screen_options { bool plain, no_color, quiet, log_prefix, log_timestamps; };
struct screen;

/* A terminal whose user has not set NO_COLOR (https://no-color.org: to any value but the empty one). */
bool screen_wants_color(int fd);

bool screen_is_terminal(int fd); /* one that can draw: TERM is not "dumb" */
/* For what is printed once: the terminal's width; without a terminal, lines of any length. */
struct view_style screen_stdout_style(void);

struct screen *screen_new(int fd, const struct screen_options *options, int name_width);
bool screen_live(const struct screen *s);
bool screen_color(const struct screen *s);
void screen_line(struct screen *s, const char *text);                                        /* without a newline */
void screen_log(struct screen *s, const char *member, const char *text, size_t len, int64_t now_wall_ms);
struct view_style screen_style(const struct screen *s);    /* of a picture that fits now */
void screen_picture(struct screen *s, const char *text);   /* the same with a picture of the caller's; lines fit the width */
void screen_draw(struct screen *s, const struct view *v);  /* puts out waiting lines and the picture */
void screen_text(struct screen *s, const char *text);      /* several lines as they are, past quiet too */
void screen_free(struct screen *s);                        /* leaves the last picture standing, gives the cursor back */

#endif
