/* The PSNs and the state that `ibv_query_qp` returns. One process. */
#include "connected_pair.h"
#include "rail_faults.h"

enum { MTU = 1024, FIRST = 0xfffff0, OTHER_FIRST = 200 };

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init) == 0);
	return attr;
}

static void connect_from(struct ibv_qp *qp, struct ibv_qp *peer, uint32_t sq_psn, uint32_t rq_psn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = rq_psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
	};
	ready(qp);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.sq_psn = sq_psn, attr.timeout = 14, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* The PSNs of one direction pass 2^24. */
static void numbered_pair(void)
{
	one = make_qp(&end), other = make_qp(&end);
	ready(one), ready(other);
	connect_from(one, other, FIRST, OTHER_FIRST), connect_from(other, one, OTHER_FIRST, FIRST);
	CHECK(query(one).sq_psn == FIRST && query(one).rq_psn == OTHER_FIRST);
	CHECK(query(other).sq_psn == OTHER_FIRST && query(other).rq_psn == FIRST);
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, length, end.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic.remote_addr = (uintptr_t)end.memory + PAGE, wr.wr.atomic.rkey = rkey;
	else
		wr.wr.rdma.remote_addr = (uintptr_t)end.memory + PAGE, wr.wr.rdma.rkey = rkey;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Executes a request, and checks that the numbers advance by its packets at both ends. */
static void advances(enum ibv_wr_opcode opcode, uint32_t length, uint32_t packets)
{
	uint32_t before = query(one).sq_psn;
	post(one, opcode, length, end.mr->rkey);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	uint32_t after = query(one).sq_psn;
	if (((after - before) & 0xffffff) != packets || query(other).rq_psn != after)
		fprintf(stderr, "operation %d of %u bytes: from %#x to %#x, the responder at %#x\n", opcode, length, before, after, query(other).rq_psn);
	CHECK(((after - before) & 0xffffff) == packets && query(other).rq_psn == after);
	CHECK(query(one).rq_psn == OTHER_FIRST && query(other).sq_psn == OTHER_FIRST);
}

static void operations(void)
{
	advances(IBV_WR_RDMA_WRITE, PAGE, PAGE / MTU);
	advances(IBV_WR_RDMA_WRITE, MTU + 1, 2);
	advances(IBV_WR_RDMA_WRITE, 0, 1);
	advances(IBV_WR_RDMA_READ, PAGE, PAGE / MTU);
	advances(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 1);
}

static void numbers_advance(void)
{
	numbered_pair();
	for (int i = 0; i < 3; i++)
		operations();
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(one, &reset, IBV_QP_STATE) == 0 && query(one).sq_psn == 0 && query(one).rq_psn == 0);
	disconnect_pair();
}

/* Rails fail before the requests. What was not executed is sent again and counted once. */
static void numbers_advance_across_failovers(void)
{
	numbered_pair();
	operations();
	for (int rail = 0; rail < 4; rail++) {
		fault("rail%d down", rail % rails());
		operations();
		fault("rail%d up", rail % rails());
		usleep(300000); /* the rails are connected again */
		operations();
	}
	disconnect_pair();
}

/* A WRITE whose key nobody has ends both queue pairs before it completes. Its packets are counted as far as they were sent. */
static void state_and_number_after_nak(void)
{
	for (int i = 0; i < 20; i++) {
		numbered_pair();
		advances(IBV_WR_RDMA_WRITE, PAGE, PAGE / MTU);
		uint32_t before = query(one).sq_psn;
		post(one, IBV_WR_RDMA_WRITE, PAGE, end.mr->rkey + 0x100);
		CHECK(next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
		CHECK(query(other).qp_state == IBV_QPS_ERR && query(one).qp_state == IBV_QPS_ERR);
		uint32_t packets = (query(one).sq_psn - before) & 0xffffff;
		CHECK(packets >= 1 && packets <= PAGE / MTU && query(other).rq_psn == before);
		disconnect_pair();
	}
}

/* A queue pair that is connected to itself. */
static void numbers_of_one_queue_pair(void)
{
	one = other = make_qp(&end);
	connect_from(one, one, FIRST, FIRST);
	for (uint32_t n = 1; n <= 3; n++) {
		post(one, IBV_WR_RDMA_WRITE, PAGE, end.mr->rkey);
		CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		CHECK(query(one).sq_psn == ((FIRST + n * PAGE / MTU) & 0xffffff) && query(one).rq_psn == query(one).sq_psn);
	}
	CHECK(ibv_destroy_qp(one) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "numbers_advance", numbers_advance }, { "numbers_advance_across_failovers", numbers_advance_across_failovers },
		{ "state_and_number_after_nak", state_and_number_after_nak }, { "numbers_of_one_queue_pair", numbers_of_one_queue_pair },
	};
	CHECK(argc == 2);
	alarm(60);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
