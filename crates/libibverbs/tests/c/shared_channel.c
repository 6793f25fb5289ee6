/* Several threads wait at one completion channel. Some are cancelled and interrupted by signals meanwhile.
 * Expected: each event is taken once, by a thread that is not cancelled, so every completion for which the queue was armed is seen. Exit code 0; 1 if one is lost.
 */
#include "report.h"
#include <signal.h>

static struct ibv_comp_channel *ch;
static struct ibv_cq *cq;
static _Atomic int taken, seen;

static void *take(void *x) {
    (void)x;
    struct ibv_cq *c;
    void *p;
    while (!ibv_get_cq_event(ch, &c, &p)) {
        int before;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        ibv_ack_cq_events(c, 1);
        struct ibv_wc wc;
        /* Counted at last: afterwards the main thread arms the queue again. */
        int found = poll_one(c, &wc, 10);
        taken++;
        seen += found;
        pthread_setcancelstate(before, NULL);
    }
    return NULL;
}
static void tick(int s) { (void)s; }

int main(int argc, char **argv) {
    alarm(100);
    int events = argc > 1 ? atoi(argv[1]) : 300;
    open_device();
    sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = tick, .sa_flags = SA_RESTART }, NULL);
    ch = ibv_create_comp_channel(ctx);
    cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
    struct ibv_qp *qp = make_qp(cq, cq, 8);
    connect_pair(qp, qp);
    pthread_t stays[2], goes;
    for (int i = 0; i < 2; i++)
        NEED(!pthread_create(&stays[i], NULL, take, NULL));
    int lost = 0;
    for (int i = 0; i < events && !lost; i++) {
        NEED(!pthread_create(&goes, NULL, take, NULL));
        if (i % 2) usleep(i % 7 * 50);
        NEED(!ibv_req_notify_cq(cq, 0) && !post_write(qp, i, 8));
        usleep(i % 11 * 20);
        pthread_kill(stays[i % 2], SIGUSR1);
        NEED(!pthread_cancel(goes));
        for (double end = now() + 20; seen <= i && !lost; usleep(20))
            lost = now() > end;
        NEED(!pthread_join(goes, NULL));
    }
    verdict(!lost && taken == events, "%d of %d events were taken, with %d completions", taken, events, seen);
    return faults > 0;
}
