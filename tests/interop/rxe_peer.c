/*
 * rxe_peer: a verbs program that a test controls over TCP, for interoperability tests with Linux's rdma_rxe.
 *
 *     cc -O1 -Wall -o rxe_peer rxe_peer.c -libverbs        rxe_peer [TCP PORT, default 7471]
 *
 * Every TCP connection is served by a process of its own, with its own device context, PD and CQ; closing the
 * connection releases everything. A request is one line, its answer one line; requests may be pipelined.
 * A request is a verb followed by key=value words in any order. Numbers are decimal or 0x hexadecimal;
 * handles (qp, mr, mw) count from 0 in order of creation. An answer is "ok" and key=value words, or "err" and
 * a text, which ends with the name of errno where a verb failed.
 *
 * open dev=rxe0                       -> ok gid=32HEX mtu=ACTIVE     first request; takes the device's IPv4 RoCEv2 GID
 * mr len=N [access=lwrab]             -> ok mr= addr= lkey= rkey=    zeroed pages; l local write, w remote write,
 *                                        r remote read, a remote atomic, b window binding
 * dereg mr=                           -> ok                          the memory stays readable by get and check
 * fill mr= [off=0] [len=all] seed=    -> ok                          byte at offset o: (seed*0x9e3779b1 + o*0x85ebca6b mod 2^32) >> 24
 * check mr= [off=0] [len=all] seed= [from=off] -> ok, or err at=OFFSET got= want=    as if filled at offset `from`
 * get mr= [off=0] len=                -> ok hex=                     at most 4096 bytes
 * put mr= [off=0] hex=                -> ok
 * mw                                  -> ok mw= rkey=                memory window, type 2
 * qp [type=rc|uc|ud] [depth=256] [access=lwra]  -> ok qp= qpn= psn=  in INIT; psn is a suggestion; UD has qkey 0x11111111
 * connect qp= ip= qpn= rq_psn= sq_psn= [ATTRIBUTES]  -> ok           to RTR and RTS; UD: ip and qpn are where sends go
 *     ATTRIBUTES: mtu=1024 timeout=14 retry=7 rnr=7 min_rnr=1 rd=16 dest_rd=16
 * modify qp= [state=reset|init|rtr|rts|sqd|err] [any of ATTRIBUTES, access=, sq_psn=, rq_psn=]  -> ok    ibv_modify_qp with just these
 * query qp=                           -> ok state= sq_psn= rq_psn= mtu=
 * destroy qp=                         -> ok
 * recv qp= [wr=0] [sge=MR:OFF:LEN,...]                   -> ok       no sge: an empty receive
 * post qp= op= [wr=0] [sge=MR:OFF:LEN,...] [flags=sefi] [raddr=] [rkey=] [imm=] [inv=] [cmp=] [swap=] [add=] [more=1]
 *                                     -> ok [rkey=]                  flags: s signalled, e solicited, f fence, i inline
 *     op: send send_imm send_inv write write_imm read cas faa bind local_inv
 *     more=1 holds the request back and posts it in one list with the next that has none.
 *     cas: cmp, swap; faa: add; send_inv and local_inv: inv (an rkey); imm as the number on the wire.
 *     bind: mw= mr= off= len= access=, answers the window's new rkey (a window's old keys end in other low bits)
 * poll [n=1] [ms=5000]                -> ok n=K; wr= status= op= len= qp= [imm=] [inv=] [from=QPN] [vendor=]; ...
 *     waits for n completions or for ms. status: the lower-case name in ibv_wc_status. Where status is not
 *     `success`, op and len mean nothing and are left out.
 * arm [solicited=0]                   -> ok                          request the CQ's next event
 * notified [ms=2000]                  -> ok n=0|1                    whether the event came
 * events [ms=0]                       -> ok ; event=N [qp=]; ...     asynchronous events (enum ibv_event_type); waits for the first
 * counters                            -> ok NAME=VALUE ...           the device's hw_counters, since it was made
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HANDLES = 64, LIST = 512, SGES = 8, QKEY = 0x11111111 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static int gid_index;
static struct { struct ibv_mr *mr; uint8_t *at; size_t len; } mrs[HANDLES];
static struct { struct ibv_qp *qp; struct ibv_ah *ah; uint32_t dest; } qps[HANDLES];
static struct ibv_mw *mws[HANDLES];
static int n_mr, n_qp, n_mw;
static struct ibv_send_wr list[LIST];
static struct ibv_sge list_sge[LIST][SGES];
static int listed;

/* ---- the line protocol ---- */

static char *words[64];
static int n_words;
static char answer[65536];
static size_t answered;

static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(answer + answered, sizeof answer - answered, format, args);
    va_end(args);
    answered += n;
    if (answered >= sizeof answer)
        answered = sizeof answer - 1;
}

/* Every request handler returns true, or false after fail() has replaced the answer. */
static bool fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    answered = snprintf(answer, sizeof answer, "err ");
    answered += vsnprintf(answer + answered, sizeof answer - answered, format, args);
    va_end(args);
    return false;
}

static bool failed(const char *what)
{
    return fail("%s: %s", what, strerrorname_np(errno));
}

static const char *text(const char *key)
{
    size_t len = strlen(key);
    for (int i = 1; i < n_words; i++)
        if (!strncmp(words[i], key, len) && words[i][len] == '=')
            return words[i] + len + 1;
    return NULL;
}

static uint64_t number(const char *key, uint64_t absent)
{
    const char *value = text(key);
    return value ? strtoull(value, NULL, 0) : absent;
}

static int handle(const char *key, int existing)
{
    uint64_t i = number(key, UINT64_MAX);
    return i < (uint64_t)existing ? (int)i : -1;
}

static int access_flags(const char *absent)
{
    const char *letters = text("access");
    int flags = 0;
    for (letters = letters ? letters : absent; *letters; letters++)
        flags |= *letters == 'l' ? IBV_ACCESS_LOCAL_WRITE : *letters == 'w' ? IBV_ACCESS_REMOTE_WRITE
               : *letters == 'r' ? IBV_ACCESS_REMOTE_READ : *letters == 'a' ? IBV_ACCESS_REMOTE_ATOMIC
               : *letters == 'b' ? IBV_ACCESS_MW_BIND : 0;
    return flags;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static bool readable(int fd, int ms)
{
    struct pollfd it = {.fd = fd, .events = POLLIN};
    return poll(&it, 1, ms) > 0;
}

/* ---- the device and its memory ---- */

static bool do_open(void)
{
    const char *name = text("dev");
    struct ibv_device **devices = ibv_get_device_list(NULL);
    for (int i = 0; devices && devices[i]; i++)
        if (name && !context && !strcmp(ibv_get_device_name(devices[i]), name))
            context = ibv_open_device(devices[i]);
    if (!context)
        return fail("no device %s", name ? name : "named");
    struct ibv_gid_entry gid = {0};
    static const uint8_t ipv4[12] = {[10] = 0xff, [11] = 0xff};
    bool found = false;
    for (int i = 0; i < 16 && !found; i++)
        if (!ibv_query_gid_ex(context, 1, i, &gid, 0) && gid.gid_type == IBV_GID_TYPE_ROCE_V2 &&
            !memcmp(gid.gid.raw, ipv4, sizeof ipv4))
            gid_index = i, found = true;
    if (!found)
        return fail("%s has no IPv4 RoCEv2 GID", name);
    struct ibv_port_attr port;
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 4096, NULL, channel, 0);
    if (!pd || !channel || !cq || ibv_query_port(context, 1, &port))
        return failed("open");
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    say(" gid=");
    for (int i = 0; i < 16; i++)
        say("%02x", gid.gid.raw[i]);
    say(" mtu=%d", 128 << port.active_mtu);
    return true;
}

static bool do_mr(void)
{
    size_t len = number("len", 4096);
    if (n_mr == HANDLES)
        return fail("too many mr");
    uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return failed("mmap");
    struct ibv_mr *mr = ibv_reg_mr(pd, at, len, access_flags("lwra"));
    if (!mr)
        return failed("ibv_reg_mr");
    say(" mr=%d addr=0x%lx lkey=0x%x rkey=0x%x", n_mr, (unsigned long)at, mr->lkey, mr->rkey);
    mrs[n_mr].mr = mr, mrs[n_mr].at = at, mrs[n_mr++].len = len;
    return true;
}

static bool do_dereg(void)
{
    int i = handle("mr", n_mr);
    if (i < 0 || !mrs[i].mr)
        return fail("no such mr");
    if ((errno = ibv_dereg_mr(mrs[i].mr)))
        return failed("ibv_dereg_mr");
    mrs[i].mr = NULL;
    return true;
}

/* Returns the memory that mr=, off= and len= name. */
static uint8_t *span(size_t *off, size_t *len, size_t absent)
{
    int i = handle("mr", n_mr);
    *off = number("off", 0);
    if (i < 0 || *off > mrs[i].len)
        return NULL;
    *len = number("len", absent < mrs[i].len - *off ? absent : mrs[i].len - *off);
    return *len <= mrs[i].len - *off ? mrs[i].at + *off : NULL;
}

static uint8_t pattern(uint32_t seed, uint32_t o)
{
    return (seed * 0x9e3779b1u + o * 0x85ebca6bu) >> 24;
}

static bool do_fill(void)
{
    size_t off, len;
    uint8_t *at = span(&off, &len, SIZE_MAX);
    uint32_t seed = number("seed", 0);
    for (size_t i = 0; at && i < len; i++)
        at[i] = pattern(seed, off + i);
    return at || fail("no such bytes");
}

static bool do_check(void)
{
    size_t off, len;
    uint8_t *at = span(&off, &len, SIZE_MAX);
    uint32_t seed = number("seed", 0), from = number("from", off);
    for (size_t i = 0; at && i < len; i++)
        if (at[i] != pattern(seed, from + i))
            return fail("at=%zu got=0x%02x want=0x%02x", off + i, at[i], pattern(seed, from + i));
    return at || fail("no such bytes");
}

static bool do_get(void)
{
    size_t off, len;
    uint8_t *at = span(&off, &len, 4096);
    if (!at || len > 4096)
        return fail("no such bytes");
    say(" hex=");
    for (size_t i = 0; i < len; i++)
        say("%02x", at[i]);
    return true;
}

static bool do_put(void)
{
    size_t off, len;
    uint8_t *at = span(&off, &len, SIZE_MAX);
    const char *hex = text("hex");
    unsigned byte;
    if (!at || !hex || strlen(hex) / 2 > len)
        return fail("no such bytes");
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        *at++ = byte;
    return true;
}

static bool do_mw(void)
{
    struct ibv_mw *mw = n_mw < HANDLES ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
    if (!mw)
        return failed("ibv_alloc_mw");
    say(" mw=%d rkey=0x%x", n_mw, mw->rkey);
    mws[n_mw++] = mw;
    return true;
}

/* ---- queue pairs ---- */

static bool do_qp(void)
{
    const char *name = text("type");
    enum ibv_qp_type type = !name || !strcmp(name, "rc") ? IBV_QPT_RC : !strcmp(name, "uc") ? IBV_QPT_UC : IBV_QPT_UD;
    int depth = number("depth", 256);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = SGES, .max_recv_sge = SGES, .max_inline_data = 64}};
    struct ibv_qp *qp = n_qp < HANDLES ? ibv_create_qp(pd, &init) : NULL;
    if (!qp)
        return failed("ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = access_flags("lwra")};
    int mask = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    if ((errno = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT)))
        return failed("ibv_modify_qp INIT");
    say(" qp=%d qpn=0x%x psn=0x%x", n_qp, qp->qp_num, (unsigned)((now_ms() * 2654435761u) & 0xffffff));
    qps[n_qp].qp = qp, qps[n_qp++].ah = NULL;
    return true;
}

static enum ibv_mtu mtu_code(int bytes)
{
    return bytes >= 4096 ? IBV_MTU_4096 : bytes >= 2048 ? IBV_MTU_2048 : bytes >= 1024 ? IBV_MTU_1024
         : bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

static bool peer_address(struct ibv_ah_attr *ah)
{
    *ah = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = gid_index, .hop_limit = 64}};
    ah->grh.dgid.raw[10] = ah->grh.dgid.raw[11] = 0xff;
    return text("ip") && inet_pton(AF_INET, text("ip"), ah->grh.dgid.raw + 12) == 1;
}

static int the_qp(void)
{
    int i = handle("qp", n_qp);
    return i >= 0 && qps[i].qp ? i : (fail("no such qp"), -1);
}

static const char *const states[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};

static struct ibv_qp_attr attributes(void)
{
    struct ibv_qp_attr attr = {.path_mtu = mtu_code(number("mtu", 1024)), .timeout = number("timeout", 14),
        .retry_cnt = number("retry", 7), .rnr_retry = number("rnr", 7), .min_rnr_timer = number("min_rnr", 1),
        .max_rd_atomic = number("rd", 16), .max_dest_rd_atomic = number("dest_rd", 16), .sq_psn = number("sq_psn", 0),
        .rq_psn = number("rq_psn", 0), .dest_qp_num = number("qpn", 0), .qp_access_flags = access_flags("lwra")};
    for (int s = 0; s <= IBV_QPS_ERR && text("state"); s++)
        if (!strcmp(text("state"), states[s]))
            attr.qp_state = s;
    return attr;
}

static bool do_connect(void)
{
    int i = the_qp();
    struct ibv_qp_attr attr = attributes();
    if (i < 0)
        return false;
    if (!peer_address(&attr.ah_attr))
        return fail("ip= is not an IPv4 address");
    enum ibv_qp_type type = qps[i].qp->qp_type;
    int to_rtr = IBV_QP_STATE, to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (type != IBV_QPT_UD)
        to_rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC) {
        to_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        to_rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    attr.qp_state = IBV_QPS_RTR;
    if ((errno = ibv_modify_qp(qps[i].qp, &attr, to_rtr)))
        return failed("ibv_modify_qp RTR");
    attr.qp_state = IBV_QPS_RTS;
    if ((errno = ibv_modify_qp(qps[i].qp, &attr, to_rts)))
        return failed("ibv_modify_qp RTS");
    qps[i].dest = attr.dest_qp_num;
    if (type == IBV_QPT_UD && !(qps[i].ah = ibv_create_ah(pd, &attr.ah_attr)))
        return failed("ibv_create_ah");
    return true;
}

static bool do_modify(void)
{
    static const struct { const char *key; int bit; } keys[] = {{"state", IBV_QP_STATE}, {"timeout", IBV_QP_TIMEOUT},
        {"retry", IBV_QP_RETRY_CNT}, {"rnr", IBV_QP_RNR_RETRY}, {"min_rnr", IBV_QP_MIN_RNR_TIMER},
        {"rd", IBV_QP_MAX_QP_RD_ATOMIC}, {"dest_rd", IBV_QP_MAX_DEST_RD_ATOMIC}, {"sq_psn", IBV_QP_SQ_PSN},
        {"rq_psn", IBV_QP_RQ_PSN}, {"mtu", IBV_QP_PATH_MTU}, {"access", IBV_QP_ACCESS_FLAGS}};
    int i = the_qp(), mask = 0;
    struct ibv_qp_attr attr = attributes();
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        mask |= text(keys[k].key) ? keys[k].bit : 0;
    if (i >= 0 && (errno = ibv_modify_qp(qps[i].qp, &attr, mask)))
        return failed("ibv_modify_qp");
    return i >= 0;
}

static bool do_query(void)
{
    int i = the_qp();
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    if (i < 0)
        return false;
    if ((errno = ibv_query_qp(qps[i].qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN | IBV_QP_PATH_MTU, &init)))
        return failed("ibv_query_qp");
    say(" state=%s sq_psn=0x%x rq_psn=0x%x mtu=%d", states[attr.qp_state], attr.sq_psn, attr.rq_psn, 128 << attr.path_mtu);
    return true;
}

static bool do_destroy(void)
{
    int i = the_qp();
    if (i < 0)
        return false;
    if ((errno = ibv_destroy_qp(qps[i].qp)))
        return failed("ibv_destroy_qp");
    qps[i].qp = NULL;
    return true;
}

/* ---- work ---- */

/* Parses sge=MR:OFF:LEN,... and returns the number of elements, or -1. Offsets are unchecked, because tests exceed the region. */
static int gather(struct ibv_sge *sge)
{
    const char *at = text("sge");
    int n = 0, used;
    unsigned mr, off, len;
    for (; at && *at && n < SGES && sscanf(at, "%u:%u:%u%n", &mr, &off, &len, &used) == 3; n++) {
        if (mr >= (unsigned)n_mr || !mrs[mr].mr)
            return -1;
        sge[n] = (struct ibv_sge){.addr = (uintptr_t)mrs[mr].at + off, .length = len, .lkey = mrs[mr].mr->lkey};
        at += used + (at[used] == ',');
    }
    return at && *at ? -1 : n;
}

static bool do_recv(void)
{
    int i = the_qp();
    struct ibv_sge sge[SGES];
    struct ibv_recv_wr wr = {.wr_id = number("wr", 0), .sg_list = sge, .num_sge = gather(sge)}, *bad;
    if (i < 0 || wr.num_sge < 0)
        return i >= 0 && fail("no such sge");
    if ((errno = ibv_post_recv(qps[i].qp, &wr, &bad)))
        return failed("ibv_post_recv");
    return true;
}

static bool do_post(void)
{
    static const struct { const char *name; enum ibv_wr_opcode code; } ops[] = {
        {"send", IBV_WR_SEND}, {"send_imm", IBV_WR_SEND_WITH_IMM}, {"send_inv", IBV_WR_SEND_WITH_INV},
        {"write", IBV_WR_RDMA_WRITE}, {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM}, {"read", IBV_WR_RDMA_READ},
        {"cas", IBV_WR_ATOMIC_CMP_AND_SWP}, {"faa", IBV_WR_ATOMIC_FETCH_AND_ADD}, {"bind", IBV_WR_BIND_MW},
        {"local_inv", IBV_WR_LOCAL_INV}};
    int i = the_qp(), op = -1;
    for (size_t k = 0; k < sizeof ops / sizeof *ops && text("op"); k++)
        if (!strcmp(text("op"), ops[k].name))
            op = ops[k].code;
    if (i < 0 || op < 0 || listed == LIST)
        return i >= 0 && fail("no such op, or too long a list");
    struct ibv_send_wr *wr = &list[listed], *bad = NULL;
    *wr = (struct ibv_send_wr){.wr_id = number("wr", 0), .opcode = op, .sg_list = list_sge[listed], .num_sge = gather(list_sge[listed])};
    if (wr->num_sge < 0)
        return fail("no such sge");
    for (const char *flag = text("flags"); flag && *flag; flag++)
        wr->send_flags |= *flag == 's' ? IBV_SEND_SIGNALED : *flag == 'e' ? IBV_SEND_SOLICITED
                        : *flag == 'f' ? IBV_SEND_FENCE : *flag == 'i' ? IBV_SEND_INLINE : 0;
    if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr->wr.atomic.remote_addr = number("raddr", 0);
        wr->wr.atomic.rkey = number("rkey", 0);
        wr->wr.atomic.compare_add = number(op == IBV_WR_ATOMIC_CMP_AND_SWP ? "cmp" : "add", 0);
        wr->wr.atomic.swap = number("swap", 0);
    } else if (qps[i].qp->qp_type == IBV_QPT_UD) {
        wr->wr.ud.ah = qps[i].ah, wr->wr.ud.remote_qpn = qps[i].dest, wr->wr.ud.remote_qkey = QKEY;
    } else {
        wr->wr.rdma.remote_addr = number("raddr", 0);
        wr->wr.rdma.rkey = number("rkey", 0);
    }
    if (op == IBV_WR_SEND_WITH_INV || op == IBV_WR_LOCAL_INV)
        wr->invalidate_rkey = number("inv", 0);
    else
        wr->imm_data = htonl(number("imm", 0));
    if (op == IBV_WR_BIND_MW) {
        int mr = handle("mr", n_mr), mw = handle("mw", n_mw);
        if (mr < 0 || mw < 0 || !mrs[mr].mr)
            return fail("no such mr or mw");
        wr->bind_mw.mw = mws[mw];
        wr->bind_mw.rkey = ibv_inc_rkey(mws[mw]->rkey);
        wr->bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = mrs[mr].mr, .addr = (uintptr_t)mrs[mr].at + number("off", 0),
            .length = number("len", mrs[mr].len), .mw_access_flags = access_flags("wra")};
        say(" rkey=0x%x", wr->bind_mw.rkey);
    }
    if (listed++)
        list[listed - 2].next = wr;
    if (number("more", 0))
        return true;
    listed = 0;
    if ((errno = ibv_post_send(qps[i].qp, list, &bad)))
        return fail("ibv_post_send at wr=%lu: %s", bad ? (unsigned long)bad->wr_id : 0, strerrorname_np(errno));
    for (wr = list; wr; wr = wr->next)
        if (wr->opcode == IBV_WR_BIND_MW)
            wr->bind_mw.mw->rkey = wr->bind_mw.rkey;
    return true;
}

static const char *const statuses[] = {"success", "loc_len_err", "loc_qp_op_err", "loc_eec_op_err", "loc_prot_err",
    "wr_flush_err", "mw_bind_err", "bad_resp_err", "loc_access_err", "rem_inv_req_err", "rem_access_err", "rem_op_err",
    "retry_exc_err", "rnr_retry_exc_err", "loc_rdd_viol_err", "rem_inv_rd_req_err", "rem_abort_err", "inv_eecn_err",
    "inv_eec_state_err", "fatal_err", "resp_timeout_err", "general_err"};

static const char *wc_op(enum ibv_wc_opcode op)
{
    static const char *const sent[] = {"send", "write", "read", "cas", "faa", "bind", "local_inv"};
    return op == IBV_WC_RECV ? "recv" : op == IBV_WC_RECV_RDMA_WITH_IMM ? "recv_write_imm" : op < 7 ? sent[op] : "other";
}

static bool do_poll(void)
{
    int64_t until = now_ms() + number("ms", 5000);
    int wanted = number("n", 1), n = 0;
    struct ibv_wc wcs[128];
    wanted = wanted < 128 ? wanted : 128;
    for (;;) {
        int got = ibv_poll_cq(cq, wanted - n, wcs + n);
        if (got < 0)
            return fail("ibv_poll_cq");
        n += got;
        if (n == wanted || now_ms() >= until)
            break;
        usleep(100);
    }
    say(" n=%d", n);
    for (struct ibv_wc *wc = wcs; wc < wcs + n; wc++) {
        int qp = 0;
        while (qp < n_qp && !(qps[qp].qp && qps[qp].qp->qp_num == wc->qp_num))
            qp++;
        say("; wr=%lu status=%s qp=%d", (unsigned long)wc->wr_id, wc->status < 22 ? statuses[wc->status] : "other", qp);
        if (wc->status) {
            say(" vendor=%u", wc->vendor_err);
            continue;
        }
        say(" op=%s len=%u", wc_op(wc->opcode), wc->byte_len);
        if (wc->opcode & IBV_WC_RECV) {
            if (wc->wc_flags & IBV_WC_WITH_IMM)
                say(" imm=0x%x", ntohl(wc->imm_data));
            /* rxe passes on the kernel's flags, in which "with invalidate" is bit 2: libibverbs' IP_CSUM_OK */
            if (wc->wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK))
                say(" inv=0x%x", wc->invalidated_rkey);
            if (qp < n_qp && qps[qp].qp->qp_type == IBV_QPT_UD)
                say(" from=0x%x", wc->src_qp);
        }
    }
    return true;
}

static bool do_arm(void)
{
    if ((errno = ibv_req_notify_cq(cq, number("solicited", 0))))
        return failed("ibv_req_notify_cq");
    return true;
}

static bool do_notified(void)
{
    struct ibv_cq *which;
    void *unused;
    bool came = readable(channel->fd, number("ms", 2000)) && !ibv_get_cq_event(channel, &which, &unused);
    if (came)
        ibv_ack_cq_events(which, 1);
    say(" n=%d", came);
    return true;
}

static bool do_events(void)
{
    struct ibv_async_event event;
    int ms = number("ms", 0);
    say(" ");
    for (; readable(context->async_fd, ms) && !ibv_get_async_event(context, &event); ms = 0) {
        say("; event=%d", event.event_type);
        for (int i = 0; i < n_qp; i++)
            if (qps[i].qp && event.element.qp == qps[i].qp)
                say(" qp=%d", i);
        ibv_ack_async_event(&event);
    }
    return true;
}

static bool do_counters(void)
{
    char pattern[256];
    glob_t found;
    snprintf(pattern, sizeof pattern, "/sys/class/infiniband/%s/ports/1/hw_counters/*", ibv_get_device_name(context->device));
    if (glob(pattern, 0, NULL, &found))
        return fail("no counters");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        unsigned long value;
        FILE *file = fopen(found.gl_pathv[i], "r");
        if (file && fscanf(file, "%lu", &value) == 1)
            say(" %s=%lu", strrchr(found.gl_pathv[i], '/') + 1, value);
        if (file)
            fclose(file);
    }
    globfree(&found);
    return true;
}

static const struct { const char *name; bool (*run)(void); } verbs[] = {{"open", do_open}, {"mr", do_mr},
    {"dereg", do_dereg}, {"fill", do_fill}, {"check", do_check}, {"get", do_get}, {"put", do_put}, {"mw", do_mw},
    {"qp", do_qp}, {"connect", do_connect}, {"modify", do_modify}, {"query", do_query}, {"destroy", do_destroy},
    {"recv", do_recv}, {"post", do_post}, {"poll", do_poll}, {"arm", do_arm}, {"notified", do_notified},
    {"events", do_events}, {"counters", do_counters}};

static void serve(int fd)
{
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    char *line = NULL;
    for (size_t size = 0; getline(&line, &size, in) > 0;) {
        n_words = 0;
        for (char *word = strtok(line, " \r\n"); word && n_words < 64; word = strtok(NULL, " \r\n"))
            words[n_words++] = word;
        if (!n_words)
            continue;
        answered = 0;
        say("ok");
        size_t k = 0, count = sizeof verbs / sizeof *verbs;
        while (k < count && strcmp(words[0], verbs[k].name))
            k++;
        if (k == count)
            fail("no such request: %s", words[0]);
        else if (k && !context)
            fail("open a device first");
        else
            verbs[k].run();
        fprintf(out, "%s\n", answer);
        fflush(out);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7471)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 16)) {
        perror("rxe_peer");
        return 1;
    }
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!fork()) {
            close(listener);
            serve(fd);
        }
        close(fd);
    }
}
