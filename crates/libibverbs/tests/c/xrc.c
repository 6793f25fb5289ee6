/* XRC: domains, shared receive queues with numbers, and send and receive queue pairs. One process. */
#include "test_support.h"
#include <fcntl.h>

static struct end end;

static struct ibv_xrcd *try_open(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags,
	};
	return ibv_open_xrcd(context, &init);
}

static struct ibv_srq *make_srq(struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = DEPTH, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = end.pd, .xrcd = xrcd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	return ibv_create_srq_ex(end.context, &init);
}

static uint32_t number_of(struct ibv_srq *srq)
{
	uint32_t number = 0;
	CHECK(ibv_get_srq_num(srq, &number) == 0 && number > 0 && number < 1 << 24);
	return number;
}

static struct ibv_qp *make_recv_qp(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp *qp = ibv_create_qp_ex(end.context, &init);
	CHECK(qp && qp->qp_type == IBV_QPT_XRC_RECV && !qp->pd && !qp->send_cq && !qp->recv_cq && !qp->srq);
	return qp;
}

/* A connection within the process. `data_cq` is the completion queue of the shared receive queue. */
struct xrc {
	struct ibv_xrcd *xrcd;
	struct ibv_cq *data_cq;
	struct ibv_srq *srq;
	struct ibv_qp *sender, *receiver;
	uint32_t number;
};

static void connect_ends(struct ibv_qp *sender, struct ibv_qp *receiver)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	ready(sender), ready(receiver);
	/* The attributes of the other role have no effect. */
	mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	rtr.dest_qp_num = receiver->qp_num;
	CHECK(ibv_modify_qp(sender, &rtr, mask) == 0);
	rtr.dest_qp_num = sender->qp_num;
	CHECK(ibv_modify_qp(receiver, &rtr, mask) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(sender, &rts, mask) == 0 && ibv_modify_qp(receiver, &rts, mask) == 0);
}

static struct ibv_qp *make_sender(void)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = end.cq, .pd = end.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1, .max_recv_wr = 3 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(end.context, &init);
	CHECK(qp && init.cap.max_recv_wr == 0);
	return qp;
}

static struct xrc make_connection(void)
{
	struct xrc x = { .xrcd = try_open(end.context, -1, O_CREAT) };
	CHECK(x.xrcd && (x.data_cq = ibv_create_cq(end.context, DEPTH, NULL, end.channel, 0)));
	CHECK(x.srq = make_srq(x.xrcd, x.data_cq));
	x.number = number_of(x.srq);
	x.sender = make_sender(), x.receiver = make_recv_qp(x.xrcd);
	connect_ends(x.sender, x.receiver);
	return x;
}

static void destroy_connection(struct xrc x)
{
	CHECK(ibv_destroy_qp(x.sender) == 0 && ibv_destroy_qp(x.receiver) == 0 && ibv_destroy_srq(x.srq) == 0);
	CHECK(ibv_destroy_cq(x.data_cq) == 0 && ibv_close_xrcd(x.xrcd) == 0);
}

static void post_receive(struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 64, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static struct ibv_wc post_and_wait(struct xrc *x, struct ibv_send_wr wr)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr *bad;
	wr.sg_list = &sge, wr.num_sge = 1, wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(x->sender, &wr, &bad) == 0);
	return next(end.cq);
}

/* Every operation, by both ways of posting, and the fields of the completions. */
static void operations(void)
{
	struct ibv_device_attr device;
	CHECK(ibv_query_device(end.context, &device) == 0 && device.device_cap_flags & IBV_DEVICE_XRC);
	struct xrc x = make_connection();
	for (int i = 0; i < 4; i++)
		post_receive(x.srq, 100 + i);
	memcpy(end.memory, "7 bytes", 8);
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = x.number };
	CHECK(ibv_req_notify_cq(x.data_cq, 0) == 0);
	struct ibv_wc wc = post_and_wait(&x, wr);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.opcode == IBV_WC_SEND && wc.qp_num == x.sender->qp_num);
	struct ibv_cq *cq;
	void *cq_context;
	CHECK(ibv_get_cq_event(end.channel, &cq, &cq_context) == 0 && cq == x.data_cq);
	ibv_ack_cq_events(cq, 1);
	wc = next(x.data_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 100 && wc.opcode == IBV_WC_RECV && wc.byte_len == 8);
	CHECK(wc.qp_num == x.receiver->qp_num && wc.wc_flags == IBV_WC_GRH && memcmp(end.memory + PAGE, "7 bytes", 8) == 0);

	uint64_t remote = (uintptr_t)end.memory + PAGE + 128;
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, wr.imm_data = htobe32(5), wr.wr.rdma.remote_addr = remote, wr.wr.rdma.rkey = end.mr->rkey;
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS);
	wc = next(x.data_cq);
	CHECK(wc.wr_id == 101 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == htobe32(5));
	CHECK(memcmp(end.memory + PAGE + 128, "7 bytes", 8) == 0);
	wr.opcode = IBV_WR_RDMA_READ;
	memset(end.memory, 0, 8);
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS && memcmp(end.memory, "7 bytes", 8) == 0);
	uint64_t *word = (uint64_t *)(end.memory + PAGE + 128);
	*word = 40;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	memset(&wr.wr, 0, sizeof wr.wr);
	wr.wr.atomic.remote_addr = remote, wr.wr.atomic.rkey = end.mr->rkey, wr.wr.atomic.compare_add = 2;
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS && *word == 42);

	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(x.sender);
	CHECK(ex);
	ibv_wr_start(ex);
	ex->wr_id = 9, ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, x.number);
	ibv_wr_set_sge(ex, end.mr->lkey, (uintptr_t)end.memory, 4);
	CHECK(ibv_wr_complete(ex) == 0 && next(end.cq).wr_id == 9);
	wc = next(x.data_cq);
	CHECK(wc.wr_id == 102 && wc.byte_len == 4);
	destroy_connection(x);
}

/* A number that no queue of the domain has is an error at both ends. */
static void wrong_number(void)
{
	struct xrc x = make_connection();
	struct ibv_xrcd *other = try_open(end.context, -1, O_CREAT);
	struct ibv_srq *foreign;
	CHECK(other && (foreign = make_srq(other, x.data_cq)));
	post_receive(foreign, 1);
	/* A further ibv_qp of the receiver, in another context, has the event too. */
	struct end second = open_end();
	struct ibv_qp_open_attr by_number = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = x.receiver->qp_num, .xrcd = x.xrcd, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *again = ibv_open_qp(second.context, &by_number);
	CHECK(again);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = number_of(foreign) };
	CHECK(post_and_wait(&x, wr).status == IBV_WC_REM_ACCESS_ERR && is_empty(x.data_cq));
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == x.receiver);
	ibv_ack_async_event(&event);
	CHECK(ibv_get_async_event(second.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == again);
	ibv_ack_async_event(&event);
	CHECK(ibv_destroy_qp(again) == 0 && ibv_destroy_srq(foreign) == 0 && ibv_close_xrcd(other) == 0);
	destroy_connection(x);
}

/* The limit event of a shared receive queue. */
static void limit_event(void)
{
	struct xrc x = make_connection();
	struct ibv_srq_attr limit = { .max_wr = 3, .srq_limit = 2 };
	post_receive(x.srq, 1), post_receive(x.srq, 2), post_receive(x.srq, 3);
	CHECK(ibv_modify_srq(x.srq, &limit, IBV_SRQ_MAX_WR) == 0 && ibv_query_srq(x.srq, &limit) == 0 && limit.max_wr == 3);
	limit.srq_limit = 2;
	CHECK(ibv_modify_srq(x.srq, &limit, IBV_SRQ_LIMIT) == 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = x.number };
	for (int i = 0; i < 3; i++)
		CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	/* The receiver was in RTS, so the first message has no event. */
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == x.srq);
	ibv_ack_async_event(&event);
	destroy_connection(x);
}

/* The association of domains with files, and the counts of references. */
static void domains(void)
{
	char name[] = "/tmp/mitra-xrc-XXXXXX";
	int fd = mkstemp(name), again = open(name, O_RDONLY);
	CHECK(fd >= 0 && again >= 0 && unlink(name) == 0);
	struct ibv_xrcd_init_attr partial = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1 };
	REFUSED(EINVAL, ibv_open_xrcd(end.context, &partial));
	partial.comp_mask = 7;
	REFUSED(EOPNOTSUPP, ibv_open_xrcd(end.context, &partial));
	REFUSED(EBADF, try_open(end.context, 1 << 20, O_CREAT));
	REFUSED(EBADF, try_open(end.context, -2, O_CREAT));
	REFUSED(EAGAIN, try_open(end.context, fd, 0));
	struct ibv_xrcd *one = try_open(end.context, fd, O_CREAT | O_EXCL), *same, *apart;
	CHECK(one && one->context == end.context);
	REFUSED(EINVAL, try_open(end.context, again, O_CREAT | O_EXCL));

	/* Another context and another descriptor of the file lead to the same domain. */
	struct end second = open_end();
	CHECK((same = try_open(second.context, again, 0)) && (apart = try_open(end.context, -1, 0)));
	struct ibv_qp *receiver = make_recv_qp(one);
	struct ibv_qp_open_attr by_number = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = receiver->qp_num, .xrcd = apart, .qp_context = &second, .qp_type = IBV_QPT_XRC_RECV,
	};
	REFUSED(EINVAL, ibv_open_qp(end.context, &by_number));
	by_number.xrcd = same, by_number.qp_type = IBV_QPT_RC;
	REFUSED(EINVAL, ibv_open_qp(second.context, &by_number));
	by_number.qp_type = IBV_QPT_XRC_RECV;
	ready(receiver);
	struct ibv_qp *opened = ibv_open_qp(second.context, &by_number);
	CHECK(opened && opened != receiver && opened->qp_num == receiver->qp_num && opened->qp_context == &second);
	CHECK(opened->context == second.context && opened->state == IBV_QPS_UNKNOWN);

	FAILS(EBUSY, ibv_close_xrcd(one));
	FAILS(EBUSY, ibv_close_xrcd(same));
	CHECK(ibv_destroy_qp(receiver) == 0 && ibv_close_xrcd(one) == 0);
	/* The queue pair and the domain live on. */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(opened, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_INIT);
	FAILS(EBUSY, ibv_close_xrcd(same));
	CHECK(ibv_destroy_qp(opened) == 0);
	by_number.xrcd = same;
	REFUSED(EINVAL, ibv_open_qp(second.context, &by_number));

	struct ibv_srq *srq;
	struct ibv_cq *cq = ibv_create_cq(end.context, 4, NULL, NULL, 0);
	CHECK(cq && (srq = make_srq(same, cq)));
	FAILS(EBUSY, ibv_close_xrcd(same));
	FAILS(EBUSY, ibv_destroy_cq(cq));
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0 && ibv_close_xrcd(same) == 0);
	FAILS(ENOENT, ibv_close_xrcd(same));
	REFUSED(EAGAIN, try_open(end.context, fd, 0));
	CHECK(ibv_close_xrcd(apart) == 0 && close(fd) == 0 && close(again) == 0);
}

/* A shared receive queue that one context creates gets the messages of a queue pair that another context creates, if a file leads both to the domain.
 * After its destruction, messages that name it end the connection. */
static void two_contexts(void)
{
	char name[] = "/tmp/mitra-xrc-XXXXXX";
	int fd = mkstemp(name);
	CHECK(fd >= 0 && unlink(name) == 0);
	struct xrc x = { .xrcd = try_open(end.context, fd, O_CREAT) };
	CHECK(x.xrcd && (x.data_cq = ibv_create_cq(end.context, DEPTH, NULL, NULL, 0)));
	x.receiver = make_recv_qp(x.xrcd), x.sender = make_sender();
	struct end first = end, second = open_end();
	struct ibv_xrcd *same = try_open(second.context, fd, 0);
	struct ibv_cq *cq = ibv_create_cq(second.context, DEPTH, NULL, NULL, 0);
	CHECK(same && cq);
	end = second;
	struct ibv_srq *srq = make_srq(same, cq);
	CHECK(srq);
	x.number = number_of(srq);
	post_receive(srq, 1), post_receive(srq, 2);
	end = first;
	connect_ends(x.sender, x.receiver);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = x.number };
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = next(cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.qp_num == x.receiver->qp_num);
	CHECK(ibv_destroy_srq(srq) == 0);
	/* Over several rails, the refusal may come behind the acknowledgement of the first such message. */
	while (post_and_wait(&x, wr).status == IBV_WC_SUCCESS)
		CHECK(is_empty(cq) && atoi(getenv("MITRA_RAILS")) > 1);
	CHECK(is_empty(cq));
	CHECK(ibv_destroy_qp(x.sender) == 0 && ibv_destroy_qp(x.receiver) == 0 && ibv_close_xrcd(same) == 0 && ibv_close_xrcd(x.xrcd) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(x.data_cq) == 0 && close(fd) == 0);
}

/* The receive queue pair may be older than the first shared receive queue of its domain. Over several rails it enters RTR when there is one. */
static void queue_pair_first(void)
{
	struct xrc x = { .xrcd = try_open(end.context, -1, O_CREAT) };
	CHECK(x.xrcd && (x.data_cq = ibv_create_cq(end.context, DEPTH, NULL, end.channel, 0)));
	x.sender = make_sender(), x.receiver = make_recv_qp(x.xrcd);
	uint32_t number = x.receiver->qp_num;
	if (atoi(getenv("MITRA_RAILS")) > 1) {
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .dest_qp_num = x.sender->qp_num,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64 } },
		};
		ready(x.receiver);
		FAILS(EOPNOTSUPP, ibv_modify_qp(x.receiver, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
			| IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	}
	CHECK(x.srq = make_srq(x.xrcd, x.data_cq));
	x.number = number_of(x.srq);
	connect_ends(x.sender, x.receiver);
	CHECK(x.receiver->qp_num == number);
	post_receive(x.srq, 1);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 7, .qp_type.xrc.remote_srqn = x.number };
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = next(x.data_cq);
	CHECK(wc.wr_id == 1 && wc.opcode == IBV_WC_RECV && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == 7);
	destroy_connection(x);
}

/* Two queues of a domain, each with a completion queue. A request is checked against the protection domain of the queue that it names; over several
 * rails all queues have the same protection domain. */
static void two_queues(void)
{
	struct xrc x = make_connection();
	struct ibv_cq *cq = ibv_create_cq(end.context, DEPTH, NULL, NULL, 0);
	struct ibv_srq *other;
	CHECK(cq && (other = make_srq(x.xrcd, cq)));
	post_receive(x.srq, 1), post_receive(other, 2);
	uint32_t number = number_of(other);
	CHECK(number != x.number);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = number };
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = next(cq);
	CHECK(wc.wr_id == 2 && wc.qp_num == x.receiver->qp_num && is_empty(x.data_cq));
	wr.qp_type.xrc.remote_srqn = x.number;
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS && next(x.data_cq).wr_id == 1 && is_empty(cq));
	struct ibv_pd *pd = ibv_alloc_pd(end.context), *first = end.pd;
	CHECK(end.pd = pd);
	struct ibv_srq *foreign = make_srq(x.xrcd, cq);
	end.pd = first;
	if (atoi(getenv("MITRA_RAILS")) > 1)
		CHECK(!foreign && errno == EOPNOTSUPP);
	else
		CHECK(foreign && ibv_destroy_srq(foreign) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	/* The queue that is destroyed leaves the other one as it is. */
	CHECK(ibv_destroy_srq(other) == 0 && ibv_destroy_cq(cq) == 0);
	post_receive(x.srq, 3);
	CHECK(post_and_wait(&x, wr).status == IBV_WC_SUCCESS && next(x.data_cq).wr_id == 3);
	destroy_connection(x);
}

/* Calls that contradict the types. */
static void refused(void)
{
	struct xrc x = make_connection();
	uint32_t number;
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &basic);
	CHECK(srq);
	FAILS(EINVAL, ibv_get_srq_num(srq, &number));
	struct ibv_srq_init_attr_ex incomplete = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = end.pd, .xrcd = x.xrcd, .cq = x.data_cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD,
	};
	REFUSED(EINVAL, ibv_create_srq_ex(end.context, &incomplete));
	incomplete.srq_type = IBV_SRQT_TM;
	REFUSED(EOPNOTSUPP, ibv_create_srq_ex(end.context, &incomplete));
	struct ibv_qp_init_attr plain = plain_init(&end);
	plain.qp_type = IBV_QPT_XRC_RECV;
	REFUSED(EINVAL, ibv_create_qp(end.pd, &plain));
	plain.qp_type = IBV_QPT_RC, plain.srq = x.srq;
	REFUSED(EINVAL, ibv_create_qp(end.pd, &plain));
	struct ibv_qp_init_attr_ex no_domain = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	REFUSED(EINVAL, ibv_create_qp_ex(end.context, &no_domain));
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	CHECK(ibv_post_send(x.receiver, &send, &bad_send) == EINVAL && bad_send == &send);
	CHECK(ibv_post_recv(x.receiver, &recv, &bad_recv) == EINVAL && ibv_post_recv(x.sender, &recv, &bad_recv) == EINVAL);
	send.opcode = IBV_WR_RDMA_WRITE, send.wr.rdma.rkey = 0x12345;
	CHECK(ibv_post_send(x.receiver, &send, &bad_send) == EINVAL && bad_send == &send);
	/* Receives are also refused in an error state, in which a queue pair with a receive queue flushes them. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(x.receiver, &error, IBV_QP_STATE) == 0 && ibv_modify_qp(x.sender, &error, IBV_QP_STATE) == 0);
	CHECK(ibv_post_recv(x.receiver, &recv, &bad_recv) == EINVAL && ibv_post_recv(x.sender, &recv, &bad_recv) == EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0);
	/* A send queue may be as deep as the device states, although a request may be two messages on the rails. */
	struct ibv_device_attr device;
	CHECK(ibv_query_device(end.context, &device) == 0);
	plain.qp_type = IBV_QPT_XRC_SEND, plain.srq = NULL, plain.cap.max_send_wr = device.max_qp_wr;
	struct ibv_qp *deep = ibv_create_qp(end.pd, &plain);
	CHECK(deep && plain.cap.max_send_wr >= (uint32_t)device.max_qp_wr && ibv_destroy_qp(deep) == 0);
	destroy_connection(x);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "xrc_operations", operations }, { "xrc_wrong_number", wrong_number }, { "xrc_limit_event", limit_event }, { "xrc_domains", domains },
		{ "xrc_refused", refused }, { "xrc_queue_pair_first", queue_pair_first }, { "xrc_two_queues", two_queues },
		{ "xrc_two_contexts", two_contexts },
	};
	alarm(60);
	CHECK(argc == 2);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
