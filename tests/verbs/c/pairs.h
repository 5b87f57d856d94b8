/*
 * Queue pairs of one device, for the programs that are beside it; and each entry into Python.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include "checks.h"

#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_context *context;
static struct ibv_pd *pd;

/* Each entry into Python takes its lock by this function, which the loader finds here first. */
static volatile long entries;
/* Called before that, and after the lock's release; or none. */
static void (*volatile entering)(void), (*volatile leaving)(void);

int PyGILState_Ensure(void)
{
    static int (*theirs)(void);

    if (!theirs)
        theirs = (int (*)(void))dlsym(RTLD_NEXT, "PyGILState_Ensure");
    __atomic_add_fetch(&entries, 1, __ATOMIC_RELAXED);
    if (entering)
        entering();
    return theirs();
}

void PyGILState_Release(int state)
{
    static void (*theirs)(int);

    if (!theirs)
        theirs = (void (*)(int))dlsym(RTLD_NEXT, "PyGILState_Release");
    theirs(state);
    if (leaving)
        leaving();
}

static void open_device(void)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));

    context = MADE(ibv_open_device(list[0]));
    ibv_free_device_list(list);
    pd = MADE(ibv_alloc_pd(context));
}

static struct ibv_cq *queue(int size, struct ibv_comp_channel *channel)
{
    return MADE(ibv_create_cq(context, size, NULL, channel, 0));
}

static struct ibv_qp *queue_pair(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {64, 256, 2, 2, 64}};

    return MADE(ibv_create_qp(pd, &attr));
}

static void move(struct ibv_qp *qp, int state)
{
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qp_access_flags = RIGHTS};
    int more = state == IBV_QPS_INIT ? IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS : 0;

    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | more), 0);
}

/* A queue pair that flushes each request at once. */
static struct ibv_qp *flushing(struct ibv_cq *cq)
{
    struct ibv_qp *qp = queue_pair(cq);

    move(qp, IBV_QPS_INIT);
    move(qp, IBV_QPS_ERR);
    return qp;
}

static int receive(struct ibv_qp *qp, uint64_t number)
{
    struct ibv_recv_wr wr = {.wr_id = number}, *bad;

    return ibv_post_recv(qp, &wr, &bad);
}

static void connect_to(struct ibv_qp *qp, unsigned peer, const union ibv_gid *gid)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
                               .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
                               .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 1}}};

    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                .max_rd_atomic = 1};
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static union ibv_gid own_gid(void)
{
    union ibv_gid gid;

    IS(ibv_query_gid(context, 1, 0, &gid), 0);
    return gid;
}

/* Connect two queue pairs of this process with each other. */
static void join(struct ibv_qp *one, struct ibv_qp *two)
{
    union ibv_gid gid = own_gid();

    move(one, IBV_QPS_INIT);
    move(two, IBV_QPS_INIT);
    connect_to(two, one->qp_num, &gid);
    connect_to(one, two->qp_num, &gid);
}
