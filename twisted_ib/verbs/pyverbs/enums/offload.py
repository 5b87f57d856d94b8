"""
Constants of hardware features: flow steering, work queues, tag matching, by their C names.

They are here for programs that name them; no device supports any of it.

Source: rdma-core 65: C{libibverbs/verbs.h}, C{libibverbs/verbs_api.h}, C{libibverbs/tm_types.h}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class ibv_wq_type(IntEnum):
    """
    The kinds of work queue.
    """

    IBV_WQT_RQ = 0


class ibv_wq_state(IntEnum):
    """
    The states of a work queue.
    """

    IBV_WQS_RESET = 0
    IBV_WQS_RDY = 1
    IBV_WQS_ERR = 2
    IBV_WQS_UNKNOWN = 3


class ibv_wq_flags(IntFlag):
    """
    Flags of a work queue.
    """

    IBV_WQ_FLAGS_CVLAN_STRIPPING = 0x1
    IBV_WQ_FLAGS_SCATTER_FCS = 0x2
    IBV_WQ_FLAGS_DELAY_DROP = 0x4
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 0x8
    IBV_WQ_FLAGS_RESERVED = 0x10


class ibv_wq_init_attr_mask(IntFlag):
    """
    Which attributes of a new work queue are valid.
    """

    IBV_WQ_INIT_ATTR_FLAGS = 0x1
    IBV_WQ_INIT_ATTR_RESERVED = 0x2


class ibv_wq_attr_mask(IntFlag):
    """
    Which attributes a modify of a work queue sets.
    """

    IBV_WQ_ATTR_STATE = 0x1
    IBV_WQ_ATTR_CURR_STATE = 0x2
    IBV_WQ_ATTR_FLAGS = 0x4
    IBV_WQ_ATTR_RESERVED = 0x8


class ibv_ind_table_init_attr_mask(IntFlag):
    """
    Which attributes of a new indirection table are valid.
    """

    IBV_CREATE_IND_TABLE_RESERVED = 0x1


class ibv_rx_hash_function_flags(IntFlag):
    """
    The hash functions of receive side scaling.
    """

    IBV_RX_HASH_FUNC_TOEPLITZ = 0x1


class ibv_rx_hash_fields(IntFlag):
    """
    The header fields that receive side scaling hashes.
    """

    IBV_RX_HASH_SRC_IPV4 = 0x1
    IBV_RX_HASH_DST_IPV4 = 0x2
    IBV_RX_HASH_SRC_IPV6 = 0x4
    IBV_RX_HASH_DST_IPV6 = 0x8
    IBV_RX_HASH_SRC_PORT_TCP = 0x10
    IBV_RX_HASH_DST_PORT_TCP = 0x20
    IBV_RX_HASH_SRC_PORT_UDP = 0x40
    IBV_RX_HASH_DST_PORT_UDP = 0x80
    IBV_RX_HASH_IPSEC_SPI = 0x100
    # The inner headers of a tunnel are meant by all other bits.
    IBV_RX_HASH_INNER = 0x80000000


class ibv_flow_flags(IntFlag):
    """
    Flags of a flow rule.
    """

    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 0x2
    IBV_FLOW_ATTR_FLAGS_EGRESS = 0x4


class ibv_flow_attr_type(IntEnum):
    """
    The kinds of flow rules.
    """

    IBV_FLOW_ATTR_NORMAL = 0
    IBV_FLOW_ATTR_ALL_DEFAULT = 1
    IBV_FLOW_ATTR_MC_DEFAULT = 2
    IBV_FLOW_ATTR_SNIFFER = 3


class ibv_flow_spec_type(IntEnum):
    """
    The headers that a part of a flow rule matches, or its action.
    """

    IBV_FLOW_SPEC_ETH = 0x20
    IBV_FLOW_SPEC_IPV4 = 0x30
    IBV_FLOW_SPEC_IPV6 = 0x31
    IBV_FLOW_SPEC_IPV4_EXT = 0x32
    IBV_FLOW_SPEC_ESP = 0x34
    IBV_FLOW_SPEC_TCP = 0x40
    IBV_FLOW_SPEC_UDP = 0x41
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50
    IBV_FLOW_SPEC_GRE = 0x51
    IBV_FLOW_SPEC_MPLS = 0x60
    # A flag, to be combined with one of the headers above.
    IBV_FLOW_SPEC_INNER = 0x100
    IBV_FLOW_SPEC_ACTION_TAG = 0x1000
    IBV_FLOW_SPEC_ACTION_DROP = 0x1001
    IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002
    IBV_FLOW_SPEC_ACTION_COUNT = 0x1003


class ibv_flow_action_esp_mask(IntFlag):
    """
    Which attributes of an ESP action are valid.
    """

    IBV_FLOW_ACTION_ESP_MASK_ESN = 0x1


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


class ibv_counter_description(IntEnum):
    """
    The quantity that a flow counter counts.
    """

    IBV_COUNTER_PACKETS = 0
    IBV_COUNTER_BYTES = 1


class ibv_read_counters_flags(IntFlag):
    """
    Flags of reading flow counters.
    """

    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 0x1


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


class ibv_tmh_op(IntEnum):
    """
    Operations in a tag matching header.
    """

    # libibverbs/tm_types.h: octets on the wire, in front of the payload.
    IBV_TMH_NO_TAG = 0
    IBV_TMH_RNDV = 1
    IBV_TMH_FIN = 2
    IBV_TMH_EAGER = 3
