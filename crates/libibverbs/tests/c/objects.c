/* The objects of the verbs: their handles, their destruction, domains and queues. One process. */
#include "connected_pair.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

/* The attributes of the device, queried at the start. */
static struct ibv_device_attr attributes;

/* Every kind of object with a handle. */
struct objects {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_mw *mw;
};

static struct objects make_objects(void)
{
	struct objects o = { .pd = ibv_alloc_pd(end.context), .cq = ibv_create_cq(end.context, 4, NULL, NULL, 0) };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.dgid = end.gid };
	struct ibv_qp_init_attr init = plain_init(&end);
	CHECK(o.pd && o.cq && (o.srq = ibv_create_srq(o.pd, &shared)));
	init.send_cq = init.recv_cq = o.cq;
	init.srq = o.srq;
	CHECK(o.qp = ibv_create_qp(o.pd, &init));
	CHECK(o.mr = ibv_reg_mr(o.pd, end.memory, PAGE, ALL));
	CHECK(o.ah = ibv_create_ah(o.pd, &attr));
	CHECK(o.mw = ibv_alloc_mw(o.pd, IBV_MW_TYPE_2));
	return o;
}

static void destroy_objects(struct objects o)
{
	CHECK(ibv_dealloc_mw(o.mw) == 0);
	CHECK(ibv_destroy_ah(o.ah) == 0 && ibv_dereg_mr(o.mr) == 0 && ibv_destroy_qp(o.qp) == 0);
	CHECK(ibv_destroy_srq(o.srq) == 0 && ibv_destroy_cq(o.cq) == 0 && ibv_dealloc_pd(o.pd) == 0);
}

/* A call does not find an object whose handle the program has changed, until the program restores the handle. */
static void foreign_handles(void)
{
	struct objects o = make_objects();
	struct ibv_srq_attr srq_attr = { 0 };
	struct ibv_qp_attr qp_attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_init_attr init = plain_init(&end);
	struct ibv_cq *cq;
#define FOREIGN(object, ...) \
	do { \
		object->handle ^= 0x5a5a5a; \
		__VA_ARGS__; \
		object->handle ^= 0x5a5a5a; \
	} while (0)
	FOREIGN(o.pd, FAILS(ENOENT, ibv_dealloc_pd(o.pd)); REFUSED(ENOENT, ibv_reg_mr(o.pd, end.memory, PAGE, ALL));
		REFUSED(ENOENT, ibv_create_qp(o.pd, &init)));
	FOREIGN(o.cq, FAILS(ENOENT, ibv_destroy_cq(o.cq)); FAILS(ENOENT, ibv_resize_cq(o.cq, 2)); init.send_cq = init.recv_cq = o.cq;
		REFUSED(ENOENT, ibv_create_qp(o.pd, &init)));
	FOREIGN(o.srq, FAILS(ENOENT, ibv_destroy_srq(o.srq)); FAILS(ENOENT, ibv_query_srq(o.srq, &srq_attr));
		FAILS(ENOENT, ibv_modify_srq(o.srq, &srq_attr, IBV_SRQ_LIMIT)));
	FOREIGN(o.qp, FAILS(ENOENT, ibv_destroy_qp(o.qp)); FAILS(ENOENT, ibv_modify_qp(o.qp, &qp_attr, IBV_QP_STATE));
		FAILS(ENOENT, ibv_query_qp(o.qp, &qp_attr, IBV_QP_STATE, &init)));
	FOREIGN(o.mr, FAILS(ENOENT, ibv_dereg_mr(o.mr)));
	FOREIGN(o.ah, FAILS(ENOENT, ibv_destroy_ah(o.ah)));
	FOREIGN(o.mw, FAILS(ENOENT, ibv_dealloc_mw(o.mw)));
	CHECK(cq = ibv_create_cq(end.context, 1, NULL, NULL, 0));
	CHECK(ibv_destroy_cq(cq) == 0);
	destroy_objects(o);
}

/* A second destruction fails, and no other object is destroyed in its place. */
static void destroyed_twice(void)
{
	for (int i = 0; i < 100; i++) {
		struct objects gone = make_objects();
		destroy_objects(gone);
		struct objects other = make_objects();
		FAILS(ENOENT, ibv_dealloc_mw(gone.mw));
		FAILS(ENOENT, ibv_destroy_ah(gone.ah));
		FAILS(ENOENT, ibv_dereg_mr(gone.mr));
		FAILS(ENOENT, ibv_destroy_qp(gone.qp));
		FAILS(ENOENT, ibv_destroy_srq(gone.srq));
		FAILS(ENOENT, ibv_destroy_cq(gone.cq));
		FAILS(ENOENT, ibv_dealloc_pd(gone.pd));
		struct ibv_wc wc;
		struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_poll_cq(gone.cq, 1, &wc) < 0 && ibv_req_notify_cq(gone.cq, 0) == ENOENT);
		FAILS(ENOENT, post_write(gone.qp, &end, 1, 0, 0));
		FAILS(ENOENT, ibv_post_srq_recv(gone.srq, &recv, &bad));
		CHECK(bad == &recv);
		destroy_objects(other);
	}
	struct ibv_comp_channel *channel;
	CHECK((channel = ibv_create_comp_channel(end.context)) && ibv_destroy_comp_channel(channel) == 0);
	FAILS(ENOENT, ibv_destroy_comp_channel(channel));
}

/* Queries fail with this errno value if the device context was closed or belongs to the parent process. In the latter case the attributes of
 * the device, which never change, can be queried. */
static void queries_fail(struct ibv_context *context, int number)
{
	struct ibv_device_attr device;
	struct ibv_device_attr_ex device_ex;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_gid_entry entries[2];
	if (number == EIO) {
		CHECK(ibv_query_device(context, &device) == 0 && ibv_query_device_ex(context, NULL, &device_ex) == 0);
		CHECK(memcmp(&device, &device_ex.orig_attr, sizeof device) == 0 && device_ex.max_dm_size > 0);
		CHECK(memcmp(&device, &attributes, sizeof device) == 0);
	} else {
		FAILS(number, ibv_query_device(context, &device));
		FAILS(number, ibv_query_device_ex(context, NULL, &device_ex));
	}
	FAILS(number, ibv_query_port(context, 1, &port));
	errno = 0;
	CHECK(ibv_query_gid(context, 1, 0, &gid) == -1 && errno == number);
	FAILS(number, ibv_query_gid_ex(context, 1, 0, entries, 0));
	errno = 0;
	CHECK(ibv_query_gid_table(context, entries, 2, 0) == -number && errno == number);
}

/* Calls with a closed context fail. Another context of the same process stays usable. */
static void closed_context(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_device_attr device;
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(ibv_close_device(context) == 0);
	queries_fail(context, ENOENT);
	REFUSED(ENOENT, ibv_alloc_pd(context));
	REFUSED(ENOENT, ibv_create_cq(context, 1, NULL, NULL, 0));
	REFUSED(ENOENT, ibv_create_comp_channel(context));
	errno = 0;
	CHECK(ibv_close_device(context) == -1 && errno == ENOENT);
	CHECK(ibv_query_device(end.context, &device) == 0);
}

enum { DESTROYERS = 2, BATCHES = 400, BATCH = 500, QPS = 4 };
static pthread_barrier_t destroyers;
static struct destroyed {
	struct ibv_td *td;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_qp *qp; /* NULL without a queue pair */
} shared[BATCH];
static int ended[4];

static void count_end(int *successes, int result)
{
	CHECK(result == 0 || result == ENOENT || result == EBUSY);
	if (result == 0)
		__atomic_fetch_add(successes, 1, __ATOMIC_RELAXED);
}

static void *destroy_shared(void *unused)
{
	for (int batch = 0; batch < BATCHES; batch++) {
		pthread_barrier_wait(&destroyers);
		/* The second thread at an object fails quickly, and catches up with the first thread. */
		for (struct destroyed *each = shared; each < shared + BATCH; each++) {
			count_end(&ended[0], ibv_dealloc_td(each->td));
			count_end(&ended[1], ibv_dealloc_pd(each->pd));
			if (each->channel)
				count_end(&ended[2], ibv_destroy_comp_channel(each->channel));
			if (each->qp)
				count_end(&ended[3], ibv_destroy_qp(each->qp));
		}
		pthread_barrier_wait(&destroyers);
	}
	return unused;
}

/* Two threads destroy the same objects at the same time. One call succeeds, and the other fails. */
static void destroyed_by_threads(void)
{
	pthread_t threads[DESTROYERS];
	struct ibv_td_init_attr plain = { 0 };
	CHECK(pthread_barrier_init(&destroyers, NULL, DESTROYERS + 1) == 0);
	for (int i = 0; i < DESTROYERS; i++)
		CHECK(pthread_create(&threads[i], NULL, destroy_shared, NULL) == 0);
	for (int batch = 0; batch < BATCHES; batch++) {
		for (int i = 0; i < BATCH; i++) {
			CHECK(shared[i].td = ibv_alloc_td(end.context, &plain));
			CHECK(shared[i].pd = ibv_alloc_pd(end.context));
			CHECK(i >= QPS || (shared[i].channel = ibv_create_comp_channel(end.context)));
			CHECK(i >= QPS || (shared[i].qp = make_qp(&end)));
		}
		pthread_barrier_wait(&destroyers);
		pthread_barrier_wait(&destroyers);
	}
	for (int i = 0; i < DESTROYERS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(ended[0] == BATCHES * BATCH && ended[1] == BATCHES * BATCH && ended[2] == BATCHES * QPS && ended[3] == BATCHES * QPS);
}

/* A queue pair whose number the program has overwritten is destroyed, also on the device. */
static void overwritten_number(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(end.context, &domain);
	CHECK(xrcd);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *qp = ibv_create_qp_ex(end.context, &init);
	CHECK(qp);
	qp->qp_num ^= 1;
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_close_xrcd(xrcd) == 0);
}

static void busy(void)
{
	struct objects o = make_objects();
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	CHECK(channel = ibv_create_comp_channel(end.context));
	CHECK(cq = ibv_create_cq(end.context, 4, NULL, channel, 0));
	FAILS(EBUSY, ibv_dealloc_pd(o.pd));
	FAILS(EBUSY, ibv_destroy_cq(o.cq));
	FAILS(EBUSY, ibv_destroy_srq(o.srq));
	FAILS(EBUSY, ibv_destroy_comp_channel(channel));
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	destroy_objects(o);
}

/* Posts a WRITE, and does not poll its completion. */
static void write_and_leave(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_req_notify_cq(end.cq, 0) == 0);
	CHECK(post_write(qp, &end, wr_id, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0 && cq == end.cq);
	ibv_ack_cq_events(cq, 1);
}

/* A completion queue is in use until its last queue pair is destroyed, and keeps the completions of the remaining queue pairs. The completions of
 * a destroyed queue pair stay, as on soft-RoCE. */
static void shared_by_queue_pairs(void)
{
	struct ibv_qp *first = make_qp(&end), *second = make_qp(&end);
	uint32_t destroyed = second->qp_num;
	ready(first), ready(second);
	connect_to(first, connection_data_of(&end, second)), connect_to(second, connection_data_of(&end, first));
	for (uint64_t i = 0; i < 4; i++)
		write_and_leave(first, i), write_and_leave(second, i);
	CHECK(ibv_destroy_qp(second) == 0);
	uint64_t polled = 0, of_destroyed = 4;
	for (uint64_t left = 4 + of_destroyed; left > 0; left--) {
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.qp_num == destroyed)
			CHECK(of_destroyed-- > 0);
		else
			CHECK(wc.wr_id == polled++);
	}
	CHECK(polled == 4 && is_empty(end.cq));
	FAILS(EBUSY, ibv_destroy_cq(end.cq));
	CHECK(ibv_destroy_qp(first) == 0 && ibv_destroy_cq(end.cq) == 0);
}

/* The objects of the parent cannot be used in a forked child, and the child cannot change them. */
static void inherited(void)
{
	struct objects o = make_objects();
	struct ibv_qp *one = make_qp(&end), *other = make_qp(&end);
	ready(one), ready(other);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
	CHECK(post_write(one, &end, 1, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(60);
		struct ibv_wc wc;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		struct ibv_srq_attr srq = { 0 };
		struct ibv_qp_init_attr init = plain_init(&end);
		struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_poll_cq(end.cq, 1, &wc) < 0 && ibv_req_notify_cq(end.cq, 0) == EIO);
		CHECK(post_write(one, &end, 2, (uintptr_t)end.memory + PAGE, end.mr->rkey) == EIO);
		CHECK(ibv_post_recv(one, &recv, &bad) == EIO && ibv_post_srq_recv(o.srq, &recv, &bad) == EIO);
		FAILS(EIO, ibv_modify_qp(one, &attr, IBV_QP_STATE));
		FAILS(EIO, ibv_query_qp(one, &attr, IBV_QP_STATE, &init));
		FAILS(EIO, ibv_query_srq(o.srq, &srq));
		REFUSED(EIO, ibv_reg_mr(end.pd, end.memory, PAGE, ALL));
		REFUSED(EIO, ibv_alloc_pd(end.context));
		REFUSED(EIO, ibv_create_cq(end.context, 1, NULL, NULL, 0));
		REFUSED(EIO, ibv_create_qp(end.pd, &init));
		REFUSED(EIO, ibv_create_comp_channel(end.context));
		struct ibv_async_event event;
		CHECK(ibv_get_async_event(end.context, &event) == -1 && errno == EIO);
		queries_fail(end.context, EIO);
		/* Cleaning up succeeds, and has no effect in the parent. */
		destroy_objects(o);
		CHECK(ibv_destroy_qp(one) == 0);
		FAILS(ENOENT, ibv_destroy_qp(one));
		struct end own = open_end();
		CHECK(memcmp(&own.gid, &end.gid, sizeof own.gid) != 0 && ibv_dereg_mr(own.mr) == 0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(post_write(one, &end, 3, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0 && next(end.cq).wr_id == 3);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	destroy_objects(o);
}

static void *allocate(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t resource)
{
	(void)pd, (void)context, (void)size, (void)alignment, (void)resource;
	return IBV_ALLOCATOR_USE_DEFAULT;
}

static void release(struct ibv_pd *pd, void *context, void *memory, uint64_t resource)
{
	(void)pd, (void)context, (void)memory, (void)resource;
}

/* A parent domain takes the place of its protection domain, and keeps its parts in use. */
static void domains(void)
{
	struct ibv_td_init_attr plain = { 0 }, unknown = { .comp_mask = 1 };
	struct ibv_td *td, *unused;
	struct ibv_pd *pd, *parent, *second;
	CHECK(pd = ibv_alloc_pd(end.context));
	CHECK((td = ibv_alloc_td(end.context, &plain)) && (unused = ibv_alloc_td(end.context, &plain)));
	REFUSED(EOPNOTSUPP, ibv_alloc_td(end.context, &unknown));
	CHECK(ibv_dealloc_td(unused) == 0);
	FAILS(ENOENT, ibv_dealloc_td(unused));

	struct ibv_parent_domain_init_attr attr = { .pd = NULL, .td = td };
	REFUSED(EINVAL, ibv_alloc_parent_domain(end.context, &attr));
	attr.pd = pd, attr.td = unused;
	REFUSED(ENOENT, ibv_alloc_parent_domain(end.context, &attr));
	struct end abroad = open_end();
	struct ibv_td *elsewhere = ibv_alloc_td(abroad.context, &plain);
	attr.td = elsewhere;
	REFUSED(EINVAL, ibv_alloc_parent_domain(end.context, &attr));
	attr.td = td, attr.pd = abroad.pd;
	REFUSED(EINVAL, ibv_alloc_parent_domain(end.context, &attr));
	CHECK(ibv_dealloc_td(elsewhere) == 0);
	attr.pd = pd, attr.comp_mask = 1 << 30;
	REFUSED(EOPNOTSUPP, ibv_alloc_parent_domain(end.context, &attr));
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, attr.alloc = allocate;
	REFUSED(EINVAL, ibv_alloc_parent_domain(end.context, &attr));
	CHECK(ibv_dealloc_td(td) == 0 && (td = ibv_alloc_td(end.context, &plain)));
	attr.td = td, attr.free = release, attr.comp_mask |= IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	CHECK(parent = ibv_alloc_parent_domain(end.context, &attr));
	attr = (struct ibv_parent_domain_init_attr){ .pd = parent };
	CHECK(second = ibv_alloc_parent_domain(end.context, &attr));

	FAILS(EBUSY, ibv_dealloc_td(td));
	FAILS(EBUSY, ibv_dealloc_pd(pd));
	FAILS(EBUSY, ibv_dealloc_pd(parent));
	CHECK(ibv_dealloc_pd(second) == 0);

	/* Objects of the parent domain, and of its protection domain, work together. */
	struct end of_parent = end;
	of_parent.pd = parent;
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS, .parent_domain = pd,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	REFUSED(EINVAL, ibv_create_cq_ex(end.context, &cq_attr));
	cq_attr.parent_domain = parent;
	struct ibv_cq_ex *cq = ibv_create_cq_ex(end.context, &cq_attr);
	CHECK(cq);
	of_parent.cq = ibv_cq_ex_to_cq(cq);
	CHECK(of_parent.mr = ibv_reg_mr(pd, end.memory, 2 * PAGE, ALL));
	struct ibv_qp *a = make_qp(&of_parent), *b = make_qp(&of_parent);
	CHECK(a->pd == parent);
	ready(a), ready(b);
	connect_to(a, connection_data_of(&of_parent, b)), connect_to(b, connection_data_of(&of_parent, a));
	CHECK(post_write(a, &of_parent, 1, (uintptr_t)end.memory + PAGE, of_parent.mr->rkey) == 0);
	CHECK(next(of_parent.cq).status == IBV_WC_SUCCESS);
	FAILS(EBUSY, ibv_dealloc_pd(parent));
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(of_parent.mr) == 0);
	FAILS(EBUSY, ibv_dealloc_pd(parent));
	CHECK(ibv_destroy_cq(of_parent.cq) == 0 && ibv_dealloc_pd(parent) == 0);
	FAILS(ENOENT, ibv_dealloc_pd(parent));
	CHECK(ibv_dealloc_td(td) == 0 && ibv_dealloc_pd(pd) == 0);
}

/* A completion queue grows and shrinks, and keeps its completions. */
static void resized(void)
{
	struct ibv_device_attr device;
	CHECK(ibv_query_device(end.context, &device) == 0);
	connect_pair();
	FAILS(EINVAL, ibv_resize_cq(end.cq, 0));
	FAILS(EINVAL, ibv_resize_cq(end.cq, -1));
	FAILS(EINVAL, ibv_resize_cq(end.cq, device.max_cqe + 1));
	CHECK(ibv_resize_cq(end.cq, device.max_cqe) == 0 && end.cq->cqe == device.max_cqe);
	for (int i = 0; i < 4; i++)
		write_and_leave(one, i);
	FAILS(EINVAL, ibv_resize_cq(end.cq, 3));
	CHECK(end.cq->cqe == device.max_cqe && ibv_resize_cq(end.cq, 4) == 0 && end.cq->cqe == 4);
	for (uint64_t i = 0; i < 4; i++)
		CHECK(next(end.cq).wr_id == i);
	CHECK(ibv_resize_cq(end.cq, 1) == 0 && end.cq->cqe == 1);
	CHECK(post_write(one, &end, 9, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0 && next(end.cq).wr_id == 9);
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 4, 100 } };
	FAILS(EOPNOTSUPP, ibv_modify_cq(end.cq, &moderation));
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	CHECK(ibv_query_rt_values_ex(end.context, &values) == EOPNOTSUPP);
	disconnect_pair();
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "foreign_handles", foreign_handles }, { "destroyed_twice", destroyed_twice }, { "busy", busy },
		{ "inherited", inherited }, { "domains", domains }, { "resized", resized },
		{ "closed_context", closed_context }, { "destroyed_by_threads", destroyed_by_threads },
		{ "overwritten_number", overwritten_number }, { "shared_by_queue_pairs", shared_by_queue_pairs },
	};
	alarm(60);
	CHECK(argc == 2);
	end = open_end();
	CHECK(ibv_query_device(end.context, &attributes) == 0);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
