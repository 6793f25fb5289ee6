/* Writes to its own memory over a queue pair that is connected to itself, and checks the data. With LOAD the program loads libibverbs at
 * run time: its arguments are the file to load and `symbols`, `versions` (it looks up versioned symbols) or `namespace` (it loads the file
 * into a namespace of its own). Without LOAD it is linked with the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEED(what) if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); }

#ifdef LOAD
static void *library;
static const char *version;
static void *find(const char *name) {
    void *found = version ? dlvsym(library, name, version) : dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}
/* The header may define the name as a macro. */
#define CALL(name) ((__typeof__(&(name)))find(#name))
#else
#define CALL(name) name
#endif

#undef ibv_reg_mr
#undef ibv_query_port

int main(int argc, char **argv) {
    alarm(60);
#ifdef LOAD
    NEED(argc == 3);
    version = strcmp(argv[2], "versions") == 0 ? "IBVERBS_1.1" : NULL;
    library = strcmp(argv[2], "namespace") == 0 ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW) : dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#else
    (void)argc, (void)argv;
#endif
    struct ibv_device **list = CALL(ibv_get_device_list)(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = CALL(ibv_open_device)(list[0]);
    NEED(context);
    struct ibv_pd *pd = CALL(ibv_alloc_pd)(context);
    static char memory[2][4096];
    memset(memory[0], 'm', sizeof memory[0]);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr = CALL(ibv_reg_mr)(pd, memory, sizeof memory, access);
    NEED(mr);
    struct ibv_cq *cq = CALL(ibv_create_cq)(context, 4, NULL, NULL, 0);
    NEED(cq);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = CALL(ibv_create_qp)(pd, &init);
    NEED(qp);
    union ibv_gid gid;
    NEED(CALL(ibv_query_gid)(context, 1, 0, &gid) == 0);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
    NEED(CALL(ibv_modify_qp)(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
        .ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .port_num = 1 } };
    NEED(CALL(ibv_modify_qp)(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .max_rd_atomic = 1 };
    NEED(CALL(ibv_modify_qp)(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    struct ibv_sge sge = { (uintptr_t)memory[0], sizeof memory[0], mr->lkey };
    struct ibv_send_wr *bad, wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { (uintptr_t)memory[1], mr->rkey } };
    NEED(ibv_post_send(qp, &wr, &bad) == 0);
    struct ibv_wc wc;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    NEED(polled == 1 && wc.status == IBV_WC_SUCCESS);
    NEED(memcmp(memory[0], memory[1], sizeof memory[0]) == 0);
    printf("written by %s\n", CALL(ibv_get_device_name)(list[0]));
    return 0;
}
