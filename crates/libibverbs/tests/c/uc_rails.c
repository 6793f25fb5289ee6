/* Unreliable connections between two processes with several rails, of which some fail. A message may be lost. The messages that arrive are in order
 * and complete, and none arrives twice. With "shared_" before a scenario's name, the receives are those of a shared receive queue. */
#include "peer_process.h"
#include "rail_faults.h"

#include <poll.h>

enum { SLOT = 6144, LONG = 5000, ROUNDS = 60, ATTEMPTS = 400, STREAM = 600 };
enum kind { SEND, LONG_SEND, SEND_WITH_IMM, WRITE_WITH_IMM, WRITE, KINDS };

static struct end end;
static struct ibv_qp *qp;
/* The shared receive queue, if the queue pair has one. */
static struct ibv_srq *srq;
static struct connection_data peer;
static char *memory;
static struct ibv_mr *mr;
/* The work requests that were posted, and completed. They complete in order, so a completion's wr_id is the number of earlier completions. */
static uint64_t posted_receives, received, posted_sends, sent;
/* The sequence numbers of the last message sent and of the last message received, and the round of the message received. */
static uint32_t sequence, last_sequence, last_round;
/* The number of messages of each kind that were received. */
static uint64_t by_kind[KINDS];

/* What a message contains: this, and then copies of the sequence number. */
struct message {
	uint32_t sequence, round;
};

static bool has_heard(void)
{
	struct pollfd fd = { .fd = to_peer, .events = POLLIN };
	return poll(&fd, 1, 0) == 1;
}

/* The memory: slots of receives, slots of sends, and two slots that the peer writes. */
static char *receive_slot(uint64_t wr_id) { return memory + wr_id % DEPTH * SLOT; }
static char *send_slot(uint64_t wr_id) { return memory + (DEPTH + wr_id % DEPTH) * SLOT; }
static char *written_slot(void) { return memory + 2 * DEPTH * SLOT; }
static char *notified_slot(void) { return memory + (2 * DEPTH + 1) * SLOT; }

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)receive_slot(posted_receives), SLOT, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = posted_receives++, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK((srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0);
}

static void to_init(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	for (int i = 0; i < DEPTH; i++)
		post_receive();
}

static void to_rts(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .rq_psn = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.sq_psn = 7;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static void set_up(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UC;
	init.srq = srq;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	to_init();
	struct connection_data mine = { end.gid, qp->qp_num, mr->rkey, (uintptr_t)memory };
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	to_rts();
	meet();
}

/* Posts the next message. The kinds follow each other. */
static void post_message(uint32_t round)
{
	struct message message = { ++sequence, round };
	enum kind kind = sequence % KINDS;
	uint32_t length = kind == LONG_SEND || kind == WRITE ? LONG : 64;
	char *slot = send_slot(posted_sends);
	memcpy(slot, &message, sizeof message);
	for (uint32_t at = sizeof message; at < length; at += 4)
		memcpy(slot + at, &message.sequence, 4);
	struct ibv_sge sge = { (uintptr_t)slot, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = posted_sends++, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	static const enum ibv_wr_opcode opcodes[KINDS] = { IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE };
	wr.opcode = opcodes[kind];
	wr.imm_data = message.sequence;
	wr.wr.rdma.remote_addr = peer.addr + (kind == WRITE ? written_slot() : notified_slot()) - memory;
	wr.wr.rdma.rkey = peer.rkey;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Polls once. Returns whether a message has arrived, and posts its receive again. */
static bool poll_message(void)
{
	struct ibv_wc wc;
	struct message message;
	int n = ibv_poll_cq(end.cq, 1, &wc);
	CHECK(n >= 0);
	if (n == 0)
		return false;
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == qp->qp_num);
	if (!(wc.opcode & IBV_WC_RECV)) {
		CHECK(wc.wr_id == sent++);
		return false;
	}
	CHECK(wc.wr_id == received++);
	char *slot = wc.opcode == IBV_WC_RECV ? receive_slot(wc.wr_id) : notified_slot();
	memcpy(&message, slot, sizeof message);
	if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
		/* A later WRITE may have changed the memory. */
		CHECK(wc.imm_data % KINDS == WRITE_WITH_IMM && wc.byte_len == 64 && message.sequence >= wc.imm_data);
		if (message.sequence != wc.imm_data)
			message = (struct message){ wc.imm_data, last_round };
	} else {
		CHECK(wc.byte_len == (message.sequence % KINDS == LONG_SEND ? LONG : 64));
		for (uint32_t at = sizeof message, word; at < wc.byte_len; at += 4) {
			memcpy(&word, slot + at, 4);
			CHECK(word == message.sequence);
		}
	}
	CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) || wc.imm_data == message.sequence);
	/* No message arrives twice, or after a later message. */
	CHECK(message.sequence > last_sequence && message.round >= last_round);
	by_kind[message.sequence % KINDS]++;
	last_sequence = message.sequence, last_round = message.round;
	uint32_t written = *(volatile uint32_t *)written_slot();
	static uint32_t last_written;
	CHECK(written >= last_written);
	last_written = written;
	post_receive();
	return true;
}

static void complete_sends(void)
{
	while (sent < posted_sends)
		poll_message();
}

/* Sends messages and waits for their answers. Calls `at_round` before each round. */
static void ask(void (*at_round)(uint32_t))
{
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		at_round(round);
		for (int attempt = 0; last_round < round; attempt++) {
			CHECK(attempt < ATTEMPTS);
			post_message(round);
			if (sequence % KINDS == WRITE)
				continue;
			for (double until = now() + 0.1; last_round < round && now() < until;)
				poll_message();
			complete_sends();
		}
	}
	tell("", 1);
}

static void answer(void (*at_round)(uint32_t))
{
	while (!has_heard()) {
		if (!poll_message())
			continue;
		at_round(last_round);
		do
			post_message(last_round);
		while (sequence % KINDS == WRITE);
		complete_sends();
	}
	char end_of_questions;
	hear(&end_of_questions, 1);
}

static void exchange(void (*of_asker)(uint32_t), void (*of_answerer)(uint32_t))
{
	set_up();
	uint32_t qpn = qp->qp_num;
	if (child)
		ask(of_asker);
	else
		answer(of_answerer);
	complete_sends();
	CHECK(qp->qp_num == qpn && state_of(qp) == IBV_QPS_RTS);
	/* WRITEs have arrived, too. */
	CHECK(*(volatile uint32_t *)written_slot() != 0 && by_kind[SEND] && by_kind[LONG_SEND] && by_kind[SEND_WITH_IMM] && by_kind[WRITE_WITH_IMM]);
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Sends messages one way without waiting for answers, while a rail fails. */
static void stream(void (*of_sender)(uint32_t), void (*of_receiver)(uint32_t))
{
	set_up();
	if (child) {
		for (uint32_t round = 1; round <= STREAM; round++) {
			of_sender(round / 10);
			for (int i = 0; i < 4; i++)
				post_message(round);
			complete_sends();
			usleep(2000);
		}
		/* Until a message arrives that was posted after the failure. */
		while (!has_heard()) {
			post_message(STREAM + 1);
			complete_sends();
			usleep(2000);
		}
	} else {
		while (last_round <= STREAM) {
			if (poll_message())
				of_receiver(last_round / 10);
		}
		/* Much of what was sent has arrived. */
		CHECK(received > STREAM);
	}
	meet();
	complete_sends();
	CHECK(state_of(qp) == IBV_QPS_RTS && ibv_destroy_qp(qp) == 0);
}

static void link_fails_at_asker(void) { exchange(link_down, nothing); }
static void link_fails_at_answerer(void) { exchange(nothing, link_down); }
static void nic_dies_at_asker(void) { exchange(nic_dead, nothing); }
static void nic_dies_at_answerer(void) { exchange(nothing, nic_dead); }
static void nic_hangs(void) { exchange(nic_hung, nothing); }
static void both_nics_die(void) { exchange(nic_dead, nic_dead); }
static void down_from_the_start(void) { exchange(nothing, down_from_start); }
static void rails_fail_in_turn(void) { exchange(in_turn, nothing); }
static void addresses_change_at_asker(void) { exchange(new_addresses, nothing); }
static void addresses_change_at_answerer(void) { exchange(nothing, new_addresses); }
static void link_fails_at_sender(void) { stream(link_down, nothing); }
static void link_fails_at_receiver(void) { stream(nothing, link_down); }
static void nic_dies_at_sender(void) { stream(nic_dead, nothing); }
static void nic_dies_at_receiver(void) { stream(nothing, nic_dead); }

/* The peer destroys its queue pair. Sends complete successfully and are lost; receives stay posted. */
static void peer_destroyed(void)
{
	set_up();
	if (!child) {
		CHECK(ibv_destroy_qp(qp) == 0);
		meet();
		return;
	}
	meet();
	for (int i = 0; i < 200; i++) {
		post_message(1);
		complete_sends();
		usleep(5000);
	}
	CHECK(state_of(qp) == IBV_QPS_RTS && is_empty(end.cq));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	for (int i = 0; i < DEPTH; i++) {
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.wr_id == received++ && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Posts a request that the queue pair cannot execute, and one behind it. */
static void post_invalid(void)
{
	struct ibv_sge wrong = { (uintptr_t)memory, 8, mr->lkey + 0x1000 }, right = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr second = { .wr_id = 1001, .sg_list = &right, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr first = { .wr_id = 1000, .next = &second, .sg_list = &wrong, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(qp, &first, &bad) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 1000 && wc.status == IBV_WC_LOC_PROT_ERR);
	wc = next(end.cq);
	CHECK(wc.wr_id == 1001 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(qp) == IBV_QPS_SQE);
}

static void leave_sqe(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && state_of(qp) == IBV_QPS_RTS);
}

/* The asker's invalid request stops its sends until it returns to RTS. Its receives go on. A rail fails in between. */
static void send_queue_error(void)
{
	set_up();
	for (int failure = 0; failure < 3; failure++) {
		if (child) {
			post_invalid();
			if (failure == 1 && rails() > 1)
				fault("rail%d down", 0);
			meet();
			for (uint64_t before = received; received == before;)
				poll_message();
			struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
			struct ibv_send_wr wr = { .wr_id = 1002, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
			CHECK(ibv_post_send(qp, &wr, &bad) == 0);
			struct ibv_wc wc;
			while ((wc = next(end.cq)).opcode & IBV_WC_RECV && wc.status == IBV_WC_SUCCESS)
				received++, post_receive();
			CHECK(wc.wr_id == 1002 && wc.status == IBV_WC_WR_FLUSH_ERR);
			leave_sqe();
			while (!has_heard()) {
				post_message(failure);
				complete_sends();
				usleep(2000);
			}
			meet();
		} else {
			meet();
			for (uint64_t before = received; received == before; usleep(2000)) {
				post_message(failure);
				complete_sends();
				poll_message();
			}
			meet();
		}
		meet();
		while (poll_message())
			;
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Both ends reset their queue pair and connect it again, also after a failover. */
static void resets(void)
{
	set_up();
	for (uint32_t round = 1; round < 4; round++) {
		if (child) {
			if (round == 2 && rails() > 1)
				fault("rail%d down", 0);
			while (!has_heard()) {
				post_message(round);
				complete_sends();
				usleep(2000);
			}
		} else {
			while (last_round < round)
				poll_message();
		}
		meet();
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && is_empty(end.cq));
		received = posted_receives, sent = posted_sends;
		meet();
		to_init();
		to_rts();
		meet();
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A queue pair that is connected to itself. */
static void connected_to_itself(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UC;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	to_init();
	peer = (struct connection_data){ end.gid, qp->qp_num, mr->rkey, (uintptr_t)memory };
	to_rts();
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		if (rails() > 1)
			link_down(round);
		for (int attempt = 0; last_round < round; attempt++) {
			CHECK(attempt < ATTEMPTS);
			post_message(round);
			for (double until = now() + 0.1; last_round < round && now() < until && sequence % KINDS != WRITE;)
				poll_message();
			complete_sends();
		}
	}
	CHECK(ibv_destroy_qp(qp) == 0);
	meet();
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "link_fails_at_asker", link_fails_at_asker }, { "link_fails_at_answerer", link_fails_at_answerer },
		{ "nic_dies_at_asker", nic_dies_at_asker }, { "nic_dies_at_answerer", nic_dies_at_answerer }, { "nic_hangs", nic_hangs },
		{ "both_nics_die", both_nics_die }, { "down_from_the_start", down_from_the_start }, { "rails_fail_in_turn", rails_fail_in_turn },
		{ "addresses_change_at_asker", addresses_change_at_asker }, { "addresses_change_at_answerer", addresses_change_at_answerer },
		{ "link_fails_at_sender", link_fails_at_sender }, { "link_fails_at_receiver", link_fails_at_receiver },
		{ "nic_dies_at_sender", nic_dies_at_sender }, { "nic_dies_at_receiver", nic_dies_at_receiver },
		{ "peer_destroyed", peer_destroyed }, { "send_queue_error", send_queue_error }, { "resets", resets },
		{ "connected_to_itself", connected_to_itself },
	};
	CHECK(argc == 2);
	fork_peer();
	end = open_end();
	size_t bytes = (2 * DEPTH + 2) * SLOT;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (mr = ibv_reg_mr(end.pd, memory, bytes, ALL)));
	const char *name = argv[1], *shared = "shared_";
	if (strncmp(name, shared, strlen(shared)) == 0) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
		CHECK(srq = ibv_create_srq(end.pd, &attr));
		name += strlen(shared);
	}
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], name);
	CHECK(!srq || ibv_destroy_srq(srq) == 0);
	if (child)
		exit_well(child);
	return 0;
}
