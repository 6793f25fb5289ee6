/* The addresses of rails change while programs use the device. */
#include "peer_process.h"
#include "rail_faults.h"

#include <endian.h>
#include <poll.h>

static struct end end;
static struct connection_data peer;

static bool same(union ibv_gid one, union ibv_gid other)
{
	return memcmp(&one, &other, sizeof one) == 0;
}

static union ibv_gid present(void)
{
	union ibv_gid gid;
	CHECK(ibv_query_gid(end.context, 1, 0, &gid) == 0);
	return gid;
}

static bool has_event(int milliseconds)
{
	return poll(&(struct pollfd){ .fd = end.context->async_fd, .events = POLLIN }, 1, milliseconds) == 1;
}

/* Changes the address of rail 0, and checks that the program gets an event and finds the new GID in the table. */
static void change_device(void)
{
	union ibv_gid before = present(), gid;
	struct ibv_gid_entry entries[2];
	struct ibv_async_event event;
	fault("rail%d address free", 0);
	CHECK(has_event(20000) && ibv_get_async_event(end.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_GID_CHANGE && event.element.port_num == 1);
	ibv_ack_async_event(&event);
	CHECK(!same(present(), before) && ibv_query_gid(end.context, 1, 1, &gid) == 0 && same(gid, present()));
	CHECK(ibv_query_gid_table(end.context, entries, 2, 0) == 2 && same(entries[0].gid, gid) && same(entries[1].gid, gid));
}

static void table_and_event(void)
{
	struct ibv_device_attr attr, first;
	end = open_end();
	CHECK(ibv_query_device(end.context, &first) == 0);
	for (int i = 0; i < 3; i++)
		change_device();
	CHECK(ibv_query_device(end.context, &attr) == 0 && attr.node_guid == first.node_guid);
	CHECK(ibv_get_device_guid(end.context->device) == first.node_guid);
	if (rails() > 1) {
		union ibv_gid gid = present();
		fault("rail%d address free", 1);
		CHECK(same(present(), gid) && !has_event(50));
	}
	CHECK(!has_event(0));
}

static struct ibv_qp *prepare(void)
{
	struct ibv_qp *qp = make_qp(&end);
	ready(qp);
	struct connection_data own = connection_data_of(&end, qp);
	tell(&own, sizeof own);
	hear(&peer, sizeof peer);
	return qp;
}

/* Each end sends a message, and writes into a new region of the other end, whose keys the sender must query. */
static void use(struct ibv_qp *qp, uint64_t round)
{
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory, PAGE, ALL);
	CHECK(mr);
	struct ibv_sge into = { (uintptr_t)end.memory + 512, 8, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 3, .sg_list = &into, .num_sge = 1 }, *bad_recv;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == 0);
	uint32_t rkey;
	tell(&mr->rkey, sizeof rkey);
	hear(&rkey, sizeof rkey);
	*(uint64_t *)end.memory = round;
	CHECK(post_write(qp, &end, 1, peer.addr + 64, rkey) == 0);
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = next(end.cq);
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "round %d, request %d: %s (%u)\n", (int)round, (int)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	meet();
	CHECK(*(uint64_t *)(end.memory + 64) == round && *(uint64_t *)(end.memory + 512) == round);
	CHECK(ibv_dereg_mr(mr) == 0);
}

/* A connection survives the changes of each rail at each end. */
static void connection(void)
{
	end = open_end();
	struct ibv_qp *qp = prepare();
	connect_to(qp, peer);
	meet();
	use(qp, 1);
	for (int round = 2; round < 40; round++) {
		if (round / 2 % 2 == (child == 0))
			fault("rail%d address free", round % rails());
		if (round % 3 == 0)
			meet(); /* the use begins after the change */
		use(qp, round);
	}
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Connections after the change, with the first or the present GID, by queue pairs from before and after the change. */
static void later_connections(void)
{
	end = open_end();
	for (int round = 0; round < 8; round++) {
		bool changes = round % 2 == (child == 0), early = round & 2, renews = round & 4;
		struct ibv_qp *qp = early ? prepare() : NULL;
		if (changes)
			change_device();
		meet();
		if (renews)
			end.gid = present();
		if (!early)
			qp = prepare();
		connect_to(qp, peer);
		meet();
		use(qp, 100 + round);
		meet();
		CHECK(ibv_destroy_qp(qp) == 0);
	}
}

/* A queue pair that is connected to itself, and two queue pairs of one process, before and after a change. */
static void own_connections(void)
{
	end = open_end();
	for (int round = 0; round < 6; round++) {
		struct ibv_qp *self = make_qp(&end), *one = make_qp(&end), *other = make_qp(&end);
		ready(self), ready(one), ready(other);
		connect_to(self, connection_data_of(&end, self));
		connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
		for (int i = 0; i < 2; i++) {
			struct ibv_qp *qps[] = { self, one, other };
			for (int n = 0; n < 3; n++) {
				CHECK(post_write(qps[n], &end, n, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
				struct ibv_wc wc = next(end.cq);
				if (wc.status != IBV_WC_SUCCESS)
					fprintf(stderr, "round %d, queue pair %d: %s\n", round, n, ibv_wc_status_str(wc.status));
				CHECK(wc.wr_id == (uint64_t)n && wc.status == IBV_WC_SUCCESS);
			}
			if (i == 0)
				change_device();
		}
		if (round % 2)
			end.gid = present();
		CHECK(ibv_destroy_qp(self) == 0 && ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	}
}

/* With one rail, a connection ends as on hardware, and a new one needs the new GID. */
static void connection_of_one_rail(void)
{
	end = open_end();
	struct ibv_qp *qp = prepare();
	connect_to(qp, peer);
	meet();
	use(qp, 1);
	if (child)
		change_device();
	meet();
	if (child) {
		CHECK(post_write(qp, &end, 7, peer.addr, peer.rkey) == 0);
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.wr_id == 7 && wc.status == IBV_WC_RETRY_EXC_ERR && state_of(qp) == IBV_QPS_ERR);
	}
	meet();
	CHECK(state_of(qp) == (child ? IBV_QPS_ERR : IBV_QPS_RTS));
	CHECK(ibv_destroy_qp(qp) == 0);
	end.gid = present();
	qp = prepare();
	connect_to(qp, peer);
	meet();
	use(qp, 2);
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "table_and_event", table_and_event }, { "connection", connection }, { "later_connections", later_connections },
		{ "own_connections", own_connections }, { "connection_of_one_rail", connection_of_one_rail },
	};
	CHECK(argc == 2);
	fork_peer();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
