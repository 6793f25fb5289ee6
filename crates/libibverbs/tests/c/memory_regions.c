/* Memory regions: what cannot be registered, re-registration, null regions, and on-demand paging. */
#include "rail_faults.h"
#include "test_support.h"

static struct end end;
static struct ibv_qp *a, *b;

/* The numbers of pages: of a range with all pages touched but the last, and of a range with few touched pages. */
enum { SHORT = 4, LONG = 600, LOCAL = IBV_ACCESS_LOCAL_WRITE };

static char *pages(size_t n)
{
	char *start = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(start != MAP_FAILED);
	return start;
}

static void connect_ends(void)
{
	a = make_qp(&end), b = make_qp(&end);
	ready(a), ready(b);
	connect_to(a, connection_data_of(&end, b)), connect_to(b, connection_data_of(&end, a));
}

/* Posts a receive on b and a signalled SEND on a, both of 8 bytes, and returns the completion of the SEND. */
static enum ibv_wc_status message(struct ibv_sge from, struct ibv_sge to, enum ibv_wc_status *received)
{
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 1, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	enum ibv_wc_status sent = IBV_WC_GENERAL_ERR;
	CHECK(ibv_post_recv(b, &recv, &bad_recv) == 0 && ibv_post_send(a, &send, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next(end.cq);
		*(wc.wr_id == 1 ? &sent : received) = wc.status;
	}
	return sent;
}

static struct ibv_sge entry(void *at, struct ibv_mr *mr)
{
	return (struct ibv_sge){ (uintptr_t)at, 8, mr->lkey };
}

/* Checks that a range of n pages is refused if its page `at` has other rights. */
static void page_without_rights(size_t n, size_t at)
{
	struct ibv_mr *mr;
	char *start = pages(n), *page = start + at * PAGE;
	memset(start, 'x', n * PAGE);
	CHECK(mr = ibv_reg_mr(end.pd, start, n * PAGE, ALL));
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(start[0] == 'x' && page[0] == 'x' && page[7] == 'x' && start[n * PAGE - 1] == 'x');

	CHECK(mprotect(page, PAGE, PROT_READ) == 0);
	REFUSED(EFAULT, ibv_reg_mr(end.pd, start, n * PAGE, LOCAL));
	REFUSED(EFAULT, ibv_reg_mr(end.pd, start, n * PAGE, ALL));
	REFUSED(EFAULT, ibv_reg_mr(end.pd, start, n * PAGE, IBV_ACCESS_MW_BIND));
	CHECK(mr = ibv_reg_mr(end.pd, start, n * PAGE, IBV_ACCESS_REMOTE_READ));
	/* A readable page cannot get a right to write. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL) == IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK(ibv_dereg_mr(mr) == 0);

	CHECK(mprotect(page, PAGE, PROT_NONE) == 0);
	REFUSED(EFAULT, ibv_reg_mr(end.pd, start, n * PAGE, 0));
	CHECK(munmap(page, PAGE) == 0);
	REFUSED(EFAULT, ibv_reg_mr(end.pd, start, n * PAGE, 0));
	REFUSED(EFAULT, ibv_reg_mr(end.pd, start, n * PAGE, LOCAL));
	CHECK(munmap(start, n * PAGE) == 0);
}

static void unregisterable(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	CHECK(pd = ibv_alloc_pd(end.context));
	REFUSED(EFAULT, ibv_reg_mr(pd, NULL, PAGE, LOCAL));
	REFUSED(EFAULT, ibv_reg_mr(pd, NULL, PAGE, 0));
	REFUSED(ENOMEM, ibv_reg_mr(pd, end.memory, (size_t)64 << 40, LOCAL));
	REFUSED(ENOMEM, ibv_reg_mr_iova(pd, end.memory, (size_t)64 << 40, 0x7000000000, LOCAL));
	REFUSED(EINVAL, ibv_reg_mr(pd, end.memory, SIZE_MAX, LOCAL));
	for (size_t at = 0; at < SHORT; at++)
		page_without_rights(SHORT, at);
	page_without_rights(LONG, 0);
	page_without_rights(LONG, LONG / 2);
	page_without_rights(LONG, LONG - 1);

	/* Pages beyond the end of a file cannot be accessed. */
	FILE *file = tmpfile();
	CHECK(file && ftruncate(fileno(file), PAGE) == 0);
	char *mapped = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	CHECK(mapped != MAP_FAILED);
	REFUSED(EFAULT, ibv_reg_mr(pd, mapped, 2 * PAGE, LOCAL));
	CHECK(mr = ibv_reg_mr(pd, mapped, PAGE, LOCAL));
	CHECK(ibv_dereg_mr(mr) == 0);

	/* The file's last page is the only one of a long region that cannot be accessed. */
	CHECK(ftruncate(fileno(file), (LONG - 1) * PAGE) == 0);
	mapped = mmap(NULL, LONG * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	CHECK(mapped != MAP_FAILED);
	REFUSED(EFAULT, ibv_reg_mr(pd, mapped, LONG * PAGE, LOCAL));
	CHECK(mr = ibv_reg_mr(pd, mapped, (LONG - 1) * PAGE, LOCAL));
	CHECK(ibv_dereg_mr(mr) == 0);

	/* A region without bytes has a page, except at the beginning of a page. */
	REFUSED(EINVAL, ibv_reg_mr(pd, end.memory, 0, LOCAL));
	CHECK(mr = ibv_reg_mr(pd, end.memory + 8, 0, LOCAL));
	CHECK(mr->length == 0 && ibv_dereg_mr(mr) == 0);
	/* As soft-RoCE, the device has no zero-based regions, except by ibv_reg_mr_iova, and no dma-bufs. */
	REFUSED(EOPNOTSUPP, ibv_reg_mr(pd, end.memory, PAGE, LOCAL | IBV_ACCESS_ZERO_BASED));
	REFUSED(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fileno(file), LOCAL));
	CHECK(mr = ibv_reg_mr_iova(pd, end.memory, PAGE, 0, LOCAL));
	CHECK(ibv_dereg_mr(mr) == 0);
	/* The device ignores optional flags and the page size. */
	CHECK(mr = ibv_reg_mr(pd, end.memory, PAGE, LOCAL | IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB));
	CHECK(ibv_dereg_mr(mr) == 0);
	/* The refused registrations do not use the domain. */
	CHECK(ibv_dealloc_pd(pd) == 0);
}

static void reregistration(void)
{
	struct ibv_mr *mr;
	struct ibv_pd *pd;
	enum ibv_wc_status received;
	char *old = pages(SHORT), *new = pages(SHORT), *hole = pages(SHORT);
	CHECK(munmap(hole + PAGE, PAGE) == 0);
	CHECK(pd = ibv_alloc_pd(end.context));
	CHECK(mr = ibv_reg_mr(end.pd, old, SHORT * PAGE, ALL));
	struct ibv_mr before = *mr;
	connect_ends();

	/* New memory under the old keys. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, new, 2 * PAGE, 0) == 0);
	CHECK(mr->lkey == before.lkey && mr->rkey == before.rkey && mr->handle == before.handle);
	CHECK(mr->addr == new && mr->length == 2 * PAGE && mr->pd == end.pd);
	strcpy(end.memory, "written");
	CHECK(post_write(a, &end, 1, (uintptr_t)new + PAGE, before.rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(new + PAGE, "written") == 0);
	strcpy(new, "sent");
	CHECK(message(entry(new, mr), entry(end.memory + PAGE, end.mr), &received) == IBV_WC_SUCCESS);
	CHECK(received == IBV_WC_SUCCESS && strcmp(end.memory + PAGE, "sent") == 0);

	/* A refused call changes nothing. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, hole, SHORT * PAGE, 0) == IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, new, (size_t)64 << 40, 0) == IBV_REREG_MR_ERR_CMD && errno == ENOMEM);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, PAGE, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, new, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, end.pd, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(mr->addr == new && mr->length == 2 * PAGE && mr->pd == end.pd);
	strcpy(end.memory, "again");
	CHECK(post_write(a, &end, 2, (uintptr_t)new, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(new, "again") == 0);

	/* The region moves to another domain and back, and uses only its present domain. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) == 0);
	CHECK(mr->pd == pd && mr->lkey == before.lkey && mr->rkey == before.rkey && mr->addr == new);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, end.pd, NULL, 0, 0) == 0 && ibv_dealloc_pd(pd) == 0);
	strcpy(end.memory, "back");
	CHECK(post_write(a, &end, 3, (uintptr_t)new, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(new, "back") == 0);

	/* An earlier receive uses memory that is not in the region any more. */
	struct ibv_sge stale = entry(new, mr);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, old, PAGE, 0) == 0);
	CHECK(message(entry(end.memory, end.mr), stale, &received) == IBV_WC_REM_OP_ERR && received == IBV_WC_LOC_PROT_ERR);
	CHECK(strcmp(new, "back") == 0);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);

	/* A peer loses a right. */
	connect_ends();
	CHECK(post_write(a, &end, 4, (uintptr_t)old, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL) == 0 && mr->rkey == before.rkey);
	CHECK(post_write(a, &end, 5, (uintptr_t)old, mr->rkey) == 0 && next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);

	/* The peer cannot use a region of another domain. */
	connect_ends();
	CHECK(pd = ibv_alloc_pd(end.context));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, ALL) == 0);
	CHECK(post_write(a, &end, 6, (uintptr_t)old, mr->rkey) == 0 && next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
	/* A peer in the new domain can use the region. */
	struct end moved = end;
	moved.pd = pd;
	struct ibv_qp *requester = make_qp(&end), *responder = make_qp(&moved);
	ready(requester), ready(responder);
	connect_to(requester, connection_data_of(&end, responder)), connect_to(responder, connection_data_of(&end, requester));
	strcpy(end.memory, "moved");
	CHECK(post_write(requester, &end, 7, (uintptr_t)old, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(old, "moved") == 0);
	if (rails() > 1) {
		fault("rail%d down", 0);
		strcpy(end.memory, "twice");
		CHECK(post_write(requester, &end, 8, (uintptr_t)old, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
		CHECK(strcmp(old, "twice") == 0);
	}
	CHECK(ibv_destroy_qp(requester) == 0 && ibv_destroy_qp(responder) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void null_regions(void)
{
	struct ibv_mr *null;
	enum ibv_wc_status received;
	CHECK(null = ibv_alloc_null_mr(end.pd));
	CHECK(null->addr == NULL && null->length == SIZE_MAX && null->lkey != end.mr->lkey);
	connect_ends();
	strcpy(end.memory, "kept");
	CHECK(message(entry(end.memory, end.mr), entry((void *)0x1234, null), &received) == IBV_WC_SUCCESS && received == IBV_WC_SUCCESS);
	CHECK(strcmp(end.memory, "kept") == 0);
	CHECK(message(entry(NULL, null), entry(end.memory, end.mr), &received) == IBV_WC_SUCCESS && received == IBV_WC_SUCCESS);
	CHECK(memcmp(end.memory, "\0\0\0\0\0\0\0", 8) == 0);
	/* The device discards the data of a READ. */
	struct ibv_sge sge = entry(NULL, null);
	struct ibv_send_wr wr = {
		.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)end.memory, end.mr->rkey },
	}, *bad;
	CHECK(ibv_post_send(a, &wr, &bad) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	/* The region has no rkey, and cannot be changed. */
	CHECK(post_write(a, &end, 4, 0, null->rkey) == 0 && next(end.cq).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) != 0 && errno == EINVAL);
	CHECK(ibv_dereg_mr(null) == 0);
}

static int advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge sge)
{
	return ibv_advise_mr(pd, advice, flags, &sge, 1);
}

static void on_demand(void)
{
	enum { DEMAND = IBV_ACCESS_ON_DEMAND, FLUSH = IBV_ADVISE_MR_FLAG_FLUSH };
	enum ibv_advise_mr_advice prefetch = IBV_ADVISE_MR_ADVICE_PREFETCH, prefetch_write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct ibv_device_attr_ex attr;
	struct ibv_mr *mr, *read_only, *pinned;
	struct ibv_pd *other;
	enum ibv_wc_status received;
	CHECK(ibv_query_device_ex(end.context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps == IBV_ODP_SUPPORT && attr.odp_caps.per_transport_caps.uc_odp_caps == 0);
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps == (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE
		| IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV));
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps == (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV));
	REFUSED(EINVAL, ibv_reg_mr(end.pd, NULL, SIZE_MAX, LOCAL | DEMAND));
	REFUSED(ENOMEM, ibv_reg_mr(end.pd, end.memory, (size_t)1 << 60, LOCAL | DEMAND));

	/* The pages must exist when they are accessed. */
	char *memory = pages(SHORT);
	CHECK(munmap(memory, SHORT * PAGE) == 0);
	CHECK(mr = ibv_reg_mr(end.pd, memory, SHORT * PAGE, ALL | DEMAND));
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory, mr)) == EFAULT);
	CHECK(advise(end.pd, prefetch, 0, entry(memory, mr)) == 0);
	CHECK(mmap(memory, SHORT * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	unsigned char present[SHORT];
	struct ibv_sge two = { (uintptr_t)memory + PAGE + 1, PAGE, mr->lkey };
	CHECK(mincore(memory, SHORT * PAGE, present) == 0 && !(present[0] & 1) && !(present[1] & 1) && !(present[2] & 1));
	CHECK(advise(end.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, FLUSH, two) == 0);
	CHECK(mincore(memory, SHORT * PAGE, present) == 0 && !(present[1] & 1));
	CHECK(advise(end.pd, prefetch_write, FLUSH, two) == 0);
	CHECK(mincore(memory, SHORT * PAGE, present) == 0 && !(present[0] & 1) && (present[1] & 1) && (present[2] & 1) && !(present[3] & 1));
	connect_ends();
	strcpy(end.memory, "demand");
	CHECK(post_write(a, &end, 1, (uintptr_t)memory, mr->rkey) == 0 && next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(strcmp(memory, "demand") == 0);

	/* Invalid advice. */
	CHECK(other = ibv_alloc_pd(end.context));
	CHECK(read_only = ibv_reg_mr(end.pd, memory, PAGE, DEMAND));
	CHECK(pinned = ibv_reg_mr(end.pd, memory, PAGE, LOCAL));
	CHECK(advise(other, prefetch, FLUSH, entry(memory, mr)) == EINVAL);
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory, pinned)) == EINVAL);
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory + SHORT * PAGE - 4, mr)) == EFAULT);
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory - 8, mr)) == EFAULT);
	CHECK(advise(end.pd, prefetch_write, FLUSH, entry(memory, read_only)) == EPERM);
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory, read_only)) == 0);
	CHECK(advise(end.pd, prefetch, 2, entry(memory, mr)) == EINVAL);
	CHECK(advise(end.pd, 3, FLUSH, entry(memory, mr)) == EOPNOTSUPP);
	CHECK(ibv_advise_mr(end.pd, prefetch, FLUSH, NULL, 0) == EINVAL);
	struct ibv_sge gone = entry(memory, read_only);
	CHECK(ibv_dereg_mr(read_only) == 0 && advise(end.pd, prefetch, FLUSH, gone) == EINVAL);

	/* A region gains and loses on-demand paging. */
	CHECK(ibv_rereg_mr(pinned, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL | DEMAND) == 0);
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory, pinned)) == 0);
	CHECK(ibv_rereg_mr(pinned, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL) == 0);
	CHECK(advise(end.pd, prefetch, FLUSH, entry(memory, pinned)) == EINVAL);

	/* An access to an unmapped page fails. */
	CHECK(munmap(memory, PAGE) == 0);
	CHECK(message(entry(end.memory, end.mr), entry(memory, mr), &received) != IBV_WC_SUCCESS && received != IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(pinned) == 0 && ibv_dealloc_pd(other) == 0);
}

/* Over NICs that need the pages of a region when it is registered. */
static void without_on_demand(void)
{
	enum { DEMAND = IBV_ACCESS_ON_DEMAND };
	struct ibv_device_attr_ex attr;
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_mr *mr;
	CHECK(ibv_query_device_ex(end.context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps == 0 && attr.odp_caps.per_transport_caps.rc_odp_caps == 0);
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps == 0 && attr.max_dm_size == 0);
	REFUSED(EOPNOTSUPP, ibv_reg_mr(end.pd, end.memory, PAGE, LOCAL | DEMAND));
	REFUSED(EOPNOTSUPP, ibv_reg_mr(end.pd, NULL, SIZE_MAX, LOCAL | DEMAND));
	CHECK(advise(end.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, entry(end.memory, end.mr)) == EOPNOTSUPP);
	REFUSED(EOPNOTSUPP, ibv_alloc_dm(end.context, &dm));
	REFUSED(EOPNOTSUPP, ibv_alloc_null_mr(end.pd));

	char *memory = pages(SHORT);
	CHECK(mr = ibv_reg_mr(end.pd, memory, SHORT * PAGE, ALL));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL | DEMAND) == IBV_REREG_MR_ERR_CMD && errno == EOPNOTSUPP);
	CHECK(ibv_dereg_mr(mr) == 0 && munmap(memory + PAGE, PAGE) == 0);
	REFUSED(EFAULT, ibv_reg_mr(end.pd, memory, SHORT * PAGE, ALL));
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "unregisterable", unregisterable }, { "reregistration", reregistration }, { "null_regions", null_regions },
		{ "on_demand", on_demand }, { "without_on_demand", without_on_demand },
	};
	CHECK(argc == 2);
	alarm(60);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
