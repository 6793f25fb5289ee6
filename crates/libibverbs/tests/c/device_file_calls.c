/* Calls with the device's files, and with sockets that ask for devices, in situations that the kernel's handle:
 * a buffer that the target of a link fills, an absent file, the error of dlsym(3) before a first call, a child.
 * Expected: the comments. Exit code 0; 1 if one does not hold.
 */
#include "report.h"
#include <dlfcn.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define DEVICE "/sys/devices/virtual/infiniband/mitra0"

/* A call with a path keeps the error of dlerror(3), also the first such call in this process. */
static void pending_error(void) {
    dlsym(RTLD_DEFAULT, "no function has this name");
    NEED(!eaccess("/", X_OK));
    verdict(dlerror() != NULL, "dlerror returns the error of the call before");
}
/* readlink(2) writes the beginning of the path by which programs know the directory. */
static void cut_links(void) {
    char link[64], target[128], expected[] = DEVICE;
    int dir = open(DEVICE, O_RDONLY);
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    int wrong = 0;
    for (size_t size = 1; size < sizeof target; size++) {
        memset(target, '#', sizeof target);
        size_t len = size < sizeof expected - 1 ? size : sizeof expected - 1;
        wrong += readlink(link, target, size) != (ssize_t)len || memcmp(target, expected, len) || target[size] != '#';
    }
    verdict(!wrong, "readlink into buffers of all sizes: %d are wrong", wrong);
    close(dir);
}
/* ENOENT, as in a directory that may be written: a program that looks for further devices by opening them ends at the first. */
static void absent_files(void) {
    verdict(open("/dev/infiniband/uverbs1", O_RDWR) < 0 && errno == ENOENT, "open of an absent device: %s", strerror(errno));
    verdict(open(DEVICE "/absent", O_WRONLY) < 0 && errno == ENOENT, "open of an absent file: %s", strerror(errno));
    verdict(!fopen(DEVICE "/absent", "r+") && errno == ENOENT, "fopen of an absent file: %s", strerror(errno));
    verdict(open(DEVICE "/node_desc", O_WRONLY) < 0 && errno == EACCES, "open of a file to write it: %s", strerror(errno));
    verdict(creat(DEVICE "/absent", 0600) < 0 && errno == EACCES, "creat: %s", strerror(errno));
}
static int ask(int s) {
    struct nlmsghdr request = { .nlmsg_len = sizeof request, .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET), .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP };
    char answer[4096];
    struct timeval wait = { .tv_sec = 10 };
    NEED(!setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait));
    if (send(s, &request, sizeof request, MSG_NOSIGNAL) < 0) return -errno;
    int len = recv(s, answer, sizeof answer, 0);
    return len < 0 ? -errno : len;
}
/* A program that forks and ends its parent, as daemon(3) does, gets an error at the socket and no endless wait. The socket is the only one of its descriptors that the
 * program knows, so the next one has the next number. */
static void netlink_sockets(void) {
    int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA), next = dup(s);
    verdict(next == s + 1, "the descriptor after that of a netlink socket, %d, is %d", s, next);
    close(next);
    verdict(ask(s) > 0, "a netlink socket is answered");
    struct sockaddr_nl name;
    socklen_t len = sizeof name;
    verdict(!getsockname(s, (struct sockaddr *)&name, &len) && len == sizeof name && name.nl_family == AF_NETLINK && name.nl_pid, "and has a name");
    verdict(getsockname(0, (struct sockaddr *)8, (void *)8) < 0 && errno != 0, "a wild address is an error: %s", strerror(errno));
    close(s);
    int ends[2];
    NEED(!pipe(ends));
    pid_t parent = fork();
    NEED(parent >= 0);
    if (parent == 0) {
        s = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);
        if (fork() > 0) _exit(0);
        char byte;
        while (getppid() == parent) usleep(1000);
        usleep(100000);
        int result = ask(s);
        byte = result == -EPIPE || result == -ECONNRESET || result == 0;
        NEED(write(ends[1], &byte, 1) == 1);
        _exit(0);
    }
    char byte = 0;
    NEED(waitpid(parent, NULL, 0) == parent && read(ends[0], &byte, 1) == 1);
    verdict(byte == 1, "the child of a parent that has ended gets an error");
}

int main(void) {
    alarm(60);
    pending_error();
    cut_links();
    absent_files();
    netlink_sockets();
    return faults > 0;
}
