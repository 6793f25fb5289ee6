/* pthread_cancel of a thread that waits in ibv_get_cq_event, ibv_get_async_event or rdma_get_cm_event (rping, xrping and many
 * programs end their event threads like that).
 * Run: gcc -O1 -o x THIS.c -libverbs -lrdmacm -lpthread && mitra run -- ./x      (also --rails 2)
 * Expected (on Linux the wait is read(2) or write(2), which are cancellation points): the thread ends with PTHREAD_CANCELED, the channel can be used
 * and destroyed afterwards. Exit code 0. A crash (exit 134, 139) or 1 is a fault.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <dirent.h>
#include <sys/wait.h>
static int what;
static struct ibv_comp_channel *ch;
static struct rdma_event_channel *cm;
static int count_fds(void) {
    DIR *d = opendir("/proc/self/fd"); if (!d) return -1;
    int n = 0; while (readdir(d)) n++; closedir(d); return n - 3;
}
static void *waiter(void *x) {
    (void)x;
    struct ibv_cq *c; void *p;
    struct ibv_async_event a;
    struct rdma_cm_event *e;
    if (what == 0) ibv_get_cq_event(ch, &c, &p);
    if (what == 1) ibv_get_async_event(ctx, &a);
    if (what == 2) rdma_get_cm_event(cm, &e);
    return NULL;
}
static int one(void) {
    static const char *names[] = { "ibv_get_cq_event", "ibv_get_async_event", "rdma_get_cm_event" };
    open_device();
    ch = ibv_create_comp_channel(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
    struct ibv_qp *q = make_qp(cq, cq, 8);
    connect_pair(q, q);
    NEED(!ibv_req_notify_cq(cq, 0));
    cm = rdma_create_event_channel();
    struct rdma_cm_id *id;
    NEED(cm && !rdma_create_id(cm, &id, NULL, RDMA_PS_TCP));
    int fds = -1;
    for (int i = 0; i < 6; i++) {
        // The links through shared memory are open when the first thread has ended.
        if (i == 1) fds = count_fds();
        pthread_t t;
        void *r = NULL;
        pthread_create(&t, NULL, waiter, NULL);
        usleep(100000);
        pthread_cancel(t);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 3;
        int rc = pthread_timedjoin_np(t, &r, &until);
        if (rc || r != PTHREAD_CANCELED) { verdict(false, "%s: the thread was not cancelled (%s)", names[what], rc ? strerror(rc) : "it returned"); return 1; }
    }
    int fds2 = count_fds();
    verdict(true, "%s: five threads were cancelled", names[what]);
    verdict(fds2 <= fds, "%s: %d descriptors before, %d afterwards", names[what], fds, fds2);
    struct ibv_cq *c; void *p;
    struct ibv_wc wc;
    verdict(!post_write(q, 1, 8) && !ibv_get_cq_event(ch, &c, &p) && poll_one(cq, &wc, 3) == 1, "the completion channel works");
    ibv_ack_cq_events(cq, 1);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct rdma_cm_event *e;
    verdict(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) && !rdma_get_cm_event(cm, &e) && !rdma_ack_cm_event(e), "the event channel works");
    verdict(!rdma_destroy_id(id) && !ibv_destroy_qp(q) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch), "everything can be destroyed");
    return faults > 0;
}
int main(void) {
    int bad = 0;
    for (what = 0; what < 3; what++) {
        fflush(stdout);
        pid_t p = fork();
        if (!p) { alarm(20); int rc = one(); fflush(stdout); _exit(rc); }
        int st;
        waitpid(p, &st, 0);
        if (WIFSIGNALED(st)) { printf("FAULT: mode %d: the process died of signal %d (%s)\n", what, WTERMSIG(st), strsignal(WTERMSIG(st))); bad = 1; }
        else if (WEXITSTATUS(st)) bad = 1;
    }
    return bad;
}
