/*
 * What librdmacm answers to programs that do things in a wrong order, and to threads that wait.  One line for
 * each check that fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

static int failures;
static struct rdma_event_channel *channel;
static struct sockaddr_in here = {.sin_family = AF_INET};

#define FAILS(call, number) fails(#call, (call), (number))
#define WORKS(call) works(#call, (call))

static void fails(const char *what, int result, int number)
{
    if (result != -1 || errno != number) {
        printf("%s: %d, errno %d, not %d\n", what, result, errno, number);
        failures++;
    }
}

static void works(const char *what, int result)
{
    if (result) {
        printf("%s: %d, %s\n", what, result, strerror(errno));
        exit(1);
    }
}

static struct rdma_cm_id *made(void)
{
    struct rdma_cm_id *id = NULL;

    WORKS(rdma_create_id(channel, &id, &failures, RDMA_PS_TCP));
    return id;
}

static struct rdma_cm_event *expected(enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event = NULL;

    WORKS(rdma_get_cm_event(channel, &event));
    if (event->event != kind) {
        printf("%s, not %s\n", rdma_event_str(event->event), rdma_event_str(kind));
        exit(1);
    }
    return event;
}

/* A command that its stage does not permit is EINVAL. */
static void stages(void)
{
    struct rdma_cm_id *id = made(), *sync = NULL, *other = NULL;
    struct rdma_conn_param param = {.qp_num = 1};
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    uint8_t timeout = 32;
    int mask;
    struct ibv_qp_attr wanted = {.qp_state = IBV_QPS_RTR};

    FAILS(rdma_resolve_route(id, 1000), EINVAL);
    FAILS(rdma_connect(id, &param), EINVAL);
    FAILS(rdma_accept(id, &param), EINVAL);
    FAILS(rdma_reject(id, NULL, 0), EINVAL);
    FAILS(rdma_disconnect(id), EINVAL);
    FAILS(rdma_establish(id), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
    FAILS(rdma_init_qp_attr(id, &wanted, &mask), EINVAL);
    FAILS(rdma_get_request(id, &other), EINVAL);
    FAILS(rdma_join_multicast(id, (struct sockaddr *)&here, NULL), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &timeout, 2), EINVAL);
    FAILS(rdma_set_option(id, 7, 7, &timeout, 1), ENOSYS);
    WORKS(rdma_bind_addr(id, (struct sockaddr *)&here));
    FAILS(rdma_bind_addr(id, (struct sockaddr *)&here), EINVAL);
    here.sin_addr.s_addr = htonl(0xc0000201);
    FAILS(rdma_bind_addr(made(), (struct sockaddr *)&here), EADDRNOTAVAIL);
    FAILS(rdma_create_id(channel, &other, NULL, 7), EPROTONOSUPPORT);
    WORKS(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP));
    FAILS(rdma_migrate_id(sync, NULL), EINVAL);
    WORKS(rdma_migrate_id(sync, channel));
    WORKS(rdma_destroy_id(sync));
    FAILS(rdma_destroy_id(sync), EINVAL);
    WORKS(rdma_destroy_id(id));
}

/* Without waiting there is EAGAIN; the descriptor is readable while there is an event. */
static void nonblocking(void)
{
    struct rdma_cm_id *id = made();
    struct rdma_cm_event *event = NULL;
    struct pollfd watched = {.fd = channel->fd, .events = POLLIN};

    WORKS(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
    WORKS(poll(&watched, 1, 0));
    WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000));
    if (poll(&watched, 1, 10000) != 1)
        failures += printf("the channel is not readable\n");
    event = expected(RDMA_CM_EVENT_ADDR_RESOLVED);
    if (event->id != id || id->context != &failures || !id->verbs || id->port_num != 1)
        failures += printf("the identifier is not as it should be\n");
    WORKS(poll(&watched, 1, 0));
    WORKS(rdma_ack_cm_event(event));
    FAILS(rdma_ack_cm_event(event), EINVAL);
    WORKS(rdma_destroy_id(id));
}

static void *waiting(void *finished)
{
    struct rdma_cm_event *event;

    rdma_get_cm_event(channel, &event);
    *(int *)finished = 1;
    return NULL;
}

/* A thread that waits can be cancelled; when its channel is destroyed it waits on, as on Linux. */
static void waits(void)
{
    static int first, second;
    pthread_t thread;

    WORKS(pthread_create(&thread, NULL, waiting, &first));
    usleep(200000);
    WORKS(pthread_cancel(thread));
    WORKS(pthread_join(thread, NULL));
    WORKS(pthread_create(&thread, NULL, waiting, &second));
    usleep(200000);
    rdma_destroy_event_channel(channel);
    usleep(300000);
    if (first || second)
        failures += printf("a thread has an event: %d %d\n", first, second);
    WORKS(pthread_cancel(thread));
    WORKS(pthread_join(thread, NULL));
    channel = rdma_create_event_channel();
}

static void *acknowledging(void *event)
{
    usleep(200000);
    WORKS(rdma_ack_cm_event(event));
    return NULL;
}

/* An identifier is destroyed once its events are acknowledged. */
static void acknowledged(void)
{
    struct rdma_cm_id *id = made();
    pthread_t thread;

    WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000));
    WORKS(pthread_create(&thread, NULL, acknowledging, expected(RDMA_CM_EVENT_ADDR_RESOLVED)));
    WORKS(rdma_destroy_id(id));
    WORKS(pthread_join(thread, NULL));
}

/* A stream socket that is not connected has nobody to write to. */
static void unconnected(void)
{
    int stream = rsocket(AF_INET, SOCK_STREAM, 0);

    FAILS(rsend(stream, "x", 1, 0), ENOTCONN);
    FAILS(rrecv(stream, &failures, 1, 0), ENOTCONN);
    WORKS(rclose(stream));
}

/* A child is refused whichever library its parent has used. */
static void forks(void)
{
    int status;
    struct ibv_device **list = ibv_get_device_list(NULL);
    pid_t child = fork();

    if (!child)
        _exit(rdma_create_event_channel() || errno != EOPNOTSUPP);
    waitpid(child, &status, 0);
    works("the child", status);
    ibv_free_device_list(list);
}

/* A listener and a connection to it; a thread waits for the connection's end. */
static volatile int ended;

static void *talking(void *unused)
{
    struct rdma_cm_event *event;

    (void)unused;
    rdma_get_cm_event(channel, &event);
    ended = 1;
    return NULL;
}

static void connected(void)
{
    struct rdma_cm_id *listener = made(), *id = made(), *child;
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct rdma_conn_param param = {.retry_count = 7};
    pthread_t thread;
    struct rdma_cm_event *event;

    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    here.sin_port = htons(7471);
    WORKS(rdma_bind_addr(listener, (struct sockaddr *)&here));
    WORKS(rdma_listen(listener, 1));
    WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000));
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ADDR_RESOLVED)));
    WORKS(rdma_resolve_route(id, 1000));
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ROUTE_RESOLVED)));
    WORKS(rdma_create_qp(id, NULL, &attr));
    WORKS(rdma_connect(id, &param));
    event = expected(RDMA_CM_EVENT_CONNECT_REQUEST);
    child = event->id;
    WORKS(rdma_ack_cm_event(event));
    FAILS(rdma_notify(listener, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_notify(child, IBV_EVENT_COMM_EST), EINVAL);
    WORKS(rdma_create_qp(child, NULL, &attr));
    WORKS(rdma_accept(child, &param));
    WORKS(rdma_notify(child, IBV_EVENT_COMM_EST));
    FAILS(rdma_notify(child, IBV_EVENT_PATH_MIG), EINVAL);
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ESTABLISHED)));
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ESTABLISHED)));
    WORKS(pthread_create(&thread, NULL, talking, NULL));
    usleep(200000);
}

/* Registered before the library's, so that it comes after that. */
static void last(void)
{
    usleep(100000);
    if (ended) {
        printf("a thread has an event while the process ends\n");
        fflush(stdout);
    }
}

int main(int count, char **arguments)
{
    (void)arguments;
    atexit(last);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (count > 1) {
        forks();
        return failures != 0;
    }
    channel = rdma_create_event_channel();
    if (!channel)
        return 2;
    acknowledged();
    waits();
    nonblocking();
    stages();
    unconnected();
    rdma_destroy_event_channel(channel);
    channel = rdma_create_event_channel();
    connected();
    return failures != 0;
}
