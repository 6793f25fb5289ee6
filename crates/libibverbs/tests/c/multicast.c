/* Multicast groups of two processes, each with a device of its own. */
#include "peer_process.h"

static struct end end;

enum { QKEY = 0x11, GRH = 40, ROOM = GRH + 64, MULTICAST_QPN = 0xffffff };

/* A datagram queue pair with receives, which does not receive its own messages if loopback is blocked. */
static struct ibv_qp *member(struct ibv_cq *cq, uint32_t flags)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = end.pd, .create_flags = flags,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
	};
	struct ibv_qp *made;
	CHECK(made = ibv_create_qp_ex(end.context, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(made, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(made, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(made, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	for (uint64_t i = 0; i < 4; i++) {
		struct ibv_sge sge = { (uintptr_t)end.memory + i * ROOM, ROOM, end.mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(made, &wr, &bad) == 0);
	}
	return made;
}

/* Sends are unsignalled, so all completions are receives. */
static void send_to_group(struct ibv_qp *from, struct ibv_ah *ah, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)text, strlen(text) + 1, 0 };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_INLINE, .imm_data = htobe32(7),
		.wr.ud = { ah, MULTICAST_QPN, QKEY },
	}, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

static void got(struct ibv_cq *cq, struct ibv_qp *at, uint32_t src_qp, uint64_t wr_id, const char *text)
{
	struct ibv_wc wc = next(cq);
	const unsigned char *message = (unsigned char *)end.memory + wr_id * ROOM;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.qp_num == at->qp_num && wc.src_qp == src_qp);
	CHECK(wc.wr_id == wr_id && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && be32toh(wc.imm_data) == 7);
	CHECK(wc.byte_len == GRH + strlen(text) + 1 && strcmp((const char *)message + GRH, text) == 0);
	union ibv_gid group = mcast_gid(1);
	CHECK(memcmp(message + 36, group.raw + 12, 4) == 0);
}

/* Two processes with two queue pairs each in a group. Each queue pair gets a copy, except a sender that blocks loopback. */
static void multicast(void)
{
	struct ibv_cq *cqs[2];
	struct ibv_qp *qps[2];
	union ibv_gid group = mcast_gid(1);
	for (int i = 0; i < 2; i++) {
		CHECK(cqs[i] = ibv_create_cq(end.context, DEPTH, NULL, NULL, 0));
		qps[i] = member(cqs[i], i == 0 ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0);
		CHECK(ibv_attach_mcast(qps[i], &group, 0) == 0);
	}
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = group, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(end.pd, &attr);
	CHECK(ah);
	uint32_t from[2] = { qps[0]->qp_num, qps[1]->qp_num };
	if (child) {
		tell(from, sizeof from);
		meet();
		send_to_group(qps[0], ah, "from the first");
		got(cqs[1], qps[1], from[0], 0, "from the first");
		meet();
		send_to_group(qps[1], ah, "from the second");
		got(cqs[0], qps[0], from[1], 0, "from the second");
		got(cqs[1], qps[1], from[1], 1, "from the second");
	} else {
		hear(from, sizeof from);
		meet();
		for (int i = 0; i < 2; i++)
			got(cqs[i], qps[i], from[0], 0, "from the first");
		meet();
		for (int i = 0; i < 2; i++)
			got(cqs[i], qps[i], from[1], 1, "from the second");
	}
	meet();
	/* A detached queue pair receives no more messages. */
	CHECK(ibv_detach_mcast(qps[0], &group, 0) == 0);
	meet();
	if (child)
		send_to_group(qps[0], ah, "to the others");
	got(cqs[1], qps[1], from[0], 2, "to the others");
	for (int i = 0; i < 2; i++)
		CHECK(is_empty(cqs[i]));
	meet();
	CHECK(ibv_detach_mcast(qps[1], &group, 0) == 0 && ibv_destroy_ah(ah) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qps[i]) == 0 && ibv_destroy_cq(cqs[i]) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = { { "multicast", multicast } };
	mcast_gid(0); /* both ends use the same groups */
	CHECK(argc == 2);
	fork_peer();
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
