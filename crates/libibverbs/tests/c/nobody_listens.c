/* rdma_connect and the datagram lookup while nobody listens at the port; a listener whose backlog is full; a bound id that does not listen.
 * Expected (kernel cm_match_req: no listen request matches, cm_issue_rej(IB_CM_REJ_INVALID_SERVICE_ID) at once): RDMA_CM_EVENT_REJECTED, status 8,
 * in well under a second; RDMA_PS_UDP: UNREACHABLE with status 1 (IB_SIDR_UNSUPPORTED) in well under a second (cm_sidr_req_handler).
 * A request that finds the backlog full is dropped and repeated by the peer, which gets no answer meanwhile.
 * Exit code 1 if an answer takes longer than 3 s or has another status.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
static struct rdma_event_channel *ch;
static int status;
static double took;
static const char *try_connect(enum rdma_port_space ps, uint16_t port, int limit_ms) {
    struct rdma_cm_id *id;
    NEED(!rdma_create_id(ch, &id, NULL, ps));
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = port };
    NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 1000));
    struct rdma_conn_param cp = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7, .qp_num = 77 };
    double t0 = now();
    const char *result = NULL;
    while (!result) {
        struct pollfd p = { ch->fd, POLLIN, 0 };
        struct rdma_cm_event *e;
        if (poll(&p, 1, limit_ms) != 1) { result = "nothing"; break; }
        NEED(rdma_get_cm_event(ch, &e) == 0);
        if (e->id == id || e->listen_id == NULL) switch (e->event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED: NEED(!rdma_resolve_route(id, 1000)); break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED: NEED(!rdma_connect(id, &cp)); t0 = now(); break;
        default: result = rdma_event_str(e->event); status = e->status;
        }
        rdma_ack_cm_event(e);
    }
    took = now() - t0;
    rdma_destroy_id(id);
    return result;
}
int main(void) {
    ch = rdma_create_event_channel();
    NEED(ch);
    struct rdma_cm_id *bound, *udp;
    NEED(!rdma_create_id(ch, &bound, NULL, RDMA_PS_TCP) && !rdma_create_id(ch, &udp, NULL, RDMA_PS_UDP));
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(!rdma_bind_addr(bound, (struct sockaddr *)&a));
    uint16_t port = rdma_get_src_port(bound);
    const char *r = try_connect(RDMA_PS_TCP, port, 20000);
    verdict(!strcmp(r, "RDMA_CM_EVENT_REJECTED") && status == 8 && took < 3, "TCP, port bound, nobody listens: %s, status %d, after %.2f s", r, status, took);
    NEED(!rdma_destroy_id(bound));
    r = try_connect(RDMA_PS_TCP, port, 20000);
    verdict(!strcmp(r, "RDMA_CM_EVENT_REJECTED") && status == 8 && took < 3, "TCP, port free: %s, status %d, after %.2f s", r, status, took);
    r = try_connect(RDMA_PS_UDP, port, 20000);
    verdict(!strcmp(r, "RDMA_CM_EVENT_UNREACHABLE") && status == 1 && took < 3, "UDP, port free: %s, status %d, after %.2f s", r, status, took);
    /* A listener that does not read its requests: backlog 1. */
    struct rdma_event_channel *lch = rdma_create_event_channel();
    struct rdma_cm_id *lis;
    a.sin_port = 0;
    NEED(lch && !rdma_create_id(lch, &lis, NULL, RDMA_PS_TCP) && !rdma_bind_addr(lis, (struct sockaddr *)&a) && !rdma_listen(lis, 1));
    port = rdma_get_src_port(lis);
    struct rdma_cm_id *first;
    NEED(!rdma_create_id(ch, &first, NULL, RDMA_PS_TCP));
    a.sin_port = port;
    NEED(!rdma_resolve_addr(first, NULL, (struct sockaddr *)&a, 1000));
    struct rdma_conn_param cp = { .qp_num = 78, .retry_count = 7 };
    for (int i = 0; i < 2; i++) {
        struct rdma_cm_event *e;
        NEED(rdma_get_cm_event(ch, &e) == 0);
        enum rdma_cm_event_type t = e->event;
        rdma_ack_cm_event(e);
        if (t == RDMA_CM_EVENT_ADDR_RESOLVED) NEED(!rdma_resolve_route(first, 1000));
        else NEED(!rdma_connect(first, &cp));
    }
    usleep(300000);
    r = try_connect(RDMA_PS_TCP, port, 1500);
    verdict(!strcmp(r, "nothing"), "TCP, backlog of 1 is full: %s within %.2f s", r, took);
    return faults > 0;
}
