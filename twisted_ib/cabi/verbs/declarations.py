"""
The structures of C{infiniband/verbs.h} for cffi: the fields that handlers use; the header gives the offsets.
"""

from __future__ import annotations

#: What the source includes, and Debian's package with it.
HEADERS = ("infiniband/verbs.h",)
PACKAGE = "libibverbs-dev"

SOURCE = """
#include <errno.h>
#include <infiniband/verbs.h>
"""

DECLARATIONS = """
union ibv_gid { uint8_t raw[16]; ...; };
struct ibv_device {
    int node_type; int transport_type; char name[...]; char dev_name[...]; char dev_path[...];
    char ibdev_path[...]; ...;
};
struct ibv_context_ops { ...; };
struct ibv_context {
    struct ibv_device *device; struct ibv_context_ops ops; int cmd_fd; int async_fd; int num_comp_vectors;
    void *abi_compat; ...;
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
"""

__all__ = ["DECLARATIONS", "HEADERS", "PACKAGE", "SOURCE"]
