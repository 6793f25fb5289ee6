/* Two processes that are connected, and what can befall one of them. Each opens the device for itself. */
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static struct end end;
static struct ibv_qp *qp;
static struct card peer;
static int to_peer;
static pid_t child;

static void tell(const void *data, size_t len)
{
	CHECK(write(to_peer, data, len) == (ssize_t)len);
}

static void hear(void *data, size_t len)
{
	CHECK(read(to_peer, data, len) == (ssize_t)len);
}

static int rails(void)
{
	return atoi(getenv("MITRA_RAILS"));
}

static void meet(void)
{
	char word = 0;
	tell(&word, 1);
	hear(&word, 1);
}

static void connect_ends(void)
{
	qp = make_qp(&end);
	struct card mine = card_of(&end, qp);
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	ready(qp);
	connect_to(qp, peer);
	meet();
}

static void disconnect(void)
{
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
	meet();
}

static void exit_well(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void recv_one(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void send_one(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void write_well(uint64_t wr_id)
{
	CHECK(post_write(qp, &end, wr_id, peer.addr, peer.rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
}

/* One end's memory is gone, and still registered, when the other writes and reads it. */
static void unmapped(void)
{
	connect_ends();
	if (child) {
		CHECK(munmap(end.memory + PAGE, PAGE) == 0);
		meet();
		meet();
	} else {
		meet();
		write_well(1);
		CHECK(post_write(qp, &end, 2, peer.addr + PAGE, peer.rkey) == 0);
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.wr_id == 2 && (wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_OP_ERR));
		meet();
	}
	disconnect();
	/* Both devices are as good as before. */
	connect_ends();
	write_well(3);
	disconnect();
}

/* The peer is killed while requests are under way: they end, with an error. */
static void killed(void)
{
	connect_ends();
	if (!child)
		for (;;)
			pause();
	write_well(1);
	recv_one(2);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	child = 0;
	for (int i = 0; i < 4; i++)
		CHECK(post_write(qp, &end, 10 + i, peer.addr, peer.rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 10 && wc.status == IBV_WC_RETRY_EXC_ERR);
	/* Over several rails each that may or may not have been executed says so. */
	for (int i = 0; i < 4; i++) {
		wc = next(end.cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR || (rails() > 1 && wc.status == IBV_WC_RETRY_EXC_ERR));
	}
	/* From here on everything is flushed. */
	CHECK(post_write(qp, &end, 20, peer.addr, peer.rkey) == 0);
	wc = next(end.cq);
	CHECK(wc.wr_id == 20 && wc.status == IBV_WC_WR_FLUSH_ERR);
	recv_one(21);
	wc = next(end.cq);
	CHECK(wc.wr_id == 21 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* The peer is killed while nothing is under way: what is posted later ends with an error too. */
static void killed_idle(void)
{
	connect_ends();
	if (!child)
		for (;;)
			pause();
	write_well(1);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	child = 0;
	sleep(8);
	CHECK(is_empty(end.cq));
	CHECK(post_write(qp, &end, 2, peer.addr, peer.rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 2 && (wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR));
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Children come and go while their parent goes on: one that does nothing, one that ends as programs do, and one with a device of its
 * own. */
static void forks(void)
{
	connect_ends();
	for (int i = 0; i < 30; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			if (i % 3 == 0)
				_exit(0);
			if (i % 3 == 1)
				exit(0);
			struct end own = open_end();
			CHECK(memcmp(&own.gid, &end.gid, sizeof own.gid) != 0);
			struct ibv_qp *one = make_qp(&own), *other = make_qp(&own);
			ready(one), ready(other);
			connect_to(one, card_of(&own, other)), connect_to(other, card_of(&own, one));
			CHECK(post_write(one, &own, 1, (uintptr_t)own.memory + PAGE, own.mr->rkey) == 0);
			CHECK(next(own.cq).status == IBV_WC_SUCCESS);
			exit(0);
		}
		for (int k = 0; k < 20; k++)
			write_well(k);
		exit_well(pid);
		write_well(100);
	}
	disconnect();
}

static void *acknowledge(void *cq)
{
	usleep(200000);
	/* The second event goes with its queue. */
	struct ibv_cq *other;
	void *context;
	CHECK(ibv_get_cq_event(end.channel, &other, &context) == -1 && errno == EAGAIN);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

/* Whoever destroys a queue waits until its events are acknowledged, and nobody gets another meanwhile. */
static void late(void)
{
	connect_ends();
	if (child) {
		recv_one(1);
		recv_one(2);
		CHECK(ibv_req_notify_cq(end.cq, 0) == 0);
		meet();
		struct ibv_cq *cq;
		void *context;
		CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0 && cq == end.cq && context == end.pd);
		CHECK(ibv_req_notify_cq(end.cq, 0) == 0);
		meet();
		CHECK(poll(&(struct pollfd){ .fd = end.channel->fd, .events = POLLIN }, 1, 20000) == 1);
		meet();
		CHECK(ibv_destroy_qp(qp) == 0);
		meet();
		pthread_t thread;
		CHECK(fcntl(end.channel->fd, F_SETFL, O_NONBLOCK) == 0);
		CHECK(pthread_create(&thread, NULL, acknowledge, cq) == 0);
		CHECK(ibv_destroy_comp_channel(end.channel) == EBUSY);
		CHECK(ibv_destroy_cq(cq) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(ibv_destroy_comp_channel(end.channel) == 0);
	} else {
		meet();
		send_one(1);
		CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		meet();
		send_one(2);
		CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		meet();
		CHECK(ibv_destroy_qp(qp) == 0);
		meet();
	}
}

static void *keep_polling(void *unused)
{
	(void)unused;
	struct ibv_wc wc;
	for (;;)
		CHECK(ibv_poll_cq(end.cq, 1, &wc) == 0);
}

/* A queue pair that goes while another thread polls its queue: nothing of it is seen any more. */
static void destroyed_while_polled(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, keep_polling, NULL) == 0);
	for (int i = 0; i < 20; i++) {
		connect_ends();
		for (int k = 0; k < DEPTH; k++)
			recv_one(k);
		disconnect();
	}
}

static void on_alarm(int signal)
{
	(void)signal;
	exit(0);
}

/* A program that ends in the handler of a signal, wherever that found it. */
static void ends_in_a_handler(void)
{
	connect_ends();
	struct ibv_qp *second = make_qp(&end), *first = qp;
	struct card mine = card_of(&end, second);
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	ready(second);
	connect_to(second, peer);
	meet();
	if (child)
		exit_well(child);
	signal(SIGUSR1, on_alarm);
	pid_t self = getpid(), killer = fork();
	if (killer == 0) {
		usleep(100000);
		kill(self, SIGUSR1);
		_exit(0);
	}
	struct ibv_wc wc;
	for (qp = first;;)
		ibv_poll_cq(end.cq, 1, &wc);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*play)(void); } plays[] = {
		{ "unmapped", unmapped }, { "killed", killed }, { "killed_idle", killed_idle }, { "forks", forks }, { "late", late },
		{ "destroyed_while_polled", destroyed_while_polled }, { "ends_in_a_handler", ends_in_a_handler },
	};
	int fds[2];
	CHECK(argc == 2 && socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	child = fork();
	CHECK(child >= 0);
	to_peer = fds[child == 0];
	close(fds[child != 0]);
	alarm(60);
	end = open_end();
	for (size_t i = 0; i < sizeof plays / sizeof plays[0]; i++) {
		if (strcmp(argv[1], plays[i].name) == 0) {
			plays[i].play();
			if (child)
				exit_well(child);
			return 0;
		}
	}
	return 2;
}
