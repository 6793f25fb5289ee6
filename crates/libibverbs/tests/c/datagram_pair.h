/* Two UD queue pairs of one device, of which the first sends to the second. */
#pragma once
#include "rail_faults.h"

enum { QKEY = 0x11, GRH = 40, LARGEST = 4096, BURST = 8 };

static struct end end;
static struct ibv_qp *from, *to;
static struct ibv_cq *arrived;
static struct ibv_ah *ah;
static char *memory;
static struct ibv_mr *mr;

static inline char *send_place(int i) { return memory + i * LARGEST; }
static inline char *receive_place(int i) { return memory + (BURST + i) * LARGEST + i * GRH; }

static inline void modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .qkey = QKEY };
	int mask = IBV_QP_STATE;
	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS && state_of(qp) == IBV_QPS_RTR)
		mask |= IBV_QP_SQ_PSN;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

/* Creates a queue pair in RESET. `srq` may be null. */
static inline struct ibv_qp *make_reset_ud(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	struct ibv_qp *qp;
	init.qp_type = IBV_QPT_UD;
	init.send_cq = init.recv_cq = cq;
	init.srq = srq;
	init.cap.max_send_wr = DEPTH + 5; /* not the number that the library posts at a time */
	CHECK(qp = ibv_create_qp(end.pd, &init));
	return qp;
}

static inline void to_rtr(struct ibv_qp *qp)
{
	modify(qp, IBV_QPS_INIT);
	modify(qp, IBV_QPS_RTR);
}

static inline struct ibv_qp *make_ud(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_reset_ud(cq, NULL);
	to_rtr(qp);
	return qp;
}

static inline void set_up(void)
{
	size_t bytes = 2 * BURST * (LARGEST + GRH);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (mr = ibv_reg_mr(end.pd, memory, bytes, ALL)));
	CHECK(arrived = ibv_create_cq(end.context, 4 * DEPTH, NULL, NULL, 0));
	from = make_ud(end.cq);
	to = make_ud(arrived);
	modify(from, IBV_QPS_RTS);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } };
	CHECK(ah = ibv_create_ah(end.pd, &attr));
}

static inline void post_receive(int i, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)receive_place(i), GRH + len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(to, &wr, &bad) == 0);
}

static inline struct ibv_send_wr send_of(struct ibv_sge *sge, int flags)
{
	return (struct ibv_send_wr){ .wr_id = 7, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags, .wr.ud = { ah, to->qp_num, QKEY } };
}

static inline void post(int i, uint32_t len, int flags)
{
	struct ibv_sge sge = { (uintptr_t)send_place(i), len, mr->lkey };
	struct ibv_send_wr wr = send_of(&sge, flags), *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

static inline void ended(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next(cq);
	CHECK(wc.wr_id == wr_id && wc.status == status);
}

/* Runs the scenario of this name with the two queue pairs. */
static inline void run_with_pair(const struct scenario *scenarios, size_t count, const char *name)
{
	alarm(60);
	end = open_end();
	set_up();
	run_scenario(scenarios, count, name);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_destroy_ah(ah) == 0);
}
