"""
Tests of L{twisted_ib.verbs.pyverbs.enums}: the numbers are those of rdma-core 65's headers
C{libibverbs/verbs.h} and C{librdmacm/rdma_cma.h}, written down again here.
"""

from __future__ import annotations

from enum import EnumMeta, IntEnum, IntFlag

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.states import QPAttribute, QPState, QPType
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.verbs.pyverbs import enums
from twisted_ib.verbs.pyverbs.enums import cm, device, offload, queues

MODULES = (cm, device, offload, queues)

# Enumerations that count from a first number: (what the names begin with, the number, the rest).
COUNTED = [
    ("IBV_QPS_", 0, "RESET INIT RTR RTS SQD SQE ERR UNKNOWN"),
    ("IBV_QPT_", 2, "RC UC UD"),
    ("IBV_QPT_", 8, "RAW_PACKET XRC_SEND XRC_RECV"),
    ("IBV_MIG_", 0, "MIGRATED REARM ARMED"),
    ("IBV_MTU_", 1, "256 512 1024 2048 4096"),
    ("IBV_PORT_", 0, "NOP DOWN INIT ARMED ACTIVE ACTIVE_DEFER"),
    ("IBV_LINK_LAYER_", 0, "UNSPECIFIED INFINIBAND ETHERNET"),
    ("IBV_NODE_", 1, "CA SWITCH ROUTER RNIC USNIC USNIC_UDP UNSPECIFIED"),
    ("IBV_ATOMIC_", 0, "NONE HCA GLOB"),
    ("IBV_MW_TYPE_", 1, "1 2"),
    ("IBV_SRQT_", 0, "BASIC XRC TM"),
    ("IBV_GID_TYPE_", 0, "IB ROCE_V1 ROCE_V2"),
    ("IBV_GID_TYPE_SYSFS_", 0, "IB_ROCE_V1 ROCE_V2"),
    ("IBV_FORK_", 0, "DISABLED ENABLED UNNEEDED"),
    ("IBV_TMH_", 0, "NO_TAG RNDV FIN EAGER"),
    (
        "IBV_WC_",
        0,
        "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR "
        "LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR "
        "LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR "
        "RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE",
    ),
    (
        "IBV_WC_",
        0,
        "SEND RDMA_WRITE RDMA_READ COMP_SWAP FETCH_ADD BIND_MW LOCAL_INV TSO FLUSH ATOMIC_WRITE",
    ),
    (
        "IBV_WC_",
        128,
        "RECV RECV_RDMA_WITH_IMM TM_ADD TM_DEL TM_SYNC TM_RECV TM_NO_TAG DRIVER1 DRIVER2 DRIVER3",
    ),
    (
        "IBV_WR_",
        0,
        "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP "
        "ATOMIC_FETCH_AND_ADD LOCAL_INV BIND_MW SEND_WITH_INV TSO DRIVER1",
    ),
    ("IBV_WR_", 14, "FLUSH ATOMIC_WRITE"),
    ("IBV_WR_TAG_", 0, "ADD DEL SYNC"),
    (
        "IBV_EVENT_",
        0,
        "CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR DEVICE_FATAL "
        "PORT_ACTIVE PORT_ERR LID_CHANGE PKEY_CHANGE SM_CHANGE SRQ_ERR SRQ_LIMIT_REACHED QP_LAST_WQE_REACHED "
        "CLIENT_REREGISTER GID_CHANGE WQ_FATAL DEVICE_SPEED_CHANGE",
    ),
    ("IBV_RATE_", 2, "2_5_GBPS 10_GBPS 30_GBPS 5_GBPS 20_GBPS 40_GBPS 60_GBPS 80_GBPS 120_GBPS 14_GBPS"),
    ("IBV_ADVISE_MR_ADVICE_", 0, "PREFETCH PREFETCH_WRITE PREFETCH_NO_FAULT"),
    (
        "RDMA_CM_EVENT_",
        0,
        "ADDR_RESOLVED ADDR_ERROR ROUTE_RESOLVED ROUTE_ERROR CONNECT_REQUEST CONNECT_RESPONSE CONNECT_ERROR "
        "UNREACHABLE REJECTED ESTABLISHED DISCONNECTED DEVICE_REMOVAL MULTICAST_JOIN MULTICAST_ERROR "
        "ADDR_CHANGE TIMEWAIT_EXIT ADDRINFO_RESOLVED ADDRINFO_ERROR USER INTERNAL",
    ),
    ("RDMA_MC_JOIN_FLAG_", 0, "FULLMEMBER SENDONLY_FULLMEMBER"),
    ("RDMA_OPTION_", 0, "ID IB"),
    ("RDMA_OPTION_ID_", 0, "TOS REUSEADDR AFONLY ACK_TIMEOUT"),
]

# Flags whose bits follow each other: (what the names begin with, the first bit, the rest).
SHIFTED = [
    (
        "IBV_QP_",
        0,
        "STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT RETRY_CNT "
        "RNR_RETRY RQ_PSN MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE "
        "CAP DEST_QPN",
    ),
    ("IBV_QP_", 25, "RATE_LIMIT"),
    (
        "IBV_ACCESS_",
        0,
        "LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED ON_DEMAND HUGETLB "
        "FLUSH_GLOBAL FLUSH_PERSISTENT",
    ),
    ("IBV_ACCESS_", 20, "RELAXED_ORDERING"),
    ("IBV_SEND_", 0, "FENCE SIGNALED SOLICITED INLINE IP_CSUM"),
    ("IBV_WC_", 0, "GRH WITH_IMM IP_CSUM_OK WITH_INV TM_SYNC_REQ TM_MATCH TM_DATA_VALID"),
    (
        "IBV_WC_EX_WITH_",
        0,
        "BYTE_LEN IMM QP_NUM SRC_QP SLID SL DLID_PATH_BITS COMPLETION_TIMESTAMP CVLAN FLOW_TAG TM_INFO "
        "COMPLETION_TIMESTAMP_WALLCLOCK",
    ),
    (
        "IBV_QP_EX_WITH_",
        0,
        "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP "
        "ATOMIC_FETCH_AND_ADD LOCAL_INV BIND_MW SEND_WITH_INV TSO FLUSH ATOMIC_WRITE",
    ),
    ("IBV_QP_INIT_ATTR_", 0, "PD XRCD CREATE_FLAGS MAX_TSO_HEADER IND_TABLE RX_HASH SEND_OPS_FLAGS"),
    ("IBV_QP_CREATE_", 1, "BLOCK_SELF_MCAST_LB"),
    ("IBV_QP_CREATE_", 8, "SCATTER_FCS CVLAN_STRIPPING SOURCE_QPN PCI_WRITE_END_PADDING"),
    ("IBV_REREG_MR_CHANGE_", 0, "TRANSLATION PD ACCESS"),
    ("IBV_REG_MR_MASK_", 0, "IOVA ADDR FD FD_OFFSET DMAH BUF"),
    ("IBV_SRQ_", 0, "MAX_WR LIMIT"),
    ("IBV_SRQ_INIT_ATTR_", 0, "TYPE PD XRCD CQ TM"),
    ("IBV_CQ_INIT_ATTR_MASK_", 0, "FLAGS PD"),
    ("IBV_CREATE_CQ_ATTR_", 0, "SINGLE_THREADED IGNORE_OVERRUN"),
    ("IBV_ODP_SUPPORT_", 0, "SEND RECV WRITE READ ATOMIC SRQ_RECV FLUSH ATOMIC_WRITE"),
    (
        "IBV_DEVICE_",
        0,
        "RESIZE_MAX_WR BAD_PKEY_CNTR BAD_QKEY_CNTR RAW_MULTI AUTO_PATH_MIG CHANGE_PHY_PORT "
        "UD_AV_PORT_ENFORCE CURR_QP_STATE_MOD SHUTDOWN_PORT INIT_TYPE PORT_ACTIVE_EVENT SYS_IMAGE_GUID "
        "RC_RNR_NAK_GEN SRQ_RESIZE N_NOTIFY_CQ",
    ),
    ("IBV_DEVICE_", 17, "MEM_WINDOW UD_IP_CSUM"),
    ("IBV_DEVICE_", 20, "XRC MEM_MGT_EXTENSIONS"),
    ("IBV_DEVICE_", 23, "MEM_WINDOW_TYPE_2A MEM_WINDOW_TYPE_2B RC_IP_CSUM RAW_IP_CSUM"),
    ("IBV_DEVICE_", 29, "MANAGED_FLOW_STEERING"),
    ("IBV_DEVICE_", 34, "RAW_SCATTER_FCS"),
    ("IBV_DEVICE_", 36, "PCI_WRITE_END_PADDING"),
    ("IBV_DEVICE_", 41, "CC_DMA_BOUNCE"),
    ("IBV_PORT_", 16, "CM_SUP SNMP_TUNNEL_SUP REINIT_SUP DEVICE_MGMT_SUP VENDOR_CLASS_SUP"),
    ("IBV_PORT_", 26, "IP_BASED_GIDS"),
    ("RAI_", 0, "PASSIVE NUMERICHOST NOROUTE FAMILY SA DNS"),
    ("RDMA_CM_JOIN_MC_ATTR_", 0, "ADDRESS JOIN_FLAGS RESERVED"),
]

SINGLE = {
    "IBV_QPT_DRIVER": 255,
    "IBV_NODE_UNKNOWN": -1,
    "IBV_TRANSPORT_UNKNOWN": -1,
    "IBV_TRANSPORT_IB": 0,
    "IBV_RATE_MAX": 0,
    "IBV_RATE_1200_GBPS": 24,
    "IBV_WC_STANDARD_FLAGS": 0x7F,
    "IBV_FLUSH_GLOBAL": 1,
    "IBV_FLUSH_PERSISTENT": 2,
    "IBV_FLUSH_RANGE": 0,
    "IBV_FLUSH_MR": 1,
    "IBV_REREG_MR_ERR_INPUT": -1,
    "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW": -5,
    "IBV_ACCESS_OPTIONAL_FIRST": 1 << 20,
    "IBV_ACCESS_OPTIONAL_RANGE": 0x3FF00000,
    "IBV_FLOW_SPEC_ETH": 0x20,
    "IBV_RX_HASH_INNER": 1 << 31,
    "IBV_QPF_GRH_REQUIRED": 1,
    "IBV_SYSFS_NAME_MAX": 64,
    "RDMA_PS_IPOIB": 0x0002,
    "RDMA_PS_TCP": 0x0106,
    "RDMA_PS_UDP": 0x0111,
    "RDMA_PS_IB": 0x013F,
    "RDMA_IB_IP_PS_MASK": 0xFFFFFFFFFFFF0000,
    "RDMA_IB_IP_PS_TCP": 0x01060000,
    "RDMA_UDP_QKEY": 0x01234567,
    "RDMA_MAX_RESP_RES": 255,
    "RDMA_DRIVER_RXE": 14,
    "_IBV_DEVICE_RAW_SCATTER_FCS": 1 << 34,
    "_IBV_ADVISE_MR_FLAG_FLUSH": 1,
    "_IBV_ALLOCATOR_USE_DEFAULT": (1 << 64) - 1,
}


def enumerations() -> list[EnumMeta]:
    """
    @return: every enumeration, as the four modules define them.
    """
    return [
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, EnumMeta) and value.__module__ == module.__name__
    ]


class EnumsTests(SynchronousTestCase):
    """
    The constants have libibverbs' and librdmacm's values.
    """

    def check(self, expected: dict[str, int]) -> None:
        """
        Compare constants with what they should be.
        """
        self.assertEqual({name: getattr(enums, name, None) for name in expected}, expected)

    def test_counted(self) -> None:
        """
        Enumerations that count have their numbers.
        """
        for prefix, first, names in COUNTED:
            self.check({prefix + name: first + place for place, name in enumerate(names.split())})

    def test_shifted(self) -> None:
        """
        Flags have their bits.
        """
        for prefix, first, names in SHIFTED:
            self.check({prefix + name: 1 << (first + place) for place, name in enumerate(names.split())})

    def test_single(self) -> None:
        """
        The others have their numbers.
        """
        self.check(SINGLE)

    def test_flat(self) -> None:
        """
        Each member of an enumeration is in C{enums} by itself; no two enumerations have a name
        in common.
        """
        seen: set[str] = set()
        for enumeration in enumerations():
            for name, member in enumeration.__members__.items():
                self.assertIs(getattr(enums, name), member)
                self.assertIsInstance(member, int)
                self.assertNotIn(name, seen)
                seen.add(name)
        self.assertGreater(len(seen), 450)

    def test_classes(self) -> None:
        """
        Each enumeration is in C{enums} by its C name, and is documented.
        """
        for enumeration in enumerations():
            self.assertIs(getattr(enums, enumeration.__name__), enumeration)
            self.assertTrue(enumeration.__name__.startswith(("ibv_", "rdma_")), enumeration)
            self.assertTrue(enumeration.__doc__)

    def test_unique(self) -> None:
        """
        Within an enumeration each number has one name, but for one kernel driver that was
        renamed.
        """
        for enumeration in enumerations():
            members = enumeration.__members__
            aliases = len(members) - len({int(member) for member in members.values()})
            self.assertEqual(aliases, 1 if enumeration is enums.rdma_driver_id else 0)
        self.assertEqual(enums.RDMA_DRIVER_I40IW, enums.RDMA_DRIVER_IRDMA)

    def test_core(self) -> None:
        """
        The core's numbers are the same; but for one flag of completions, which the kernel
        numbers otherwise than libibverbs.
        """
        pairs: list[tuple[str, type[IntEnum] | type[IntFlag]]] = [
            ("IBV_QPT_", QPType),
            ("IBV_QPS_", QPState),
            ("IBV_QP_", QPAttribute),
            ("IBV_WR_", SendOpcode),
            ("IBV_SEND_", SendFlags),
            ("IBV_WC_", WCStatus),
            ("IBV_WC_", WCOpcode),
            ("IBV_ACCESS_", Access),
        ]
        for prefix, enumeration in pairs:
            self.check({prefix + name: int(member) for name, member in enumeration.__members__.items()})
        self.assertEqual((WCFlags.WITH_INV, enums.IBV_WC_WITH_INV), (4, 8))

    def test_singleBits(self) -> None:
        """
        A flag is one bit; but for the sum of those that a re-registration knows.
        """
        wide = [
            name
            for enumeration in enumerations()
            if issubclass(enumeration, IntFlag)
            for name, member in enumeration.__members__.items()
            if int(member).bit_count() != 1
        ]
        self.assertEqual(wide, ["IBV_REREG_MR_FLAGS_SUPPORTED"])

    def test_unknownName(self) -> None:
        """
        A name that is no constant is an error when the program runs.
        """
        with self.assertRaises(AttributeError):
            enums.IBV_QPS_NONE  # noqa: B018
