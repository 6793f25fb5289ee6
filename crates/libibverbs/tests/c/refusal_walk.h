/* Objects and macros of refusal_walk.c. */
#pragma once
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "test_support.h"

static struct end end;

static void *scratch[8][256];

#define NEW(type, name, ...) struct type name = { __VA_ARGS__ }
/* Makes a call twice and checks what it returns each time. */
#define TWICE(holds) \
	do { \
		for (int attempt = 0; attempt < 2; attempt++) { \
			errno = 0; \
			CHECK(holds); \
		} \
	} while (0)
#define NULL_TWICE(call) TWICE((call) == NULL && errno != 0)

static struct ibv_cq *make_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(end.context, 4, NULL, NULL, 0);
	CHECK(cq);
	return cq;
}

static struct ibv_srq *make_srq(void)
{
	NEW(ibv_srq_init_attr, init, .attr = { .max_wr = 4, .max_sge = 1 });
	struct ibv_srq *srq = ibv_create_srq(end.pd, &init);
	CHECK(srq);
	return srq;
}

/* Objects that were destroyed. */
static struct ibv_pd *old_pd(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(end.context);
	CHECK(pd && ibv_dealloc_pd(pd) == 0);
	return pd;
}

static struct ibv_qp *old_qp(void)
{
	struct ibv_qp *qp = make_qp(&end);
	CHECK(ibv_destroy_qp(qp) == 0);
	return qp;
}

static struct ibv_cq *old_cq(void)
{
	struct ibv_cq *cq = make_cq();
	CHECK(ibv_destroy_cq(cq) == 0);
	return cq;
}

static struct ibv_srq *old_srq(void)
{
	struct ibv_srq *srq = make_srq();
	CHECK(ibv_destroy_srq(srq) == 0);
	return srq;
}

static struct ibv_comp_channel *old_channel(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(end.context);
	CHECK(channel && ibv_destroy_comp_channel(channel) == 0);
	return channel;
}

static struct ibv_context *old_context(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context && ibv_close_device(context) == 0);
	return context;
}

static struct ibv_qp_init_attr_ex extended_init(void)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = end.pd, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
}
