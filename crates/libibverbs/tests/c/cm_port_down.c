/* While no rail is up, rdma_connect establishes nothing. When one comes back, the request is repeated and arrives. */
#include "rail_faults.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;

/* Returns the identifier of the next event, which must be of this type. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type)
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
	CHECK(event->event == type);
	struct rdma_cm_id *id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static bool is_quiet(int milliseconds)
{
	struct pollfd ready = { channel->fd, POLLIN, 0 };
	return poll(&ready, 1, milliseconds) == 0;
}

int main(void)
{
	alarm(120);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *listener, *active, *passive;
	CHECK(channel = rdma_create_event_channel());
	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 4) == 0);
	address.sin_port = rdma_get_src_port(listener);
	CHECK(rdma_create_id(channel, &active, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(active, NULL, (struct sockaddr *)&address, 1000) == 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(active, 1000) == 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);

	for (int rail = 0; rail < rails(); rail++)
		fault("rail%d down", rail);
	struct rdma_conn_param param = { .qp_num = 17, .retry_count = 7 };
	CHECK(rdma_connect(active, &param) == 0);
	CHECK(is_quiet(1500));

	fault("rail%d up", rails() - 1);
	CHECK((passive = expect(RDMA_CM_EVENT_CONNECT_REQUEST)) != listener);
	param.qp_num = 18;
	CHECK(rdma_accept(passive, &param) == 0);
	CHECK(expect(RDMA_CM_EVENT_CONNECT_RESPONSE) == active && rdma_establish(active) == 0);
	CHECK(expect(RDMA_CM_EVENT_ESTABLISHED) == passive);

	/* A lost link ends no connection: the peer is there. */
	fault("rail%d down", rails() - 1);
	CHECK(is_quiet(4000));
	fault("rail%d up", rails() - 1);
	CHECK(rdma_disconnect(active) == 0);
	struct rdma_cm_id *first = expect(RDMA_CM_EVENT_DISCONNECTED), *second = expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(first != second && (first == active || first == passive) && (second == active || second == passive));
	return 0;
}
