/*
 * What a program sees of its signals and limits, before its first verbs call and after; and calls of a signal's
 * handler.  The first argument chooses the story.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include "checks.h"

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_srq *queue;

static void opened(void)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));

    context = MADE(ibv_open_device(list[0]));
    ibv_free_device_list(list);
}

static void show(const char *when)
{
    mode_t mask = umask(0);
    sigset_t blocked;
    stack_t stack;

    umask(mask);
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    for (int number = 1; number <= 64; number++) {
        struct sigaction action = {.sa_handler = SIG_DFL};

        /* 32 and 33 are the C library's. */
        sigaction(number, NULL, &action);
        printf("%s: signal %d: %s, flags %x, %s\n", when, number,
               action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "handled",
               action.sa_flags, sigismember(&blocked, number) == 1 ? "blocked" : "open");
    }
    for (int number = 0; number < RLIM_NLIMITS; number++) {
        struct rlimit limit;

        getrlimit(number, &limit);
        printf("%s: limit %d: %llu %llu\n", when, number, (unsigned long long)limit.rlim_cur,
               (unsigned long long)limit.rlim_max);
    }
    sigaltstack(NULL, &stack);
    printf("%s: umask %o, stack of signals %p, priority %d\n", when, mask, stack.ss_sp,
           getpriority(PRIO_PROCESS, 0));
}

static volatile sig_atomic_t called, failed, wrong;

/* It may run over a call of its own thread, and then it fails; between two calls it works. */
static void poll(int number)
{
    struct ibv_wc wc;
    int result;

    (void)number;
    errno = 0;
    result = ibv_poll_cq(cq, 1, &wc);
    called = called + 1;
    if (result == -1 && errno == EDEADLK)
        failed = failed + 1;
    else if (result)
        wrong = wrong + 1;
}

static void handlers(void)
{
    struct sigaction action = {.sa_handler = poll, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    struct ibv_device_attr attr;
    struct ibv_wc wc;

    opened();
    cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    /* Until some have run over a call. */
    while (failed < 20 && !wrong && !failures)
        IS(ibv_query_device(context, &attr), 0);
    failed = called = 0;
    /* Those of the data path end first. */
    while (called < 100 && !wrong && !failures)
        IS(ibv_poll_cq(cq, 1, &wc), 0);
    IS(failed, 0);
    setitimer(ITIMER_REAL, &never, NULL);
    IS(wrong, 0);
    IS(ibv_poll_cq(cq, 1, &wc), 0);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_close_device(context), 0);
}

static sigjmp_buf before;

static void jump(int number)
{
    called = called + 1;
    siglongjmp(before, number);
}

/* A handler leaves calls of the data path: later calls of the thread work. */
static void jumps(void)
{
    struct sigaction action = {.sa_handler = jump};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct ibv_wc wc;

    opened();
    cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    sigaction(SIGALRM, &action, NULL);
    /* No signal comes before there is a place to go to. */
    if (!sigsetjmp(before, 1))
        setitimer(ITIMER_REAL, &often, NULL);
    while (called < 100 && !failures)
        IS(ibv_poll_cq(cq, 1, &wc), 0);
    setitimer(ITIMER_REAL, &never, NULL);
    IS(ibv_req_notify_cq(cq, 0), 0);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_close_device(context), 0);
}

static volatile int masks;

/* The libraries call this one, as it is the program's. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    masks = masks + 1;
    return sigprocmask(how, set, old) ? errno : 0;
}

static int masked(void)
{
    struct ibv_recv_wr *bad, receive = {.wr_id = 1};
    struct ibv_wc wc;

    masks = 0;
    IS(ibv_poll_cq(cq, 1, &wc), 0);
    IS(ibv_post_srq_recv(queue, &receive, &bad), 0);
    return masks;
}

/* The data path blocks signals in a program that has handlers: as soon as it has. */
static void masking(const char *how)
{
    struct sigaction ignored = {.sa_handler = SIG_IGN}, action = {.sa_handler = poll};
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 8, .max_sge = 1}};
    int isLed = !!getenv("LD_PRELOAD");

    if (!strcmp(how, "before"))
        syscall(SYS_rt_sigaction, SIGALRM, &action, NULL, 8);
    opened();
    cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    queue = MADE(ibv_create_srq(MADE(ibv_alloc_pd(context)), &attr));
    sigaction(SIGUSR1, NULL, &ignored);
    sigaction(SIGPIPE, &ignored, NULL);
    signal(SIGUSR2, SIG_IGN);
    /* It is never blocked. */
    signal(SIGSEGV, poll);
    IS(!masked(), isLed && strcmp(how, "before"));
    if (!strcmp(how, "sigaction"))
        sigaction(SIGUSR1, &action, NULL);
    else
        signal(SIGUSR1, poll);
    IS(masked() >= 4, 1);
    signal(SIGUSR1, SIG_DFL);
    IS(masked() >= 4, 1);
}

static void *leave(void *channel)
{
    (void)channel;
    usleep(1000);
    exit(7);
}

/* One thread ends the process while another waits: that one hears nothing of it. */
static void leaving(int kind)
{
    struct ibv_comp_channel *channel;
    struct ibv_async_event event;
    pthread_t thread;
    void *own;
    int result;

    opened();
    channel = MADE(ibv_create_comp_channel(context));
    pthread_create(&thread, NULL, leave, NULL);
    if (kind)
        result = ibv_get_async_event(context, &event);
    else
        result = ibv_get_cq_event(channel, &cq, &own);
    fprintf(stderr, "%d: %s\n", result, strerror(errno));
    pause();
}

int main(int count, char **words)
{
    const char *story = count > 1 ? words[1] : "";

    if (!strcmp(story, "show")) {
        show("before");
        opened();
        show("after");
    } else if (!strcmp(story, "interrupt")) {
        opened();
        raise(SIGINT);
        printf("it lives\n");
    } else if (!strcmp(story, "handlers"))
        handlers();
    else if (!strcmp(story, "jumps"))
        jumps();
    else if (!strcmp(story, "masking"))
        masking(words[2]);
    else if (!strcmp(story, "leaving"))
        leaving(count > 2);
    else
        return 2;
    return !!failures;
}
