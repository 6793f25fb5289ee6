/* Shared code of the programs made from reports of users: one process, with RC queue pairs connected to themselves or to each other. */
#pragma once
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static int faults;
__attribute__((unused)) static void verdict(bool ok, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("%s: ", ok ? "ok   " : "FAULT");
    vprintf(fmt, ap);
    printf("\n");
    fflush(stdout);
    va_end(ap);
    if (!ok) faults++;
}
#define NEED(x) do { if (!(x)) { printf("setup failed: %s (%s, line %d)\n", #x, strerror(errno), __LINE__); exit(3); } } while (0)
__attribute__((unused)) static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *buf;
static union ibv_gid gid;
#define BUF_LEN (1 << 20)
__attribute__((unused)) static void open_device(void) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    NEED(list && n > 0);
    ctx = ibv_open_device(list[0]);
    NEED(ctx);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(ctx);
    NEED(pd);
    buf = aligned_alloc(4096, BUF_LEN);
    memset(buf, 0, BUF_LEN);
    mr = ibv_reg_mr(pd, buf, BUF_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    NEED(mr);
    NEED(ibv_query_gid(ctx, 1, 0, &gid) == 0);
}
__attribute__((unused)) static struct ibv_qp *make_qp(struct ibv_cq *scq, struct ibv_cq *rcq, int depth) {
    struct ibv_qp_init_attr a = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &a);
    NEED(qp);
    return qp;
}
static int qp_timeout = 14, qp_retry = 7, qp_rnr = 7;
__attribute__((unused)) static void to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}
__attribute__((unused)) static void to_rts(struct ibv_qp *qp, uint32_t peer, union ibv_gid dgid) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 0,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = dgid, .sgid_index = 0, .hop_limit = 64 } } };
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .timeout = qp_timeout, .retry_cnt = qp_retry, .rnr_retry = qp_rnr, .sq_psn = 0, .max_rd_atomic = 1 };
    NEED(ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}
__attribute__((unused)) static void connect_pair(struct ibv_qp *a, struct ibv_qp *b) {
    to_init(a);
    if (a != b) to_init(b);
    to_rts(a, b->qp_num, gid);
    if (a != b) to_rts(b, a->qp_num, gid);
}
__attribute__((unused)) static int post_write(struct ibv_qp *qp, uint64_t id, uint32_t len) {
    struct ibv_sge s = { (uintptr_t)buf, len, mr->lkey };
    struct ibv_send_wr w = { .wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { (uintptr_t)buf + BUF_LEN / 2, mr->rkey } }, *bad;
    return ibv_post_send(qp, &w, &bad);
}
__attribute__((unused)) static int post_send(struct ibv_qp *qp, uint64_t id, uint32_t len, int flags) {
    struct ibv_sge s = { (uintptr_t)buf, len, mr->lkey };
    struct ibv_send_wr w = { .wr_id = id, .sg_list = &s, .num_sge = len ? 1 : 0, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | flags }, *bad;
    return ibv_post_send(qp, &w, &bad);
}
__attribute__((unused)) static int post_recv(struct ibv_qp *qp, uint64_t id, uint32_t len) {
    struct ibv_sge s = { (uintptr_t)buf + BUF_LEN / 2, len, mr->lkey };
    struct ibv_recv_wr w = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;
    return ibv_post_recv(qp, &w, &bad);
}
/* Polls one completion, within `limit` seconds. Returns the number found. */
__attribute__((unused)) static int poll_one(struct ibv_cq *cq, struct ibv_wc *wc, double limit) {
    double end = now() + limit;
    for (;;) {
        int n = ibv_poll_cq(cq, 1, wc);
        if (n || now() > end) return n;
        usleep(100);
    }
}
