/*
 * Signals that come while a call waits for an event.  The first argument chooses the story, and each
 * that follows the call that waits.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#include "checks.h"

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static volatile sig_atomic_t ran, calls;
static sigjmp_buf before;

static void count(int number)
{
    (void)number;
    ran = ran + 1;
}

static void leave(int number)
{
    ran = ran + 1;
    siglongjmp(before, number);
}

/* A call in a handler that has interrupted a wait works. */
static void call(int number)
{
    struct ibv_wc wc;

    (void)number;
    ran = ran + 1;
    calls = calls + (ibv_poll_cq(cq, 1, &wc) == 0);
}

static void handled(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    struct itimerval often = {{0, 5000}, {0, 5000}};

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
}

static void quiet(void)
{
    struct itimerval never = {{0, 0}, {0, 0}};

    setitimer(ITIMER_REAL, &never, NULL);
}

static int waited(const char *which)
{
    struct ibv_async_event asynchronous;
    struct rdma_cm_event *event;
    struct ibv_cq *its;
    void *own;
    int result;

    if (!strcmp(which, "completion"))
        return ibv_get_cq_event(channel, &its, &own);
    if (!strcmp(which, "asynchronous"))
        return ibv_get_async_event(context, &asynchronous);
    result = rdma_get_cm_event(events, &event);
    if (!result)
        rdma_ack_cm_event(event);
    return result;
}

static void *resolve(void *signals)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(1)};

    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    /* Once some signals have come. */
    while (signals && ran < 5)
        sched_yield();
    IS(rdma_resolve_addr(id, NULL, (void *)&address, 2000), 0);
    return NULL;
}

/* In a thread that takes no signals. */
static pthread_t begun(void *(*function)(void *))
{
    pthread_t thread;
    sigset_t alarm, mask;

    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, &mask);
    pthread_create(&thread, NULL, function, function);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return thread;
}

static void story(const char *name, const char *which)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));
    struct ibv_wc wc;
    pthread_t thread;

    ran = calls = 0;
    context = MADE(ibv_open_device(list[0]));
    channel = MADE(ibv_create_comp_channel(context));
    cq = MADE(ibv_create_cq(context, 8, NULL, channel, 0));
    events = MADE(rdma_create_event_channel());
    IS(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
    if (!strcmp(name, "interrupted")) {
        handled(count, 0);
        for (int round = 0; round < 3; round++) {
            IS(waited(which), -1);
            IS(errno, EINTR);
        }
    } else if (!strcmp(name, "restarted")) {
        handled(count, SA_RESTART);
        thread = begun(resolve);
        IS(waited(which), 0);
        pthread_join(thread, NULL);
    } else if (!strcmp(name, "left")) {
        /* Only then may a signal come, and only one leaves the wait. */
        if (!sigsetjmp(before, 1))
            handled(leave, 0);
        if (ran < 20)
            IS(waited(which), 0);
        quiet();
        thread = begun(resolve);
        IS(waited("connection"), 0);
        pthread_join(thread, NULL);
    } else if (!strcmp(name, "called")) {
        handled(call, 0);
        IS(waited(which), -1);
        IS(errno, EINTR);
        quiet();
        IS(calls > 0, 1);
    }
    quiet();
    IS(ibv_poll_cq(cq, 1, &wc), 0);
    IS(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(events);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_close_device(context), 0);
    ibv_free_device_list(list);
}

/* What is destroyed: a queue pair, by libibverbs or by librdmacm, or the identifier; the program has an event of it. */
static const char *object;
static struct ibv_qp *qp;
static struct ibv_async_event its_event;
static struct rdma_cm_event *ids_event;
static volatile int given_back;

static void give_back(void)
{
    given_back = 1;
    if (!strcmp(object, "identifier"))
        IS(rdma_ack_cm_event(ids_event), 0);
    else
        ibv_ack_async_event(&its_event);
}

static void *give_back_later(void *unused)
{
    (void)unused;
    while (ran < 5)
        sched_yield();
    give_back();
    return NULL;
}

static int destroyed(void)
{
    if (!strcmp(object, "identifier"))
        return rdma_destroy_id(id);
    if (!strcmp(object, "queue pair"))
        return ibv_destroy_qp(qp);
    rdma_destroy_qp(id);
    return 0;
}

/* Signals come while the program has not acknowledged the event: they interrupt the call, or leave it. */
static void destroying(int is_left)
{
    struct ibv_srq_init_attr wanted = {.attr = {8, 1, 0}};
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    pthread_t thread;

    ran = calls = given_back = 0;
    events = MADE(rdma_create_event_channel());
    IS(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
    resolve(NULL);
    IS(rdma_get_cm_event(events, &ids_event), 0);
    attr.send_cq = attr.recv_cq = cq = MADE(ibv_create_cq(id->verbs, 8, NULL, NULL, 0));
    attr.srq = MADE(ibv_create_srq(id->pd, &wanted));
    if (strcmp(object, "identifier")) {
        IS(rdma_ack_cm_event(ids_event), 0);
        if (!strcmp(object, "queue pair")) {
            qp = MADE(ibv_create_qp(id->pd, &attr));
        } else {
            IS(rdma_create_qp(id, id->pd, &attr), 0);
            qp = id->qp;
        }
        IS(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
        state.qp_state = IBV_QPS_ERR;
        IS(ibv_modify_qp(qp, &state, IBV_QP_STATE), 0);
        IS(ibv_get_async_event(id->verbs, &its_event), 0);
        IS(its_event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    }
    if (is_left) {
        /* Each signal leaves to here; what is destroyed once is EINVAL. */
        if (!sigsetjmp(before, 1))
            handled(leave, 0);
        while (ran < 5)
            destroyed();
        quiet();
        give_back();
        destroyed();
    } else {
        handled(call, 0);
        thread = begun(give_back_later);
        IS(destroyed(), 0);
        IS(given_back, 1);
        pthread_join(thread, NULL);
        quiet();
        IS(calls, ran);
    }
    /* Nothing uses them any more. */
    IS(ibv_destroy_srq(attr.srq), 0);
    IS(ibv_destroy_cq(cq), 0);
    if (strcmp(object, "identifier"))
        IS(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(events);
}

static struct ibv_cq *spare;
static const char *handlers_call;
/* The sleeps of this thread, and those of them that last no time. */
static __thread volatile int sleeps, empty_sleeps;

int ppoll(struct pollfd *fds, nfds_t amount, const struct timespec *most, const sigset_t *mask)
{
    static int (*next)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);

    if (!next)
        next = dlsym(RTLD_NEXT, "ppoll");
    sleeps = sleeps + 1;
    empty_sleeps = empty_sleeps + (most && !most->tv_sec && !most->tv_nsec);
    return next(fds, amount, most, mask);
}

/* A signal's handler destroys, or asks for an event that there is not. */
static void nest(int number)
{
    struct ibv_async_event none;

    (void)number;
    ran = ran + 1;
    if (!strcmp(handlers_call, "destroy") && spare) {
        IS(ibv_destroy_cq(spare), 0);
        spare = NULL;
    } else if (!strcmp(handlers_call, "ask")) {
        IS(ibv_get_async_event(context, &none), -1);
        IS(errno, EAGAIN);
    }
}

/* In the wait of a call that destroys, a signal's handler calls, too: that waits all the same, and does not spin. */
static void nesting(void)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));
    struct ibv_pd *pd;
    struct ibv_srq_init_attr wanted = {.attr = {8, 1, 0}};
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    pthread_t thread;

    handlers_call = object;
    object = "queue pair";
    ran = given_back = 0;
    context = MADE(ibv_open_device(list[0]));
    pd = MADE(ibv_alloc_pd(context));
    attr.send_cq = attr.recv_cq = cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    spare = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    attr.srq = MADE(ibv_create_srq(pd, &wanted));
    qp = MADE(ibv_create_qp(pd, &attr));
    IS(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    state.qp_state = IBV_QPS_ERR;
    IS(ibv_modify_qp(qp, &state, IBV_QP_STATE), 0);
    IS(ibv_get_async_event(context, &its_event), 0);
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
    thread = begun(give_back_later);
    sleeps = empty_sleeps = 0;
    handled(nest, SA_RESTART);
    IS(destroyed(), 0);
    IS(given_back, 1);
    pthread_join(thread, NULL);
    quiet();
    IS(sleeps > 0, 1);
    IS(empty_sleeps, 0);
    if (spare)
        IS(ibv_destroy_cq(spare), 0);
    IS(ibv_destroy_srq(attr.srq), 0);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_dealloc_pd(pd), 0);
    IS(ibv_close_device(context), 0);
    ibv_free_device_list(list);
    object = handlers_call;
}

/* A server's threads wait: for connections, for completions of two queues, and for asynchronous events. */
static void *waits_for(void *which)
{
    waited(which);
    printf("the wait for a %s event ends\n", (char *)which);
    return NULL;
}

static void *waits_on(void *own_channel)
{
    struct ibv_cq *its;
    void *own;

    ibv_get_cq_event(own_channel, &its, &own);
    printf("the wait for a completion ends\n");
    return NULL;
}

static double processor_seconds(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* They take a fiftieth of a processor at most, while nothing comes. */
static void idle(int seconds)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));
    struct sockaddr_in any = {.sin_family = AF_INET};
    pthread_t thread;
    double before;
    int left = seconds;

    context = MADE(ibv_open_device(list[0]));
    events = MADE(rdma_create_event_channel());
    IS(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
    IS(rdma_bind_addr(id, (void *)&any), 0);
    IS(rdma_listen(id, 4), 0);
    for (int each = 0; each < 2; each++) {
        channel = MADE(ibv_create_comp_channel(context));
        cq = MADE(ibv_create_cq(context, 8, NULL, channel, 0));
        IS(ibv_req_notify_cq(cq, 0), 0);
        pthread_create(&thread, NULL, waits_on, channel);
    }
    pthread_create(&thread, NULL, waits_for, "asynchronous");
    pthread_create(&thread, NULL, waits_for, "connection");
    /* Until they sleep: a fifth of a second takes no more than its share. */
    for (int tries = 0; tries < 100; tries++) {
        before = processor_seconds();
        usleep(200000);
        if (processor_seconds() - before <= 0.004)
            break;
    }
    before = processor_seconds();
    while ((left = sleep(left)))
        ;
    before = processor_seconds() - before;
    IS(before * 50 <= seconds, 1);
    if (failures)
        printf("%.3f seconds of a processor in %d\n", before, seconds);
}

int main(int words, char **word)
{
    if (words == 3 && !strcmp(word[1], "idle")) {
        idle(atoi(word[2]));
        return !!failures;
    }
    for (int which = 2; which < words; which++) {
        int others = failures;

        object = word[which];
        if (!strcmp(word[1], "destroying") || !strcmp(word[1], "deserting"))
            destroying(!strcmp(word[1], "deserting"));
        else if (!strcmp(word[1], "nesting"))
            nesting();
        else
            story(word[1], word[which]);
        if (failures > others)
            puts(word[which]);
    }
    return words < 3 ? 2 : !!failures;
}
