/* What calls on a UD queue pair do, on one rail as on several. A queue pair sends to another queue pair of the same device. */
#include "datagram_pair.h"

#include <poll.h>

enum { MESSAGES = 640 };

/* The link of rail 0 goes down, and the queue pair's datagrams to itself are lost until the library uses another rail. */
static void leave_rail_0(void)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, GRH + 8, end.mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_wc wc = { .opcode = IBV_WC_SEND };
	if (rails() == 1)
		return;
	fault("rail%d down", 0);
	CHECK(ibv_post_recv(from, &recv, &bad_recv) == 0);
	while (wc.opcode != IBV_WC_RECV) {
		struct ibv_sge own = { (uintptr_t)send_place(0), 8, mr->lkey };
		struct ibv_send_wr wr = send_of(&own, IBV_SEND_SIGNALED), *bad;
		wr.wr.ud.remote_qpn = from->qp_num;
		CHECK(ibv_post_send(from, &wr, &bad) == 0);
		for (int polls = 0; polls < 2000 && wc.opcode != IBV_WC_RECV; polls++)
			CHECK(ibv_poll_cq(end.cq, 1, &wc) >= 0 && wc.status == IBV_WC_SUCCESS);
	}
	/* The last send may complete after the receive. */
	for (int polls = 0; polls < 2000; polls++)
		CHECK(ibv_poll_cq(end.cq, 1, &wc) >= 0);
}

/* More datagrams of all lengths than a queue has places, several at a time. With several rails, the second half uses another rail. */
static void many_datagrams(void)
{
	for (int sent = 0; sent < MESSAGES; sent += BURST) {
		if (sent == MESSAGES / 2)
			leave_rail_0();
		for (int i = 0; i < BURST; i++) {
			post_receive(i, LARGEST);
			memset(send_place(i), sent / BURST + i, LARGEST);
			post(i, i == 0 ? LARGEST : 8 * i, IBV_SEND_SIGNALED);
		}
		for (int i = 0; i < BURST; i++) {
			ended(end.cq, 7, IBV_WC_SUCCESS);
			struct ibv_wc wc = next(arrived);
			uint32_t len = i == 0 ? LARGEST : 8 * i;
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i && wc.byte_len == GRH + len && wc.src_qp == from->qp_num);
			CHECK(memcmp(receive_place(i) + GRH, send_place(i), len) == 0);
		}
	}
}

/* `sq_psn` is the PSN of the next datagram, also on several rails. */
static void numbers_of_datagrams(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	for (uint32_t sent = 0; sent < 6; sent++) {
		if (sent == 3)
			leave_rail_0();
		CHECK(ibv_query_qp(from, &attr, IBV_QP_SQ_PSN, &init) == 0);
		uint32_t before = attr.sq_psn;
		CHECK(sent > 0 || before == 0);
		post_receive(0, 8);
		post(0, 8, IBV_SEND_SIGNALED);
		ended(end.cq, 7, IBV_WC_SUCCESS);
		ended(arrived, 0, IBV_WC_SUCCESS);
		CHECK(ibv_query_qp(from, &attr, IBV_QP_SQ_PSN, &init) == 0 && attr.sq_psn == before + 1);
	}
	modify(from, IBV_QPS_RESET);
	CHECK(ibv_query_qp(from, &attr, IBV_QP_SQ_PSN, &init) == 0 && attr.sq_psn == 0);
}

/* A send without a completion frees its place in the queue when the datagram is sent. */
static void unsignalled(void)
{
	for (int i = 0; i < 8 * DEPTH; i++) {
		post_receive(0, 8);
		post(0, 8, 0);
		ended(arrived, 0, IBV_WC_SUCCESS);
	}
	CHECK(is_empty(end.cq));
}

/* Sends that are posted in SQD wait in the queue, which becomes full. */
static void full_while_drained(void)
{
	enum { MANY = 4096 };
	static struct ibv_send_wr wrs[MANY];
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_sge sge = { (uintptr_t)send_place(0), 8, mr->lkey };
	struct ibv_send_wr *bad = NULL;
	CHECK(ibv_query_qp(from, &attr, IBV_QP_CAP, &init) == 0);
	uint32_t room = init.cap.max_send_wr;
	CHECK(room < MANY);
	modify(from, IBV_QPS_SQD);
	for (uint32_t i = 0; i <= room; i++) {
		wrs[i] = send_of(&sge, 0);
		wrs[i].next = i < room ? &wrs[i + 1] : NULL;
	}
	CHECK(ibv_post_send(from, wrs, &bad) == ENOMEM && bad == &wrs[room]);
	post_receive(0, 8);
	CHECK(is_empty(arrived));
	modify(from, IBV_QPS_RTS);
	ended(arrived, 0, IBV_WC_SUCCESS);
}

/* A send that fails moves the queue pair to SQE. Requests that are posted in SQE or ERR are flushed. */
static void flushed(void)
{
	struct ibv_sge foreign = { (uintptr_t)send_place(0), 8, mr->lkey ^ 0xff00 };
	struct ibv_send_wr wr = send_of(&foreign, 0), *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	ended(end.cq, 7, IBV_WC_LOC_PROT_ERR);
	CHECK(state_of(from) == IBV_QPS_SQE);
	post_receive(0, 8);
	post(0, 8, 0);
	ended(end.cq, 7, IBV_WC_WR_FLUSH_ERR);
	modify(from, IBV_QPS_RTS);
	CHECK(is_empty(arrived));
	post(0, 8, IBV_SEND_SIGNALED);
	ended(end.cq, 7, IBV_WC_SUCCESS);
	ended(arrived, 0, IBV_WC_SUCCESS);
	modify(from, IBV_QPS_ERR);
	post(0, 8, 0);
	ended(end.cq, 7, IBV_WC_WR_FLUSH_ERR);
}

/* A datagram that is longer than the oldest receive is lost, and the receive stays. */
static void short_receives(void)
{
	post_receive(0, 8);
	post_receive(1, 64);
	post(0, 64, IBV_SEND_SIGNALED);
	ended(end.cq, 7, IBV_WC_SUCCESS);
	CHECK(is_empty(arrived));
	for (int i = 0; i < 2; i++) {
		post(0, 8, 0);
		ended(arrived, i, IBV_WC_SUCCESS);
	}
}

/* Every send of a queue pair with `sq_sig_all` completes. */
static void all_signalled(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	init.sq_sig_all = 1;
	CHECK(ibv_destroy_qp(from) == 0 && (from = ibv_create_qp(end.pd, &init)));
	modify(from, IBV_QPS_INIT);
	modify(from, IBV_QPS_RTR);
	modify(from, IBV_QPS_RTS);
	for (int i = 0; i < 3; i++) {
		post(0, 8, 0);
		ended(end.cq, 7, IBV_WC_SUCCESS);
	}
}

static void refused(void)
{
	struct ibv_sge sge = { (uintptr_t)send_place(0), 8, mr->lkey };
	struct ibv_send_wr wr = send_of(&sge, 0), *bad = NULL;
	CHECK(ibv_post_send(to, &wr, &bad) == EINVAL && bad == &wr); /* in RTR */
	struct ibv_send_wr local = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = 1 };
	CHECK(ibv_post_send(from, &local, &bad) == EINVAL && bad == &local);
}

/* The first datagram in RTR is reported once. */
static void established_once(void)
{
	struct pollfd fd = { .fd = end.context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	for (int i = 0; i < 3; i++) {
		post_receive(0, 8);
		post(0, 8, 0);
		ended(arrived, 0, IBV_WC_SUCCESS);
	}
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == to);
	ibv_ack_async_event(&event);
	CHECK(poll(&fd, 1, 0) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "many_datagrams", many_datagrams }, { "numbers_of_datagrams", numbers_of_datagrams }, { "unsignalled", unsignalled }, { "full_while_drained", full_while_drained },
		{ "flushed", flushed }, { "established_once", established_once }, { "short_receives", short_receives },
		{ "all_signalled", all_signalled }, { "refused", refused },
	};
	CHECK(argc == 2);
	run_with_pair(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
