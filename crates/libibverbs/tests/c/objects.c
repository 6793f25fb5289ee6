/* The objects of the verbs: their handles, their destruction, domains, queues and windows. One process. */
#include "test_support.h"
#include <sys/wait.h>

static struct end end;

/* Checks that a call returns this errno value and also sets errno to it, as system calls do. */
#define FAILS(number, call) \
	do { \
		errno = 0; \
		CHECK((call) == (number)); \
		CHECK(errno == (number)); \
	} while (0)

/* Every kind of object with a handle. */
struct objects {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_mw *mw; /* NULL on several rails */
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
	errno = 0;
	o.mw = ibv_alloc_mw(o.pd, IBV_MW_TYPE_2);
	CHECK(o.mw || errno == EOPNOTSUPP);
	return o;
}

static void destroy_objects(struct objects o)
{
	CHECK(!o.mw || ibv_dealloc_mw(o.mw) == 0);
	CHECK(ibv_destroy_ah(o.ah) == 0 && ibv_dereg_mr(o.mr) == 0 && ibv_destroy_qp(o.qp) == 0);
	CHECK(ibv_destroy_srq(o.srq) == 0 && ibv_destroy_cq(o.cq) == 0 && ibv_dealloc_pd(o.pd) == 0);
}

/* An object whose handle the program has changed is not found, and is found again with its own handle. */
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
	if (o.mw)
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
		if (gone.mw)
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
		CHECK(post_write(gone.qp, &end, 1, 0, 0) == ENOENT && ibv_post_srq_recv(gone.srq, &recv, &bad) == ENOENT && bad == &recv);
		destroy_objects(other);
	}
	struct ibv_comp_channel *channel;
	CHECK((channel = ibv_create_comp_channel(end.context)) && ibv_destroy_comp_channel(channel) == 0);
	FAILS(ENOENT, ibv_destroy_comp_channel(channel));
}

/* EBUSY is returned, and is in errno. */
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

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{ "foreign_handles", foreign_handles }, { "destroyed_twice", destroyed_twice }, { "busy", busy },
		{ "inherited", inherited },
	};
	alarm(60);
	CHECK(argc == 2);
	end = open_end();
	for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
		if (strcmp(argv[1], scenarios[i].name) == 0) {
			scenarios[i].run();
			return 0;
		}
	}
	return 2;
}
