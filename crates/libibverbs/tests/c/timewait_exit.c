/* RDMA_CM_EVENT_TIMEWAIT_EXIT after a disconnect.
 * Expected (rdma_get_cm_event(3): "The QP associated with a connection has exited its timewait state and is now ready to be re-used"; kernel
 * cma_ib_handler: IB_CM_TIMEWAIT_EXIT in state DISCONNECT): each of the two identifiers, which are not destroyed, gets DISCONNECTED and then, a few
 * seconds later at most, TIMEWAIT_EXIT with status 0. Exit code 0. Exit code 1: no TIMEWAIT_EXIT within 10 s.
 * Also: a second rdma_disconnect; the queue pair is in ERR after the disconnect, and can be reset after the event.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
static struct rdma_event_channel *ch;
static struct rdma_cm_id *lis, *cli, *srv;
static char seen[2][200];
static double at[2][20];
static struct rdma_cm_event *next(int ms) {
    struct pollfd p = { ch->fd, POLLIN, 0 };
    struct rdma_cm_event *e;
    if (poll(&p, 1, ms) != 1) return NULL;
    NEED(rdma_get_cm_event(ch, &e) == 0);
    return e;
}
static void qp_for(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
    NEED(rdma_create_qp(id, NULL, &a) == 0);
}
static int state_of(struct rdma_cm_id *id) {
    struct ibv_qp_attr a; struct ibv_qp_init_attr i;
    NEED(ibv_query_qp(id->qp, &a, IBV_QP_STATE, &i) == 0);
    return a.qp_state;
}
int main(void) {
    ch = rdma_create_event_channel();
    NEED(ch && !rdma_create_id(ch, &lis, NULL, RDMA_PS_TCP) && !rdma_create_id(ch, &cli, NULL, RDMA_PS_TCP));
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(!rdma_bind_addr(lis, (struct sockaddr *)&a) && !rdma_listen(lis, 4));
    a.sin_port = rdma_get_src_port(lis);
    NEED(!rdma_resolve_addr(cli, NULL, (struct sockaddr *)&a, 1000));
    struct rdma_conn_param cp = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
    int established = 0;
    while (established < 2) {
        struct rdma_cm_event *e = next(10000);
        NEED(e);
        switch (e->event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED: qp_for(cli); NEED(!rdma_resolve_route(cli, 1000)); break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED: NEED(!rdma_connect(cli, &cp)); break;
        case RDMA_CM_EVENT_CONNECT_REQUEST: srv = e->id; if (!srv->pd) srv->pd = cli->pd; qp_for(srv); NEED(!rdma_accept(srv, &cp)); break;
        case RDMA_CM_EVENT_ESTABLISHED: established++; break;
        default: printf("unexpected %s\n", rdma_event_str(e->event)); return 3;
        }
        rdma_ack_cm_event(e);
    }
    double t0 = now();
    NEED(rdma_disconnect(cli) == 0);
    int n[2] = { 0, 0 }, exits = 0;
    while (now() - t0 < 10 && exits < 2) {
        struct rdma_cm_event *e = next(500);
        if (!e) continue;
        int who = e->id == cli ? 0 : 1;
        at[who][n[who]++] = now() - t0;
        sprintf(seen[who] + strlen(seen[who]), "%s(%d) at %.2f s, ", rdma_event_str(e->event) + 14, e->status, now() - t0);
        exits += e->event == RDMA_CM_EVENT_TIMEWAIT_EXIT;
        if (e->event == RDMA_CM_EVENT_DISCONNECTED && who == 1) NEED(rdma_disconnect(srv) == 0 || errno == EINVAL);
        rdma_ack_cm_event(e);
    }
    printf("client: %s\nserver: %s\n", seen[0], seen[1]);
    verdict(strstr(seen[0], "DISCONNECTED") && strstr(seen[1], "DISCONNECTED"), "both ends saw DISCONNECTED");
    verdict(strstr(seen[0], "TIMEWAIT_EXIT") && strstr(seen[1], "TIMEWAIT_EXIT"), "both ends saw TIMEWAIT_EXIT");
    verdict(state_of(cli) == IBV_QPS_ERR && state_of(srv) == IBV_QPS_ERR, "both queue pairs are in ERR (%d, %d)", state_of(cli), state_of(srv));
    struct ibv_qp_attr r = { .qp_state = IBV_QPS_RESET };
    verdict(ibv_modify_qp(cli->qp, &r, IBV_QP_STATE) == 0, "a queue pair can be reset after the connection");
    errno = 0;
    int rc = rdma_disconnect(cli);
    printf("second rdma_disconnect: %d, errno %s\n", rc, rc ? strerror(errno) : "-");
    rdma_destroy_qp(cli); rdma_destroy_qp(srv);
    NEED(!rdma_destroy_id(cli) && !rdma_destroy_id(srv) && !rdma_destroy_id(lis));
    return faults > 0;
}
