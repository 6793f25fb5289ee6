/* Every permission of verbs: the status of the refused request, the event of the responder, and that memory is unchanged. */
#include "requester_and_responder.h"

/* The queue pair's flags refuse what the region permits. */
static void queue_pair_flags(void)
{
	for (int operation = 0; operation < OPERATIONS; operation++) {
		pair(ALL & ~needed[operation]);
		refused_by_queue_pair(operation);
		unpair();
		pair(0);
		refused_by_queue_pair(operation);
		unpair();
		pair(needed[operation]);
		permitted(operation);
		unpair();
	}
}

/* The flags of a connected queue pair are changed. */
static void changed_flags(void)
{
	for (int operation = 0; operation < OPERATIONS; operation++) {
		pair(ALL);
		permitted(operation);
		struct ibv_qp_attr attr = { .qp_access_flags = ALL & ~needed[operation] };
		CHECK(ibv_modify_qp(other, &attr, IBV_QP_ACCESS_FLAGS) == 0);
		refused_by_queue_pair(operation);
		unpair();
		pair(0);
		attr.qp_access_flags = needed[operation];
		CHECK(ibv_modify_qp(other, &attr, IBV_QP_ACCESS_FLAGS) == 0);
		permitted(operation);
		unpair();
	}
}

/* The region's flags refuse what the queue pair permits. */
static void region_flags(void)
{
	for (int operation = 0; operation < OPERATIONS; operation++) {
		struct ibv_mr *mr;
		CHECK(mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL & ~needed[operation]));
		pair(ALL);
		refused(operation, mr->rkey);
		unpair();
		CHECK(ibv_dereg_mr(mr) == 0);
	}
	/* The result of a READ is written to local memory. */
	struct ibv_mr *read_only;
	CHECK(read_only = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, 0));
	pair(ALL);
	fails(READ, end.memory, read_only->lkey);
	unpair();
	CHECK(ibv_dereg_mr(read_only) == 0);
}

/* A region of another protection domain. */
static void foreign_regions(void)
{
	for (int operation = 0; operation < OPERATIONS; operation++) {
		pair(ALL);
		refused(operation, foreign_mr->rkey);
		unpair();
		if (operation < SWAP) {
			pair(ALL);
			fails(operation, end.memory, foreign_mr->lkey);
			unpair();
		}
	}
}

/* Keys of no region and of a deregistered region, and addresses beyond a region. */
static void unknown_keys(void)
{
	struct ibv_mr *mr;
	CHECK(mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL));
	uint32_t lkey = mr->lkey, rkey = mr->rkey;
	CHECK(ibv_dereg_mr(mr) == 0);
	for (int operation = 0; operation < OPERATIONS; operation++) {
		pair(ALL);
		refused(operation, end.mr->rkey + 0x100);
		unpair();
		pair(ALL);
		refused(operation, rkey);
		unpair();
		pair(ALL);
		refused_at(operation, end.memory + 2 * PAGE, end.mr->rkey);
		unpair();
		if (operation < SWAP) {
			pair(ALL);
			fails(operation, end.memory, end.mr->lkey + 0x100);
			unpair();
			pair(ALL);
			fails(operation, end.memory, lkey);
			unpair();
			pair(ALL);
			fails(operation, end.memory + 2 * PAGE - 4, end.mr->lkey);
			unpair();
		}
	}
}

/* The memory of a message or of a receive. */
static void messages(void)
{
	struct ibv_mr *read_only;
	CHECK(read_only = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, 0));
	uint32_t sends[] = { foreign_mr->lkey, end.mr->lkey + 0x100 };
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = { (uintptr_t)end.memory, 8, sends[i] };
		fill();
		pair(ALL);
		post_recv(100, NULL, 0);
		CHECK(try_message(1, NULL, 0) == 0 && try_message(2, &sge, 1) == 0 && try_message(3, NULL, 0) == 0);
		completes(1, IBV_WC_SUCCESS);
		completes(2, IBV_WC_LOC_PROT_ERR);
		completes(3, IBV_WC_WR_FLUSH_ERR);
		completes_in(responder_cq, 100, IBV_WC_SUCCESS);
		in_error(one);
		unpair();
	}
	uint32_t receives[] = { foreign_mr->lkey, end.mr->lkey + 0x100, read_only->lkey };
	for (int i = 0; i < 3; i++) {
		struct ibv_sge from = { (uintptr_t)end.memory, 8, end.mr->lkey }, to = { (uintptr_t)target(), 8, receives[i] };
		fill();
		pair(ALL);
		post_recv(100, NULL, 0), post_recv(101, &to, 1), post_recv(102, NULL, 0);
		CHECK(try_message(1, NULL, 0) == 0 && try_message(2, &from, 1) == 0 && try_message(3, NULL, 0) == 0);
		completes(1, IBV_WC_SUCCESS);
		completes(2, IBV_WC_REM_OP_ERR);
		completes(3, IBV_WC_WR_FLUSH_ERR);
		completes_in(responder_cq, 100, IBV_WC_SUCCESS);
		completes_in(responder_cq, 101, IBV_WC_LOC_PROT_ERR);
		completes_in(responder_cq, 102, IBV_WC_WR_FLUSH_ERR);
		in_error(one), in_error(other);
		check_unchanged();
		unpair();
	}
	CHECK(ibv_dereg_mr(read_only) == 0);
}

static struct ibv_srq *make_srq(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 2 } };
	struct ibv_srq *srq;
	CHECK(srq = ibv_create_srq(pd, &init));
	return srq;
}

/* A shared receive queue has a protection domain of its own, in which its receives are. With several rails, a message is acknowledged
 * before it is copied to a shared receive, so its sender has no error. */
static void shared_messages(void)
{
	for (int is_foreign = 0; is_foreign < 2; is_foreign++) {
		struct ibv_srq *srq = make_srq(is_foreign ? foreign : end.pd);
		uint32_t permitted_key = is_foreign ? foreign_mr->lkey : end.mr->lkey, key = is_foreign ? end.mr->lkey : foreign_mr->lkey;
		struct ibv_sge from = { (uintptr_t)end.memory, 8, end.mr->lkey };
		struct ibv_sge good = { (uintptr_t)target(), 8, permitted_key }, bad = { (uintptr_t)target(), 8, key };
		pair_with(ALL, srq);
		post_srq_recv(srq, 1, &good, 1);
		fill();
		CHECK(try_message(1, &from, 1) == 0);
		completes(1, IBV_WC_SUCCESS);
		completes_in(responder_cq, 1, IBV_WC_SUCCESS);
		CHECK(target()[7] == LOCAL && target()[8] == REMOTE);
		fill();
		post_srq_recv(srq, 2, &bad, 1);
		CHECK(try_message(2, &from, 1) == 0);
		completes(2, rails() > 1 ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
		completes_in(responder_cq, 2, IBV_WC_LOC_PROT_ERR);
		in_error(other);
		check_unchanged();
		struct ibv_async_event event;
		CHECK(ibv_get_async_event(end.context, &event) == 0 && event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
		ibv_ack_async_event(&event);
		if (rails() == 1)
			in_error(one);
		unpair();
		CHECK(ibv_destroy_srq(srq) == 0);
	}
}

/* A message that is longer than the oldest shared receive. */
static void shared_short_receives(void)
{
	struct ibv_srq *srq = make_srq(end.pd);
	struct ibv_sge from = { (uintptr_t)end.memory, 16, end.mr->lkey }, into = { (uintptr_t)target(), 8, end.mr->lkey };
	pair_with(ALL, srq);
	post_srq_recv(srq, 1, &into, 1);
	fill();
	CHECK(try_message(1, &from, 1) == 0);
	completes(1, rails() > 1 ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR);
	completes_in(responder_cq, 1, IBV_WC_LOC_LEN_ERR);
	in_error(other);
	check_unchanged();
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_srq(srq) == 0);
}

/* WRITEs with immediate take empty receives that several queue pairs share. A message takes a longer receive that is posted later. */
static void shared_immediates(void)
{
	enum { PAIRS = 3 };
	struct ibv_qp *ones[PAIRS], *others[PAIRS];
	struct ibv_srq *srq = make_srq(end.pd);
	for (int i = 0; i < DEPTH / 2; i++)
		post_srq_recv(srq, i, NULL, 0);
	for (int i = 0; i < PAIRS; i++) {
		pair_with(ALL, srq);
		ones[i] = one, others[i] = other;
	}
	for (int i = 0; i < DEPTH / 2; i++) {
		fill();
		one = ones[i % PAIRS];
		post(WRITE_WITH_IMM, i, end.mr->lkey, end.mr->rkey);
		completes(i, IBV_WC_SUCCESS);
		struct ibv_wc wc = next(responder_cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 8);
		CHECK(wc.wr_id == (uint64_t)i && wc.qp_num == others[i % PAIRS]->qp_num && target()[7] == LOCAL);
	}
	struct ibv_sge from = { (uintptr_t)end.memory, PAGE, end.mr->lkey }, to = { (uintptr_t)target(), PAGE, end.mr->lkey };
	for (int i = 0; i < 2 * PAIRS; i++) {
		fill();
		post_srq_recv(srq, i, &to, 1);
		one = ones[i % PAIRS];
		CHECK(try_message(i, &from, 1) == 0);
		completes(i, IBV_WC_SUCCESS);
		completes_in(responder_cq, i, IBV_WC_SUCCESS);
		CHECK(memcmp(end.memory, target(), PAGE) == 0);
	}
	for (int i = 0; i < PAIRS; i++)
		CHECK(ibv_destroy_qp(ones[i]) == 0 && ibv_destroy_qp(others[i]) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* Permissions hold on the rail after a failover, and on the new queue pairs of the rail before the failover. */
static void failovers(void)
{
	for (int operation = 0; operation < OPERATIONS; operation++) {
		for (int kind = 0; kind < 4; kind++) {
			pair(kind == 0 ? ALL & ~needed[operation] : ALL);
			if (kind == 1) {
				struct ibv_qp_attr attr = { .qp_access_flags = ALL & ~needed[operation] };
				CHECK(ibv_modify_qp(other, &attr, IBV_QP_ACCESS_FLAGS) == 0);
			}
			for (int rail = 0; rail < rails() && rails() > 1; rail++) {
				fault("rail%d down", rail);
				permitted(operation == READ ? WRITE : READ);
				fault("rail%d up", rail);
			}
			if (kind == 3 && operation < SWAP)
				fails(operation, end.memory, foreign_mr->lkey);
			else if (kind < 2)
				refused_by_queue_pair(operation);
			else
				refused(operation, foreign_mr->rkey);
			unpair();
		}
	}
}

enum { QKEY = 0x1234 };

static struct ibv_qp *make_unreliable(enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	struct ibv_qp *qp;
	init.qp_type = type;
	init.send_cq = init.recv_cq = cq;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	return qp;
}

static void ready_for_datagrams(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

/* The memory of a datagram and of its receive. */
static void datagrams(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } };
	struct ibv_ah *ah;
	CHECK(ah = ibv_create_ah(end.pd, &to));
	for (int is_receive = 0; is_receive < 2; is_receive++) {
		one = make_unreliable(IBV_QPT_UD, end.cq), other = make_unreliable(IBV_QPT_UD, responder_cq);
		ready_for_datagrams(one), ready_for_datagrams(other);
		struct ibv_sge from = { (uintptr_t)end.memory, 8, is_receive ? end.mr->lkey : foreign_mr->lkey };
		struct ibv_sge into = { (uintptr_t)target(), 64, is_receive ? foreign_mr->lkey : end.mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = 1, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
			.wr.ud = { .ah = ah, .remote_qpn = other->qp_num, .remote_qkey = QKEY },
		}, *bad;
		fill();
		post_recv(2, &into, 1);
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		completes(1, is_receive ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR);
		if (is_receive)
			completes_in(responder_cq, 2, IBV_WC_LOC_PROT_ERR);
		check_unchanged();
		unpair();
	}
	CHECK(ibv_destroy_ah(ah) == 0);
}

static void connect_unreliably(struct ibv_qp *qp, struct ibv_qp *peer, int flags)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
	};
	initialize(qp, flags);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

/* A WRITE over an unreliable connection. The responder drops a WRITE without permission, and sends no answer. */
static void unreliable_writes(void)
{
	for (int kind = 0; kind < 4; kind++) {
		one = make_unreliable(IBV_QPT_UC, end.cq), other = make_unreliable(IBV_QPT_UC, responder_cq);
		connect_unreliably(one, other, 0), connect_unreliably(other, one, kind == 0 ? 0 : ALL);
		fill();
		post(WRITE, 1, kind == 2 ? foreign_mr->lkey : end.mr->lkey, kind == 1 ? foreign_mr->rkey : end.mr->rkey);
		completes(1, kind == 2 ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
		if (kind == 3) {
			while (((volatile char *)target())[7] != LOCAL)
				;
		} else {
			usleep(100000);
			check_unchanged();
		}
		unpair();
	}
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "queue_pair_flags", queue_pair_flags }, { "changed_flags", changed_flags }, { "region_flags", region_flags },
		{ "foreign_regions", foreign_regions }, { "unknown_keys", unknown_keys }, { "messages", messages },
		{ "shared_messages", shared_messages }, { "shared_short_receives", shared_short_receives }, { "shared_immediates", shared_immediates },
		{ "failovers", failovers }, { "datagrams", datagrams }, { "unreliable_writes", unreliable_writes },
	};
	set_up(argc);
	CHECK(foreign = ibv_alloc_pd(end.context));
	CHECK(foreign_mr = ibv_reg_mr(foreign, end.memory, 2 * PAGE, ALL));
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	CHECK(ibv_dealloc_pd(foreign) == EBUSY);
	CHECK(ibv_dereg_mr(foreign_mr) == 0 && ibv_dealloc_pd(foreign) == 0);
	return 0;
}
