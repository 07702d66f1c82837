/*
 * ports.h — loopback addresses and ports for a job, so that several jobs run on one machine at once.
 *
 * A job gets a network 127.1.N.0/24 of its own: every replica an address, all with the same ring port. Frameworks listen on
 * every address, so each job also gets a range of framework ports of its own. Both are held by names in the abstract unix
 * namespace, which the kernel frees when the runner ends, however it ends.
 */
#ifndef CLI_PORTS_H
#define CLI_PORTS_H

#include "job/address.h"

struct ports {
    struct address_plan plan;
    int net_fd, framework_fd;   /* what holds the network and the range; -1 = none */
};

#define PORTS_INIT { .plan = { .kind = ADDRESS_LOCAL, .local_net = 0 }, .net_fd = -1, .framework_fd = -1 }

/* Chooses a network, and moves job->spec.tf_config.port up in steps of 100 until its range is free; with `fixed_framework_port`
 * it stays and a port in use is an error. ERROR_BUSY names the port, who has it, and what to do. */
MUST_CHECK int ports_choose(struct training_job *job, bool fixed_framework_port, struct ports *ret, struct error *e);
void ports_release(struct ports *p);

/* Who listens on a TCP port: "pid 123 (python3)", "another user's process", or "" when nobody is found. */
void ports_holder(int32_t port, char ret_text[96]);

/* Pure: the inode of a listening socket of this port in the text of /proc/net/tcp or tcp6; 0 = none. */
unsigned long ports_find_inode(const char *table, int32_t port);

#endif
