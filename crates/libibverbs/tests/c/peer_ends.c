/* A process ends, or its address moves, while it has connections of rdma_cm with another process. The child listens, and its parent connects. */
#define _GNU_SOURCE
#include "peer_process.h"
#include "rail_faults.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct rdma_event_channel *events;
static struct rdma_conn_param param = { .qp_num = 17, .retry_count = 7 };

/* Returns the identifier of the next event, which must be of this type, and its status. */
static struct rdma_cm_id *expect_status(enum rdma_cm_event_type type, int *status)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(events, &event) == 0);
	if (event->event != type)
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
	CHECK(event->event == type);
	struct rdma_cm_id *id = event->id;
	*status = event->status;
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	int status;
	return expect_status(type, &status);
}

static bool is_quiet(int milliseconds)
{
	struct pollfd ready = { events->fd, POLLIN, 0 };
	return poll(&ready, 1, milliseconds) == 0;
}

/* Listens, and tells the peer the port. */
static struct rdma_cm_id *serve(void)
{
	struct rdma_cm_id *listener;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(events = rdma_create_event_channel());
	CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 8) == 0);
	uint16_t port = rdma_get_src_port(listener);
	tell(&port, sizeof port);
	return listener;
}

static struct rdma_cm_id *accept_next(void)
{
	struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_accept(id, &param) == 0);
	return id;
}

/* Begins to connect to the port that the peer tells. */
static struct rdma_cm_id *request(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (!events)
		CHECK(events = rdma_create_event_channel());
	hear(&address.sin_port, sizeof address.sin_port);
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_connect(id, &param) == 0);
	return id;
}

static struct rdma_cm_id *connect_to_peer(void)
{
	struct rdma_cm_id *id = request();
	CHECK(expect(RDMA_CM_EVENT_CONNECT_RESPONSE) == id && rdma_establish(id) == 0);
	return id;
}

static void wait_to_be_killed(void)
{
	for (;;)
		pause();
}

static void kill_child(void)
{
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	child = 0;
}

/* The listener is killed as soon as the connection is established. */
static void killed_when_established(void)
{
	if (!child) {
		serve();
		accept_next();
		wait_to_be_killed();
	}
	struct rdma_cm_id *id = connect_to_peer();
	kill_child();
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
}

/* The listener is killed before it answers. */
static void killed_before_reply(void)
{
	if (!child) {
		serve();
		expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		meet();
		wait_to_be_killed();
	}
	struct rdma_cm_id *id = request();
	meet();
	kill_child();
	int status;
	CHECK(expect_status(RDMA_CM_EVENT_REJECTED, &status) == id && status == 8);
}

/* The requester is killed before it confirms the reply. */
static void killed_before_rtu(void)
{
	if (!child) {
		request();
		expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
		meet();
		wait_to_be_killed();
	}
	serve();
	struct rdma_cm_id *id = accept_next();
	meet();
	kill_child();
	int status;
	CHECK(expect_status(RDMA_CM_EVENT_REJECTED, &status) == id && status == 4);
}

static struct rdma_cm_id *late;

/* Runs after the handlers that the library has registered. */
static void disconnect_late(void)
{
	CHECK(rdma_disconnect(late) == 0 && expect(RDMA_CM_EVENT_DISCONNECTED) == late);
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

/* A destructor waits for the end of a connection while the process exits. */
static void destructor_waits_for_the_end(void)
{
	if (!child) {
		CHECK(atexit(disconnect_late) == 0);
		serve();
		late = accept_next();
		expect(RDMA_CM_EVENT_ESTABLISHED);
		exit(0);
	}
	struct rdma_cm_id *id = connect_to_peer();
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
}

/* A signal interrupts a program that has connections, and its handler exits. */
static void exits_in_signal_handler(void)
{
	if (!child) {
		signal(SIGUSR1, leave);
		serve();
		accept_next();
		expect(RDMA_CM_EVENT_ESTABLISHED);
		meet();
		/* Most of the time, the manager's lock is held. */
		for (;;)
			rdma_destroy_event_channel(rdma_create_event_channel());
	}
	struct rdma_cm_id *id = connect_to_peer();
	meet();
	CHECK(kill(child, SIGUSR1) == 0);
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
}

/* The addresses of both ends move, and the connection goes on. Then the listener is killed, which its last address shows. */
static void addresses_move(void)
{
	if (!child) {
		serve();
		struct rdma_cm_id *id = accept_next();
		CHECK(expect(RDMA_CM_EVENT_ESTABLISHED) == id);
		fault("rail%d address free", 0);
		CHECK(is_quiet(5000));
		meet();
		wait_to_be_killed();
	}
	struct rdma_cm_id *id = connect_to_peer();
	CHECK(is_quiet(2500));
	fault("rail%d address free", 0);
	meet();
	CHECK(is_quiet(2500));
	kill_child();
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
}

/* Rail 0 of this end is down when the peer is killed. */
static void killed_while_rail_0_is_down(void)
{
	if (!child) {
		serve();
		accept_next();
		wait_to_be_killed();
	}
	struct rdma_cm_id *id = connect_to_peer();
	fault("rail%d down", 0);
	CHECK(is_quiet(4000));
	kill_child();
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
}

/* The addresses of the rails of the listener's device, which no other test uses. */
static const char *own_addresses(pid_t process)
{
	static char line[64];
	int high = process >> 8 & 255, low = process & 255;
	int len = snprintf(line, sizeof line, "127.200.%d.%d", high, low);
	if (rails() > 1)
		snprintf(line + len, sizeof line - len, ",127.201.%d.%d", high, low);
	return line;
}

/* Forks a process with a device of these addresses, which has an identifier of rdma_cm or uses verbs only. */
static pid_t fork_successor(const char *addresses, bool has_identifier)
{
	int fds[2];
	char word = 0;
	CHECK(pipe(fds) == 0);
	pid_t other = fork();
	CHECK(other >= 0);
	if (other == 0) {
		struct rdma_cm_id *id;
		CHECK(setenv("MITRA_RAILS", addresses, 1) == 0);
		if (has_identifier)
			CHECK((events = rdma_create_event_channel()) && rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0 && rdma_get_devices(NULL));
		else
			open_end();
		CHECK(write(fds[1], &word, 1) == 1);
		wait_to_be_killed();
	}
	close(fds[1]);
	CHECK(read(fds[0], &word, 1) == 1);
	close(fds[0]);
	return other;
}

static void kill_successor(pid_t successor)
{
	CHECK(kill(successor, SIGKILL) == 0 && waitpid(successor, NULL, 0) == successor);
}

static void serve_at_own_addresses(void)
{
	/* fault() and rails() go on to use the number. */
	const char *number = strdup(getenv("MITRA_RAILS"));
	CHECK(setenv("MITRA_RAILS", own_addresses(getpid()), 1) == 0);
	serve();
	CHECK(setenv("MITRA_RAILS", number, 1) == 0);
}

/* Another process takes the address that the listener has had before. It has none of the connections, and says so. */
static void other_process_takes_the_address(void)
{
	if (!child) {
		serve_at_own_addresses();
		accept_next();
		expect(RDMA_CM_EVENT_ESTABLISHED);
		meet();
		fault("rail%d address free", 0);
		meet();
		wait_to_be_killed();
	}
	const char *addresses = own_addresses(child);
	struct rdma_cm_id *id = connect_to_peer();
	meet();
	meet();
	CHECK(is_quiet(2500));
	char first[64];
	strcpy(first, addresses);
	first[strcspn(first, ",")] = 0;
	pid_t successor = fork_successor(first, true);
	CHECK(is_quiet(4000));
	kill_child();
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
	kill_successor(successor);
}

/* The listener is killed, and another process begins at once with the same addresses. */
static void succeeded_by(bool has_identifier)
{
	if (!child) {
		serve_at_own_addresses();
		accept_next();
		wait_to_be_killed();
	}
	const char *addresses = own_addresses(child);
	struct rdma_cm_id *id = connect_to_peer();
	kill_child();
	pid_t successor = fork_successor(addresses, has_identifier);
	CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
	kill_successor(successor);
}

static void succeeded_by_verbs_only(void) { succeeded_by(false); }
static void succeeded_by_an_identifier(void) { succeeded_by(true); }

/* A process that no handler of fork sees has the listener's socket, too. Streams wait there after the listener is destroyed. The manager's thread must not spin. */
static void destroyed_listener_is_shared(void)
{
	if (!child) {
		struct rdma_cm_id *listener = serve();
		pid_t holder = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (holder == 0)
			wait_to_be_killed();
		CHECK(holder > 0 && rdma_destroy_id(listener) == 0);
		meet();
		meet();
		struct rusage before, after;
		CHECK(getrusage(RUSAGE_SELF, &before) == 0);
		usleep(1000 * 1000);
		CHECK(getrusage(RUSAGE_SELF, &after) == 0);
		double used = after.ru_utime.tv_sec - before.ru_utime.tv_sec + (after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1e-6
			+ after.ru_stime.tv_sec - before.ru_stime.tv_sec + (after.ru_stime.tv_usec - before.ru_stime.tv_usec) * 1e-6;
		kill_successor(holder);
		meet();
		CHECK(used < 0.2);
		exit(0);
	}
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	hear(&address.sin_port, sizeof address.sin_port);
	address.sin_port ^= htons(8192);
	meet();
	int stream = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(stream >= 0 && connect(stream, (struct sockaddr *)&address, sizeof address) == 0);
	meet();
	meet();
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "killed_when_established", killed_when_established }, { "killed_before_reply", killed_before_reply },
		{ "killed_before_rtu", killed_before_rtu }, { "destructor_waits_for_the_end", destructor_waits_for_the_end },
		{ "exits_in_signal_handler", exits_in_signal_handler }, { "addresses_move", addresses_move },
		{ "killed_while_rail_0_is_down", killed_while_rail_0_is_down },
		{ "other_process_takes_the_address", other_process_takes_the_address },
		{ "succeeded_by_verbs_only", succeeded_by_verbs_only }, { "succeeded_by_an_identifier", succeeded_by_an_identifier },
		{ "destroyed_listener_is_shared", destroyed_listener_is_shared },
	};
	CHECK(argc == 2);
	fork_peer();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
