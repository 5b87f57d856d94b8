"""
The structures of C{infiniband/verbs.h} for cffi: the fields that handlers use; the header gives the offsets.
"""

from __future__ import annotations

#: The headers of the source, and Debian's package with them.
HEADERS = ("infiniband/verbs.h",)
PACKAGE = "libibverbs-dev"

SOURCE = """
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Of interpreter.c. */
struct twisted_ib_sleep { int *fds, count, milliseconds, interrupted, slept, asleep; short *events; };
struct twisted_ib_sleep *twisted_ib_own_sleep(void);
void twisted_ib_renew(void);
extern volatile int twisted_ib_in_python, twisted_ib_over;

#include "looks.c"
#include "completions.c"
#include "postings.c"
#include "arrivals.c"
#include "present.c"
#include "early.c"
"""

DECLARATIONS = """
struct twisted_ib_sleep {
    int *fds; int count; int milliseconds; int interrupted; int slept; short *events; ...;
};
struct twisted_ib_sleep *twisted_ib_own_sleep(void);
void twisted_ib_renew(void);
extern volatile int twisted_ib_in_python;
extern volatile int twisted_ib_over;
extern volatile unsigned twisted_ib_busy;
uintptr_t twisted_ib_asker(void);
void twisted_ib_forget(void);
enum ibv_mw_type { IBV_MW_TYPE_1, ... };
enum ibv_wr_opcode { IBV_WR_RDMA_WRITE, ... };
union ibv_gid { uint8_t raw[16]; ...; };
struct ibv_device {
    int node_type; int transport_type; char name[...]; char dev_name[...]; char dev_path[...];
    char ibdev_path[...]; ...;
};
struct ibv_pd; struct ibv_mr; struct ibv_mw; struct ibv_cq; struct ibv_cq_ex; struct ibv_qp; struct ibv_qp_ex;
struct ibv_srq; struct ibv_ah; struct ibv_td; struct ibv_wc; struct ibv_send_wr; struct ibv_recv_wr;
struct ibv_mw_bind; struct ibv_port_attr; struct ibv_device_attr_ex; struct ibv_cq_init_attr_ex;
struct ibv_qp_init_attr_ex; struct ibv_srq_init_attr_ex; struct ibv_parent_domain_init_attr;
struct ibv_td_init_attr; struct ibv_modify_cq_attr; struct ibv_query_device_ex_input;
struct ibv_dm; struct ibv_alloc_dm_attr; struct ibv_wc_tm_info; struct ibv_poll_cq_attr;
struct ibv_context_ops {
    struct ibv_mw *(*alloc_mw)(struct ibv_pd *, enum ibv_mw_type);
    int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
    int (*dealloc_mw)(struct ibv_mw *);
    int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
    int (*req_notify_cq)(struct ibv_cq *, int);
    int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **); ...;
};
struct ibv_context {
    struct ibv_device *device; struct ibv_context_ops ops; int cmd_fd; int async_fd; int num_comp_vectors;
    void *abi_compat; ...;
};
struct verbs_context {
    struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *, struct ibv_dm *, uint64_t, size_t, unsigned int);
    struct ibv_dm *(*alloc_dm)(struct ibv_context *, struct ibv_alloc_dm_attr *);
    int (*free_dm)(struct ibv_dm *);
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
    int (*dealloc_td)(struct ibv_td *);
    struct ibv_td *(*alloc_td)(struct ibv_context *, struct ibv_td_init_attr *);
    int (*modify_cq)(struct ibv_cq *, struct ibv_modify_cq_attr *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    int (*query_device_ex)(
        struct ibv_context *, const struct ibv_query_device_ex_input *, struct ibv_device_attr_ex *, size_t);
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_srq *(*create_srq_ex)(struct ibv_context *, struct ibv_srq_init_attr_ex *);
    size_t sz; struct ibv_context context; ...;
};
struct ibv_device_attr {
    char fw_ver[64]; uint64_t node_guid; uint64_t sys_image_guid; uint64_t max_mr_size;
    uint64_t page_size_cap; uint32_t vendor_id; uint32_t vendor_part_id; uint32_t hw_ver; int max_qp;
    int max_qp_wr; unsigned int device_cap_flags; int max_sge; int max_sge_rd; int max_cq; int max_cqe;
    int max_mr; int max_pd; int max_qp_rd_atom; int max_ee_rd_atom; int max_res_rd_atom;
    int max_qp_init_rd_atom; int max_ee_init_rd_atom; int atomic_cap; int max_ee; int max_rdd; int max_mw;
    int max_raw_ipv6_qp; int max_raw_ethy_qp; int max_mcast_grp; int max_mcast_qp_attach;
    int max_total_mcast_qp_attach; int max_ah; int max_fmr; int max_map_per_fmr; int max_srq;
    int max_srq_wr; int max_srq_sge; uint16_t max_pkeys; uint8_t local_ca_ack_delay;
    uint8_t phys_port_cnt; ...;
};
struct _compat_ibv_port_attr;
struct ibv_port_attr {
    int state; int max_mtu; int active_mtu; int gid_tbl_len; uint32_t port_cap_flags; uint32_t max_msg_sz;
    uint32_t bad_pkey_cntr; uint32_t qkey_viol_cntr; uint16_t pkey_tbl_len; uint16_t lid; uint16_t sm_lid;
    uint8_t lmc; uint8_t max_vl_num; uint8_t sm_sl; uint8_t subnet_timeout; uint8_t init_type_reply;
    uint8_t active_width; uint8_t active_speed; uint8_t phys_state; uint8_t link_layer; uint8_t flags;
    uint16_t port_cap_flags2; ...;
};

struct ibv_gid_entry {
    union ibv_gid gid; uint32_t gid_index; uint32_t port_num; uint32_t gid_type; uint32_t ndev_ifindex; ...;
};
struct ibv_async_event {
    union {
        struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_srq *srq; struct ibv_wq *wq; int port_num;
    } element;
    int event_type;
};
struct ibv_odp_caps { uint64_t general_caps; ...; };
struct ibv_cq_moderation_caps { uint16_t max_cq_count; uint16_t max_cq_period; ...; };
struct ibv_pci_atomic_caps { uint16_t fetch_add; uint16_t swap; uint16_t compare_swap; ...; };
struct ibv_device_attr_ex {
    struct ibv_device_attr orig_attr; uint32_t comp_mask; struct ibv_odp_caps odp_caps;
    uint64_t completion_timestamp_mask; uint64_t hca_core_clock; uint64_t device_cap_flags_ex;
    struct ibv_cq_moderation_caps cq_mod_caps; uint64_t max_dm_size; uint32_t phys_port_cnt_ex; ...;
};
struct ibv_pd { struct ibv_context *context; uint32_t handle; ...; };
struct ibv_td { struct ibv_context *context; ...; };
struct ibv_td_init_attr { uint32_t comp_mask; ...; };
struct ibv_parent_domain_init_attr { struct ibv_pd *pd; struct ibv_td *td; uint32_t comp_mask; ...; };
struct ibv_mr {
    struct ibv_context *context; struct ibv_pd *pd; void *addr; size_t length; uint32_t handle; uint32_t lkey;
    uint32_t rkey; ...;
};
struct ibv_alloc_dm_attr { size_t length; uint32_t log_align_req; uint32_t comp_mask; };
struct ibv_dm {
    struct ibv_context *context;
    int (*memcpy_to_dm)(struct ibv_dm *, uint64_t, const void *, size_t);
    int (*memcpy_from_dm)(void *, struct ibv_dm *, uint64_t, size_t); uint32_t comp_mask; uint32_t handle;
    ...;
};
struct ibv_mw {
    struct ibv_context *context; struct ibv_pd *pd; uint32_t rkey; uint32_t handle; int type; ...;
};
struct ibv_mw_bind_info { struct ibv_mr *mr; uint64_t addr; uint64_t length; unsigned int mw_access_flags; };
struct ibv_mw_bind {
    uint64_t wr_id; unsigned int send_flags; struct ibv_mw_bind_info bind_info; ...;
};
struct ibv_comp_channel { struct ibv_context *context; int fd; int refcnt; ...; };
struct ibv_cq {
    struct ibv_context *context; struct ibv_comp_channel *channel; void *cq_context; uint32_t handle; int cqe;
    ...;
};
struct ibv_poll_cq_attr { uint32_t comp_mask; ...; };
struct twisted_ib_ring {
    uint64_t head; uint64_t tail; uint64_t more; struct ibv_wc *entries; uint64_t mask; unsigned int eager;
    unsigned int seldom; ...;
};
uint64_t twisted_ib_recall(struct twisted_ib_ring *);
void twisted_ib_fence(void);
struct ibv_cq_ex {
    struct ibv_context *context; struct ibv_comp_channel *channel; void *cq_context; uint32_t handle; int cqe;
    uint32_t comp_mask; int status; uint64_t wr_id;
    int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    int (*next_poll)(struct ibv_cq_ex *); void (*end_poll)(struct ibv_cq_ex *);
    unsigned int (*read_opcode)(struct ibv_cq_ex *); uint32_t (*read_vendor_err)(struct ibv_cq_ex *);
    uint32_t (*read_byte_len)(struct ibv_cq_ex *); uint32_t (*read_imm_data)(struct ibv_cq_ex *);
    uint32_t (*read_qp_num)(struct ibv_cq_ex *); uint32_t (*read_src_qp)(struct ibv_cq_ex *);
    unsigned int (*read_wc_flags)(struct ibv_cq_ex *); uint32_t (*read_slid)(struct ibv_cq_ex *);
    uint8_t (*read_sl)(struct ibv_cq_ex *); uint8_t (*read_dlid_path_bits)(struct ibv_cq_ex *); ...;
};
struct twisted_ib_cq {
    struct ibv_cq_ex cq; uint64_t self; struct twisted_ib_ring ring; int polling, single; ...;
};
struct ibv_cq_init_attr_ex {
    uint32_t cqe; void *cq_context; struct ibv_comp_channel *channel; uint32_t comp_vector; uint64_t wc_flags;
    uint32_t comp_mask; uint32_t flags; struct ibv_pd *parent_domain; ...;
};
struct ibv_moderate_cq { uint16_t cq_count; uint16_t cq_period; ...; };
struct ibv_modify_cq_attr { uint32_t attr_mask; struct ibv_moderate_cq moderate; ...; };
struct ibv_wc {
    uint64_t wr_id; int status; int opcode; uint32_t vendor_err; uint32_t byte_len;
    union { uint32_t imm_data; uint32_t invalidated_rkey; };
    uint32_t qp_num; uint32_t src_qp; unsigned int wc_flags; uint16_t pkey_index; uint16_t slid; uint8_t sl;
    uint8_t dlid_path_bits;
};
struct ibv_sge { uint64_t addr; uint32_t length; uint32_t lkey; };
struct ibv_recv_wr { uint64_t wr_id; struct ibv_recv_wr *next; struct ibv_sge *sg_list; int num_sge; };
struct ibv_send_wr {
    uint64_t wr_id; struct ibv_send_wr *next; struct ibv_sge *sg_list; int num_sge; int opcode;
    unsigned int send_flags;
    union { uint32_t imm_data; uint32_t invalidate_rkey; };
    union {
        struct { uint64_t remote_addr; uint32_t rkey; } rdma;
        struct { uint64_t remote_addr; uint64_t compare_add; uint64_t swap; uint32_t rkey; } atomic;
        struct { struct ibv_ah *ah; uint32_t remote_qpn; uint32_t remote_qkey; } ud;
    } wr;
    union { struct { uint32_t remote_srqn; } xrc; } qp_type;
    union {
        struct { struct ibv_mw *mw; uint32_t rkey; struct ibv_mw_bind_info bind_info; } bind_mw;
        struct { void *hdr; uint16_t hdr_sz; uint16_t mss; } tso;
    };
};
struct ibv_data_buf { void *addr; size_t length; };
struct ibv_qp_cap {
    uint32_t max_send_wr; uint32_t max_recv_wr; uint32_t max_send_sge; uint32_t max_recv_sge;
    uint32_t max_inline_data;
};
struct ibv_qp_init_attr {
    void *qp_context; struct ibv_cq *send_cq; struct ibv_cq *recv_cq; struct ibv_srq *srq;
    struct ibv_qp_cap cap; int qp_type; int sq_sig_all; ...;
};
struct ibv_qp_init_attr_ex {
    void *qp_context; struct ibv_cq *send_cq; struct ibv_cq *recv_cq; struct ibv_srq *srq;
    struct ibv_qp_cap cap; int qp_type; int sq_sig_all; uint32_t comp_mask; struct ibv_pd *pd;
    uint32_t create_flags;
    uint16_t max_tso_header; uint32_t source_qpn; uint64_t send_ops_flags; ...;
};
struct ibv_qp {
    struct ibv_context *context; void *qp_context; struct ibv_pd *pd; struct ibv_cq *send_cq;
    struct ibv_cq *recv_cq; struct ibv_srq *srq; uint32_t handle; uint32_t qp_num; int state; int qp_type;
    ...;
};
struct ibv_qp_ex {
    struct ibv_qp qp_base; uint64_t comp_mask; uint64_t wr_id; unsigned int wr_flags;
    void (*wr_atomic_cmp_swp)(struct ibv_qp_ex *, uint32_t, uint64_t, uint64_t, uint64_t);
    void (*wr_atomic_fetch_add)(struct ibv_qp_ex *, uint32_t, uint64_t, uint64_t);
    void (*wr_bind_mw)(struct ibv_qp_ex *, struct ibv_mw *, uint32_t, const struct ibv_mw_bind_info *);
    void (*wr_local_inv)(struct ibv_qp_ex *, uint32_t);
    void (*wr_rdma_read)(struct ibv_qp_ex *, uint32_t, uint64_t);
    void (*wr_rdma_write)(struct ibv_qp_ex *, uint32_t, uint64_t);
    void (*wr_rdma_write_imm)(struct ibv_qp_ex *, uint32_t, uint64_t, uint32_t);
    void (*wr_send)(struct ibv_qp_ex *);
    void (*wr_send_imm)(struct ibv_qp_ex *, uint32_t);
    void (*wr_send_inv)(struct ibv_qp_ex *, uint32_t);
    void (*wr_send_tso)(struct ibv_qp_ex *, void *, uint16_t, uint16_t);
    void (*wr_set_ud_addr)(struct ibv_qp_ex *, struct ibv_ah *, uint32_t, uint32_t);
    void (*wr_set_xrc_srqn)(struct ibv_qp_ex *, uint32_t);
    void (*wr_set_inline_data)(struct ibv_qp_ex *, void *, size_t);
    void (*wr_set_inline_data_list)(struct ibv_qp_ex *, size_t, const struct ibv_data_buf *);
    void (*wr_set_sge)(struct ibv_qp_ex *, uint32_t, uint64_t, uint32_t);
    void (*wr_set_sge_list)(struct ibv_qp_ex *, size_t, const struct ibv_sge *);
    void (*wr_start)(struct ibv_qp_ex *);
    int (*wr_complete)(struct ibv_qp_ex *);
    void (*wr_abort)(struct ibv_qp_ex *); ...;
};
struct twisted_ib_queue {
    uint64_t posted; uint64_t limit; unsigned int elements; unsigned int inlined; unsigned int operations;
    unsigned int urgent;
    ...;
};
struct twisted_ib_qp {
    struct ibv_qp_ex qp; uint64_t self; struct twisted_ib_queue sends; struct twisted_ib_queue receives; ...;
};
struct twisted_ib_posting {
    unsigned char *buffers[2]; unsigned int size; unsigned int fill; unsigned int turn; unsigned int least;
    unsigned int attending; unsigned int owed;
    ...;
};
extern struct twisted_ib_posting twisted_ib_posting;
unsigned int twisted_ib_swap(void);
void twisted_ib_suspend(struct twisted_ib_queue *);
void twisted_ib_look_for_handlers(void);
struct twisted_ib_arrivals {
    const uint64_t **published; const uint64_t **consumed; unsigned int count; long spin;
    unsigned int hits, turns; const int *fds; unsigned int watched; const uint64_t **read;
};
extern volatile unsigned int twisted_ib_polling;
long twisted_ib_nap(long, int);
int twisted_ib_await(struct twisted_ib_arrivals *, long);
int twisted_ib_serves_no_more(void);
uint64_t twisted_ib_read(void);
struct ibv_global_route {
    union ibv_gid dgid; uint32_t flow_label; uint8_t sgid_index; uint8_t hop_limit; uint8_t traffic_class;
    ...;
};
struct ibv_ah_attr {
    struct ibv_global_route grh; uint16_t dlid; uint8_t sl; uint8_t src_path_bits; uint8_t static_rate;
    uint8_t is_global; uint8_t port_num; ...;
};
struct ibv_ah { struct ibv_context *context; struct ibv_pd *pd; uint32_t handle; ...; };
struct ibv_grh;
struct ibv_qp_attr {
    int qp_state; int cur_qp_state; int path_mtu; int path_mig_state; uint32_t qkey; uint32_t rq_psn;
    uint32_t sq_psn; uint32_t dest_qp_num; unsigned int qp_access_flags; struct ibv_qp_cap cap;
    struct ibv_ah_attr ah_attr; struct ibv_ah_attr alt_ah_attr; uint16_t pkey_index; uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify; uint8_t sq_draining; uint8_t max_rd_atomic; uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer; uint8_t port_num; uint8_t timeout; uint8_t retry_cnt; uint8_t rnr_retry;
    uint8_t alt_port_num; uint8_t alt_timeout; uint32_t rate_limit; ...;
};
struct ibv_srq_attr { uint32_t max_wr; uint32_t max_sge; uint32_t srq_limit; };
struct ibv_srq_init_attr { void *srq_context; struct ibv_srq_attr attr; ...; };
struct ibv_srq_init_attr_ex {
    void *srq_context; struct ibv_srq_attr attr; uint32_t comp_mask; int srq_type; struct ibv_pd *pd; ...;
};
struct ibv_srq { struct ibv_context *context; void *srq_context; struct ibv_pd *pd; uint32_t handle; ...; };
struct twisted_ib_srq { struct ibv_srq srq; uint64_t self; struct twisted_ib_queue receives; ...; };
struct ibv_ece { uint32_t vendor_id; uint32_t options; uint32_t comp_mask; ...; };
"""
