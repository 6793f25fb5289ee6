/* Two processes connect while rail 0 of one process or of both is down or has a dead NIC. The objects are made before or after the failure. */
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

/* Each end sends a message and writes into the other's memory twice, because the connection may move after the first time. */
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

/* Connects both ends after the rails have failed at one end or at both. */
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

/* The rails of the parent fail while the parent connects. The child is stopped, and does not answer. */
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

static void kill_nic(int rail) { fault("rail%d nic-dead", rail); }
static void hang_nic(int rail) { fault("rail%d nic-hung", rail); }

/* A connection is used, and `fail` is called for rails of the two ends, which stay connected if a rail is left to both. Then the ends recover by connecting again:
 * with new objects only, and once more with the first queue pair after a reset. */
static void recover(void (*fail)(int), unsigned here, unsigned there)
{
	struct ibv_qp *first = prepare(), *all[4];
	connect_to(first, peer);
	use(first);
	struct end before = end;
	unsigned failed = child ? here : there;
	for (int rail = 0; rail < rails(); rail++)
		if (failed & 1u << rail)
			fail(rail);
	meet();
	for (int i = 0; i < 4; i++) {
		all[i] = prepare();
		for (int j = 0; j < i; j++)
			CHECK(all[i]->qp_num != all[j]->qp_num && all[i]->qp_num != first->qp_num);
		connect_to(all[i], peer);
		use(all[i]);
	}
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp *again[] = { first, all[0] };
	for (int i = 0; i < 2; i++) {
		uint32_t number = again[i]->qp_num;
		if (i == 0)
			end = before;
		else
			CHECK(ibv_destroy_qp(first) == 0);
		CHECK(ibv_modify_qp(again[i], &attr, IBV_QP_STATE) == 0 && again[i]->qp_num == number);
		ready(again[i]);
		struct connection_data own = connection_data_of(&end, again[i]);
		tell(&own, sizeof own);
		hear(&peer, sizeof peer);
		connect_to(again[i], peer);
		if (i == 0)
			use(again[i]);
	}
	CHECK(ibv_resize_cq(end.cq, 8 * DEPTH) == 0);
	meet();
	for (int i = 0; i < 4; i++)
		CHECK(ibv_destroy_qp(all[i]) == 0);
}

static unsigned all_but_last(void) { return (1u << (rails() - 1)) - 1; }
static unsigned all_but_first(void) { return all_but_last() << 1; }
static void recovers_on_last(void) { recover(kill_nic, all_but_last(), 0); }
static void recovers_on_last_of_both(void) { recover(kill_nic, all_but_last(), all_but_last()); }
static void recovers_on_first(void) { recover(kill_nic, 0, all_but_first()); }
static void recovers_on_last_after_hangs(void) { recover(hang_nic, all_but_last(), 0); }
/* Each end has lost a different rail. */
static void recovers_on_third(void) { recover(kill_nic, 1, 2); }

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "one_end_is_down", one_end_is_down }, { "both_ends_are_down", both_ends_are_down },
		{ "one_nic_is_dead", one_nic_is_dead }, { "both_nics_are_dead", both_nics_are_dead },
		{ "goes_down_while_connecting", goes_down_while_connecting },
		{ "recovers_on_last", recovers_on_last }, { "recovers_on_last_of_both", recovers_on_last_of_both },
		{ "recovers_on_first", recovers_on_first }, { "recovers_on_last_after_hangs", recovers_on_last_after_hangs },
		{ "recovers_on_third", recovers_on_third },
	};
	CHECK(argc == 2);
	fork_peer();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	if (child)
		exit_well(child);
	return 0;
}
