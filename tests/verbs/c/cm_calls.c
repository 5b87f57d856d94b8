/*
 * Calls of librdmacm as no program should make them: each function that is named, with null pointers, with an
 * identifier, a channel and an event that were destroyed, and with pointers to something else.  A line for each:
 * how it was called, its name, its result, errno.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <rdma/rdma_cma.h>

typedef long (*function)(void *, void *, void *, void *, void *);

static void call(const char *how, const char *name, void *first, void *second)
{
    function found = (function)dlsym(RTLD_DEFAULT, name);
    long result;

    errno = 0;
    result = found(first, second, NULL, NULL, NULL);
    printf("%s %s %d %d\n", how, name, (int)result, errno);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id = NULL;
    struct rdma_cm_event *event = NULL;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char other[1024];
    int i;

    if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
        return 1;
    if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 2000) || rdma_get_cm_event(channel, &event))
        return 2;
    if (rdma_ack_cm_event(event) || rdma_destroy_id(id))
        return 3;
    rdma_destroy_event_channel(channel);
    for (i = 1; i < argc; i++) {
        const char *name = argv[i];

        call("null", name, NULL, NULL);
        call("other", name, other, other);
        if (strstr(name, "channel") || strstr(name, "get_cm_event"))
            call("freed", name, channel, &event);
        else if (strstr(name, "ack_cm_event"))
            call("freed", name, event, NULL);
        else if (strstr(name, "create_id"))
            call("freed", name, channel, &id);
        else
            call("freed", name, id, other);
    }
    return 0;
}
