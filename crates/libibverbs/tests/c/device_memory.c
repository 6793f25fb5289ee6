/* Device memory: allocation, copies, and regions that requests and peers use. */
#include "requester_and_responder.h"
#include <sys/wait.h>

enum { ZERO_BASED = IBV_ACCESS_ZERO_BASED, LEN = 4 * PAGE };

static size_t size_of_device_memory(void)
{
	struct ibv_device_attr_ex attr;
	CHECK(ibv_query_device_ex(end.context, NULL, &attr) == 0 && attr.max_dm_size % PAGE == 0 && attr.max_dm_size >= 16 * PAGE);
	return attr.max_dm_size;
}

static struct ibv_dm *allocate(size_t length)
{
	struct ibv_alloc_dm_attr attr = { .length = length, .log_align_req = 6 };
	return ibv_alloc_dm(end.context, &attr);
}

static void allocation(void)
{
	size_t size = size_of_device_memory();
	struct ibv_dm *half, *rest, *dm;
	struct ibv_alloc_dm_attr attr = { .length = 0 };
	REFUSED(EINVAL, ibv_alloc_dm(end.context, &attr));
	attr = (struct ibv_alloc_dm_attr){ .length = 64, .comp_mask = 1 };
	REFUSED(EINVAL, ibv_alloc_dm(end.context, &attr));
	attr = (struct ibv_alloc_dm_attr){ .length = 64, .log_align_req = 64 };
	REFUSED(EINVAL, ibv_alloc_dm(end.context, &attr));
	REFUSED(EINVAL, allocate(size + 1));
	REFUSED(EINVAL, allocate(SIZE_MAX));
	/* All contexts of the device share its memory. */
	struct end second = open_end();
	CHECK(half = allocate(size / 2));
	attr = (struct ibv_alloc_dm_attr){ .length = size / 2 };
	CHECK(rest = ibv_alloc_dm(second.context, &attr));
	CHECK(half->handle != rest->handle && half->comp_mask == IBV_DM_MASK_HANDLE && half->context == end.context);
	REFUSED(ENOMEM, allocate(1));
	REFUSED(ENOENT, ibv_reg_dm_mr(end.pd, rest, 0, 64, ALL | ZERO_BASED));
	CHECK(ibv_free_dm(rest) == 0);
	CHECK((dm = allocate(1)) && ibv_free_dm(dm) == 0);

	/* The memory cannot be freed twice, while it is registered, or by an unknown handle. */
	struct ibv_mr *mr = ibv_reg_dm_mr(end.pd, half, 0, 64, ALL | ZERO_BASED);
	CHECK(mr && mr->addr == NULL && mr->length == 64);
	FAILS(EBUSY, ibv_free_dm(half));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, end.memory, PAGE, 0) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0);
	half->handle += 100;
	FAILS(ENOENT, ibv_free_dm(half));
	FAILS(ENOENT, ibv_memcpy_to_dm(half, 0, end.memory, 8));
	FAILS(ENOENT, ibv_memcpy_from_dm(end.memory, half, 0, 8));
	REFUSED(ENOENT, ibv_reg_dm_mr(end.pd, half, 0, 64, ALL | ZERO_BASED));
	half->handle -= 100;
	CHECK(ibv_free_dm(half) == 0);
	FAILS(ENOENT, ibv_free_dm(half));
	FAILS(ENOENT, ibv_memcpy_to_dm(half, 0, end.memory, 8));
	REFUSED(ENOENT, ibv_reg_dm_mr(end.pd, half, 0, 64, ALL | ZERO_BASED));

	CHECK(dm = allocate(100));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 64, ALL));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 101, ALL | ZERO_BASED));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 96, 8, ALL | ZERO_BASED));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, UINT64_MAX, 8, ALL | ZERO_BASED));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, SIZE_MAX, ALL | ZERO_BASED));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 4, 64, ALL | ZERO_BASED));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 64, ALL | ZERO_BASED | IBV_ACCESS_MW_BIND));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 64, ALL | ZERO_BASED | IBV_ACCESS_ON_DEMAND));
	REFUSED(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 64, ZERO_BASED | IBV_ACCESS_REMOTE_WRITE));
	CHECK((mr = ibv_reg_dm_mr(end.pd, dm, 4, 96, ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)) && ibv_dereg_mr(mr) == 0);
	CHECK((mr = ibv_reg_dm_mr(end.pd, dm, 100, 0, ZERO_BASED | IBV_ACCESS_RELAXED_ORDERING)) && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_free_dm(dm) == 0);
}

static void copies(void)
{
	struct ibv_dm *dm = allocate(LEN);
	char *host = mmap(NULL, LEN + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *back = malloc(LEN);
	CHECK(dm && host != MAP_FAILED && back && munmap(host + LEN, PAGE) == 0);
	memset(back, 1, LEN);
	/* New memory is zero. */
	CHECK(ibv_memcpy_from_dm(back, dm, 0, LEN) == 0 && memcmp(back, host, LEN) == 0);
	for (int i = 0; i < LEN; i++)
		host[i] = i * 7 + i / 256;
	CHECK(ibv_memcpy_to_dm(dm, 0, host, LEN) == 0 && ibv_memcpy_from_dm(back, dm, 0, LEN) == 0 && memcmp(back, host, LEN) == 0);
	/* The program's memory needs no alignment. Offsets and lengths in the device's memory are multiples of a word. */
	CHECK(ibv_memcpy_to_dm(dm, 4, host + 1, PAGE + 4) == 0 && ibv_memcpy_from_dm(back + 3, dm, 4, PAGE + 4) == 0);
	CHECK(memcmp(back + 3, host + 1, PAGE + 4) == 0);
	CHECK(ibv_memcpy_from_dm(back, dm, PAGE + 8, 8) == 0 && memcmp(back, host + PAGE + 8, 8) == 0);
	CHECK(ibv_memcpy_to_dm(dm, LEN, host, 0) == 0 && ibv_memcpy_from_dm(host, dm, LEN, 0) == 0);
	static const struct { uint64_t offset; size_t len; int error; } refused[] = {
		{ 3, 4, EINVAL }, { 4, 3, EINVAL }, { LEN + 4, 4, EFAULT }, { 0, LEN + 4, EFAULT }, { LEN - 4, 8, EFAULT },
		{ UINT64_MAX - 3, 8, EFAULT }, { 8, SIZE_MAX - 7, EFAULT },
	};
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		FAILS(refused[i].error, ibv_memcpy_to_dm(dm, refused[i].offset, host, refused[i].len));
		FAILS(refused[i].error, ibv_memcpy_from_dm(host, dm, refused[i].offset, refused[i].len));
	}
	/* Unmapped memory of the program. */
	FAILS(EFAULT, ibv_memcpy_to_dm(dm, 0, host + LEN - 4, 8));
	FAILS(EFAULT, ibv_memcpy_from_dm(host + LEN, dm, 0, 8));
	CHECK(ibv_free_dm(dm) == 0);
}

/* The memory of the requester and of the responder, with a region in each that begins after a gap. */
static struct ibv_dm *dm;
static struct ibv_mr *mr;
enum { GAP = 64 };

static void set(uint64_t offset, uint64_t value)
{
	CHECK(ibv_memcpy_to_dm(dm, GAP + offset, &value, 8) == 0);
}

static uint64_t get(uint64_t offset)
{
	uint64_t value;
	CHECK(ibv_memcpy_from_dm(&value, dm, GAP + offset, 8) == 0);
	return value;
}

static void succeeds(int operation, uint64_t local, uint64_t remote)
{
	CHECK(post_at(operation, 1, (char *)(uintptr_t)local, mr->lkey, (char *)(uintptr_t)remote, mr->rkey) == 0);
	completes(1, IBV_WC_SUCCESS);
}

static void operations(void)
{
	CHECK(dm = allocate(LEN));
	CHECK(mr = ibv_reg_dm_mr(end.pd, dm, GAP, PAGE, ALL | ZERO_BASED));
	pair(ALL);
	for (int round = 0; round < 3; round++) {
		set(0, 11 + round), set(8, 0);
		succeeds(WRITE, 0, 8);
		CHECK(get(8) == (uint64_t)11 + round);
		set(16, 22);
		succeeds(READ, 24, 16);
		CHECK(get(24) == 22);
		set(16, 5);
		succeeds(ADD, 32, 16);
		CHECK(get(32) == 5 && get(16) == 5 + 0x0101010101010101 * REMOTE);
		set(16, 0x0101010101010101 * REMOTE);
		succeeds(SWAP, 32, 16);
		CHECK(get(32) == 0x0101010101010101 * REMOTE && get(16) == 0);
		struct ibv_sge from = { 0, 8, mr->lkey }, to = { 40, 8, mr->lkey };
		post_recv(2, &to, 1);
		CHECK(try_message(3, &from, 1) == 0);
		completes(3, IBV_WC_SUCCESS), completes_in(responder_cq, 2, IBV_WC_SUCCESS);
		CHECK(get(40) == (uint64_t)11 + round);
		/* The keys are the same on another rail. */
		if (rails() > 1 && round < 2)
			fault("rail%d down", 0);
	}
	unpair();
	if (rails() > 1)
		fault("rail%d up", 0);

	/* Rights and bounds. */
	uint64_t before = get(PAGE - 8);
	for (int operation = WRITE; operation <= ADD; operation++) {
		pair(ALL);
		refused_at(operation, (char *)PAGE, mr->rkey);
		unpair();
	}
	CHECK(ibv_dereg_mr(mr) == 0 && (mr = ibv_reg_dm_mr(end.pd, dm, GAP, PAGE, IBV_ACCESS_LOCAL_WRITE | ZERO_BASED)));
	pair(ALL);
	refused_at(WRITE, NULL, mr->rkey);
	unpair();
	pair(ALL);
	fails(WRITE, (char *)(PAGE - 4), mr->lkey);
	unpair();
	CHECK(get(PAGE - 8) == before && ibv_dereg_mr(mr) == 0);
	CHECK((foreign = ibv_alloc_pd(end.context)) && (foreign_mr = ibv_reg_dm_mr(foreign, dm, GAP, PAGE, ALL | ZERO_BASED)));
	pair(ALL);
	refused_at(WRITE, NULL, foreign_mr->rkey);
	unpair();
	CHECK(ibv_dereg_mr(foreign_mr) == 0 && ibv_dealloc_pd(foreign) == 0);
	CHECK(mr = ibv_reg_dm_mr(end.pd, dm, GAP, PAGE, ALL | ZERO_BASED));
	uint32_t gone = mr->lkey;
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
	pair(ALL);
	fails(WRITE, NULL, gone);
	unpair();
}

/* A forked child allocates on the device of its parent. The child cannot use allocations of the parent, and cannot register memory. */
static void inherited(void)
{
	CHECK(dm = allocate(LEN));
	set(0, 7);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(60);
		uint64_t value = 8;
		FAILS(EIO, ibv_memcpy_from_dm(&value, dm, GAP, 8));
		FAILS(EIO, ibv_memcpy_to_dm(dm, GAP, &value, 8));
		struct ibv_dm *own = allocate(LEN);
		CHECK(own && ibv_memcpy_to_dm(own, 0, &value, 8) == 0 && (value = 0) == 0);
		CHECK(ibv_memcpy_from_dm(&value, own, 0, 8) == 0 && value == 8);
		REFUSED(EIO, ibv_reg_dm_mr(end.pd, own, 0, 64, ALL | ZERO_BASED));
		CHECK(ibv_free_dm(dm) == 0 && ibv_free_dm(own) == 0);
		FAILS(ENOENT, ibv_free_dm(own));
		struct end device = open_end();
		struct ibv_alloc_dm_attr attr = { .length = LEN };
		CHECK((own = ibv_alloc_dm(device.context, &attr)) && ibv_reg_dm_mr(device.pd, own, 0, LEN, ALL | ZERO_BASED));
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(get(0) == 7 && ibv_free_dm(dm) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "allocation", allocation }, { "copies", copies }, { "operations", operations }, { "inherited_device", inherited },
	};
	set_up(argc);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
