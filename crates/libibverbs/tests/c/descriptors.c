/* The descriptors of channels, and the limit of descriptors.
 * Expected (kernel and rdma-core): the descriptor of a channel is closed when the call that destroys the channel returns, even if a thread waits at it; a call that needs a
 * descriptor at the limit fails with EMFILE; a receive that a full shared receive queue refuses is ENOMEM. Exit code 0; 1 if a rule does not hold.
 */
#include "report.h"
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <sys/wait.h>

static bool is_closed(int fd) { return fcntl(fd, F_GETFD) == -1 && errno == EBADF; }

static struct rdma_event_channel *cm;
static void *wait_for_cm(void *x) {
    struct rdma_cm_event *e;
    rdma_get_cm_event(cm, &e);
    return x;
}
static void destroyed_channels(void) {
    for (int i = 0; i < 5; i++) {
        struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
        struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
        struct ibv_qp *a = make_qp(cq, cq, 8), *b = make_qp(cq, cq, 8);
        connect_pair(a, b);
        struct ibv_wc wc;
        NEED(!ibv_req_notify_cq(cq, 0) && !post_write(a, 1, 8) && poll_one(cq, &wc, 10) == 1);
        struct ibv_cq *c;
        void *p;
        NEED(!ibv_get_cq_event(ch, &c, &p));
        ibv_ack_cq_events(cq, 1);
        int fd = ch->fd;
        NEED(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch));
        verdict(is_closed(fd), "the descriptor of a destroyed completion channel is closed");
    }
    pthread_t t;
    NEED((cm = rdma_create_event_channel()) && !pthread_create(&t, NULL, wait_for_cm, NULL));
    usleep(100000);
    int fd = cm->fd;
    rdma_destroy_event_channel(cm);
    verdict(is_closed(fd), "the descriptor of a destroyed event channel is closed");
}
static void full_srq(void) {
    struct ibv_srq_init_attr ia = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &ia);
    NEED(srq);
    struct ibv_sge s = { (uintptr_t)buf, 64, mr->lkey };
    struct ibv_recv_wr w = { .sg_list = &s, .num_sge = 1 }, *bad = NULL;
    int rc = 0, n = 0;
    for (; n < 100 && !(rc = ibv_post_srq_recv(srq, &w, &bad)); n++);
    verdict(rc == ENOMEM && bad == &w, "a full shared receive queue refuses receive %d: %s", n, strerror(rc));
    ibv_destroy_srq(srq);
}
/* Takes all descriptors below a limit, and frees some. */
static void leave(int count) {
    int used = dup(0), fd;
    NEED(used >= 0);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){ used + 64, used + 64 });
    for (fd = used; dup(0) >= 0;) fd++;
    for (; count > 0; count--, fd--) close(fd);
}
static void limit(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    leave(0);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
    verdict(!ch && errno == EMFILE, "ibv_create_comp_channel: %s", strerror(errno));
    struct ibv_context *c = ibv_open_device(list[0]);
    verdict(!c && errno == EMFILE, "ibv_open_device: %s", strerror(errno));
    struct rdma_event_channel *e = rdma_create_event_channel();
    verdict(!e && errno == EMFILE, "rdma_create_event_channel: %s", strerror(errno));
    struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    struct ibv_qp *q = cq ? ibv_create_qp(pd, &a) : NULL;
    verdict(q || errno == EMFILE, "ibv_create_qp: %s", q ? "it needs none" : strerror(errno));
}
/* Opens the device for the first time, with more free descriptors each time until they suffice. */
static void first_open(void) {
    bool opened = false;
    for (int count = 0; count < 60 && !opened; count++) {
        pid_t p = fork();
        if (!p) {
            struct ibv_device **list = ibv_get_device_list(NULL);
            if (!list || !list[0]) _exit(list ? 3 : errno == EMFILE ? 2 : 4);
            leave(count);
            _exit(ibv_open_device(list[0]) ? 0 : errno == EMFILE ? 2 : 5);
        }
        int st;
        NEED(waitpid(p, &st, 0) == p && WIFEXITED(st));
        opened = WEXITSTATUS(st) == 0;
        if (!opened && WEXITSTATUS(st) != 2) verdict(false, "with %d free descriptors the child ends with %d", count, WEXITSTATUS(st));
    }
    verdict(opened, "ibv_open_device fails with EMFILE until there are enough descriptors");
}
int main(void) {
    alarm(100);
    first_open();
    open_device();
    destroyed_channels();
    full_srq();
    limit();
    return faults > 0;
}
