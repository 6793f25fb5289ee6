/* Calls that are refused, each of them twice. The test compares what the library writes to standard error.
 *
 * refusals entry_points ENTRY...: calls exported functions (NAME) and slots of the context (NAME@OFFSET).
 * refusals arguments: calls with arguments that the device refuses.
 * refusals expected: calls that programs make although they are refused.
 * refusals rails N: connects to a process that has N rails. Each end that has several rails refuses. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/wait.h>

#include "test_support.h"

typedef long (*entry_point)(void *, void *, void *, void *, void *, void *);

static void *scratch[6][64];

/* Calls an entry point with pointers to zeros. No refused entry point reads its arguments. */
static void call(entry_point entry)
{
	for (int i = 0; i < 2; i++) {
		errno = 0;
		long returned = entry(scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]);
		CHECK((int)returned == EOPNOTSUPP || errno == EOPNOTSUPP || (int)returned == -EOPNOTSUPP);
	}
}

static void entry_points(struct end *end, char **entries)
{
	char *table = (char *)verbs_get_ctx(end->context);
	for (; *entries; entries++) {
		char *at = strchr(*entries, '@');
		entry_point entry;
		if (at)
			memcpy(&entry, table + atol(at + 1), sizeof(entry));
		else
			*(void **)&entry = dlsym(RTLD_DEFAULT, *entries);
		if (!entry) {
			fprintf(stderr, "%s is empty\n", *entries);
			continue;
		}
		call(entry);
	}
}

static void arguments(struct end *end)
{
	struct ibv_qp *qp = make_qp(end);
	union ibv_gid gid;
	struct ibv_port_attr port;
	int (*create_id)(void *, void **, void *, int);
	*(void **)&create_id = dlsym(RTLD_DEFAULT, "rdma_create_id");
	CHECK(create_id);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = plain_init(end);
		init.cap.max_send_sge = 1 << 20;
		REFUSED(EINVAL, ibv_create_qp(end->pd, &init));
		init = plain_init(end);
		init.cap.max_inline_data = 1 << 20;
		REFUSED(EINVAL, ibv_create_qp(end->pd, &init));
		init = plain_init(end);
		init.qp_type = IBV_QPT_RAW_PACKET;
		REFUSED(EOPNOTSUPP, ibv_create_qp(end->pd, &init));
		struct ibv_ah_attr lid = { .dlid = 1, .port_num = 1 };
		REFUSED(EINVAL, ibv_create_ah(end->pd, &lid));
		CHECK(ibv_query_gid(end->context, 1, 5000, &gid) != 0);
		CHECK(ibv_query_port(end->context, 2, &port) == EINVAL);
		CHECK(ibv_rereg_mr(end->mr, 0, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT);
		REFUSED(EOPNOTSUPP, ibv_reg_dmabuf_mr(end->pd, 0, PAGE, 0, 0, ALL));
		struct ibv_qp_attr init_to_rts = { .qp_state = IBV_QPS_RTS };
		CHECK(ibv_modify_qp(qp, &init_to_rts, IBV_QP_STATE) == EINVAL);
		void *id;
		enum { PS_IPOIB = 2 };
		CHECK(create_id(NULL, &id, NULL, PS_IPOIB) == -1 && errno == EPROTONOSUPPORT);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void expected(struct end *end)
{
	struct ibv_qp_init_attr init = plain_init(end);
	struct ibv_qp *qp;
	/* The largest inline capacity, found by doubling, as libfabric does. */
	for (unsigned bytes = 64; init.cap.max_inline_data = bytes, (qp = ibv_create_qp(end->pd, &init)); bytes *= 2)
		CHECK(ibv_destroy_qp(qp) == 0 && bytes < 1 << 20);
	/* Whether there is dmabuf, as UCX asks. */
	REFUSED(EOPNOTSUPP, ibv_reg_dmabuf_mr(end->pd, 0, PAGE, 0, -1, 0));
	/* Objects in any order, as qperf destroys them. */
	CHECK(ibv_dealloc_pd(end->pd) == EBUSY);
	/* Requests until the queue is full. */
	struct ibv_qp *a = make_qp(end), *b = make_qp(end);
	struct connection_data to = connection_data_of(end, b);
	ready(a), ready(b);
	connect_to(a, to), connect_to(b, connection_data_of(end, a));
	int posted = 0;
	while (post_write(a, end, 1, to.addr, to.rkey) == 0)
		posted++;
	for (; posted; posted--)
		CHECK(next(end->cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

/* Connects twice to the other end of a socket. */
static void connect_refused(int socket, bool has_several)
{
	struct end end = open_end();
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = make_qp(&end);
		struct connection_data own = connection_data_of(&end, qp), peer;
		CHECK(write(socket, &own, sizeof(own)) == sizeof(own) && read(socket, &peer, sizeof(peer)) == sizeof(peer));
		ready(qp);
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 64 } },
		};
		CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
			| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == (has_several ? EINVAL : 0));
		/* The peer asks about this queue pair until both are done. */
		char done = 0;
		CHECK(write(socket, &done, 1) == 1 && read(socket, &done, 1) == 1);
		CHECK(ibv_destroy_qp(qp) == 0);
	}
}

static void rails(const char *of_child)
{
	int sockets[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	pid_t child = fork();
	if (child == 0) {
		alarm(60);
		CHECK(setenv("MITRA_RAILS", of_child, 1) == 0);
		connect_refused(sockets[1], strcmp(of_child, "1") != 0);
		_exit(0);
	}
	connect_refused(sockets[0], strcmp(getenv("MITRA_RAILS"), "1") != 0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
	alarm(60);
	CHECK(argc > 1);
	if (strcmp(argv[1], "rails") == 0) {
		rails(argv[2]);
		return 0;
	}
	struct end end = open_end();
	if (strcmp(argv[1], "entry_points") == 0)
		entry_points(&end, argv + 2);
	else if (strcmp(argv[1], "arguments") == 0)
		arguments(&end);
	else
		expected(&end);
	return 0;
}
