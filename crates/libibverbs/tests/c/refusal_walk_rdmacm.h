/* The calls of librdmacm that refusal_walk.c makes. */
#pragma once
#include "refusal_walk.h"

static struct rdma_cm_id *unknown(void) { return (struct rdma_cm_id *)scratch[0]; }
static void create_id(void) { struct rdma_cm_id *id; TWICE(rdma_create_id(NULL, &id, NULL, RDMA_PS_IPOIB) == -1); }
static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	return id;
}
/* A call that an identifier refuses in its first state. */
#define ID_TWICE(call) \
	do { \
		struct rdma_cm_id *id = new_id(); \
		TWICE((call) == -1); \
		CHECK(rdma_destroy_id(id) == 0); \
	} while (0)
static void destroy_id(void) { TWICE(rdma_destroy_id(unknown()) == -1); }
static void migrate_id(void) { TWICE(rdma_migrate_id(unknown(), NULL) == -1); }
static void bind_addr(void) { ID_TWICE(rdma_bind_addr(id, NULL)); }
static void resolve_addr(void) { ID_TWICE(rdma_resolve_addr(id, NULL, NULL, 1000)); }
static void resolve_addr_family(void)
{
	NEW(sockaddr, unix_address, .sa_family = AF_UNIX);
	ID_TWICE(rdma_resolve_addr(id, NULL, &unix_address, 1000));
}
static void resolve_route(void) { ID_TWICE(rdma_resolve_route(id, 1000)); }
static void rdma_listen_unknown(void) { TWICE(rdma_listen(unknown(), 1) == -1); }
static void rdma_connect_early(void) { ID_TWICE(rdma_connect(id, NULL)); }
static void rdma_accept_early(void) { ID_TWICE(rdma_accept(id, NULL)); }
static void rdma_reject_early(void) { ID_TWICE(rdma_reject(id, NULL, 0)); }
static void rdma_reject_ece_early(void) { ID_TWICE(rdma_reject_ece(id, NULL, 0)); }
static void rdma_establish_early(void) { ID_TWICE(rdma_establish(id)); }
static void rdma_notify_early(void) { ID_TWICE(rdma_notify(id, IBV_EVENT_COMM_EST)); }
static void rdma_create_qp_early(void) { struct ibv_qp_init_attr init = plain_init(&end); ID_TWICE(rdma_create_qp(id, end.pd, &init)); }
static void rdma_create_qp_ex_early(void) { struct ibv_qp_init_attr_ex init = extended_init(); ID_TWICE(rdma_create_qp_ex(id, &init)); }
static void rdma_create_srq_early(void) { NEW(ibv_srq_init_attr, init, .attr = { 4, 1, 0 }); ID_TWICE(rdma_create_srq(id, NULL, &init)); }
static void rdma_create_srq_ex_type(void)
{
	NEW(ibv_srq_init_attr_ex, init, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .srq_type = IBV_SRQT_TM);
	ID_TWICE(rdma_create_srq_ex(id, &init));
}
static void rdma_init_qp_attr_early(void)
{
	NEW(ibv_qp_attr, attr, .qp_state = IBV_QPS_RTR);
	int mask;
	ID_TWICE(rdma_init_qp_attr(id, &attr, &mask));
}
static void rdma_join_multicast_tcp(void) { NEW(sockaddr, any, .sa_family = AF_INET); ID_TWICE(rdma_join_multicast(id, &any, NULL)); }
static void rdma_join_multicast_ex_mask(void) { NEW(rdma_cm_join_mc_attr_ex, attr, .comp_mask = 1 << 20); ID_TWICE(rdma_join_multicast_ex(id, &attr, NULL)); }
static void rdma_leave_multicast_other(void) { NEW(sockaddr, any, .sa_family = AF_INET); ID_TWICE(rdma_leave_multicast(id, &any)); }
static void rdma_get_request_active(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *request;
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	TWICE(rdma_get_request(id, &request) == -1);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}
static void rdma_set_option_unknown(void) { int value = 1; ID_TWICE(rdma_set_option(id, 99, 99, &value, sizeof(value))); }
static void rdma_getaddrinfo_nothing(void) { struct rdma_addrinfo *info; TWICE(rdma_getaddrinfo(NULL, NULL, NULL, &info) == -1); }
static void rdma_create_ep_space(void) { struct rdma_cm_id *id; NEW(rdma_addrinfo, info, .ai_port_space = RDMA_PS_IPOIB); TWICE(rdma_create_ep(&id, &info, NULL, NULL) == -1); }
static void rdma_get_cm_event_null(void) { struct rdma_cm_event *event; TWICE(rdma_get_cm_event(NULL, &event) == -1); }
static void rdma_ack_cm_event_unknown(void) { TWICE(rdma_ack_cm_event((struct rdma_cm_event *)scratch[1]) == -1); }

