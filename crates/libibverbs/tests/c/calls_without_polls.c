/* A process calls verbs in a loop and never polls, while its peer sends it requests, one at a time. */
#include "peer_process.h"

#include <poll.h>

enum { REQUESTS = 1000 };

static struct end end;
static struct ibv_qp *qp;

static void query_port(void)
{
	struct ibv_port_attr attr;
	CHECK(ibv_query_port(end.context, 1, &attr) == 0);
}

static void query_qp(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
}

static void register_and_deregister(void)
{
	struct ibv_mr *mr;
	CHECK(mr = ibv_reg_mr(end.pd, end.memory, PAGE, ALL));
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void create_and_destroy(void)
{
	struct ibv_cq *cq;
	CHECK(cq = ibv_create_cq(end.context, DEPTH, NULL, NULL, 0));
	CHECK(ibv_destroy_cq(cq) == 0);
}

/* Sends the requests, and returns the number of successful completions before the first failed completion. */
static int completed(struct connection_data peer)
{
	for (int i = 0; i < REQUESTS; i++) {
		CHECK(post_write(qp, &end, i, peer.addr, peer.rkey) == 0);
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.wr_id == (uint64_t)i);
		if (wc.status != IBV_WC_SUCCESS)
			return i;
	}
	return REQUESTS;
}

int main(int argc, char **argv)
{
	static const struct scenario loops[] = {
		{ "query_port", query_port }, { "query_qp", query_qp }, { "register_and_deregister", register_and_deregister },
		{ "create_and_destroy", create_and_destroy },
	};
	CHECK(argc == 2);
	fork_peer();
	end = open_end();
	qp = make_qp(&end);
	struct connection_data mine = connection_data_of(&end, qp), peer;
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	ready(qp);
	connect_to(qp, peer);
	int count = -1;
	meet();
	if (child) {
		while (poll(&(struct pollfd){ .fd = to_peer, .events = POLLIN }, 1, 0) == 0)
			for (int i = 0; i < 1000; i++)
				run_scenario(loops, sizeof loops / sizeof loops[0], argv[1]);
		hear(&count, sizeof count);
		if (count != REQUESTS)
			fprintf(stderr, "%s: %d of %d requests completed\n", argv[1], count, REQUESTS);
		CHECK(count == REQUESTS);
		exit_well(child);
	} else {
		count = completed(peer);
		tell(&count, sizeof count);
	}
	return 0;
}
