/*
 * The program that `mitra bench failover` runs while a rail falls silent. The client keeps WINDOW operations in flight,
 * fetch-and-adds and WRITEs of SIZE bytes in turn. The server only lends its memory, and waits on its TCP connection.
 *
 *   silent_run PORT WINDOW SIZE                          serves one client
 *   silent_run PORT WINDOW SIZE HOST FAULT STOP WAIT     is the client. WAIT: poll, or events
 *
 * FAULT and STOP are milliseconds since the client opened the device. The client posts nothing after STOP. Once it has
 * completions and FAULT is near, it writes "fault is due" to standard error, where the library reports that a queue pair
 * leaves its rail. At the end it prints: `gap`, the longest time between two completions, of which the second came after
 * FAULT, in us; `last`, the time from the first of these two until all that was in flight between them had completed, in
 * us; `lost`, `doubled` and `wrong`, counts of operations.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "failed: %s\n", #x);                                                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { RD_ATOMIC = 16 };
/* The time before the fault at which the client says that the fault is due, in seconds. */
#define MARGIN 20e-3

struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey, mtu;
	uint64_t addr;
};

static size_t window, size;
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
/* The counter, one fetched value for each operation in flight, the sources of the WRITEs, and their targets. */
static char *memory;

static uint64_t *counter(void)
{
	return (uint64_t *)memory;
}

static uint64_t *fetched(uint64_t op)
{
	return counter() + 1 + op % window;
}

static size_t source(uint64_t op)
{
	return (1 + window) * sizeof(uint64_t) + op % window * size;
}

static size_t target(uint64_t op)
{
	return source(0) + window * size + op % window * size;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void tell(int fd, const void *data, size_t len)
{
	CHECK(send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len);
}

static void hear(int fd, void *data, size_t len)
{
	CHECK(recv(fd, data, len, MSG_WAITALL) == (ssize_t)len);
}

static int connect_tcp(const char *port, const char *host)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	CHECK(getaddrinfo(host ? host : "127.0.0.1", port, &hints, &found) == 0);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (host) {
		CHECK(connect(fd, found->ai_addr, found->ai_addrlen) == 0);
		return fd;
	}
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0);
	CHECK((fd = accept(fd, NULL, NULL)) >= 0);
	return fd;
}

static struct end open_end(void)
{
	size_t len = target(0) + window * size;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd && (memory = aligned_alloc(4096, (len + 4095) / 4096 * 4096)));
	memset(memory, 0, len);
	CHECK((mr = ibv_reg_mr(pd, memory, len,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, window, NULL, channel, 0)));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = window, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((qp = ibv_create_qp(pd, &init)));
	struct ibv_port_attr port;
	CHECK(ibv_query_port(context, 1, &port) == 0);
	struct end own = { .qpn = qp->qp_num, .rkey = mr->rkey, .mtu = port.active_mtu, .addr = (uintptr_t)memory };
	CHECK(ibv_query_gid(context, 1, 0, &own.gid) == 0);
	return own;
}

static void connect_to(const struct end *own, const struct end *peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = own->mtu < peer->mtu ? own->mtu : peer->mtu,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = RD_ATOMIC,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .hop_limit = 64 } },
	};
	CHECK(!ibv_modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = RD_ATOMIC
	};
	CHECK(!ibv_modify_qp(qp, &rts,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static int is_write(uint64_t op)
{
	return op % 2;
}

static void post(const struct end *peer, uint64_t op)
{
	struct ibv_sge sge = { (uintptr_t)fetched(op), sizeof(uint64_t), mr->lkey };
	struct ibv_send_wr wr = { .wr_id = op, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (is_write(op)) {
		uint64_t *words = (uint64_t *)(memory + source(op));
		for (size_t i = 0; i < size / sizeof *words; i++)
			words[i] = op;
		sge.addr = (uintptr_t)words;
		sge.length = size;
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = peer->addr + target(op);
		wr.wr.rdma.rkey = peer->rkey;
	} else {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = peer->addr;
		wr.wr.atomic.rkey = peer->rkey;
		wr.wr.atomic.compare_add = 1;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Polls until there are completions. Sleeps in between if `events` is set. */
static int next_completions(struct ibv_wc *wc, int max, int events)
{
	int n;
	for (;;) {
		CHECK((n = ibv_poll_cq(cq, max, wc)) >= 0);
		if (n > 0)
			return n;
		if (!events)
			continue;
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		CHECK((n = ibv_poll_cq(cq, max, wc)) >= 0);
		if (n > 0)
			return n;
		struct ibv_cq *of;
		void *unused;
		CHECK(ibv_get_cq_event(channel, &of, &unused) == 0);
		ibv_ack_cq_events(of, 1);
	}
}

static void serve(int fd)
{
	uint64_t posted, wrong = 0;
	hear(fd, &posted, sizeof posted);
	for (uint64_t op = posted > window ? posted - window : 0; op < posted; op++) {
		uint64_t *words = (uint64_t *)(memory + target(op));
		for (size_t i = 0; is_write(op) && i < size / sizeof *words; i++)
			if (words[i] != op) {
				wrong++;
				break;
			}
	}
	uint64_t found[] = { *counter(), wrong };
	tell(fd, found, sizeof found);
	/* The client may still retransmit. */
	recv(fd, &posted, sizeof posted, 0);
}

static void drive(int fd, const struct end *peer, double opened, double fault, double stop, int events)
{
	uint64_t posted = 0, done = 0, in_flight_until = 0, wrong = 0;
	double before = 0, gap = 0, gap_began = 0, last = 0;
	int is_due = 0;
	while (done < posted || now() - opened < stop) {
		while (posted - done < window && now() - opened < stop)
			post(peer, posted++);
		if (posted == done)
			break;
		struct ibv_wc wc[16];
		int n = next_completions(wc, 16, events);
		double at = now() - opened;
		if (done == 0)
			before = at;
		if (!is_due && at >= fault - MARGIN && at < fault) {
			is_due = 1;
			fprintf(stderr, "fault is due\n");
		}
		if (at >= fault && at - before > gap) {
			gap = at - before;
			gap_began = before;
			in_flight_until = posted;
		}
		before = at;
		for (int i = 0; i < n; i++) {
			CHECK(wc[i].status == IBV_WC_SUCCESS);
			CHECK(wc[i].wr_id == done);
			/* Every second operation is a fetch-and-add. */
			if (!is_write(done) && *fetched(done) != done / 2)
				wrong++;
			if (++done == in_flight_until)
				last = at - gap_began;
		}
	}
	uint64_t added = (posted + 1) / 2, found[2];
	tell(fd, &posted, sizeof posted);
	hear(fd, found, sizeof found);
	printf("gap %f\nlast %f\n", gap * 1e6, last * 1e6);
	printf("lost %" PRIu64 "\ndoubled %" PRIu64 "\nwrong %" PRIu64 "\n", found[0] < added ? added - found[0] : 0,
	       found[0] > added ? found[0] - added : 0, wrong + found[1]);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4 || argc == 8);
	int is_client = argc == 8;
	window = strtoul(argv[2], NULL, 0);
	size = strtoul(argv[3], NULL, 0);
	CHECK(window > 0 && size > 0 && size % sizeof(uint64_t) == 0);
	struct ibv_device **list = ibv_get_device_list(NULL);
	double opened = now();
	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	struct end own = open_end(), peer;
	int fd = connect_tcp(argv[1], is_client ? argv[4] : NULL);
	tell(fd, &own, sizeof own);
	hear(fd, &peer, sizeof peer);
	connect_to(&own, &peer);
	char ready = 1;
	tell(fd, &ready, 1);
	hear(fd, &ready, 1);
	if (is_client)
		drive(fd, &peer, opened, atoi(argv[5]) * 1e-3, atoi(argv[6]) * 1e-3, !strcmp(argv[7], "events"));
	else
		serve(fd);
	return 0;
}
