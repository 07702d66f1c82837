#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/line.h"
#include "cli/screen.h"

#define TEXT_COLUMNS 60 /* what stands beside the bar */
#define BAR_MAX 40

struct progress {
    char *label;
    struct screen *screen;
    uint64_t total, done;
    int64_t begun_ms, drawn_ms;
};

struct progress *progress_new(const char *label, uint64_t total)
{
    struct screen_options options = { .plain = false };
    struct progress *p = xcalloc(1, sizeof *p);
    *p = (struct progress){ .label = xstrdup(label), .screen = screen_new(STDERR_FILENO, &options, 0), .total = total,
                            .begun_ms = clock_mono_ms() };
    return p;
}

static void draw(struct progress *p, int64_t now_ms)
{
    char done[TEXT_SIZE_MAX], total[TEXT_SIZE_MAX], speed[TEXT_SIZE_MAX], left[VIEW_DURATION_MAX];
    struct view_style style = screen_style(p->screen);
    auto_buf struct buf text = BUF_INIT(4096);
    struct line l = line_start(&text, style.width, style.color);
    double fraction = p->total > 0 ? (double)p->done / (double)p->total : 1, seconds = (double)(now_ms - p->begun_ms) / 1000;
    double rate = seconds > 0 ? (double)p->done / seconds : 0;
    int width = style.width - TEXT_COLUMNS;
    line_textf(&l, "%s ", p->label);
    if (width >= 10)
        line_bar(&l, width < BAR_MAX ? width : BAR_MAX, fraction < 1 ? fraction : 1, style.unicode);
    line_textf(&l, " %3.0f %%  %s of %s  %s/s", fraction * 100, text_bytes(p->done, done), text_bytes(p->total, total),
               text_bytes((uint64_t)rate, speed));
    if (rate > 0 && p->done < p->total)
        line_textf(&l, "  %s left", view_duration((int64_t)((double)(p->total - p->done) / rate * 1000), left));
    line_end(&l);
    screen_picture(p->screen, buf_text(&text));
}

void progress_add(void *progress, uint64_t bytes)
{
    struct progress *p = progress;
    int64_t now_ms = clock_mono_ms();
    p->done += bytes;
    if (!screen_live(p->screen) || now_ms - p->drawn_ms < SCREEN_INTERVAL_MS)
        return;
    p->drawn_ms = now_ms;
    draw(p, now_ms);
}

void progress_clear(struct progress *p)
{
    if (screen_live(p->screen) && p->drawn_ms > 0)
        screen_picture(p->screen, "");
}

void progress_free(struct progress *p)
{
    if (!p)
        return;
    progress_clear(p);
    screen_free(p->screen);
    free(p->label);
    free(p);
}
