/* The fields of the structures of verbs.h that rdma-core's library writes, and those that it leaves alone. One process. */
#include "connected_pair.h"

#include <fcntl.h>
#include <pthread.h>

static struct ibv_async_event take_event(enum ibv_event_type type)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	if (event.event_type != type)
		fprintf(stderr, "%s instead of %s\n", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	CHECK(event.event_type == type);
	return event;
}

/* Ends the connection by a WRITE with a key that nobody has. */
static void fail_pair(void)
{
	CHECK(post_write(one, &end, 1, (uintptr_t)end.memory, end.mr->rkey + 0x100) == 0);
	CHECK(next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
}

static struct ibv_qp_attr query(struct ibv_qp *qp, int mask)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, mask, &init) == 0);
	return attr;
}

/* `state` of `struct ibv_qp` is what the program has set or queried last. */
static void state_of_queue_pair(void)
{
	connect_pair();
	CHECK(one->state == IBV_QPS_RTS);
	fail_pair();
	CHECK(one->state == IBV_QPS_RTS && other->state == IBV_QPS_RTS);
	CHECK(query(one, IBV_QP_AV | IBV_QP_DEST_QPN).qp_state == IBV_QPS_ERR && one->state == IBV_QPS_RTS);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	CHECK(ibv_modify_qp(one, &attr, IBV_QP_STATE) == EINVAL && one->state == IBV_QPS_RTS);
	CHECK(query(one, IBV_QP_STATE).qp_state == IBV_QPS_ERR && one->state == IBV_QPS_ERR);
	CHECK(query(other, IBV_QP_STATE).qp_state == IBV_QPS_ERR && other->state == IBV_QPS_ERR);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(one, &attr, IBV_QP_STATE) == 0 && one->state == IBV_QPS_RESET);
	disconnect_pair();
}

/* `ibv_query_qp` writes all attributes but two. */
static void attributes_left_alone(void)
{
	connect_pair();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	memset(&attr, 0x5a, sizeof attr), memset(&init, 0x5a, sizeof init);
	CHECK(ibv_query_qp(one, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.en_sqd_async_notify == 0x5a && attr.rate_limit == 0x5a5a5a5a);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS && attr.path_mtu == IBV_MTU_1024 && attr.path_mig_state == IBV_MIG_MIGRATED);
	CHECK(attr.qkey == 0 && attr.dest_qp_num == other->qp_num && attr.pkey_index == 0 && attr.alt_pkey_index == 0 && attr.sq_draining == 0);
	CHECK(attr.max_rd_atomic == 1 && attr.max_dest_rd_atomic == 1 && attr.min_rnr_timer == 1 && attr.port_num == 1);
	CHECK(attr.timeout == 14 && attr.retry_cnt == 7 && attr.rnr_retry == 7 && attr.alt_port_num == 0 && attr.alt_timeout == 0);
	CHECK(attr.cap.max_send_wr == DEPTH && attr.cap.max_inline_data == 64 && attr.ah_attr.port_num == 1 && attr.alt_ah_attr.port_num == 0);
	CHECK(init.send_cq == end.cq && init.recv_cq == end.cq && !init.srq && !init.qp_context && init.qp_type == IBV_QPT_RC && init.sq_sig_all == 0);
	CHECK(memcmp(&init.cap, &attr.cap, sizeof init.cap) == 0);
	disconnect_pair();
}

/* `ibv_create_qp` writes the granted capacities, and a refused call writes nothing. */
static void granted_capacities(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.cap.max_inline_data = 1;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	CHECK(qp && init.cap.max_inline_data >= 1 && ibv_destroy_qp(qp) == 0);
	init.cap.max_inline_data = 1, init.cap.max_send_wr = 1 << 30;
	REFUSED(EINVAL, ibv_create_qp(end.pd, &init));
	CHECK(init.cap.max_inline_data == 1 && init.cap.max_send_wr == 1 << 30);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH } };
	struct ibv_srq_attr granted;
	struct ibv_srq *srq = ibv_create_srq(end.pd, &shared);
	CHECK(srq && ibv_query_srq(srq, &granted) == 0 && granted.max_wr == shared.attr.max_wr && granted.max_sge == shared.attr.max_sge);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* `comp_events_completed` counts what the program acknowledges, also several events at once. */
static void acknowledged_completion_events(void)
{
	connect_pair();
	for (uint32_t before = 0; before < 6; before += 3) {
		CHECK(end.cq->comp_events_completed == before);
		for (int i = 0; i < 3; i++) {
			struct ibv_cq *cq;
			void *context;
			CHECK(ibv_req_notify_cq(end.cq, 0) == 0);
			CHECK(post_write(one, &end, i, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
			CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0 && cq == end.cq && context == end.pd);
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		}
		CHECK(end.cq->comp_events_completed == before);
		ibv_ack_cq_events(end.cq, 2);
		CHECK(end.cq->comp_events_completed == before + 2);
		ibv_ack_cq_events(end.cq, 1);
		CHECK(end.cq->comp_events_completed == before + 3 && end.cq->async_events_completed == 0);
	}
	disconnect_pair();
}

/* `async_events_completed` of a completion queue that has overflowed. */
static void acknowledged_queue_errors(void)
{
	struct ibv_cq *whole = end.cq, *small = ibv_create_cq(end.context, 1, NULL, NULL, 0);
	CHECK(end.cq = small);
	connect_pair();
	for (int i = 0; i < 4; i++)
		CHECK(post_write(one, &end, i, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	struct ibv_async_event event = take_event(IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == small && small->async_events_completed == 0);
	ibv_ack_async_event(&event);
	CHECK(small->async_events_completed == 1 && small->comp_events_completed == 0);
	disconnect_pair();
	CHECK(ibv_destroy_cq(small) == 0);
	end.cq = whole;
}

/* `events_completed` of a queue pair. */
static void acknowledged_queue_pair_events(void)
{
	connect_pair();
	fail_pair();
	struct ibv_async_event event = take_event(IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == other && other->events_completed == 0);
	ibv_ack_async_event(&event);
	CHECK(other->events_completed == 1 && one->events_completed == 0);
	disconnect_pair();
}

/* `events_completed` of a shared receive queue, whose limit is reached at once. */
static void acknowledged_limit_events(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &shared);
	CHECK(srq);
	for (uint32_t n = 0; n < 3; n++) {
		struct ibv_srq_attr limit = { .srq_limit = 1 };
		CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
		struct ibv_async_event event = take_event(IBV_EVENT_SRQ_LIMIT_REACHED);
		CHECK(event.element.srq == srq && srq->events_completed == n);
		ibv_ack_async_event(&event);
		CHECK(srq->events_completed == n + 1);
	}
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void *acknowledge(void *event)
{
	usleep(1000);
	ibv_ack_async_event(event);
	return NULL;
}

/* A program may read the counts under the structure's mutex, and wait for its condition. */
static void mutexes_and_conditions(void)
{
	connect_pair();
	fail_pair();
	struct ibv_async_event event = take_event(IBV_EVENT_QP_ACCESS_ERR);
	pthread_t thread;
	CHECK(pthread_mutex_lock(&other->mutex) == 0 && pthread_create(&thread, NULL, acknowledge, &event) == 0);
	while (other->events_completed == 0)
		CHECK(pthread_cond_wait(&other->cond, &other->mutex) == 0);
	CHECK(pthread_mutex_unlock(&other->mutex) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(pthread_mutex_trylock(&end.cq->mutex) == 0 && pthread_mutex_unlock(&end.cq->mutex) == 0);
	CHECK(pthread_mutex_trylock(&end.context->mutex) == 0 && pthread_mutex_unlock(&end.context->mutex) == 0);
	disconnect_pair();
}

/* The fields that say what an object is and to what it belongs. */
static void identities(void)
{
	int context;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(end.context);
	CHECK(channel && channel->context == end.context && channel->fd >= 0 && channel->refcnt == 0);
	struct ibv_cq *cq = ibv_create_cq(end.context, 7, &context, channel, 0);
	CHECK(cq && cq->context == end.context && cq->channel == channel && cq->cq_context == &context && cq->cqe >= 7 && channel->refcnt == 1);
	CHECK(ibv_resize_cq(cq, 9) == 0 && cq->cqe >= 9 && ibv_destroy_comp_channel(channel) == EBUSY);
	int cqe = cq->cqe;
	CHECK(ibv_resize_cq(cq, 1 << 30) != 0 && cq->cqe == cqe);
	struct ibv_srq_init_attr shared = { .srq_context = &context, .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &shared);
	CHECK(srq && srq->context == end.context && srq->srq_context == &context && srq->pd == end.pd && srq->events_completed == 0);
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_context = &context, init.srq = srq, init.send_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	CHECK(qp && qp->context == end.context && qp->qp_context == &context && qp->pd == end.pd && qp->send_cq == cq && qp->recv_cq == end.cq && qp->srq == srq);
	CHECK(qp->qp_num && qp->state == IBV_QPS_RESET && qp->qp_type == IBV_QPT_RC && qp->events_completed == 0);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh.dgid = end.gid };
	struct ibv_ah *ah = ibv_create_ah(end.pd, &to);
	CHECK(ah && ah->context == end.context && ah->pd == end.pd);
	CHECK(end.pd->context == end.context && end.context->num_comp_vectors == 1 && end.context->async_fd >= 0 && end.context->cmd_fd >= 0);
	CHECK(end.context->device->node_type == IBV_NODE_CA && end.context->device->transport_type == IBV_TRANSPORT_IB);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(channel->refcnt == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* The fields of a region after `ibv_rereg_mr`, and of a window after its binds. */
static void regions_and_windows(void)
{
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory, PAGE, ALL | IBV_ACCESS_MW_BIND);
	CHECK(mr && mr->context == end.context && mr->pd == end.pd && mr->addr == end.memory && mr->length == PAGE);
	uint32_t lkey = mr->lkey, rkey = mr->rkey, handle = mr->handle;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, end.memory + 64, 128, 0) == 0);
	CHECK(mr->addr == end.memory + 64 && mr->length == 128 && mr->pd == end.pd);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL | IBV_ACCESS_MW_BIND) == 0);
	CHECK(mr->addr == end.memory + 64 && mr->length == 128 && mr->pd == end.pd);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 128, 0) != 0 && mr->addr == end.memory + 64);
	struct ibv_pd *second = ibv_alloc_pd(end.context);
	CHECK(second && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0) == 0 && mr->pd == second);
	mr->lkey = mr->rkey = 0;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, end.pd, NULL, 0, 0) == 0 && mr->pd == end.pd && mr->context == end.context);
	CHECK(mr->lkey == lkey && mr->rkey == rkey && mr->handle == handle && ibv_dealloc_pd(second) == 0);
	connect_pair();
	struct ibv_mw *mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->context == end.context && mw->pd == end.pd && mw->type == IBV_MW_TYPE_1);
	uint32_t key = mw->rkey;
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = { mr, (uintptr_t)mr->addr, 8, IBV_ACCESS_REMOTE_WRITE } };
	CHECK(ibv_bind_mw(one, mw, &bind) == 0 && mw->rkey == ibv_inc_rkey(key) && next(end.cq).status == IBV_WC_SUCCESS);
	key = mw->rkey;
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(one, &reset, IBV_QP_STATE) == 0 && ibv_bind_mw(one, mw, &bind) != 0 && mw->rkey == key);
	disconnect_pair();
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0);
}

/* The handles of an XRC receive queue pair. Nobody knows the state of one that was opened. */
static void opened_queue_pairs(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(end.context, &domain);
	CHECK(xrcd && xrcd->context == end.context);
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .pd = end.pd, .send_cq = end.cq, .recv_cq = end.cq, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(end.context, &init);
	CHECK(qp && qp->state == IBV_QPS_RESET && qp->pd == end.pd && qp->send_cq == end.cq && qp->recv_cq == end.cq && !qp->srq);
	ready(qp);
	struct ibv_qp_open_attr by = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = qp->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV, .qp_context = &by,
	};
	struct ibv_qp *opened = ibv_open_qp(end.context, &by);
	CHECK(opened && opened->state == IBV_QPS_UNKNOWN && opened->qp_num == qp->qp_num && opened->qp_type == IBV_QPT_XRC_RECV);
	CHECK(opened->qp_context == &by && !opened->pd && !opened->send_cq && !opened->recv_cq && !opened->srq);
	CHECK(query(opened, IBV_QP_STATE).qp_state == IBV_QPS_INIT && opened->state == IBV_QPS_INIT);
	CHECK(ibv_destroy_qp(opened) == 0 && ibv_destroy_qp(qp) == 0 && ibv_close_xrcd(xrcd) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "state_of_queue_pair", state_of_queue_pair }, { "attributes_left_alone", attributes_left_alone }, { "granted_capacities", granted_capacities },
		{ "acknowledged_completion_events", acknowledged_completion_events }, { "acknowledged_queue_errors", acknowledged_queue_errors },
		{ "acknowledged_queue_pair_events", acknowledged_queue_pair_events }, { "acknowledged_limit_events", acknowledged_limit_events },
		{ "mutexes_and_conditions", mutexes_and_conditions }, { "identities", identities }, { "regions_and_windows", regions_and_windows },
		{ "opened_queue_pairs", opened_queue_pairs },
	};
	CHECK(argc == 2);
	alarm(60);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
