/* The length of private data that the other end sees.
 * Expected on RoCE (rdma_get_cm_event(3): "the length ... may be larger than what was sent"; kernel cma.c: the REQ's private data is
 * IB_CM_REQ_PRIVATE_DATA_SIZE 92 less the header of 36 = 56, REP 196, REJ 148, padded with zeros): the receiver sees 56, 196 and 148 bytes, sent
 * bytes first, zeros behind, whatever was sent (even if nothing was sent). UDP: 180 (216 less 36), 136.
 * Prints a line per message; exit code 1 if a length differs from Linux's.
 */
#include "report_cm.h"
static void show(const char *what, const void *data, int len, int sent, int expected, uint8_t fill) {
    int prefix = 0, zeros = 1;
    const uint8_t *d = data;
    while (d && prefix < len && d[prefix] == fill) prefix++;
    for (int i = sent; d && i < len; i++) if (d[i]) zeros = 0;
    verdict(len == expected && (sent == 0 || (prefix >= sent && zeros)), "%s: sent %d bytes, received %d (Linux: %d), pointer %s", what, sent, len, expected, d ? "set" : "null");
}
static void one(enum rdma_port_space ps, int sent, int reject) {
    struct rdma_cm_id *lis, *cli;
    listen_and_resolve(ps, &lis, &cli);
    char data[200];
    memset(data, 0xab, sizeof data);
    static int qpn = 300;
    struct rdma_conn_param cp = { .private_data = data, .private_data_len = sent, .qp_num = qpn++, .retry_count = 7 };
    struct rdma_cm_id *srv = NULL;
    for (int done = 0; !done;) {
        struct rdma_cm_event *e = next();
        switch (e->event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED: NEED(!rdma_resolve_route(cli, 1000)); break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED: NEED(!rdma_connect(cli, &cp)); break;
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            srv = e->id;
            if (ps == RDMA_PS_TCP) show("REQ     ", e->param.conn.private_data, e->param.conn.private_data_len, sent, 56, 0xab);
            else show("SIDR_REQ", e->param.ud.private_data, e->param.ud.private_data_len, sent, 180, 0xab);
            memset(data, 0xcd, sizeof data);
            if (reject) NEED(!rdma_reject(srv, data, sent)); else { cp.qp_num = qpn++; NEED(!rdma_accept(srv, &cp)); }
            break;
        case RDMA_CM_EVENT_CONNECT_RESPONSE:
            show("REP     ", e->param.conn.private_data, e->param.conn.private_data_len, sent, 196, 0xcd);
            done = 1;
            break;
        case RDMA_CM_EVENT_ESTABLISHED: if (e->id == cli && ps == RDMA_PS_UDP) { show("SIDR_REP", e->param.ud.private_data, e->param.ud.private_data_len, sent, 136, 0xcd); done = 1; } break;
        case RDMA_CM_EVENT_REJECTED: show("REJ     ", e->param.conn.private_data, e->param.conn.private_data_len, sent, 148, 0xcd); done = 1; break;
        default: printf("%s %d\n", rdma_event_str(e->event), e->status); done = 1;
        }
        rdma_ack_cm_event(e);
    }
    rdma_destroy_id(cli);
    if (srv) rdma_destroy_id(srv);
    rdma_destroy_id(lis);
}
int main(void) {
    NEED(ch = rdma_create_event_channel());
    one(RDMA_PS_TCP, 8, 0);
    one(RDMA_PS_TCP, 0, 0);
    one(RDMA_PS_TCP, 20, 1);
    one(RDMA_PS_TCP, 0, 1);
    one(RDMA_PS_UDP, 8, 0);
    return faults > 0;
}
