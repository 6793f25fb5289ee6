/* The states of a UD queue pair, on one rail as on several: what each does with requests, datagrams, completions and events. */
#include "datagram_pair.h"

#include <poll.h>

/* Takes the next asynchronous event, which must be about this queue pair. */
static void next_event(enum ibv_event_type type, struct ibv_qp *qp)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	CHECK(event.event_type == type && event.element.qp == qp);
	ibv_ack_async_event(&event);
}

static void no_event(void)
{
	struct pollfd fd = { .fd = end.context->async_fd, .events = POLLIN };
	CHECK(is_empty(arrived) && poll(&fd, 1, 0) == 0);
}

static int try_receive(struct ibv_qp *qp, int sges)
{
	struct ibv_sge list[4] = { { (uintptr_t)receive_place(0), 8, mr->lkey } };
	struct ibv_recv_wr wr = { .sg_list = list, .num_sge = sges }, *bad = NULL;
	int result = ibv_post_recv(qp, &wr, &bad);
	CHECK(result == 0 || bad == &wr);
	return result;
}

static void receives_refused(void)
{
	struct ibv_qp *reset = make_reset_ud(end.cq, NULL);
	CHECK(try_receive(reset, 1) == EINVAL);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &srq_init);
	CHECK(srq);
	struct ibv_qp *sharing = make_reset_ud(end.cq, srq);
	to_rtr(sharing);
	CHECK(try_receive(sharing, 1) == EINVAL);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(to, &attr, IBV_QP_CAP, &init) == 0 && init.cap.max_recv_sge < 4);
	CHECK(try_receive(to, init.cap.max_recv_sge + 1) == EINVAL);
	for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
		CHECK(try_receive(to, 1) == 0);
	CHECK(try_receive(to, 1) == ENOMEM);
	CHECK(ibv_destroy_qp(reset) == 0 && ibv_destroy_qp(sharing) == 0 && ibv_destroy_srq(srq) == 0);
}

static void sends_refused(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(from, &attr, IBV_QP_CAP, &init) == 0 && init.cap.max_send_sge < 4 && init.cap.max_inline_data < LARGEST);
	struct ibv_sge list[4] = { { (uintptr_t)send_place(0), init.cap.max_inline_data + 1, mr->lkey } };
	struct ibv_send_wr wr = send_of(list, IBV_SEND_INLINE), *bad;
	CHECK(ibv_post_send(from, &wr, &bad) != 0);
	list[0].length = 8;
	wr = send_of(list, 0);
	wr.num_sge = init.cap.max_send_sge + 1;
	CHECK(ibv_post_send(from, &wr, &bad) != 0);
	CHECK(is_empty(end.cq));
}

/* The change to ERR flushes all requests, and later requests are flushed at once. No datagram arrives. */
static void error_state(void)
{
	modify(from, IBV_QPS_SQD);
	next_event(IBV_EVENT_SQ_DRAINED, from);
	for (int i = 0; i < 3; i++)
		post_receive(i, 8), post(0, 8, IBV_SEND_SIGNALED);
	modify(from, IBV_QPS_ERR);
	modify(to, IBV_QPS_ERR);
	for (int i = 0; i < 3; i++)
		ended(end.cq, 7, IBV_WC_WR_FLUSH_ERR), ended(arrived, i, IBV_WC_WR_FLUSH_ERR);
	post_receive(4, 8);
	ended(arrived, 4, IBV_WC_WR_FLUSH_ERR);
	modify(from, IBV_QPS_RESET);
	to_rtr(from);
	modify(from, IBV_QPS_RTS);
	post(0, 8, IBV_SEND_SIGNALED);
	ended(end.cq, 7, IBV_WC_SUCCESS);
	CHECK(is_empty(arrived) && state_of(to) == IBV_QPS_ERR);
	no_event();
}

/* The change to RESET drops requests and completions. */
static void reset_state(void)
{
	for (int round = 0; round < 3; round++) {
		/* Leaves a completion in the queue of each end. */
		post_receive(0, 8), post(0, 8, IBV_SEND_SIGNALED);
		next_event(IBV_EVENT_COMM_EST, to);
		post_receive(1, 8), post_receive(2, 8);
		modify(from, IBV_QPS_SQD);
		next_event(IBV_EVENT_SQ_DRAINED, from);
		post(1, 8, IBV_SEND_SIGNALED);
		modify(from, IBV_QPS_RESET), modify(to, IBV_QPS_RESET);
		CHECK(is_empty(end.cq) && is_empty(arrived));
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		CHECK(ibv_query_qp(to, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init) == 0 && attr.qp_state == IBV_QPS_RESET && attr.qkey == 0);
		to_rtr(from), to_rtr(to);
		modify(from, IBV_QPS_RTS);
	}
	post_receive(5, 8), post(0, 8, IBV_SEND_SIGNALED);
	ended(end.cq, 7, IBV_WC_SUCCESS), ended(arrived, 5, IBV_WC_SUCCESS);
	CHECK(is_empty(end.cq) && is_empty(arrived));
}

/* The event of a drained send queue comes once for each change to SQD. */
static void drained_once(void)
{
	for (int round = 0; round < 3; round++) {
		post_receive(0, 8), post(0, 8, IBV_SEND_SIGNALED);
		if (round == 0)
			next_event(IBV_EVENT_COMM_EST, to); /* now, because events of two queue pairs have no order */
		modify(from, IBV_QPS_SQD);
		next_event(IBV_EVENT_SQ_DRAINED, from);
		ended(end.cq, 7, IBV_WC_SUCCESS), ended(arrived, 0, IBV_WC_SUCCESS);
		no_event();
		modify(from, IBV_QPS_RTS);
	}
}

/* A completion queue that loses a completion fails its queue pair. */
static void overflowed(void)
{
	enum { ENTRIES = 2 };
	struct ibv_cq *small = ibv_create_cq(end.context, ENTRIES, NULL, NULL, 0);
	CHECK(small && ibv_destroy_qp(from) == 0);
	from = make_ud(small);
	modify(from, IBV_QPS_RTS), modify(to, IBV_QPS_RTS); /* the first datagram causes no event in RTS */
	for (int i = 0; i < ENTRIES + 1; i++)
		post(0, 8, IBV_SEND_SIGNALED);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0 && event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small);
	ibv_ack_async_event(&event);
	while (state_of(from) != IBV_QPS_ERR)
		;
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_cq(small) == 0);
	from = make_ud(end.cq);
}

/* A receive into memory without local write access fails, and the queue pair enters ERR. */
static void invalid_receive(void)
{
	struct ibv_sge foreign = { (uintptr_t)receive_place(0), GRH + 8, mr->lkey ^ 0xff00 };
	struct ibv_recv_wr wr = { .wr_id = 3, .sg_list = &foreign, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(to, &wr, &bad) == 0);
	post_receive(4, 8);
	post(0, 8, 0);
	ended(arrived, 3, IBV_WC_LOC_PROT_ERR);
	ended(arrived, 4, IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(to) == IBV_QPS_ERR);
}

/* The memory of receives is in the protection domain of the shared receive queue. In ERR, LAST_WQE_REACHED says that the queue pair takes no more receives. */
static void shared_receives(void)
{
	struct ibv_pd *other = ibv_alloc_pd(end.context);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq;
	CHECK(other && (srq = ibv_create_srq(other, &init)));
	struct ibv_mr *place = ibv_reg_mr(other, memory, PAGE, ALL);
	CHECK(place && ibv_destroy_qp(to) == 0);
	to = make_reset_ud(arrived, srq);
	for (int round = 0; round < 2; round++) {
		to_rtr(to);
		struct ibv_sge sge = { (uintptr_t)memory, GRH + 8, place->lkey };
		struct ibv_recv_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
		post(1, 8, 0);
		ended(arrived, 5, IBV_WC_SUCCESS);
		next_event(IBV_EVENT_COMM_EST, to);
		modify(to, IBV_QPS_ERR);
		next_event(IBV_EVENT_QP_LAST_WQE_REACHED, to);
		no_event();
		modify(to, IBV_QPS_RESET);
	}
	CHECK(ibv_destroy_qp(to) == 0 && ibv_destroy_srq(srq) == 0 && ibv_dereg_mr(place) == 0 && ibv_dealloc_pd(other) == 0);
	to = make_ud(arrived);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "receives_refused", receives_refused }, { "sends_refused", sends_refused }, { "error_state", error_state },
		{ "reset_state", reset_state }, { "drained_once", drained_once }, { "overflowed", overflowed }, { "invalid_receive", invalid_receive },
		{ "shared_receives", shared_receives },
	};
	CHECK(argc == 2);
	run_with_pair(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
