/*
 * Memory that a program unmaps while it is registered: a peer's access ends the queue pair, not the process.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/mman.h>
#include "checks.h"

#define BYTES 8192
#define MOST (1 << 20)
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS};

    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
                                .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}}};
    IS(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid), 0);
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                .max_rd_atomic = 1};
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

/* The status of a request from local to remote memory. */
static int status(struct ibv_pd *pd, struct ibv_cq *cq, int opcode, struct ibv_mr *local, struct ibv_mr *remote,
                  unsigned length)
{
    struct ibv_qp_init_attr wanted = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *qp = MADE(ibv_create_qp(pd, &wanted)), *peer = MADE(ibv_create_qp(pd, &wanted));
    /* Not from the first page's first octet: the hole is amid. */
    struct ibv_sge piece = {(uintptr_t)local->addr + 100, length, local->lkey};
    struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = opcode,
                                  .send_flags = IBV_SEND_SIGNALED}, *refused;
    struct ibv_wc wc;
    int found;

    request.wr.rdma.remote_addr = (uintptr_t)remote->addr + 100;
    request.wr.rdma.rkey = remote->rkey;
    connect_to(qp, peer);
    connect_to(peer, qp);
    IS(ibv_post_send(qp, &request, &refused), 0);
    while (!(found = ibv_poll_cq(cq, 1, &wc)))
        ;
    IS(found, 1);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_qp(peer), 0);
    return wc.status;
}

int main(void)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));
    struct ibv_context *context = MADE(ibv_open_device(list[0]));
    struct ibv_pd *pd = MADE(ibv_alloc_pd(context));
    struct ibv_cq *cq = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    static char memory[MOST];
    char *pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *here = MADE(ibv_reg_mr(pd, memory, MOST, RIGHTS));
    struct ibv_mr *gone = MADE(ibv_reg_mr(pd, pages, BYTES, RIGHTS));

    IS(status(pd, cq, IBV_WR_RDMA_WRITE, here, gone, 6000), IBV_WC_SUCCESS);
    IS(status(pd, cq, IBV_WR_RDMA_READ, here, gone, 6000), IBV_WC_SUCCESS);
    /* The second page only. */
    munmap(pages + 4096, 4096);
    IS(status(pd, cq, IBV_WR_RDMA_WRITE, here, gone, 6000), IBV_WC_REM_ACCESS_ERR);
    IS(status(pd, cq, IBV_WR_RDMA_READ, here, gone, 6000), IBV_WC_REM_ACCESS_ERR);
    IS(status(pd, cq, IBV_WR_RDMA_WRITE, gone, here, 6000), IBV_WC_LOC_PROT_ERR);
    IS(ibv_dereg_mr(gone), 0);

    /* Memory that may no longer be written, and then not be read, either: of some bytes, and of many. */
    for (unsigned size = BYTES; size <= MOST; size <<= 7) {
        pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        gone = MADE(ibv_reg_mr(pd, pages, size, RIGHTS));
        mprotect(pages, size, PROT_READ);
        IS(status(pd, cq, IBV_WR_RDMA_READ, here, gone, size - 200), IBV_WC_SUCCESS);
        IS(status(pd, cq, IBV_WR_RDMA_WRITE, here, gone, size - 200), IBV_WC_REM_ACCESS_ERR);
        IS(status(pd, cq, IBV_WR_RDMA_READ, gone, here, size - 200), IBV_WC_LOC_PROT_ERR);
        mprotect(pages, size, PROT_NONE);
        IS(status(pd, cq, IBV_WR_RDMA_READ, here, gone, size - 200), IBV_WC_REM_ACCESS_ERR);
        IS(status(pd, cq, IBV_WR_RDMA_WRITE, gone, here, size - 200), IBV_WC_LOC_PROT_ERR);
        mprotect(pages, size, PROT_READ | PROT_WRITE);
        IS(status(pd, cq, IBV_WR_RDMA_WRITE, here, gone, size - 200), IBV_WC_SUCCESS);
        IS(ibv_dereg_mr(gone), 0);
        munmap(pages, size);
    }
    return !!failures;
}
