/* XRC over rdma_cm with the calls of asynchronous programs. The domain, the shared receive queue and its completion queue are those that librdmacm provides.
 * Each of two clients sends to the one shared receive queue of the server, whose number comes in the private data of the reply.
 */
#include "report_cm.h"
#include <rdma/rdma_verbs.h>

enum { CLIENTS = 2 };

static void expect(enum rdma_cm_event_type type, struct rdma_cm_id **id, uint32_t *number) {
    struct rdma_cm_event *e = next();
    if (e->event != type) verdict(false, "%s (%d) instead of %s", rdma_event_str(e->event), e->status, rdma_event_str(type));
    if (id) *id = e->id;
    if (number) memcpy(number, e->param.conn.private_data, sizeof *number);
    NEED(e->event == type && !rdma_ack_cm_event(e));
}

int main(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct rdma_cm_id *listener, *client[CLIENTS], *request[CLIENTS];
    struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_XRC_RECV }, *info;
    NEED(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &info));
    NEED(!rdma_create_ep(&listener, info, NULL, NULL));
    verdict(listener->ps == RDMA_PS_IB && listener->qp_type == IBV_QPT_XRC_RECV, "an identifier has the port space and the type of queue pair that were asked for");
    NEED((ch = rdma_create_event_channel()) && !rdma_migrate_id(listener, ch) && !rdma_listen(listener, 8));
    at.sin_port = rdma_get_src_port(listener);
    struct ibv_srq_init_attr impossible = { .attr = { .max_wr = 8, .max_sge = 1 << 20 } };
    verdict(rdma_create_srq(listener, NULL, &impossible) && !listener->recv_cq && !listener->recv_cq_channel, "rdma_create_srq that fails leaves nothing: %s", strerror(errno));
    impossible.attr = (struct ibv_srq_attr){ .max_wr = 1 << 30, .max_sge = 1 };
    verdict(rdma_create_srq(listener, NULL, &impossible) && !listener->recv_cq && !listener->recv_cq_channel, "nor where its completion queue fails: %s", strerror(errno));
    struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
    verdict(!rdma_create_srq(listener, NULL, &srq), "rdma_create_srq: %s", strerror(errno));
    NEED(listener->srq && listener->recv_cq && listener->recv_cq_channel);
    uint32_t number, told;
    verdict(!ibv_get_srq_num(listener->srq, &number) && number, "the shared receive queue is one for XRC");
    static char memory[4096];
    struct ibv_mr *region = ibv_reg_mr(listener->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    NEED(region);
    struct rdma_conn_param param = { .private_data = &number, .private_data_len = sizeof number, .retry_count = 7, .rnr_retry_count = 7 };
    for (int i = 0; i < CLIENTS; i++) {
        struct ibv_sge into = { (uintptr_t)memory + 64 * i, 64, region->lkey };
        struct ibv_recv_wr receive = { .wr_id = i, .sg_list = &into, .num_sge = 1 }, *bad_receive;
        NEED(!ibv_post_srq_recv(listener->srq, &receive, &bad_receive));
        NEED(!rdma_create_id(ch, &client[i], NULL, RDMA_PS_IB) && !rdma_resolve_addr(client[i], NULL, (struct sockaddr *)&at, 1000));
        expect(RDMA_CM_EVENT_ADDR_RESOLVED, NULL, NULL);
        NEED(!rdma_resolve_route(client[i], 1000));
        expect(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, NULL);
        struct ibv_qp_init_attr_ex send = { .qp_type = IBV_QPT_XRC_SEND, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
        verdict(!rdma_create_qp_ex(client[i], &send), "rdma_create_qp_ex, XRC_SEND: %s", strerror(errno));
        NEED(client[i]->qp && !rdma_connect(client[i], &param));
        expect(RDMA_CM_EVENT_CONNECT_REQUEST, &request[i], NULL);
        struct ibv_qp_init_attr_ex receiver = { .qp_type = IBV_QPT_XRC_RECV };
        verdict(!rdma_create_qp_ex(request[i], &receiver), "rdma_create_qp_ex, XRC_RECV: %s", strerror(errno));
        NEED(request[i]->qp && !rdma_accept(request[i], &param));
        struct rdma_cm_id *one, *other;
        expect(RDMA_CM_EVENT_ESTABLISHED, &one, &told);
        expect(RDMA_CM_EVENT_ESTABLISHED, &other, NULL);
        NEED(one == client[i] && other == request[i] && told == number);
        struct ibv_sge from = { (uintptr_t)memory + 2048, 8, region->lkey };
        struct ibv_send_wr message = { .wr_id = 7, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = told }, *bad;
        memcpy(memory + 2048, "message0", 8);
        memory[2055] += i;
        NEED(!ibv_post_send(client[i]->qp, &message, &bad));
        struct ibv_wc wc;
        verdict(poll_one(client[i]->send_cq, &wc, 10) == 1 && wc.status == IBV_WC_SUCCESS, "the message of client %d is sent", i);
        verdict(poll_one(listener->recv_cq, &wc, 10) == 1 && wc.status == IBV_WC_SUCCESS && !memcmp(memory + 64 * i, memory + 2048, 8), "and received");
    }
    for (int i = 0; i < CLIENTS; i++) {
        NEED(!rdma_disconnect(client[i]));
        expect(RDMA_CM_EVENT_DISCONNECTED, NULL, NULL);
        expect(RDMA_CM_EVENT_DISCONNECTED, NULL, NULL);
        rdma_destroy_qp(client[i]), rdma_destroy_qp(request[i]);
        verdict(!rdma_destroy_id(client[i]) && !rdma_destroy_id(request[i]), "client %d is destroyed", i);
    }
    rdma_destroy_qp(listener);
    verdict(listener->recv_cq && listener->recv_cq_channel, "the completion queue of the shared receive queue stays");
    rdma_destroy_srq(listener);
    verdict(!listener->recv_cq && !listener->recv_cq_channel, "and ends with it");
    verdict(!rdma_destroy_id(listener), "and so is the listener");
    return faults > 0;
}
