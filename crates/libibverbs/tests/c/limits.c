/* The limits that the device reports, and those of a queue pair: a request at the limit is accepted, and one above it is refused. */
#include "rail_faults.h"
#include "test_support.h"

static struct end end;
static struct ibv_device_attr device;

static bool has_queue_pair(struct ibv_qp_init_attr init)
{
	errno = 0;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	CHECK(qp || errno == EINVAL);
	return qp && ibv_destroy_qp(qp) == 0;
}

static bool has_srq(uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };
	errno = 0;
	struct ibv_srq *srq = ibv_create_srq(end.pd, &init);
	CHECK(srq || errno == EINVAL);
	return srq && ibv_destroy_srq(srq) == 0;
}

static void capacities(void)
{
	enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr plain = plain_init(&end), init;
		plain.qp_type = types[i];
#define LIMITED(field, limit) \
		init = plain, init.cap.field = (limit); \
		CHECK(has_queue_pair(init)); \
		init.cap.field++; \
		CHECK(!has_queue_pair(init))
		LIMITED(max_send_wr, device.max_qp_wr);
		LIMITED(max_recv_wr, device.max_qp_wr);
		LIMITED(max_send_sge, device.max_sge);
		LIMITED(max_recv_sge, device.max_sge);
	}
	CHECK(has_srq(device.max_srq_wr, device.max_srq_sge));
	CHECK(!has_srq(device.max_srq_wr + 1, 1) && !has_srq(UINT32_MAX, 1));
	CHECK(!has_srq(1, device.max_srq_sge + 1) && !has_srq(1, UINT32_MAX));
	struct ibv_cq *cq;
	CHECK(cq = ibv_create_cq(end.context, device.max_cqe, NULL, NULL, 0));
	CHECK(ibv_destroy_cq(cq) == 0);
	REFUSED(EINVAL, ibv_create_cq(end.context, device.max_cqe + 1, NULL, NULL, 0));
}

/* The capacities that a queue pair and a shared receive queue were created with, and the limits of attributes. */
static void requests(void)
{
	struct ibv_qp *one = make_qp(&end), *other = make_qp(&end);
	ready(one), ready(other);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp_num, .max_dest_rd_atomic = device.max_qp_rd_atom + 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
	};
	CHECK(ibv_modify_qp(one, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	rtr.max_dest_rd_atomic = device.max_qp_rd_atom;
	CHECK(ibv_modify_qp(one, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	connect_to(other, connection_data_of(&end, one));
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = device.max_qp_init_rd_atom + 1 };
	const int mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(one, &rts, mask) == EINVAL);
	rts.max_rd_atomic = device.max_qp_init_rd_atom;
	CHECK(ibv_modify_qp(one, &rts, mask) == 0);

	struct ibv_sge list[3] = { { (uintptr_t)end.memory, 8, end.mr->lkey } };
	list[1] = list[2] = list[0];
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = list, .num_sge = 3 }, *bad_recv;
	CHECK(ibv_post_recv(other, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	recv.num_sge = 2;
	for (int i = 0; i < DEPTH; i++)
		CHECK(ibv_post_recv(other, &recv, &bad_recv) == 0);
	CHECK(ibv_post_recv(other, &recv, &bad_recv) == ENOMEM);
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = list, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	CHECK(ibv_post_send(one, &send, &bad_send) == EINVAL && bad_send == &send);
	list[0].length = 65, send.num_sge = 1, send.send_flags |= IBV_SEND_INLINE;
	CHECK(ibv_post_send(one, &send, &bad_send) == EINVAL);
	list[0].length = 8, send.num_sge = 2;
	CHECK(ibv_post_send(one, &send, &bad_send) == 0);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);

	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 2 } };
	struct ibv_srq *srq;
	CHECK(srq = ibv_create_srq(end.pd, &init));
	recv.num_sge = 3;
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	recv.num_sge = 2;
	for (int i = 0; i < 4; i++)
		CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) != 0 && bad_recv == &recv);
	struct ibv_srq_attr limit = { .srq_limit = 5 };
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* The number of objects. A destroyed object makes room for another. */
static void objects(void)
{
	enum { MOST = 1 << 16 };
	static void *made[MOST];
	CHECK(device.max_pd < MOST && device.max_srq < MOST);
	for (int round = 0; round < 3; round++) {
		/* The program has one protection domain already. */
		for (int i = 1; i < device.max_pd; i++)
			CHECK(made[i] = ibv_alloc_pd(end.context));
		REFUSED(EINVAL, ibv_alloc_pd(end.context));
		for (int i = 1; i < device.max_pd; i++)
			CHECK(ibv_dealloc_pd(made[i]) == 0);
		struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
		for (int i = 0; i < device.max_srq; i++)
			CHECK(made[i] = ibv_create_srq(end.pd, &init));
		REFUSED(EINVAL, ibv_create_srq(end.pd, &init));
		for (int i = 0; i < device.max_srq; i++)
			CHECK(ibv_destroy_srq(made[i]) == 0);
		/* The program has one completion queue already. */
		CHECK(device.max_qp + device.max_cq < MOST + 1);
		void **queues = made + device.max_qp;
		for (int i = 0; i < device.max_qp; i++)
			made[i] = make_qp(&end);
		for (int i = 1; i < device.max_cq; i++)
			CHECK(queues[i - 1] = ibv_create_cq(end.context, 1, NULL, NULL, 0));
		for (int i = 0; i < device.max_qp; i++)
			CHECK(ibv_destroy_qp(made[i]) == 0);
		for (int i = 1; i < device.max_cq; i++)
			CHECK(ibv_destroy_cq(queues[i - 1]) == 0);
	}
	/* A protection domain makes room together with its queue pairs. */
	for (int round = 0; round < 3; round++) {
		struct end other = end;
		for (int i = 1; i < device.max_pd; i++) {
			CHECK(other.pd = made[i] = ibv_alloc_pd(end.context));
			CHECK(ibv_destroy_qp(make_qp(&other)) == 0 && ibv_dealloc_pd(made[i]) == 0);
		}
	}
}

static void *new_pd(void) { return ibv_alloc_pd(end.context); }
static int free_pd(void *pd) { return ibv_dealloc_pd(pd); }
static void *new_mr(void) { return ibv_reg_mr(end.pd, end.memory, PAGE, ALL); }
static int free_mr(void *mr) { return ibv_dereg_mr(mr); }
static void *new_mw(void) { return ibv_alloc_mw(end.pd, IBV_MW_TYPE_2); }
static int free_mw(void *mw) { return ibv_dealloc_mw(mw); }
static void *new_cq(void) { return ibv_create_cq(end.context, 1, NULL, NULL, 0); }
static int free_cq(void *cq) { return ibv_destroy_cq(cq); }
static void *new_qp(void) { return make_qp(&end); }
static int free_qp(void *qp) { return ibv_destroy_qp(qp); }
static int free_srq(void *srq) { return ibv_destroy_srq(srq); }
static int free_ah(void *ah) { return ibv_destroy_ah(ah); }

static void *new_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
	return ibv_create_srq(end.pd, &init);
}

static void *new_ah(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } };
	return ibv_create_ah(end.pd, &attr);
}

/* A program has as many objects of all kinds as the device reports, at the same time. */
static void reported_numbers(void)
{
	/* The program has one protection domain, memory region and completion queue already. */
	struct kind {
		void *(*make)(void);
		int (*destroy)(void *);
		int count;
		void **made;
	} kinds[] = {
		{ new_pd, free_pd, device.max_pd - 1, NULL }, { new_mr, free_mr, device.max_mr - 1, NULL }, { new_mw, free_mw, device.max_mw, NULL },
		{ new_cq, free_cq, device.max_cq - 1, NULL }, { new_srq, free_srq, device.max_srq, NULL }, { new_qp, free_qp, device.max_qp, NULL },
		{ new_ah, free_ah, device.max_ah, NULL },
	};
	enum { KINDS = sizeof kinds / sizeof kinds[0] };
	for (int k = 0; k < KINDS; k++)
		CHECK(kinds[k].count > 0 && (kinds[k].made = calloc(kinds[k].count, sizeof(void *))));
	for (int k = 0; k < KINDS; k++) {
		for (int i = 0; i < kinds[k].count; i++)
			CHECK(kinds[k].made[i] = kinds[k].make());
	}
	for (int k = KINDS - 1; k >= 0; k--) {
		for (int i = 0; i < kinds[k].count; i++)
			CHECK(kinds[k].destroy(kinds[k].made[i]) == 0);
	}
}

static int modify(struct ibv_srq *srq, uint32_t max_wr, uint32_t limit, int mask)
{
	struct ibv_srq_attr attr = { .max_wr = max_wr, .srq_limit = limit };
	return ibv_modify_srq(srq, &attr, mask);
}

static void has_size(struct ibv_srq *srq, uint32_t max_wr, uint32_t limit)
{
	struct ibv_srq_attr attr;
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == max_wr && attr.srq_limit == limit);
}

/* Posts the receives from `first` on until the queue is full, and returns their number. */
static int fill(struct ibv_srq *srq, uint64_t first)
{
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 8, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = first, .sg_list = &sge, .num_sge = 1 }, *bad;
	while (ibv_post_srq_recv(srq, &wr, &bad) == 0)
		wr.wr_id++;
	return wr.wr_id - first;
}

/* A shared receive queue grows and shrinks, and keeps its receives. */
static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &init);
	CHECK(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	CHECK(srq && fill(srq, 0) == 4);
	CHECK(modify(srq, 0, 0, IBV_SRQ_MAX_WR) == EINVAL && modify(srq, 3, 0, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(modify(srq, device.max_srq_wr + 1, 0, IBV_SRQ_MAX_WR) == EINVAL && modify(srq, UINT32_MAX, 0, IBV_SRQ_MAX_WR) == EINVAL);
	has_size(srq, 4, 0);
	CHECK(modify(srq, device.max_srq_wr, 0, IBV_SRQ_MAX_WR) == 0 && modify(srq, 6, 0, IBV_SRQ_MAX_WR) == 0);
	has_size(srq, 6, 0);
	CHECK(fill(srq, 4) == 2);
	/* The size is at least the limit. A call that sets both needs a limit within the earlier and the new size. */
	CHECK(modify(srq, 0, 7, IBV_SRQ_LIMIT) == EINVAL && modify(srq, 8, 7, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
	has_size(srq, 6, 0);
	CHECK(modify(srq, 8, 5, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == 0);
	has_size(srq, 8, 5);
	CHECK(fill(srq, 6) == 2 && modify(srq, 8, 0, IBV_SRQ_MAX_WR) == 0);

	struct ibv_qp_init_attr qp_init = plain_init(&end);
	qp_init.srq = srq;
	struct ibv_qp *one = make_qp(&end), *other = ibv_create_qp(end.pd, &qp_init);
	CHECK(other);
	ready(one), ready(other);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1000, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int received = 0;
	for (int i = 0; i < 4; i++) {
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)received++);
	}
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0 && event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
	ibv_ack_async_event(&event);
	/* The event has disarmed the queue. */
	CHECK(modify(srq, 3, 0, IBV_SRQ_MAX_WR) == EINVAL && modify(srq, 4, 0, IBV_SRQ_MAX_WR) == 0);
	CHECK(fill(srq, 8) == 0 && modify(srq, 5, 0, IBV_SRQ_MAX_WR) == 0 && fill(srq, 8) == 1);
	for (int i = 0; i < 5; i++) {
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)received++);
	}
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK(modify(srq, 4, 0, IBV_SRQ_MAX_WR) == ENOENT);
}

/* A completion that finds its queue full is lost: the queue has an error, and its queue pairs fail. */
static void completions(void)
{
	enum { ENTRIES = 4 };
	struct ibv_cq *small;
	struct ibv_wc wc;
	CHECK(small = ibv_create_cq(end.context, ENTRIES, NULL, NULL, 0));
	struct ibv_qp_init_attr init = plain_init(&end);
	init.send_cq = small;
	struct ibv_qp *one, *other = make_qp(&end);
	CHECK(one = ibv_create_qp(end.pd, &init));
	ready(one), ready(other);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
	/* A larger queue has room for more completions. A queue that was made smaller again has no room. */
	CHECK(ibv_resize_cq(small, DEPTH) == 0);
	for (int i = 0; i < DEPTH; i++)
		CHECK(post_write(one, &end, i, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	usleep(100000);
	for (int i = 0; i < DEPTH; i++)
		CHECK(next(small).status == IBV_WC_SUCCESS);
	CHECK(ibv_resize_cq(small, ENTRIES) == 0);
	for (int i = 0; i < ENTRIES + 1; i++)
		CHECK(post_write(one, &end, i, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small);
	ibv_ack_async_event(&event);
	while (state_of(one) != IBV_QPS_ERR)
		usleep(1000);
	for (int i = 0; i < ENTRIES; i++)
		CHECK(ibv_poll_cq(small, 1, &wc) == 1 && wc.wr_id == (uint64_t)i && wc.status == IBV_WC_SUCCESS);
	CHECK(is_empty(small));
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_cq(small) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "capacities", capacities }, { "requests", requests }, { "objects", objects }, { "reported_numbers", reported_numbers }, { "completions", completions },
		{ "shared_receive_queues", shared_receive_queues },
	};
	CHECK(argc == 2);
	alarm(60);
	end = open_end();
	CHECK(ibv_query_device(end.context, &device) == 0);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
