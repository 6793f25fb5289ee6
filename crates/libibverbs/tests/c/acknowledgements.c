/* A request that a NIC has acknowledged succeeds, whatever the NIC's program does next. A program sees completions in the order of the events. */
#include "peer_process.h"

#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>

enum { ROUNDS = 2000, SEND_ID = 99 };

static struct end end;
static struct ibv_qp *qp;

static void post_receive(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, 256, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post_message(void)
{
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 64, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = SEND_ID, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Connects a new queue pair with receives to the queue pair of the other process. */
static void connect_ends(int receives)
{
	struct connection_data mine, peer;
	qp = make_qp(&end);
	mine = connection_data_of(&end, qp);
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	ready(qp);
	for (int i = 0; i < receives; i++)
		post_receive(i);
	connect_to(qp, peer);
	meet();
}

static void leave(const char *how)
{
	if (!strcmp(how, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "exec"))
		execlp("true", "true", NULL);
	if (!strcmp(how, "return"))
		exit(0);
	_exit(0);
}

/* The receiver's process ends after it has polled the completion of its receive. The sender's request was executed and succeeds. */
static void ack_lost_at_exit(const char *how, int answers)
{
	int failed = 0;
	for (int round = 0; round < 8; round++) {
		fork_peer();
		end = open_end();
		connect_ends(child ? answers : answers + 1);
		for (int i = 0; i < answers; i++) {
			if (child)
				post_message();
			for (int completions = 0; completions < (child ? 2 : 1); completions++)
				CHECK(next(end.cq).status == IBV_WC_SUCCESS);
			if (!child) {
				post_message();
				CHECK(next(end.cq).status == IBV_WC_SUCCESS);
			}
		}
		if (!child) {
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
			leave(how);
		}
		post_message();
		failed += next(end.cq).status != IBV_WC_SUCCESS;
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(ibv_destroy_qp(qp) == 0);
	}
	fprintf(stderr, "%s: %d of 8 requests that were executed failed\n", how, failed);
	CHECK(failed == 0);
}

static void ack_lost_at_exit_exit(void) { ack_lost_at_exit("exit", 0); }
static void ack_lost_at_exit_kill(void) { ack_lost_at_exit("kill", 0); }
static void ack_lost_at_exit_exec(void) { ack_lost_at_exit("exec", 0); }
static void ack_lost_at_exit_return(void) { ack_lost_at_exit("return", 0); }
static void ack_lost_after_answers(void) { ack_lost_at_exit("kill", 8); }

/* After the receiver's program has the message, the sender moves its queue pair to ERR. The request was executed and succeeds. */
static void last_send_flushed_told(void)
{
	int flushed = 0;
	fork_peer();
	end = open_end();
	for (int round = 0; round < 200; round++) {
		connect_ends(!child);
		if (child) {
			post_message();
			meet();
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
			CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
			flushed += next(end.cq).status != IBV_WC_SUCCESS;
		} else {
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
			meet();
		}
		meet();
		CHECK(ibv_destroy_qp(qp) == 0);
	}
	fprintf(stderr, "%d of 200 messages that were received were flushed\n", flushed);
	CHECK(flushed == 0);
}

static struct rdma_event_channel *events;

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(events, &event) == 0 && event->event == type);
	struct rdma_cm_id *id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

/* Gives an identifier a queue pair with one receive. The objects belong to the identifiers' context. */
static void give_qp(struct rdma_cm_id *id)
{
	if (end.context != id->verbs) {
		end.context = id->verbs;
		CHECK(end.pd = ibv_alloc_pd(end.context));
		CHECK(end.cq = ibv_create_cq(end.context, 4 * DEPTH, NULL, NULL, 0));
		CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL));
	}
	struct ibv_qp_init_attr init = plain_init(&end);
	CHECK(rdma_create_qp(id, end.pd, &init) == 0);
	qp = id->qp;
	post_receive(0);
}

/* The receiver disconnects after the message. The sender disconnects when the receiver says so. */
static void last_send_flushed_disconnected(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *listener, *id;
	int flushed = 0;
	fork_peer();
	end = open_end();
	CHECK(events = rdma_create_event_channel());
	if (child) {
		hear(&at.sin_port, sizeof at.sin_port);
	} else {
		CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 8) == 0);
		at.sin_port = rdma_get_src_port(listener);
		tell(&at.sin_port, sizeof at.sin_port);
	}
	for (int round = 0; round < 100; round++) {
		if (child) {
			CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
			CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 20000) == 0);
			expect(RDMA_CM_EVENT_ADDR_RESOLVED);
			CHECK(rdma_resolve_route(id, 20000) == 0);
			expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
			give_qp(id);
			CHECK(rdma_connect(id, &param) == 0);
			expect(RDMA_CM_EVENT_ESTABLISHED);
			post_message();
			expect(RDMA_CM_EVENT_DISCONNECTED);
			CHECK(rdma_disconnect(id) == 0);
			for (int completions = 0; completions < 2; completions++) {
				struct ibv_wc wc = next(end.cq);
				flushed += wc.wr_id == SEND_ID && wc.status != IBV_WC_SUCCESS;
			}
		} else {
			id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
			give_qp(id);
			CHECK(rdma_accept(id, &param) == 0);
			expect(RDMA_CM_EVENT_ESTABLISHED);
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
			CHECK(rdma_disconnect(id) == 0);
			expect(RDMA_CM_EVENT_DISCONNECTED);
		}
		meet();
		rdma_destroy_qp(id);
		CHECK(rdma_destroy_id(id) == 0);
	}
	fprintf(stderr, "%d of 100 messages that were received were flushed\n", flushed);
	CHECK(flushed == 0);
}

/* Sends and receives complete in one queue. A send completes before the receive of its answer. */
static void cq_order(bool uses_events)
{
	int wrong = 0, sends = 0, receives = 0;
	fork_peer();
	end = open_end();
	CHECK(ibv_req_notify_cq(end.cq, 0) == 0); /* before the other end can send */
	connect_ends(DEPTH);
	if (child)
		post_message();
	while (receives < ROUNDS || sends < ROUNDS) {
		struct ibv_wc wc;
		int n;
		if (uses_events) {
			struct ibv_cq *cq;
			void *context;
			CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0);
			ibv_ack_cq_events(cq, 1);
			CHECK(ibv_req_notify_cq(cq, 0) == 0);
		}
		while ((n = ibv_poll_cq(end.cq, 1, &wc)) > 0) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			if (wc.opcode == IBV_WC_SEND) {
				sends++;
				continue;
			}
			receives++;
			wrong += child && receives > sends;
			post_receive(wc.wr_id);
			if (!child || receives < ROUNDS)
				post_message();
		}
		CHECK(n == 0);
	}
	meet();
	fprintf(stderr, "%d of %d answers completed before the message that they answer\n", wrong, ROUNDS);
	CHECK(wrong == 0);
}

static void cq_order_polling(void) { cq_order(false); }
static void cq_order_events(void) { cq_order(true); }

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } scenarios[] = {
#define SCENARIO(name) { #name, name }
		SCENARIO(ack_lost_at_exit_exit), SCENARIO(ack_lost_at_exit_kill), SCENARIO(ack_lost_at_exit_exec), SCENARIO(ack_lost_at_exit_return),
		SCENARIO(ack_lost_after_answers), SCENARIO(last_send_flushed_told), SCENARIO(last_send_flushed_disconnected),
		SCENARIO(cq_order_polling), SCENARIO(cq_order_events),
	};
	CHECK(argc == 2);
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		if (!strcmp(argv[1], scenarios[i].name)) {
			scenarios[i].run();
			if (child > 0 && strncmp(argv[1], "ack_lost", 8))
				exit_well(child);
			return 0;
		}
	}
	CHECK(!"the scenario exists");
}
