/* The device's files say what the verbs say: before the device is opened, while the port is down, after the address has changed, and in a child, and about the
 * traffic. */
#include "rail_faults.h"

#include <sys/wait.h>

#define PORT "/sys/class/infiniband/mitra0/ports/1/"

/* Of infiniband/driver.h, which is no public header. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static const char *text(const char *path)
{
	static char line[256];
	FILE *file = fopen(path, "r");
	CHECK(file);
	CHECK(fgets(line, sizeof line, file));
	line[strcspn(line, "\n")] = 0;
	fclose(file);
	return line;
}

static void gids_are_those_of_the_device(struct ibv_context *context)
{
	for (int index = 0; index < 2; index++) {
		char path[64], expected[64] = "";
		union ibv_gid gid;
		CHECK(ibv_query_gid(context, 1, index, &gid) == 0);
		for (int at = 0; at < 16; at += 2)
			sprintf(expected + strlen(expected), "%s%02x%02x", at ? ":" : "", gid.raw[at], gid.raw[at + 1]);
		snprintf(path, sizeof path, PORT "gids/%d", index);
		CHECK(strcmp(text(path), expected) == 0);
	}
}

static void port_is_that_of_the_device(struct ibv_context *context, enum ibv_port_state expected)
{
	struct ibv_port_attr port;
	unsigned number;
	/* A move to the state takes the device a moment. */
	do
		CHECK(ibv_query_port(context, 1, &port) == 0);
	while (port.state != expected && usleep(1000) == 0);
	CHECK(sscanf(text(PORT "state"), "%u", &number) == 1 && number == port.state);
	CHECK(sscanf(text(PORT "phys_state"), "%u", &number) == 1 && number == port.phys_state);
	CHECK(sscanf(text(PORT "cap_mask"), "%x", &number) == 1 && number == port.port_cap_flags);
	CHECK(sscanf(text(PORT "lid"), "%x", &number) == 1 && number == port.lid);
	CHECK(strcmp(text(PORT "link_layer"), "Ethernet") == 0 && port.link_layer == IBV_LINK_LAYER_ETHERNET);
}

static void all_is_that_of_the_device(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	char guid[32], read[64];
	const uint8_t *bytes = (const uint8_t *)&attr.node_guid;
	CHECK(ibv_query_device(context, &attr) == 0);
	snprintf(guid, sizeof guid, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]);
	CHECK(strcmp(text("/sys/class/infiniband/mitra0/node_guid"), guid) == 0);
	CHECK(strcmp(text("/sys/class/infiniband/mitra0/sys_image_guid"), guid) == 0);
	CHECK(strcmp(text("/sys/class/infiniband/mitra0/fw_ver"), attr.fw_ver) == 0);
	CHECK(strcmp(text("/sys/class/infiniband_verbs/uverbs0/ibdev"), ibv_get_device_name(context->device)) == 0);
	CHECK(ibv_read_sysfs_file(context->device->ibdev_path, "node_guid", read, sizeof read) == (int)strlen(guid) && strcmp(read, guid) == 0);
	CHECK(ibv_read_sysfs_file(context->device->dev_path, "ibdev", read, sizeof read) == 6 && strcmp(read, "mitra0") == 0);
	CHECK(strcmp(text(PORT "gid_attrs/types/1"), "RoCE v2") == 0);
	gids_are_those_of_the_device(context);
	port_is_that_of_the_device(context, IBV_PORT_ACTIVE);
}

int main(void)
{
	char before[64];
	strcpy(before, text(PORT "gids/0"));
	struct end end = open_end();
	struct ibv_context *context = end.context;
	CHECK(strcmp(text(PORT "gids/0"), before) == 0);
	all_is_that_of_the_device(context);
	for (int rail = 0; rail < rails(); rail++)
		fault("rail%d down", rail);
	port_is_that_of_the_device(context, IBV_PORT_DOWN);
	for (int rail = 0; rail < rails(); rail++)
		fault("rail%d up", rail);
	port_is_that_of_the_device(context, IBV_PORT_ACTIVE);
	fault("rail%d address free", 0);
	gids_are_those_of_the_device(context);

	struct ibv_qp *qp = make_qp(&end);
	CHECK(ibv_query_gid(context, 1, 0, &end.gid) == 0);
	ready(qp);
	connect_to(qp, connection_data_of(&end, qp));
	CHECK(post_write(qp, &end, 1, (uintptr_t)end.memory + PAGE, end.mr->rkey) == 0);
	CHECK(next(end.cq).status == IBV_WC_SUCCESS);
	CHECK(atoi(text(PORT "hw_counters/sent_pkts")) > 0);

	/* A child has a device of its own. A program that it executes inherits the working directory. */
	CHECK(chdir("/sys/class/infiniband/mitra0/ports/1") == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		all_is_that_of_the_device(open_end().context);
		CHECK(system("test \"$(cat state)\" = '4: ACTIVE' && test \"$(/bin/pwd)\" = /sys/devices/virtual/infiniband/mitra0/ports/1") == 0);
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	all_is_that_of_the_device(context);
	return 0;
}
