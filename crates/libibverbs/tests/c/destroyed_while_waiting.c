/* A thread waits for an event while another thread destroys the channel or closes the device, and a signal with SA_RESTART arrives after that.
 * Expected: the thread takes no event of a later channel at the same address. A wait for verbs' events ends with EBADF, as a restarted read(2) of a closed descriptor
 * does. A wait for an event of rdma_cm goes on, because stock programs end when the wait fails.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/syscall.h>

#define WAIT 30.0
static void interrupt(int s) { (void)s; }
static enum { COMPLETION, ASYNC, CM } what;
static struct ibv_comp_channel *ch;
static struct ibv_context *other;
static struct rdma_event_channel *cm;
static volatile int error = -1;
static volatile pid_t waiter;

static void *wait_for_event(void *x) {
    struct ibv_cq *c;
    struct ibv_async_event a;
    struct rdma_cm_event *e;
    waiter = (pid_t)syscall(SYS_gettid);
    int rc = what == COMPLETION ? ibv_get_cq_event(ch, &c, &x) : what == ASYNC ? ibv_get_async_event(other, &a) : rdma_get_cm_event(cm, &e);
    error = rc ? errno : 0;
    return x;
}

/* Returns when a thread sleeps on a futex. */
static pthread_t start_waiter(void) {
    pthread_t t;
    error = -1;
    waiter = 0;
    NEED(!pthread_create(&t, NULL, wait_for_event, NULL));
    double end = now() + WAIT;
    for (char call[32] = ""; now() < end && atoi(call) != SYS_futex; usleep(1000)) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", waiter);
        FILE *f = fopen(path, "r");
        if (f && !fgets(call, sizeof call, f)) call[0] = 0;
        if (f) fclose(f);
    }
    return t;
}

static void expect_end(pthread_t t, const char *name) {
    double end = now() + WAIT;
    for (; error == -1 && now() < end; usleep(10000)) pthread_kill(t, SIGUSR1);
    verdict(error == EBADF, "%s ends with EBADF: %s", name, error == -1 ? "it waits" : strerror(error));
    if (error != -1) pthread_join(t, NULL);
}

/* An event for the channel, which the caller must get. */
static void use_channel(struct ibv_comp_channel *channel) {
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0), *got = NULL;
    struct ibv_qp *q = make_qp(cq, cq, 8);
    void *p;
    connect_pair(q, q);
    NEED(!ibv_req_notify_cq(cq, 0) && !post_write(q, 1, 8));
    verdict(!ibv_get_cq_event(channel, &got, &p) && got == cq, "the later channel's event goes to its own waiter");
    ibv_ack_cq_events(cq, 1);
    NEED(!ibv_destroy_qp(q) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static void completion_channel(void) {
    what = COMPLETION;
    NEED((ch = ibv_create_comp_channel(ctx)));
    pthread_t t = start_waiter();
    struct ibv_comp_channel *later = NULL;
    NEED(!ibv_destroy_comp_channel(ch));
    for (int i = 0; i < 1000 && later != ch; i++) {
        if (later) ibv_destroy_comp_channel(later);
        NEED((later = ibv_create_comp_channel(ctx)));
    }
    verdict(later == ch, "a later channel has the same address");
    expect_end(t, "ibv_get_cq_event");
    use_channel(later);
}

static void closed_device(void) {
    what = ASYNC;
    NEED((other = ibv_open_device(ctx->device)));
    pthread_t t = start_waiter();
    NEED(!ibv_close_device(other));
    expect_end(t, "ibv_get_async_event");
}

static void event_channel(void) {
    what = CM;
    NEED((cm = rdma_create_event_channel()));
    pthread_t t = start_waiter();
    struct rdma_event_channel *destroyed = cm, *kept[64];
    rdma_destroy_event_channel(destroyed);
    int n = 0;
    while (n < 64 && (kept[n] = rdma_create_event_channel()) && kept[n++] != destroyed);
    verdict(kept[n - 1] == destroyed, "a later event channel has the same address");
    cm = kept[n - 1];
    struct rdma_cm_id *id;
    struct rdma_cm_event *e;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(!rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
    for (int i = 0; i < 20; i++) {
        pthread_kill(t, SIGUSR1);
        usleep(10000);
    }
    verdict(error == -1, "rdma_get_cm_event waits on: %d", error);
    fcntl(cm->fd, F_SETFL, O_NONBLOCK);
    verdict(!rdma_get_cm_event(cm, &e) && !rdma_ack_cm_event(e), "the later channel's event is there");
}

int main(void) {
    open_device();
    struct sigaction sa = { .sa_handler = interrupt, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &sa, NULL);
    completion_channel();
    closed_device();
    event_channel();
    fflush(stdout);
    _exit(faults > 0); /* one thread waits */
}
