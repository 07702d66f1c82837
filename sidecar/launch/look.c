#include "sidecar/launch/look.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "sidecar/launch/descend.h"

#define PROCESSES_MAX 64
#define THREADS_MAX 256   /* of one process */
#define ANSWER_LIMIT_MS 2000
#define ANSWER_LOOK_MS 20
#define FILE_BYTES (256u << 10)

struct asked { /* a process that writes its own stacks */
    pid_t pid;
    int fd;
    dev_t device;
    ino_t inode;
    off_t from, last;
};

struct look {
    struct loop_timer *timer;
    look_fn *fn;
    void *ctx;
    bool busy;
    uint32_t number;
    int64_t until_ms;
    struct asked asked[PROCESSES_MAX];
    size_t count;
};

/* ---- reading /proc ---- */

/* Owned, a C string; NULL when it is not there. */
static char *read_file(const char *path, size_t most)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t len = 0;

    if (fd < 0)
        return NULL;
    auto_free char *text = xcalloc(1, most + 1);
    while (len < most) {
        ssize_t n = read(fd, text + len, most - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    return TAKE(text);
}

static char *read_proc(pid_t pid, const char *name, size_t most)
{
    auto_free char *path = xasprintf("/proc/%ld/%s", (long)pid, name);

    return read_file(path, most);
}

bool look_parse_stat(const char *text, char *ret_state, uint64_t *ret_ticks)
{
    const char *after = strrchr(text, ')');
    unsigned long long own[2], ended[2];

    if (after == NULL || sscanf(after + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu", ret_state, &own[0], &own[1],
                                &ended[0], &ended[1]) != 5)
        return false;
    *ret_ticks = own[0] + own[1] + ended[0] + ended[1];
    return true;
}

bool look_catches(const char *status, int signal_number)
{
    const char *line = strstr(status, "\nSigCgt:");
    uint64_t mask = line != NULL ? strtoull(line + 8, NULL, 16) : 0;

    return (mask >> (signal_number - 1) & 1) != 0;
}

void look_place(const char *maps, uint64_t address, char ret_text[160])
{
    ret_text[0] = '\0';
    for (const char *line = maps; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        uint64_t from = 0, to = 0, offset = 0;
        int at = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %n", &from, &to, &offset, &at) == 3 && address >= from && address < to) {
            int len = (int)(end != NULL ? end - line : (ptrdiff_t)strlen(line));
            const char *name = line + len;
            while (name > line + at && name[-1] != '/')
                name--;
            (void)snprintf(ret_text, 160, "%.*s+0x%" PRIx64, (int)(line + len - name), name, address - from + offset);
            return;
        }
        line = end != NULL ? end + 1 : NULL;
    }
}

/* ---- signs ---- */

void look_signs(struct local_signs *ret)
{
    auto_free pid_t *pids = NULL;
    size_t count = descend_list(&pids);
    uint64_t ticks = 0;
    long hertz = sysconf(_SC_CLK_TCK);

    ret->traced = 0;
    for (size_t i = 0; i < count; i++) {
        auto_free char *stat = read_proc(pids[i], "stat", 1024);
        char state = 0;
        uint64_t used = 0;
        if (stat == NULL || !look_parse_stat(stat, &state, &used))
            continue;
        ticks += used;
        ret->traced |= state == 't';
    }
    ret->cpu_ms = ticks * 1000 / (uint64_t)(hertz > 0 ? hertz : 100);
}

/* ---- one process as text ---- */

static void add_trimmed(struct buf *b, const char *label, char *text)
{
    if (text == NULL)
        return;
    for (size_t len = strlen(text); len > 0 && isspace((unsigned char)text[len - 1]); len--)
        text[len - 1] = '\0';
    text_make_plain(text);
    if (text[0] != '\0' && strcmp(text, "0") != 0)
        buf_addf(b, "%s%s", label, text);
}

/* "61 0x... 0x... ... SP PC", "running", or "-1 SP PC" for one that is not in a system call. */
static void add_syscall(struct buf *b, const char *text, const char *maps)
{
    const char *last = text != NULL ? strrchr(text, ' ') : NULL;
    char place[160] = "";

    if (text == NULL || last == NULL)
        return;
    look_place(maps, strtoull(last, NULL, 16), place);
    if (text[0] != '-')
        buf_addf(b, "  system call %ld", strtol(text, NULL, 10));
    if (place[0] != '\0')
        buf_addf(b, "  at %s", place);
}

static void add_thread(struct buf *b, pid_t pid, const char *tid, const char *maps)
{
    char name[64], state = '?';
    uint64_t ticks = 0;

    (void)snprintf(name, sizeof name, "task/%.20s/comm", tid);
    auto_free char *comm = read_proc(pid, name, 64);
    (void)snprintf(name, sizeof name, "task/%.20s/stat", tid);
    auto_free char *stat = read_proc(pid, name, 1024);
    (void)snprintf(name, sizeof name, "task/%.20s/wchan", tid);
    auto_free char *wchan = read_proc(pid, name, 128);
    (void)snprintf(name, sizeof name, "task/%.20s/syscall", tid);
    auto_free char *call = read_proc(pid, name, 512);
    (void)snprintf(name, sizeof name, "task/%.20s/stack", tid);
    auto_free char *stack = read_proc(pid, name, 4096);
    if (stat == NULL || !look_parse_stat(stat, &state, &ticks))
        return; /* it ended meanwhile */
    buf_addf(b, "  thread %s", tid);
    add_trimmed(b, " ", comm);
    buf_addf(b, "  %c  cpu %" PRIu64 " ticks", state, ticks);
    add_syscall(b, call, maps);
    add_trimmed(b, "  waits in ", wchan);
    buf_add(b, "\n");
    for (char *rest = NULL, *line = stack != NULL ? strtok_r(stack, "\n", &rest) : NULL; line != NULL; line = strtok_r(NULL, "\n", &rest))
        buf_addf(b, "      kernel %.120s\n", line);
}

static void add_process_text(struct buf *b, pid_t pid)
{
    auto_free char *path = xasprintf("/proc/%ld/task", (long)pid);
    auto_free char *command = read_proc(pid, "cmdline", 1024);
    auto_free char *maps = read_proc(pid, "maps", FILE_BYTES);
    DIR *dir = opendir(path);
    int threads = 0;

    if (dir == NULL)
        return;
    for (size_t i = 0; command != NULL && i < 1023 && (command[i] != '\0' || command[i + 1] != '\0'); i++) {
        if (command[i] == '\0')
            command[i] = ' ';
    }
    buf_addf(b, "\nprocess %ld", (long)pid);
    add_trimmed(b, ": ", command);
    buf_add(b, "\n");
    for (struct dirent *entry = readdir(dir); entry != NULL && threads < THREADS_MAX; entry = readdir(dir)) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        add_thread(b, pid, entry->d_name, maps != NULL ? maps : "");
        threads++;
    }
    (void)closedir(dir);
}

/* ---- stacks that a process writes itself ---- */

static bool is_known(const struct look *k, const struct stat *st)
{
    for (size_t i = 0; i < k->count; i++) {
        if (k->asked[i].device == st->st_dev && k->asked[i].inode == st->st_ino)
            return true;
    }
    return false;
}

/* The memory file that it has ready, opened by its descriptor's name in /proc. -1: none. */
static int open_stacks_file(pid_t pid)
{
    auto_free char *path = xasprintf("/proc/%ld/fd", (long)pid);
    DIR *dir = opendir(path);
    int found = -1;

    if (dir == NULL)
        return -1;
    for (struct dirent *entry = readdir(dir); entry != NULL && found < 0; entry = readdir(dir)) {
        char target[128], name[sizeof "/proc//fd/" + 48];
        (void)snprintf(name, sizeof name, "/proc/%ld/fd/%.20s", (long)pid, entry->d_name);
        ssize_t n = readlink(name, target, sizeof target - 1);
        if (n <= 0)
            continue;
        target[n] = '\0';
        if (strncmp(target, "/memfd:" LOCAL_STACKS_FILE, sizeof "/memfd:" LOCAL_STACKS_FILE - 1) == 0)
            found = open(name, O_RDONLY | O_CLOEXEC);
    }
    (void)closedir(dir);
    return found;
}

/* A process that a fork has made shares its parent's file: it is asked, too, and the file is read once. */
static void ask(struct look *k, pid_t pid)
{
    auto_free char *status = read_proc(pid, "status", 8192);
    struct stat st;

    if (status == NULL || !look_catches(status, LOCAL_STACKS_SIGNAL))
        return;
    auto_close int fd = open_stacks_file(pid);
    if (fd < 0 || fstat(fd, &st) != 0)
        return;
    if (!is_known(k, &st) && k->count < PROCESSES_MAX)
        k->asked[k->count++] = (struct asked){ .pid = pid, .fd = TAKE_FD(fd), .device = st.st_dev, .inode = st.st_ino,
                                              .from = st.st_size, .last = st.st_size };
    (void)kill(pid, LOCAL_STACKS_SIGNAL);
}

static void add_answer(struct buf *b, struct asked *a)
{
    auto_free char *text = xcalloc(1, FILE_BYTES + 1);
    ssize_t n = pread(a->fd, text, FILE_BYTES, a->from);

    if (n > 0) {
        text[n] = '\0';
        text_make_plain(text);
        buf_addf(b, "\nPython stacks of process %ld, the newest call first:\n%s", (long)a->pid, text);
    } else {
        buf_addf(b, "\nprocess %ld did not write its Python stacks within %d ms\n", (long)a->pid, ANSWER_LIMIT_MS);
    }
    (void)close(a->fd);
}

/* ---- a dump ---- */

static void finish(struct look *k)
{
    auto_buf struct buf b = BUF_INIT(LOCAL_STACKS_MAX);
    auto_free pid_t *pids = NULL;
    size_t count = descend_list(&pids);

    for (size_t i = 0; i < k->count; i++)
        add_answer(&b, &k->asked[i]);
    k->count = 0;
    for (size_t i = 0; i < count && i < PROCESSES_MAX; i++)
        add_process_text(&b, pids[i]);
    if (count > PROCESSES_MAX)
        buf_addf(&b, "\n%zu more processes\n", count - PROCESSES_MAX);
    k->busy = false;
    k->fn(k->ctx, k->number, buf_text(&b), b.len);
}

/* Done when every file has grown and does not grow any more. */
static void on_timer(void *ctx)
{
    struct look *k = ctx;
    bool all = true;
    struct stat st;

    for (size_t i = 0; i < k->count; i++) {
        struct asked *a = &k->asked[i];
        off_t size = fstat(a->fd, &st) == 0 ? st.st_size : a->last;
        all &= size > a->from && size == a->last;
        a->last = size;
    }
    if (all || clock_mono_ms() >= k->until_ms)
        finish(k);
    else
        loop_timer_at(k->timer, clock_mono_ms() + ANSWER_LOOK_MS);
}

void look_stacks(struct look *k, uint32_t number)
{
    auto_free pid_t *pids = NULL;

    k->number = number;
    if (k->busy)
        return;
    k->busy = true;
    size_t count = descend_list(&pids);
    for (size_t i = 0; i < count; i++)
        ask(k, pids[i]);
    k->until_ms = clock_mono_ms() + ANSWER_LIMIT_MS;
    loop_timer_at(k->timer, clock_mono_ms() + (k->count > 0 ? ANSWER_LOOK_MS : 0));
}

struct look *look_new(struct loop *l, look_fn *fn, void *ctx)
{
    struct look *k = xcalloc(1, sizeof *k);

    k->fn = fn;
    k->ctx = ctx;
    k->timer = loop_timer_new(l, on_timer, k);
    return k;
}

void look_free(struct look *k)
{
    if (k == NULL)
        return;
    for (size_t i = 0; i < k->count; i++)
        (void)close(k->asked[i].fd);
    loop_timer_free(k->timer);
    free(k);
}
