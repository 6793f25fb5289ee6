/* A server whose descriptor limit is reached must still read its events, and serve the other clients when some leave.
 * The program forks a server with RLIMIT_NOFILE 64 before it uses verbs.
 * Expected: rdma_get_cm_event never fails, the server does not use a processor while it waits, and all of the 100 clients are established at once:
 * as with the kernel, identifiers of connections need no descriptors. Exit code 0.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
static double cpu(void) { struct rusage r; getrusage(RUSAGE_SELF, &r); return r.ru_utime.tv_sec + r.ru_stime.tv_sec + 1e-6 * (r.ru_utime.tv_usec + r.ru_stime.tv_usec); }
enum { CLIENTS = 100 };
static int server(int out) {
    struct rlimit l = { 64, 64 };
    setrlimit(RLIMIT_NOFILE, &l);
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *lis;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(ch && !rdma_create_id(ch, &lis, NULL, RDMA_PS_TCP) && !rdma_bind_addr(lis, (struct sockaddr *)&a) && !rdma_listen(lis, 128));
    uint16_t port = rdma_get_src_port(lis);
    NEED(write(out, &port, 2) == 2);
    struct rdma_conn_param cp = { .qp_num = 5000, .retry_count = 7, .rnr_retry_count = 7 };
    int failures = 0, established = 0, gone = 0;
    double c0 = cpu(), t0 = now();
    fcntl(ch->fd, F_SETFL, O_NONBLOCK);
    while (now() - t0 < 60 && gone < CLIENTS) {
        struct rdma_cm_event *e;
        struct pollfd p = { ch->fd, POLLIN, 0 };
        if (poll(&p, 1, 500) != 1) continue;
        if (rdma_get_cm_event(ch, &e)) {
            if (errno != EAGAIN) { if (!failures++) printf("server: rdma_get_cm_event: %s (with %d connections)\n", strerror(errno), established - gone); usleep(20000); }
            continue;
        }
        struct rdma_cm_id *id = e->id;
        int t = e->event;
        rdma_ack_cm_event(e);
        cp.qp_num++;
        if (t == RDMA_CM_EVENT_CONNECT_REQUEST) rdma_accept(id, &cp);
        if (t == RDMA_CM_EVENT_ESTABLISHED) established++;
        if (t == RDMA_CM_EVENT_DISCONNECTED) { gone++; rdma_destroy_id(id); }
    }
    verdict(failures == 0 && gone == CLIENTS, "server: rdma_get_cm_event failed %d times; %d established, %d gone", failures, established, gone);
    verdict(cpu() - c0 < 0.3 * (now() - t0) + 0.2, "server used %.2f s of processor time in %.1f s", cpu() - c0, now() - t0);
    fflush(stdout);
    _exit(faults > 0);
}
int main(void) {
    int fd[2];
    NEED(pipe(fd) == 0);
    pid_t s = fork();
    if (!s) server(fd[1]);
    uint16_t port;
    NEED(read(fd[0], &port, 2) == 2);
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *id[CLIENTS];
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = port };
    struct rdma_cm_event *e;
    struct rdma_conn_param cp = { .retry_count = 7, .rnr_retry_count = 7 };
    static int up[CLIENTS];
    int ups = 0, bad = 0, phase = 0;
    for (int i = 0; i < CLIENTS; i++) NEED(!rdma_create_id(ch, &id[i], (void *)(intptr_t)i, RDMA_PS_TCP) && !rdma_resolve_addr(id[i], NULL, (struct sockaddr *)&a, 1000));
    double t0 = now();
    while (now() - t0 < 60 && ups + bad < CLIENTS) {
        struct pollfd p = { ch->fd, POLLIN, 0 };
        if (poll(&p, 1, 1000) == 1) {
            NEED(!rdma_get_cm_event(ch, &e));
            int i = (intptr_t)e->id->context;
            struct rdma_cm_id *who = e->id;
            int t = e->event, status = e->status;
            rdma_ack_cm_event(e);
            cp.qp_num = 100 + i;
            if (t == RDMA_CM_EVENT_ADDR_RESOLVED) NEED(!rdma_resolve_route(who, 1000));
            else if (t == RDMA_CM_EVENT_ROUTE_RESOLVED) NEED(!rdma_connect(who, &cp));
            else if (t == RDMA_CM_EVENT_CONNECT_RESPONSE) {
                ups++, up[i] = 1, rdma_establish(who);
                if (phase) rdma_disconnect(who);
            }
            else if (t != RDMA_CM_EVENT_DISCONNECTED && t != RDMA_CM_EVENT_TIMEWAIT_EXIT) { if (!bad++) printf("client: %s %d\n", rdma_event_str(t), status); }
        } else if (phase == 0) {
            phase = 1;
            printf("client: %d established before any left\n", ups);
            for (int i = 0; i < CLIENTS; i++) if (up[i]) rdma_disconnect(id[i]);
        }
    }
    verdict(ups == CLIENTS && !bad, "client: %d of %d established, %d failed", ups, CLIENTS, bad);
    if (!phase) for (int i = 0; i < CLIENTS; i++) rdma_disconnect(id[i]);
    int st;
    waitpid(s, &st, 0);
    _exit(faults > 0 || st);
}
