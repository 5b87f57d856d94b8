"""
Constants of devices, ports, memory and events, by their C names.

Source: rdma-core 65: C{libibverbs/verbs.h}, C{libibverbs/driver.h}, and the kernel headers that they include.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class ibv_node_type(IntEnum):
    """
    The kind of a device in the network.
    """

    IBV_NODE_UNKNOWN = -1
    # IBTA vol. 1 14.2.5.3, NodeInfo NodeType: 1 to 3; the others are Linux's.
    IBV_NODE_CA = 1
    IBV_NODE_SWITCH = 2
    IBV_NODE_ROUTER = 3
    IBV_NODE_RNIC = 4
    IBV_NODE_USNIC = 5
    IBV_NODE_USNIC_UDP = 6
    IBV_NODE_UNSPECIFIED = 7


class ibv_transport_type(IntEnum):
    """
    The transport protocol of a device.
    """

    IBV_TRANSPORT_UNKNOWN = -1
    # RoCE devices have this one, too: it is InfiniBand's transport over UDP (IBTA vol. 1 annex A17).
    IBV_TRANSPORT_IB = 0
    IBV_TRANSPORT_IWARP = 1
    IBV_TRANSPORT_USNIC = 2
    IBV_TRANSPORT_USNIC_UDP = 3
    IBV_TRANSPORT_UNSPECIFIED = 4


class ibv_device_cap_flags(IntFlag):
    """
    Capabilities of a device (C{device_cap_flags}; IBTA vol. 1 11.2.1.2).
    """

    IBV_DEVICE_RESIZE_MAX_WR = 0x1
    IBV_DEVICE_BAD_PKEY_CNTR = 0x2
    IBV_DEVICE_BAD_QKEY_CNTR = 0x4
    IBV_DEVICE_RAW_MULTI = 0x8
    IBV_DEVICE_AUTO_PATH_MIG = 0x10
    IBV_DEVICE_CHANGE_PHY_PORT = 0x20
    IBV_DEVICE_UD_AV_PORT_ENFORCE = 0x40
    IBV_DEVICE_CURR_QP_STATE_MOD = 0x80
    IBV_DEVICE_SHUTDOWN_PORT = 0x100
    IBV_DEVICE_INIT_TYPE = 0x200
    IBV_DEVICE_PORT_ACTIVE_EVENT = 0x400
    IBV_DEVICE_SYS_IMAGE_GUID = 0x800
    IBV_DEVICE_RC_RNR_NAK_GEN = 0x1000
    IBV_DEVICE_SRQ_RESIZE = 0x2000
    IBV_DEVICE_N_NOTIFY_CQ = 0x4000
    IBV_DEVICE_MEM_WINDOW = 0x20000
    IBV_DEVICE_UD_IP_CSUM = 0x40000
    IBV_DEVICE_XRC = 0x100000
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 0x200000
    # IBTA vol. 1 10.6.7.2: 2A is bound to a queue pair number, 2B to the queue pair and its domain.
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 0x800000
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = 0x1000000
    IBV_DEVICE_RC_IP_CSUM = 0x2000000
    IBV_DEVICE_RAW_IP_CSUM = 0x4000000
    IBV_DEVICE_MANAGED_FLOW_STEERING = 0x20000000


# libibverbs/verbs.h: bits of C{device_cap_flags_ex}, which has 64.
IBV_DEVICE_RAW_SCATTER_FCS = 0x400000000
IBV_DEVICE_PCI_WRITE_END_PADDING = 0x1000000000
IBV_DEVICE_CC_DMA_BOUNCE = 0x20000000000


class ibv_atomic_cap(IntEnum):
    """
    The scope in which a device's atomics are atomic: none, the device, the whole machine.
    """

    IBV_ATOMIC_NONE = 0
    IBV_ATOMIC_HCA = 1
    IBV_ATOMIC_GLOB = 2


class ibv_pci_atomic_op_size(IntFlag):
    """
    Sizes of atomic operations on the PCI bus.
    """

    IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 0x1
    IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 0x2
    IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 0x4


class ibv_fork_status(IntEnum):
    """
    Whether a process may fork while memory is registered.
    """

    IBV_FORK_DISABLED = 0
    IBV_FORK_ENABLED = 1
    IBV_FORK_UNNEEDED = 2


class ibv_odp_general_caps(IntFlag):
    """
    On-demand paging: general capabilities.
    """

    IBV_ODP_SUPPORT = 0x1
    IBV_ODP_SUPPORT_IMPLICIT = 0x2


class ibv_odp_transport_cap_bits(IntFlag):
    """
    On-demand paging: the operations of a transport that support it.
    """

    IBV_ODP_SUPPORT_SEND = 0x1
    IBV_ODP_SUPPORT_RECV = 0x2
    IBV_ODP_SUPPORT_WRITE = 0x4
    IBV_ODP_SUPPORT_READ = 0x8
    IBV_ODP_SUPPORT_ATOMIC = 0x10
    IBV_ODP_SUPPORT_SRQ_RECV = 0x20
    IBV_ODP_SUPPORT_FLUSH = 0x40
    IBV_ODP_SUPPORT_ATOMIC_WRITE = 0x80


class ibv_mtu(IntEnum):
    """
    Path MTU codes: C{128 << code} octets of payload (IBTA vol. 1 12.7.28).
    """

    IBV_MTU_256 = 1
    IBV_MTU_512 = 2
    IBV_MTU_1024 = 3
    IBV_MTU_2048 = 4
    IBV_MTU_4096 = 5


class ibv_rate(IntEnum):
    """
    Static rates of a path; the names are in Gbit/s.
    """

    # Codes in the order of their introduction, not of their speed: 2 to 10 are the first release's.
    IBV_RATE_MAX = 0
    IBV_RATE_2_5_GBPS = 2
    IBV_RATE_5_GBPS = 5
    IBV_RATE_10_GBPS = 3
    IBV_RATE_20_GBPS = 6
    IBV_RATE_30_GBPS = 4
    IBV_RATE_40_GBPS = 7
    IBV_RATE_60_GBPS = 8
    IBV_RATE_80_GBPS = 9
    IBV_RATE_120_GBPS = 10
    IBV_RATE_14_GBPS = 11
    IBV_RATE_56_GBPS = 12
    IBV_RATE_112_GBPS = 13
    IBV_RATE_168_GBPS = 14
    IBV_RATE_25_GBPS = 15
    IBV_RATE_100_GBPS = 16
    IBV_RATE_200_GBPS = 17
    IBV_RATE_300_GBPS = 18
    IBV_RATE_28_GBPS = 19
    IBV_RATE_50_GBPS = 20
    IBV_RATE_400_GBPS = 21
    IBV_RATE_600_GBPS = 22
    IBV_RATE_800_GBPS = 23
    IBV_RATE_1200_GBPS = 24


class ibv_port_state(IntEnum):
    """
    The logical state of a port (IBTA vol. 1 14.2.5.6).
    """

    IBV_PORT_NOP = 0
    IBV_PORT_DOWN = 1
    IBV_PORT_INIT = 2
    IBV_PORT_ARMED = 3
    IBV_PORT_ACTIVE = 4
    IBV_PORT_ACTIVE_DEFER = 5


# libibverbs/verbs.h: the link layer of a port.  Old drivers leave 0, which means InfiniBand.
IBV_LINK_LAYER_UNSPECIFIED = 0
IBV_LINK_LAYER_INFINIBAND = 1
IBV_LINK_LAYER_ETHERNET = 2


class ibv_port_cap_flags(IntFlag):
    """
    Capabilities of a port: PortInfo CapabilityMask (IBTA vol. 1 14.2.5.6).
    """

    IBV_PORT_SM = 0x2
    IBV_PORT_NOTICE_SUP = 0x4
    IBV_PORT_TRAP_SUP = 0x8
    IBV_PORT_OPT_IPD_SUP = 0x10
    IBV_PORT_AUTO_MIGR_SUP = 0x20
    IBV_PORT_SL_MAP_SUP = 0x40
    IBV_PORT_MKEY_NVRAM = 0x80
    IBV_PORT_PKEY_NVRAM = 0x100
    IBV_PORT_LED_INFO_SUP = 0x200
    IBV_PORT_SYS_IMAGE_GUID_SUP = 0x800
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 0x1000
    IBV_PORT_EXTENDED_SPEEDS_SUP = 0x4000
    IBV_PORT_CAP_MASK2_SUP = 0x8000
    IBV_PORT_CM_SUP = 0x10000
    IBV_PORT_SNMP_TUNNEL_SUP = 0x20000
    IBV_PORT_REINIT_SUP = 0x40000
    IBV_PORT_DEVICE_MGMT_SUP = 0x80000
    IBV_PORT_VENDOR_CLASS_SUP = 0x100000
    IBV_PORT_DR_NOTICE_SUP = 0x200000
    IBV_PORT_CAP_MASK_NOTICE_SUP = 0x400000
    IBV_PORT_BOOT_MGMT_SUP = 0x800000
    IBV_PORT_LINK_LATENCY_SUP = 0x1000000
    IBV_PORT_CLIENT_REG_SUP = 0x2000000
    # Linux's own meaning of bit 26: GIDs are IP addresses, as in RoCEv2.
    IBV_PORT_IP_BASED_GIDS = 0x4000000


class ibv_port_cap_flags2(IntFlag):
    """
    Capabilities of a port: PortInfo CapabilityMask2.
    """

    IBV_PORT_SET_NODE_DESC_SUP = 0x1
    IBV_PORT_INFO_EXT_SUP = 0x2
    IBV_PORT_VIRT_SUP = 0x4
    IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 0x8
    IBV_PORT_LINK_WIDTH_2X_SUP = 0x10
    IBV_PORT_LINK_SPEED_HDR_SUP = 0x20
    IBV_PORT_LINK_SPEED_NDR_SUP = 0x400
    IBV_PORT_LINK_SPEED_XDR_SUP = 0x1000


# libibverbs/verbs.h: bit of a port's C{flags}: each address vector needs a GRH, as RoCE has no LIDs.
IBV_QPF_GRH_REQUIRED = 1


class ibv_gid_type(IntEnum):
    """
    The kind of a GID table entry.
    """

    IBV_GID_TYPE_IB = 0
    IBV_GID_TYPE_ROCE_V1 = 1
    IBV_GID_TYPE_ROCE_V2 = 2


class ibv_gid_type_sysfs(IntEnum):
    """
    The kind of a GID table entry, in sysfs.
    """

    # sysfs does not tell InfiniBand from RoCEv1, so the numbers differ from ibv_gid_type's.
    IBV_GID_TYPE_SYSFS_IB_ROCE_V1 = 0
    IBV_GID_TYPE_SYSFS_ROCE_V2 = 1


class ibv_event_type(IntEnum):
    """
    Asynchronous events (IBTA vol. 1 11.6.3).
    """

    # IBTA vol. 1 11.6.3.2: errors of a queue or of the device; most bring the queue pair to ERR.
    IBV_EVENT_CQ_ERR = 0
    IBV_EVENT_QP_FATAL = 1
    IBV_EVENT_QP_REQ_ERR = 2
    IBV_EVENT_QP_ACCESS_ERR = 3
    # IBTA vol. 1 11.6.3.1: a message came while the queue pair was in RTR, so the peer is ready.
    IBV_EVENT_COMM_EST = 4
    IBV_EVENT_SQ_DRAINED = 5
    IBV_EVENT_PATH_MIG = 6
    IBV_EVENT_PATH_MIG_ERR = 7
    IBV_EVENT_DEVICE_FATAL = 8
    # Of no object: port and device events go to every context.
    IBV_EVENT_PORT_ACTIVE = 9
    IBV_EVENT_PORT_ERR = 10
    IBV_EVENT_LID_CHANGE = 11
    IBV_EVENT_PKEY_CHANGE = 12
    IBV_EVENT_SM_CHANGE = 13
    IBV_EVENT_SRQ_ERR = 14
    IBV_EVENT_SRQ_LIMIT_REACHED = 15
    # A queue pair with an SRQ went to ERR and will take no more receives from it.
    IBV_EVENT_QP_LAST_WQE_REACHED = 16
    IBV_EVENT_CLIENT_REREGISTER = 17
    IBV_EVENT_GID_CHANGE = 18
    IBV_EVENT_WQ_FATAL = 19
    IBV_EVENT_DEVICE_SPEED_CHANGE = 20


class ibv_access_flags(IntFlag):
    """
    Access rights of a memory region or window, or of a queue pair.
    """

    # IBTA vol. 1 10.6.3: remote write and remote atomic need it; local read is always granted.
    IBV_ACCESS_LOCAL_WRITE = 0x1
    IBV_ACCESS_REMOTE_WRITE = 0x2
    IBV_ACCESS_REMOTE_READ = 0x4
    IBV_ACCESS_REMOTE_ATOMIC = 0x8
    IBV_ACCESS_MW_BIND = 0x10
    # Peers count from 0 instead of giving virtual addresses.
    IBV_ACCESS_ZERO_BASED = 0x20
    IBV_ACCESS_ON_DEMAND = 0x40
    IBV_ACCESS_HUGETLB = 0x80
    IBV_ACCESS_FLUSH_GLOBAL = 0x100
    IBV_ACCESS_FLUSH_PERSISTENT = 0x200
    IBV_ACCESS_RELAXED_ORDERING = 0x100000


# ib_user_ioctl_verbs.h: access bits that a device may ignore, and the first of them.
IBV_ACCESS_OPTIONAL_RANGE = 0x3FF00000
IBV_ACCESS_OPTIONAL_FIRST = 0x100000


class ibv_rereg_mr_flags(IntFlag):
    """
    Which properties a re-registration changes.
    """

    IBV_REREG_MR_CHANGE_TRANSLATION = 0x1
    IBV_REREG_MR_CHANGE_PD = 0x2
    IBV_REREG_MR_CHANGE_ACCESS = 0x4
    IBV_REREG_MR_FLAGS_SUPPORTED = 0x7


# man ibv_advise_mr(3): advice on a region with on-demand paging.
IBV_ADVISE_MR_ADVICE_PREFETCH = 0
IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1
IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2

# Flag of advice: return when it is done.
IBV_ADVISE_MR_FLAG_FLUSH = 1


class ibv_mw_type(IntEnum):
    """
    The types of memory window (IBTA vol. 1 10.6.7.2).
    """

    # Type 1 is bound by ibv_bind_mw, type 2 by a posted request with a key of the program's choice.
    IBV_MW_TYPE_1 = 1
    IBV_MW_TYPE_2 = 2


class ibv_tph_mem_type(IntEnum):
    """
    TLP processing hints: volatile or persistent memory.
    """

    IBV_TPH_MEM_TYPE_VM = 0
    IBV_TPH_MEM_TYPE_PM = 1


class ibv_parent_domain_init_attr_mask(IntFlag):
    """
    Which attributes of a parent domain are valid.
    """

    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 0x1
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 0x2
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 0x4


# Sizes of names and paths in sysfs, in octets.
IBV_SYSFS_NAME_MAX = 64
IBV_SYSFS_PATH_MAX = 256
