/* Scenario 1: a completion channel in an edge-triggered epoll whose events are not (all) read.
 * Expected (kernel: ib_uverbs_comp_handler appends an event and wakes the poll waiters for every event): each new completion event is a
 * wake-up, although older events lie unread in the channel: "ok" in every line, exit code 0. Exit code 1: a wake-up is missing.
 */
#include "report.h"

int main(void) {
    open_device();
    int ep = epoll_create1(0);
    struct epoll_event got;
    /* A: one queue, never ibv_get_cq_event (what the crate async-rdma does). */
    struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
    NEED(ch);
    fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK);
    struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, ch, 0);
    struct ibv_qp *qp = make_qp(cq, cq, 32);
    connect_pair(qp, qp);
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.u32 = 1 };
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev) == 0);
    int woken = 0, rounds = 20;
    for (int i = 0; i < rounds; i++) {
        struct ibv_wc wc;
        NEED(ibv_req_notify_cq(cq, 0) == 0);
        NEED(post_write(qp, i, 8) == 0);
        woken += epoll_wait(ep, &got, 1, 300) == 1;
        NEED(poll_one(cq, &wc, 5) == 1 && wc.status == IBV_WC_SUCCESS);
        while (ibv_poll_cq(cq, 1, &wc) > 0);
    }
    verdict(woken == rounds, "A, events never read: %d wake-ups for %d completions", woken, rounds);
    /* B: two queues on one channel; one event is read per wake-up. */
    struct ibv_comp_channel *ch2 = ibv_create_comp_channel(ctx);
    fcntl(ch2->fd, F_SETFL, fcntl(ch2->fd, F_GETFL) | O_NONBLOCK);
    struct ibv_cq *c[2] = { ibv_create_cq(ctx, 64, NULL, ch2, 0), ibv_create_cq(ctx, 64, NULL, ch2, 0) };
    struct ibv_qp *q[2];
    for (int i = 0; i < 2; i++) {
        q[i] = make_qp(c[i], c[i], 32);
        connect_pair(q[i], q[i]);
    }
    ev.data.u32 = 2;
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, ch2->fd, &ev) == 0);
    for (int i = 0; i < 2; i++) NEED(ibv_req_notify_cq(c[i], 0) == 0 && post_write(q[i], 0, 8) == 0);
    usleep(100000); /* both events are queued now */
    woken = 0;
    int completed = 2;
    for (int round = 0; round < 10; round++) {
        if (epoll_wait(ep, &got, 1, 300) != 1) break;
        woken++;
        struct ibv_cq *from;
        void *x;
        struct ibv_wc wc;
        if (ibv_get_cq_event(ch2, &from, &x)) continue; /* spurious */
        ibv_ack_cq_events(from, 1);
        while (ibv_poll_cq(from, 1, &wc) > 0);
        NEED(ibv_req_notify_cq(from, 0) == 0);
        while (ibv_poll_cq(from, 1, &wc) > 0);
        NEED(post_write(from == c[0] ? q[0] : q[1], 0, 8) == 0);
        completed++;
    }
    verdict(woken >= 10, "B, one of two events read per wake-up: %d wake-ups of 10 (%d completions)", woken, completed);
    return faults > 0;
}
