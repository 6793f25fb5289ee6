/* The rails of the process's own device, and their faults. */
#pragma once
#include "test_support.h"

#include <sys/stat.h>
#include <sys/un.h>

static inline int rails(void)
{
	return atoi(getenv("MITRA_RAILS"));
}

/* Sends a fault script to the device's control socket, as `mitra fault` does, and reads the reply. */
static inline void fault(const char *format, int rail)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const char *dir = getenv("MITRA_RUN_DIR");
	char line[256];
	struct stat namespace;
	CHECK(dir && stat("/proc/self/ns/pid", &namespace) == 0);
	CHECK(snprintf(to.sun_path, sizeof to.sun_path, "%s/%d-%lu.sock", dir, (int)getpid(), (unsigned long)namespace.st_ino) < (int)sizeof to.sun_path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
	int n = snprintf(line, sizeof line, format, rail);
	line[n++] = '\n';
	CHECK(write(fd, line, n) == n);
	CHECK(read(fd, line, sizeof line) > 0 && strstr(line, "done"));
	close(fd);
}

static inline enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

/* What an end does in each round of an exchange: nothing, or a fault of its rail 0 from round 20 on. */
static inline void nothing(uint32_t round)
{
	(void)round;
}

static inline void once(uint32_t round, const char *script)
{
	static bool done;
	if (round >= 20 && !done) {
		done = true;
		fault(script, 0);
	}
}

static inline void link_down(uint32_t round) { once(round, "rail%d down"); }
static inline void nic_dead(uint32_t round) { once(round, "rail%d nic-dead"); }
static inline void nic_hung(uint32_t round) { once(round, "rail%d nic-hung"); }
static inline void down_from_start(uint32_t round) { once(round + 20, "rail%d down"); }

/* The addresses of the rails change in turn, and those of all rails of a device often. */
static inline void new_addresses(uint32_t round)
{
	static uint32_t last;
	if (round % 5 != 0 || round == last)
		return;
	last = round;
	fault("rail%d address free", round / 5 % rails());
}

/* The rails fail in turn, and each is up again before the next fails. */
static inline void in_turn(uint32_t round)
{
	static uint32_t last;
	if (round % 10 != 0 || round == last)
		return;
	last = round;
	int step = round / 10, rail = step % 2;
	if (step > 1)
		fault("rail%d up", 1 - rail);
	fault("rail%d down", rail);
}
