/* A thread that sleeps on an event channel gets its event, even if the process has created many other channels meanwhile. */
#include "report.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
enum { CHANNELS = 200 };
static void *wait_for_event(void *channel) {
    struct rdma_cm_event *event;
    NEED(rdma_get_cm_event(channel, &event) == 0);
    verdict(event->event == RDMA_CM_EVENT_ADDR_RESOLVED, "the event that wakes the thread: %s", rdma_event_str(event->event));
    NEED(rdma_ack_cm_event(event) == 0);
    return NULL;
}
int main(void) {
    struct rdma_event_channel *channel = rdma_create_event_channel(), *others[CHANNELS];
    struct rdma_cm_id *id;
    pthread_t thread;
    alarm(60);
    NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    NEED(pthread_create(&thread, NULL, wait_for_event, channel) == 0);
    usleep(200000); /* the thread must sleep for the test to fail */
    for (int i = 0; i < CHANNELS; i++) NEED(others[i] = rdma_create_event_channel());
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) == 0);
    NEED(pthread_join(thread, NULL) == 0);
    NEED(rdma_destroy_id(id) == 0);
    for (int i = 0; i < CHANNELS; i++) rdma_destroy_event_channel(others[i]);
    rdma_destroy_event_channel(channel);
    return faults > 0;
}
