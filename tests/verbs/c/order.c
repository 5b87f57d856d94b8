/*
 * What libibverbs answers to programs that do things in a wrong order.  One line for each check that fails;
 * the first argument chooses the story.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "checks.h"

#define ROUNDS 300

static struct ibv_context *opened(void)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));
    struct ibv_context *context = MADE(ibv_open_device(list[0]));

    ibv_free_device_list(list);
    return context;
}

static struct ibv_qp *queue_pair(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
                                    .cap = {4, 4, 1, 1, 0}};

    return ibv_create_qp(pd, &attr);
}

/* What is used cannot be destroyed, and what was destroyed is EINVAL. */
static void destroy(void)
{
    static char memory[4096];
    struct ibv_context *context = opened();
    struct ibv_pd *pd = MADE(ibv_alloc_pd(context)), *other = MADE(ibv_alloc_pd(context));
    struct ibv_mr *mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_comp_channel *channel = MADE(ibv_create_comp_channel(context));
    struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, memory, channel, 0));
    struct ibv_srq_init_attr wanted = {.attr = {8, 1, 0}};
    struct ibv_srq *srq = MADE(ibv_create_srq(pd, &wanted));
    struct ibv_qp *qp = MADE(queue_pair(pd, cq, srq));
    struct ibv_mw *mw = MADE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));

    IS(ibv_destroy_comp_channel(channel), EBUSY);
    IS(ibv_destroy_cq(cq), EBUSY);
    IS(ibv_destroy_srq(srq), EBUSY);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_qp(qp), EINVAL);
    IS(ibv_destroy_comp_channel(channel), EBUSY);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_destroy_comp_channel(channel), EINVAL);
    IS(ibv_destroy_srq(srq), 0);
    IS(ibv_dealloc_mw(mw), 0);
    /* A region that moves to another domain makes that one busy in place of its own. */
    IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0);
    IS(ibv_dealloc_pd(pd), 0);
    IS(ibv_dealloc_pd(other), EBUSY);
    IS(ibv_dereg_mr(mr), 0);
    IS(ibv_dealloc_pd(other), 0);
    /* As by the kernel, all goes with a context. */
    pd = MADE(ibv_alloc_pd(context));
    IS(ibv_close_device(context), 0);
    IS(ibv_dealloc_pd(pd), EINVAL);
    IS(ibv_close_device(context), EINVAL);
}

/* A queue pair refuses what its state forbids; a chain stops at the first request that is wrong. */
static void states(void)
{
    static char memory[4096];
    struct ibv_context *context = opened();
    struct ibv_pd *pd = MADE(ibv_alloc_pd(context));
    struct ibv_mr *mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    struct ibv_qp *qp = MADE(queue_pair(pd, cq, NULL));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .port_num = 1};
    struct ibv_sge piece = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr send = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad = NULL;
    struct ibv_recv_wr second = {.wr_id = 2, .sg_list = &piece, .num_sge = 99};
    struct ibv_recv_wr first = {.wr_id = 1, .next = &second, .sg_list = &piece, .num_sge = 1}, *refused = NULL;
    struct ibv_wc wc[4];

    IS(ibv_post_send(qp, &send, &bad), EINVAL);
    IS(bad == &send, 1);
    IS(ibv_post_recv(qp, &first, &refused), EINVAL);
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    IS(qp->state, IBV_QPS_RESET);
    attr.qp_state = IBV_QPS_INIT;
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    IS(qp->state, IBV_QPS_INIT);
    IS(ibv_post_recv(qp, &first, &refused), EINVAL);
    IS(refused == &second, 1);
    attr.qp_state = IBV_QPS_ERR;
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    IS(ibv_poll_cq(cq, 4, wc), 1);
    IS(wc[0].status, IBV_WC_WR_FLUSH_ERR);
    IS(wc[0].wr_id, 1);
    IS(ibv_poll_cq(cq, 4, wc), 0);
    IS(ibv_poll_cq(cq, -1, wc) < 0, 1);
    /* Each request is flushed at once: a list that is a circle must end all the same. */
    first.next = &first;
    IS(ibv_post_recv(qp, &first, &refused), ENOMEM);
    IS(refused == &first, 1);
    IS(ibv_close_device(context), 0);
}

/* A child of a process that has used a device is refused, by name; a process that forks first is not. */
static void forks(void)
{
    int status;
    pid_t child = fork();

    if (!child) {
        IS(ibv_close_device(opened()), 0);
        _exit(failures);
    }
    waitpid(child, &status, 0);
    IS(status, 0);
    struct ibv_context *context = opened();
    child = fork();
    if (!child) {
        IS(ibv_alloc_pd(context) == NULL, 1);
        IS(errno, EOPNOTSUPP);
        IS(ibv_close_device(context), EOPNOTSUPP);
        _exit(failures);
    }
    waitpid(child, &status, 0);
    IS(status, 0);
    IS(ibv_close_device(context), 0);
}

static void *wait_for_event(void *channel)
{
    struct ibv_cq *cq;
    void *own;

    ibv_get_cq_event(channel, &cq, &own);
    return NULL;
}

/* A thread that waits for an event can be cancelled, and the others go on. */
static void cancel(void)
{
    struct ibv_context *context = opened();
    struct ibv_comp_channel *channel = MADE(ibv_create_comp_channel(context));
    struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, NULL, channel, 0));
    pthread_t thread;
    void *result;

    pthread_create(&thread, NULL, wait_for_event, channel);
    IS(ibv_req_notify_cq(cq, 0), 0);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    IS(result == PTHREAD_CANCELED, 1);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_close_device(context), 0);
}

static void *acknowledge(void *channel)
{
    struct ibv_cq *cq;
    void *own;

    while (!ibv_get_cq_event(channel, &cq, &own)) {
        IS(own == channel, 1);
        ibv_ack_cq_events(cq, 1);
    }
    return NULL;
}

/* Queues whose events a thread waits for are destroyed at any moment: it goes on with those of others. */
static void events(void)
{
    struct ibv_context *context = opened();
    struct ibv_pd *pd = MADE(ibv_alloc_pd(context));
    struct ibv_comp_channel *channel = MADE(ibv_create_comp_channel(context));
    struct ibv_qp_attr attr = {.port_num = 1};
    struct ibv_recv_wr request = {.wr_id = 1}, *refused = NULL;
    pthread_t thread;
    void *result;

    pthread_create(&thread, NULL, acknowledge, channel);
    for (int round = 0; round < ROUNDS; round++) {
        struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, channel, channel, 0));
        struct ibv_qp *qp = MADE(queue_pair(pd, cq, NULL));

        attr.qp_state = IBV_QPS_INIT;
        IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
        IS(ibv_req_notify_cq(cq, 0), 0);
        IS(ibv_post_recv(qp, &request, &refused), 0);
        attr.qp_state = IBV_QPS_ERR;
        IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
        /* Some of the events are fetched, others not. */
        if (round % 4)
            usleep(round % 4 * 100);
        IS(ibv_destroy_qp(qp), 0);
        IS(ibv_destroy_cq(cq), 0);
    }
    pthread_cancel(thread);
    pthread_join(thread, &result);
    IS(result == PTHREAD_CANCELED, 1);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_close_device(context), 0);
}

static struct ibv_context *its_context;
static volatile int taken, given_back;

/* It takes its time between each event and its acknowledgement. */
static void *delay(void *channel)
{
    struct ibv_async_event event;
    struct ibv_cq *cq;
    void *own;

    IS(ibv_get_async_event(its_context, &event), 0);
    IS(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    taken = 1;
    usleep(100000);
    given_back = 1;
    ibv_ack_async_event(&event);
    for (int number = 1; number < 3; number++) {
        IS(ibv_get_cq_event(channel, &cq, &own), 0);
        IS(ibv_req_notify_cq(cq, 0), 0);
        taken = 1 + number;
    }
    usleep(100000);
    ibv_ack_cq_events(cq, 1);
    usleep(100000);
    given_back = 2;
    ibv_ack_cq_events(cq, 1);
    return NULL;
}

static void wait_for_taken(int number)
{
    while (taken < number)
        usleep(100);
}

/* What a thread has an event of is not destroyed before that is acknowledged: UCX frees what its handler uses. */
static void acknowledged(void)
{
    struct ibv_context *context = its_context = opened();
    struct ibv_pd *pd = MADE(ibv_alloc_pd(context));
    struct ibv_comp_channel *channel = MADE(ibv_create_comp_channel(context));
    struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, channel, channel, 0));
    struct ibv_srq_init_attr wanted = {.attr = {8, 1, 0}};
    struct ibv_srq *srq = MADE(ibv_create_srq(pd, &wanted));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_recv_wr request = {.wr_id = 1}, *refused = NULL;
    struct ibv_qp *qp;
    pthread_t thread;

    pthread_create(&thread, NULL, delay, channel);
    for (int round = 0; round < 3; round++) {
        /* Its last request is flushed at once; those of the others complete. */
        qp = MADE(queue_pair(pd, cq, round ? NULL : srq));
        attr.qp_state = IBV_QPS_INIT;
        IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
        if (round == 1)
            IS(ibv_req_notify_cq(cq, 0), 0);
        if (round)
            IS(ibv_post_recv(qp, &request, &refused), 0);
        attr.qp_state = IBV_QPS_ERR;
        IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
        wait_for_taken(1 + round);
        IS(ibv_destroy_qp(qp), 0);
        IS(given_back > 0, 1);
    }
    IS(ibv_destroy_cq(cq), 0);
    IS(given_back, 2);
    pthread_join(thread, NULL);
    IS(ibv_destroy_srq(srq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_close_device(context), 0);
}

/* Signals are for the threads of the program: here one that waits for them. */
static void signals(void)
{
    struct ibv_context *context = opened();
    sigset_t mask;
    int found;

    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    /* After the library has its thread, which would take the signal if it could: that ends the process. */
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    kill(getpid(), SIGUSR1);
    IS(sigwait(&mask, &found), 0);
    IS(found, SIGUSR1);
    IS(ibv_close_device(context), 0);
}

/* What Linux finds no place for: a source GID in an empty slot, and a region that covers no page. */
static void places(void)
{
    static char memory[8192] __attribute__((aligned(4096)));
    struct ibv_context *context = opened();
    struct ibv_pd *pd = MADE(ibv_alloc_pd(context));
    struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    struct ibv_qp *qp = MADE(queue_pair(pd, cq, NULL));
    struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_ah *handle;
    struct ibv_mr *mr;

    IS(ibv_query_port(context, 1, &port), 0);
    IS(ibv_query_gid(context, 1, 0, &address.grh.dgid), 0);
    /* The table's last slot is empty, on a host of a few addresses. */
    address.grh.sgid_index = port.gid_tbl_len > 255 ? 255 : port.gid_tbl_len - 1;
    IS(ibv_query_gid(context, 1, address.grh.sgid_index, &gid), 0);
    IS(gid.global.interface_id | gid.global.subnet_prefix, 0);
    errno = 0;
    IS(ibv_create_ah(pd, &address) == NULL, 1);
    IS(errno, EINVAL);
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12,
                                .ah_attr = address};
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                     | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), EINVAL);
    IS(qp->state, IBV_QPS_INIT);
    for (int slot = 0; slot < 4; slot++) {
        address.grh.sgid_index = slot;
        handle = MADE(ibv_create_ah(pd, &address));
        IS(ibv_destroy_ah(handle), 0);
    }
    errno = 0;
    IS(ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE) == NULL, 1);
    IS(errno, EINVAL);
    errno = 0;
    IS(ibv_reg_mr(pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == NULL, 1);
    IS(errno, EINVAL);
    mr = MADE(ibv_reg_mr(pd, memory + 8, 0, IBV_ACCESS_LOCAL_WRITE));
    IS(mr->length, 0);
    IS(ibv_dereg_mr(mr), 0);
    IS(ibv_close_device(context), 0);
}

int main(int count, char **words)
{
    const char *story = count > 1 ? words[1] : "";

    if (!strcmp(story, "destroy"))
        destroy();
    else if (!strcmp(story, "states"))
        states();
    else if (!strcmp(story, "forks"))
        forks();
    else if (!strcmp(story, "cancel"))
        cancel();
    else if (!strcmp(story, "events"))
        events();
    else if (!strcmp(story, "acknowledged"))
        acknowledged();
    else if (!strcmp(story, "signals"))
        signals();
    else if (!strcmp(story, "places"))
        places();
    else
        return 2;
    return !!failures;
}
