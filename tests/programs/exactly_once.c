/* Counts executions of requests. The program uses plain libibverbs and does not depend on Mitra.
 *
 *   exactly_once PORT            serves one client and exits
 *   exactly_once PORT HOST N     posts N rounds of fetch-and-add, WRITE and SEND, and prints the violations as JSON
 *
 * The program checks the counter in the server's memory, the messages that the server received and the bytes in its ring. Exit
 * code: 0 if each request was executed exactly once, 1 if not, 2 if another error occurred. */

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 48, KINDS = 3, SLOTS = 64, SLOT = 256, RECVS = 256, TIMEOUT = 60 };

#define CHECK(what, ok) \
	do { \
		if (!(ok)) { \
			perror(what); \
			exit(2); \
		} \
	} while (0)

struct memory {
	uint64_t counter;
	uint64_t fetched[WINDOW];
	uint64_t sent[WINDOW];
	uint64_t received[RECVS];
	unsigned char source[WINDOW][SLOT];
	unsigned char ring[SLOTS][SLOT];
};

struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

struct findings {
	uint64_t counter, received, twice, missing, torn;
};

static struct memory *memory;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void move(int fd, void *data, size_t len, bool in)
{
	for (char *at = data; len > 0;) {
		ssize_t n = in ? read(fd, at, len) : write(fd, at, len);
		CHECK("talking to the other end", n > 0);
		at += n;
		len -= n;
	}
}

static int meet(const char *port, const char *host)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	CHECK("getaddrinfo", getaddrinfo(host ? host : "127.0.0.1", port, &hints, &found) == 0);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	if (!host) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		CHECK("bind", bind(fd, found->ai_addr, found->ai_addrlen) == 0);
		CHECK("listen", listen(fd, 1) == 0);
		fd = accept(fd, NULL, NULL);
		CHECK("accept", fd >= 0);
		return fd;
	}
	for (int i = 0; connect(fd, found->ai_addr, found->ai_addrlen) != 0; i++) {
		CHECK("connect", i < 100);
		usleep(50000);
		close(fd);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	return fd;
}

static struct end open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK("ibv_get_device_list", list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK("ibv_open_device", context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK("ibv_alloc_pd", pd);
	memory = aligned_alloc(4096, (sizeof *memory + 4095) / 4096 * 4096);
	CHECK("memory", memory);
	memset(memory, 0, sizeof *memory);
	mr = ibv_reg_mr(pd, memory, sizeof *memory,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK("ibv_reg_mr", mr);
	cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	CHECK("ibv_create_cq", cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = WINDOW * KINDS, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	qp = ibv_create_qp(pd, &init);
	CHECK("ibv_create_qp", qp);
	struct end own = { .qpn = qp->qp_num, .rkey = mr->rkey, .addr = (uintptr_t)memory };
	CHECK("ibv_query_gid", ibv_query_gid(context, 1, 0, &own.gid) == 0);
	return own;
}

static void post_recv(unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)&memory->received[slot], sizeof(uint64_t), mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK("ibv_post_recv", ibv_post_recv(qp, &wr, &bad) == 0);
}

static void connect_to(const struct end *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	CHECK("to INIT",
	      ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	for (unsigned i = 0; i < RECVS; i++)
		post_recv(i);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .hop_limit = 64 } },
	};
	CHECK("to RTR", ibv_modify_qp(qp, &attr,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16
	};
	CHECK("to RTS", ibv_modify_qp(qp, &attr,
				      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static unsigned char pattern(uint64_t round, unsigned at)
{
	return (unsigned char)(round * 31 + at * 7 + (round >> 8));
}

static void serve(int fd)
{
	struct findings found = { 0 };
	uint64_t expected = 0, rounds = 0;
	bool told = false;
	time_t until = 0;
	/* The client has sent the number of rounds; outstanding messages may still arrive. */
	while (!told || (found.received < rounds && time(NULL) < until)) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK("ibv_poll_cq", n >= 0);
		if (n == 1) {
			CHECK("a receive", wc.status == IBV_WC_SUCCESS || told);
			if (wc.status != IBV_WC_SUCCESS)
				break;
			uint64_t number = memory->received[wc.wr_id];
			found.received++;
			if (number < expected)
				found.twice++;
			else {
				found.missing += number - expected;
				expected = number + 1;
			}
			post_recv(wc.wr_id);
			continue;
		}
		if (!told && recv(fd, &rounds, sizeof rounds, MSG_DONTWAIT) == sizeof rounds) {
			told = true;
			until = time(NULL) + 5;
		}
	}
	found.missing += rounds - expected;
	found.counter = memory->counter;
	for (unsigned slot = 0; slot < SLOTS && slot < rounds; slot++) {
		uint64_t last = (rounds - 1 - slot) / SLOTS * SLOTS + slot;
		for (unsigned at = 0; at < SLOT; at++)
			if (memory->ring[slot][at] != pattern(last, at)) {
				found.torn++;
				break;
			}
	}
	move(fd, &found, sizeof found, false);
}

static void post_round(const struct end *peer, uint64_t round)
{
	unsigned i = round % WINDOW;
	memory->sent[i] = round;
	for (unsigned at = 0; at < SLOT; at++)
		memory->source[i][at] = pattern(round, at);
	struct ibv_sge sges[KINDS] = {
		{ (uintptr_t)&memory->fetched[i], sizeof(uint64_t), mr->lkey },
		{ (uintptr_t)memory->source[i], SLOT, mr->lkey },
		{ (uintptr_t)&memory->sent[i], sizeof(uint64_t), mr->lkey },
	};
	struct ibv_send_wr wrs[KINDS], *bad;
	memset(wrs, 0, sizeof wrs);
	for (unsigned kind = 0; kind < KINDS; kind++) {
		wrs[kind].wr_id = round;
		wrs[kind].sg_list = &sges[kind];
		wrs[kind].num_sge = 1;
		wrs[kind].send_flags = IBV_SEND_SIGNALED;
		wrs[kind].next = kind + 1 < KINDS ? &wrs[kind + 1] : NULL;
	}
	wrs[0].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wrs[0].wr.atomic.remote_addr = peer->addr + offsetof(struct memory, counter);
	wrs[0].wr.atomic.rkey = peer->rkey;
	wrs[0].wr.atomic.compare_add = 1;
	wrs[1].opcode = IBV_WR_RDMA_WRITE;
	wrs[1].wr.rdma.remote_addr = peer->addr + offsetof(struct memory, ring) + round % SLOTS * SLOT;
	wrs[1].wr.rdma.rkey = peer->rkey;
	wrs[2].opcode = IBV_WR_SEND;
	CHECK("ibv_post_send", ibv_post_send(qp, wrs, &bad) == 0);
}

static int drive(int fd, const struct end *peer, uint64_t rounds)
{
	uint64_t posted = 0, done = 0, wrong = 0, errors = 0;
	time_t last = time(NULL);
	while (done < rounds * KINDS && errors == 0) {
		while (posted < rounds && posted * KINDS - done <= (WINDOW - 1) * KINDS)
			post_round(peer, posted++);
		struct ibv_wc wc[16];
		int n = ibv_poll_cq(cq, 16, wc);
		CHECK("ibv_poll_cq", n >= 0);
		for (int i = 0; i < n; i++, done++) {
			last = time(NULL);
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "round %" PRIu64 ": %s\n", wc[i].wr_id, ibv_wc_status_str(wc[i].status));
				errors++;
			} else if (wc[i].opcode == IBV_WC_FETCH_ADD && memory->fetched[wc[i].wr_id % WINDOW] != wc[i].wr_id)
				wrong++;
		}
		CHECK("a completion", time(NULL) - last < TIMEOUT);
	}
	/* After an error nothing more is posted. */
	if (errors)
		rounds = posted;
	struct findings found;
	move(fd, &rounds, sizeof rounds, false);
	move(fd, &found, sizeof found, true);
	uint64_t doubled = found.twice + (found.counter > rounds ? found.counter - rounds : 0);
	uint64_t lost = found.missing + (found.counter < rounds ? rounds - found.counter : 0);
	printf("{\"rounds\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"doubled\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"torn\":%" PRIu64
	       ",\"errors\":%" PRIu64 "}\n",
	       rounds, lost, doubled, wrong, found.torn, errors);
	return lost || doubled || wrong || found.torn || errors;
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 4) {
		fprintf(stderr, "usage: exactly_once PORT [HOST ROUNDS]\n");
		return 2;
	}
	bool client = argc == 4;
	struct end own = open_device(), peer;
	int fd = meet(argv[1], client ? argv[2] : NULL);
	move(fd, &own, sizeof own, false);
	move(fd, &peer, sizeof peer, true);
	connect_to(&peer);
	char ready = 1;
	move(fd, &ready, 1, false);
	move(fd, &ready, 1, true);
	if (client)
		return drive(fd, &peer, strtoull(argv[3], NULL, 0));
	serve(fd);
	/* The server waits for the client to end, because the client may still retransmit. */
	read(fd, &ready, 1);
	return 0;
}
