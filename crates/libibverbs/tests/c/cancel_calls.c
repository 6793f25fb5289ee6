/* pthread_cancel of a thread that is inside a call which does not wait for an event, at any moment.
 * Expected (libibverbs makes one system call and no other cancellation point in them; a program that cancels a thread, such as rping, goes on to use the device): the
 * call ends as always, the thread ends at the next cancellation point of the program, and no lock stays held. Exit code 0. A crash (exit 134, 139) or 1 is a fault.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char *big;
#define BIG_LEN (1 << 20)

static void transfer(void) {
    struct ibv_wc wc;
    post_write(qp, 1, 4096);
    ibv_poll_cq(cq, 1, &wc);
    ibv_req_notify_cq(cq, 0);
}
static void objects(void) {
    struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
    struct ibv_cq *own = ibv_create_cq(ctx, 4, NULL, ch, 0);
    struct ibv_qp *p = make_qp(own, own, 4);
    to_init(p);
    NEED(!ibv_destroy_qp(p) && !ibv_destroy_cq(own) && !ibv_destroy_comp_channel(ch));
}
static void regions(void) {
    struct ibv_mr *m = ibv_reg_mr(pd, big, BIG_LEN, IBV_ACCESS_LOCAL_WRITE);
    NEED(m && !ibv_dereg_mr(m));
}
static void devices(void) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    struct ibv_context *c = ibv_open_device(list[0]);
    NEED(c && !ibv_close_device(c));
    ibv_free_device_list(list);
}
static void identifiers(void) {
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_listen(id, 1));
    NEED(!rdma_destroy_id(id));
    rdma_destroy_event_channel(ch);
}
static void (*const calls[])(void) = { transfer, objects, regions, devices, identifiers };
static const char *const names[] = { "transfers", "objects", "memory regions", "devices", "identifiers" };

static void *run(void *call) {
    for (;;) {
        pthread_testcancel();
        (*(void (*const *)(void))call)();
    }
    return NULL;
}

int main(int argc, char **argv) {
    alarm(100);
    int rounds = argc > 1 ? atoi(argv[1]) : 50;
    open_device();
    cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    qp = make_qp(cq, cq, 8);
    connect_pair(qp, qp);
    big = aligned_alloc(4096, BIG_LEN);
    for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int cancelled = 0;
        for (int k = 0; k < rounds; k++) {
            pthread_t t;
            void *result;
            NEED(!pthread_create(&t, NULL, run, (void *)&calls[i]));
            usleep(k * 37 % 1500);
            NEED(!pthread_cancel(t) && !pthread_join(t, &result));
            cancelled += result == PTHREAD_CANCELED;
        }
        verdict(cancelled == rounds, "%s: %d of %d threads were cancelled", names[i], cancelled, rounds);
    }
    struct ibv_wc wc;
    while (poll_one(cq, &wc, 0.2));
    verdict(!post_write(qp, 2, 8) && poll_one(cq, &wc, 10) == 1 && wc.wr_id == 2, "the device works afterwards");
    objects(), regions(), devices(), identifiers();
    return faults > 0;
}
