/* Calls with arbitrary arguments, as a program with errors makes them: numbers outside of every range, keys and addresses that nobody gave out, requests in
 * every state. Each call is refused or executed, the device stays usable, and every object can be destroyed at the end. The first argument is the first seed, the
 * second one the number of seeds.
 *
 * Pointers are those of live objects, and lists are as long as they say: a program that passes others is wrong in C already. Registered memory, and the address
 * of a scatter/gather entry, are numbers to the library, so these are arbitrary. */
#include "test_support.h"

enum { QPS = 6, CQS = 3, MRS = 4, SRQS = 2, AHS = 2, CALLS = 600, SGES = 40 };

static uint64_t state;

/* splitmix64 */
static uint64_t bits(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint64_t below(uint64_t n)
{
	return bits() % n;
}

static int one_in(int n)
{
	return below(n) == 0;
}

/* A number that is often near a limit. */
static uint64_t number(void)
{
	static const uint64_t edges[] = { 0, 1, 2, 7, 8, 15, 31, 63, 255, 4095, 4096, 65535, 0xffffff, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX };
	switch (below(3)) {
	case 0:
		return edges[below(sizeof(edges) / sizeof(*edges))];
	case 1:
		return below(20);
	default:
		return bits() >> below(64);
	}
}

static struct end end;
static struct ibv_qp *qps[QPS];
static struct ibv_cq *cqs[CQS];
static struct ibv_mr *mrs[MRS];
static struct ibv_srq *srqs[SRQS];
static struct ibv_ah *ahs[AHS];
/* The memory that the program registers, and a page behind the memory that no region contains. */
static char *memory, *guard;
enum { MEMORY = 16 * PAGE };

/* The numbers of completions with an error, and with success. */
static unsigned long statuses[2];

#define PICK(array) (array[below(sizeof(array) / sizeof(*array))])

/* A call that returns an errno value. */
static void returns_errno(int result)
{
	CHECK(result >= 0 && result < 200);
}

static uint32_t some_key(bool is_remote)
{
	struct ibv_mr *mr = PICK(mrs);
	return mr && !one_in(4) ? (is_remote ? mr->rkey : mr->lkey) : number();
}

static uint64_t some_address(void)
{
	return one_in(3) ? bits() >> below(64) : (uintptr_t)memory + below(MEMORY + 64);
}

static uint32_t some_length(void)
{
	return one_in(4) ? number() : below(3 * PAGE);
}

/* Fills a list, and returns the number of entries to pass, which may be negative or exceed the limit of every queue pair. */
static int some_list(struct ibv_sge *list)
{
	for (int i = 0; i < SGES; i++)
		list[i] = (struct ibv_sge){ some_address(), some_length(), some_key(false) };
	return one_in(8) ? -1 : one_in(4) ? (int)below(SGES + 1) : (int)below(4);
}

static void create_qp(void)
{
	struct ibv_qp **qp = &PICK(qps);
	if (*qp)
		return;
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = one_in(6) ? (enum ibv_qp_type)number() : one_in(3) ? IBV_QPT_UD : one_in(2) ? IBV_QPT_UC : IBV_QPT_RC;
	struct ibv_cq *send = PICK(cqs), *recv = PICK(cqs);
	init.send_cq = send ? send : end.cq, init.recv_cq = recv ? recv : end.cq;
	init.srq = one_in(3) ? PICK(srqs) : NULL;
	init.sq_sig_all = below(2);
	if (one_in(2))
		init.cap = (struct ibv_qp_cap){ number(), number(), number(), number(), number() };
	*qp = ibv_create_qp(end.pd, &init);
	CHECK(*qp || errno);
}

/* Takes a queue pair from RESET to RTS. */
static void connect_one(struct ibv_qp *one, struct ibv_qp *other)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	returns_errno(ibv_modify_qp(one, &reset, IBV_QP_STATE));
	for (int step = 0; step < 3; step++) {
		struct ibv_qp_attr attr = {
			.qp_state = (enum ibv_qp_state[]){ IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS }[step], .port_num = 1, .qp_access_flags = ALL,
			.path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 8, .retry_cnt = 1,
			.rnr_retry = 1, .max_rd_atomic = 1, .qkey = 1,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
		};
		static const int masks[3][3] = {
			[0] = { IBV_QP_ACCESS_FLAGS, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
				IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC },
			[1] = { IBV_QP_ACCESS_FLAGS, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, IBV_QP_SQ_PSN },
			[2] = { IBV_QP_QKEY, 0, IBV_QP_SQ_PSN },
		};
		int type = one->qp_type == IBV_QPT_RC ? 0 : one->qp_type == IBV_QPT_UC ? 1 : 2;
		int mask = IBV_QP_STATE | masks[type][step] | (step == 0 ? IBV_QP_PKEY_INDEX | IBV_QP_PORT : 0);
		returns_errno(ibv_modify_qp(one, &attr, mask));
	}
}

static void connect_some(void)
{
	struct ibv_qp *one = PICK(qps), *other = PICK(qps);
	if (!one || !other)
		return;
	connect_one(one, other);
	if (one != other && !one_in(8))
		connect_one(other, one);
}

static void modify_qp(void)
{
	struct ibv_qp *qp = PICK(qps);
	if (!qp)
		return;
	struct ibv_qp_attr attr;
	for (size_t i = 0; i < sizeof(attr); i++)
		((unsigned char *)&attr)[i] = one_in(3) ? bits() : 0;
	if (!one_in(4))
		attr.qp_state = below(8);
	returns_errno(ibv_modify_qp(qp, &attr, one_in(2) ? IBV_QP_STATE : (int)number()));
}

static void query_qp(void)
{
	struct ibv_qp *qp = PICK(qps);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (qp)
		returns_errno(ibv_query_qp(qp, &attr, number(), &init));
}

static void destroy_qp(void)
{
	struct ibv_qp **qp = &PICK(qps);
	if (*qp && ibv_destroy_qp(*qp) == 0)
		*qp = NULL;
}

static void post_send(void)
{
	struct ibv_qp *qp = PICK(qps);
	if (!qp)
		return;
	static struct ibv_sge lists[3][SGES];
	struct ibv_send_wr wrs[3], *bad = NULL;
	int count = 1 + below(3);
	for (int i = 0; i < count; i++) {
		memset(&wrs[i], 0, sizeof(wrs[i]));
		wrs[i].wr_id = bits();
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
		wrs[i].num_sge = some_list(lists[i]);
		wrs[i].sg_list = lists[i];
		wrs[i].opcode = one_in(8) ? (enum ibv_wr_opcode)number() : below(IBV_WR_TSO);
		wrs[i].send_flags = one_in(8) ? number() : below(16);
		bool is_valid = one_in(2) && mrs[0];
		if (is_valid) {
			lists[i][0] = (struct ibv_sge){ (uintptr_t)mrs[0]->addr, below(mrs[0]->length + 1), mrs[0]->lkey };
			wrs[i].num_sge = 1, wrs[i].opcode = (enum ibv_wr_opcode[]){ IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND }[below(3)];
			wrs[i].send_flags = IBV_SEND_SIGNALED;
		}
		wrs[i].imm_data = bits();
		if (wrs[i].send_flags & IBV_SEND_INLINE) {
			/* The library reads inline data in the call, so the data must be memory of the program. */
			for (int n = 0; n < SGES; n++) {
				lists[i][n].length = below(200);
				lists[i][n].addr = (uintptr_t)memory + below(MEMORY - 200);
			}
		}
		if (qp->qp_type == IBV_QPT_UD) {
			wrs[i].wr.ud.ah = PICK(ahs);
			wrs[i].wr.ud.remote_qpn = one_in(2) ? qp->qp_num : number();
			wrs[i].wr.ud.remote_qkey = one_in(2) ? 1 : number();
		} else if (wrs[i].opcode == IBV_WR_BIND_MW) {
			wrs[i].opcode = IBV_WR_SEND_WITH_INV;
			wrs[i].invalidate_rkey = some_key(true);
		} else {
			/* An atomic has its fields at the same offsets as WRITE and READ. */
			wrs[i].wr.atomic.remote_addr = one_in(2) ? (uintptr_t)memory + PAGE : some_address();
			wrs[i].wr.atomic.compare_add = bits();
			wrs[i].wr.atomic.swap = bits();
			wrs[i].wr.atomic.rkey = some_key(true);
			if (wrs[i].opcode != IBV_WR_ATOMIC_CMP_AND_SWP && wrs[i].opcode != IBV_WR_ATOMIC_FETCH_AND_ADD)
				wrs[i].wr.rdma.rkey = some_key(true);
			if (is_valid)
				wrs[i].wr.rdma.remote_addr = (uintptr_t)mrs[0]->addr, wrs[i].wr.rdma.rkey = mrs[0]->rkey;
		}
	}
	int result = ibv_post_send(qp, wrs, &bad);
	returns_errno(result);
	CHECK(result == 0 || (bad >= wrs && bad < wrs + count));
}

static void post_recv(void)
{
	struct ibv_qp *qp = PICK(qps);
	struct ibv_srq *srq = PICK(srqs);
	static struct ibv_sge lists[3][SGES];
	struct ibv_recv_wr wrs[3], *bad = NULL;
	int count = 1 + below(3);
	for (int i = 0; i < count; i++)
		wrs[i] = (struct ibv_recv_wr){ bits(), i + 1 < count ? &wrs[i + 1] : NULL, lists[i], some_list(lists[i]) };
	int result = 0;
	if (srq && one_in(2))
		result = ibv_post_srq_recv(srq, wrs, &bad);
	else if (qp)
		result = ibv_post_recv(qp, wrs, &bad);
	returns_errno(result);
	CHECK(result == 0 || (bad >= wrs && bad < wrs + count));
}

static void poll_some(struct ibv_cq *cq)
{
	struct ibv_wc wcs[8];
	int asked = below(9), n = ibv_poll_cq(cq, asked, wcs);
	CHECK(n <= asked);
	for (int i = 0; i < n; i++) {
		CHECK(ibv_wc_status_str(wcs[i].status));
		statuses[wcs[i].status == IBV_WC_SUCCESS]++;
	}
}

static void completion_queues(void)
{
	struct ibv_cq **cq = &PICK(cqs);
	if (!*cq && one_in(2)) {
		poll_some(end.cq);
		return;
	}
	if (!*cq) {
		*cq = ibv_create_cq(end.context, one_in(2) ? 8 : (int)number(), NULL, one_in(2) ? end.channel : NULL, one_in(2) ? 0 : (int)number());
		CHECK(*cq || errno);
		return;
	}
	switch (below(5)) {
	case 0:
		returns_errno(ibv_resize_cq(*cq, number()));
		break;
	case 1:
		returns_errno(ibv_req_notify_cq(*cq, number()));
		break;
	case 2:
		/* Refused while a queue pair uses the object. */
		if (ibv_destroy_cq(*cq) == 0)
			*cq = NULL;
		break;
	default:
		poll_some(*cq);
	}
}

static void regions(void)
{
	struct ibv_mr **mr = &PICK(mrs);
	if (!*mr) {
		size_t length = one_in(4) ? number() : below(MEMORY);
		*mr = ibv_reg_mr(end.pd, memory + below(PAGE), length, one_in(3) ? (int)number() : ALL);
		CHECK(*mr || errno);
	} else if (one_in(2)) {
		if (ibv_dereg_mr(*mr) == 0)
			*mr = NULL;
	} else {
		int failed = ibv_rereg_mr(*mr, number(), end.pd, memory, below(MEMORY), one_in(3) ? (int)number() : ALL);
		/* After these errors the program may only deregister the region: ibv_rereg_mr(3). */
		if (failed == IBV_REREG_MR_ERR_CMD || failed == IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW) {
			CHECK(ibv_dereg_mr(*mr) == 0);
			*mr = NULL;
		}
	}
}

static void shared_receives(void)
{
	struct ibv_srq **srq = &PICK(srqs);
	if (!*srq) {
		struct ibv_srq_init_attr init = { .attr = { one_in(2) ? 8 : number(), one_in(2) ? 1 : number(), number() } };
		*srq = ibv_create_srq(end.pd, &init);
		CHECK(*srq || errno);
	} else if (one_in(2)) {
		struct ibv_srq_attr attr = { number(), number(), number() };
		returns_errno(ibv_modify_srq(*srq, &attr, number()));
	} else if (ibv_destroy_srq(*srq) == 0) {
		*srq = NULL;
	}
}

static void address_handles(void)
{
	struct ibv_ah **ah = &PICK(ahs);
	if (*ah) {
		/* A posted request may use the memory until the end of the program. */
		return;
	}
	struct ibv_ah_attr attr = { .is_global = one_in(8) ? number() : 1, .port_num = one_in(8) ? number() : 1, .grh = { .dgid = end.gid, .hop_limit = 1 } };
	if (one_in(3))
		attr.grh.sgid_index = number(), attr.grh.flow_label = number(), attr.sl = number(), attr.grh.traffic_class = number();
	if (one_in(3))
		attr.grh.dgid.global.interface_id = bits();
	*ah = ibv_create_ah(end.pd, &attr);
	CHECK(*ah || errno);
}

static void queries(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey;
	int result = ibv_query_port(end.context, number(), &port);
	returns_errno(result);
	result = ibv_query_gid(end.context, number(), number(), &gid);
	CHECK(result == 0 || result == -1);
	result = ibv_query_pkey(end.context, number(), number(), &pkey);
	CHECK(result == 0 || result == -1);
	CHECK(ibv_wc_status_str(number()));
}

/* A fresh pair of queue pairs of the same device transfers data. */
static void check_usable(void)
{
	struct ibv_qp *one = make_qp(&end), *other = make_qp(&end);
	ready(one), ready(other);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
	memset(end.memory, 0x5a, 8);
	memset(end.memory + PAGE, 0, 8);
	/* Requests of other queue pairs may complete here, too. */
	CHECK(post_write(one, &end, 0x600d, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	struct ibv_wc wc;
	do
		wc = next(end.cq);
	while (wc.qp_num != one->qp_num);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 0x600d && memcmp(end.memory + PAGE, end.memory, 8) == 0);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}

#define DESTROY_ALL(array, destroy) \
	for (size_t i = 0; i < sizeof(array) / sizeof(*array); i++) { \
		CHECK(!array[i] || destroy(array[i]) == 0); \
		array[i] = NULL; \
	}

static void run_seed(uint64_t seed)
{
	static void (*const calls[])(void) = {
		create_qp, connect_some, connect_some, modify_qp, query_qp, destroy_qp, post_send, post_send, post_send, post_send, post_recv, post_recv,
		completion_queues, completion_queues, completion_queues, regions, regions, shared_receives, address_handles, queries,
	};
	state = seed;
	for (int i = 0; i < CALLS; i++)
		PICK(calls)();
	/* Outstanding requests get time to complete. */
	for (int i = 0; i < 200; i++) {
		poll_some(end.cq);
		for (int n = 0; n < CQS; n++)
			if (cqs[n])
				poll_some(cqs[n]);
	}
	/* Completions of other queue pairs must not overflow the queue of the check. */
	DESTROY_ALL(qps, ibv_destroy_qp);
	struct ibv_wc wc;
	while (ibv_poll_cq(end.cq, 1, &wc) > 0)
		;
	DESTROY_ALL(srqs, ibv_destroy_srq);
	DESTROY_ALL(cqs, ibv_destroy_cq);
	DESTROY_ALL(mrs, ibv_dereg_mr);
	DESTROY_ALL(ahs, ibv_destroy_ah);
	for (int i = 0; i < PAGE; i++)
		CHECK(guard[i] == 0x77);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	uint64_t first = strtoull(argv[1], NULL, 10), seeds = strtoull(argv[2], NULL, 10);
	alarm(60);
	end = open_end();
	memory = mmap(NULL, MEMORY + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	guard = memory + MEMORY + PAGE;
	/* A region that reached the guard page would contain this page. */
	CHECK(mprotect(memory + MEMORY, PAGE, PROT_NONE) == 0);
	for (uint64_t seed = first; seed < first + seeds; seed++) {
		/* The line of a failed check follows the seed. */
		fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
		memset(guard, 0x77, PAGE);
		run_seed(seed);
	}
	/* Some calls succeed. */
	CHECK(statuses[0] && statuses[1]);
	check_usable();
	CHECK(ibv_dereg_mr(end.mr) == 0 && ibv_destroy_cq(end.cq) == 0 && ibv_destroy_comp_channel(end.channel) == 0);
	CHECK(ibv_dealloc_pd(end.pd) == 0 && ibv_close_device(end.context) == 0);
	return 0;
}
