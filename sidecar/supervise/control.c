#include "sidecar/supervise/control.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/control.h"
#include "sidecar/supervise/dial.h"
#include "sidecar/supervise/websocket.h"

#define SCHEME "unix:"
#define LINE_MAX_BYTES 65536
#define REPORT_MAX_BYTES CONTROL_MESSAGE_MAX
#define OPENING_MS 10000          /* look-up, connection and handshakes */
#define PING_MS 10000             /* an operator that hangs keeps its connections open: it is asked whether it is alive */
#define SILENT_MS 25000
#define BUSY_QUIET 20             /* so often "not me" is no news: the next one may be the operator that leads */

/* How long until the next try; doubles up to `most`. An operator that is away is asked less often than a process beside us; one
 * that only says that it does not lead, more often: behind its Service is another that may. */
static const struct { int64_t first_ms, most_ms; } PAUSES[] = { { 50, 2000 }, { 500, 15000 }, { 100, 2000 } };
enum pause { PAUSE_LOCAL, PAUSE_REMOTE, PAUSE_BUSY };

enum control_state { CONTROL_DOWN, CONTROL_DIALLING, CONTROL_UPGRADING, CONTROL_UP };

struct control {
    struct loop *loop;
    char *address, *path;         /* path: of the unix socket; NULL = a WebSocket */
    struct websocket_url url;
    char *authority_file;         /* of the operator's certificate; NULL = none */
    char *token, key[WEBSOCKET_KEY_MAX];
    control_command_fn *on_command;
    control_connected_fn *on_connected;
    void *ctx;
    enum control_state state;
    struct dial *dial;            /* NULL: down */
    struct loop_timer *timer;     /* down: connect again; between: give up; up: ask whether the other side lives */
    enum pause pause;
    int64_t pause_ms, heard_ms;
    int busy;                     /* times in a row that it was told to try again */
    bool told;                    /* that it is down; said once */
    struct buf in, message, out;  /* message: of a frame that is continued; out: what is being sent */
    char *next;                   /* the report after it */
};

/* ---- up and down ---------------------------------------------------------------------------------------------------------- */

/* The coordinators of a thousand jobs lose an operator at one moment; they do not come back at one. */
static int64_t spread(const struct control *c)
{
    struct error e = ERROR_INIT;
    uint16_t random = 0;

    if (c->path != NULL || crypto_random(&random, sizeof random, &e) < 0)
        return c->pause_ms;
    return c->pause_ms / 2 + c->pause_ms * random / UINT16_MAX / 2;
}

static void choose_pause(struct control *c, enum pause pause)
{
    if (c->pause != pause || c->pause_ms == 0)
        c->pause_ms = PAUSES[pause].first_ms;
    else if (2 * c->pause_ms < PAUSES[pause].most_ms)
        c->pause_ms *= 2;
    else
        c->pause_ms = PAUSES[pause].most_ms;
    c->pause = pause;
}

static void disconnect(struct control *c, enum pause pause)
{
    dial_free(TAKE(c->dial));
    c->state = CONTROL_DOWN;
    buf_clear(&c->in);
    buf_clear(&c->message);
    buf_clear(&c->out);
    free(TAKE(c->next));
    choose_pause(c, pause);
    loop_timer_at(c->timer, clock_mono_ms() + spread(c));
}

static void lose(struct control *c, const struct error *why)
{
    bool busy = why->kind == ERROR_BUSY;

    c->busy = busy ? c->busy + 1 : 0;
    if (!c->told && (!busy || c->busy > BUSY_QUIET)) {
        log_warn_from("nobody reads the reports; training goes on", why, KV("control", c->address));
        c->told = true;
    }
    disconnect(c, c->path != NULL ? PAUSE_LOCAL : busy ? PAUSE_BUSY : PAUSE_REMOTE);
}

static void come_up(struct control *c)
{
    if (c->told)
        log_info("reports are read again", KV("control", c->address));
    c->told = false;
    c->busy = 0;
    c->pause_ms = 0;
    c->state = CONTROL_UP;
    c->heard_ms = clock_mono_ms();
    if (c->path == NULL)
        loop_timer_at(c->timer, c->heard_ms + PING_MS);
    else
        loop_timer_cancel(c->timer);
    c->on_connected(c->ctx);
}

/* ---- sending -------------------------------------------------------------------------------------------------------------- */

static void take_next(struct control *c)
{
    struct error e = ERROR_INIT;
    uint8_t mask[4];

    if (c->path != NULL) {
        buf_add(&c->out, c->next);
        buf_add(&c->out, "\n");
    } else if (crypto_random(mask, sizeof mask, &e) == 0) {
        websocket_frame(WEBSOCKET_TEXT, c->next, strlen(c->next), mask, &c->out);
    }
    free(TAKE(c->next));
    if (!buf_ok(&c->out)) { /* it would be cut: none is better */
        log_warn("a report is too large to be sent");
        buf_release(&c->out);
        c->out = (struct buf)BUF_INIT(REPORT_MAX_BYTES);
    }
}

static int flush(struct control *c, struct error *e)
{
    while (c->state >= CONTROL_UPGRADING) {
        if (c->out.len == 0 && c->next != NULL && c->state == CONTROL_UP)
            take_next(c);
        if (c->out.len == 0)
            return 0;
        ssize_t n = dial_send(c->dial, c->out.text, c->out.len, e);
        if (n < 0)
            return e->kind == ERROR_BUSY ? 0 : -1;
        buf_consume(&c->out, (size_t)n);
    }
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------------------------------------ */

static void on_text(struct control *c, const char *text, size_t len)
{
    enum report_command command;
    int64_t number = 0;
    struct error e = ERROR_INIT;

    if (len == 0)
        return;
    if (report_command_decode(text, len, &command, &number, &e) != 0)
        log_warn_from("command not understood", &e);
    else
        c->on_command(c->ctx, command, number);
}

static int take_lines(struct control *c, struct error *e)
{
    for (char *end = memchr(c->in.text, '\n', c->in.len); end != NULL; end = memchr(c->in.text, '\n', c->in.len)) {
        size_t len = (size_t)(end - c->in.text);
        on_text(c, c->in.text, len);
        if (c->state != CONTROL_UP)
            return 0; /* what it led to has closed the channel */
        buf_consume(&c->in, len + 1);
        if (c->in.len == 0)
            break;
    }
    return buf_ok(&c->in) ? 0 : error_set(e, ERROR_LIMIT, "a line is longer than %d bytes", LINE_MAX_BYTES);
}

static int take_frame(struct control *c, const struct websocket_frame *f, struct error *e)
{
    uint8_t mask[4];
    uint16_t code = 0;
    char reason[128];

    switch (f->opcode) {
    case WEBSOCKET_CLOSE:
        websocket_close_reason(f, &code, reason);
        return error_set(e, code == WEBSOCKET_TRY_LATER ? ERROR_BUSY : ERROR_GONE, "the operator closed the channel (code %u): %s", code,
                         reason[0] != '\0' ? reason : "it gives no reason");
    case WEBSOCKET_PONG: return 0;
    case WEBSOCKET_PING:
        if (crypto_random(mask, sizeof mask, e) < 0)
            return -1;
        websocket_frame(WEBSOCKET_PONG, f->bytes, f->len, mask, &c->out);
        return 0;
    case WEBSOCKET_TEXT: case WEBSOCKET_BINARY: case WEBSOCKET_CONTINUED: break;
    }
    buf_add_bytes(&c->message, f->bytes, f->len);
    if (!buf_ok(&c->message))
        return error_set(e, ERROR_LIMIT, "a message is longer than %d bytes", LINE_MAX_BYTES);
    if (f->is_last) {
        on_text(c, buf_text(&c->message), c->message.len);
        buf_clear(&c->message);
    }
    return 0;
}

static int take_frames(struct control *c, struct error *e)
{
    struct websocket_frame f;
    int found;

    while ((found = websocket_read((const uint8_t *)buf_text(&c->in), c->in.len, LINE_MAX_BYTES / 2, &f, e)) == 1) {
        if (take_frame(c, &f, e) < 0)
            return -1;
        if (c->state != CONTROL_UP)
            return 0; /* what it led to has closed the channel */
        buf_consume(&c->in, f.consumed);
    }
    return found;
}

static int take_answer(struct control *c, struct error *e)
{
    int head = websocket_answer(buf_text(&c->in), c->in.len, c->key, e);

    if (head <= 0)
        return head;
    buf_consume(&c->in, (size_t)head);
    come_up(c);
    return 0;
}

static int take(struct control *c, struct error *e)
{
    if (c->path != NULL)
        return take_lines(c, e);
    if (c->state == CONTROL_UPGRADING && take_answer(c, e) < 0)
        return -1;
    return c->state == CONTROL_UP ? take_frames(c, e) : 0;
}

/* All that has arrived; 0 also when what it led to has closed the channel. */
static int receive(struct control *c, struct error *e)
{
    char bytes[4096];

    while (c->dial != NULL) {
        ssize_t n = dial_receive(c->dial, bytes, sizeof bytes, e);
        if (n < 0)
            return e->kind == ERROR_BUSY ? 0 : -1;
        c->heard_ms = clock_mono_ms();
        buf_add_bytes(&c->in, bytes, (size_t)n);
        if (take(c, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

static int upgrade(struct control *c, struct error *e)
{
    if (c->path != NULL) {
        come_up(c);
        return 0;
    }
    if (websocket_make_key(c->key, e) < 0)
        return -1;
    websocket_request(&c->url, c->key, CONTROL_PROTOCOL, c->token, &c->out);
    c->state = CONTROL_UPGRADING;
    return 0;
}

static void on_dial(void *ctx, const struct error *why)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;
    int result = 0;

    if (why != NULL) {
        lose(c, why);
        return;
    }
    if (c->state == CONTROL_DIALLING)
        result = upgrade(c, &e);
    if (result == 0)
        result = receive(c, &e);
    if (result == 0)
        result = flush(c, &e);
    if (result < 0)
        lose(c, &e);
}

static int open_channel(struct control *c, struct error *e)
{
    struct dial_options options = { .path = c->path, .host = c->url.host, .port = c->url.port,
                                    .authority_file = c->url.secure ? c->authority_file : NULL };

    if (dial_new(c->loop, &options, on_dial, c, &c->dial, e) < 0)
        return -1;
    c->state = CONTROL_DIALLING;
    loop_timer_at(c->timer, clock_mono_ms() + OPENING_MS);
    return 0;
}

static int ask_whether_alive(struct control *c, struct error *e)
{
    int64_t now_ms = clock_mono_ms();
    uint8_t mask[4];

    if (now_ms - c->heard_ms >= SILENT_MS)
        return error_set(e, ERROR_TIMEOUT, "the operator has not been heard for %d s", SILENT_MS / 1000);
    if (crypto_random(mask, sizeof mask, e) < 0)
        return -1;
    loop_timer_at(c->timer, now_ms + PING_MS);
    if (c->out.len == 0) /* else it is not reading now, and is asked by what waits */
        websocket_frame(WEBSOCKET_PING, "", 0, mask, &c->out);
    return flush(c, e);
}

static void on_timer(void *ctx)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;
    int result = 0;

    switch (c->state) {
    case CONTROL_DOWN: result = open_channel(c, &e); break;
    case CONTROL_UP: result = ask_whether_alive(c, &e); break;
    case CONTROL_DIALLING:
    case CONTROL_UPGRADING: result = error_set(&e, ERROR_TIMEOUT, "%s does not answer", c->url.host); break;
    }
    if (result < 0)
        lose(c, &e);
}

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

void control_send(struct control *c, char *text)
{
    struct error e = ERROR_INIT;

    free(c->next);
    c->next = text;
    if (c->state != CONTROL_UP)
        free(TAKE(c->next)); /* whoever connects gets the state of that time */
    else if (flush(c, &e) < 0)
        lose(c, &e);
}

bool control_flushed(const struct control *c)
{
    return c->state != CONTROL_UP || (c->out.len == 0 && c->next == NULL);
}

int control_new(struct loop *l, const struct control_options *options, control_command_fn *on_command, control_connected_fn *on_connected,
                void *ctx, struct control **ret, struct error *e)
{
    const char *address = options->address;
    bool local = strncmp(address, SCHEME, strlen(SCHEME)) == 0;
    struct websocket_url url = { .port = 0 };

    if (local && address[strlen(SCHEME)] == '\0')
        return error_set(e, ERROR_INVALID, "RINGMASTER_CONTROL: found \"%.100s\", expected unix:PATH, ws://HOST[:PORT]/PATH or wss://HOST[:PORT]/PATH",
                         address);
    if (!local && websocket_parse_url(address, &url, e) < 0)
        return error_wrap(e, "RINGMASTER_CONTROL");
    if (url.secure && (options->authority_file == NULL || options->authority_file[0] == '\0'))
        return error_set(e, ERROR_INVALID, "RINGMASTER_CONTROL_CA is not set: it names the file with the certificate of the authority that "
                         "%s is checked against", address);
    struct control *c = xcalloc(1, sizeof *c);
    *c = (struct control){ .loop = l, .address = xstrdup(address), .path = local ? xstrdup(address + strlen(SCHEME)) : NULL, .url = url,
                           .authority_file = xstrdup(options->authority_file), .token = xstrdup(options->token), .on_command = on_command,
                           .on_connected = on_connected, .ctx = ctx };
    c->in = (struct buf)BUF_INIT(LINE_MAX_BYTES);
    c->message = (struct buf)BUF_INIT(LINE_MAX_BYTES);
    c->out = (struct buf)BUF_INIT(REPORT_MAX_BYTES);
    c->timer = loop_timer_new(l, on_timer, c);
    loop_timer_at(c->timer, clock_mono_ms());
    *ret = c;
    return 0;
}

void control_free(struct control *c)
{
    if (c == NULL)
        return;
    dial_free(c->dial);
    loop_timer_free(c->timer);
    buf_release(&c->in);
    buf_release(&c->message);
    buf_release(&c->out);
    free(c->next);
    if (c->token != NULL)
        crypto_wipe(c->token, strlen(c->token));
    free(c->token);
    free(c->authority_file);
    free(c->path);
    free(c->address);
    free(c);
}
