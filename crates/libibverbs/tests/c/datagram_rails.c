/* Datagrams between two processes with several rails, of which some fail. Queue pair numbers, GIDs and address handles stay valid. A datagram
 * may be lost, so the first process sends a round again until it is answered. No datagram arrives twice. */
#include "peer_process.h"
#include "rail_faults.h"

enum { QKEY = 0x11, GRH = 40, ROOM = GRH + 64, ROUNDS = 60, ATTEMPTS = 400, STOPS = 8, MULTICAST_QPN = 0xffffff };
static const uint32_t STOP = 0xffffffff;

struct message {
	uint32_t round, attempt;
};

static struct end end;
static struct ibv_qp *qp;
static struct connection_data peer;
static struct ibv_srq *srq;
/* Whether addresses change. The programs have not exchanged the new addresses. */
static bool addresses_change;
/* The numbers of posted and of completed work requests. The requests complete in order, so a completion's wr_id is the number of earlier completions. */
static uint64_t posted_receives, received, posted_sends, sent;

static char *room_of(uint64_t wr_id)
{
	return end.memory + wr_id % DEPTH * ROOM;
}

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)room_of(posted_receives), ROOM, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = posted_receives++, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK((srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0);
}

static void set_up(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	init.srq = srq;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	for (int i = 0; i < DEPTH; i++)
		post_receive();
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	struct connection_data mine = connection_data_of(&end, qp);
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
}

static void post_message(struct ibv_ah *ah, uint32_t qpn, struct message message)
{
	struct ibv_sge sge = { (uintptr_t)&message, sizeof message, 0 };
	struct ibv_send_wr wr = {
		.wr_id = posted_sends++, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.wr.ud = { ah, qpn, QKEY },
	}, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static struct ibv_ah *handle_for(union ibv_gid gid)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(end.pd, &attr);
	CHECK(ah);
	return ah;
}

/* Polls once. If a datagram has arrived, fills `wc` and `message`, posts the receive again, and returns true. */
static bool poll_message(union ibv_gid to, struct ibv_wc *wc, struct message *message, struct ibv_grh *header)
{
	int n = ibv_poll_cq(end.cq, 1, wc);
	CHECK(n >= 0);
	if (n == 0)
		return false;
	CHECK(wc->status == IBV_WC_SUCCESS && wc->qp_num == qp->qp_num);
	if (wc->opcode == IBV_WC_SEND) {
		CHECK(wc->wr_id == sent++);
		return false;
	}
	CHECK(wc->opcode == IBV_WC_RECV && wc->wr_id == received++);
	CHECK(wc->byte_len == GRH + sizeof *message && wc->wc_flags & IBV_WC_GRH);
	/* The sender has the number and the address that its program knows, on every rail. */
	const char *room = room_of(wc->wr_id);
	CHECK(wc->src_qp == peer.qpn);
	CHECK(addresses_change || (memcmp(room + 32, peer.gid.raw + 12, 4) == 0 && memcmp(room + 36, to.raw + 12, 4) == 0));
	memcpy(message, room + GRH, sizeof *message);
	memcpy(header, room, sizeof *header);
	post_receive();
	return true;
}

/* Checks that no datagram arrives twice. */
static void check_new(struct message message)
{
	static bool seen[ROUNDS + 1][ATTEMPTS];
	CHECK(message.round <= ROUNDS && message.attempt < ATTEMPTS && !seen[message.round][message.attempt]);
	seen[message.round][message.attempt] = true;
}

/* Sends datagrams and waits for their answers. Calls `at_round` before each round. */
static void ask(void (*at_round)(uint32_t))
{
	struct ibv_ah *ah = handle_for(peer.gid);
	struct ibv_wc wc;
	struct ibv_grh header;
	struct message message;
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		at_round(round);
		for (uint32_t attempt = 1, answered = 0; !answered; attempt++) {
			CHECK(attempt < ATTEMPTS);
			post_message(ah, peer.qpn, (struct message){ round, attempt });
			for (double until = now() + 0.1; !answered && now() < until;) {
				if (poll_message(end.gid, &wc, &message, &header)) {
					check_new(message);
					answered = message.round == round;
				}
			}
		}
	}
	for (int i = 0; i < STOPS; i++)
		post_message(ah, peer.qpn, (struct message){ STOP, i });
	while (sent < posted_sends)
		poll_message(end.gid, &wc, &message, &header);
	CHECK(ibv_destroy_ah(ah) == 0);
}

/* Answers datagrams, by the address in their header. */
static void answer(void (*at_round)(uint32_t))
{
	struct ibv_wc wc;
	struct ibv_grh header;
	struct message message;
	for (;;) {
		if (!poll_message(end.gid, &wc, &message, &header))
			continue;
		if (message.round == STOP)
			break;
		check_new(message);
		at_round(message.round);
		struct ibv_ah *ah = ibv_create_ah_from_wc(end.pd, &wc, &header, 1);
		CHECK(ah);
		post_message(ah, wc.src_qp, message);
		CHECK(ibv_destroy_ah(ah) == 0);
	}
	/* All requests complete. */
	while (sent < posted_sends)
		poll_message(end.gid, &wc, &message, &header);
}

static void exchange(void (*of_asker)(uint32_t), void (*of_answerer)(uint32_t))
{
	uint32_t qpn;
	set_up();
	qpn = qp->qp_num;
	meet();
	if (child)
		ask(of_asker);
	else
		answer(of_answerer);
	CHECK(qp->qp_num == qpn && state_of(qp) == IBV_QPS_RTS);
	union ibv_gid gid;
	CHECK(ibv_query_gid(end.context, 1, 0, &gid) == 0);
	bool is_changed = addresses_change && (child ? of_asker : of_answerer) != nothing;
	CHECK((memcmp(&gid, &end.gid, sizeof gid) != 0) == is_changed);
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void link_fails_at_asker(void) { exchange(link_down, nothing); }
static void link_fails_at_answerer(void) { exchange(nothing, link_down); }
static void nic_dies_at_asker(void) { exchange(nic_dead, nothing); }
static void nic_dies_at_answerer(void) { exchange(nothing, nic_dead); }
/* All objects but the device are created after the death of the NIC. */
static void nic_is_dead(void)
{
	if (child)
		fault("rail%d nic-dead", 0);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	end = open_end();
	CHECK(srq = ibv_create_srq(end.pd, &init));
	exchange(nothing, nothing);
}
static void nic_hangs(void) { exchange(nic_hung, nothing); }
static void both_nics_die(void) { exchange(nic_dead, nic_dead); }
static void down_at_answerer(void) { exchange(nothing, down_from_start); }
static void rails_fail_in_turn(void) { exchange(in_turn, nothing); }

/* The other process learns of each change before the next change. */
static void spaced_addresses(uint32_t round)
{
	new_addresses(round);
	if (round % 5 == 0)
		usleep(50000);
}

/* The asker always uses the first GID of the answerer. The answerer uses the address in the header. */
static void addresses_change_at_asker(void)
{
	addresses_change = true;
	exchange(spaced_addresses, nothing);
}

static void addresses_change_at_answerer(void)
{
	addresses_change = true;
	exchange(nothing, spaced_addresses);
}

static void shared_queue(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	CHECK(srq = ibv_create_srq(end.pd, &init));
	exchange(nothing, link_down);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* A queue pair sends to itself while its rails fail. */
static void sends_to_itself(void)
{
	struct ibv_wc wc;
	struct ibv_grh header;
	struct message message;
	set_up();
	peer = connection_data_of(&end, qp);
	struct ibv_ah *ah = handle_for(end.gid);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		in_turn(round);
		for (uint32_t attempt = 1, arrived = 0; !arrived; attempt++) {
			CHECK(attempt < ATTEMPTS);
			post_message(ah, qp->qp_num, (struct message){ round, attempt });
			for (double until = now() + 0.1; !arrived && now() < until;) {
				if (poll_message(end.gid, &wc, &message, &header)) {
					check_new(message);
					arrived = message.round == round;
				}
			}
		}
	}
	meet();
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0);
}

/* The first process sends to a group of the second process, which answers to the sender. */
static void send_to_group(void (*of_sender)(uint32_t))
{
	struct ibv_wc wc;
	struct ibv_grh header;
	struct message message;
	union ibv_gid gid = mcast_gid(1);
	set_up();
	struct ibv_ah *to_group = handle_for(gid), *to_sender = handle_for(peer.gid);
	if (!child)
		CHECK(ibv_attach_mcast(qp, &gid, 0) == 0);
	meet();
	for (uint32_t round = 1; child && round <= ROUNDS; round++) {
		of_sender(round);
		for (uint32_t attempt = 1, answered = 0; !answered; attempt++) {
			CHECK(attempt < ATTEMPTS);
			post_message(to_group, MULTICAST_QPN, (struct message){ round, attempt });
			for (double until = now() + 0.1; !answered && now() < until;) {
				if (poll_message(end.gid, &wc, &message, &header)) {
					check_new(message);
					answered = message.round == round;
				}
			}
		}
	}
	for (message.round = 0; !child && message.round < ROUNDS;) {
		if (poll_message(gid, &wc, &message, &header)) {
			check_new(message);
			post_message(to_sender, wc.src_qp, message);
		}
	}
	meet();
	if (!child) {
		CHECK(ibv_destroy_qp(qp) == EBUSY);
		CHECK(ibv_detach_mcast(qp, &gid, 0) == 0 && ibv_detach_mcast(qp, &gid, 0) == EINVAL);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(to_group) == 0 && ibv_destroy_ah(to_sender) == 0);
}

static void group(void) { send_to_group(link_down); }
/* The first datagram of an unknown sender is on rail 1. The group has members on all rails of the receiver. */
static void group_without_rail_0(void) { send_to_group(down_from_start); }

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "link_fails_at_asker", link_fails_at_asker }, { "link_fails_at_answerer", link_fails_at_answerer },
		{ "nic_dies_at_asker", nic_dies_at_asker }, { "nic_dies_at_answerer", nic_dies_at_answerer }, { "nic_hangs", nic_hangs },
		{ "nic_is_dead", nic_is_dead },
		{ "both_nics_die", both_nics_die }, { "down_at_answerer", down_at_answerer }, { "rails_fail_in_turn", rails_fail_in_turn },
		{ "addresses_change_at_asker", addresses_change_at_asker }, { "addresses_change_at_answerer", addresses_change_at_answerer },
		{ "shared_queue", shared_queue }, { "sends_to_itself", sends_to_itself }, { "group", group },
		{ "group_without_rail_0", group_without_rail_0 },
	};
	mcast_gid(0); /* both ends use the same groups */
	CHECK(argc == 2);
	fork_peer();
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
