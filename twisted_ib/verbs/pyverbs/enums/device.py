"""
Constants of devices, ports, memory and events, by their C names.

Source: rdma-core 65: C{libibverbs/verbs.h}, C{libibverbs/driver.h}, and the kernel headers that they include.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from twisted_ib.verbs.pyverbs.enums.declaring import declared

# libibverbs/verbs.h: bits of C{device_cap_flags_ex}, which has 64.
IBV_DEVICE_RAW_SCATTER_FCS = 0x400000000
IBV_DEVICE_PCI_WRITE_END_PADDING = 0x1000000000
IBV_DEVICE_CC_DMA_BOUNCE = 0x20000000000


class ibv_fork_status(IntEnum):
    """
    Whether a process may fork while memory is registered.
    """

    IBV_FORK_DISABLED = 0
    IBV_FORK_ENABLED = 1
    IBV_FORK_UNNEEDED = 2


class ibv_mtu(IntEnum):
    """
    Path MTU codes: C{128 << code} octets of payload (IBTA vol. 1 12.7.28).
    """

    IBV_MTU_256 = 1
    IBV_MTU_512 = 2
    IBV_MTU_1024 = 3
    IBV_MTU_2048 = 4
    IBV_MTU_4096 = 5


# libibverbs/verbs.h: the link layer of a port.  Old drivers leave 0, which means InfiniBand.
IBV_LINK_LAYER_UNSPECIFIED = 0
IBV_LINK_LAYER_INFINIBAND = 1
IBV_LINK_LAYER_ETHERNET = 2


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

# Those that code of this package names, for type checkers.
ibv_node_type: type[IntEnum]
ibv_transport_type: type[IntEnum]
ibv_device_cap_flags: type[IntFlag]
ibv_port_state: type[IntEnum]
ibv_port_cap_flags: type[IntFlag]
ibv_port_cap_flags2: type[IntFlag]
ibv_event_type: type[IntEnum]
_DECLARED = """
# The kind of a device in the network.
enum ibv_node_type {
    IBV_NODE_UNKNOWN = -1,
    # IBTA vol. 1 14.2.5.3, NodeInfo NodeType: 1 to 3; the others are Linux's.
    IBV_NODE_CA = 1, IBV_NODE_SWITCH, IBV_NODE_ROUTER, IBV_NODE_RNIC, IBV_NODE_USNIC, IBV_NODE_USNIC_UDP,
    IBV_NODE_UNSPECIFIED };
# The transport protocol of a device.
enum ibv_transport_type {
    IBV_TRANSPORT_UNKNOWN = -1,
    # RoCE devices have this one, too: it is InfiniBand's transport over UDP (IBTA vol. 1 annex A17).
    IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_USNIC, IBV_TRANSPORT_USNIC_UDP,
    IBV_TRANSPORT_UNSPECIFIED };
# Capabilities of a device (C{device_cap_flags}; IBTA vol. 1 11.2.1.2).
flags ibv_device_cap_flags {
    IBV_DEVICE_RESIZE_MAX_WR = 0x1, IBV_DEVICE_BAD_PKEY_CNTR = 0x2, IBV_DEVICE_BAD_QKEY_CNTR = 0x4,
    IBV_DEVICE_RAW_MULTI = 0x8, IBV_DEVICE_AUTO_PATH_MIG = 0x10, IBV_DEVICE_CHANGE_PHY_PORT = 0x20,
    IBV_DEVICE_UD_AV_PORT_ENFORCE = 0x40, IBV_DEVICE_CURR_QP_STATE_MOD = 0x80,
    IBV_DEVICE_SHUTDOWN_PORT = 0x100, IBV_DEVICE_INIT_TYPE = 0x200, IBV_DEVICE_PORT_ACTIVE_EVENT = 0x400,
    IBV_DEVICE_SYS_IMAGE_GUID = 0x800, IBV_DEVICE_RC_RNR_NAK_GEN = 0x1000, IBV_DEVICE_SRQ_RESIZE = 0x2000,
    IBV_DEVICE_N_NOTIFY_CQ = 0x4000, IBV_DEVICE_MEM_WINDOW = 0x20000, IBV_DEVICE_UD_IP_CSUM = 0x40000,
    IBV_DEVICE_XRC = 0x100000, IBV_DEVICE_MEM_MGT_EXTENSIONS = 0x200000,
    # IBTA vol. 1 10.6.7.2: 2A is bound to a queue pair number, 2B to the queue pair and its domain.
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 0x800000, IBV_DEVICE_MEM_WINDOW_TYPE_2B = 0x1000000,
    IBV_DEVICE_RC_IP_CSUM = 0x2000000, IBV_DEVICE_RAW_IP_CSUM = 0x4000000,
    IBV_DEVICE_MANAGED_FLOW_STEERING = 0x20000000 };
# The scope in which a device's atomics are atomic: none, the device, the whole machine.
enum ibv_atomic_cap { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };
# Sizes of atomic operations on the PCI bus.
flags ibv_pci_atomic_op_size {
    IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 0x1, IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 0x2,
    IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 0x4 };
# On-demand paging: general capabilities.
flags ibv_odp_general_caps { IBV_ODP_SUPPORT = 0x1, IBV_ODP_SUPPORT_IMPLICIT = 0x2 };
# On-demand paging: the operations of a transport that support it.
flags ibv_odp_transport_cap_bits {
    IBV_ODP_SUPPORT_SEND = 0x1, IBV_ODP_SUPPORT_RECV = 0x2, IBV_ODP_SUPPORT_WRITE = 0x4,
    IBV_ODP_SUPPORT_READ = 0x8, IBV_ODP_SUPPORT_ATOMIC = 0x10, IBV_ODP_SUPPORT_SRQ_RECV = 0x20,
    IBV_ODP_SUPPORT_FLUSH = 0x40, IBV_ODP_SUPPORT_ATOMIC_WRITE = 0x80 };
# Static rates of a path; the names are in Gbit/s.
enum ibv_rate {
    # Codes in the order of their introduction, not of their speed: 2 to 10 are the first release's.
    IBV_RATE_MAX, IBV_RATE_2_5_GBPS = 2, IBV_RATE_5_GBPS = 5, IBV_RATE_10_GBPS = 3, IBV_RATE_20_GBPS = 6,
    IBV_RATE_30_GBPS = 4, IBV_RATE_40_GBPS = 7, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_120_GBPS,
    IBV_RATE_14_GBPS, IBV_RATE_56_GBPS, IBV_RATE_112_GBPS, IBV_RATE_168_GBPS, IBV_RATE_25_GBPS,
    IBV_RATE_100_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_28_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_400_GBPS, IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS };
# The logical state of a port (IBTA vol. 1 14.2.5.6).
enum ibv_port_state {
    IBV_PORT_NOP, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER };
# Capabilities of a port: PortInfo CapabilityMask (IBTA vol. 1 14.2.5.6).
flags ibv_port_cap_flags {
    IBV_PORT_SM = 0x2, IBV_PORT_NOTICE_SUP = 0x4, IBV_PORT_TRAP_SUP = 0x8, IBV_PORT_OPT_IPD_SUP = 0x10,
    IBV_PORT_AUTO_MIGR_SUP = 0x20, IBV_PORT_SL_MAP_SUP = 0x40, IBV_PORT_MKEY_NVRAM = 0x80,
    IBV_PORT_PKEY_NVRAM = 0x100, IBV_PORT_LED_INFO_SUP = 0x200, IBV_PORT_SYS_IMAGE_GUID_SUP = 0x800,
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 0x1000, IBV_PORT_EXTENDED_SPEEDS_SUP = 0x4000,
    IBV_PORT_CAP_MASK2_SUP = 0x8000, IBV_PORT_CM_SUP = 0x10000, IBV_PORT_SNMP_TUNNEL_SUP = 0x20000,
    IBV_PORT_REINIT_SUP = 0x40000, IBV_PORT_DEVICE_MGMT_SUP = 0x80000, IBV_PORT_VENDOR_CLASS_SUP = 0x100000,
    IBV_PORT_DR_NOTICE_SUP = 0x200000, IBV_PORT_CAP_MASK_NOTICE_SUP = 0x400000,
    IBV_PORT_BOOT_MGMT_SUP = 0x800000, IBV_PORT_LINK_LATENCY_SUP = 0x1000000,
    IBV_PORT_CLIENT_REG_SUP = 0x2000000,
    # Linux's own meaning of bit 26: GIDs are IP addresses, as in RoCEv2.
    IBV_PORT_IP_BASED_GIDS = 0x4000000 };
# Capabilities of a port: PortInfo CapabilityMask2.
flags ibv_port_cap_flags2 {
    IBV_PORT_SET_NODE_DESC_SUP = 0x1, IBV_PORT_INFO_EXT_SUP = 0x2, IBV_PORT_VIRT_SUP = 0x4,
    IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 0x8, IBV_PORT_LINK_WIDTH_2X_SUP = 0x10,
    IBV_PORT_LINK_SPEED_HDR_SUP = 0x20, IBV_PORT_LINK_SPEED_NDR_SUP = 0x400,
    IBV_PORT_LINK_SPEED_XDR_SUP = 0x1000 };
# Asynchronous events (IBTA vol. 1 11.6.3).
enum ibv_event_type {
    # IBTA vol. 1 11.6.3.2: errors of a queue or of the device; most bring the queue pair to ERR.
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
    # IBTA vol. 1 11.6.3.1: a message came while the queue pair was in RTR, so the peer is ready.
    IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_DEVICE_FATAL,
    # Of no object: port and device events go to every context.
    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE,
    IBV_EVENT_SM_CHANGE, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
    # A queue pair with an SRQ went to ERR and will take no more receives from it.
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE, IBV_EVENT_WQ_FATAL,
    IBV_EVENT_DEVICE_SPEED_CHANGE };
# TLP processing hints: volatile or persistent memory.
enum ibv_tph_mem_type { IBV_TPH_MEM_TYPE_VM, IBV_TPH_MEM_TYPE_PM };
"""
globals().update(declared(__name__, _DECLARED))
