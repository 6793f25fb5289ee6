/* The GID table, the network device and address handles: one process. */
#include "test_support.h"

#include <dirent.h>
#include <net/if.h>

/* Declared in rdma-core's driver.h. */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type);

static struct end end;

/* Indices 0 and 1 have the GID, as programs for soft-RoCE expect. Other indices are empty or out of range. */
static void gid_table(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, entries[4];
	unsigned type;
	union ibv_gid gid;
	CHECK(ibv_query_port(end.context, 1, &port) == 0 && port.gid_tbl_len == 1024);
	for (uint32_t index = 0; index < 2; index++) {
		CHECK(ibv_query_gid(end.context, 1, index, &gid) == 0 && memcmp(&gid, &end.gid, sizeof gid) == 0);
		CHECK(ibv_query_gid_type(end.context, 1, index, &type) == 0 && type == 1 /* RoCE v2 */);
		CHECK(ibv_query_gid_ex(end.context, 1, index, &entry, 0) == 0);
		CHECK(entry.gid_index == index && entry.port_num == 1 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
		CHECK(entry.ndev_ifindex != 0 && entry.ndev_ifindex == if_nametoindex("lo"));
	}
	for (int index = 2; index < 1024; index += 511) {
		CHECK(ibv_query_gid(end.context, 1, index, &gid) == 0 && !gid.global.subnet_prefix && !gid.global.interface_id);
		CHECK(ibv_query_gid_ex(end.context, 1, index, &entry, 0) == ENODATA);
		CHECK(ibv_query_gid_type(end.context, 1, index, &type) == 0 && type == 0);
	}
	CHECK(ibv_query_gid(end.context, 1, 1024, &gid) == -1 && errno == EINVAL);
	CHECK(ibv_query_gid_ex(end.context, 1, 1024, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_type(end.context, 1, 1024, &type) == -1);
	CHECK(ibv_query_gid_table(end.context, entries, 4, 0) == 2);
	CHECK(entries[0].gid_index == 0 && entries[1].gid_index == 1);
	CHECK(ibv_query_gid_table(end.context, entries, 1, 0) == -EINVAL);
}

static void network_device(void)
{
	char line[64];
	for (int index = 0; index < 2; index++) {
		char path[512];
		snprintf(path, sizeof path, "%s/ports/1/gid_attrs/ndevs/%d", end.context->device->ibdev_path, index);
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(line, sizeof line, file) && strcmp(line, "lo\n") == 0);
		fclose(file);
	}
	/* A child program finds the device, too. */
	FILE *list = popen("ls /sys/class/infiniband/mitra0/device/net/", "r");
	CHECK(list && fgets(line, sizeof line, list) && strcmp(line, "lo\n") == 0);
	CHECK(pclose(list) == 0);
}

/* A connection and an address handle can use either index. */
static void gid_indices(void)
{
	for (uint8_t index = 0; index < 4; index++) {
		struct ibv_qp *qp = make_qp(&end), *peer = make_qp(&end);
		ready(qp), ready(peer);
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = end.gid, .hop_limit = 64, .sgid_index = index } },
		};
		struct ibv_qp_init_attr init;
		int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		CHECK(ibv_modify_qp(qp, &attr, mask) == (index < 2 ? 0 : EINVAL));
		struct ibv_ah_attr ah_attr = attr.ah_attr;
		struct ibv_ah *ah = ibv_create_ah(end.pd, &ah_attr);
		CHECK(index < 2 ? ah != NULL : ah == NULL && errno == EINVAL);
		ah_attr.grh.sgid_index = 0;
		ah_attr.port_num = index;
		CHECK(index == 1 || (ibv_create_ah(end.pd, &ah_attr) == NULL && errno == EINVAL));
		ah_attr.port_num = 1;
		memset(&ah_attr.grh.dgid, 0, sizeof ah_attr.grh.dgid);
		CHECK(ibv_create_ah(end.pd, &ah_attr) == NULL && errno == EINVAL);
		if (index < 2) {
			CHECK(ibv_query_qp(qp, &attr, IBV_QP_AV, &init) == 0 && attr.ah_attr.grh.sgid_index == index && attr.ah_attr.grh.hop_limit == 64);
			CHECK(ibv_destroy_ah(ah) == 0);
		}
		CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
	}
}

static struct ibv_qp *ud(void)
{
	struct ibv_qp_init_attr init = plain_init(&end);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp;
	CHECK(qp = ibv_create_qp(end.pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 17 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	return qp;
}

/* Sends a datagram by an address handle and returns the completion of its receive, at the second page of the memory. */
static struct ibv_wc datagram(struct ibv_qp *from, struct ibv_ah *ah, struct ibv_qp *to)
{
	struct ibv_sge into = { (uintptr_t)end.memory + PAGE, 128, end.mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &into, .num_sge = 1 }, *bad_recv;
	CHECK(ibv_post_recv(to, &recv, &bad_recv) == 0);
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = to->qp_num, .remote_qkey = 17 },
	}, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	struct ibv_wc first = next(end.cq), second = next(end.cq);
	CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS);
	return first.wr_id == 2 ? first : second;
}

/* The receiver's GRH has the traffic class of the address handle. An address handle from the GRH has the same traffic class. */
static void traffic_class(void)
{
	/* A host may set the last two bits, ECN. */
	static const uint8_t classes[] = { 0, 0x48, 0xb8, 0, 0xfc };
	struct ibv_qp *one = ud(), *other = ud();
	for (size_t i = 0; i < sizeof classes; i++) {
		struct ibv_ah_attr attr = {
			.is_global = 1, .port_num = 1,
			.grh = { .dgid = end.gid, .sgid_index = 1, .hop_limit = 64, .flow_label = 0x12345, .traffic_class = classes[i] },
		};
		struct ibv_ah *ah = ibv_create_ah(end.pd, &attr);
		CHECK(ah);
		memset(end.memory + PAGE, 0xff, PAGE);
		struct ibv_wc wc = datagram(one, ah, other);
		const uint8_t *ip = (uint8_t *)end.memory + PAGE + 20;
		CHECK(wc.byte_len == 48 && wc.wc_flags & IBV_WC_GRH && wc.src_qp == one->qp_num);
		CHECK(ip[0] == 0x45 && ip[1] == classes[i] && ip[8] == 64 && ip[9] == 17);
		struct ibv_grh *grh = (struct ibv_grh *)(end.memory + PAGE);
		struct ibv_ah_attr back;
		CHECK(ibv_init_ah_from_wc(end.context, 1, &wc, grh, &back) == 0);
		CHECK(back.is_global == 1 && back.port_num == 1 && memcmp(&back.grh.dgid, &end.gid, sizeof end.gid) == 0);
		CHECK(back.grh.traffic_class == classes[i] && back.grh.sgid_index == 0 && back.grh.hop_limit == 64);
		CHECK(ibv_destroy_ah(ah) == 0);
		CHECK(ah = ibv_create_ah_from_wc(end.pd, &wc, grh, 1));
		datagram(other, ah, one);
		CHECK(ip[1] == classes[i]);
		CHECK(ibv_destroy_ah(ah) == 0);
	}
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "gid_table", gid_table }, { "network_device", network_device }, { "gid_indices", gid_indices },
		{ "traffic_class", traffic_class },
	};
	alarm(60);
	CHECK(argc == 2);
	end = open_end();
	run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argv[1]);
	return 0;
}
