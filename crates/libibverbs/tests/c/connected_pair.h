/* Two queue pairs of one process that are connected to each other, with all rights. */
#pragma once
#include "test_support.h"

static struct end end;
static struct ibv_qp *one, *other;

static inline void connect_pair(void)
{
	one = make_qp(&end), other = make_qp(&end);
	ready(one), ready(other);
	connect_to(one, connection_data_of(&end, other)), connect_to(other, connection_data_of(&end, one));
}

static void disconnect_pair(void)
{
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}
