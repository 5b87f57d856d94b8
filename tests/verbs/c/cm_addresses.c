/*
 * What librdmacm says of addresses: rdma_getaddrinfo with a family in the hints, the port of an identifier that is
 * bound to any, and its device; and errno at the start.  One line for each check that fails.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static int failures;

static void wanted(const char *what, long found, long expected)
{
    if (found != expected) {
        printf("%s: %ld, not %ld\n", what, found, expected);
        failures++;
    }
}

static void resolved(const char *node, int flags, int family)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_family = family, .ai_port_space = RDMA_PS_TCP}, *found = NULL;
    struct sockaddr *address;

    wanted("rdma_getaddrinfo", rdma_getaddrinfo((char *)node, "7471", &hints, &found), 0);
    if (!found)
        return;
    address = flags & RAI_PASSIVE ? found->ai_src_addr : found->ai_dst_addr;
    wanted("ai_family", found->ai_family, family);
    wanted("sa_family", address->sa_family, family);
    rdma_freeaddrinfo(found);
}

/* One that stands for a process or a device here, though it is of the loopback, is as another host's: DAPL asks. */
static void chosen(struct rdma_event_channel *channel)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    struct rdma_cm_id *id = NULL;

    inet_pton(AF_INET, "127.31.7.1", &here.sin_addr);
    wanted("rdma_create_id", rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    wanted("rdma_bind_addr of a chosen address", rdma_bind_addr(id, (struct sockaddr *)&here), 0);
    wanted("a device of a chosen address", id->verbs != NULL, 1);
    wanted("rdma_destroy_id", rdma_destroy_id(id), 0);
}

/* As on Linux, 127.0.0.1 names no device; resolving the peer's address does. */
static void devices(struct rdma_event_channel *channel, struct sockaddr_in *here)
{
    struct rdma_cm_event *event;
    struct rdma_cm_id *id = NULL;

    wanted("rdma_create_id", rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    wanted("rdma_bind_addr", rdma_bind_addr(id, (struct sockaddr *)here), 0);
    wanted("a device when bound", id->verbs != NULL, 0);
    here->sin_port = htons(7471);
    wanted("rdma_resolve_addr", rdma_resolve_addr(id, NULL, (struct sockaddr *)here, 2000), 0);
    wanted("rdma_get_cm_event", rdma_get_cm_event(channel, &event), 0);
    wanted("its kind", event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    wanted("a device when resolved", id->verbs != NULL && id->pd != NULL, 1);
    rdma_ack_cm_event(event);
    wanted("rdma_destroy_id", rdma_destroy_id(id), 0);
}

int main(void)
{
    int started = errno, families[] = {AF_INET, AF_INET6};
    struct rdma_addrinfo hints = {.ai_family = AF_INET6, .ai_port_space = RDMA_PS_TCP}, *found = NULL;
    struct sockaddr_in here = {.sin_family = AF_INET};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id = NULL;
    int port;

    /* C11 7.5; tgtd looks at it after strtoull(3). */
    wanted("errno at the start", started, 0);
    for (int i = 0; i < 2; i++) {
        resolved(NULL, RAI_PASSIVE, families[i]);
        resolved(NULL, RAI_PASSIVE | RAI_FAMILY, families[i]);
        resolved(NULL, 0, families[i]);
        resolved(families[i] == AF_INET ? "127.0.0.1" : "::1", RAI_NUMERICHOST, families[i]);
    }
    wanted("an address of another family", rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found), -1);

    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    wanted("rdma_create_id", rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    wanted("rdma_bind_addr", rdma_bind_addr(id, (struct sockaddr *)&here), 0);
    port = ntohs(rdma_get_src_port(id));
    wanted("a port", port != 0, 1);
    wanted("sin_port", ntohs(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_port), port);
    wanted("a device before listening", id->verbs != NULL, 0);
    wanted("rdma_listen", rdma_listen(id, 0), 0);
    wanted("a device when listening", id->verbs != NULL, 1);
    wanted("the same port", ntohs(rdma_get_src_port(id)), port);
    wanted("rdma_destroy_id", rdma_destroy_id(id), 0);
    devices(channel, &here);
    chosen(channel);
    rdma_destroy_event_channel(channel);
    return failures != 0;
}
