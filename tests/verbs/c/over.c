/*
 * A library of C in a program that is Python: a thread polls a queue until the process has ended.  Functions of exit(3)
 * come after Python's end, and this one waits until the thread has polled on.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_cq_ex *extended;
static volatile long polls, failed;
static volatile int done;

/* Python has ended the thread amid a call. */
static void lost(void *unused)
{
    failed = -1;
}

static void *poll(void *unused)
{
    struct ibv_poll_cq_attr attr = {0};
    struct ibv_async_event event;
    struct ibv_cq *told;
    struct ibv_wc wc;
    void *context;

    pthread_cleanup_push(lost, NULL);
    while (!failed) {
        if (ibv_poll_cq(cq, 1, &wc) || ibv_start_poll(extended, &attr) != ENOENT || ibv_req_notify_cq(cq, 0))
            failed = errno;
        /* Who does not wait for events has none. */
        if (ibv_get_cq_event(channel, &told, &context) != -1 || errno != EAGAIN)
            failed = errno;
        if (ibv_get_async_event(cq->context, &event) != -1 || errno != EAGAIN)
            failed = errno;
        polls++;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void wait_on(void)
{
    long before = polls;

    while (!failed && polls - before < 100)
        sched_yield();
    printf("%ld\n", failed);
    fflush(stdout);
}

int begin(void)
{
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(NULL));
    struct ibv_cq_init_attr_ex wanted = {.cqe = 4};
    pthread_t thread;

    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 4, NULL, channel, 0);
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    extended = ibv_create_cq_ex(context, &wanted);
    atexit(wait_on);
    return pthread_create(&thread, NULL, poll, NULL);
}
