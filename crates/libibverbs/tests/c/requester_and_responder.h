/* A requester and a responder in one process, and checks of requests that are permitted or refused. The second page of the process's
 * memory is the target of remote accesses. */
#pragma once
#include "rail_faults.h"
#include "test_support.h"

#include <poll.h>

enum { WRITE, WRITE_WITH_IMM, READ, SWAP, ADD, OPERATIONS };
static const enum ibv_wr_opcode opcodes[] = {
	IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
};
/* The access flag that each operation requires of the responder's queue pair and of the region. */
static const int needed[] = {
	IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC,
};
enum { LOCAL = 0x11, REMOTE = 0x22, TIMEOUT_MS = 20000 };

static struct end end;
/* The requester and the responder. */
static struct ibv_qp *one, *other;
/* A protection domain without queue pairs, and its registration of the whole memory. */
static struct ibv_pd *foreign __attribute__((unused));
static struct ibv_mr *foreign_mr __attribute__((unused));
/* The completion queue of the responder. */
static struct ibv_cq *responder_cq;

/* Opens the device for the scenario that the only argument names. */
static inline void set_up(int argc)
{
	CHECK(argc == 2);
	alarm(60);
	end = open_end();
	CHECK(responder_cq = ibv_create_cq(end.context, 4 * DEPTH, NULL, NULL, 0));
}

static char *target(void)
{
	return end.memory + PAGE;
}

static void initialize(struct ibv_qp *qp, int flags)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = flags };
	CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

/* Connects two queue pairs. The responder has these access flags, and the requester has none. */
static void pair_with(int flags, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.send_cq = init.recv_cq = responder_cq;
	init.srq = srq;
	one = make_qp(&end);
	CHECK(other = ibv_create_qp(end.pd, &init));
	initialize(one, 0), initialize(other, flags);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
}

static inline void pair(int flags)
{
	pair_with(flags, NULL);
}

static void unpair(void)
{
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	CHECK(is_empty(end.cq) && is_empty(responder_cq));
}

static int post_at(int operation, uint64_t wr_id, char *local, uint32_t lkey, char *remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)local, 8, lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[operation], .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (operation == SWAP || operation == ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote, wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 0x0101010101010101 * REMOTE;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote, wr.wr.rdma.rkey = rkey;
	}
	return ibv_post_send(one, &wr, &bad);
}

static void post(int operation, uint64_t wr_id, uint32_t lkey, uint32_t rkey)
{
	CHECK(post_at(operation, wr_id, end.memory, lkey, target(), rkey) == 0);
}

static void post_recv(uint64_t wr_id, struct ibv_sge *list, int entries)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = list, .num_sge = entries }, *bad;
	CHECK(ibv_post_recv(other, &wr, &bad) == 0);
}

static inline void post_srq_recv(struct ibv_srq *srq, uint64_t wr_id, struct ibv_sge *list, int entries)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = list, .num_sge = entries }, *bad;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static int try_message(uint64_t wr_id, struct ibv_sge *list, int entries)
{
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = list, .num_sge = entries, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	return ibv_post_send(one, &wr, &bad);
}

static void fill(void)
{
	memset(end.memory, LOCAL, PAGE);
	memset(target(), REMOTE, PAGE);
}

static void check_unchanged(void)
{
	for (int i = 0; i < PAGE; i++)
		CHECK(end.memory[i] == LOCAL && target()[i] == REMOTE);
}

static void completes_in(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next(cq);
	if (wc.wr_id != wr_id || wc.status != status)
		fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.wr_id == wr_id && wc.status == status);
}

static void completes(uint64_t wr_id, enum ibv_wc_status status)
{
	completes_in(end.cq, wr_id, status);
}

static bool has_event(int milliseconds)
{
	return poll(&(struct pollfd){ .fd = end.context->async_fd, .events = POLLIN }, 1, milliseconds) == 1;
}

static void in_error(struct ibv_qp *qp)
{
	for (int waited = 0; state_of(qp) != IBV_QPS_ERR; waited++) {
		CHECK(waited < TIMEOUT_MS);
		usleep(1000);
	}
}

/* Posts a request between two permitted ones. The first completes, the second fails with `status`, and the third is flushed. */
static void fails_at(int operation, char *local, uint32_t lkey, char *remote, uint32_t rkey, enum ibv_wc_status status)
{
	fill();
	post_recv(100, NULL, 0);
	CHECK(try_message(1, NULL, 0) == 0);
	CHECK(post_at(operation, 2, local, lkey, remote, rkey) == 0);
	CHECK(try_message(3, NULL, 0) == 0);
	completes(1, IBV_WC_SUCCESS);
	completes(2, status);
	completes(3, IBV_WC_WR_FLUSH_ERR);
	completes_in(responder_cq, 100, IBV_WC_SUCCESS);
	in_error(one);
	CHECK(try_message(4, NULL, 0) == 0);
	completes(4, IBV_WC_WR_FLUSH_ERR);
	check_unchanged();
}

/* The responder refuses the operation, enters ERR and has an event. Its receives are flushed. */
static inline void refused_with(int operation, char *remote, uint32_t rkey, enum ibv_wc_status status, enum ibv_event_type type)
{
	fails_at(operation, end.memory, end.mr->lkey, remote, rkey, status);
	struct ibv_async_event event;
	CHECK(has_event(TIMEOUT_MS) && ibv_get_async_event(end.context, &event) == 0);
	if (event.event_type != type)
		fprintf(stderr, "event: %s\n", ibv_event_type_str(event.event_type));
	CHECK(event.event_type == type && event.element.qp == other);
	ibv_ack_async_event(&event);
	in_error(other);
	CHECK(!has_event(0));
	post_recv(101, NULL, 0);
	completes_in(responder_cq, 101, IBV_WC_WR_FLUSH_ERR);
}

static void refused_at(int operation, char *remote, uint32_t rkey)
{
	refused_with(operation, remote, rkey, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static inline void refused(int operation, uint32_t rkey)
{
	refused_at(operation, target(), rkey);
}

/* An operation that the queue pair does not permit is an invalid request, as on soft-RoCE. */
static inline void refused_by_queue_pair(int operation)
{
	refused_with(operation, target(), end.mr->rkey, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

/* The requester's own device refuses the operation. The responder notices nothing. */
static inline void fails(int operation, char *local, uint32_t lkey)
{
	fails_at(operation, local, lkey, target(), end.mr->rkey, IBV_WC_LOC_PROT_ERR);
	CHECK(!has_event(0));
}

static inline void permitted(int operation)
{
	fill();
	if (operation == WRITE_WITH_IMM)
		post_recv(200, NULL, 0);
	post(operation, 10, end.mr->lkey, end.mr->rkey);
	completes(10, IBV_WC_SUCCESS);
	if (operation == WRITE_WITH_IMM)
		completes_in(responder_cq, 200, IBV_WC_SUCCESS);
	CHECK(operation == READ ? end.memory[0] == REMOTE : target()[0] != REMOTE);
}
