"""
Constants of hardware features: flow steering, work queues, tag matching, by their C names.

They are here for programs that name them; no device supports any of it.  Enumerations that nothing of this
package needs, of these features or others, are declared as in C.

Source: rdma-core 65: C{libibverbs/verbs.h}, C{libibverbs/verbs_api.h}, C{libibverbs/tm_types.h},
C{ib_user_ioctl_verbs.h}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from twisted_ib.verbs.pyverbs.enums.declaring import declared


class ibv_wq_type(IntEnum):
    """
    The kinds of work queue.
    """

    IBV_WQT_RQ = 0


class ibv_flow_attr_type(IntEnum):
    """
    The kinds of flow rules.
    """

    IBV_FLOW_ATTR_NORMAL = 0
    IBV_FLOW_ATTR_ALL_DEFAULT = 1
    IBV_FLOW_ATTR_MC_DEFAULT = 2
    IBV_FLOW_ATTR_SNIFFER = 3


# libibverbs/verbs.h: the cipher of an ESP action, and the generation of initialization vectors.
IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM = 0
IBV_FLOW_ACTION_IV_ALGO_SEQ = 0

# Replay protection of an ESP action.
IBV_FLOW_ACTION_ESP_REPLAY_NONE = 0
IBV_FLOW_ACTION_ESP_REPLAY_BMP = 1

# libibverbs/verbs.h: flags of an ESP action.  A zero names the other value of the bit that follows it.
IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = 0
IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = 1
IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL = 0
IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT = 2
IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT = 0
IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT = 4
IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = 8


class ibv_ops_wr_opcode(IntEnum):
    """
    Operations of a tag matching queue.
    """

    IBV_WR_TAG_ADD = 0
    IBV_WR_TAG_DEL = 1
    IBV_WR_TAG_SYNC = 2


class ibv_ops_flags(IntFlag):
    """
    Flags of an operation of a tag matching queue.
    """

    IBV_OPS_SIGNALED = 0x1
    IBV_OPS_TM_SYNC = 0x2


_DECLARED = """
# The kernel driver of a device (C{ib_user_ioctl_verbs.h}).
# irdma replaced i40iw and took its number: an alias.
enum rdma_driver_id {
    RDMA_DRIVER_UNKNOWN, RDMA_DRIVER_MLX5, RDMA_DRIVER_MLX4, RDMA_DRIVER_CXGB3, RDMA_DRIVER_CXGB4,
    RDMA_DRIVER_MTHCA, RDMA_DRIVER_BNXT_RE, RDMA_DRIVER_OCRDMA, RDMA_DRIVER_NES, RDMA_DRIVER_I40IW,
    RDMA_DRIVER_IRDMA = 9, RDMA_DRIVER_VMW_PVRDMA, RDMA_DRIVER_QEDR, RDMA_DRIVER_HNS, RDMA_DRIVER_USNIC,
    RDMA_DRIVER_RXE, RDMA_DRIVER_HFI1, RDMA_DRIVER_QIB, RDMA_DRIVER_EFA, RDMA_DRIVER_SIW, RDMA_DRIVER_ERDMA,
    RDMA_DRIVER_MANA, RDMA_DRIVER_IONIC };
# Raw packet capabilities.
flags ibv_raw_packet_caps {
    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 0x1, IBV_RAW_PACKET_CAP_SCATTER_FCS = 0x2,
    IBV_RAW_PACKET_CAP_IP_CSUM = 0x4, IBV_RAW_PACKET_CAP_DELAY_DROP = 0x8 };
# The transports with tag matching.
flags ibv_tm_cap_flags { IBV_TM_CAP_RC = 0x1 };
# Errors of a re-registration, by the state that the region is left in.
# man ibv_rereg_mr(3): the old region is valid after the first two, the new one after the third, and none
# after the last two.
enum ibv_rereg_mr_err_code {
    IBV_REREG_MR_ERR_INPUT = -1, IBV_REREG_MR_ERR_DONT_FORK_NEW = -2, IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
    IBV_REREG_MR_ERR_CMD = -4, IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5 };
# Which attributes of an extended registration are valid.
flags ibv_mr_init_attr_mask {
    IBV_REG_MR_MASK_IOVA = 0x1, IBV_REG_MR_MASK_ADDR = 0x2, IBV_REG_MR_MASK_FD = 0x4,
    IBV_REG_MR_MASK_FD_OFFSET = 0x8, IBV_REG_MR_MASK_DMAH = 0x10, IBV_REG_MR_MASK_BUF = 0x20 };
# Which attributes of device memory are valid.
flags ibv_dm_mask { IBV_DM_MASK_HANDLE = 0x1 };
# Which attributes of a DMA handle are valid.
flags ibv_dmah_init_attr_mask {
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 0x1, IBV_DMAH_INIT_ATTR_MASK_PH = 0x2,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 0x4 };
# Which attributes of an XRC domain are valid.
flags ibv_xrcd_init_attr_mask {
    IBV_XRCD_INIT_ATTR_FD = 0x1, IBV_XRCD_INIT_ATTR_OFLAGS = 0x2, IBV_XRCD_INIT_ATTR_RESERVED = 0x4 };
# The values that C{ibv_query_rt_values_ex} is asked for.
flags ibv_values_mask { IBV_VALUES_MASK_RAW_CLOCK = 0x1, IBV_VALUES_MASK_RESERVED = 0x2 };
# Which attributes of opening a shared queue pair are valid.
flags ibv_qp_open_attr_mask {
    IBV_QP_OPEN_ATTR_NUM = 0x1, IBV_QP_OPEN_ATTR_XRCD = 0x2, IBV_QP_OPEN_ATTR_CONTEXT = 0x4,
    IBV_QP_OPEN_ATTR_TYPE = 0x8, IBV_QP_OPEN_ATTR_RESERVED = 0x10 };
# Flags of the query whether data are written in order.
flags ibv_query_qp_data_in_order_flags {
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 0x1, IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 0x2 };
# The units that are written in order.
flags ibv_query_qp_data_in_order_caps {
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 0x1, IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 0x2 };
# FLUSH: the place that data must have reached.
flags ibv_placement_type { IBV_FLUSH_GLOBAL = 0x1, IBV_FLUSH_PERSISTENT = 0x2 };
# FLUSH: a range or a whole region.
enum ibv_selectivity_level { IBV_FLUSH_RANGE, IBV_FLUSH_MR };
# The operations that a completion counter counts.
flags ibv_qp_attach_comp_cntr_op {
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 0x1, IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 0x2,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 0x4, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 0x8,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 0x10, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 0x20 };
# The unit of a completion counter.
enum ibv_comp_cntr_type { IBV_COMP_CNTR_TYPE_WRS, IBV_COMP_CNTR_TYPE_BYTES };
# The states of a work queue.
enum ibv_wq_state { IBV_WQS_RESET, IBV_WQS_RDY, IBV_WQS_ERR, IBV_WQS_UNKNOWN };
# Flags of a work queue.
flags ibv_wq_flags {
    IBV_WQ_FLAGS_CVLAN_STRIPPING = 0x1, IBV_WQ_FLAGS_SCATTER_FCS = 0x2, IBV_WQ_FLAGS_DELAY_DROP = 0x4,
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 0x8, IBV_WQ_FLAGS_RESERVED = 0x10 };
# Which attributes of a new work queue are valid.
flags ibv_wq_init_attr_mask { IBV_WQ_INIT_ATTR_FLAGS = 0x1, IBV_WQ_INIT_ATTR_RESERVED = 0x2 };
# Which attributes a modify of a work queue sets.
flags ibv_wq_attr_mask {
    IBV_WQ_ATTR_STATE = 0x1, IBV_WQ_ATTR_CURR_STATE = 0x2, IBV_WQ_ATTR_FLAGS = 0x4,
    IBV_WQ_ATTR_RESERVED = 0x8 };
# Which attributes of a new indirection table are valid.
flags ibv_ind_table_init_attr_mask { IBV_CREATE_IND_TABLE_RESERVED = 0x1 };
# The hash functions of receive side scaling.
flags ibv_rx_hash_function_flags { IBV_RX_HASH_FUNC_TOEPLITZ = 0x1 };
# The header fields that receive side scaling hashes.  With INNER they are the inner ones of a tunnel.
flags ibv_rx_hash_fields {
    IBV_RX_HASH_SRC_IPV4 = 0x1, IBV_RX_HASH_DST_IPV4 = 0x2, IBV_RX_HASH_SRC_IPV6 = 0x4,
    IBV_RX_HASH_DST_IPV6 = 0x8, IBV_RX_HASH_SRC_PORT_TCP = 0x10, IBV_RX_HASH_DST_PORT_TCP = 0x20,
    IBV_RX_HASH_SRC_PORT_UDP = 0x40, IBV_RX_HASH_DST_PORT_UDP = 0x80, IBV_RX_HASH_IPSEC_SPI = 0x100,
    IBV_RX_HASH_INNER = 0x80000000 };
# Flags of a flow rule.
flags ibv_flow_flags { IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 0x2, IBV_FLOW_ATTR_FLAGS_EGRESS = 0x4 };
# The headers that a part of a flow rule matches, or its action.  INNER is a flag beside a header.
enum ibv_flow_spec_type {
    IBV_FLOW_SPEC_ETH = 0x20, IBV_FLOW_SPEC_IPV4 = 0x30, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_IPV4_EXT,
    IBV_FLOW_SPEC_ESP = 0x34, IBV_FLOW_SPEC_TCP = 0x40, IBV_FLOW_SPEC_UDP,
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_MPLS = 0x60,
    IBV_FLOW_SPEC_INNER = 0x100, IBV_FLOW_SPEC_ACTION_TAG = 0x1000, IBV_FLOW_SPEC_ACTION_DROP,
    IBV_FLOW_SPEC_ACTION_HANDLE, IBV_FLOW_SPEC_ACTION_COUNT };
# Which attributes of an ESP action are valid.
flags ibv_flow_action_esp_mask { IBV_FLOW_ACTION_ESP_MASK_ESN = 0x1 };
# The quantity that a flow counter counts.
enum ibv_counter_description { IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES };
# Flags of reading flow counters.
flags ibv_read_counters_flags { IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 0x1 };
# Operations in a tag matching header, on the wire in front of the payload (libibverbs/tm_types.h).
enum ibv_tmh_op { IBV_TMH_NO_TAG, IBV_TMH_RNDV, IBV_TMH_FIN, IBV_TMH_EAGER };
"""

globals().update(declared(__name__, _DECLARED))
