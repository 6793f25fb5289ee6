/* Threads that wait for events while the NIC dies.
 * Run: gcc -O1 -o x THIS.c -libverbs -lrdmacm -lpthread && mitra run --fault 'rail0 nic-dead at 1s' -- ./x
 *      (also: --rails 2 --fault 'rail0 nic-dead at 1s; rail1 nic-dead at 1s', and nic-hung)
 * Expected (kernel: when a device goes away, ib_uverbs_event_read returns the queued events and then EIO, to sleepers too; cma_process_remove
 * reports RDMA_CM_EVENT_DEVICE_REMOVAL for each bound identifier): within some seconds
 *   - ibv_get_cq_event returns -1 (EIO),
 *   - ibv_get_async_event returns DEVICE_FATAL and then -1 (EIO),
 *   - rdma_get_cm_event returns DEVICE_REMOVAL for the bound identifier,
 *   - poll(2) on the completion channel reports it (a program with poll must not sleep for ever).
 * Exit code 0. Exit code 1: a thread waits for ever.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
static struct ibv_comp_channel *ch, *ch2;
static struct rdma_event_channel *cm;
static char res[5][100];
static void *w_cq(void *x) {
    (void)x;
    struct ibv_cq *c; void *p;
    int rc = ibv_get_cq_event(ch, &c, &p);
    snprintf(res[0], 100, "returned %d, errno %s", rc, rc ? strerror(errno) : "-");
    return NULL;
}
static void *w_poll(void *x) {
    (void)x;
    struct pollfd f = { ch2->fd, POLLIN, 0 };
    int rc = poll(&f, 1, -1);
    snprintf(res[1], 100, "poll returned %d, revents %x", rc, f.revents);
    return NULL;
}
static void *w_async(void *x) {
    (void)x;
    struct ibv_async_event e;
    char list[80] = "";
    for (;;) {
        int rc = ibv_get_async_event(ctx, &e);
        if (rc) { snprintf(res[2], 100, "%s%s", list, strerror(errno)); return NULL; }
        snprintf(list + strlen(list), 80 - strlen(list), "event %d, ", e.event_type);
        ibv_ack_async_event(&e);
        if (e.event_type == IBV_EVENT_DEVICE_FATAL) snprintf(res[3], 100, "DEVICE_FATAL");
    }
}
static void *w_cm(void *x) {
    (void)x;
    struct rdma_cm_event *e;
    for (;;) {
        int rc = rdma_get_cm_event(cm, &e);
        if (rc) { snprintf(res[4], 100, "failed: %s", strerror(errno)); return NULL; }
        if (e->event != RDMA_CM_EVENT_ADDR_RESOLVED) snprintf(res[4], 100, "event %s", rdma_event_str(e->event));
        rdma_ack_cm_event(e);
        if (res[4][0]) return NULL;
    }
}
int main(void) {
    open_device();
    ch = ibv_create_comp_channel(ctx), ch2 = ibv_create_comp_channel(ctx);
    struct ibv_cq *c = ibv_create_cq(ctx, 16, NULL, ch, 0), *c2 = ibv_create_cq(ctx, 16, NULL, ch2, 0);
    struct ibv_qp *q = make_qp(c, c, 8), *q2 = make_qp(c2, c2, 8);
    connect_pair(q, q);
    connect_pair(q2, q2);
    NEED(!ibv_req_notify_cq(c, 0) && !ibv_req_notify_cq(c2, 0));
    NEED(post_recv(q, 1, 64) == 0 && post_recv(q2, 1, 64) == 0);
    cm = rdma_create_event_channel();
    struct rdma_cm_id *id;
    NEED(cm && rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) == 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
    pthread_t t;
    pthread_create(&t, NULL, w_cq, NULL);
    pthread_create(&t, NULL, w_poll, NULL);
    pthread_create(&t, NULL, w_async, NULL);
    pthread_create(&t, NULL, w_cm, NULL);
    sleep(5);
    printf("after the death: post_write %d, query_device %d\n", post_write(q, 9, 8), ibv_query_device(ctx, &(struct ibv_device_attr){ 0 }));
    verdict(res[3][0], "DEVICE_FATAL was reported");
    verdict(res[0][0], "ibv_get_cq_event %s", res[0][0] ? res[0] : "still waits");
    verdict(res[1][0], "poll on a completion channel: %s", res[1][0] ? res[1] : "still waits");
    verdict(res[2][0], "ibv_get_async_event after DEVICE_FATAL: %s", res[2][0] ? res[2] : "still waits");
    verdict(res[4][0], "rdma_get_cm_event: %s", res[4][0] ? res[4] : "still waits");
    fflush(stdout);
    _exit(faults > 0);
}
