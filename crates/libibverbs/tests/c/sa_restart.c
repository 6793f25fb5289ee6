/* A signal whose handler has SA_RESTART arrives while a thread waits for an event.
 * Run: gcc -O1 -o x THIS.c -libverbs -lrdmacm -lpthread && mitra run -- ./x        (also --rails 2)
 * Expected (kernel: ib_uverbs_event_read and ucma_get_event return -ERESTARTSYS, and libibverbs uses read(2), so the wait goes on after the handler):
 * ibv_get_cq_event, ibv_get_async_event and rdma_get_cm_event return the event, not EINTR. Exit code 0. Exit code 1: one fails with EINTR.
 * Programs meet it with SIGCHLD, SIGALRM, SIGPROF (profilers) and SIGURG (Go's scheduler), whose handlers have SA_RESTART.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
static volatile int ticks;
static void tick(int s) { (void)s; ticks++; }
static pthread_t waiter;
static struct ibv_qp *q, *sq;
static struct rdma_cm_id *id;
static int what;
static void *other(void *x) {
    (void)x;
    for (int i = 0; i < 5; i++) { usleep(50000); pthread_kill(waiter, SIGUSR1); }
    usleep(50000);
    if (what == 0) post_write(q, 1, 8);
    if (what == 1) { struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR }; ibv_modify_qp(sq, &a, IBV_QP_STATE); }
    if (what == 2) { struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }; rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000); }
    return NULL;
}
int main(void) {
    open_device();
    struct sigaction sa = { .sa_handler = tick, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &sa, NULL);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
    q = make_qp(cq, cq, 8);
    connect_pair(q, q);
    struct ibv_srq_init_attr ia = { .attr = { .max_wr = 16, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &ia);
    struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
    sq = ibv_create_qp(pd, &a);
    connect_pair(sq, sq);
    struct rdma_event_channel *cm = rdma_create_event_channel();
    NEED(cm && !rdma_create_id(cm, &id, NULL, RDMA_PS_TCP));
    fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK);
    struct ibv_async_event ae;
    usleep(200000);
    while (!ibv_get_async_event(ctx, &ae)) ibv_ack_async_event(&ae);
    fcntl(ctx->async_fd, F_SETFL, 0);
    waiter = pthread_self();
    pthread_t t;
    for (what = 0; what < 3; what++) {
        ticks = 0;
        NEED(!ibv_req_notify_cq(cq, 0));
        pthread_create(&t, NULL, other, NULL);
        int rc, err;
        if (what == 0) { struct ibv_cq *c; void *x; rc = ibv_get_cq_event(ch, &c, &x); err = errno; if (!rc) ibv_ack_cq_events(c, 1); }
        else if (what == 1) { rc = ibv_get_async_event(ctx, &ae); err = errno; if (!rc) ibv_ack_async_event(&ae); }
        else { struct rdma_cm_event *e; rc = rdma_get_cm_event(cm, &e); err = errno; if (!rc) rdma_ack_cm_event(e); }
        verdict(rc == 0, "%s: %d %s (after %d signals)", what == 0 ? "ibv_get_cq_event" : what == 1 ? "ibv_get_async_event" : "rdma_get_cm_event", rc, rc ? strerror(err) : "", ticks);
        pthread_join(t, NULL);
    }
    /* Without SA_RESTART the wait ends with EINTR. */
    sa.sa_flags = 0;
    sigaction(SIGUSR1, &sa, NULL);
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) > 0);
    struct ibv_cq *c; void *x;
    fcntl(ch->fd, F_SETFL, O_NONBLOCK);
    while (!ibv_get_cq_event(ch, &c, &x)) ibv_ack_cq_events(c, 1);
    fcntl(ch->fd, F_SETFL, 0);
    what = 3;
    pthread_create(&t, NULL, other, NULL);
    int rc = ibv_get_cq_event(ch, &c, &x);
    verdict(rc == -1 && errno == EINTR, "without SA_RESTART ibv_get_cq_event is interrupted: %d %s", rc, strerror(errno));
    return faults > 0;
}
