/* Rules of verbs that the conformance tests of other devices check. One process. */
#include "connected_pair.h"

static void post_receive(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, PAGE, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* Posts a message of the first `length` bytes of the memory. */
static void post_message(struct ibv_qp *qp, uint32_t length, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, length, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = length, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.wr.rdma.remote_addr = (uintptr_t)end.memory + PAGE, wr.wr.rdma.rkey = end.mr->rkey;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Returns the completion of the next receive. The completion of the message may come earlier or later. */
static struct ibv_wc next_receive(void)
{
	struct ibv_wc wcs[2] = { next(end.cq), next(end.cq) };
	CHECK(wcs[0].status == IBV_WC_SUCCESS && wcs[1].status == IBV_WC_SUCCESS);
	CHECK(!(wcs[0].opcode & IBV_WC_RECV) != !(wcs[1].opcode & IBV_WC_RECV));
	return wcs[wcs[1].opcode & IBV_WC_RECV ? 1 : 0];
}

/* As on soft-RoCE, a receive over a connection has the flag of a GRH, but no GRH in its memory, and no source queue pair. */
static void receive_flags(void)
{
	connect_pair();
	for (uint32_t length = 8; length <= 800; length *= 10) {
		post_receive(other, 1);
		post_message(one, length, IBV_WR_SEND);
		struct ibv_wc wc = next_receive();
		CHECK(wc.byte_len == length && wc.wc_flags == IBV_WC_GRH && wc.src_qp == 0);
		post_receive(other, 2);
		post_message(one, length, IBV_WR_RDMA_WRITE_WITH_IMM);
		wc = next_receive();
		CHECK(wc.byte_len == length && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.src_qp == 0);
	}
	disconnect_pair();
}

/* A message that is longer than its receive fails the receive before the send: a NIC completes the receive, and then sends the NAK. */
static void message_longer_than_receive(void)
{
	for (int i = 0; i < 100; i++) {
		connect_pair();
		struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 8, end.mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(other, &wr, &bad) == 0);
		post_message(one, 64, IBV_WR_SEND);
		struct ibv_wc receive = next(end.cq), message = next(end.cq);
		CHECK(receive.wr_id == 1 && receive.status == IBV_WC_LOC_LEN_ERR);
		CHECK(message.wr_id == 64 && message.status == IBV_WC_REM_INV_REQ_ERR);
		disconnect_pair();
	}
}

/* Receives are refused in RESET, and wait for messages from INIT on. A reset removes them. */
static void receives_in_reset(void)
{
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, PAGE, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	one = make_qp(&end), other = make_qp(&end);
	for (int round = 0; round < 2; round++) {
		errno = 0;
		CHECK(ibv_post_recv(other, &wr, &bad) == EINVAL && errno == EINVAL && bad == &wr);
		ready(one), ready(other);
		post_receive(other, 2);
		connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
		post_message(one, 8, IBV_WR_SEND);
		CHECK(next_receive().wr_id == 2);
		post_receive(other, 3);
		CHECK(ibv_modify_qp(one, &reset, IBV_QP_STATE) == 0 && ibv_modify_qp(other, &reset, IBV_QP_STATE) == 0);
	}
	disconnect_pair();
}

/* A receive may exceed its region if the message does not. */
static void receives_beyond_region(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &shared);
	struct ibv_sge sge = { (uintptr_t)end.memory + 2 * PAGE - 64, 128, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(srq);
	for (int is_shared = 0; is_shared < 2; is_shared++) {
		struct ibv_qp_init_attr init = plain_init(&end);
		init.srq = is_shared ? srq : NULL;
		one = make_qp(&end), other = ibv_create_qp(end.pd, &init);
		CHECK(other);
		ready(one), ready(other);
		CHECK((is_shared ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(other, &wr, &bad)) == 0);
		connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
		post_message(one, 64, IBV_WR_SEND);
		CHECK(next_receive().byte_len == 64);
		disconnect_pair();
	}
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* An object is found only in its own context. */
static void objects_of_another_context(void)
{
	struct ibv_context *own = end.context, *foreign;
	CHECK(foreign = ibv_open_device(own->device));
	struct ibv_pd *pd = ibv_alloc_pd(own);
	struct ibv_cq *cq = ibv_create_cq(own, 1, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory, PAGE, ALL);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh.dgid = end.gid };
	struct ibv_ah *ah = ibv_create_ah(end.pd, &to);
	struct ibv_qp *qp = make_qp(&end);
	CHECK(pd && cq && mr && ah);
#define IN_ANOTHER_CONTEXT(object, destroy) \
	do { \
		object->context = foreign; \
		errno = 0; \
		CHECK(destroy(object) == ENOENT && errno == ENOENT); \
		object->context = own; \
		CHECK(destroy(object) == 0); \
	} while (0)
	IN_ANOTHER_CONTEXT(qp, ibv_destroy_qp);
	IN_ANOTHER_CONTEXT(ah, ibv_destroy_ah);
	IN_ANOTHER_CONTEXT(mr, ibv_dereg_mr);
	IN_ANOTHER_CONTEXT(cq, ibv_destroy_cq);
	IN_ANOTHER_CONTEXT(pd, ibv_dealloc_pd);
	CHECK(ibv_close_device(foreign) == 0);
}

/* A datagram to an address handle of another protection domain is not sent, and fails when it is executed (IBTA volume 1, C10-10). */
static void address_handle_of_another_domain(void)
{
	struct ibv_pd *foreign = ibv_alloc_pd(end.context);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(foreign, &to);
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	CHECK(foreign && ah && qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	post_receive(qp, 1);
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { ah, qp->qp_num, 0x11 } }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_LOC_QP_OP_ERR && is_empty(end.cq));
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0 && ibv_dealloc_pd(foreign) == 0);
}

/* The addresses of a zero-based type 2 window are the offsets of its bytes. */
static void zero_based_windows(void)
{
	struct ibv_mw *window = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2);
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory + PAGE, PAGE, ALL | IBV_ACCESS_MW_BIND);
	CHECK(window && mr);
	connect_pair();
	struct ibv_send_wr *bad, bind = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = { .mw = window,
		.rkey = ibv_inc_rkey(window->rkey), .bind_info = { .mr = mr, .addr = (uintptr_t)end.memory + PAGE + 64, .length = 128,
			.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED } } };
	CHECK(ibv_post_send(other, &bind, &bad) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	uint32_t rkey = bind.bind_mw.rkey;
	memset(end.memory, 'x', 8), memset(end.memory + PAGE, '-', PAGE);
	CHECK(post_write(one, &end, 2, 0, rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(post_write(one, &end, 3, 120, rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	for (int i = 0; i < PAGE; i++)
		CHECK(end.memory[PAGE + i] == ((i >= 64 && i < 72) || (i >= 184 && i < 192) ? 'x' : '-'));
	/* One byte beyond the window. */
	CHECK(post_write(one, &end, 4, 121, rkey) == 0 && next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
	disconnect_pair();
	/* The address of the memory is outside the window. */
	connect_pair();
	CHECK(ibv_post_send(other, &bind, &bad) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(post_write(one, &end, 5, bind.bind_mw.bind_info.addr, rkey) == 0 && next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
	disconnect_pair();
	/* The bytes of a window are those of its region, zero-based or not. */
	connect_pair();
	bind.bind_mw.bind_info.length = PAGE;
	CHECK(ibv_post_send(other, &bind, &bad) == 0 && next(end.cq).status == IBV_WC_MW_BIND_ERR);
	disconnect_pair();
	/* Type 1 windows are not zero-based. */
	struct ibv_mw *type_1 = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind request = { .wr_id = 6, .send_flags = IBV_SEND_SIGNALED, .bind_info = { .mr = mr, .addr = (uintptr_t)end.memory + PAGE,
		.length = 8, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED } };
	CHECK(type_1);
	connect_pair();
	CHECK(ibv_bind_mw(other, type_1, &request) == 0 && next(end.cq).status == IBV_WC_MW_BIND_ERR);
	disconnect_pair();
	CHECK(ibv_dealloc_mw(window) == 0 && ibv_dealloc_mw(type_1) == 0 && ibv_dereg_mr(mr) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "receive_flags", receive_flags }, { "message_longer_than_receive", message_longer_than_receive }, { "receives_in_reset", receives_in_reset },
		{ "receives_beyond_region", receives_beyond_region },
		{ "objects_of_another_context", objects_of_another_context },
		{ "address_handle_of_another_domain", address_handle_of_another_domain }, { "zero_based_windows", zero_based_windows },
	};
	alarm(60);
	CHECK(argc == 2);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
