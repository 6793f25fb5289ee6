/* Scenario 2: one extended completion queue that several threads poll with ibv_start_poll / ibv_next_poll / ibv_end_poll.
 * Expected: the queue was made without IBV_CREATE_CQ_ATTR_SINGLE_THREADED ("This CQ is used from a single threaded, thus no locking is
 * required", ibv_create_cq_ex(3)), so the provider locks it from a start_poll that returns 0 to end_poll (rxe.c cq_start_poll/cq_end_poll, mlx5
 * MLX5 start_poll with lock=1). Every wr_id is seen exactly once, with the fields that belong to it. Exit code 0.
 * Exit code 1: a wr_id is missing or doubled, or a field belongs to another completion.
 */
#include "report.h"

#define MAX 200000
static struct ibv_cq_ex *cq;
static unsigned char seen[2 * MAX];
static int total, done, wrong_len, wrong_qp, wrong_op;
static uint32_t qpn[2];
static int use_poll_cq;
static uint32_t length_of(uint64_t id) { return 1 + id % 500; }
static void *poller(void *arg) {
    int plain = use_poll_cq && (intptr_t)arg == 0;
    double end = now() + 60;
    while (__atomic_load_n(&done, __ATOMIC_RELAXED) < 2 * total && now() < end) {
        if (plain) {
            struct ibv_wc wc;
            int n = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc);
            if (n == 1) {
                if (wc.wr_id < 2u * MAX) __atomic_add_fetch(&seen[wc.wr_id], 1, __ATOMIC_RELAXED);
                if (wc.wr_id >= MAX && wc.byte_len != length_of(wc.wr_id - MAX)) __atomic_add_fetch(&wrong_len, 1, __ATOMIC_RELAXED);
                __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
            } else usleep(20);
            continue;
        }
        struct ibv_poll_cq_attr pa = { 0 };
        int rc = ibv_start_poll(cq, &pa);
        if (rc == ENOENT) { usleep(20); continue; }
        NEED(rc == 0);
        int k = 0;
        do {
            uint64_t id = cq->wr_id;
            bool recv = id >= MAX;
            sched_yield();
            if ((ibv_wc_read_opcode(cq) & IBV_WC_RECV) != (recv ? IBV_WC_RECV : 0)) __atomic_add_fetch(&wrong_op, 1, __ATOMIC_RELAXED);
            if (recv && ibv_wc_read_byte_len(cq) != length_of(id - MAX)) __atomic_add_fetch(&wrong_len, 1, __ATOMIC_RELAXED);
            if (ibv_wc_read_qp_num(cq) != qpn[recv]) __atomic_add_fetch(&wrong_qp, 1, __ATOMIC_RELAXED);
            if (id < 2u * MAX) __atomic_add_fetch(&seen[id], 1, __ATOMIC_RELAXED);
            __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
        } while (++k < 8 && ibv_next_poll(cq) == 0);
        ibv_end_poll(cq);
    }
    return NULL;
}
int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 3;
    total = argc > 2 ? atoi(argv[2]) : 20000;
    use_poll_cq = argc > 3; /* thread 0 polls the same queue with ibv_poll_cq */
    open_device();
    struct ibv_cq_init_attr_ex ca = { .cqe = 4096, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM };
    cq = ibv_create_cq_ex(ctx, &ca);
    NEED(cq);
    struct ibv_cq *c = ibv_cq_ex_to_cq(cq);
    struct ibv_qp *s = make_qp(c, c, 512), *r = make_qp(c, c, 512);
    qpn[0] = s->qp_num, qpn[1] = r->qp_num;
    connect_pair(s, r);
    pthread_t t[16];
    for (intptr_t i = 0; i < threads; i++) pthread_create(&t[i], NULL, poller, (void *)i);
    double end = now() + 60;
    int i;
    for (i = 0; i < total && now() < end; i++) {
        while (2 * i - __atomic_load_n(&done, __ATOMIC_RELAXED) > 256 && now() < end) usleep(50);
        NEED(post_recv(r, MAX + i, 512) == 0);
        NEED(post_send(s, i, length_of(i), 0) == 0);
    }
    for (int k = 0; k < threads; k++) pthread_join(t[k], NULL);
    int missing = 0, doubled = 0;
    for (int k = 0; k < i; k++) {
        missing += (seen[k] == 0) + (seen[MAX + k] == 0);
        doubled += (seen[k] > 1) + (seen[MAX + k] > 1);
    }
    verdict(done == 2 * i, "%d completions of %d", done, 2 * i);
    verdict(missing == 0 && doubled == 0, "%d wr_ids missing, %d doubled", missing, doubled);
    verdict(wrong_len == 0 && wrong_qp == 0 && wrong_op == 0, "fields of another completion: %d byte_len, %d qp_num, %d opcode", wrong_len, wrong_qp, wrong_op);
    return faults > 0;
}
