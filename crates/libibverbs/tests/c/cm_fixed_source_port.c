/* rdma_resolve_addr and rdma_bind_addr with a source address that has a port.
 * Expected (kernel cma_check_port, cma_use_port): port 0 works twice; the same address and port is EADDRINUSE; a conflict with a wildcard address is
 * EADDRNOTAVAIL; RDMA_OPTION_ID_REUSEADDR at both allows it, also to the same destination (rdma_cm tells connections apart by communication ids,
 * not by ports); a fixed source port can be used again and again. Exit code 0.
 */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
static struct rdma_event_channel *ch, *lch;
static struct sockaddr_in lo(uint16_t port) { return (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = port }; }
static uint16_t lport[2];
static struct rdma_cm_id *new_id(int reuse, enum rdma_port_space ps) {
    struct rdma_cm_id *id;
    NEED(!rdma_create_id(ch, &id, NULL, ps));
    int one = 1;
    if (reuse) NEED(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
    return id;
}
/* Resolves; returns 0, or the error number of the call or of the ADDR_ERROR event. */
static int resolve(struct rdma_cm_id *id, uint16_t sport, uint32_t sip, uint16_t dport) {
    struct sockaddr_in s = lo(sport), d = lo(dport);
    s.sin_addr.s_addr = htonl(sip);
    if (rdma_resolve_addr(id, (struct sockaddr *)&s, (struct sockaddr *)&d, 1000)) return errno;
    struct rdma_cm_event *e;
    NEED(!rdma_get_cm_event(ch, &e));
    int rc = e->event == RDMA_CM_EVENT_ADDR_RESOLVED ? 0 : -e->status;
    rdma_ack_cm_event(e);
    return rc;
}
static void *acceptor(void *x) {
    (void)x;
    for (;;) {
        struct rdma_cm_event *e;
        if (rdma_get_cm_event(lch, &e)) return NULL;
        struct rdma_cm_id *id = e->id;
        int t = e->event;
        rdma_ack_cm_event(e);
        static int n;
        struct rdma_conn_param cp = { .qp_num = 700 + ++n, .retry_count = 7 };
        if (t == RDMA_CM_EVENT_CONNECT_REQUEST) rdma_accept(id, &cp);
        if (t == RDMA_CM_EVENT_DISCONNECTED) { rdma_disconnect(id); rdma_destroy_id(id); }
    }
}
static int connect_it(struct rdma_cm_id *id, const char **ev) {
    static int n;
    struct rdma_conn_param cp = { .qp_num = 100 + ++n, .retry_count = 7 };
    struct rdma_cm_event *e;
    if (rdma_resolve_route(id, 1000)) return errno;
    NEED(!rdma_get_cm_event(ch, &e)); rdma_ack_cm_event(e);
    if (rdma_connect(id, &cp)) return errno;
    struct pollfd p = { ch->fd, POLLIN, 0 };
    if (poll(&p, 1, 8000) != 1) { *ev = "nothing within 8 s"; return -1; }
    NEED(!rdma_get_cm_event(ch, &e));
    *ev = rdma_event_str(e->event);
    int rc = e->event == RDMA_CM_EVENT_CONNECT_RESPONSE ? rdma_establish(id) : e->status ? e->status : -1;
    rdma_ack_cm_event(e);
    return rc;
}
/* Returns a port that no socket of another program occupies in either port space: a fixed port is a TCP port of this machine, too. */
static uint16_t free_port(void) {
    for (;;) {
        struct rdma_cm_id *tcp = new_id(0, RDMA_PS_TCP), *udp = new_id(0, RDMA_PS_UDP);
        struct sockaddr_in any = lo(0);
        NEED(!rdma_bind_addr(tcp, (struct sockaddr *)&any));
        struct sockaddr_in same = lo(rdma_get_src_port(tcp));
        int rc = rdma_bind_addr(udp, (struct sockaddr *)&same);
        rdma_destroy_id(tcp), rdma_destroy_id(udp);
        if (!rc)
            return same.sin_port;
    }
}
int main(void) {
    ch = rdma_create_event_channel(), lch = rdma_create_event_channel();
    struct rdma_cm_id *lis[2];
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in a = lo(0);
        NEED(!rdma_create_id(lch, &lis[i], NULL, RDMA_PS_TCP) && !rdma_bind_addr(lis[i], (struct sockaddr *)&a) && !rdma_listen(lis[i], 64));
        lport[i] = rdma_get_src_port(lis[i]);
    }
    pthread_t t;
    pthread_create(&t, NULL, acceptor, NULL);
    const char *ev = "-";
    struct rdma_cm_id *a = new_id(0, RDMA_PS_TCP), *b = new_id(0, RDMA_PS_TCP);
    int ra = resolve(a, 0, INADDR_LOOPBACK, lport[0]), rb = resolve(b, 0, INADDR_LOOPBACK, lport[0]);
    verdict(!ra && !rb && rdma_get_src_port(a) != rdma_get_src_port(b) && rdma_get_src_port(a), "source port 0 twice: %d %d, ports %d and %d", ra, rb, ntohs(rdma_get_src_port(a)), ntohs(rdma_get_src_port(b)));
    rdma_destroy_id(a), rdma_destroy_id(b);
    uint16_t port = free_port();
    a = new_id(0, RDMA_PS_TCP), b = new_id(0, RDMA_PS_TCP);
    NEED(!resolve(a, port, INADDR_LOOPBACK, lport[0]));
    rb = resolve(b, port, INADDR_LOOPBACK, lport[0]);
    verdict(rb == EADDRINUSE, "the same source port again: %s", strerror(rb));
    rdma_destroy_id(b);
    b = new_id(0, RDMA_PS_UDP);
    rb = resolve(b, port, INADDR_LOOPBACK, lport[0]);
    verdict(rb == 0, "the same number in the UDP port space: %s", strerror(rb));
    rdma_destroy_id(b);
    b = new_id(0, RDMA_PS_TCP);
    struct sockaddr_in any = lo(port);
    any.sin_addr.s_addr = 0;
    errno = 0;
    rb = rdma_bind_addr(b, (struct sockaddr *)&any) ? errno : 0;
    verdict(rb == EADDRNOTAVAIL, "bind of the wildcard address with that port: %s", strerror(rb));
    rdma_destroy_id(b);
    rdma_destroy_id(a);
    /* REUSEADDR, two destinations, then the same destination */
    a = new_id(1, RDMA_PS_TCP), b = new_id(1, RDMA_PS_TCP);
    ra = resolve(a, port, INADDR_LOOPBACK, lport[0]), rb = resolve(b, port, INADDR_LOOPBACK, lport[1]);
    verdict(!ra && !rb, "REUSEADDR at both: %s, %s", strerror(ra), strerror(rb));
    if (!ra && !rb) {
        ra = connect_it(a, &ev);
        verdict(!ra, "REUSEADDR: the first connects: %d %s", ra, ev);
        rb = connect_it(b, &ev);
        verdict(!rb, "REUSEADDR: the second connects to another port: %d %s", rb, ev);
        struct rdma_cm_id *c = new_id(1, RDMA_PS_TCP);
        int rc = resolve(c, port, INADDR_LOOPBACK, lport[0]);
        ev = "-";
        if (!rc) rc = connect_it(c, &ev);
        verdict(!rc, "REUSEADDR: a third connects to the first's destination: %d (%s) %s", rc, rc > 0 ? strerror(rc) : "", ev);
        rdma_destroy_id(c);
    }
    rdma_destroy_id(a), rdma_destroy_id(b);
    /* A fixed source port, 20 times. */
    int ok = 0, err = 0;
    ev = "-";
    for (int i = 0; i < 20; i++) {
        a = new_id(0, RDMA_PS_TCP);
        int rc = resolve(a, port, INADDR_LOOPBACK, lport[0]);
        if (!rc) rc = connect_it(a, &ev);
        if (!rc) { ok++; rdma_disconnect(a); struct rdma_cm_event *e; NEED(!rdma_get_cm_event(ch, &e)); rdma_ack_cm_event(e); } else if (!err) err = rc;
        rdma_destroy_id(a);
        usleep(2000);
    }
    verdict(ok == 20, "a fixed source port: %d of 20 connections (first error: %d %s, %s)", ok, err, err > 0 ? strerror(err) : "", ev);
    return faults > 0;
}
