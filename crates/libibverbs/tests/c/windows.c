/* Memory windows: what they permit, and what they no longer permit, on every rail. */
#include "requester_and_responder.h"

/* Binds a window to the target on the responder's queue pair. */
static void bind_window(struct ibv_mw *mw, uint32_t rkey, int flags, enum ibv_wc_status status)
{
	struct ibv_send_wr wr = {
		.wr_id = 300, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = { end.mr, (uintptr_t)target(), 8, flags } },
	}, *bad;
	CHECK(ibv_post_send(other, &wr, &bad) == 0);
	completes_in(responder_cq, 300, status);
}

/* Moves every connection to the next rail, and lets the old rail heal. */
static void move_rails(int rail)
{
	fault("rail%d down", rail);
	permitted(WRITE);
	fault("rail%d up", rail);
}

/* A window permits less than its region, and is valid on one queue pair only. */
static void window_rights(void)
{
	struct ibv_device_attr attr;
	struct ibv_mw *mw;
	CHECK(ibv_query_device(end.context, &attr) == 0);
	CHECK(attr.max_mw > 0 && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	struct ibv_mr *region = end.mr;
	CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	for (int operation = 0; operation < OPERATIONS; operation++) {
		uint32_t key;
		CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
		pair(ALL);
		bind_window(mw, key = ibv_inc_rkey(mw->rkey), ALL & ~needed[operation] & ~IBV_ACCESS_LOCAL_WRITE, IBV_WC_SUCCESS);
		refused(operation, key);
		unpair();
		CHECK(ibv_dealloc_mw(mw) == 0);
		/* The bytes after the window, and a queue pair to which the window does not belong. */
		CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
		pair(ALL);
		bind_window(mw, key = ibv_inc_rkey(mw->rkey), needed[operation], IBV_WC_SUCCESS);
		struct ibv_qp *bound = other, *requester = one;
		pair(ALL);
		refused(operation, key);
		unpair();
		one = requester, other = bound;
		refused_at(operation, target() + 8, key);
		unpair();
		CHECK(ibv_dealloc_mw(mw) == 0);
	}
	/* The queue pair and the window belong to different protection domains. */
	CHECK(mw = ibv_alloc_mw(foreign, IBV_MW_TYPE_2));
	pair(ALL);
	bind_window(mw, ibv_inc_rkey(mw->rkey), IBV_ACCESS_REMOTE_READ, IBV_WC_MW_BIND_ERR);
	in_error(other);
	unpair();
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(end.mr) == 0);
	end.mr = region;
}

/* Posts a request without data on a queue pair, which completes with this status. */
static void execute(struct ibv_qp *qp, struct ibv_cq *cq, enum ibv_wr_opcode opcode, uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_send_wr wr = { .wr_id = 400, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	completes_in(cq, 400, status);
}

static void invalidated_by_peer(uint32_t rkey)
{
	post_recv(401, NULL, 0);
	execute(one, end.cq, IBV_WR_SEND_WITH_INV, rkey, IBV_WC_SUCCESS);
	struct ibv_wc wc = next(responder_cq);
	CHECK(wc.wr_id == 401 && wc.status == IBV_WC_SUCCESS && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_INV) && wc.invalidated_rkey == rkey);
}

static void permitted_by(uint32_t rkey, int operation)
{
	fill();
	post(operation, 11, end.mr->lkey, rkey);
	completes(11, IBV_WC_SUCCESS);
	CHECK(operation == READ ? end.memory[0] == REMOTE : target()[0] != REMOTE);
}

/* A window is valid until it is invalidated, on every rail. Its region cannot be deregistered, and becomes free with the queue pair. */
static void invalidations(void)
{
	struct ibv_mr *region = end.mr;
	CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	for (int kind = 0; kind < 4; kind++) {
		for (int moves = 0; moves < (rails() > 1 ? 4 : 1); moves++) {
			struct ibv_mw *mw;
			uint32_t key;
			pair(ALL);
			CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
			bind_window(mw, key = ibv_inc_rkey(mw->rkey), IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, IBV_WC_SUCCESS);
			permitted_by(key, WRITE);
			CHECK(ibv_dereg_mr(end.mr) == EBUSY);
			if (moves & 1)
				move_rails(0);
			permitted_by(key, READ);
			if (kind == 0)
				execute(other, responder_cq, IBV_WR_LOCAL_INV, key, IBV_WC_SUCCESS);
			else if (kind == 1)
				invalidated_by_peer(key);
			else if (kind == 2)
				CHECK(ibv_dealloc_mw(mw) == 0);
			if (moves & 2)
				move_rails(moves & 1);
			if (kind == 3) {
				CHECK(ibv_dereg_mr(end.mr) == EBUSY);
				permitted_by(key, WRITE);
				CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
			} else {
				if (kind < 2) {
					/* The window can be bound again. Its earlier key stays invalid. */
					uint32_t again = ibv_inc_rkey(key);
					bind_window(mw, again, IBV_ACCESS_REMOTE_READ, IBV_WC_SUCCESS);
					permitted_by(again, READ);
				}
				refused(READ, key);
				unpair();
			}
			/* No window of these queue pairs is bound any more. */
			CHECK(ibv_dereg_mr(end.mr) == 0);
			CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
			if (kind != 2)
				CHECK(ibv_dealloc_mw(mw) == 0);
		}
	}
	CHECK(ibv_dereg_mr(end.mr) == 0);
	end.mr = region;
}

/* Only the key of a bound type 2 window can be invalidated. A request with any other key ends the queue pair that executes the request. */
static void refused_invalidations(void)
{
	struct ibv_mw *mw;
	CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
	uint32_t keys[] = { end.mr->rkey, end.mr->rkey + 0x100, mw->rkey, foreign_mr->rkey };
	for (int i = 0; i < 4; i++) {
		for (int moves = 0; moves < (rails() > 1 ? 2 : 1); moves++) {
			pair(ALL);
			if (moves)
				move_rails(0);
			execute(other, responder_cq, IBV_WR_LOCAL_INV, keys[i], IBV_WC_LOC_QP_OP_ERR);
			in_error(other);
			unpair();
			pair(ALL);
			if (moves)
				move_rails(0);
			post_recv(402, NULL, 0);
			execute(one, end.cq, IBV_WR_SEND_WITH_INV, keys[i], IBV_WC_REM_ACCESS_ERR);
			completes_in(responder_cq, 402, IBV_WC_WR_FLUSH_ERR);
			in_error(one), in_error(other);
			struct ibv_async_event event;
			CHECK(has_event(TIMEOUT_MS) && ibv_get_async_event(end.context, &event) == 0);
			CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == other);
			ibv_ack_async_event(&event);
			unpair();
		}
	}
	CHECK(ibv_dealloc_mw(mw) == 0);
}

/* A type 1 window is valid on every queue pair of its protection domain and on every rail, until its next bind. */
static void window_bound_for_all(void)
{
	struct ibv_mr *region = end.mr;
	CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	for (int moves = 0; moves < (rails() > 1 ? 4 : 1); moves++) {
		struct ibv_mw *mw;
		struct ibv_mw_bind bind = {
			.wr_id = 300, .send_flags = IBV_SEND_SIGNALED,
			.bind_info = { end.mr, (uintptr_t)target(), 8, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE },
		};
		CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1));
		pair(ALL);
		CHECK(ibv_bind_mw(other, mw, &bind) == 0);
		uint32_t key = mw->rkey;
		completes_in(responder_cq, 300, IBV_WC_SUCCESS);
		CHECK(ibv_dereg_mr(end.mr) == EBUSY);
		if (moves & 1)
			move_rails(0);
		permitted_by(key, WRITE);
		unpair();
		/* The binding outlives the queue pair. */
		pair(ALL);
		CHECK(ibv_dereg_mr(end.mr) == EBUSY);
		permitted_by(key, READ);
		bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
		CHECK(ibv_bind_mw(other, mw, &bind) == 0);
		completes_in(responder_cq, 300, IBV_WC_SUCCESS);
		if (moves & 2)
			move_rails(moves & 1);
		permitted_by(mw->rkey, READ);
		refused(WRITE, mw->rkey);
		unpair();
		pair(ALL);
		refused(READ, key);
		unpair();
		pair(ALL);
		bind.bind_info = (struct ibv_mw_bind_info){ .mr = end.mr };
		CHECK(ibv_bind_mw(other, mw, &bind) == 0);
		completes_in(responder_cq, 300, IBV_WC_SUCCESS);
		if (moves & 2)
			move_rails(0);
		refused(READ, mw->rkey);
		unpair();
		CHECK(ibv_dereg_mr(end.mr) == 0);
		CHECK(end.mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
		CHECK(ibv_dealloc_mw(mw) == 0);
	}
	CHECK(ibv_dereg_mr(end.mr) == 0);
	end.mr = region;
}

/* Waits for the event of a completion of the requester. The completion is then in the queue. */
static void sleep_until_complete(uint64_t wr_id)
{
	struct ibv_cq *cq;
	void *context;
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(end.cq, 1, &wc)) == 0) {
		CHECK(ibv_get_cq_event(end.channel, &cq, &context) == 0 && cq == end.cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
	CHECK(n == 1 && wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS);
}

/* Binds and invalidations complete while the program sleeps. */
static void binds_wake_sleepers(void)
{
	struct ibv_mr *mr;
	struct ibv_mw *first, *second;
	CHECK(mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	CHECK((first = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1)) && (second = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2)));
	pair(ALL);
	CHECK(ibv_req_notify_cq(end.cq, 0) == 0);
	struct ibv_mw_bind_info info = { mr, (uintptr_t)target(), 8, IBV_ACCESS_REMOTE_READ };
	for (int i = 0; i < 20; i++) {
		struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		CHECK(ibv_bind_mw(one, first, &bind) == 0);
		sleep_until_complete(1);
		struct ibv_send_wr wr = {
			.wr_id = 2, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
			.bind_mw = { .mw = second, .rkey = second->rkey, .bind_info = info },
		}, *bad;
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		sleep_until_complete(2);
		wr = (struct ibv_send_wr){ .wr_id = 3, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = second->rkey };
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		sleep_until_complete(3);
	}
	unpair();
	CHECK(ibv_dealloc_mw(first) == 0 && ibv_dealloc_mw(second) == 0 && ibv_dereg_mr(mr) == 0);
}

/* With several rails, windows are not bound on queue pairs that are connected to themselves. */
static void refused_binds(void)
{
	int refused_with = rails() > 1 ? EOPNOTSUPP : 0;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_send_wr *bad;
	CHECK(mr = ibv_reg_mr(end.pd, end.memory, 2 * PAGE, ALL | IBV_ACCESS_MW_BIND));
	for (int is_uc = 0; is_uc < 2; is_uc++) {
		struct ibv_qp_init_attr init = plain_init(&end);
		init.qp_type = is_uc ? IBV_QPT_UC : IBV_QPT_RC;
		CHECK(mw = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
		CHECK(one = ibv_create_qp(end.pd, &init));
		struct ibv_send_wr wr = {
			.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
			.bind_mw = { .mw = mw, .rkey = mw->rkey, .bind_info = { mr, (uintptr_t)target(), 8, IBV_ACCESS_REMOTE_WRITE } },
		};
		if (is_uc) {
			/* In RESET. */
			CHECK(ibv_post_send(one, &wr, &bad) == EINVAL);
		} else {
			initialize(one, ALL);
			connect_to(one, connection_data_of(&end, one));
			CHECK(ibv_post_send(one, &wr, &bad) == refused_with);
			if (!refused_with)
				completes(1, IBV_WC_SUCCESS);
		}
		CHECK(ibv_destroy_qp(one) == 0 && ibv_dealloc_mw(mw) == 0);
	}
	CHECK(ibv_dereg_mr(mr) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "window_rights", window_rights }, { "invalidations", invalidations }, { "refused_invalidations", refused_invalidations },
		{ "window_bound_for_all", window_bound_for_all }, { "binds_wake_sleepers", binds_wake_sleepers }, { "refused_binds", refused_binds },
	};
	set_up(argc);
	CHECK(foreign = ibv_alloc_pd(end.context));
	CHECK(foreign_mr = ibv_reg_mr(foreign, end.memory, 2 * PAGE, ALL));
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	CHECK(ibv_dereg_mr(foreign_mr) == 0 && ibv_dealloc_pd(foreign) == 0);
	return 0;
}
