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
