/* Sockets of link.h: listening, and the options that every connection gets. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "sidecar/ring/link.h"
#include "sidecar/ring/resolve.h"

#define BACKLOG 512

/* Losses are found by heartbeats within a second; these bound what heartbeats do not see (a broken path between two neighbours
 * only). The user timeout also ends a connection whose window stays closed that long, so it must outlast a machine's hiccups. */
#define USER_TIMEOUT_MS 5000
#define KEEPALIVE_IDLE_S 2
#define KEEPALIVE_INTERVAL_S 1
#define KEEPALIVE_PROBES 4
/* The congestion control that every kernel has and lets anybody choose. It does not pace. */
#define UNPACED "reno"

static void set_int(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

void link_tune(int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
}

static bool is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return a->ss_family == AF_INET6 &&
           IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr);
}

void link_tune_connected(int fd)
{
    struct sockaddr_storage own = { 0 }, other = { 0 };
    socklen_t own_len = sizeof own, other_len = sizeof other;

    if (getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 && getpeername(fd, (struct sockaddr *)&other, &other_len) == 0 &&
        is_same_host(&own, &other))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, UNPACED, sizeof UNPACED - 1);
}

static int listen_error(struct error *e, const struct sockaddr *address, socklen_t len)
{
    char text[RESOLVE_TEXT_MAX];

    if (errno == EADDRINUSE) {
        (void)error_set(e, ERROR_CONFLICT, "cannot listen on %s: the address is in use by another process: end it, or choose "
                        "another port", resolve_text(address, len, text));
        e->os_errno = EADDRINUSE;
        return -1;
    }
    if (errno == EADDRNOTAVAIL)
        return error_errno(e, "cannot listen on %s: this machine does not have the address", resolve_text(address, len, text));
    return error_errno(e, "listen on %s", resolve_text(address, len, text));
}

static int listen_at(const struct sockaddr *address, socklen_t len, int *ret_fd, struct error *e)
{
    auto_close int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return listen_error(e, address, len);
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6)
        set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd, address, len) != 0 || listen(fd, BACKLOG) != 0)
        return listen_error(e, address, len);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int listen_anywhere(int32_t port, int *ret_fd, struct error *e)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

    if (listen_at((struct sockaddr *)&six, sizeof six, ret_fd, e) == 0)
        return 0;
    if (e->os_errno != EAFNOSUPPORT && e->os_errno != EADDRNOTAVAIL)
        return -1;
    return listen_at((struct sockaddr *)&four, sizeof four, ret_fd, e); /* a machine without IPv6 */
}

int link_listen(const char *host, int32_t port, int *ret_fd, struct error *e)
{
    if (port < 0 || port > 65535)
        return error_set(e, ERROR_INVALID, "port %d is not between 0 and 65535", port);
    if (host == NULL)
        return listen_anywhere(port, ret_fd, e);

    struct addrinfo *addresses = NULL;
    if (!resolve_literal(host, port, &addresses))
        return listen_anywhere(port, ret_fd, e);
    int result = -1;
    for (struct addrinfo *a = addresses; a != NULL && result < 0; a = a->ai_next)
        result = listen_at(a->ai_addr, a->ai_addrlen, ret_fd, e);
    freeaddrinfo(addresses);
    return result;
}
