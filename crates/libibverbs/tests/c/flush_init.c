/* Found with the bad_wr scenario: receives that were posted in INIT, then the queue pair goes from INIT to ERR.
 * Expected (IBTA volume 1, 10.3.1: all outstanding requests are flushed in ERR; rxe rxe_qp_error -> drain of the receive queue from any state): the
 * receives complete with WR_FLUSH_ERR, in order. Exit code 0. Exit code 1: they never complete.
 */
#include "report.h"

static const char *type_name(int t) { return t == IBV_QPT_RC ? "RC" : t == IBV_QPT_UC ? "UC" : "UD"; }
static int flushed(struct ibv_cq *cq, int n) {
    int got = 0;
    struct ibv_wc wc;
    while (got < n && poll_one(cq, &wc, 1) == 1) { if (wc.wr_id != (uint64_t)got || wc.status != IBV_WC_WR_FLUSH_ERR) printf("  wr_id %lu, %s\n", wc.wr_id, ibv_wc_status_str(wc.status)); got++; }
    return got;
}
static void init_to_err(int type, int n, int more) {
    struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 200, NULL, ch, 0);
    struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = { 8, 64, 1, 1, 0 } };
    struct ibv_qp *q = ibv_create_qp(pd, &a);
    NEED(q);
    struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
    NEED(!ibv_modify_qp(q, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
    for (int i = 0; i < n; i++) NEED(!post_recv(q, i, 64));
    NEED(!ibv_req_notify_cq(cq, 0));
    struct ibv_qp_attr e = { .qp_state = IBV_QPS_ERR };
    NEED(!ibv_modify_qp(q, &e, IBV_QP_STATE));
    struct pollfd p = { ch->fd, POLLIN, 0 };
    int woken = poll(&p, 1, 1000);
    int got = flushed(cq, n);
    verdict(got == n && woken == 1, "%s, INIT -> ERR: %d of %d receives were flushed, %s", type_name(type), got, n, woken == 1 ? "with an event" : "no event");
    if (more) {
        for (int i = 0; i < 3; i++) NEED(!post_recv(q, i, 64));
        int k = flushed(cq, 3);
        verdict(k == 3, "%s, three receives posted in ERR: %d were flushed", type_name(type), k);
    }
    if (woken == 1) { struct ibv_cq *c; void *x; NEED(!ibv_get_cq_event(ch, &c, &x)); ibv_ack_cq_events(c, 1); }
    NEED(!ibv_destroy_qp(q) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch));
}
int main(void) {
    open_device();
    int types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
    for (int t = 0; t < 3; t++) { init_to_err(types[t], 1, 0); init_to_err(types[t], 31, 1); }
    /* For comparison: RTS -> ERR. */
    struct ibv_cq *cq = ibv_create_cq(ctx, 200, NULL, NULL, 0), *cq2 = ibv_create_cq(ctx, 200, NULL, NULL, 0);
    struct ibv_qp *a = make_qp(cq, cq, 32), *b = make_qp(cq2, cq2, 32);
    connect_pair(a, b);
    for (int i = 0; i < 7; i++) NEED(!post_recv(a, i, 64));
    struct ibv_qp_attr e = { .qp_state = IBV_QPS_ERR }, r = { .qp_state = IBV_QPS_RESET };
    NEED(!ibv_modify_qp(a, &e, IBV_QP_STATE));
    int n = flushed(cq, 7);
    verdict(n == 7, "RC, RTS -> ERR: %d of 7 receives were flushed", n);
    /* Reset at this end only, connect again: on several rails the connection waits for the other end. Then ERR. */
    NEED(!ibv_modify_qp(a, &r, IBV_QP_STATE));
    to_init(a);
    for (int i = 0; i < 3; i++) NEED(!post_recv(a, i, 64));
    to_rts(a, b->qp_num, gid);
    struct ibv_wc wc;
    for (int i = 0; i < 2; i++) NEED(!post_write(a, 50 + i, 8));
    NEED(!ibv_modify_qp(a, &e, IBV_QP_STATE));
    n = 0;
    int sends = 0;
    while (n + sends < 5 && poll_one(cq, &wc, 1) == 1) if (wc.wr_id >= 50) sends++; else n++;
    verdict(n == 3 && sends == 2, "RC, reset at one end, RTS again, then ERR: %d of 3 receives and %d of 2 sends were flushed", n, sends);
    return faults > 0;
}
