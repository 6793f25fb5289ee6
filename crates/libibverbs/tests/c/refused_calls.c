/* Invalid calls and their errors: one process with two queue pairs connected to each other. */
#include "test_support.h"

static struct end end;

static void what_is_not_there(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	uint16_t pkey;
	CHECK(ibv_query_port(end.context, 1, &port) == 0 && port.gid_tbl_len == 1024);
	CHECK(ibv_query_port(end.context, 2, &port) == EINVAL && ibv_query_port(end.context, 0, &port) == EINVAL);
	CHECK(ibv_query_gid(end.context, 1, 1024, &gid) == -1 && ibv_query_gid(end.context, 2, 0, &gid) == -1);
	CHECK(ibv_query_gid(end.context, 1, -1, &gid) == -1);
	CHECK(ibv_query_gid_ex(end.context, 1, 1024, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(end.context, 1, 0, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(ibv_query_pkey(end.context, 1, 1, &pkey) == -1);

	struct ibv_counters_init_attr counters = { 0 };
	REFUSED(EOPNOTSUPP, ibv_create_counters(end.context, &counters));
	struct ibv_qp *qp = make_qp(&end);
	struct ibv_flow_attr flow = { .port = 1 };
	REFUSED(EOPNOTSUPP, ibv_create_flow(qp, &flow));
	CHECK(ibv_destroy_qp(qp) == 0);
	REFUSED(EOPNOTSUPP, ibv_reg_dmabuf_mr(end.pd, 0, PAGE, 0, 0, ALL));
	REFUSED(EOPNOTSUPP, ibv_import_device(0));
}

static void queue_pairs_beyond_the_limits(void)
{
	struct ibv_device_attr device;
	CHECK(ibv_query_device(end.context, &device) == 0);
	struct ibv_qp_init_attr init;
#define WITH(field, value, number) \
	init = plain_init(&end); \
	init.field = (value); \
	REFUSED(number, ibv_create_qp(end.pd, &init))
	WITH(cap.max_inline_data, 1 << 20, EINVAL);
	WITH(cap.max_send_sge, device.max_sge + 1, EINVAL);
	WITH(cap.max_recv_sge, device.max_sge + 1, EINVAL);
	WITH(cap.max_send_wr, device.max_qp_wr + 1, EINVAL);
	WITH(cap.max_recv_wr, device.max_qp_wr + 1, EINVAL);
	WITH(cap.max_send_wr, UINT32_MAX, EINVAL);
	WITH(cap.max_recv_wr, UINT32_MAX, EINVAL);
	WITH(qp_type, IBV_QPT_XRC_RECV, EINVAL);
	WITH(qp_type, IBV_QPT_RAW_PACKET, EOPNOTSUPP);
	WITH(qp_type, 99, EOPNOTSUPP);
	WITH(send_cq, NULL, EINVAL);
	init = plain_init(&end);
	init.cap.max_send_wr = init.cap.max_recv_wr = device.max_qp_wr;
	init.cap.max_send_sge = init.cap.max_recv_sge = device.max_sge;
	struct ibv_qp *largest = ibv_create_qp(end.pd, &init);
	CHECK(largest && ibv_destroy_qp(largest) == 0);
	REFUSED(EINVAL, ibv_create_cq(end.context, 0, NULL, NULL, 0));
	REFUSED(EINVAL, ibv_create_cq(end.context, -1, NULL, NULL, 0));
	REFUSED(EINVAL, ibv_create_cq(end.context, 1, NULL, NULL, 1));
	REFUSED(EINVAL, ibv_create_cq(end.context, device.max_cqe + 1, NULL, NULL, 0));
}

static void memory_that_cannot_be(void)
{
	REFUSED(EINVAL, ibv_reg_mr(end.pd, end.memory, 0, ALL));
	REFUSED(EINVAL, ibv_reg_mr(end.pd, end.memory, SIZE_MAX, ALL));
	REFUSED(EINVAL, ibv_reg_mr(end.pd, end.memory, PAGE, IBV_ACCESS_REMOTE_WRITE));
	REFUSED(EOPNOTSUPP, ibv_reg_mr(end.pd, end.memory, PAGE, IBV_ACCESS_ZERO_BASED));
	REFUSED(EINVAL, ibv_reg_mr_iova(end.pd, end.memory, PAGE, 1, ALL));
}

static void what_is_in_use(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(end.context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(end.context);
	struct ibv_cq *cq = ibv_create_cq(end.context, 1, NULL, channel, 0);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_qp_init_attr init = plain_init(&end);
	init.send_cq = init.recv_cq = cq;
	init.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, end.memory, PAGE, ALL);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.dgid = end.gid };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(pd && channel && cq && srq && qp && mr && ah);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

static struct ibv_qp *make_ud(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	return qp;
}

/* Invalid groups, queue pairs that cannot be attached, and the limits. */
static void multicast_groups(void)
{
	struct ibv_device_attr device;
	CHECK(ibv_query_device(end.context, &device) == 0);
	int groups = device.max_mcast_grp, members = device.max_mcast_qp_attach, all = device.max_total_mcast_qp_attach;
	CHECK(groups > 0 && groups < 256 && members > 1 && members < 256 && all >= groups + members);
	struct ibv_qp *rc = make_qp(&end), *ud = make_ud();
	union ibv_gid gid = mcast_gid(0), ipv6 = { .raw = { 0xff, 0x0e, [15] = 1 } };
	CHECK(ibv_attach_mcast(rc, &gid, 0) == EINVAL && ibv_detach_mcast(rc, &gid, 0) == EINVAL);
	CHECK(ibv_attach_mcast(ud, &end.gid, 0) == EINVAL && ibv_attach_mcast(ud, &ipv6, 0) == EINVAL);
	CHECK(ibv_attach_mcast(ud, NULL, 0) == EINVAL && ibv_detach_mcast(ud, NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast(ud, &gid, 0) == EINVAL);
	/* A second attach has no effect, and an attached queue pair cannot be destroyed. */
	CHECK(ibv_attach_mcast(ud, &gid, 0) == 0 && ibv_attach_mcast(ud, &gid, 0xc000) == 0);
	CHECK(ibv_destroy_qp(ud) == EBUSY);
	CHECK(ibv_detach_mcast(ud, &gid, 0) == 0 && ibv_detach_mcast(ud, &gid, 0) == EINVAL);
	for (int i = 0; i <= groups; i++) {
		gid = mcast_gid(i);
		CHECK(ibv_attach_mcast(ud, &gid, 0) == (i < groups ? 0 : EINVAL));
	}
	for (int i = 0; i < groups; i++) {
		gid = mcast_gid(i);
		CHECK(ibv_detach_mcast(ud, &gid, 0) == 0);
	}
	struct ibv_qp *many[256];
	for (int i = 0; i <= members; i++) {
		many[i] = make_ud();
		CHECK(ibv_attach_mcast(many[i], &gid, 0) == (i < members ? 0 : EINVAL));
	}
	for (int i = 0; i <= members; i++)
		CHECK(ibv_detach_mcast(many[i], &gid, 0) == (i < members ? 0 : EINVAL) && ibv_destroy_qp(many[i]) == 0);
	CHECK(ibv_destroy_qp(ud) == 0 && ibv_destroy_qp(rc) == 0);
}

/* The limit of a shared receive queue: an event when fewer receives are left, at once if there are fewer already. */
static void shared_receives(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &init);
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	for (int i = 0; i < 4; i++)
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) != 0 && bad == &wr);
	struct ibv_srq_attr attr = { .srq_limit = 5 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(ibv_modify_srq(srq, &attr, 1 << 2) == EOPNOTSUPP);
	attr.srq_limit = 4;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(srq = ibv_create_srq(end.pd, &init));
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(end.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void requests(void)
{
	struct ibv_qp *a = make_qp(&end), *b = make_qp(&end);
	struct connection_data to = connection_data_of(&end, b);
	struct ibv_sge sge[2] = { { (uintptr_t)end.memory, 8, end.mr->lkey } };
	struct ibv_send_wr second = { .wr_id = 2, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { to.addr + PAGE, to.rkey } };
	struct ibv_send_wr first = second, *bad = NULL;
	first.wr_id = 1;
	first.next = &second;
	CHECK(ibv_post_send(a, &first, &bad) == EINVAL && bad == &first);
	ready(a), ready(b);
	connect_to(a, to), connect_to(b, connection_data_of(&end, a));

	const struct ibv_send_wr good = second;
#define SECOND(number, field, value) \
	second = good; \
	second.field = (value); \
	CHECK(ibv_post_send(a, &first, &bad) == (number) && bad == &second); \
	CHECK(next(end.cq).wr_id == 1 && is_empty(end.cq))
	SECOND(EINVAL, num_sge, -1);
	SECOND(EINVAL, num_sge, 1 << 30);
	SECOND(EINVAL, num_sge, 17);
	SECOND(EINVAL, sg_list, NULL);
	SECOND(EOPNOTSUPP, opcode, 99);
	SECOND(EOPNOTSUPP, opcode, IBV_WR_TSO);
	SECOND(EOPNOTSUPP, send_flags, 1U << 31);
	SECOND(EOPNOTSUPP, send_flags, IBV_SEND_IP_CSUM);
	sge[1] = (struct ibv_sge){ (uintptr_t)end.memory, 1 << 30, 0 };
	first.sg_list = sge;
	second = good;
	second.sg_list = &sge[1];
	second.send_flags |= IBV_SEND_INLINE;
	CHECK(ibv_post_send(a, &first, &bad) == EINVAL && bad == &second && next(end.cq).wr_id == 1);
	second.sg_list = NULL;
	CHECK(ibv_post_send(a, &first, &bad) == EINVAL && bad == &second && next(end.cq).wr_id == 1);

	struct ibv_recv_wr recv = { .wr_id = 9, .sg_list = sge, .num_sge = -1 }, *bad_recv = NULL;
	CHECK(ibv_post_recv(a, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	recv.num_sge = 1 << 30;
	CHECK(ibv_post_recv(a, &recv, &bad_recv) == EINVAL);
	recv = (struct ibv_recv_wr){ .num_sge = 1 };
	CHECK(ibv_post_recv(a, &recv, &bad_recv) == EINVAL);

	/* A full queue returns ENOMEM, and takes requests again when there is room. The sends wait because the peer has no receives. */
	int posted = 0, refused;
	struct ibv_send_wr send = { .wr_id = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	while ((refused = ibv_post_send(a, &send, &bad)) == 0)
		CHECK(++posted <= 1000);
	CHECK(refused == ENOMEM && posted >= DEPTH);
	recv = (struct ibv_recv_wr){ .wr_id = 5 };
	for (int i = 0; i < posted; i++) {
		CHECK(ibv_post_recv(b, &recv, &bad_recv) == 0);
		struct ibv_wc first_wc = next(end.cq), second_wc = next(end.cq);
		CHECK(first_wc.status == IBV_WC_SUCCESS && second_wc.status == IBV_WC_SUCCESS);
		CHECK(first_wc.wr_id + second_wc.wr_id == send.wr_id + recv.wr_id);
	}
	CHECK(post_write(a, &end, 4, to.addr, to.rkey + 0x100) == 0);
	CHECK(next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(is_empty(end.cq));
}

static void built_requests(void)
{
	struct ibv_qp_init_attr plain = plain_init(&end);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = plain.send_cq, .recv_cq = plain.recv_cq, .qp_type = IBV_QPT_RC, .cap = plain.cap, .pd = end.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	REFUSED(EOPNOTSUPP, ibv_create_qp_ex(end.context, &init));
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	struct ibv_qp *a = ibv_create_qp_ex(end.context, &init), *b = make_qp(&end);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(a);
	CHECK(a && qpx && !ibv_qp_to_qp_ex(b));
	struct connection_data to = connection_data_of(&end, b);
	struct ibv_sge many[17] = { { 0 } };
	ready(a), ready(b);
	connect_to(a, to), connect_to(b, connection_data_of(&end, a));
#define WRITE(id) \
	qpx->wr_id = (id), qpx->wr_flags = IBV_SEND_SIGNALED; \
	ibv_wr_rdma_write(qpx, to.rkey, to.addr + PAGE); \
	ibv_wr_set_sge(qpx, end.mr->lkey, (uintptr_t)end.memory, 8)
	ibv_wr_start(qpx);
	ibv_wr_set_sge(qpx, end.mr->lkey, (uintptr_t)end.memory, 8);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	ibv_wr_start(qpx);
	WRITE(1);
	WRITE(2);
	ibv_wr_set_sge_list(qpx, 1 << 30, NULL);
	CHECK(ibv_wr_complete(qpx) == EINVAL && is_empty(end.cq));
	ibv_wr_start(qpx);
	WRITE(3);
	ibv_wr_set_inline_data(qpx, end.memory, SIZE_MAX);
	CHECK(ibv_wr_complete(qpx) == EINVAL && is_empty(end.cq));
	ibv_wr_start(qpx);
	WRITE(4);
	ibv_wr_abort(qpx);
	CHECK(is_empty(end.cq));
	ibv_wr_start(qpx);
	WRITE(5);
	WRITE(6);
	CHECK(ibv_wr_complete(qpx) == 0 && next(end.cq).wr_id == 5 && next(end.cq).wr_id == 6);
	/* All or none: with one request too many, or an invalid request in the middle, nothing is posted. */
	ibv_wr_start(qpx);
	for (int i = 0; i <= DEPTH; i++) {
		WRITE(100 + i);
	}
	CHECK(ibv_wr_complete(qpx) == ENOMEM && is_empty(end.cq));
	ibv_wr_start(qpx);
	WRITE(7);
	WRITE(8);
	ibv_wr_set_sge_list(qpx, 17, many);
	WRITE(9);
	CHECK(ibv_wr_complete(qpx) == EINVAL && is_empty(end.cq));
	ibv_wr_start(qpx);
	for (int i = 0; i < DEPTH; i++) {
		WRITE(200 + i);
	}
	CHECK(ibv_wr_complete(qpx) == 0);
	for (uint64_t i = 0; i < DEPTH; i++)
		CHECK(next(end.cq).wr_id == 200 + i);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

/* Memory registered under another address, and re-registration. */
static void names_of_memory(void)
{
	uint64_t iova = 0x7000000000;
	struct ibv_qp *a = make_qp(&end), *b = make_qp(&end);
	ready(a), ready(b);
	connect_to(a, connection_data_of(&end, b)), connect_to(b, connection_data_of(&end, a));
	struct ibv_mr *mr = ibv_reg_mr_iova(end.pd, end.memory + PAGE, PAGE, iova, ALL);
	CHECK(mr);
	strcpy(end.memory, "named");
	CHECK(post_write(a, &end, 1, iova + 16, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(end.memory + PAGE + 16, "named") == 0);
	/* New access flags at the same address. */
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) == 0);
	CHECK(post_write(a, &end, 2, iova + 32, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(end.memory + PAGE + 32, "named") == 0);
	/* Other memory with the same access flags, at its own address. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, end.memory + PAGE + 64, 64, 0) == 0);
	CHECK(post_write(a, &end, 3, (uintptr_t)end.memory + PAGE + 64, mr->rkey) == 0);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS && strcmp(end.memory + PAGE + 64, "named") == 0);
	/* A refused call changes nothing. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, end.memory, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(post_write(a, &end, 4, (uintptr_t)end.memory + PAGE + 64, mr->rkey) == 0);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

int main(void)
{
	alarm(60);
	end = open_end();
	what_is_not_there();
	queue_pairs_beyond_the_limits();
	memory_that_cannot_be();
	what_is_in_use();
	multicast_groups();
	shared_receives();
	requests();
	built_requests();
	names_of_memory();
	CHECK(ibv_dereg_mr(end.mr) == 0 && ibv_destroy_cq(end.cq) == 0 && ibv_destroy_comp_channel(end.channel) == 0);
	CHECK(ibv_dealloc_pd(end.pd) == 0 && ibv_close_device(end.context) == 0);
	return 0;
}
