/* Two processes connect by rdma_cm on several rails. Then NICs of one or both processes die, and the processes connect again with new objects. */
#include "peer_process.h"
#include "rail_faults.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

enum { ROUNDS = 3 };
static struct rdma_event_channel *events;
static struct end end;

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(events, &event) == 0);
	struct rdma_cm_id *id = event->id;
	if (event->event != type)
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
	CHECK(event->event == type);
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

/* Creates a queue pair with new objects, in the last round also a shared receive queue, and posts a receive. */
static struct ibv_srq *prepare(struct rdma_cm_id *id, int round)
{
	struct ibv_srq *srq = NULL;
	CHECK(end.pd = ibv_alloc_pd(id->verbs));
	CHECK(end.cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0));
	end.memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(end.memory != MAP_FAILED && (end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL)));
	if (round == ROUNDS - 1) {
		struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
		CHECK(srq = ibv_create_srq(end.pd, &init));
	}
	struct ibv_qp_init_attr init = plain_init(&end);
	init.srq = srq;
	CHECK(rdma_create_qp(id, end.pd, &init) == 0);
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 64, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK((srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(id->qp, &wr, &bad)) == 0);
	return srq;
}

/* Exchanges a message. After the first round, the rails in `failed` fail. */
static void exchange(struct rdma_cm_id *id, int round, unsigned failed, const char *script)
{
	end.memory[0] = round;
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next(end.cq);
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "request %d: %s (%u)\n", (int)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	CHECK(end.memory[PAGE] == round);
	meet();
	for (int rail = 0; round == 0 && rail < rails(); rail++)
		if (failed & 1u << rail)
			fault(script, rail);
	meet();
}

static void leave(struct rdma_cm_id *id, struct ibv_srq *srq)
{
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(id) == 0 || errno == EINVAL);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0 && (!srq || ibv_destroy_srq(srq) == 0));
	CHECK(ibv_destroy_cq(end.cq) == 0 && ibv_dereg_mr(end.mr) == 0 && ibv_dealloc_pd(end.pd) == 0);
}

static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

static void serve(unsigned failed, const char *script)
{
	struct rdma_cm_id *listener;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 8) == 0);
	uint16_t port = rdma_get_src_port(listener);
	tell(&port, sizeof port);
	for (int round = 0; round < ROUNDS; round++) {
		struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		struct ibv_srq *srq = prepare(id, round);
		CHECK(rdma_accept(id, &param) == 0);
		expect(RDMA_CM_EVENT_ESTABLISHED);
		exchange(id, round, failed, script);
		leave(id, srq);
	}
}

static void call(unsigned failed, const char *script)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	hear(&address.sin_port, sizeof address.sin_port);
	for (int round = 0; round < ROUNDS; round++) {
		struct rdma_cm_id *id;
		CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
		expect(RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(rdma_resolve_route(id, 2000) == 0);
		expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
		struct ibv_srq *srq = prepare(id, round);
		CHECK(rdma_connect(id, &param) == 0);
		expect(RDMA_CM_EVENT_ESTABLISHED);
		exchange(id, round, failed, script);
		CHECK(rdma_disconnect(id) == 0);
		leave(id, srq);
	}
}

static void recover(unsigned here, unsigned there, const char *script)
{
	CHECK(events = rdma_create_event_channel());
	if (child)
		call(here, script);
	else
		serve(there, script);
}

static unsigned all_but_last(void) { return (1u << (rails() - 1)) - 1; }
static void caller_loses_rails(void) { recover(all_but_last(), 0, "rail%d nic-dead"); }
static void listener_loses_rails(void) { recover(0, all_but_last(), "rail%d nic-dead"); }
static void both_lose_rails(void) { recover(all_but_last(), all_but_last(), "rail%d nic-hung"); }
static void last_rail_is_lost(void) { recover(0, 1u << (rails() - 1), "rail%d nic-dead"); }

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "caller_loses_rails", caller_loses_rails }, { "listener_loses_rails", listener_loses_rails },
		{ "both_lose_rails", both_lose_rails }, { "last_rail_is_lost", last_rail_is_lost },
	};
	CHECK(argc == 2);
	fork_peer();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
