/* Forks of a process while another of its threads is inside the library: no child waits for a lock that the thread held. */
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
	static const struct scenario scenarios[] = { { "while_opening", while_opening }, { "while_explaining", while_explaining } };
	alarm(60);
	CHECK(argc == 2);
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
