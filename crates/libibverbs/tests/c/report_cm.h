/* Shared code of the programs made from reports of users that connect with rdma_cm. */
#pragma once
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
static struct rdma_event_channel *ch;
/* Waits for the next event of the channel, at most 10 s. */
static struct rdma_cm_event *next(void) {
    struct pollfd p = { ch->fd, POLLIN, 0 };
    struct rdma_cm_event *e;
    NEED(poll(&p, 1, 10000) == 1 && !rdma_get_cm_event(ch, &e));
    return e;
}
/* Makes a listener at a free port of loopback, and a client that resolves the listener's address. */
__attribute__((unused)) static void listen_and_resolve(enum rdma_port_space ps, struct rdma_cm_id **listener, struct rdma_cm_id **client) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(!rdma_create_id(ch, listener, NULL, ps) && !rdma_bind_addr(*listener, (struct sockaddr *)&a) && !rdma_listen(*listener, 4));
    a.sin_port = rdma_get_src_port(*listener);
    NEED(!rdma_create_id(ch, client, NULL, ps) && !rdma_resolve_addr(*client, NULL, (struct sockaddr *)&a, 1000));
}
