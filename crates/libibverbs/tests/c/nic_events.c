/* Asynchronous events of UC queue pairs and of their completion queues. */
#include "requester_and_responder.h"

static void next_event(enum ibv_event_type type, void *element)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	if (event.event_type != type)
		fprintf(stderr, "%s instead of %s\n", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	CHECK(event.event_type == type && event.element.qp == element);
	ibv_ack_async_event(&event);
}

static void no_event(int milliseconds)
{
	struct ibv_async_event event;
	if (has_event(milliseconds)) {
		CHECK(ibv_get_async_event(end.context, &event) == 0);
		fprintf(stderr, "%s\n", ibv_event_type_str(event.event_type));
		CHECK(!"no event");
	}
}

static struct ibv_qp *make_typed(enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = type;
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	CHECK(qp);
	initialize(qp, ALL);
	return qp;
}

static void to_rtr(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } } };
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) == 0);
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

/* Creates two UC queue pairs: the requester in RTS, and the responder in RTR. */
static void pair_of_uc(void)
{
	one = make_typed(IBV_QPT_UC, end.cq), other = make_typed(IBV_QPT_UC, responder_cq);
	to_rtr(one, other), to_rtr(other, one), to_rts(one);
}

/* The first message in RTR. */
static void established(void)
{
	for (int round = 0; round < 3; round++) {
		pair_of_uc();
		post_recv(1, NULL, 0);
		CHECK(try_message(2, NULL, 0) == 0);
		completes(2, IBV_WC_SUCCESS), completes_in(responder_cq, 1, IBV_WC_SUCCESS);
		next_event(IBV_EVENT_COMM_EST, other);
		unpair();
	}
}

/* A send queue that drains. */
static void drained(void)
{
	pair_of_uc();
	struct ibv_qp_attr sqd = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	CHECK(ibv_modify_qp(one, &sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
	next_event(IBV_EVENT_SQ_DRAINED, one);
	unpair();
}

/* The queue pairs of a completion queue that loses a completion fail, also on several rails. */
static void overflowed(void)
{
	enum { ENTRIES = 2 };
	struct ibv_cq *small = ibv_create_cq(end.context, ENTRIES, NULL, NULL, 0);
	CHECK(small);
	pair_of_uc();
	struct ibv_qp *uc = make_typed(IBV_QPT_UC, small), *rc = make_typed(IBV_QPT_RC, small), *peer = make_qp(&end);
	struct ibv_qp *uc_peer = make_typed(IBV_QPT_UC, end.cq);
	to_rtr(uc, uc_peer), to_rtr(uc_peer, uc), to_rts(uc_peer), to_rts(uc);
	initialize(peer, ALL);
	connect_to(rc, connection_data_of(&end, peer)), connect_to(peer, connection_data_of(&end, rc));
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	for (int i = 0; i < ENTRIES + 1; i++)
		CHECK(ibv_post_send(uc, &wr, &bad) == 0);
	next_event(IBV_EVENT_CQ_ERR, small);
	in_error(uc), in_error(rc);
	no_event(0);
	CHECK(ibv_destroy_qp(uc) == 0 && ibv_destroy_qp(rc) == 0 && ibv_destroy_qp(peer) == 0 && ibv_destroy_qp(uc_peer) == 0 && ibv_destroy_cq(small) == 0);
	unpair();
}

/* A queue pair on several rails has one event, although the NIC of rail 0 also reports the error. */
static void reported_once(void)
{
	enum { PAIRS = 8 };
	for (int i = 0; i < PAIRS; i++) {
		pair(0);
		refused_by_queue_pair(WRITE);
		no_event(20);
		unpair();
	}
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "established", established }, { "drained", drained }, { "overflowed", overflowed }, { "reported_once", reported_once },
	};
	set_up(argc);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
