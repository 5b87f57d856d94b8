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

static volatile int waited;

/* One that has had an event waits on whenever its channel is destroyed. */
static void *waiting(void *finished)
{
    struct rdma_cm_event *event;

    WORKS(rdma_get_cm_event(channel, &event));
    WORKS(rdma_ack_cm_event(event));
    waited++;
    rdma_get_cm_event(channel, &event);
    *(int *)finished = 1;
    return NULL;
}

/* An event for a thread, which takes it. */
static void tell(int count)
{
    struct rdma_cm_id *id = made();

    WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000));
    while (waited < count)
        usleep(1000);
    WORKS(rdma_destroy_id(id));
}

/* A thread that waits can be cancelled; when its channel is destroyed it waits on, as on Linux. */
static void waits(void)
{
    static int first, second;
    pthread_t thread;

    WORKS(pthread_create(&thread, NULL, waiting, &first));
    tell(1);
    usleep(200000);
    WORKS(pthread_cancel(thread));
    WORKS(pthread_join(thread, NULL));
    WORKS(pthread_create(&thread, NULL, waiting, &second));
    tell(2);
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

/* An identifier has one shared receive queue, whose type an extended call names. */
static void shared(struct rdma_cm_id *id)
{
    struct ibv_srq_init_attr attr = {.attr = {8, 1, 0}};
    struct ibv_srq_init_attr_ex extended = {.attr = {8, 1, 0}, .srq_type = IBV_SRQT_BASIC};

    FAILS(rdma_create_srq_ex(id, &extended), EINVAL);
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    WORKS(rdma_create_srq_ex(id, &extended));
    if (!id->srq || id->srq->pd != id->pd)
        failures += printf("the shared receive queue is not as it should be\n");
    FAILS(rdma_create_srq_ex(id, &extended), EINVAL);
    FAILS(rdma_create_srq(id, NULL, &attr), EINVAL);
    rdma_destroy_srq(id);
    WORKS(rdma_create_srq(id, NULL, &attr));
    FAILS(rdma_create_srq_ex(id, &extended), EINVAL);
    rdma_destroy_srq(id);
    extended.srq_type = IBV_SRQT_XRC;
    FAILS(rdma_create_srq_ex(id, &extended), EOPNOTSUPP);
}

/* Events are called as the header does; others there are none. */
static void names(void)
{
    static const char *names[] = {
        "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
        "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL",
        "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
    };

    for (int event = -1; event <= 16; event++) {
        const char *said = rdma_event_str(event);
        int isKnown = event >= 0 && event < 16;

        if (isKnown ? strncmp(said, "RDMA_CM_EVENT_", 14) || strcmp(said + 14, names[event])
                    : strcmp(said, "UNKNOWN EVENT"))
            failures += printf("%d: %s\n", event, said);
    }
}

/* A multicast group: its event has the pointer that the program joined with; nobody leaves twice. */
static void groups(void)
{
    struct sockaddr_in own = {.sin_family = AF_INET}, group = {.sin_family = AF_INET};
    struct rdma_cm_join_mc_attr_ex attr = {.addr = (struct sockaddr *)&group};
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;

    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    group.sin_addr.s_addr = htonl(0xef010203);
    WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
    WORKS(rdma_bind_addr(id, (struct sockaddr *)&own));
    FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
    attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    attr.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
    for (int extended = 0; extended < 2; extended++) {
        if (extended)
            WORKS(rdma_join_multicast_ex(id, &attr, &own));
        else
            WORKS(rdma_join_multicast(id, (struct sockaddr *)&group, &own));
        event = expected(RDMA_CM_EVENT_MULTICAST_JOIN);
        if (event->id != id || event->param.ud.private_data != &own || event->param.ud.private_data_len)
            failures += printf("the event of a group is not as it should be\n");
        WORKS(rdma_ack_cm_event(event));
        WORKS(rdma_leave_multicast(id, (struct sockaddr *)&group));
        FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
    }
    WORKS(rdma_destroy_id(id));
}

/* An extended call makes a queue pair in the domain that it names, or in the identifier's. */
static void extended(struct rdma_cm_id *id)
{
    struct ibv_pd *before = id->pd, *own = ibv_alloc_pd(id->verbs);

    for (int mask = 0; mask < 2; mask++) {
        struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}, .pd = own};

        attr.comp_mask = mask ? IBV_QP_INIT_ATTR_PD : 0;
        WORKS(rdma_create_qp_ex(id, &attr));
        if (!id->qp || id->qp->pd != (mask ? own : before))
            failures += printf("the queue pair has another domain\n");
        rdma_destroy_qp(id);
    }
    id->pd = before;
    WORKS(ibv_dealloc_pd(own));
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
    struct rdma_cm_id *listener = made(), *id = made(), *first = made(), *child;
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
    shared(id);
    extended(id);
    if (rdma_get_dst_port(id) != here.sin_port || rdma_get_src_port(listener) != here.sin_port)
        failures += printf("a port is another\n");
    WORKS(rdma_create_qp(id, NULL, &attr));
    WORKS(rdma_connect(id, &param));
    event = expected(RDMA_CM_EVENT_CONNECT_REQUEST);
    child = event->id;
    WORKS(rdma_ack_cm_event(event));
    FAILS(rdma_notify(listener, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_notify(child, IBV_EVENT_COMM_EST), EINVAL);
    /* As uDAPL's provider: the queue pair was made on another identifier. */
    WORKS(rdma_resolve_addr(first, NULL, (struct sockaddr *)&here, 1000));
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ADDR_RESOLVED)));
    WORKS(rdma_create_qp(first, NULL, &attr));
    child->qp = first->qp;
    first->qp = NULL;
    WORKS(rdma_accept(child, &param));
    WORKS(rdma_destroy_id(first));
    WORKS(rdma_notify(child, IBV_EVENT_COMM_EST));
    FAILS(rdma_notify(child, IBV_EVENT_PATH_MIG), EINVAL);
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ESTABLISHED)));
    WORKS(rdma_ack_cm_event(expected(RDMA_CM_EVENT_ESTABLISHED)));
    WORKS(pthread_create(&thread, NULL, talking, NULL));
    usleep(200000);
}

/*
 * Two requests to a synchronous identifier: one is accepted, with a queue pair by the listener's attributes, the other
 * refused.
 */
static struct rdma_addrinfo *resolved(int flags, char *service)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC};
    struct rdma_addrinfo *found = NULL;

    WORKS(rdma_getaddrinfo("127.0.0.1", service, &hints, &found));
    return found;
}

static void *serving(void *listener)
{
    struct rdma_cm_id *id = NULL, *other = NULL;

    WORKS(rdma_get_request(listener, &id));
    if (!id->qp || !id->verbs || id->event->event != RDMA_CM_EVENT_CONNECT_REQUEST || id->event->listen_id != listener)
        failures += printf("the request is not as it should be\n");
    if (id->event->param.conn.private_data_len < 5 || memcmp(id->event->param.conn.private_data, "hello", 5))
        failures += printf("the request has other data\n");
    if (id->event->param.conn.retry_count != 7 || id->event->param.conn.rnr_retry_count != 7)
        failures += printf("the request has other retries\n");
    WORKS(rdma_accept(id, NULL));
    if (id->event->event != RDMA_CM_EVENT_ESTABLISHED)
        failures += printf("the accepted identifier has another event\n");
    WORKS(rdma_get_request(listener, &other));
    WORKS(rdma_reject(other, "no", 2));
    rdma_destroy_ep(other);
    return id;
}

static void synchronous(void)
{
    struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}};
    struct rdma_addrinfo *here = resolved(RAI_PASSIVE, "7472"), *there = resolved(0, "7472");
    struct rdma_cm_id *listener = NULL, *first = NULL, *second = NULL, *datagrams = NULL;
    void *accepted = NULL;
    pthread_t thread;

    there->ai_qp_type = IBV_QPT_UD;
    FAILS(rdma_create_ep(&datagrams, there, NULL, NULL), EOPNOTSUPP);
    there->ai_qp_type = IBV_QPT_RC;
    there->ai_connect = "hello";
    there->ai_connect_len = 5;
    WORKS(rdma_create_ep(&listener, here, NULL, &attr));
    if (attr.qp_type || listener->qp)
        failures += printf("a listener needs no queue pair\n");
    WORKS(rdma_listen(listener, 2));
    WORKS(pthread_create(&thread, NULL, serving, listener));
    WORKS(rdma_create_ep(&first, there, NULL, &attr));
    if (attr.qp_type != IBV_QPT_RC || !first->qp || !first->pd || first->route.num_paths != 1)
        failures += printf("the identifier is not resolved\n");
    WORKS(rdma_connect(first, NULL));
    if (first->event->event != RDMA_CM_EVENT_ESTABLISHED)
        failures += printf("the identifier has another event\n");
    there->ai_connect_len = 0;
    WORKS(rdma_create_ep(&second, there, NULL, &attr));
    FAILS(rdma_connect(second, NULL), ECONNREFUSED);
    if (second->event->event != RDMA_CM_EVENT_REJECTED || memcmp(second->event->param.conn.private_data, "no", 2))
        failures += printf("the refusal is not as it should be\n");
    rdma_destroy_ep(second);
    WORKS(pthread_join(thread, &accepted));
    WORKS(rdma_disconnect(first));
    rdma_destroy_ep(first);
    rdma_destroy_ep(accepted);
    rdma_destroy_ep(listener);
    there->ai_connect = NULL;
    rdma_freeaddrinfo(here);
    rdma_freeaddrinfo(there);
    rdma_freeaddrinfo(NULL);
    errno = 0;
    rdma_freeaddrinfo(there);
    if (errno != EINVAL)
        failures += printf("a result is freed twice\n");
}

/* The devices of a program, which it gives back. */
static void devices(void)
{
    int count = 9;
    struct ibv_context **list = rdma_get_devices(&count);

    if (count != 1 || !list || !list[0] || list[1])
        failures += printf("there are %d devices\n", count);
    else if (strcmp(ibv_get_device_name(list[0]->device), "shm0"))
        failures += printf("the device is another\n");
    rdma_free_devices(list);
    errno = 0;
    rdma_free_devices(list);
    if (errno != EINVAL)
        failures += printf("devices are freed twice\n");
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
    /* Before any is opened, too. */
    devices();
    acknowledged();
    waits();
    nonblocking();
    stages();
    names();
    synchronous();
    devices();
    unconnected();
    groups();
    rdma_destroy_event_channel(channel);
    channel = rdma_create_event_channel();
    connected();
    return failures != 0;
}
