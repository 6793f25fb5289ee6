/* Scenario 4: the descriptor of asynchronous events in an edge-triggered epoll, one event read per wake-up.
 * Expected (kernel: ib_uverbs_async_handler appends an event and wakes the poll waiters for every event): the reader stays behind by two events,
 * but each new event wakes it. "ok", exit code 0. Exit code 1: wake-ups are missing.
 */
#include "report.h"

static struct ibv_qp *with_srq(struct ibv_cq *cq, struct ibv_srq *srq) {
    struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &a);
    NEED(qp);
    connect_pair(qp, qp);
    return qp;
}
/* Causes IBV_EVENT_QP_LAST_WQE_REACHED. */
static void raise_event(struct ibv_qp *qp) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
}
int main(void) {
    enum { BURST = 3, SINGLE = 10 };
    open_device();
    struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
    struct ibv_srq_init_attr sa = { .attr = { .max_wr = 16, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &sa);
    NEED(cq && srq);
    struct ibv_qp *qp[BURST + SINGLE];
    for (int i = 0; i < BURST + SINGLE; i++) qp[i] = with_srq(cq, srq);
    int ep = epoll_create1(0);
    fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
    struct ibv_async_event e;
    usleep(300000);
    while (!ibv_get_async_event(ctx, &e)) ibv_ack_async_event(&e); /* events of the connection */
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET }, got;
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, ctx->async_fd, &ev) == 0);
    for (int i = 0; i < BURST; i++) raise_event(qp[i]);
    usleep(200000);
    int woken = 0, read = 0;
    if (epoll_wait(ep, &got, 1, 500) == 1 && !ibv_get_async_event(ctx, &e)) { ibv_ack_async_event(&e); read++; }
    verdict(read == 1, "a burst of %d events woke the reader, which read one", BURST);
    for (int i = 0; i < SINGLE; i++) {
        raise_event(qp[BURST + i]);
        if (epoll_wait(ep, &got, 1, 500) != 1) continue;
        woken++;
        if (!ibv_get_async_event(ctx, &e)) { ibv_ack_async_event(&e); read++; }
    }
    int left = 0;
    while (!ibv_get_async_event(ctx, &e)) { ibv_ack_async_event(&e); left++; }
    verdict(woken == SINGLE, "%d of %d later events woke the reader (%d read, %d left in the queue)", woken, SINGLE, read, left);
    verdict(read + left == BURST + SINGLE, "no event was lost");
    return faults > 0;
}
