/* Shared code of the C test programs: an endpoint with a connection, and checks that report where they failed. */
#pragma once
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(holds) \
	do { \
		if (!(holds)) { \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #holds, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)
/* Checks that a call returns NULL and sets this errno. */
#define REFUSED(number, call) \
	do { \
		errno = 0; \
		CHECK((call) == NULL); \
		CHECK(errno == (number)); \
	} while (0)

/* Checks that a call returns this errno value and also sets errno to it, as system calls do. */
#define FAILS(number, call) \
	do { \
		errno = 0; \
		CHECK((call) == (number)); \
		CHECK(errno == (number)); \
	} while (0)

enum { PAGE = 4096, DEPTH = 16, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* The time in seconds, from any origin. */
static inline double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory;
	union ibv_gid gid;
};

/* The connection data that one endpoint sends to the other. */
struct connection_data {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static inline struct end open_end(void)
{
	struct end end;
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n == 1 && list[0] && !list[1]);
	CHECK(end.context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(end.pd = ibv_alloc_pd(end.context));
	CHECK(end.channel = ibv_create_comp_channel(end.context));
	CHECK(end.cq = ibv_create_cq(end.context, 4 * DEPTH, end.pd, end.channel, 0));
	end.memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(end.memory != MAP_FAILED);
	CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL));
	CHECK(ibv_query_gid(end.context, 1, 0, &end.gid) == 0);
	return end;
}

static struct ibv_qp_init_attr plain_init(struct end *end)
{
	return (struct ibv_qp_init_attr){
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
	};
}

static inline struct ibv_qp *make_qp(struct end *end)
{
	struct ibv_qp_init_attr init = plain_init(end);
	struct ibv_qp *qp;
	CHECK(qp = ibv_create_qp(end->pd, &init));
	return qp;
}

static inline struct connection_data connection_data_of(struct end *end, struct ibv_qp *qp)
{
	return (struct connection_data){ end->gid, qp->qp_num, end->mr->rkey, (uintptr_t)end->memory };
}

/* Returns the GID of a multicast group that no other test process uses. */
static inline union ibv_gid mcast_gid(int n)
{
	static pid_t own;
	if (!own)
		own = getpid();
	return (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 239, own >> 8, own, n } };
}

static inline void ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
	CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static void connect_with(struct ibv_qp *qp, struct connection_data peer, int rnr_retry)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static inline void connect_to(struct ibv_qp *qp, struct connection_data peer)
{
	connect_with(qp, peer, 7);
}

static inline struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc;
}

static inline bool is_empty(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++) {
		if (ibv_poll_cq(cq, 1, &wc) != 0)
			return false;
	}
	return true;
}

/* Posts a signalled WRITE of 8 bytes from the endpoint's memory to a remote address. */
static inline int post_write(struct ibv_qp *qp, struct end *end, uint64_t wr_id, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)end->memory, 8, end->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { addr, rkey },
	}, *bad;
	return ibv_post_send(qp, &wr, &bad);
}

/* A scenario of a test program, which the program's argument selects. */
struct scenario {
	const char *name;
	void (*run)(void);
};

/* Runs the scenario of this name. */
static inline void run_scenario(const struct scenario *scenarios, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(name, scenarios[i].name) == 0) {
			scenarios[i].run();
			return;
		}
	}
	CHECK(!"a known scenario");
}
