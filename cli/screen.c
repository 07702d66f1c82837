#include "cli/screen.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define WAITING_MAX (1u << 20) /* lines that wait for the next drawing; more are put out at once */
#define NO_WIDTH 4096           /* columns, where nothing is cut */
#define HIDE_CURSOR "\033[?25l"
#define SHOW_CURSOR "\033[?25h"
#define CLEAR_BELOW "\033[J"

struct screen {
    int fd;
    struct screen_options options;
    bool live, color, unicode, gone, drawn;
    int name_width;
    struct buf waiting, picture;
};

static bool environment_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

bool screen_is_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

bool screen_wants_color(int fd)
{
    return screen_is_terminal(fd) && !environment_set("NO_COLOR");
}

struct view_style screen_stdout_style(void)
{
    struct winsize size = { .ws_col = 0 };
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : NO_WIDTH;
    return (struct view_style){ .width = width, .color = screen_wants_color(STDOUT_FILENO) };
}

struct screen *screen_new(int fd, const struct screen_options *options, int name_width)
{
    struct screen *s = xcalloc(1, sizeof *s);
    setlocale(LC_CTYPE, "");
    *s = (struct screen){ .fd = fd, .options = *options, .name_width = name_width, .waiting = BUF_INIT(2 * WAITING_MAX),
                          .picture = BUF_INIT(1u << 20) };
    s->live = screen_is_terminal(fd) && !options->plain && !options->quiet;
    s->color = screen_wants_color(fd) && !options->no_color;
    s->unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return s;
}

bool screen_live(const struct screen *s)
{
    return s->live;
}

bool screen_color(const struct screen *s)
{
    return s->color;
}

static void put(struct screen *s, const char *text, size_t len)
{
    while (len > 0 && !s->gone) {
        ssize_t n = write(s->fd, text, len);
        if (n >= 0) {
            text += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            struct pollfd wait = { .fd = s->fd, .events = POLLOUT };
            (void)poll(&wait, 1, 1000);
        } else if (errno != EINTR) {
            s->gone = true;
        }
    }
}

static void flush_waiting(struct screen *s)
{
    put(s, buf_text(&s->waiting), s->waiting.len);
    buf_clear(&s->waiting);
}

static void erase(struct screen *s, struct buf *out, int width)
{
    int rows = s->drawn ? view_rows(buf_text(&s->picture), width) : 0;
    if (rows > 0)
        buf_addf(out, "\033[%dA", rows);
    buf_add(out, "\r" CLEAR_BELOW);
}

static void line_done(struct screen *s)
{
    if (!s->live)
        flush_waiting(s);
    else if (s->waiting.len > WAITING_MAX)
        screen_draw(s, NULL);
}

void screen_line(struct screen *s, const char *text)
{
    if (s->options.quiet)
        return;
    buf_addf(&s->waiting, "%s\n", text);
    line_done(s);
}

void screen_log(struct screen *s, const char *member, const char *text, size_t len, int64_t now_wall_ms)
{
    char time[CLOCK_TEXT_MAX];
    if (s->options.quiet)
        return;
    if (s->options.log_timestamps) {
        clock_format(now_wall_ms, time);
        buf_addf(&s->waiting, "%s ", time);
    }
    if (s->options.log_prefix)
        view_log_prefix(member, s->name_width, s->color, &s->waiting);
    buf_add_bytes(&s->waiting, text, len);
    buf_add(&s->waiting, s->color ? "\033[0m\n" : "\n");
    line_done(s);
}

struct view_style screen_style(const struct screen *s)
{
    struct winsize size = { .ws_col = 80, .ws_row = 24 };
    if (ioctl(s->fd, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        size = (struct winsize){ .ws_col = 80, .ws_row = 24 };
    int rows = (int)size.ws_row - 6;
    /* One column less: a line that fills the last one wraps on some terminals. */
    return (struct view_style){ .width = (int)size.ws_col - 1, .max_rows = rows > 3 ? rows : 3, .color = s->color, .unicode = s->unicode };
}

/* What waits goes above, the picture is drawn anew; text NULL: the one that is there. */
static void redraw(struct screen *s, const char *text)
{
    auto_buf struct buf out = BUF_INIT(8u << 20);
    buf_add(&out, HIDE_CURSOR);
    erase(s, &out, screen_style(s).width + 1);
    buf_add_bytes(&out, buf_text(&s->waiting), s->waiting.len);
    if (text) {
        buf_clear(&s->picture);
        buf_add(&s->picture, text);
    }
    buf_add_bytes(&out, buf_text(&s->picture), s->picture.len);
    buf_add(&out, SHOW_CURSOR);
    s->drawn = true;
    buf_clear(&s->waiting);
    put(s, buf_text(&out), out.len);
}

void screen_picture(struct screen *s, const char *text)
{
    if (s->live)
        redraw(s, text);
    else
        flush_waiting(s);
}

void screen_draw(struct screen *s, const struct view *v)
{
    if (!s->live) {
        flush_waiting(s);
        return;
    }
    struct view_style style = screen_style(s);
    auto_buf struct buf text = BUF_INIT(1u << 20);
    if (v)
        (void)view_format(v, &style, &text);
    redraw(s, v ? buf_text(&text) : NULL);
}

void screen_text(struct screen *s, const char *text)
{
    if (s->live)
        screen_draw(s, NULL);
    else
        flush_waiting(s);
    put(s, text, strlen(text));
    buf_clear(&s->picture);
    s->drawn = false;
}

void screen_free(struct screen *s)
{
    if (!s)
        return;
    flush_waiting(s);
    if (s->live)
        put(s, SHOW_CURSOR, strlen(SHOW_CURSOR));
    buf_release(&s->waiting);
    buf_release(&s->picture);
    free(s);
}
