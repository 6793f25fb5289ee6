/* The completions of requests: binds of windows, and requests that the device accepts and then refuses. One process. */
#include "connected_pair.h"

static enum ibv_wc_status status_of_write(uint64_t addr, uint32_t rkey)
{
	CHECK(post_write(one, &end, 7, addr, rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 7);
	return wc.status;
}

/* Windows of type 1: ibv_bind_mw binds, binds again and unbinds, and advances the key. */
static void windows_of_type_1(void)
{
	REFUSED(EINVAL, ibv_alloc_mw(end.pd, 3));
	struct ibv_mw *mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1);
	CHECK(mw);
	connect_pair();
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	uint64_t addr = (uintptr_t)end.memory + PAGE;
	CHECK(mr && mw->type == IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = addr, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	uint32_t key = mw->rkey;
	CHECK(ibv_bind_mw(other, mw, &bind) == 0 && mw->rkey == ((key & ~0xffU) | ((key + 1) & 0xff)));
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	CHECK(status_of_write(addr, mw->rkey) == IBV_WC_SUCCESS);
	FAILS(EBUSY, ibv_dereg_mr(mr));
	/* A second bind needs no invalidation, and ends the first bind. */
	uint32_t first = mw->rkey;
	bind.bind_info.addr = addr + 64;
	CHECK(ibv_bind_mw(other, mw, &bind) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(status_of_write(addr + 64, mw->rkey) == IBV_WC_SUCCESS && status_of_write(addr, first) == IBV_WC_REM_ACCESS_ERR);
	disconnect_pair();
	connect_pair();
	/* The window belongs to no queue pair, and a bind of no bytes unbinds it. */
	CHECK(status_of_write(addr + 64, mw->rkey) == IBV_WC_SUCCESS);
	bind.bind_info = (struct ibv_mw_bind_info){ .mr = NULL };
	CHECK(ibv_bind_mw(other, mw, &bind) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(status_of_write(addr + 64, mw->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_mw(mw) == 0);
	FAILS(ENOENT, ibv_bind_mw(other, mw, &bind));
	disconnect_pair();
}

/* A bind of a type 2 window takes the low 8 bits of the requested key, and ignores the other bits. */
static void keys_of_windows(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	connect_pair();
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	uint64_t addr = (uintptr_t)end.memory + PAGE;
	uint32_t bound = (mw->rkey & ~0xffU) | 0x77;
	CHECK(mr);
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { mw, 0x12345677, { mr, addr, 64, IBV_ACCESS_REMOTE_WRITE } } }, *bad;
	CHECK(ibv_post_send(other, &wr, &bad) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(status_of_write(addr, bound) == IBV_WC_SUCCESS);
	/* A local invalidation of a key that is not bound fails. */
	wr = (struct ibv_send_wr){ .wr_id = 2, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = bound ^ 1 };
	CHECK(ibv_post_send(other, &wr, &bad) == 0 && next(end.cq).status == IBV_WC_LOC_QP_OP_ERR);
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0);
	disconnect_pair();
}

static struct ibv_qp *datagram_qp(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	CHECK(qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	return qp;
}

/* Requests that a device accepts and then completes, most of them with an error. docs/device.md lists them. */
static void refused_by_completion(void)
{
	struct ibv_send_wr *bad;
	uint64_t *words = (uint64_t *)end.memory, *counter = (uint64_t *)(end.memory + PAGE);
	struct ibv_sge sge = { (uintptr_t)end.memory, 4, end.mr->lkey };
	struct ibv_send_wr add = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED, .wr.atomic = { .remote_addr = (uintptr_t)counter, .compare_add = 5, .rkey = end.mr->rkey } };
	/* An atomic with less than 8 bytes of local memory is not executed. The request before the atomic is executed. */
	connect_pair();
	*counter = 1, words[0] = words[1] = 77;
	CHECK(post_write(one, &end, 8, (uintptr_t)end.memory + PAGE + 64, end.mr->rkey) == 0 && ibv_post_send(one, &add, &bad) == 0);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_LOC_LEN_ERR && *counter == 1 && words[0] == 77);
	CHECK(post_write(one, &end, 9, 0, 0) == 0 && next(end.cq).status == IBV_WC_WR_FLUSH_ERR);
	disconnect_pair();
	/* An atomic with longer memory writes 8 bytes. */
	connect_pair();
	sge.length = 16;
	CHECK(ibv_post_send(one, &add, &bad) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(*counter == 6 && words[0] == 1 && words[1] == 77);
	disconnect_pair();

	/* A READ on UD. */
	struct ibv_qp *ud = datagram_qp(), *receiver = datagram_qp();
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(end.pd, &to);
	CHECK(ah);
	struct ibv_send_wr read = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)counter, end.mr->rkey } };
	CHECK(ibv_post_send(ud, &read, &bad) == 0);
	wc = next(end.cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_LOC_QP_OP_ERR);
	CHECK(ibv_destroy_qp(ud) == 0);

	/* A datagram beyond the MTU completes without being sent. */
	ud = datagram_qp();
	struct ibv_port_attr port;
	CHECK(ibv_query_port(end.context, 1, &port) == 0);
	uint32_t mtu = 128U << port.active_mtu;
	char *large = calloc(1, 16384);
	struct ibv_mr *mr = ibv_reg_mr(end.pd, large, 16384, ALL);
	CHECK(mr);
	struct ibv_sge room = { (uintptr_t)large, 8192, mr->lkey }, payload = { (uintptr_t)large + 8192, mtu + 1, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 3, .sg_list = &room, .num_sge = 1 }, *bad_recv;
	CHECK(ibv_post_recv(receiver, &recv, &bad_recv) == 0);
	struct ibv_send_wr send = { .wr_id = 4, .sg_list = &payload, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { ah, receiver->qp_num, 0x11 } };
	CHECK(ibv_post_send(ud, &send, &bad) == 0);
	wc = next(end.cq);
	CHECK(wc.wr_id == 4 && wc.status == IBV_WC_SUCCESS);
	payload.length = 100;
	CHECK(ibv_post_send(ud, &send, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		wc = next(end.cq);
		CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 4 || (wc.wr_id == 3 && wc.byte_len == 140)));
	}
	CHECK(is_empty(end.cq) && ibv_destroy_qp(ud) == 0 && ibv_destroy_qp(receiver) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	free(large);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "windows_of_type_1", windows_of_type_1 }, { "keys_of_windows", keys_of_windows },
		{ "refused_by_completion", refused_by_completion },
	};
	alarm(60);
	CHECK(argc == 2);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
