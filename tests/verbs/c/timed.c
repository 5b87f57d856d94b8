/*
 * Says how many modules Python imports for a connection that is resolved, and what the process had before the first
 * call: descriptors and threads.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

static int counted(const char *folder)
{
    DIR *open = opendir(folder);
    int found = 0;

    for (struct dirent *each; (each = readdir(open));)
        found += *each->d_name != '.' && atoi(each->d_name) != dirfd(open);
    closedir(open);
    return found;
}

static void tell(const char *code)
{
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    int state = ensure();

    run(code);
    release(state);
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7)};
    int files, threads;
    struct rdma_event_channel *channel;
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;

    files = counted("/proc/self/fd");
    threads = counted("/proc/self/task");
    tell("import sys; before = set(sys.modules)");
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    if (!(channel = rdma_create_event_channel()) || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
        rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) || rdma_get_cm_event(channel, &event) ||
        event->event != RDMA_CM_EVENT_ADDR_RESOLVED)
        return 1;
    tell("print(len(sys.modules.keys() - before), end=' ', flush=True)");
    printf("%d %d\n", files, threads);
    return 0;
}
