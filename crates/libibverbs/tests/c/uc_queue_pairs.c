/* UC queue pairs: memory windows, peers that are not connected, and shared receive queues, on every rail. A NIC drops an operation without permission, and
 * says nothing. The test therefore sends a message behind the operation, and checks the memory when the message has arrived. */
#include "requester_and_responder.h"

static struct ibv_mr *bindable;

static struct ibv_qp *make_uc(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	struct ibv_qp *qp;
	init.qp_type = IBV_QPT_UC;
	init.send_cq = init.recv_cq = cq;
	init.srq = srq;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	initialize(qp, ALL & ~IBV_ACCESS_REMOTE_READ & ~IBV_ACCESS_REMOTE_ATOMIC);
	return qp;
}

static void connect_uc(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static void connected_pair(struct ibv_srq *srq)
{
	one = make_uc(end.cq, NULL), other = make_uc(responder_cq, srq);
	connect_uc(one, other), connect_uc(other, one);
}

/* Writes by a key, and returns whether the WRITE was executed. While a rail fails, the WRITE and the message behind it may be lost: they are sent
 * until a message arrives. */
static bool is_permitted(uint32_t rkey, char *to)
{
	static uint64_t wr_id = 1000;
	fill();
	post_recv(++wr_id, NULL, 0);
	do {
		CHECK(post_at(WRITE, wr_id, end.memory, end.mr->lkey, to, rkey) == 0);
		CHECK(try_message(wr_id, NULL, 0) == 0);
		completes(wr_id, IBV_WC_SUCCESS), completes(wr_id, IBV_WC_SUCCESS);
		struct ibv_wc wc;
		for (double until = now() + 0.2; now() < until;) {
			int n = ibv_poll_cq(responder_cq, 1, &wc);
			CHECK(n >= 0 && (n == 0 || (wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS)));
			if (n == 1)
				return to[0] == LOCAL;
		}
	} while (true);
}

/* Moves every connection to the next rail, and lets the old rail heal. WRITEs and messages are lost until the connection has moved. */
static void move_from(int rail)
{
	if (rails() == 1)
		return;
	fault("rail%d down", rail);
	while (!is_permitted(end.mr->rkey, target() + 512))
		;
	fault("rail%d up", rail);
	CHECK(is_permitted(end.mr->rkey, target() + 512));
}

/* Executes a request of the responder that sends nothing. */
static void execute(struct ibv_send_wr wr, enum ibv_wc_status status)
{
	struct ibv_send_wr *bad;
	wr.wr_id = 300, wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(other, &wr, &bad) == 0);
	completes_in(responder_cq, 300, status);
}

static struct ibv_send_wr bind_request(struct ibv_mw *mw, uint32_t rkey)
{
	return (struct ibv_send_wr){
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = { bindable, (uintptr_t)target(), 8, IBV_ACCESS_REMOTE_WRITE } },
	};
}

static struct ibv_send_wr invalidate(uint32_t rkey)
{
	return (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey };
}

static void window_of_type_2(void)
{
	for (int moves = 0; moves < (rails() > 1 ? 4 : 1); moves++) {
		struct ibv_mw *mw;
		connected_pair(NULL);
		CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
		uint32_t key = ibv_inc_rkey(mw->rkey);
		execute(bind_request(mw, key), IBV_WC_SUCCESS);
		CHECK(is_permitted(key, target()) && !is_permitted(key, target() + 8));
		CHECK(ibv_dereg_mr(bindable) == EBUSY);
		if (moves & 1)
			move_from(0);
		CHECK(is_permitted(key, target()) && !is_permitted(key, target() + 8));
		execute(invalidate(key), IBV_WC_SUCCESS);
		if (moves & 2)
			move_from(moves & 1);
		CHECK(!is_permitted(key, target()));
		uint32_t again = ibv_inc_rkey(key);
		execute(bind_request(mw, again), IBV_WC_SUCCESS);
		CHECK(is_permitted(again, target()) && !is_permitted(key, target()));
		unpair();
		/* The window ends with its queue pair. */
		CHECK(ibv_dereg_mr(bindable) == 0 && ibv_dealloc_mw(mw) == 0);
		CHECK(bindable = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	}
}

/* A window of type 1 is bound for its protection domain. */
static void window_of_type_1(void)
{
	struct ibv_mw *mw;
	connected_pair(NULL);
	CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1));
	uint32_t earlier = 0;
	for (int round = 0; round < 4; round++) {
		struct ibv_mw_bind request = {
			.wr_id = 300, .send_flags = IBV_SEND_SIGNALED,
			.bind_info = { bindable, (uintptr_t)target(), 8, IBV_ACCESS_REMOTE_WRITE },
		};
		CHECK(ibv_bind_mw(other, mw, &request) == 0);
		completes_in(responder_cq, 300, IBV_WC_SUCCESS);
		CHECK(is_permitted(mw->rkey, target()));
		CHECK(!earlier || !is_permitted(earlier, target()));
		if (round < 2) {
			move_from(round);
			CHECK(is_permitted(mw->rkey, target()) && !is_permitted(mw->rkey, target() + 8));
		}
		earlier = mw->rkey;
	}
	CHECK(ibv_dealloc_mw(mw) == 0);
	CHECK(!is_permitted(earlier, target()));
	unpair();
}

/* The peer needs the key of the window before it connects. */
static void window_before_connection(void)
{
	struct ibv_mw *mw;
	one = make_uc(end.cq, NULL), other = make_uc(responder_cq, NULL);
	connect_uc(other, one);
	CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
	uint32_t key = ibv_inc_rkey(mw->rkey);
	execute(bind_request(mw, key), IBV_WC_SUCCESS);
	connect_uc(one, other);
	CHECK(is_permitted(key, target()) && !is_permitted(key, target() + 8));
	unpair();
	CHECK(ibv_dealloc_mw(mw) == 0);
}

/* A SEND with invalidate is no operation of UC (IBTA volume 1, table 38). It fails at its own end, as a refused bind or invalidation does. */
static void refused_operations(void)
{
	for (int moved = 0; moved < (rails() > 1 ? 2 : 1); moved++) {
		struct ibv_mw *mw, *unused;
		connected_pair(NULL);
		CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
		CHECK(unused = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
		uint32_t key = ibv_inc_rkey(mw->rkey);
		execute(bind_request(mw, key), IBV_WC_SUCCESS);
		if (moved)
			move_from(0);
		struct ibv_send_wr with_invalidate = { .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key };
		struct ibv_send_wr of_region = bind_request(unused, unused->rkey);
		of_region.bind_mw.bind_info.mr = end.mr;
		struct ibv_send_wr refused[] = { with_invalidate, invalidate(ibv_inc_rkey(key)), of_region, bind_request(mw, key) };
		enum ibv_wc_status statuses[] = { IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_MW_BIND_ERR };
		for (int i = 0; i < 4; i++) {
			execute(refused[i], statuses[i]);
			CHECK(state_of(other) == IBV_QPS_SQE);
			/* The window stays bound. */
			CHECK(is_permitted(key, target()));
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
			CHECK(ibv_modify_qp(other, &attr, IBV_QP_STATE) == 0);
		}
		execute(invalidate(key), IBV_WC_SUCCESS);
		CHECK(!is_permitted(key, target()));
		unpair();
		CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dealloc_mw(unused) == 0);
	}
}

/* Messages to a peer that is not connected are lost, and the sender does not wait for the peer. The sender also does not wait for a peer that is connected to another
 * queue pair of the same device. Such a peer accepts a message if it has a receive, as on a NIC, because UC packets do not name their sender. */
static void unconnected_peer(void)
{
	for (int state = 0; state < 2; state++) {
		one = make_uc(end.cq, NULL), other = make_uc(responder_cq, NULL);
		struct ibv_qp *third = make_uc(responder_cq, NULL);
		if (state == 1)
			connect_uc(other, third);
		else
			post_recv(1, NULL, 0);
		connect_uc(one, other);
		for (uint64_t i = 100; i < 300; i++) {
			CHECK((i % 2 ? try_message(i, NULL, 0) : post_at(WRITE, i, end.memory, end.mr->lkey, target(), end.mr->rkey)) == 0);
			completes(i, IBV_WC_SUCCESS);
		}
		CHECK(state_of(one) == IBV_QPS_RTS && is_empty(responder_cq) && !has_event(0));
		CHECK(ibv_destroy_qp(third) == 0);
		unpair();
	}
}

/* A message that is posted after the peer has connected is not lost, although this end may not have heard the peer yet. */
static void message_after_connection(void)
{
	for (int round = 0; round < 40; round++) {
		one = make_uc(end.cq, NULL), other = make_uc(responder_cq, NULL);
		connect_uc(one, other);
		post_recv(1, NULL, 0);
		/* Some messages are lost before. */
		for (int i = 0; i < round % 3; i++) {
			CHECK(try_message(10, NULL, 0) == 0);
			completes(10, IBV_WC_SUCCESS);
		}
		connect_uc(other, one);
		CHECK(try_message(11, NULL, 0) == 0);
		completes(11, IBV_WC_SUCCESS);
		completes_in(responder_cq, 1, IBV_WC_SUCCESS);
		unpair();
	}
}

static struct ibv_srq *make_srq(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq;
	CHECK(srq = ibv_create_srq(end.pd, &attr));
	return srq;
}

/* A message that is longer than its receive is dropped, and the next message takes the receive. */
static void short_shared_receives(void)
{
	struct ibv_srq *srq = make_srq();
	connected_pair(srq);
	struct ibv_sge into = { (uintptr_t)target(), 8, end.mr->lkey };
	for (int round = 0; round < 8; round++) {
		fill();
		post_srq_recv(srq, round, &into, 1);
		for (int len = 16; len > 0; len -= 8) {
			struct ibv_sge from = { (uintptr_t)end.memory, len, end.mr->lkey };
			CHECK(try_message(len, &from, 1) == 0);
			completes(len, IBV_WC_SUCCESS);
		}
		struct ibv_wc wc = next(responder_cq);
		CHECK(wc.wr_id == (uint64_t)round && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
		CHECK(target()[7] == LOCAL && target()[8] == REMOTE);
	}
	CHECK(state_of(other) == IBV_QPS_RTS && is_empty(responder_cq));
	unpair();
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* Two connections take their receives from one queue. Each message takes one. */
static void shared_receives_of_two(void)
{
	enum { MESSAGES = 64 };
	struct ibv_srq *srq = make_srq();
	struct ibv_qp *ones[2], *others[2];
	for (int i = 0; i < 2; i++) {
		connected_pair(srq);
		ones[i] = one, others[i] = other;
	}
	struct ibv_sge into = { (uintptr_t)target(), 8, end.mr->lkey };
	for (uint64_t i = 0; i < MESSAGES; i++) {
		post_srq_recv(srq, i, &into, 1);
		memset(end.memory, (int)i, 8);
		struct ibv_sge from = { (uintptr_t)end.memory, 8, end.mr->lkey };
		one = ones[i % 2];
		CHECK(try_message(i, &from, 1) == 0);
		completes(i, IBV_WC_SUCCESS);
		struct ibv_wc wc = next(responder_cq);
		CHECK(wc.wr_id == i && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8 && wc.qp_num == others[i % 2]->qp_num);
		CHECK(target()[0] == (char)i);
	}
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(ones[i]) == 0 && ibv_destroy_qp(others[i]) == 0);
	CHECK(is_empty(end.cq) && is_empty(responder_cq) && ibv_destroy_srq(srq) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "window_of_type_2", window_of_type_2 }, { "window_of_type_1", window_of_type_1 },
		{ "window_before_connection", window_before_connection }, { "refused_operations", refused_operations },
		{ "unconnected_peer", unconnected_peer }, { "message_after_connection", message_after_connection },
		{ "short_shared_receives", short_shared_receives }, { "shared_receives_of_two", shared_receives_of_two },
	};
	set_up(argc);
	CHECK(bindable = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	CHECK(ibv_dereg_mr(bindable) == 0);
	return 0;
}
