/* Scenarios of two connected processes, each with a device of its own. */
#include "peer_process.h"
#include "rail_faults.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

static struct end end;
static struct ibv_qp *qp;
static struct connection_data peer;

static void connect_ends(void)
{
	qp = make_qp(&end);
	struct connection_data mine = connection_data_of(&end, qp);
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

/* One end unmaps registered memory, and the other end writes and reads it. */
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
	/* Both devices still work. */
	connect_ends();
	write_well(3);
	disconnect();
}

/* The peer is killed with requests in flight: they complete with an error. */
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
	/* With several rails, the vendor error marks requests whose execution is unknown. */
	for (int i = 0; i < 4; i++) {
		wc = next(end.cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR || (rails() > 1 && wc.status == IBV_WC_RETRY_EXC_ERR));
	}
	/* All later requests are flushed. */
	CHECK(post_write(qp, &end, 20, peer.addr, peer.rkey) == 0);
	wc = next(end.cq);
	CHECK(wc.wr_id == 20 && wc.status == IBV_WC_WR_FLUSH_ERR);
	recv_one(21);
	wc = next(end.cq);
	CHECK(wc.wr_id == 21 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* The peer is killed while the connection is idle: requests posted later complete with an error. */
static void killed_idle(void)
{
	connect_ends();
	if (!child)
		for (;;)
			pause();
	write_well(1);
	usleep(500000); /* the virtual queue pair has received a heartbeat of the peer */
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	child = 0;
	sleep(8);
	CHECK(is_empty(end.cq));
	CHECK(post_write(qp, &end, 2, peer.addr, peer.rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 2 && (wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR));
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A child's use of its parent's objects fails. The completion queue may hold a completion from before the fork. */
static void use_inherited_objects(void)
{
	enum { CHILDS_WRITE = 1000 };
	struct ibv_wc wc;
	post_write(qp, &end, CHILDS_WRITE, peer.addr, peer.rkey);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_poll_cq(end.cq, 1, &wc) == 0 || wc.wr_id != CHILDS_WRITE || wc.status != IBV_WC_SUCCESS);
	CHECK(!ibv_reg_mr(end.pd, end.memory, PAGE, IBV_ACCESS_LOCAL_WRITE));
}

/* A parent forks children while the library's threads work: no child waits for a lock that a thread held at the fork. */
static void forks_during_progress(void)
{
	connect_ends();
	for (int i = 0; i < 300; i++) {
		/* The sleep ends at varying points of the progress thread's rounds, which begin every millisecond. */
		usleep(i * 37 % 1000);
		CHECK(post_write(qp, &end, i, peer.addr, peer.rkey) == 0);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			alarm(60);
			use_inherited_objects();
			_exit(0);
		}
		CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		exit_well(pid);
	}
	disconnect();
}

/* A parent forks children while it uses its device: one that does nothing, one that calls exit, one that uses its parent's
 * objects, which must fail, and one with a device of its own. */
static void forks(void)
{
	connect_ends();
	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			alarm(60); /* a child does not inherit its parent's alarm */
			if (i % 4 == 0)
				_exit(0);
			if (i % 4 == 1)
				exit(0);
			if (i % 4 == 2) {
				use_inherited_objects();
				exit(0);
			}
			struct end own = open_end();
			CHECK(memcmp(&own.gid, &end.gid, sizeof own.gid) != 0);
			struct ibv_qp *one = make_qp(&own), *other = make_qp(&own);
			ready(one), ready(other);
			connect_to(one, connection_data_of(&own, other)), connect_to(other, connection_data_of(&own, one));
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

static bool acknowledged;

static void *acknowledge(void *cq)
{
	usleep(200000);
	/* The unread second event is removed with its queue. */
	struct ibv_cq *other;
	void *context;
	CHECK(ibv_get_cq_event(end.channel, &other, &context) == -1 && errno == EAGAIN);
	__atomic_store_n(&acknowledged, true, __ATOMIC_RELEASE);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

/* ibv_destroy_cq waits until all events of the queue are acknowledged, and no new event is delivered meanwhile. */
static void late_acknowledgement(void)
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
		CHECK(ibv_destroy_cq(cq) == 0 && __atomic_load_n(&acknowledged, __ATOMIC_ACQUIRE));
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

/* A queue pair is destroyed while another thread polls its queue: no completion of the queue pair appears afterwards. */
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

/* The peer has closed its end: posted receives, up to the queue's depth, wait until a send fails. */
static void peer_closed(void)
{
	connect_ends();
	if (!child) {
		CHECK(ibv_destroy_qp(qp) == 0);
		meet();
		meet();
		return;
	}
	meet();
	usleep(300000);
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	int posted = 0, refused;
	while ((refused = ibv_post_recv(qp, &wr, &bad)) == 0)
		CHECK(++posted <= DEPTH);
	CHECK(refused == ENOMEM && posted == DEPTH && is_empty(end.cq));
	CHECK(post_write(qp, &end, 2, peer.addr, peer.rkey) == 0);
	struct ibv_wc wc = next(end.cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_RETRY_EXC_ERR);
	while (posted-- > 0) {
		wc = next(end.cq);
		CHECK(wc.wr_id == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
	meet();
}

enum { PAIRS = 3, ROUNDS = 900 };

static struct ibv_cq *cqs[2];
static struct ibv_qp *qps[PAIRS];

static void post_on(int i)
{
	qp = qps[i];
	recv_one(i);
}

/* Waits for an event, polls its queue, and counts the messages by queue pair. */
static void sleep_for(int came[PAIRS])
{
	struct ibv_cq *cq;
	void *context;
	struct ibv_wc wc;
	CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV)
			came[wc.wr_id]++;
	}
}

/* Both ends sleep on one channel with two queues, one of which has two queue pairs: no event is lost. */
static void sleepers(void)
{
	cqs[0] = end.cq;
	CHECK(cqs[1] = ibv_create_cq(end.context, 4 * DEPTH, end.pd, end.channel, 0));
	for (int i = 0; i < PAIRS; i++) {
		end.cq = cqs[i == 2];
		connect_ends();
		qps[i] = qp;
		post_on(i);
	}
	CHECK(ibv_req_notify_cq(cqs[0], 0) == 0 && ibv_req_notify_cq(cqs[1], 0) == 0);
	meet();
	for (int round = 0; round < ROUNDS; round++) {
		int came[PAIRS] = { 0 }, i = round % PAIRS;
		if (child) {
			qp = qps[i];
			send_one(DEPTH);
		}
		while (came[i] == 0)
			sleep_for(came);
		CHECK(came[i] == 1);
		post_on(i);
		if (!child)
			send_one(DEPTH);
	}
	for (int i = 0; i < PAIRS; i++) {
		qp = qps[i];
		disconnect();
	}
}

/* Messages wait for shared receives; one of the two queue pairs is destroyed meanwhile and takes no message of the other queue pair. */
static void shared_receives(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = NULL;
	if (child) {
		CHECK(srq = ibv_create_srq(end.pd, &shared));
		struct ibv_recv_wr *bad;
		struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 8, end.mr->lkey };
		for (int i = 0; i < 2; i++) {
			struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
			CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
		}
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = plain_init(&end);
		init.srq = srq;
		CHECK(qp = qps[i] = ibv_create_qp(end.pd, &init));
		struct connection_data mine = connection_data_of(&end, qp);
		tell(&mine, sizeof mine);
		hear(&peer, sizeof peer);
		ready(qp);
		connect_to(qp, peer);
		meet();
	}
	if (!child) {
		/* Two messages find receives. The other messages do not. */
		for (int i = 0; i < 2; i++) {
			qp = qps[i];
			send_one(i);
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		}
		meet();
		for (int i = 0; i < 6; i++) {
			qp = qps[i % 2];
			*(uint64_t *)end.memory = i;
			struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
			struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE }, *bad;
			CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		}
		meet();
		meet();
	} else {
		for (int i = 0; i < 2; i++)
			CHECK(next(end.cq).status == IBV_WC_SUCCESS);
		meet();
		meet();
		usleep(100000);
		CHECK(is_empty(end.cq));
		CHECK(ibv_destroy_qp(qps[0]) == 0);
		CHECK(ibv_destroy_srq(srq) == EBUSY);
		for (uint64_t i = 0; i < 3; i++) {
			struct ibv_sge sge = { (uintptr_t)end.memory + PAGE + 8 * i, 8, end.mr->lkey };
			struct ibv_recv_wr wr = { .wr_id = 10 + i, .sg_list = &sge, .num_sge = 1 }, *bad;
			CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
		}
		for (uint64_t i = 0; i < 3; i++) {
			struct ibv_wc wc = next(end.cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 10 + i && wc.byte_len == 8 && wc.qp_num == qps[1]->qp_num);
			CHECK(((uint64_t *)(end.memory + PAGE))[i] == 2 * i + 1);
		}
		meet();
		CHECK(ibv_destroy_qp(qps[1]) == 0 && ibv_destroy_srq(srq) == 0);
	}
}

/* A receive whose memory is read-only. */
static void read_only(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_qp_init_attr init = plain_init(&end);
	struct ibv_mr *mr;
	CHECK(mr = ibv_reg_mr(end.pd, end.memory + PAGE, PAGE, 0));
	CHECK(init.srq = ibv_create_srq(end.pd, &shared));
	struct ibv_sge sge = { (uintptr_t)end.memory + PAGE, 8, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(init.srq, &wr, &bad) == 0);
	CHECK(qp = ibv_create_qp(end.pd, &init));
	struct connection_data mine = connection_data_of(&end, qp);
	tell(&mine, sizeof mine);
	hear(&peer, sizeof peer);
	ready(qp);
	connect_to(qp, peer);
	meet();
	if (child) {
		struct ibv_wc wc = next(end.cq);
		CHECK(wc.wr_id == 7 && wc.status == IBV_WC_LOC_PROT_ERR);
		CHECK(end.memory[PAGE] == 0);
	} else {
		strcpy(end.memory, "written");
		send_one(1);
	}
	disconnect();
}

static void on_alarm(int signal)
{
	(void)signal;
	exit(0);
}

/* A program that calls exit in a signal handler, at any point of its execution. */
static void exits_in_signal_handler(void)
{
	connect_ends();
	struct ibv_qp *second = make_qp(&end), *first = qp;
	struct connection_data mine = connection_data_of(&end, second);
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
	static const struct scenario scenarios[] = {
		{ "unmapped", unmapped }, { "killed", killed }, { "killed_idle", killed_idle }, { "forks", forks },
		{ "forks_during_progress", forks_during_progress }, { "late_acknowledgement", late_acknowledgement },
		{ "destroyed_while_polled", destroyed_while_polled }, { "exits_in_signal_handler", exits_in_signal_handler },
		{ "peer_closed", peer_closed }, { "read_only", read_only }, { "sleepers", sleepers }, { "shared_receives", shared_receives },
	};
	CHECK(argc == 2);
	fork_peer();
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
