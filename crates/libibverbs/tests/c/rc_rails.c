/* Two processes with many RC queue pairs between them, and rails that fail. Each operation is executed exactly once: the messages arrive in order, the
 * words have the last value written, and the values that the atomics return are 0, 1, 2, ... for each queue pair. */
#include "peer_process.h"
#include "rail_faults.h"

#include <signal.h>

enum { QPS = 40, ROUNDS = 60, OPS = 4, CQ_DEPTH = QPS * 2 * DEPTH };

/* The memory: for each queue pair, the word that a WRITE changes, the counter, the result of its atomic, the data of sends and of receives. */
struct slot {
	uint64_t written, counter, fetched, sent, received;
};

static struct end end;
static struct ibv_pd *second_pd;
static struct ibv_mr *second_mr;
static struct ibv_cq *cq;
static struct ibv_qp *qps[QPS];
static struct connection_data peers[QPS];
static struct slot *slots;
/* The completions of sends and of receives in the round, for each queue pair. */
static unsigned sends[QPS], receives[QPS];
/* The number of operations of the round, and the number of earlier rounds with atomics. */
static unsigned ops = OPS;
static uint64_t atomics;

static bool is_second(int i) { return second_pd && i % 2; }
static struct ibv_mr *mr_of(int i) { return is_second(i) ? second_mr : end.mr; }

static struct ibv_qp *new_qp(int i)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(is_second(i) ? second_pd : end.pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL & ~IBV_ACCESS_LOCAL_WRITE };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	return qp;
}

static void post_receive(int i)
{
	struct ibv_sge sge = { (uintptr_t)&slots[i].received, 8, mr_of(i)->lkey };
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qps[i], &wr, &bad) == 0);
}

static void to_rts(struct ibv_qp *qp, const struct connection_data *to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qpn, .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = to->gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.sq_psn = 7, attr.timeout = 14, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Creates and connects the queue pairs from `first` on, in steps. */
static void connect_qps(int first, int step)
{
	struct connection_data mine[QPS];
	memset(mine, 0, sizeof mine);
	for (int i = first; i < QPS; i += step) {
		qps[i] = new_qp(i);
		post_receive(i);
		mine[i] = (struct connection_data){ end.gid, qps[i]->qp_num, mr_of(i)->rkey, (uintptr_t)&slots[i] };
	}
	struct connection_data theirs[QPS];
	tell(mine, sizeof mine);
	hear(theirs, sizeof theirs);
	for (int i = first; i < QPS; i += step) {
		peers[i] = theirs[i];
		to_rts(qps[i], &peers[i]);
	}
	meet();
}

static void set_up(void)
{
	end = open_end();
	CHECK(cq = ibv_create_cq(end.context, CQ_DEPTH, NULL, NULL, 0));
	slots = (struct slot *)end.memory;
	CHECK(QPS * sizeof *slots <= 2 * PAGE);
	if (second_pd) {
		CHECK(second_pd = ibv_alloc_pd(end.context));
		CHECK(second_mr = ibv_reg_mr(second_pd, end.memory, 2 * PAGE, ALL));
	}
}

/* Posts on a queue pair, in a list: a WRITE of the round, a FETCH_ADD, the WRITE again, and a SEND of the round. Or only the
 * SEND. */
static void post_round(int i, uint64_t round)
{
	slots[i].sent = round;
	uint32_t lkey = mr_of(i)->lkey;
	struct ibv_sge data = { (uintptr_t)&slots[i].sent, 8, lkey }, result = { (uintptr_t)&slots[i].fetched, 8, lkey };
	struct ibv_send_wr wrs[OPS], *bad;
	memset(wrs, 0, sizeof wrs);
	uint64_t at = peers[i].addr;
	uint32_t rkey = peers[i].rkey;
	wrs[0].opcode = IBV_WR_RDMA_WRITE, wrs[0].wr.rdma.remote_addr = at, wrs[0].wr.rdma.rkey = rkey;
	wrs[1].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, wrs[1].wr.atomic.remote_addr = at + 8, wrs[1].wr.atomic.rkey = rkey, wrs[1].wr.atomic.compare_add = 1;
	wrs[2].opcode = IBV_WR_RDMA_WRITE, wrs[2].wr.rdma.remote_addr = at, wrs[2].wr.rdma.rkey = rkey;
	wrs[3].opcode = IBV_WR_SEND;
	for (int op = 0; op < OPS; op++) {
		wrs[op].wr_id = i, wrs[op].num_sge = 1, wrs[op].send_flags = IBV_SEND_SIGNALED;
		wrs[op].sg_list = op == 1 ? &result : &data;
		wrs[op].next = op + 1 < OPS ? &wrs[op + 1] : NULL;
	}
	CHECK(ibv_post_send(qps[i], ops == OPS ? wrs : &wrs[OPS - 1], &bad) == 0);
}

static void poll_once(void)
{
	struct ibv_wc wcs[32];
	int n = ibv_poll_cq(cq, 32, wcs);
	CHECK(n >= 0);
	for (int k = 0; k < n; k++) {
		int i = wcs[k].wr_id;
		if (wcs[k].status != IBV_WC_SUCCESS)
			fprintf(stderr, "queue pair %d: %s\n", i, ibv_wc_status_str(wcs[k].status));
		CHECK(wcs[k].status == IBV_WC_SUCCESS && i < QPS && wcs[k].qp_num == qps[i]->qp_num);
		if (wcs[k].opcode & IBV_WC_RECV)
			CHECK(wcs[k].byte_len == 8 && ++receives[i] == 1);
		else
			CHECK(++sends[i] <= ops);
	}
}

/* Waits for the completions of a round and the peer's messages, at both ends. */
static void finish_round(uint64_t round)
{
	for (int i = 0; i < QPS; i++) {
		while (sends[i] < ops || receives[i] < 1)
			poll_once();
		CHECK(slots[i].received == round);
		if (ops == OPS)
			CHECK(slots[i].fetched == atomics && slots[i].written == round && slots[i].counter == atomics + 1);
		post_receive(i);
	}
	atomics += ops == OPS;
	meet();
}

/* Executes a round, in which both ends post on all queue pairs. */
static void exchange(uint64_t round)
{
	memset(sends, 0, sizeof sends);
	memset(receives, 0, sizeof receives);
	for (int i = 0; i < QPS; i++)
		post_round(i, round);
	finish_round(round);
}

/* Calls `at_round` at one end in each round, while operations of half the queue pairs are in flight. A NIC that fails loses its record of WRITEs and
 * atomics, so the round in which `is_nic_lost` loses a NIC has only SENDs. */
static void run(void (*at_round)(uint32_t), bool at_peer, bool is_nic_lost)
{
	fork_peer();
	set_up();
	connect_qps(0, 1);
	bool is_faulty_end = (child == 0) == at_peer;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		ops = is_nic_lost && round == 20 ? 1 : OPS;
		memset(sends, 0, sizeof sends);
		memset(receives, 0, sizeof receives);
		for (int i = 0; i < QPS; i += 2)
			post_round(i, round);
		if (is_faulty_end)
			at_round(round);
		for (int i = 1; i < QPS; i += 2)
			post_round(i, round);
		finish_round(round);
	}
	if (child)
		exit_well(child);
}

/* Every third queue pair is destroyed and created again while the rails fail. */
static void renewed(void)
{
	fork_peer();
	set_up();
	connect_qps(0, 1);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		if (round % 5 == 4) {
			for (int i = 0; i < QPS; i += 3)
				CHECK(ibv_destroy_qp(qps[i]) == 0);
			connect_qps(0, 3);
		}
		if (child)
			in_turn(round);
		exchange(round);
	}
	if (child)
		exit_well(child);
}

/* The peer is killed. All queue pairs fail here, each with an error for the oldest request. */
static void peer_killed(void)
{
	fork_peer();
	set_up();
	connect_qps(0, 1);
	for (uint32_t round = 0; round < 3; round++)
		exchange(round);
	if (child == 0)
		pause();
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	for (int i = 0; i < QPS; i++)
		post_round(i, 3);
	unsigned failed[QPS] = { 0 }, all = 0;
	while (all < QPS * (OPS + 1)) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0);
		if (n == 0)
			continue;
		int i = wc.wr_id;
		CHECK(i < QPS && wc.status != IBV_WC_SUCCESS);
		failed[i]++, all++;
	}
	for (int i = 0; i < QPS; i++)
		CHECK(failed[i] == OPS + 1 && ibv_destroy_qp(qps[i]) == 0);
}

/* Queue pairs of one process that are connected to each other in pairs, in one protection domain. */
static void same_process(void)
{
	alarm(60);
	set_up();
	for (int i = 0; i < QPS; i++) {
		qps[i] = new_qp(i);
		post_receive(i);
	}
	for (int i = 0; i < QPS; i++) {
		int to = i ^ 1;
		peers[i] = (struct connection_data){ end.gid, qps[to]->qp_num, end.mr->rkey, (uintptr_t)&slots[to] };
		to_rts(qps[i], &peers[i]);
	}
	for (uint32_t round = 0; round < 40; round++) {
		memset(sends, 0, sizeof sends);
		memset(receives, 0, sizeof receives);
		for (int i = 0; i < QPS; i++)
			post_round(i, round);
		link_down(round);
		for (int i = 0; i < QPS; i++) {
			while (sends[i] < OPS || receives[i] < 1)
				poll_once();
			CHECK(slots[i].fetched == round && slots[i].received == round && slots[i].counter == round + 1);
			post_receive(i);
		}
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	static struct ibv_pd wanted;
	static const struct { const char *name; void (*at_round)(uint32_t); bool at_peer, is_nic_lost; } scenarios[] = {
		{ "link_down", link_down, false, false }, { "nic_dead", nic_dead, false, true }, { "nic_hung", nic_hung, false, true },
		{ "link_down_at_peer", link_down, true, false }, { "nic_dead_at_peer", nic_dead, true, true }, { "nic_hung_at_peer", nic_hung, true, true },
		{ "down_from_start", down_from_start, false, false }, { "in_turn", in_turn, false, false }, { "new_addresses", new_addresses, false, false },
		{ "two_domains", link_down, false, false },
	};
	if (strcmp(argv[1], "two_domains") == 0)
		second_pd = &wanted;
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		if (strcmp(argv[1], scenarios[i].name) == 0) {
			run(scenarios[i].at_round, scenarios[i].at_peer, scenarios[i].is_nic_lost);
			return 0;
		}
	}
	if (strcmp(argv[1], "renewed") == 0)
		renewed();
	else if (strcmp(argv[1], "peer_killed") == 0)
		peer_killed();
	else if (strcmp(argv[1], "same_process") == 0)
		same_process();
	else
		CHECK(!"a known scenario");
	return 0;
}
