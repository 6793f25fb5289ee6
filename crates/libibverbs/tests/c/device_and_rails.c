/* Scenarios of one process with two queue pairs connected to each other. The process fails its own rails. */
#include "rail_faults.h"
#include "test_support.h"

#include <poll.h>

static struct end end;
static struct ibv_qp *one, *other;

static bool has_event(int milliseconds)
{
	return poll(&(struct pollfd){ .fd = end.context->async_fd, .events = POLLIN }, 1, milliseconds) == 1;
}

static struct ibv_async_event next_event(void)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	ibv_ack_async_event(&event);
	return event;
}

static enum ibv_port_state port(void)
{
	struct ibv_port_attr attr;
	CHECK(ibv_query_port(end.context, 1, &attr) == 0);
	return attr.state;
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static void connect_both(void)
{
	ready(one), ready(other);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
}

static void pair(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	one = make_qp(&end);
	init.srq = srq;
	CHECK(other = ibv_create_qp(end.pd, &init));
	connect_both();
}

static void write_well(struct ibv_qp *qp, uint64_t wr_id)
{
	CHECK(post_write(qp, &end, wr_id, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.qp_num == qp->qp_num);
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 64, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post_message(struct ibv_qp *qp, uint64_t wr_id, int flags)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* The port is active as long as one rail is up. */
static void port_events(void)
{
	pair(NULL);
	for (int round = 0; round < 2; round++) {
		for (int rail = 0; rail < rails(); rail++) {
			CHECK(!has_event(100) && port() == IBV_PORT_ACTIVE);
			fault("rail%d down", rail);
		}
		struct ibv_async_event event = next_event();
		CHECK(event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 1 && port() == IBV_PORT_DOWN);
		for (int rail = rails(); rail-- > 0;)
			fault("rail%d up", rail);
		event = next_event();
		CHECK(event.event_type == IBV_EVENT_PORT_ACTIVE && event.element.port_num == 1 && port() == IBV_PORT_ACTIVE);
		write_well(one, round);
	}
	CHECK(!has_event(100));
}

/* The device is dead when its last NIC is dead. */
static void device_fatal(void)
{
	pair(NULL);
	for (int rail = 0; rail < rails(); rail++) {
		CHECK(!has_event(100));
		fault("rail%d nic-dead", rail);
	}
	bool device = false;
	int queue_pairs = 0;
	while (!device || queue_pairs < (rails() > 1 ? 2 : 0)) {
		struct ibv_async_event event = next_event();
		device |= event.event_type == IBV_EVENT_DEVICE_FATAL;
		/* A virtual queue pair gets an event when no rail is left and no completion reports it. */
		queue_pairs += event.event_type == IBV_EVENT_QP_FATAL;
	}
	/* No event follows. */
	struct ibv_async_event none;
	CHECK(port() == IBV_PORT_DOWN && ibv_get_async_event(end.context, &none) == -1 && errno == EIO);
}

/* An invalid request: the requester gets a completion, the responder an asynchronous event. */
static void access_error(void)
{
	pair(NULL);
	write_well(one, 1);
	CHECK(post_write(one, &end, 2, (uintptr_t)end.memory, end.mr->rkey + 0x100) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_REM_ACCESS_ERR);
	struct ibv_async_event event = next_event();
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == other);
	CHECK(state_of(other) == IBV_QPS_ERR && state_of(one) == IBV_QPS_ERR && !has_event(200));
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}

/* A queue pair in ERR takes no receive from its shared receive queue, and LAST_WQE_REACHED is raised once. */
static void last_wqe_reached(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq;
	CHECK(srq = ibv_create_srq(end.pd, &shared));
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 8, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	for (int by_error = 0; by_error < 2; by_error++) {
		pair(srq);
		write_well(one, 1);
		CHECK(!has_event(100));
		if (by_error) {
			CHECK(post_write(one, &end, 2, (uintptr_t)end.memory, end.mr->rkey + 0x100) == 0);
			struct ibv_async_event event = next_event();
			if (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
				event = next_event();
			else
				CHECK(next_event().event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
			CHECK(event.element.qp == other);
			CHECK(next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
		} else {
			to_state(other, IBV_QPS_ERR);
			struct ibv_async_event event = next_event();
			CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == other);
		}
		to_state(other, IBV_QPS_ERR);
		CHECK(!has_event(200));
		CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	}
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* The destruction of an object removes its events. */
static void events_of_destroyed_objects(void)
{
	pair(NULL);
	CHECK(post_write(one, &end, 1, (uintptr_t)end.memory, end.mr->rkey + 0x100) == 0);
	CHECK(next(end.cq).status == IBV_WC_REM_ACCESS_ERR && has_event(20000));
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	CHECK(!has_event(200));
}

static void set_limit(struct ibv_srq *srq, uint32_t limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
}

static void message_arrives(int n)
{
	post_message(one, 100, IBV_SEND_SIGNALED);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 100 || wc.wr_id == (uint64_t)n));
	}
}

static bool next_event_is_limit(struct ibv_srq *srq)
{
	struct ibv_async_event event = next_event();
	return event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq;
}

/* The limit event is raised once, when fewer receives than the limit are left, and again after the limit is set again. */
static void limit_events(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq;
	CHECK(srq = ibv_create_srq(end.pd, &shared));
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 8, end.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	for (wr.wr_id = 0; wr.wr_id < 6; wr.wr_id++)
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	pair(srq);
	set_limit(srq, 4);
	message_arrives(0), message_arrives(1);
	CHECK(!has_event(100));
	message_arrives(2);
	CHECK(next_event_is_limit(srq));
	message_arrives(3);
	CHECK(!has_event(100));
	set_limit(srq, 2);
	CHECK(!has_event(100));
	message_arrives(4);
	CHECK(next_event_is_limit(srq));
	/* A limit above the number of receives is reached at once. */
	set_limit(srq, 3);
	CHECK(next_event_is_limit(srq) && !has_event(100));
	/* The event disarms the limit (ibv_query_srq(3)). */
	struct ibv_srq_attr queried;
	CHECK(ibv_query_srq(srq, &queried) == 0 && queried.srq_limit == 0);
	set_limit(srq, 1);
	CHECK(ibv_query_srq(srq, &queried) == 0 && queried.srq_limit == 1 && !has_event(0));
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_srq(srq) == 0);
}

/* Memory is registered after the death of a NIC, and used over connections on another NIC. */
static void registration_after_nic_death(void)
{
	pair(NULL);
	write_well(one, 1);
	for (int rail = 0; rail < rails() - 1; rail++) {
		fault("rail%d nic-dead", rail);
		usleep(300000); /* requests in flight may be lost when both ends lose their NIC */
		write_well(one, 2);
		char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED);
		struct ibv_mr *mr = ibv_reg_mr(end.pd, memory, PAGE, ALL);
		CHECK(mr && mr->lkey != end.mr->lkey);
		struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)memory + 64, mr->rkey },
		}, *bad;
		strcpy(memory, "written");
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		CHECK(next(end.cq).status == IBV_WC_SUCCESS && strcmp(memory + 64, "written") == 0);
		CHECK(ibv_dereg_mr(mr) == 0);
	}
}

/* A queue pair can be reset repeatedly: its number stays, outstanding requests vanish, and it connects again. */
static void resets(void)
{
	pair(NULL);
	uint32_t numbers[] = { one->qp_num, other->qp_num };
	for (int round = 0; round < 4; round++) {
		write_well(one, round);
		post_recv(other, 10 + round);
		post_message(one, 20 + round, IBV_SEND_SIGNALED);
		for (int i = 0; i < 2; i++)
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		/* Neither request completes after the reset, which also removes the flush completions. */
		post_recv(other, 30 + round);
		post_recv(one, 40 + round);
		if (round % 2)
			CHECK(post_write(one, &end, 50 + round, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
		if (round == 2)
			to_state(one, IBV_QPS_ERR);
		to_state(one, IBV_QPS_RESET);
		to_state(other, IBV_QPS_RESET);
		CHECK(is_empty(end.cq) && state_of(one) == IBV_QPS_RESET);
		CHECK(one->qp_num == numbers[0] && other->qp_num == numbers[1]);
		/* A reset before the connection. */
		ready(one);
		post_recv(one, 60);
		to_state(one, IBV_QPS_RESET);
		connect_both();
		if (rails() > 1) {
			fault("rail%d down", round % 2);
			write_well(one, round);
			fault("rail%d up", round % 2);
		}
	}
	write_well(other, 99);
	CHECK(is_empty(end.cq));
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	struct ibv_qp *fresh[4 * DEPTH];
	for (int i = 0; i < 4 * DEPTH; i++) {
		fresh[i] = make_qp(&end);
		CHECK(fresh[i]->qp_num != numbers[0] && fresh[i]->qp_num != numbers[1]);
	}
}

/* Ends of a connection that are reset in turn: the first is in RTS before the second is reset, as in tests of rdma-core. */
static void resets_in_turn(void)
{
	pair(NULL);
	for (int round = 0; round < 6; round++) {
		struct ibv_qp *first = round % 2 ? one : other, *second = round % 2 ? other : one;
		write_well(first, round);
		to_state(one, IBV_QPS_ERR), to_state(other, IBV_QPS_ERR);
		to_state(first, IBV_QPS_RESET), ready(first), connect_to(first, connection_data_of(&end, second));
		CHECK(state_of(first) == IBV_QPS_RTS);
		post_recv(first, 10);
		/* On one rail, the queue pair would retry the request a few times only. */
		if (rails() > 1 && round < 4) {
			CHECK(post_write(first, &end, 11, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
			CHECK(is_empty(end.cq));
		}
		to_state(second, IBV_QPS_RESET), ready(second), connect_to(second, connection_data_of(&end, first));
		post_message(second, 12, IBV_SEND_SIGNALED);
		uint64_t seen = 0, expected = 1 << 10 | 1 << 12 | (rails() > 1 && round < 4 ? 1 << 11 : 0);
		while (seen != expected) {
			struct ibv_wc wc = next(end.cq);
			CHECK(wc.status == IBV_WC_SUCCESS && !(seen >> wc.wr_id & 1));
			seen |= 1 << wc.wr_id;
		}
		write_well(second, round);
	}
	CHECK(is_empty(end.cq));
}

static void connected_to_itself(void)
{
	one = make_qp(&end);
	ready(one);
	post_recv(one, 1);
	connect_to(one, connection_data_of(&end, one));
	for (int round = 0; round < 4; round++) {
		strcpy(end.memory, "to itself");
		memset(end.memory + PAGE, 0, 64);
		post_message(one, 2, IBV_SEND_SIGNALED);
		uint64_t seen = 0;
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = next(end.cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == one->qp_num);
			CHECK(wc.opcode == (wc.wr_id == 1 ? IBV_WC_RECV : IBV_WC_SEND));
			seen |= 1 << wc.wr_id;
		}
		CHECK(seen == 6 && memcmp(end.memory + PAGE, "to itse", 7) == 0);
		write_well(one, 3);
		post_recv(one, 1);
		if (rails() > 1) {
			fault("rail%d down", round % 2);
			write_well(one, 4);
			fault("rail%d up", round % 2);
		}
	}
	to_state(one, IBV_QPS_ERR);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && is_empty(end.cq));
	CHECK(ibv_destroy_qp(one) == 0);
}

/* The receiver is never ready, and the sender gives up after its RNR retries. */
static void rnr_retries_are_limited(void)
{
	one = make_qp(&end), other = make_qp(&end);
	ready(one), ready(other);
	struct connection_data cards[] = { connection_data_of(&end, one), connection_data_of(&end, other) };
	connect_with(one, cards[1], 3), connect_with(other, cards[0], 7);
	post_recv(other, 1);
	for (int i = 0; i < 3; i++)
		post_message(one, 2 + i, IBV_SEND_SIGNALED);
	int ended = 0;
	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = next(end.cq);
		if (wc.wr_id <= 2)
			CHECK(wc.status == IBV_WC_SUCCESS);
		else
			CHECK(wc.status == (ended++ == 0 ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR));
	}
	CHECK(ended == 2 && state_of(one) == IBV_QPS_ERR);
}

/* Both ends lose their NIC with WRITEs in flight. With a completion log all but one WRITE are decided. */
static void completion_log(void)
{
	pair(NULL);
	write_well(one, 1);
	fault("rail0 nic-dead@5:9", 0);
	for (int i = 0; i < DEPTH; i++)
		CHECK(post_write(one, &end, 2 + i, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	int unknown = 0, executed = 0;
	for (int i = 0; i < DEPTH; i++) {
		struct ibv_wc wc = next(end.cq);
		executed += wc.status == IBV_WC_SUCCESS;
		unknown += wc.status == IBV_WC_RETRY_EXC_ERR;
		CHECK(wc.status != IBV_WC_RETRY_EXC_ERR || wc.vendor_err == 1);
	}
	CHECK(executed < DEPTH);
	if (getenv("MITRA_LOG"))
		CHECK(executed > 0 && unknown == 1);
	else
		CHECK(unknown > 1);
}

static bool wakes(int milliseconds)
{
	struct ibv_cq *cq;
	void *context;
	if (poll(&(struct pollfd){ .fd = end.channel->fd, .events = POLLIN }, 1, milliseconds) != 1)
		return false;
	CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0 && cq == end.cq);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void takes(int completions)
{
	while (completions-- > 0)
		CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(is_empty(end.cq));
}

/* A queue armed for solicited messages gives an event for errors, and no event for other messages. */
static void solicited(void)
{
	struct ibv_cq *all = end.cq;
	pair(NULL);
	for (int i = 0; i < 8; i++)
		post_recv(other, i);
	/* The event comes for the solicited message only. */
	CHECK(ibv_req_notify_cq(all, 1) == 0);
	post_message(one, 10, IBV_SEND_SIGNALED);
	CHECK(!wakes(200));
	takes(2);
	post_message(one, 11, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	CHECK(wakes(20000));
	takes(2);
	/* An armed queue gives one event. */
	post_message(one, 12, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	CHECK(!wakes(200));
	takes(2);
	/* Arming for solicited messages does not revoke an earlier request for all messages. */
	CHECK(ibv_req_notify_cq(all, 0) == 0 && ibv_req_notify_cq(all, 1) == 0);
	post_message(one, 13, IBV_SEND_SIGNALED);
	CHECK(wakes(20000));
	takes(2);
	/* The queue stays armed across a failover. */
	if (rails() > 1) {
		CHECK(ibv_req_notify_cq(all, 1) == 0);
		fault("rail%d down", 0);
		post_message(one, 14, IBV_SEND_SIGNALED);
		CHECK(!wakes(400));
		takes(2);
		post_message(one, 15, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
		CHECK(wakes(20000));
		takes(2);
	}
	CHECK(ibv_req_notify_cq(all, 1) == 0);
	to_state(other, IBV_QPS_ERR);
	CHECK(wakes(20000));
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "port_events", port_events }, { "device_fatal", device_fatal }, { "access_error", access_error },
		{ "last_wqe_reached", last_wqe_reached }, { "registration_after_nic_death", registration_after_nic_death },
		{ "resets", resets }, { "resets_in_turn", resets_in_turn }, { "connected_to_itself", connected_to_itself }, { "rnr_retries_are_limited", rnr_retries_are_limited },
		{ "solicited", solicited }, { "events_of_destroyed_objects", events_of_destroyed_objects }, { "limit_events", limit_events }, { "completion_log", completion_log },
	};
	CHECK(argc == 2);
	alarm(60);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
