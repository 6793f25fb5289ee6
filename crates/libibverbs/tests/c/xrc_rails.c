/* XRC connections between two processes with several rails, of which some fail. Each process sends messages of all kinds to two shared receive
 * queues of the other. Each message arrives once, in its queue and in order. Each atomic is executed once, with its value. */
#include "peer_process.h"
#include "rail_faults.h"

#include <fcntl.h>

enum { SLOT = 6144, LONG = 5000, QUEUES = 2, FLIGHT = 12, MESSAGES = 300 };
enum kind { SEND, LONG_SEND, SEND_WITH_IMM, WRITE_WITH_IMM, ADD, KINDS };

/* What an end tells the other. */
struct xrc_data {
	union ibv_gid gid;
	uint32_t sender, receiver, numbers[QUEUES], rkey;
	uint64_t addr;
};

static struct end end;
static struct xrc_data peer;
static struct ibv_qp *sender, *receiver;
static struct ibv_srq *queues[QUEUES];
static struct ibv_cq *data_cqs[QUEUES];
static char *memory;
static struct ibv_mr *mr;
/* A queue's receives are taken in the order in which they were posted. */
static uint64_t posted_receives[QUEUES], received[QUEUES];
/* The numbers of the next request to post and to complete, and the number of atomics that have completed. */
static uint32_t next_sent, next_completed, added;
/* Without WRITEs and atomics, whose outcome only the responder's NIC knows. */
static bool sends_only;

/* The memory: slots of receives, slots of sends, a counter, and slots that the peer writes. */
static char *receive_slot(int queue, uint64_t wr_id) { return memory + (queue * DEPTH + wr_id % DEPTH) * SLOT; }
static char *send_slot(uint64_t n) { return memory + (QUEUES * DEPTH + n % FLIGHT) * SLOT; }
static uint64_t *counter(void) { return (uint64_t *)(memory + (QUEUES * DEPTH + FLIGHT) * SLOT); }
static char *written_slot(uint32_t n) { return (char *)counter() + PAGE + n % (2 * FLIGHT) * 64; }

static enum kind kind_of(uint32_t n)
{
	return sends_only ? n % WRITE_WITH_IMM : n % KINDS;
}

static int queue_of(uint32_t n) { return n / 3 % QUEUES; }

static void post_receive(int queue)
{
	uint64_t wr_id = posted_receives[queue]++;
	struct ibv_sge sge = { (uintptr_t)receive_slot(queue, wr_id), SLOT, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(queues[queue], &wr, &bad) == 0);
}

static void to_rts(struct ibv_qp *qp, uint32_t peer_qpn)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer_qpn, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void set_up(void)
{
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_xrcd *xrcd;
	struct xrc_data mine = { .gid = end.gid, .rkey = mr->rkey, .addr = (uintptr_t)memory };
	CHECK(xrcd = ibv_open_xrcd(end.context, &domain));
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	CHECK(receiver = ibv_create_qp_ex(end.context, &init));
	for (int i = 0; i < QUEUES; i++) {
		CHECK(data_cqs[i] = ibv_create_cq(end.context, 2 * DEPTH, NULL, NULL, 0));
		struct ibv_srq_init_attr_ex srq = {
			.attr = { .max_wr = DEPTH, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = end.pd, .xrcd = xrcd, .cq = data_cqs[i],
			.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		};
		CHECK(queues[i] = ibv_create_srq_ex(end.context, &srq));
		CHECK(ibv_get_srq_num(queues[i], &mine.numbers[i]) == 0);
		for (int n = 0; n < DEPTH; n++)
			post_receive(i);
	}
	struct ibv_qp_init_attr send = plain_init(&end);
	send.qp_type = IBV_QPT_XRC_SEND;
	CHECK(sender = ibv_create_qp(end.pd, &send));
	mine.sender = sender->qp_num, mine.receiver = receiver->qp_num;
	ready(sender), ready(receiver);
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	to_rts(receiver, peer.sender), to_rts(sender, peer.receiver);
	meet();
}

/* Posts the next message, or atomic. */
static void post_next(void)
{
	uint32_t n = next_sent++;
	enum kind kind = kind_of(n);
	uint32_t length = kind == LONG_SEND ? LONG : kind == ADD ? 8 : 64;
	char *slot = send_slot(n);
	for (uint32_t at = 0; at < length; at += 4)
		memcpy(slot + at, &n, 4);
	struct ibv_sge sge = { (uintptr_t)slot, length, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = n, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .imm_data = n,
		.qp_type.xrc.remote_srqn = peer.numbers[queue_of(n)],
	}, *bad;
	static const enum ibv_wr_opcode opcodes[KINDS] = {
		IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	wr.opcode = opcodes[kind];
	if (kind == ADD) {
		wr.wr.atomic.remote_addr = peer.addr + ((char *)counter() - memory);
		wr.wr.atomic.compare_add = 1, wr.wr.atomic.rkey = peer.rkey;
	} else {
		wr.wr.rdma.remote_addr = peer.addr + (written_slot(n) - memory), wr.wr.rdma.rkey = peer.rkey;
	}
	CHECK(ibv_post_send(sender, &wr, &bad) == 0);
}

static bool poll_sends(void)
{
	struct ibv_wc wc;
	int polled = ibv_poll_cq(end.cq, 1, &wc);
	CHECK(polled >= 0);
	if (polled == 0)
		return false;
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "send %u: %s (%u)\n", next_completed, ibv_wc_status_str(wc.status), wc.vendor_err);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == next_completed && wc.qp_num == sender->qp_num);
	if (kind_of(next_completed) == ADD) {
		uint64_t value;
		memcpy(&value, send_slot(next_completed), 8);
		CHECK(value == added++);
	}
	next_completed++;
	return true;
}

/* Polls a completion queue once. Returns whether a message has arrived, and posts its receive again. */
static bool poll_receives(int queue)
{
	struct ibv_wc wc;
	int polled = ibv_poll_cq(data_cqs[queue], 1, &wc);
	CHECK(polled >= 0);
	if (polled == 0)
		return false;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == receiver->qp_num && wc.wr_id == received[queue]++);
	/* Two queues are polled in turn, so only the messages of one queue are seen in order. */
	static uint32_t last[QUEUES];
	static bool seen[MESSAGES];
	bool is_write = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
	char *slot = receive_slot(queue, wc.wr_id);
	uint32_t n;
	memcpy(&n, is_write ? (char *)&wc.imm_data : slot, 4);
	CHECK(n < MESSAGES && !seen[n] && queue_of(n) == queue && (n >= last[queue]));
	enum kind kind = kind_of(n);
	bool has_imm = kind == SEND_WITH_IMM || kind == WRITE_WITH_IMM;
	CHECK(is_write == (kind == WRITE_WITH_IMM) && wc.wc_flags == (IBV_WC_GRH | (has_imm ? IBV_WC_WITH_IMM : 0)));
	CHECK(!has_imm || wc.imm_data == n);
	CHECK(wc.byte_len == (kind == LONG_SEND ? LONG : 64));
	for (uint32_t at = 0, word; at < wc.byte_len; at += 4) {
		memcpy(&word, (is_write ? written_slot(n) : slot) + at, 4);
		CHECK(word == n || (is_write && word > n));
	}
	seen[n] = true, last[queue] = n;
	post_receive(queue);
	return true;
}

/* Exchanges all messages. Every end calls `faults` with the number of messages that it has received. */
static void exchange(void (*faults)(uint32_t))
{
	set_up();
	uint32_t taken = 0, expected = 0;
	for (uint32_t n = 0; n < MESSAGES; n++)
		expected += kind_of(n) != ADD;
	while (next_completed < MESSAGES || taken < expected) {
		while (next_sent < MESSAGES && next_sent < next_completed + FLIGHT)
			post_next();
		poll_sends();
		for (int i = 0; i < QUEUES; i++)
			taken += poll_receives(i);
		faults(taken);
	}
	meet();
	CHECK(*counter() == (sends_only ? 0 : MESSAGES / KINDS));
	for (int i = 0; i < QUEUES; i++)
		CHECK(is_empty(data_cqs[i]));
	CHECK(is_empty(end.cq));
	meet();
	CHECK(ibv_destroy_qp(sender) == 0 && ibv_destroy_qp(receiver) == 0);
}

/* Whether the NIC of rail 0 of this process dies before any object but the device is made. */
static bool without_rail_0;

/* Runs the exchange with these faults in the two processes. */
static void run(void (*ours)(uint32_t), void (*theirs)(uint32_t), bool only_sends)
{
	sends_only = only_sends;
	fork_peer();
	end = open_end();
	if (without_rail_0 && child) {
		fault("rail%d nic-dead", 0);
		end = open_end();
	}
	size_t bytes = (QUEUES * DEPTH + FLIGHT) * SLOT + 2 * PAGE;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (mr = ibv_reg_mr(end.pd, memory, bytes, ALL)));
	exchange(child ? ours : theirs);
	if (child)
		exit_well(child);
}

static void no_failure(void) { run(nothing, nothing, false); }
static void link_fails(void) { run(link_down, nothing, false); }
static void rails_fail_in_turn(void) { run(in_turn, nothing, false); }
static void nic_dies(void) { run(nic_dead, nothing, true); }
static void nic_hangs(void) { run(nic_hung, nothing, true); }
static void nic_is_dead(void)
{
	without_rail_0 = true;
	run(nothing, nothing, false);
}
static void addresses_change(void) { run(new_addresses, nothing, false); }

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "xrc_without_failure", no_failure }, { "xrc_link_fails", link_fails }, { "xrc_rails_fail_in_turn", rails_fail_in_turn },
		{ "xrc_nic_dies", nic_dies }, { "xrc_nic_hangs", nic_hangs }, { "xrc_nic_is_dead", nic_is_dead },
		{ "xrc_addresses_change", addresses_change },
	};
	CHECK(argc == 2);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
