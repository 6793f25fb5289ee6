/* Forks of a process that uses the device: a child opens a device of its own, and waits for no lock that another thread of its parent held. */
#include "test_support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

/* Forks a child that runs `use`, and waits until it has succeeded. */
static void child_succeeds(void (*use)(void))
{
	pid_t child = fork();
	int status;
	CHECK(child >= 0);
	if (child == 0) {
		alarm(60); /* a child does not inherit its parent's alarm */
		use();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void open_own_device(void)
{
	struct end own = open_end();
	CHECK(ibv_dereg_mr(own.mr) == 0);
}

static void *open_device(void *opened)
{
	open_own_device();
	__atomic_store_n((int *)opened, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* A thread opens the device for the first time. */
static void while_opening(void)
{
	pthread_t thread;
	int opened = 0;
	CHECK(pthread_create(&thread, NULL, open_device, &opened) == 0);
	do
		child_succeeds(open_own_device);
	while (!__atomic_load_n(&opened, __ATOMIC_ACQUIRE));
	CHECK(pthread_join(thread, NULL) == 0);
}

struct pair {
	struct end end;
	struct ibv_qp *one, *other;
};

static struct pair open_pair(void)
{
	struct pair pair = { .end = open_end() };
	pair.one = make_qp(&pair.end), pair.other = make_qp(&pair.end);
	ready(pair.one), ready(pair.other);
	connect_to(pair.one, connection_data_of(&pair.end, pair.other));
	connect_to(pair.other, connection_data_of(&pair.end, pair.one));
	return pair;
}

/* Writes a value from the first page to the second, and checks it. */
static void write_value(struct pair *pair, uint64_t value)
{
	uint64_t *from = (uint64_t *)pair->end.memory, *to = (uint64_t *)(pair->end.memory + PAGE);
	*from = value;
	CHECK(post_write(pair->one, &pair->end, value, (uintptr_t)to, pair->end.mr->rkey) == 0);
	struct ibv_wc wc = next(pair->end.cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == value);
	CHECK(*to == value);
}

static struct pair of_parent;

/* A child of a process that has the device open opens a device of its own, connects queue pairs and writes. So does its own child. */
static void use_own_device(void)
{
	struct ibv_mr *denied = ibv_reg_mr(of_parent.end.pd, of_parent.end.memory, PAGE, ALL);
	CHECK(!denied && errno == EIO);
	struct pair own = open_pair();
	CHECK(memcmp(&own.end.gid, &of_parent.end.gid, sizeof own.end.gid) != 0);
	for (uint64_t value = 1; value <= 200; value++)
		write_value(&own, value);
	CHECK(ibv_destroy_qp(own.one) == 0 && ibv_destroy_qp(own.other) == 0);
}

static void use_own_device_and_fork(void)
{
	use_own_device();
	of_parent = open_pair();
	child_succeeds(use_own_device);
	write_value(&of_parent, 7);
}

/* The parent goes on with its own meanwhile. */
static void child_device(void)
{
	of_parent = open_pair();
	uint64_t value = 0;
	for (int round = 0; round < 3; round++) {
		write_value(&of_parent, ++value);
		pid_t child = fork(), ended;
		int status;
		CHECK(child >= 0);
		if (child == 0) {
			alarm(60);
			use_own_device_and_fork();
			_exit(0);
		}
		while ((ended = waitpid(child, &status, WNOHANG)) == 0)
			write_value(&of_parent, ++value);
		CHECK(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		write_value(&of_parent, ++value);
	}
}

static struct ibv_context *context;

/* Makes a call that is refused with an explanation on standard error, for the first time in this process. */
static void *refused_call(void *unused)
{
	struct ibv_td_init_attr unknown = { .comp_mask = 1 };
	REFUSED(EOPNOTSUPP, ibv_alloc_td(context, &unknown));
	return unused;
}

static void another_refused_call(void)
{
	int null = open("/dev/null", O_WRONLY);
	CHECK(null >= 0 && dup2(null, STDERR_FILENO) == STDERR_FILENO);
	struct ibv_parent_domain_init_attr no_domain = { 0 };
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(context = ibv_open_device(list[0]));
	REFUSED(EINVAL, ibv_alloc_parent_domain(context, &no_domain));
}

/* A thread waits in the explanation of a refused call, because standard error is a full pipe. */
static void while_explaining(void)
{
	int out[2];
	char page[PAGE] = { 0 };
	pthread_t thread;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(context = ibv_open_device(list[0]));
	CHECK(pipe(out) == 0 && fcntl(out[1], F_SETFL, O_NONBLOCK) == 0);
	for (size_t size = sizeof page; size > 0; size /= 2) {
		while (write(out[1], page, size) > 0)
			;
	}
	CHECK(fcntl(out[1], F_SETFL, 0) == 0);
	CHECK(dup2(out[1], STDERR_FILENO) == STDERR_FILENO);
	CHECK(pthread_create(&thread, NULL, refused_call, NULL) == 0);
	usleep(200000); /* the thread waits */
	child_succeeds(another_refused_call);
	CHECK(read(out[0], page, sizeof page) == sizeof page);
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "while_opening", while_opening }, { "while_explaining", while_explaining }, { "child_device", child_device },
	};
	alarm(60);
	CHECK(argc == 2);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
