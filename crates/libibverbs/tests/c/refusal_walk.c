/* Every entry point that can refuse a call, by a call that it refuses, made twice.
 *
 * refusal_walk: before each entry point writes "== NAME CALL" to standard error, where CALL is the verb that the library names.
 * refusal_walk names OFFSET...: prints the names, and checks that every slot of the tables of operations has a row, or is at one of these
 * offsets of `verbs_context`.
 * refusal_walk success: calls that succeed.
 * refusal_walk open: opens the device, which fails, three times. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>

#include "refusal_walk_rdmacm.h"

static void alloc_pd(void) { NULL_TWICE(ibv_alloc_pd(NULL)); }
static void dealloc_pd(void) { struct ibv_pd *pd = old_pd(); TWICE(ibv_dealloc_pd(pd) == ENOENT); }
static void close_device(void) { struct ibv_context *context = old_context(); TWICE(ibv_close_device(context) == -1); }
static void create_comp_channel(void) { NULL_TWICE(ibv_create_comp_channel(NULL)); }
static void destroy_comp_channel(void) { struct ibv_comp_channel *old = old_channel(); TWICE(ibv_destroy_comp_channel(old) != 0); }
static void get_cq_event(void)
{
	struct ibv_comp_channel *old = old_channel();
	struct ibv_cq *cq;
	void *context;
	TWICE(ibv_get_cq_event(old, &cq, &context) == -1);
}
static void get_async_event(void)
{
	struct ibv_async_event event;
	TWICE(ibv_get_async_event(NULL, &event) == -1);
}

static void create_ah(void) { NEW(ibv_ah_attr, lid, .dlid = 1, .port_num = 1); NULL_TWICE(ibv_create_ah(end.pd, &lid)); }
static void create_ah_index(void)
{
	NEW(ibv_ah_attr, attr, .is_global = 1, .port_num = 1, .grh = { .sgid_index = 7, .dgid = end.gid });
	NULL_TWICE(ibv_create_ah(end.pd, &attr));
}
static void create_ah_from_wc(void)
{
	NEW(ibv_wc, wc, 0);
	NEW(ibv_grh, grh, 0);
	NULL_TWICE(ibv_create_ah_from_wc(end.pd, &wc, &grh, 1));
}
static void init_ah_from_wc(void)
{
	NEW(ibv_wc, wc, 0);
	NEW(ibv_grh, grh, 0);
	NEW(ibv_ah_attr, attr, 0);
	TWICE(ibv_init_ah_from_wc(end.context, 1, &wc, &grh, &attr) == -1);
}
static void destroy_ah(void)
{
	NEW(ibv_ah_attr, attr, .is_global = 1, .port_num = 1, .grh.dgid = end.gid);
	struct ibv_ah *ah = ibv_create_ah(end.pd, &attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	TWICE(ibv_destroy_ah(ah) == ENOENT);
}

static void attach_mcast(void)
{
	struct ibv_qp *qp = make_qp(&end);
	union ibv_gid gid = mcast_gid(0);
	TWICE(ibv_attach_mcast(qp, &gid, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void detach_mcast(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
	union ibv_gid gid = mcast_gid(0);
	CHECK(qp);
	TWICE(ibv_detach_mcast(qp, &gid, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void attach_mcast_null(void)
{
	struct ibv_qp *qp = make_qp(&end);
	TWICE(ibv_attach_mcast(qp, NULL, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void create_cq(void) { NULL_TWICE(ibv_create_cq(end.context, 0, NULL, NULL, 0)); }
static void resize_cq(void) { struct ibv_cq *cq = make_cq(); TWICE(ibv_resize_cq(cq, -1) == EINVAL); CHECK(ibv_destroy_cq(cq) == 0); }
static void destroy_cq(void) { struct ibv_cq *old = old_cq(); TWICE(ibv_destroy_cq(old) == ENOENT); }

static void create_qp(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_RAW_PACKET;
	NULL_TWICE(ibv_create_qp(end.pd, &init));
}
static void modify_qp(void)
{
	struct ibv_qp *qp = make_qp(&end);
	NEW(ibv_qp_attr, attr, .qp_state = IBV_QPS_RTS);
	TWICE(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}
/* The address of a program to which no GID index was given (-g is missing). */
static void modify_qp_lid(void)
{
	struct ibv_qp *qp = make_qp(&end);
	ready(qp);
	NEW(ibv_qp_attr, attr, .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .ah_attr = { .dlid = 1, .port_num = 1 });
	TWICE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void query_qp(void)
{
	struct ibv_qp *old = old_qp();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	TWICE(ibv_query_qp(old, &attr, IBV_QP_STATE, &init) == ENOENT);
}
static void destroy_qp(void) { struct ibv_qp *old = old_qp(); TWICE(ibv_destroy_qp(old) == ENOENT); }
static void set_ece(void)
{
	struct ibv_qp *qp = make_qp(&end);
	NEW(ibv_ece, ece, .vendor_id = 1);
	TWICE(ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void create_srq(void) { NEW(ibv_srq_init_attr, init, .attr = { .max_wr = UINT32_MAX }); NULL_TWICE(ibv_create_srq(end.pd, &init)); }
static void modify_srq(void)
{
	struct ibv_srq *srq = make_srq();
	NEW(ibv_srq_attr, attr, .srq_limit = 8);
	TWICE(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0);
}
static void query_srq(void) { struct ibv_srq *old = old_srq(); struct ibv_srq_attr attr; TWICE(ibv_query_srq(old, &attr) == ENOENT); }
static void destroy_srq(void) { struct ibv_srq *old = old_srq(); TWICE(ibv_destroy_srq(old) == ENOENT); }
static void get_srq_num(void)
{
	struct ibv_srq *srq = make_srq();
	uint32_t number;
	TWICE(ibv_get_srq_num(srq, &number) != 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void reg_mr(void) { NULL_TWICE(ibv_reg_mr(end.pd, NULL, PAGE, ALL)); }
static void reg_mr_iova(void) { NULL_TWICE(ibv_reg_mr_iova(end.pd, end.memory, PAGE, 1, ALL)); }
static void reg_mr_iova2(void) { NULL_TWICE(ibv_reg_mr_iova2(end.pd, end.memory, PAGE, (uintptr_t)end.memory, IBV_ACCESS_ZERO_BASED)); }
static void reg_mr_empty(void) { NULL_TWICE(ibv_reg_mr(end.pd, end.memory, 0, ALL)); }
static void reg_mr_around(void) { NULL_TWICE(ibv_reg_mr(end.pd, end.memory, SIZE_MAX, ALL)); }
static void reg_mr_huge(void) { NULL_TWICE(ibv_reg_mr(end.pd, end.memory, 1ul << 46, ALL)); }
static void reg_dmabuf_mr(void) { NULL_TWICE(ibv_reg_dmabuf_mr(end.pd, 0, PAGE, 0, 0, ALL)); }
static void rereg_mr(void) { TWICE(ibv_rereg_mr(end.mr, 0, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT); }
static void dereg_mr(void)
{
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.memory, PAGE, ALL);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	TWICE(ibv_dereg_mr(mr) == ENOENT);
}

static void get_pkey_index(void) { TWICE(ibv_get_pkey_index(end.context, 1, 7) == -1); }
static void query_pkey(void) { uint16_t pkey; TWICE(ibv_query_pkey(end.context, 1, 5, &pkey) == -1); }
static void query_port(void) { struct ibv_port_attr port; TWICE(ibv_query_port(end.context, 2, &port) == EINVAL); }
static void query_gid(void) { union ibv_gid gid; TWICE(ibv_query_gid(end.context, 1, -1, &gid) == -1 && errno == EINVAL); }
static void query_gid_ex(void) { struct ibv_gid_entry entry; TWICE(ibv_query_gid_ex(end.context, 2, 0, &entry, 0) == EINVAL); }
static void query_gid_ex_flags(void) { struct ibv_gid_entry entry; TWICE(ibv_query_gid_ex(end.context, 1, 0, &entry, 1) == EOPNOTSUPP); }
static void query_gid_table(void) { struct ibv_gid_entry entry[4]; TWICE(ibv_query_gid_table(end.context, entry, 1, 0) == -EINVAL); }
static void query_gid_type(void)
{
	int (*query)(struct ibv_context *, uint8_t, unsigned, unsigned *) = dlsym(RTLD_DEFAULT, "ibv_query_gid_type");
	unsigned type;
	CHECK(query);
	TWICE(query(end.context, 2, 0, &type) == -1);
}
static void read_missing_sysfs_file(void)
{
	int (*read_file)(const char *, const char *, char *, size_t) = dlsym(RTLD_DEFAULT, "ibv_read_sysfs_file");
	char text[64];
	CHECK(read_file);
	CHECK(read_file("/sys/class/infiniband/mitra0", "board_id", text, sizeof(text)) == -1);
}

static void query_device_ex(void)
{
	struct ibv_device_attr_ex attr;
	NEW(ibv_query_device_ex_input, input, .comp_mask = 1);
	TWICE(verbs_get_ctx(end.context)->query_device_ex(end.context, &input, &attr, sizeof(attr)) == EINVAL);
}
static void create_cq_ex(void)
{
	NEW(ibv_cq_init_attr_ex, attr, .cqe = 4, .wc_flags = IBV_WC_EX_WITH_CVLAN);
	NULL_TWICE(ibv_create_cq_ex(end.context, &attr));
}
static void create_cq_ex_parent(void)
{
	NEW(ibv_cq_init_attr_ex, attr, .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = end.pd);
	NULL_TWICE(ibv_create_cq_ex(end.context, &attr));
}
static void create_qp_ex(void)
{
	struct ibv_qp_init_attr_ex init = extended_init();
	init.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NULL_TWICE(ibv_create_qp_ex(end.context, &init));
}
static void create_qp_ex_pd(void)
{
	struct ibv_qp_init_attr_ex init = extended_init();
	init.comp_mask = 0, init.pd = NULL;
	init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	NULL_TWICE(ibv_create_qp_ex(end.context, &init));
}
static void create_srq_ex(void)
{
	NEW(ibv_srq_init_attr_ex, init, .attr = { .max_wr = 4, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_TM, .pd = end.pd);
	NULL_TWICE(ibv_create_srq_ex(end.context, &init));
}
static void open_xrcd(void) { NEW(ibv_xrcd_init_attr, init, 0); NULL_TWICE(ibv_open_xrcd(end.context, &init)); }
static void open_xrcd_fd(void)
{
	NEW(ibv_xrcd_init_attr, init, .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -7, .oflags = O_CREAT);
	NULL_TWICE(ibv_open_xrcd(end.context, &init));
}
static void close_xrcd(void)
{
	NEW(ibv_xrcd_init_attr, init, .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT);
	struct ibv_xrcd *xrcd = ibv_open_xrcd(end.context, &init);
	CHECK(xrcd && ibv_close_xrcd(xrcd) == 0);
	TWICE(ibv_close_xrcd(xrcd) == ENOENT);
}
static void open_qp(void) { NEW(ibv_qp_open_attr, attr, 0); NULL_TWICE(ibv_open_qp(end.context, &attr)); }
static void alloc_td(void) { NEW(ibv_td_init_attr, init, .comp_mask = 1); NULL_TWICE(ibv_alloc_td(end.context, &init)); }
static void dealloc_td(void)
{
	NEW(ibv_td_init_attr, init, 0);
	struct ibv_td *td = ibv_alloc_td(end.context, &init);
	CHECK(td && ibv_dealloc_td(td) == 0);
	TWICE(ibv_dealloc_td(td) == ENOENT);
}
static void alloc_parent_domain(void) { NEW(ibv_parent_domain_init_attr, attr, 0); NULL_TWICE(ibv_alloc_parent_domain(end.context, &attr)); }
static void advise_mr(void)
{
	NEW(ibv_sge, sge, (uintptr_t)end.memory, 8, end.mr->lkey);
	TWICE(ibv_advise_mr(end.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == EINVAL);
}
static void alloc_dm(void) { NEW(ibv_alloc_dm_attr, attr, 0); NULL_TWICE(ibv_alloc_dm(end.context, &attr)); }
static struct ibv_dm *make_dm(void)
{
	NEW(ibv_alloc_dm_attr, attr, .length = 64);
	struct ibv_dm *dm = ibv_alloc_dm(end.context, &attr);
	CHECK(dm);
	return dm;
}
static void free_dm(void) { struct ibv_dm *dm = make_dm(); CHECK(ibv_free_dm(dm) == 0); TWICE(verbs_get_ctx(end.context)->free_dm(dm) == ENOENT); }
static void reg_dm_mr(void) { struct ibv_dm *dm = make_dm(); NULL_TWICE(ibv_reg_dm_mr(end.pd, dm, 0, 8, 0)); CHECK(ibv_free_dm(dm) == 0); }
static void memcpy_to_dm(void) { struct ibv_dm *dm = make_dm(); TWICE(ibv_memcpy_to_dm(dm, 1, end.memory, 4) == EINVAL); CHECK(ibv_free_dm(dm) == 0); }
static void memcpy_from_dm(void) { struct ibv_dm *dm = make_dm(); TWICE(ibv_memcpy_from_dm(end.memory, dm, 64, 4) != 0); CHECK(ibv_free_dm(dm) == 0); }
static void alloc_null_mr(void) { struct ibv_pd *old = old_pd(); NULL_TWICE(ibv_alloc_null_mr(old)); }

static void poll_cq(void) { struct ibv_wc wc; TWICE(ibv_poll_cq(end.cq, -1, &wc) < 0); }
static void poll_old_cq(void)
{
	struct ibv_cq *old = old_cq();
	struct ibv_wc wc;
	TWICE(ibv_poll_cq(old, 1, &wc) < 0);
}
static void req_notify_cq(void) { struct ibv_cq *old = old_cq(); TWICE(ibv_req_notify_cq(old, 0) == ENOENT); }
static void post_send(void)
{
	struct ibv_qp *qp = make_qp(&end);
	TWICE(post_write(qp, &end, 1, 0, 0) == EINVAL && errno == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void post_send_opcode(void)
{
	struct ibv_qp *qp = make_qp(&end);
	NEW(ibv_send_wr, wr, .opcode = IBV_WR_TSO), *bad;
	TWICE(ibv_post_send(qp, &wr, &bad) == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void post_recv(void)
{
	struct ibv_qp *qp = make_qp(&end);
	NEW(ibv_recv_wr, wr, .num_sge = 1), *bad;
	TWICE(ibv_post_recv(qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void post_srq_recv(void)
{
	struct ibv_srq *srq = make_srq();
	NEW(ibv_recv_wr, wr, .num_sge = -1), *bad;
	TWICE(ibv_post_srq_recv(srq, &wr, &bad) == EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0);
}
static void alloc_mw(void) { NULL_TWICE(ibv_alloc_mw(end.pd, 7)); }
static void alloc_mw_of_old_pd(void) { struct ibv_pd *old = old_pd(); NULL_TWICE(ibv_alloc_mw(old, IBV_MW_TYPE_1)); }
static void bind_mw(void)
{
	struct ibv_qp *qp = make_qp(&end);
	NEW(ibv_mw, none, .context = end.context, .type = IBV_MW_TYPE_1);
	NEW(ibv_mw_bind, bind, .bind_info = { .length = 8 });
	TWICE(end.context->ops.bind_mw(qp, &none, &bind) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}
static void dealloc_mw(void) { TWICE(end.context->ops.dealloc_mw(NULL) == EINVAL); }

static struct ibv_cq_ex *extended_cq(void)
{
	NEW(ibv_cq_init_attr_ex, attr, .cqe = 4);
	struct ibv_cq_ex *cq = ibv_create_cq_ex(end.context, &attr);
	CHECK(cq);
	return cq;
}
static void start_poll(void)
{
	struct ibv_cq_ex *cq = extended_cq();
	NEW(ibv_poll_cq_attr, attr, .comp_mask = 1);
	TWICE(ibv_start_poll(cq, &attr) == EINVAL);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}
static void next_poll(void)
{
	struct ibv_cq_ex *cq = extended_cq();
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	TWICE(cq->next_poll(cq) == ENOENT);
}
static void wr_complete(void)
{
	struct ibv_qp_init_attr_ex init = extended_init();
	struct ibv_qp *qp = ibv_create_qp_ex(end.context, &init);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(qp && ex);
	TWICE((ibv_wr_start(ex), ibv_wr_set_sge(ex, 0, 0, 0), ibv_wr_complete(ex)) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A row: the entry point, the verb that the library names, and the function that makes the calls. A slot of a table has its offset. */
struct row {
	const char *name, *call;
	void (*make)(void);
	long slot, operation;
};
#define EXPORTED(name, make) { #name, #name, make, -1, -1 }
#define CALLED(name, call, make) { #name, #call, make, -1, -1 }
#define SLOT(field, call, make) { "verbs_context." #field, #call, make, offsetof(struct verbs_context, field), -1 }
#define OPERATION(field, call, make) { "ibv_context_ops." #field, #call, make, -1, offsetof(struct ibv_context_ops, field) }
static const struct row rows[] = {
	EXPORTED(ibv_alloc_pd, alloc_pd), EXPORTED(ibv_dealloc_pd, dealloc_pd), EXPORTED(ibv_close_device, close_device),
	EXPORTED(ibv_create_comp_channel, create_comp_channel), EXPORTED(ibv_destroy_comp_channel, destroy_comp_channel),
	EXPORTED(ibv_get_cq_event, get_cq_event), EXPORTED(ibv_get_async_event, get_async_event),
	EXPORTED(ibv_create_ah, create_ah), EXPORTED(ibv_create_ah, create_ah_index),
	CALLED(ibv_create_ah_from_wc, ibv_create_ah_from_wc, create_ah_from_wc),
	EXPORTED(ibv_init_ah_from_wc, init_ah_from_wc), EXPORTED(ibv_destroy_ah, destroy_ah),
	EXPORTED(ibv_attach_mcast, attach_mcast), EXPORTED(ibv_detach_mcast, detach_mcast), EXPORTED(ibv_attach_mcast, attach_mcast_null),
	EXPORTED(ibv_create_cq, create_cq), EXPORTED(ibv_resize_cq, resize_cq), EXPORTED(ibv_destroy_cq, destroy_cq),
	EXPORTED(ibv_create_qp, create_qp), EXPORTED(ibv_modify_qp, modify_qp), EXPORTED(ibv_modify_qp, modify_qp_lid),
	EXPORTED(ibv_query_qp, query_qp), EXPORTED(ibv_destroy_qp, destroy_qp), EXPORTED(ibv_set_ece, set_ece),
	EXPORTED(ibv_create_srq, create_srq), EXPORTED(ibv_modify_srq, modify_srq), EXPORTED(ibv_query_srq, query_srq),
	EXPORTED(ibv_destroy_srq, destroy_srq),
	EXPORTED(ibv_reg_mr, reg_mr), CALLED(ibv_reg_mr_iova, ibv_reg_mr, reg_mr_iova), CALLED(ibv_reg_mr_iova2, ibv_reg_mr, reg_mr_iova2),
	EXPORTED(ibv_reg_mr, reg_mr_empty), EXPORTED(ibv_reg_mr, reg_mr_around), EXPORTED(ibv_reg_mr, reg_mr_huge),
	EXPORTED(ibv_reg_dmabuf_mr, reg_dmabuf_mr), EXPORTED(ibv_rereg_mr, rereg_mr), EXPORTED(ibv_dereg_mr, dereg_mr),
	EXPORTED(ibv_get_pkey_index, get_pkey_index), EXPORTED(ibv_query_pkey, query_pkey), EXPORTED(ibv_query_port, query_port),
	EXPORTED(ibv_query_gid, query_gid), CALLED(_ibv_query_gid_ex, ibv_query_gid_ex, query_gid_ex),
	CALLED(_ibv_query_gid_ex, ibv_query_gid_ex, query_gid_ex_flags), CALLED(_ibv_query_gid_table, ibv_query_gid_table, query_gid_table),
	EXPORTED(ibv_query_gid_type, query_gid_type),
	SLOT(query_device_ex, ibv_query_device_ex, query_device_ex), SLOT(create_cq_ex, ibv_create_cq_ex, create_cq_ex),
	SLOT(create_cq_ex, ibv_create_cq_ex, create_cq_ex_parent), SLOT(create_qp_ex, ibv_create_qp_ex, create_qp_ex),
	SLOT(create_qp_ex, ibv_create_qp_ex, create_qp_ex_pd),
	SLOT(create_srq_ex, ibv_create_srq_ex, create_srq_ex), SLOT(open_xrcd, ibv_open_xrcd, open_xrcd),
	SLOT(open_xrcd, ibv_open_xrcd, open_xrcd_fd), SLOT(close_xrcd, ibv_close_xrcd, close_xrcd),
	SLOT(get_srq_num, ibv_get_srq_num, get_srq_num), SLOT(open_qp, ibv_open_qp, open_qp), SLOT(alloc_td, ibv_alloc_td, alloc_td),
	SLOT(dealloc_td, ibv_dealloc_td, dealloc_td), SLOT(alloc_parent_domain, ibv_alloc_parent_domain, alloc_parent_domain),
	SLOT(advise_mr, ibv_advise_mr, advise_mr), SLOT(alloc_null_mr, ibv_alloc_null_mr, alloc_null_mr),
	SLOT(alloc_dm, ibv_alloc_dm, alloc_dm), SLOT(free_dm, ibv_free_dm, free_dm), SLOT(reg_dm_mr, ibv_reg_dm_mr, reg_dm_mr),
	CALLED(ibv_dm.memcpy_to_dm, ibv_memcpy_to_dm, memcpy_to_dm), CALLED(ibv_dm.memcpy_from_dm, ibv_memcpy_from_dm, memcpy_from_dm),
	OPERATION(poll_cq, ibv_poll_cq, poll_cq), OPERATION(poll_cq, ibv_poll_cq, poll_old_cq),
	OPERATION(req_notify_cq, ibv_req_notify_cq, req_notify_cq),
	OPERATION(post_send, ibv_post_send, post_send), OPERATION(post_send, ibv_post_send, post_send_opcode),
	OPERATION(post_recv, ibv_post_recv, post_recv), OPERATION(post_srq_recv, ibv_post_srq_recv, post_srq_recv),
	OPERATION(alloc_mw, ibv_alloc_mw, alloc_mw), OPERATION(alloc_mw, ibv_alloc_mw, alloc_mw_of_old_pd),
	OPERATION(bind_mw, ibv_bind_mw, bind_mw), OPERATION(dealloc_mw, ibv_dealloc_mw, dealloc_mw),
	CALLED(ibv_cq_ex.start_poll, ibv_start_poll, start_poll), CALLED(ibv_cq_ex.next_poll, ibv_next_poll, next_poll),
	CALLED(ibv_qp_ex.wr_complete, ibv_wr_complete, wr_complete),
	EXPORTED(rdma_create_id, create_id), EXPORTED(rdma_destroy_id, destroy_id), EXPORTED(rdma_migrate_id, migrate_id),
	EXPORTED(rdma_bind_addr, bind_addr), EXPORTED(rdma_resolve_addr, resolve_addr), EXPORTED(rdma_resolve_addr, resolve_addr_family),
	EXPORTED(rdma_resolve_route, resolve_route), EXPORTED(rdma_listen, rdma_listen_unknown), EXPORTED(rdma_connect, rdma_connect_early),
	EXPORTED(rdma_accept, rdma_accept_early), EXPORTED(rdma_reject, rdma_reject_early), EXPORTED(rdma_reject_ece, rdma_reject_ece_early),
	EXPORTED(rdma_establish, rdma_establish_early), EXPORTED(rdma_notify, rdma_notify_early),
	EXPORTED(rdma_create_qp, rdma_create_qp_early), EXPORTED(rdma_create_qp_ex, rdma_create_qp_ex_early),
	EXPORTED(rdma_create_srq, rdma_create_srq_early), EXPORTED(rdma_create_srq_ex, rdma_create_srq_ex_type),
	EXPORTED(rdma_init_qp_attr, rdma_init_qp_attr_early), EXPORTED(rdma_join_multicast, rdma_join_multicast_tcp),
	EXPORTED(rdma_join_multicast_ex, rdma_join_multicast_ex_mask), EXPORTED(rdma_leave_multicast, rdma_leave_multicast_other),
	EXPORTED(rdma_get_request, rdma_get_request_active), EXPORTED(rdma_set_option, rdma_set_option_unknown),
	EXPORTED(rdma_getaddrinfo, rdma_getaddrinfo_nothing), EXPORTED(rdma_create_ep, rdma_create_ep_space),
	EXPORTED(rdma_get_cm_event, rdma_get_cm_event_null), EXPORTED(rdma_ack_cm_event, rdma_ack_cm_event_unknown),
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* Checks that every pointer in the tables of operations has a row or is at one of the offsets. */
static void names(char **offsets)
{
	struct verbs_context *table = verbs_get_ctx(end.context);
	for (size_t at = 0; at < sizeof(*table); at += sizeof(void *)) {
		bool is_operation = at >= offsetof(struct verbs_context, context.ops)
			&& at < offsetof(struct verbs_context, context.ops) + sizeof(struct ibv_context_ops);
		bool is_slot = at < offsetof(struct verbs_context, priv);
		void *entry;
		memcpy(&entry, (char *)table + at, sizeof(entry));
		/* `query_port` is also an exported function, with the same code. */
		if (!entry || !(is_operation || is_slot) || at == offsetof(struct verbs_context, query_port))
			continue;
		bool found = false;
		for (int i = 0; i < ROWS; i++)
			found |= is_operation ? rows[i].operation == (long)(at - offsetof(struct verbs_context, context.ops)) : rows[i].slot == (long)at;
		for (char **offset = offsets; *offset; offset++)
			found |= atol(*offset) == (long)at;
		if (!found)
			printf("no row for the slot at offset %zu\n", at);
	}
	for (int i = 0; i < ROWS; i++)
		puts(rows[i].name);
}

/* The life of objects of every kind, with a WRITE between two queue pairs. */
static void success(void)
{
	struct ibv_device_attr device;
	struct ibv_device_attr_ex device_ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[4];
	struct ibv_wc wc;
	union ibv_gid gid;
	uint16_t pkey;
	CHECK(ibv_query_device(end.context, &device) == 0 && ibv_query_device_ex(end.context, NULL, &device_ex) == 0);
	read_missing_sysfs_file();
	CHECK(ibv_query_port(end.context, 1, &port) == 0 && ibv_query_gid(end.context, 1, 1, &gid) == 0);
	for (int index = 0; index < port.gid_tbl_len; index++)
		CHECK(ibv_query_gid(end.context, 1, index, &gid) == 0);
	CHECK(ibv_query_gid_table(end.context, entries, 4, 0) == 2 && ibv_query_pkey(end.context, 1, 0, &pkey) == 0);
	struct ibv_qp *a = make_qp(&end), *b = make_qp(&end);
	struct connection_data to = connection_data_of(&end, b);
	ready(a), ready(b);
	connect_to(a, to), connect_to(b, connection_data_of(&end, a));
	CHECK(post_write(a, &end, 1, to.addr, to.rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(end.cq, 1, &wc) == 0 && ibv_req_notify_cq(end.cq, 0) == 0);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_srq(make_srq()) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(extended_cq())) == 0);
	CHECK(ibv_rereg_mr(end.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
	NEW(ibv_ah_attr, attr, .is_global = 1, .port_num = 1, .grh.dgid = end.gid);
	struct ibv_ah *ah = ibv_create_ah(end.pd, &attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0 && rdma_listen(id, 1) == 0 && rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	CHECK(ibv_dereg_mr(end.mr) == 0 && ibv_destroy_cq(end.cq) == 0 && ibv_destroy_comp_channel(end.channel) == 0);
	CHECK(ibv_dealloc_pd(end.pd) == 0 && ibv_close_device(end.context) == 0);
}

int main(int argc, char **argv)
{
	alarm(60);
	setbuf(stderr, NULL);
	if (argc > 1 && strcmp(argv[1], "open") == 0) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		TWICE(ibv_open_device(list[0]) == NULL && errno == EIO);
		struct rdma_cm_id *id;
		CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == -1);
		return 0;
	}
	end = open_end();
	if (argc > 1 && strcmp(argv[1], "names") == 0) {
		names(argv + 2);
	} else if (argc > 1 && strcmp(argv[1], "success") == 0) {
		success();
	} else {
		for (int i = 0; i < ROWS; i++) {
			fprintf(stderr, "== %s %s\n", rows[i].name, rows[i].call);
			rows[i].make();
		}
	}
	return 0;
}
