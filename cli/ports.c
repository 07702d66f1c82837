#include "cli/ports.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"

#define NETS 255
#define RANGE_STEP 100
#define RANGE_TRIES 100
#define TABLE_MAX (4u << 20)

void ports_release(struct ports *p)
{
    if (p->net_fd >= 0)
        close(p->net_fd);
    if (p->framework_fd >= 0)
        close(p->framework_fd);
    *p = (struct ports)PORTS_INIT;
}

/* ---- who has a port ---- */

unsigned long ports_find_inode(const char *table, int32_t port)
{
    const char *line = strchr(table, '\n'); /* the first line names the columns */
    while (line && *++line) {
        unsigned local_port, state;
        unsigned long inode;
        /* sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode; state 0A is LISTEN */
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*d %*d %lu", &local_port, &state, &inode) == 3 &&
            state == 0x0a && local_port == (unsigned)port)
            return inode;
        line = strchr(line, '\n');
    }
    return 0;
}

static bool process_has(const char *pid, const char *link)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    DIR *dir = opendir(path);
    bool found = false;
    for (const struct dirent *d; dir && !found && (d = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), d->d_name, target, sizeof target - 1);
        if (n <= 0)
            continue;
        target[n] = '\0';
        found = strcmp(target, link) == 0;
    }
    if (dir)
        closedir(dir);
    return found;
}

static void name_of(const char *pid, char ret[32])
{
    struct error e = ERROR_INIT;
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    snprintf(path, sizeof path, "/proc/%.16s/comm", pid);
    ret[0] = '\0';
    if (fs_read(path, 64, &text, &len, &e) < 0)
        return;
    snprintf(ret, 32, "%.*s", (int)strcspn(text, "\n"), text);
}

static unsigned long listening_inode(int32_t port)
{
    static const char *const TABLES[] = { "/proc/net/tcp", "/proc/net/tcp6" };
    unsigned long inode = 0;
    for (size_t i = 0; i < COUNT(TABLES) && !inode; i++) {
        struct error e = ERROR_INIT;
        auto_free char *text = NULL;
        size_t len;
        if (fs_read(TABLES[i], TABLE_MAX, &text, &len, &e) == 0)
            inode = ports_find_inode(text, port);
    }
    return inode;
}

void ports_holder(int32_t port, char ret_text[96])
{
    char link[48], name[32];
    unsigned long inode = listening_inode(port);
    ret_text[0] = '\0';
    if (!inode)
        return;
    snprintf(link, sizeof link, "socket:[%lu]", inode);
    snprintf(ret_text, 96, "another user's process");
    DIR *dir = opendir("/proc");
    for (const struct dirent *d; dir && (d = readdir(dir));) {
        if (!isdigit((unsigned char)d->d_name[0]) || !process_has(d->d_name, link))
            continue;
        name_of(d->d_name, name);
        snprintf(ret_text, 96, "pid %.16s (%s)", d->d_name, name);
        break;
    }
    if (dir)
        closedir(dir);
}

/* ---- probes ---- */

static int busy(const char *host, int32_t port, const char *what, const char *advice, struct error *e)
{
    char holder[96];
    ports_holder(port, holder);
    return error_set(e, ERROR_BUSY, "%s port %d on %s is in use%s%s; stop it, or choose another with %s", what, port, host,
                     *holder ? " by " : "", holder, advice);
}

/* Without SO_REUSEADDR on a listener's port bind fails; with it, left-overs in TIME_WAIT do not count as use. */
static bool can_bind(in_addr_t address_be, int32_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = address_be };
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd < 0)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
}

/* A name that one process at a time can hold. -1 when another one does. */
static int hold(const char *name)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "ringmaster-%s", name);
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) < 0)
        return -1;
    return TAKE_FD(fd);
}

typedef int member_fn(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index,
                      struct error *e);

static int each_member(const struct training_job *job, const struct address_plan *plan, member_fn *fn, struct error *e)
{
    for (int role = 0; role < ROLE_COUNT; role++)
        for (int32_t i = 0; job->spec.roles[role].present && i < job->spec.roles[role].replicas; i++)
            if (fn(job, plan, (enum job_role)role, i, e) < 0)
                return -1;
    return 0;
}

static int ring_port_free(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index,
                          struct error *e)
{
    char host[ADDRESS_MAX];
    struct in_addr address;
    address_host(job, plan, role, index, host);
    if (inet_pton(AF_INET, host, &address) != 1)
        return error_set(e, ERROR_LIMIT, "a job on one machine has at most 254 replicas; this one has %d", job_replicas(job));
    if (!can_bind(address.s_addr, job->spec.sidecar.ring_port))
        return busy(host, job->spec.sidecar.ring_port, "ring", "--ring-port", e);
    return 0;
}

static int framework_port_free(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index,
                               struct error *e)
{
    int32_t port = address_port(job, plan, role, index);
    if (port > 65535)
        return error_set(e, ERROR_LIMIT, "framework port %d is over 65535; choose a lower one with --framework-port", port);
    if (!can_bind(htonl(INADDR_ANY), port))
        return busy("this machine", port, "framework", "--framework-port", e);
    return 0;
}

/* A network counts as taken when its name is held or one of its ports is; a port held on every address shows up in each. */
static int choose_net(const struct training_job *job, struct ports *p, struct error *e)
{
    char name[32];
    struct error first = ERROR_INIT;
    for (int32_t net = 0; net < NETS; net++) {
        struct address_plan plan = { .kind = ADDRESS_LOCAL, .local_net = net };
        struct error why = ERROR_INIT;
        snprintf(name, sizeof name, "net-%d", net);
        auto_close int fd = hold(name);
        if (fd < 0)
            continue;
        if (each_member(job, &plan, ring_port_free, &why) == 0) {
            p->plan = plan;
            p->net_fd = TAKE_FD(fd);
            return 0;
        }
        if (first.kind == ERROR_NONE)
            first = why;
        if (why.kind == ERROR_LIMIT)
            break;
    }
    if (first.kind == ERROR_NONE)
        return error_set(e, ERROR_BUSY, "%d jobs of 'ringmaster run' are running on this machine; wait for one to end", NETS);
    *e = first;
    return -1;
}

static int choose_framework_ports(struct training_job *job, bool fixed, struct ports *p, struct error *e)
{
    char name[32];
    struct error first = ERROR_INIT;
    int32_t start = job->spec.tf_config.port;
    for (int i = 0; i < (fixed ? 1 : RANGE_TRIES); i++) {
        struct error why = ERROR_INIT;
        job->spec.tf_config.port = start + i * RANGE_STEP;
        snprintf(name, sizeof name, "ports-%d", job->spec.tf_config.port);
        auto_close int fd = hold(name);
        if (fd < 0)
            error_set(&why, ERROR_BUSY, "framework ports from %d are in use by another job of 'ringmaster run'; choose others with "
                      "--framework-port", job->spec.tf_config.port);
        else if (each_member(job, &p->plan, framework_port_free, &why) == 0) {
            p->framework_fd = TAKE_FD(fd);
            return 0;
        }
        if (first.kind == ERROR_NONE)
            first = why;
        if (why.kind == ERROR_LIMIT)
            break;
    }
    job->spec.tf_config.port = start;
    *e = first;
    return -1;
}

int ports_choose(struct training_job *job, bool fixed_framework_port, struct ports *ret, struct error *e)
{
    struct ports p = PORTS_INIT;
    if (job_replicas(job) > 254)
        return error_set(e, ERROR_LIMIT, "a job on one machine has at most 254 replicas; this one has %d", job_replicas(job));
    if (choose_net(job, &p, e) < 0 || choose_framework_ports(job, fixed_framework_port, &p, e) < 0) {
        ports_release(&p);
        return -1;
    }
    *ret = p;
    return 0;
}
