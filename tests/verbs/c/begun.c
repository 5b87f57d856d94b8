/*
 * Says how many modules Python has when the first call has returned, when a queue pair was made, and when an event
 * channel was, by a program that may have none (-DCHANNELS=0).
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

static void tell(const char *what)
{
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    char code[160];
    int state = ensure();

    /* Without those of the compiled form. */
    snprintf(code, sizeof code,
             "import sys; print('%s', len(sys.modules.keys() - {'twisted_ib__mypyc', '_xxsubinterpreters'}), flush=True)",
             what);
    run(code);
    release(state);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};

    tell("list");
    context = ibv_open_device(devices[0]);
    attr.send_cq = attr.recv_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    if (!ibv_create_qp(ibv_alloc_pd(context), &attr))
        return 1;
    tell("queue pair");
#if CHANNELS
    if (!rdma_create_event_channel())
        return 1;
#endif
    tell("channel");
    return 0;
}
