#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/ports.h"

Test(ports, the_listener_of_a_port_is_found_in_the_kernels_table)
{
    const char *table =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1E14 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 100 0 0 10 0\n"
        "   1: 0100007F:1E15 0100007F:8235 01 00000000:00000000 02:000004D2 00000000     0        0 815 2 0000000000000000 20 4 30 10 -1\n"
        "   2: 00000000000000000000000001000000:1E16 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 99 1 0\n";
    static const struct { const char *name; int32_t port; unsigned long inode; } ROWS[] = {
        { "listens", 7700, 4711 }, { "connected, not listening", 7701, 0 }, { "version 6", 7702, 99 }, { "nobody", 80, 0 },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++)
        cr_expect_eq(ports_find_inode(table, ROWS[i].port), ROWS[i].inode, "case %s", ROWS[i].name);
    cr_expect_eq(ports_find_inode("", 80), 0);
    cr_expect_eq(ports_find_inode("no table\n", 80), 0);
}

static int listen_on(in_addr_t address_be, int32_t *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = address_be, .sin_port = htons((uint16_t)*port) };
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static struct training_job *job_on(int32_t ring_port, int32_t framework_port)
{
    struct training_job *job = xcalloc(1, sizeof *job);
    job->name = xstrdup("digits");
    job->labels = json_object();
    job->annotations = json_object();
    job->spec.roles[ROLE_WORKER] = (struct replica_spec){ .present = true, .replicas = 2 };
    job->spec.sidecar.ring_port = ring_port;
    job->spec.tf_config.port = framework_port;
    return job;
}

Test(ports, the_holder_is_named_with_pid_and_program)
{
    int32_t port = 0;
    char holder[96], expected[64];
    int fd = listen_on(htonl(INADDR_LOOPBACK), &port);
    ports_holder(port, holder);
    snprintf(expected, sizeof expected, "pid %d (", (int)getpid());
    cr_expect(strncmp(holder, expected, strlen(expected)) == 0, "%s", holder);
    close(fd);
    ports_holder(port, holder);
    cr_expect_str_eq(holder, "");
}

Test(ports, two_jobs_get_networks_and_port_ranges_of_their_own)
{
    auto_job struct training_job *a = job_on(17700, 12300), *b = job_on(17700, 12300);
    struct ports pa = PORTS_INIT, pb = PORTS_INIT;
    struct error e = ERROR_INIT;
    cr_assert_eq(ports_choose(a, false, &pa, &e), 0, "%s", e.text);
    cr_assert_eq(ports_choose(b, false, &pb, &e), 0, "%s", e.text);
    cr_expect_neq(pa.plan.local_net, pb.plan.local_net);
    cr_expect_neq(a->spec.tf_config.port, b->spec.tf_config.port);
    ports_release(&pa);
    ports_release(&pb);
}

Test(ports, a_ring_port_that_is_taken_everywhere_is_an_error_that_names_the_holder)
{
    int32_t port = 0;
    int fd = listen_on(htonl(INADDR_ANY), &port);
    auto_job struct training_job *job = job_on(port, 12400);
    struct ports p = PORTS_INIT;
    struct error e = ERROR_INIT;
    cr_assert_eq(ports_choose(job, false, &p, &e), -1);
    cr_expect_eq(e.kind, ERROR_BUSY);
    cr_expect(strstr(e.text, "in use by pid ") != NULL && strstr(e.text, "--ring-port") != NULL, "%s", e.text);
    close(fd);
}

Test(ports, a_framework_port_moves_unless_it_was_asked_for)
{
    int32_t port = 0;
    int fd = listen_on(htonl(INADDR_ANY), &port);
    auto_job struct training_job *job = job_on(17700, port - 1); /* worker-1's */
    struct ports p = PORTS_INIT;
    struct error e = ERROR_INIT;
    cr_assert_eq(ports_choose(job, true, &p, &e), -1);
    cr_expect(strstr(e.text, "--framework-port") != NULL, "%s", e.text);
    cr_expect_eq(job->spec.tf_config.port, port - 1);
    cr_assert_eq(ports_choose(job, false, &p, &e), 0, "%s", e.text);
    cr_expect_neq(job->spec.tf_config.port, port - 1);
    ports_release(&p);
    close(fd);
}
