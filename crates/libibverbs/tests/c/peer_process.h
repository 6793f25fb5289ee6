/* Two processes, each with a device of its own, and the socket between them. */
#pragma once
#include "test_support.h"

#include <sys/wait.h>

static int to_peer;
/* The process that was forked, or 0 in that process. */
static pid_t child;

/* Forks the other process. A process that hangs ends by an alarm. */
static inline void fork_peer(void)
{
	int fds[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	child = fork();
	CHECK(child >= 0);
	to_peer = fds[child == 0];
	close(fds[child != 0]);
	alarm(60);
}

/* Waits until a process ends, which it does without an error. */
static inline void exit_well(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void tell(const void *data, size_t len)
{
	CHECK(write(to_peer, data, len) == (ssize_t)len);
}

static inline void hear(void *data, size_t len)
{
	CHECK(recv(to_peer, data, len, MSG_WAITALL) == (ssize_t)len);
}

/* Waits until the other process calls this, too. */
static inline void meet(void)
{
	char word = 0;
	tell(&word, 1);
	hear(&word, 1);
}
