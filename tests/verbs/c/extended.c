/*
 * The extended verbs between two queue pairs of one process: requests built one by one, completions read field
 * by field; tables, and an asynchronous event.  One line for each check that fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include "checks.h"

#define SIZE 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq_ex *cq;
static struct ibv_td *td;
static struct ibv_pd *parent;
static char memory[4 * SIZE] __attribute__((aligned(8)));

static void open_all(void)
{
    struct ibv_device **list = MADE(ibv_get_device_list(NULL));
    struct ibv_td_init_attr thread = {0};
    struct ibv_cq_init_attr_ex attr = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS, .cq_context = memory};

    context = MADE(ibv_open_device(list[0]));
    ibv_free_device_list(list);
    pd = MADE(ibv_alloc_pd(context));
    td = MADE(ibv_alloc_td(context, &thread));
    struct ibv_parent_domain_init_attr domains = {.pd = pd, .td = td};
    parent = MADE(ibv_alloc_parent_domain(context, &domains));
    mr = MADE(ibv_reg_mr(parent, memory, sizeof memory,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                         IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING));
    cq = MADE(ibv_create_cq_ex(context, &attr));
    IS(cq->cqe, 64);
    IS(cq->cq_context == memory, 1);
}

static struct ibv_qp *queue_pair(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .pd = parent,
        .cap = {16, 16, 2, 2, 64}, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                          IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_WRITE};

    return MADE(ibv_create_qp_ex(context, &attr));
}

/* What the mask does not name is not there. */
static void masked(void)
{
    struct ibv_srq_init_attr_ex shared = {.attr = {8, 1, 0}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .pd = pd};
    struct ibv_qp_init_attr_ex attr = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq),
                                       .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1}, .pd = pd,
                                       .comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};

    IS(ibv_create_srq_ex(context, &shared) == NULL, 1);
    IS(errno, EINVAL);
    IS(ibv_create_qp_ex(context, &attr) == NULL, 1);
    IS(errno, EINVAL);
    /* And it may hold anything. */
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    attr.send_ops_flags = ~0ULL;
    IS(ibv_destroy_qp(MADE(ibv_create_qp_ex(context, &attr))), 0);
    attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    attr.create_flags = ~0U;
    IS(ibv_create_qp_ex(context, &attr) == NULL, 1);
    attr.comp_mask &= ~IBV_QP_INIT_ATTR_CREATE_FLAGS;
    IS(ibv_destroy_qp(MADE(ibv_create_qp_ex(context, &attr))), 0);
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    struct ibv_qp_init_attr init;

    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
                                .rq_psn = 7, .max_dest_rd_atomic = 2, .min_rnr_timer = 12,
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 9}}};
    IS(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), 0);
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7,
                                .rnr_retry = 7, .max_rd_atomic = 2};
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), 0);
    memset(&attr, 0xff, sizeof attr);
    IS(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV, &init), 0);
    IS(attr.qp_state, IBV_QPS_RTS);
    IS(attr.dest_qp_num, peer->qp_num);
    IS(attr.ah_attr.grh.hop_limit, 9);
    IS(attr.rq_psn, 7);
    IS(init.send_cq == ibv_cq_ex_to_cq(cq), 1);
    IS(init.qp_type, IBV_QPT_RC);
}

static void receive(struct ibv_qp *qp, uint64_t id, char *at, uint32_t length)
{
    struct ibv_sge piece = {(uintptr_t)at, length, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &piece, .num_sge = 1}, *bad = NULL;

    IS(ibv_post_recv(qp, &wr, &bad), 0);
    IS(bad == NULL, 1);
}

/* Wait for completions; their identifiers are added, and the operations of the last one remembered. */
static uint64_t completed(int count)
{
    struct ibv_poll_cq_attr attr = {0};
    uint64_t sum = 0;

    while (count) {
        int rc = ibv_start_poll(cq, &attr);

        if (rc == ENOENT)
            continue;
        IS(rc, 0);
        do {
            IS(cq->status, IBV_WC_SUCCESS);
            sum += cq->wr_id;
            if (ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM)
                IS(ntohl(ibv_wc_read_imm_data(cq)), 0x01020304);
            if (ibv_wc_read_opcode(cq) == IBV_WC_RECV && cq->wr_id == 2)
                IS(ibv_wc_read_byte_len(cq), 300);
            count--;
        } while (count && !(rc = ibv_next_poll(cq)));
        ibv_end_poll(cq);
    }
    return sum;
}

/* An ATOMIC WRITE, by each way of posting. */
static void atomic_writes(struct ibv_qp_ex *ex, uint64_t *counter)
{
    static uint64_t value = 43;
    struct ibv_sge piece = {(uintptr_t)memory + SIZE, 8, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_ATOMIC_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)counter, mr->rkey}}, *bad;

    ibv_wr_start(ex);
    ex->wr_id = 1;
    ibv_wr_atomic_write(ex, mr->rkey, (uintptr_t)counter, &value);
    IS(ibv_wr_complete(ex), 0);
    IS(completed(1), 1);
    IS(*counter, 43);
    *(uint64_t *)(memory + SIZE) = 44;
    IS(ibv_post_send(&ex->qp_base, &wr, &bad), 0);
    IS(completed(1), 2);
    IS(*counter, 44);
}

/* What programs look at when they begin. */
static void details(void)
{
    struct ibv_device_attr attr;
    struct ibv_cq *deep;

    IS(ibv_query_device(context, &attr), 0);
    IS(attr.max_cqe, 4194304);
    deep = MADE(ibv_create_cq(context, 262144, NULL, NULL, 0));
    IS(deep->cqe >= 262144, 1);
    IS(ibv_destroy_cq(deep), 0);
    IS(fcntl(context->cmd_fd, F_GETFD) >= 0, 1);
}

static void work(struct ibv_qp *near, struct ibv_qp *far)
{
    struct ibv_qp_ex *ex = MADE(ibv_qp_to_qp_ex(near));
    struct ibv_sge two[2] = {{(uintptr_t)memory, 100, mr->lkey}, {(uintptr_t)memory + 1000, 200, mr->lkey}};
    char *there = memory + 2 * SIZE;
    uint64_t *counter = (uint64_t *)(memory + 3 * SIZE);

    for (int i = 0; i < SIZE; i++)
        memory[i] = i * 31;
    *counter = 40;
    receive(far, 2, there, SIZE);
    receive(far, 4, there + 1024, SIZE - 1024);
    ibv_wr_start(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ex->wr_id = 16;
    ibv_wr_send(ex);
    ibv_wr_set_sge_list(ex, 2, two);
    ex->wr_id = 32;
    ibv_wr_send_imm(ex, htonl(0x01020304));
    ibv_wr_set_inline_data(ex, "inline", 6);
    ex->wr_id = 64;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)there + 2048);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 512);
    ex->wr_id = 128;
    ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)there + 2048);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + SIZE, 512);
    ex->wr_id = 256;
    ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)counter, 2);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + SIZE + 512, 8);
    IS(ibv_wr_complete(ex), 0);
    IS(completed(7), 2 + 4 + 16 + 32 + 64 + 128 + 256);
    IS(memcmp(there, memory, 100), 0);
    IS(memcmp(there + 100, memory + 1000, 200), 0);
    IS(memcmp(there + 1024, "inline", 6), 0);
    IS(memcmp(there + 2048, memory, 512), 0);
    IS(memcmp(memory + SIZE, memory, 512), 0);
    IS(*counter, 42);
    IS(*(uint64_t *)(memory + SIZE + 512), 40);
    atomic_writes(ex, counter);
    /* A batch is dropped, or refused as a whole. */
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_abort(ex);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_sge(ex, mr->lkey + 1, (uintptr_t)memory, 8);
    ibv_wr_local_inv(ex, 1);
    IS(ibv_wr_complete(ex), EINVAL);
    /* What a builder refuses is not posted without it. */
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_sge_list(ex, 99, two);
    IS(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, memory, (size_t)1 << 40);
    IS(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    IS(ibv_wr_complete(ex), 0);
    IS(ibv_start_poll(cq, &(struct ibv_poll_cq_attr){0}), ENOENT);
}

static void tables(void)
{
    struct ibv_device_attr_ex device;
    struct ibv_gid_entry entries[300], entry;
    struct ibv_port_attr port;
    union ibv_gid gid;

    memset(&device, 0xff, sizeof device);
    IS(ibv_query_device_ex(context, NULL, &device), 0);
    IS(device.phys_port_cnt_ex, 1);
    IS(device.orig_attr.max_qp_wr > 0, 1);
    IS(device.tso_caps.max_tso, 0);
    IS(ibv_query_gid(context, 1, 0, &gid), 0);
    IS(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
    IS(memcmp(&entry.gid, &gid, sizeof gid), 0);
    IS(ibv_query_gid_table(context, entries, 300, 0), 4);
    IS(memcmp(&entries[0].gid, &gid, sizeof gid), 0);
    IS(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
    IS(ibv_query_port(context, 1, &port), 0);
    IS(port.state, IBV_PORT_ACTIVE);
    IS(ibv_query_port(context, 2, &port), EINVAL);
}

/* A shared receive queue that has fewer receives than its limit raises an event. */
static void event(void)
{
    struct ibv_srq_init_attr wanted = {.attr = {4, 1, 0}};
    struct ibv_srq *srq = MADE(ibv_create_srq(parent, &wanted));
    struct ibv_srq_attr attr = {.srq_limit = 1};
    struct ibv_qp_init_attr init = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq,
                                    .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *far = MADE(ibv_create_qp(parent, &init)), *near = queue_pair();
    struct ibv_sge piece = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &piece, .num_sge = 1}, *bad = NULL;
    struct pollfd descriptor = {context->async_fd, POLLIN};
    struct ibv_async_event found;

    join(near, far);
    join(far, near);
    IS(ibv_post_srq_recv(srq, &wr, &bad), 0);
    IS(bad == NULL, 1);
    IS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
    IS(poll(&descriptor, 1, 0), 0);
    struct ibv_send_wr send = {.wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *badSend = NULL;
    IS(ibv_post_send(near, &send, &badSend), 0);
    IS(badSend == NULL, 1);
    IS(completed(2), 3);
    IS(poll(&descriptor, 1, -1), 1);
    IS(ibv_get_async_event(context, &found), 0);
    IS(found.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    IS(found.element.srq == srq, 1);
    ibv_ack_async_event(&found);
    IS(ibv_destroy_qp(near), 0);
    IS(ibv_destroy_qp(far), 0);
    IS(ibv_destroy_srq(srq), 0);
}

/* Device memory is written by a copy, and by a peer, who counts from the region's first octet. */
static void device_memory(struct ibv_qp *near)
{
    struct ibv_alloc_dm_attr attr = {.length = 128, .log_align_req = 6}, most = {.length = 1};
    struct ibv_device_attr_ex device;
    char text[16] = "a text of the 16", found[16];

    IS(ibv_query_device_ex(context, NULL, &device), 0);
    most.length = device.max_dm_size + 1;
    IS(ibv_alloc_dm(context, &most) == NULL, 1);
    IS(errno, EINVAL);
    struct ibv_dm *dm = MADE(ibv_alloc_dm(context, &attr));
    IS(ibv_memcpy_to_dm(dm, 64, text, 16), 0);
    IS(ibv_memcpy_from_dm(found, dm, 64, 16), 0);
    IS(memcmp(found, text, 16), 0);
    IS(ibv_memcpy_to_dm(dm, 2, text, 4), EINVAL);
    IS(ibv_memcpy_from_dm(found, dm, 124, 8), EINVAL);
    IS(ibv_reg_dm_mr(pd, dm, 64, 68, IBV_ACCESS_ZERO_BASED) == NULL, 1);
    IS(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE) == NULL, 1);
    struct ibv_mr *region = MADE(ibv_reg_dm_mr(parent, dm, 64, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE |
                                               IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING));
    IS(region->addr == NULL && region->length == 64, 1);
    IS(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), IBV_REREG_MR_ERR_INPUT);
    IS(errno, EINVAL);
    IS(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 64, 0), IBV_REREG_MR_ERR_INPUT);
    IS(errno, EINVAL);
    memcpy(memory, "by the peer", 12);
    struct ibv_sge piece = {(uintptr_t)memory, 12, mr->lkey};
    struct ibv_send_wr write = {.wr_id = 77, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {16, region->rkey}}, *bad;
    IS(ibv_post_send(near, &write, &bad), 0);
    IS(completed(1), 77);
    IS(ibv_memcpy_from_dm(found, dm, 80, 12), 0);
    IS(memcmp(found, memory, 12), 0);
    IS(ibv_free_dm(dm), EBUSY);
    IS(ibv_dereg_mr(region), 0);
    IS(ibv_free_dm(dm), 0);
    IS(ibv_free_dm(dm), EINVAL);
    IS(ibv_memcpy_from_dm(found, dm, 0, 4), EINVAL);
}

/* Names and paths of a device are those of sysfs; entries of its tables are shown, and refused, one by one. */
static void named(void)
{
    struct ibv_device *device = context->device;
    struct ibv_device_attr attr;
    struct ibv_gid_entry entries[4], entry;
    union ibv_gid gid, none = {{0}};
    int type = 9, index = ibv_get_device_index(device);
    char own[80];
    uint16_t pkey = 0;

    IS(strcmp(ibv_get_device_name(device), "shm0"), 0);
    IS(index >= 0, 1);
    snprintf(own, sizeof own, "/sys/class/infiniband_verbs/uverbs%d", index);
    IS(strcmp(device->dev_path, own), 0);
    IS(strcmp(device->dev_name, strrchr(own, '/') + 1), 0);
    IS(strcmp(device->ibdev_path, "/sys/class/infiniband/shm0"), 0);
    IS(device->node_type, IBV_NODE_CA);
    IS(device->transport_type, IBV_TRANSPORT_IB);
    IS(context->num_comp_vectors, 1);
    IS(ibv_query_device(context, &attr), 0);
    IS(attr.node_guid && ibv_get_device_guid(device) == attr.node_guid, 1);
    IS(attr.atomic_cap, IBV_ATOMIC_HCA);
    IS(attr.fw_ver[0] != 0, 1);
    IS(ibv_query_gid(context, 1, 1, &gid), 0);
    IS(memcmp(&gid, &none, sizeof gid) != 0, 1);
    IS(ibv_query_gid_table(context, entries, 3, 0), -EINVAL);
    IS(ibv_query_gid_table(context, entries, 4, 0), 4);
    /* Programs take slot 3 by default, where adapters have the IPv4 address by RoCE v2. */
    for (int slot = 1; slot < 4; slot += 2) {
        IS(memcmp(&entries[slot].gid, &gid, sizeof gid), 0);
        IS(entries[slot].gid_index, slot);
        IS(entries[slot].port_num, 1);
        IS(entries[slot].gid_type, IBV_GID_TYPE_ROCE_V2);
    }
    IS(ibv_query_gid(context, 1, 3, &gid), 0);
    IS(memcmp(&entries[1].gid, &gid, sizeof gid), 0);
    IS(ibv_query_gid_ex(context, 1, 3, &entry, 0), 0);
    /* The GIDs of addresses are those of every process. */
    IS(ibv_query_gid(context, 1, 4, &gid), 0);
    IS(memcmp(&gid, &none, sizeof gid), 0);
    IS(ibv_query_gid_ex(context, 1, 4, &entry, 0), ENODATA);
    IS(ibv_query_gid_type(context, 1, 0, &type), 0);
    IS(type, 1);
    IS(ibv_query_pkey(context, 1, 0, &pkey), 0);
    IS(pkey, 0xffff);
    IS(ibv_query_pkey(context, 1, 9999, &pkey), -1);
    IS(ibv_get_pkey_index(context, 1, 0xffff), 0);
    IS(ibv_get_pkey_index(context, 1, 0x7fff), -1);
    IS(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    IS(ibv_read_sysfs_file("/sys", "node_type", own, sizeof own), -1);
}

/* A structure is filled as far as the program's goes, by an older header or a newer one. */
static void sized(void)
{
    static unsigned char room[sizeof(struct ibv_port_attr) + 65537];
    struct verbs_context *whole = verbs_get_ctx(context);
    struct ibv_port_attr port, *at = (void *)room;

    memset(room, 0xff, sizeof room);
    IS(ibv_query_port(context, 1, &port), 0);
    IS(whole->query_port(context, 1, at, 8), 0);
    IS(memcmp(room, &port, 8), 0);
    IS(room[8], 0xff);
    IS(whole->query_port(context, 1, at, sizeof room), EINVAL);
    IS(room[8], 0xff);
    IS(whole->query_port(context, 1, at, sizeof room - 1), 0);
    IS(memcmp(room, &port, sizeof port), 0);
    IS(room[sizeof port] || room[sizeof room - 2], 0);
    IS(room[sizeof room - 1], 0xff);
    /* The function of old programs, whose structure ends before the last field. */
    memset(room, 0xff, sizeof room);
    IS((ibv_query_port)(context, 1, (void *)room), 0);
    IS(at->port_cap_flags2, 0xffff);
    at->port_cap_flags2 = port.port_cap_flags2;
    IS(at->state, port.state);
    IS(at->active_mtu, port.active_mtu);
    IS(at->gid_tbl_len, port.gid_tbl_len);
    IS(at->link_layer, port.link_layer);
}

/* Attributes of queues are read back, and changed within what there is. */
static void attributes(struct ibv_qp *qp)
{
    struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {1, 0}};
    struct ibv_cq *other = MADE(ibv_create_cq(context, 8, NULL, NULL, 0));
    struct ibv_srq_init_attr wanted = {.attr = {4, 2, 0}, .srq_context = memory};
    struct ibv_srq *srq = MADE(ibv_create_srq(pd, &wanted));
    struct ibv_srq_attr limits = {0};
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    struct ibv_ece ece;

    IS(ibv_resize_cq(other, 100), 0);
    IS(other->cqe >= 100 && other->cqe < 1000, 1);
    IS(ibv_modify_cq(other, &moderate), 0);
    moderate.attr_mask = IBV_CQ_ATTR_MODERATE << 1;
    IS(ibv_modify_cq(other, &moderate), EINVAL);
    moderate.attr_mask = IBV_CQ_ATTR_MODERATE;
    moderate.moderate.cq_count = 65535;
    moderate.moderate.cq_period = 65535;
    IS(ibv_modify_cq(other, &moderate), 0);
    IS(ibv_destroy_cq(other), 0);
    IS(wanted.attr.max_wr >= 4 && wanted.attr.max_sge >= 2, 1);
    IS(srq->srq_context == memory && srq->pd == pd && srq->context == context, 1);
    limits.srq_limit = 3;
    IS(ibv_modify_srq(srq, &limits, IBV_SRQ_LIMIT), 0);
    IS(ibv_query_srq(srq, &limits), 0);
    IS(limits.max_wr, wanted.attr.max_wr);
    IS(limits.max_sge, wanted.attr.max_sge);
    IS(limits.srq_limit, 3);
    IS(ibv_destroy_srq(srq), 0);
    IS(ibv_query_qp(qp, &attr, -1, &init), 0);
    IS(attr.path_mtu, IBV_MTU_1024);
    IS(attr.sq_psn, 7);
    IS(attr.timeout, 14);
    IS(attr.retry_cnt, 7);
    IS(attr.rnr_retry, 7);
    IS(attr.min_rnr_timer, 12);
    IS(attr.max_rd_atomic, 2);
    IS(attr.max_dest_rd_atomic, 2);
    IS(attr.port_num, 1);
    IS(attr.sq_draining, 0);
    IS(attr.cap.max_send_wr, init.cap.max_send_wr);
    IS(init.cap.max_recv_sge, 2);
    IS(init.sq_sig_all, 0);
    IS(init.srq == NULL, 1);
    IS(ibv_query_ece(qp, &ece), EOPNOTSUPP);
    IS(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0), 0);
}

/* The address for replies, by a completion and, where it has one, the header in front of the datagram. */
static void replies(void)
{
    struct {
        struct ibv_grh grh;
        char data[8];
    } datagram = {{.version_tclass_flow = htonl(0x6abcdef1), .hop_limit = 3}};
    struct ibv_wc wc = {.wc_flags = 0, .slid = 17, .sl = 5, .dlid_path_bits = 3, .src_qp = 9};
    struct ibv_ah_attr attr;

    memset(&attr, 0xff, sizeof attr);
    IS(ibv_query_gid(context, 1, 0, &datagram.grh.sgid), 0);
    memset(&datagram.grh.dgid, 0x43, 16);
    IS(ibv_init_ah_from_wc(context, 1, &wc, &datagram.grh, &attr), 0);
    IS(attr.dlid, 17);
    IS(attr.sl, 5);
    IS(attr.src_path_bits, 3);
    IS(attr.port_num, 1);
    IS(attr.is_global || attr.static_rate || attr.grh.flow_label, 0);
    wc.wc_flags = IBV_WC_GRH;
    IS(ibv_init_ah_from_wc(context, 1, &wc, NULL, &attr), EINVAL);
    IS(ibv_init_ah_from_wc(context, 1, &wc, &datagram.grh, &attr), 0);
    IS(attr.is_global, 1);
    IS(attr.dlid, 17);
    IS(attr.grh.flow_label, 0xcdef1);
    IS(attr.grh.traffic_class, 0xab);
    IS(attr.grh.hop_limit, 255);
    IS(attr.grh.sgid_index, 0);
    IS(memcmp(&attr.grh.dgid, &datagram.grh.sgid, 16), 0);
    struct ibv_ah *ah = MADE(ibv_create_ah_from_wc(pd, &wc, &datagram.grh, 1));
    IS(ah->pd == pd && ah->context == context, 1);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_destroy_ah(ah), 0);
    IS(ibv_create_ah_from_wc(pd, &wc, NULL, 1) == NULL, 1);
    IS(errno, EINVAL);
}

int main(void)
{
    open_all();
    masked();
    struct ibv_qp *near = queue_pair(), *far = queue_pair();

    join(near, far);
    join(far, near);
    details();
    work(near, far);
    tables();
    named();
    sized();
    attributes(near);
    replies();
    event();
    device_memory(near);
    IS(ibv_destroy_qp(near), 0);
    IS(ibv_destroy_qp(far), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    IS(ibv_dereg_mr(mr), 0);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_dealloc_pd(parent), 0);
    IS(ibv_dealloc_td(td), 0);
    IS(ibv_dealloc_pd(pd), 0);
    IS(ibv_close_device(context), 0);
    return !!failures;
}
