/* Two processes connect while rail 0 of one or both is down or its NIC is dead. */
#include "peer_process.h"
#include "rail_faults.h"

#include <pthread.h>
#include <signal.h>

static struct end end;
static struct connection_data peer;

/* Fails every rail but the last. */
static void fail_rails(const char *script)
{
	for (int rail = 0; rail < rails() - 1; rail++)
		fault(script, rail);
}

/* Each end sends a message and writes into the other's memory. Twice, because a move may follow the first. */
static void use(struct ibv_qp *qp)
{
	for (uint64_t round = 1; round <= 2; round++) {
		struct ibv_sge into = { (uintptr_t)end.memory + 512, 8, end.mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 3, .sg_list = &into, .num_sge = 1 }, *bad_recv;
		CHECK(ibv_post_recv(qp, &recv, &bad_recv) == 0);
		meet();
		*(uint64_t *)end.memory = round;
		CHECK(post_write(qp, &end, 1, peer.addr + 64, peer.rkey) == 0);
		struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		for (int i = 0; i < 3; i++) {
			struct ibv_wc wc = next(end.cq);
			if (wc.status != IBV_WC_SUCCESS)
				fprintf(stderr, "request %d: %s (%u)\n", (int)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err);
			CHECK(wc.status == IBV_WC_SUCCESS);
		}
		meet();
		CHECK(*(uint64_t *)(end.memory + 64) == round && *(uint64_t *)(end.memory + 512) == round);
	}
}

static struct ibv_qp *prepare(void)
{
	end = open_end();
	struct ibv_qp *qp = make_qp(&end);
	ready(qp);
	struct connection_data own = connection_data_of(&end, qp);
	tell(&own, sizeof own);
	hear(&peer, sizeof peer);
	return qp;
}

/* Connects both ends after the rails have failed at one or at both. */
static void after_failure(const char *script, bool here)
{
	struct ibv_qp *qp = prepare();
	if (here)
		fail_rails(script);
	meet();
	union ibv_gid gid;
	CHECK(ibv_query_gid(end.context, 1, 0, &gid) == 0 && memcmp(&gid, &end.gid, sizeof gid) == 0);
	connect_to(qp, peer);
	use(qp);
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void one_end_is_down(void)
{
	after_failure("rail%d link-down", child == 0);
}

static void both_ends_are_down(void)
{
	after_failure("rail%d link-down", true);
}

static void one_nic_is_dead(void)
{
	after_failure("rail%d nic-dead", child == 0);
}

static void both_nics_are_dead(void)
{
	after_failure("rail%d nic-dead", true);
}

static void *connect_in_thread(void *qp)
{
	connect_to(qp, peer);
	return NULL;
}

/* The rails of the parent fail while it connects and the child, which is stopped, does not answer. */
static void goes_down_while_connecting(void)
{
	struct ibv_qp *qp = prepare();
	if (child == 0) {
		raise(SIGSTOP);
		connect_to(qp, peer);
	} else {
		pthread_t thread;
		int status;
		CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
		CHECK(pthread_create(&thread, NULL, connect_in_thread, qp) == 0);
		usleep(100000); /* the thread has sent its first query */
		fail_rails("rail%d link-down");
		CHECK(kill(child, SIGCONT) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	use(qp);
	meet();
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "one_end_is_down", one_end_is_down }, { "both_ends_are_down", both_ends_are_down },
		{ "one_nic_is_dead", one_nic_is_dead }, { "both_nics_are_dead", both_nics_are_dead },
		{ "goes_down_while_connecting", goes_down_while_connecting },
	};
	CHECK(argc == 2);
	fork_peer();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
