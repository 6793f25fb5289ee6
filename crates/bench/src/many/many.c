/*
 * The program that `mitra bench many` measures. Connects pairs of queue pairs of one device, with one completion queue
 * for all. Prints the median time to create and connect a pair, the mean time of an empty poll, and the rate of WRITEs.
 *
 * Usage: many QPS SENDERS MILLISECONDS
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "failed: %s\n", #x);                                                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { WINDOW = 16, MESSAGE = 64 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[4096];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = WINDOW, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 },
			     .port_num = 1 },
	};
	CHECK(!ibv_modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void start(struct ibv_qp *qp)
{
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};
	CHECK(!ibv_modify_qp(qp, &rts,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void post(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = MESSAGE, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)memory + 2048, .rkey = mr->rkey },
	};
	struct ibv_send_wr *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int qps = atoi(argv[1]), senders = atoi(argv[2]);
	double block = atoi(argv[3]) * 1e-3;
	int pairs = qps / 2;
	CHECK(pairs > 0 && senders > 0 && senders <= pairs);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	CHECK(ctx && (pd = ibv_alloc_pd(ctx)));
	CHECK((cq = ibv_create_cq(ctx, senders * WINDOW, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK(!ibv_query_gid(ctx, 1, 1, &gid));

	struct ibv_qp **from = calloc(pairs, sizeof *from);
	double *took = calloc(pairs, sizeof *took);
	CHECK(from && took);
	for (int i = 0; i < pairs; i++) {
		double began = now();
		struct ibv_qp *a = create(), *b = create();
		connect_to(a, b);
		connect_to(b, a);
		start(a);
		start(b);
		took[i] = now() - began;
		from[i] = a;
	}
	qsort(took, pairs, sizeof *took, by_value);
	printf("connect %f\n", took[pairs / 2] * 1e6);

	struct ibv_wc wc[16];
	uint64_t count = 0;
	double began = now(), elapsed;
	do {
		for (int i = 0; i < 16; i++)
			CHECK(ibv_poll_cq(cq, 16, wc) == 0);
		count += 16;
	} while ((elapsed = now() - began) < block);
	printf("poll %f\n", elapsed / count * 1e6);

	for (int i = 0; i < senders * WINDOW; i++)
		post(from[i % senders], i % senders);
	count = 0;
	began = now();
	do {
		int n = ibv_poll_cq(cq, 16, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			CHECK(wc[i].status == IBV_WC_SUCCESS);
			post(from[wc[i].wr_id], wc[i].wr_id);
		}
		count += n;
	} while ((elapsed = now() - began) < block);
	printf("rate %f\n", count / elapsed * 1e-6);
	return 0;
}
