/* Two client processes add to one word of a server while a rail of one of them fails. The NICs' atomics are atomic per NIC only, so both clients
 * leave the rail. The server's NIC of this rail then dies: an atomic that it still executed would lose its value. */
#include "rail_faults.h"

#include <sys/wait.h>

enum { CLIENTS = 2, MAX_ADDS = 1 << 20, FLIGHT = 8 };

/* What the processes share. */
static struct {
	/* The number of adds that have found each value. */
	_Atomic unsigned char found[MAX_ADDS];
	/* The number of adds that each client has completed. */
	_Atomic int completed[CLIENTS];
	/* The first client has added something after the failure of its rail 0. */
	_Atomic bool has_moved;
	/* The clients post no more adds. */
	_Atomic bool ends;
} *shared;
static struct end end;
static int sockets[CLIENTS][2];

static void tell(int socket, const void *data, size_t len)
{
	CHECK(write(socket, data, len) == (ssize_t)len);
}

static void hear(int socket, void *data, size_t len)
{
	CHECK(read(socket, data, len) == (ssize_t)len);
}

/* Connects with many READs and atomics in flight. */
static void connect_deep(struct ibv_qp *qp, struct connection_data peer)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .max_dest_rd_atomic = FLIGHT, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = FLIGHT };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Adds 1 to the server's word, until `ends` is set or this client has completed `until` adds, and notes the values that the adds have found. */
static void add_up(int client, struct ibv_qp *qp, struct connection_data peer, int until)
{
	int completed = shared->completed[client], posted = completed;
	while (posted > completed || (completed < until && !shared->ends)) {
		while (posted < until && posted < completed + FLIGHT && !shared->ends) {
			struct ibv_sge sge = { (uintptr_t)end.memory + posted % FLIGHT * 8, 8, end.mr->lkey };
			struct ibv_send_wr wr = {
				.wr_id = posted, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
				.wr.atomic = { .remote_addr = peer.addr, .compare_add = 1, .rkey = peer.rkey },
			}, *bad;
			CHECK(ibv_post_send(qp, &wr, &bad) == 0);
			posted++;
		}
		if (posted == completed)
			break;
		struct ibv_wc wc = next(end.cq);
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "client %d, add %d: %s (%u)\n", client, completed, ibv_wc_status_str(wc.status), wc.vendor_err);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)completed);
		uint64_t value = *(uint64_t *)(end.memory + completed % FLIGHT * 8);
		CHECK(value < MAX_ADDS);
		shared->found[value]++;
		shared->completed[client] = ++completed;
	}
}

/* A client. The first client loses rail 0. If the server registers later, the loss precedes the client's first add, otherwise it is between adds. */
static void run_client(int client, const char *script, bool registers_later)
{
	int server = sockets[client][1];
	struct connection_data peer;
	char byte = 0;
	end = open_end();
	struct ibv_qp *qp = make_qp(&end);
	struct connection_data own = connection_data_of(&end, qp);
	tell(server, &own, sizeof own);
	hear(server, &peer, sizeof peer);
	ready(qp);
	connect_deep(qp, peer);
	if (registers_later && client == 0) {
		fault(script, 0);
		/* A WRITE that completes shows that the client has moved. */
		CHECK(post_write(qp, &end, 0, peer.addr + PAGE, peer.rkey) == 0);
		CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	}
	tell(server, &byte, 1);
	hear(server, &peer.rkey, sizeof peer.rkey);
	if (client == 0) {
		add_up(client, qp, peer, 4 * FLIGHT);
		if (!registers_later)
			fault(script, 0);
		add_up(client, qp, peer, 8 * FLIGHT);
		shared->has_moved = true;
	}
	add_up(client, qp, peer, MAX_ADDS / CLIENTS);
	tell(server, &byte, 1);
	hear(server, &byte, 1);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Waits until every client has completed this many more adds. */
static void await_adds(int more)
{
	for (int i = 0; i < CLIENTS; i++) {
		for (int from = shared->completed[i]; shared->completed[i] < from + more;)
			usleep(100);
	}
}

/* The server. With `changes`, it gives the region the right for atomics when the clients have connected; with `registers_later`, it
 * registers another region with this right then. */
static void run_server(bool registers_later, bool changes)
{
	struct ibv_qp *qps[CLIENTS];
	struct ibv_mr *word = NULL;
	char byte;
	end = open_end();
	if (registers_later) {
		int flags = ALL & ~IBV_ACCESS_REMOTE_ATOMIC;
		CHECK(ibv_dereg_mr(end.mr) == 0);
		CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, flags));
	}
	for (int i = 0; i < CLIENTS; i++) {
		struct connection_data peer;
		qps[i] = make_qp(&end);
		struct connection_data own = connection_data_of(&end, qps[i]);
		hear(sockets[i][0], &peer, sizeof peer);
		tell(sockets[i][0], &own, sizeof own);
		ready(qps[i]);
		connect_deep(qps[i], peer);
	}
	for (int i = 0; i < CLIENTS; i++)
		hear(sockets[i][0], &byte, 1);
	uint32_t rkey = end.mr->rkey;
	if (changes) {
		CHECK(ibv_rereg_mr(end.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == 0);
		rkey = end.mr->rkey;
	} else if (registers_later) {
		CHECK(word = ibv_reg_mr(end.pd, end.memory, PAGE, ALL));
		rkey = word->rkey;
	}
	for (int i = 0; i < CLIENTS; i++)
		tell(sockets[i][0], &rkey, sizeof rkey);
	while (!shared->has_moved)
		usleep(100);
	await_adds(2 * FLIGHT);
	fault("rail%d nic-dead", 0);
	await_adds(8 * FLIGHT);
	shared->ends = true;
	for (int i = 0; i < CLIENTS; i++)
		hear(sockets[i][0], &byte, 1);
	int adds = 0, sum = *(uint64_t *)end.memory;
	for (int i = 0; i < CLIENTS; i++)
		adds += shared->completed[i];
	if (sum != adds)
		fprintf(stderr, "the word is %d after %d adds\n", sum, adds);
	CHECK(sum == adds);
	for (int i = 0; i < MAX_ADDS; i++)
		CHECK(shared->found[i] == (i < adds));
	for (int i = 0; i < CLIENTS; i++) {
		tell(sockets[i][0], &byte, 1);
		CHECK(ibv_destroy_qp(qps[i]) == 0);
	}
	CHECK(!word || ibv_dereg_mr(word) == 0);
}

static void run(const char *script, bool registers_later, bool changes)
{
	pid_t clients[CLIENTS];
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	for (int i = 0; i < CLIENTS; i++) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]) == 0);
		clients[i] = fork();
		CHECK(clients[i] >= 0);
		alarm(60);
		if (clients[i] == 0) {
			run_client(i, script, registers_later);
			exit(0);
		}
		close(sockets[i][1]);
	}
	run_server(registers_later, changes);
	for (int i = 0; i < CLIENTS; i++) {
		int status;
		CHECK(waitpid(clients[i], &status, 0) == clients[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
}

static void link_of_one_client(void)
{
	run("rail%d link-down", false, false);
}

static void nic_of_one_client(void)
{
	run("rail%d nic-dead", false, false);
}

static void region_registered_later(void)
{
	run("rail%d link-down", true, false);
}

static void right_given_later(void)
{
	run("rail%d link-down", true, true);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "link_of_one_client", link_of_one_client }, { "nic_of_one_client", nic_of_one_client },
		{ "region_registered_later", region_registered_later }, { "right_given_later", right_given_later },
	};
	CHECK(argc == 2);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
