#include "cli/logmerge.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct waiting_line { struct waiting_line *next; int64_t time_ns, came_ms; size_t len; char text[]; };

struct log {
    const void *of;
    struct waiting_line *first, **last;
    int64_t newest_ns;  /* times of one log never go back */
    bool resting;
};

struct logmerge {
    struct log *logs;
    size_t count;
    size_t *heap;       /* logs that have a line, the oldest line on top */
    size_t heap_count;
    size_t quiet;       /* logs that go on and have no line */
    size_t bytes, max_bytes;
    int64_t patience_ms;
    struct waiting_line *given;
};

struct logmerge *logmerge_new(int64_t patience_ms, size_t max_bytes)
{
    struct logmerge *m = xcalloc(1, sizeof *m);
    m->patience_ms = patience_ms;
    m->max_bytes = max_bytes;
    return m;
}

void logmerge_free(struct logmerge *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->count; i++) {
        for (struct waiting_line *l = m->logs[i].first, *next; l; l = next) {
            next = l->next;
            free(l);
        }
    }
    free(m->given);
    free(m->logs);
    free(m->heap);
    free(m);
}

size_t logmerge_open(struct logmerge *m, const void *of)
{
    m->logs = xrealloc(m->logs, m->count + 1, sizeof *m->logs);
    m->heap = xrealloc(m->heap, m->count + 1, sizeof *m->heap);
    m->logs[m->count] = (struct log){ .of = of, .newest_ns = INT64_MIN };
    m->quiet++;
    return m->count++;
}

/* ---- the heap ---------------------------------------------------------------------------------------------------------- */

static bool before(const struct logmerge *m, size_t a, size_t b)
{
    int64_t x = m->logs[a].first->time_ns, y = m->logs[b].first->time_ns;
    return x != y ? x < y : a < b;
}

static void sift_up(struct logmerge *m, size_t at)
{
    size_t log = m->heap[at];
    while (at > 0 && before(m, log, m->heap[(at - 1) / 2])) {
        m->heap[at] = m->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->heap[at] = log;
}

static void sift_down(struct logmerge *m, size_t at)
{
    size_t log = m->heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= m->heap_count)
            break;
        if (child + 1 < m->heap_count && before(m, m->heap[child + 1], m->heap[child]))
            child++;
        if (!before(m, m->heap[child], log))
            break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = log;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------- */

void logmerge_add(struct logmerge *m, size_t log, int64_t time_ns, const char *text, size_t len, int64_t now_ms)
{
    struct log *g = &m->logs[log];
    struct waiting_line *l = xcalloc(1, sizeof *l + len + 1);
    g->newest_ns = time_ns > g->newest_ns ? time_ns : g->newest_ns;
    l->time_ns = g->newest_ns;
    l->came_ms = now_ms;
    l->len = len;
    memcpy(l->text, text, len);
    m->bytes += sizeof *l + len;
    if (g->first) {
        *g->last = l;
        g->last = &l->next;
        return;
    }
    g->first = l;
    g->last = &l->next;
    m->quiet -= !g->resting;
    m->heap[m->heap_count++] = log;
    sift_up(m, m->heap_count - 1);
}

void logmerge_rest(struct logmerge *m, size_t log)
{
    struct log *g = &m->logs[log];
    m->quiet -= !g->resting && !g->first;
    g->resting = true;
}

void logmerge_wait(struct logmerge *m, size_t log)
{
    struct log *g = &m->logs[log];
    m->quiet += g->resting && !g->first;
    g->resting = false;
}

bool logmerge_next(struct logmerge *m, int64_t now_ms, struct logmerge_line *ret)
{
    free(TAKE(m->given));
    if (m->heap_count == 0)
        return false;
    struct log *g = &m->logs[m->heap[0]];
    struct waiting_line *l = g->first;
    bool patient = m->patience_ms < 0 || now_ms - l->came_ms < m->patience_ms;
    if (m->quiet > 0 && patient && m->bytes <= m->max_bytes)
        return false;
    g->first = l->next;
    m->bytes -= sizeof *l + l->len;
    if (!g->first) {
        m->quiet += !g->resting;
        m->heap_count--;
        if (m->heap_count > 0)
            m->heap[0] = m->heap[m->heap_count];
    }
    if (m->heap_count > 0)
        sift_down(m, 0);
    m->given = l;
    *ret = (struct logmerge_line){ .of = g->of, .time_ns = l->time_ns, .text = l->text, .len = l->len };
    return true;
}

int64_t logmerge_wake_ms(const struct logmerge *m)
{
    return m->heap_count == 0 || m->patience_ms < 0 ? -1 : m->logs[m->heap[0]].first->came_ms + m->patience_ms;
}
