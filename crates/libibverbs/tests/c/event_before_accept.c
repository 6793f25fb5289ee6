/* A client gives up before the listener's program has accepted. Linux (ucma_event_handler in drivers/infiniband/core/ucma.c) ignores events of a
 * new connection until the program accepts it ("the accept will just fail later"), because its context is still the listener's: programs such as
 * UCX take the context of an event's identifier for that of the connection. With "migrate" the program first moves the request to another channel.
 * Expected: no event of the request's identifier; rdma_accept fails with EINVAL. Exit code 0.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted) {
    struct rdma_cm_event *event;
    NEED(!rdma_get_cm_event(channel, &event) && event->event == wanted);
    rdma_ack_cm_event(event);
}

int main(int argc, char **argv) {
    int migrate = argc > 1 && !strcmp(argv[1], "migrate");
    static int listener_context = 1;
    struct rdma_event_channel *listening = rdma_create_event_channel(), *connecting = rdma_create_event_channel(),
                              *other = rdma_create_event_channel();
    NEED(listening && connecting && other);
    struct rdma_cm_id *listener, *client, *request;
    struct rdma_cm_event *event;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(!rdma_create_id(listening, &listener, &listener_context, RDMA_PS_TCP));
    NEED(!rdma_bind_addr(listener, (struct sockaddr *)&a) && !rdma_listen(listener, 8));
    a.sin_port = rdma_get_src_port(listener);
    NEED(!rdma_create_id(connecting, &client, NULL, RDMA_PS_TCP));
    NEED(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&a, 2000));
    expect(connecting, RDMA_CM_EVENT_ADDR_RESOLVED);
    NEED(!rdma_resolve_route(client, 2000));
    expect(connecting, RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct rdma_conn_param p = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7, .qp_num = 77 };
    NEED(!rdma_connect(client, &p));
    NEED(!rdma_get_cm_event(listening, &event) && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
    request = event->id;
    rdma_ack_cm_event(event);
    if (migrate) NEED(!rdma_migrate_id(request, other));
    NEED(!rdma_destroy_id(client));
    struct pollfd f[2] = { { .fd = listening->fd, .events = POLLIN }, { .fd = other->fd, .events = POLLIN } };
    int ready = poll(f, 2, 1500);
    const char *kind = "none";
    if (ready > 0) {
        NEED(!rdma_get_cm_event(f[0].revents ? listening : other, &event));
        kind = rdma_event_str(event->event);
        rdma_ack_cm_event(event);
    }
    verdict(ready == 0, "events of the request's identifier before it is accepted: %s", kind);
    if (!migrate) {
        struct ibv_qp_init_attr qa = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
        NEED(!rdma_create_qp(request, NULL, &qa));
    }
    errno = 0;
    int r = rdma_accept(request, &p);
    verdict(r == -1 && errno == EINVAL, "rdma_accept afterwards: %d (%s)", r, r ? strerror(errno) : "success");
    verdict(poll(f, 2, 0) == 0, "no event after the accept that failed");
    rdma_destroy_qp(request);
    NEED(!rdma_destroy_id(request) && !rdma_destroy_id(listener));
    return faults > 0;
}
