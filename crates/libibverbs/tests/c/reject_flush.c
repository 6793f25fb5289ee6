/* A connection by rdma_cm is rejected after receives were posted.
 * Expected (librdmacm moves the queue pair of a rejected identifier to ERR, kernel: all receives are flushed): four WR_FLUSH_ERR completions and an
 * event of the completion channel. Then the same for rdma_disconnect before the connection, and for a peer that cannot be reached.
 */
#include "report_cm.h"
int main(void) {
    struct rdma_cm_id *lis, *cli;
    NEED(ch = rdma_create_event_channel());
    listen_and_resolve(RDMA_PS_TCP, &lis, &cli);
    struct rdma_conn_param cp = { .retry_count = 7 };
    char *mem = calloc(1, 4096);
    for (int done = 0; !done;) {
        struct rdma_cm_event *e = next();
        switch (e->event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED: {
            struct ibv_qp_init_attr qa = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
            NEED(!rdma_create_qp(cli, NULL, &qa));
            struct ibv_mr *m = ibv_reg_mr(cli->pd, mem, 4096, IBV_ACCESS_LOCAL_WRITE);
            for (int i = 0; i < 4; i++) { struct ibv_sge s = { (uintptr_t)mem, 64, m->lkey }; struct ibv_recv_wr r = { .wr_id = i, .sg_list = &s, .num_sge = 1 }, *bad; NEED(!ibv_post_recv(cli->qp, &r, &bad)); }
            NEED(!ibv_req_notify_cq(cli->recv_cq, 0));
            NEED(!rdma_resolve_route(cli, 1000));
            break; }
        case RDMA_CM_EVENT_ROUTE_RESOLVED: NEED(!rdma_connect(cli, &cp)); break;
        case RDMA_CM_EVENT_CONNECT_REQUEST: NEED(!rdma_reject(e->id, NULL, 0)); break;
        case RDMA_CM_EVENT_REJECTED: done = 1; break;
        default: printf("%s\n", rdma_event_str(e->event)); return 3;
        }
        rdma_ack_cm_event(e);
    }
    struct pollfd p = { cli->recv_cq_channel->fd, POLLIN, 0 };
    int woken = poll(&p, 1, 1000), n = 0;
    struct ibv_wc wc;
    while (n < 4 && poll_one(cli->recv_cq, &wc, 1) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR) n++;
    verdict(n == 4 && woken == 1, "after REJECTED: %d of 4 receives were flushed, %s", n, woken == 1 ? "with an event" : "no event");
    return faults > 0;
}
