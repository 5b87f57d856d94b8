"""
Constants of queue pairs, requests, completions and shared receive queues, by their C names.

Source: rdma-core 65: C{libibverbs/verbs.h}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from twisted_ib.verbs.pyverbs.enums.declaring import declared


class ibv_qp_type(IntEnum):
    """
    The transport service of a queue pair (IBTA vol. 1 9.2.1).
    """

    # Linux ib_verbs.h: 0 and 1 are the kernel's SMI and GSI, 5 and 6 raw types that libibverbs never had.
    IBV_QPT_RC = 2
    IBV_QPT_UC = 3
    IBV_QPT_UD = 4
    IBV_QPT_RAW_PACKET = 8
    IBV_QPT_XRC_SEND = 9
    IBV_QPT_XRC_RECV = 10
    IBV_QPT_DRIVER = 255


class ibv_qp_state(IntEnum):
    """
    The states of a queue pair (IBTA vol. 1 10.3.1).
    """

    IBV_QPS_RESET = 0
    IBV_QPS_INIT = 1
    IBV_QPS_RTR = 2
    IBV_QPS_RTS = 3
    IBV_QPS_SQD = 4
    # Not for RC: there an error of the send queue ends in ERR.
    IBV_QPS_SQE = 5
    IBV_QPS_ERR = 6
    IBV_QPS_UNKNOWN = 7


class ibv_qp_attr_mask(IntFlag):
    """
    Which attributes a modify or query of a queue pair names.
    """

    IBV_QP_STATE = 0x1
    IBV_QP_CUR_STATE = 0x2
    IBV_QP_EN_SQD_ASYNC_NOTIFY = 0x4
    IBV_QP_ACCESS_FLAGS = 0x8
    IBV_QP_PKEY_INDEX = 0x10
    IBV_QP_PORT = 0x20
    IBV_QP_QKEY = 0x40
    IBV_QP_AV = 0x80
    IBV_QP_PATH_MTU = 0x100
    IBV_QP_TIMEOUT = 0x200
    IBV_QP_RETRY_CNT = 0x400
    IBV_QP_RNR_RETRY = 0x800
    IBV_QP_RQ_PSN = 0x1000
    IBV_QP_MAX_QP_RD_ATOMIC = 0x2000
    IBV_QP_ALT_PATH = 0x4000
    IBV_QP_MIN_RNR_TIMER = 0x8000
    IBV_QP_SQ_PSN = 0x10000
    IBV_QP_MAX_DEST_RD_ATOMIC = 0x20000
    IBV_QP_PATH_MIG_STATE = 0x40000
    IBV_QP_CAP = 0x80000
    IBV_QP_DEST_QPN = 0x100000
    # libibverbs/verbs.h: bits 21 to 24 were for Ethernet addresses and VLANs, and never public.
    IBV_QP_RATE_LIMIT = 0x2000000


class ibv_qp_init_attr_mask(IntFlag):
    """
    Which extended attributes of a new queue pair are valid.
    """

    IBV_QP_INIT_ATTR_PD = 0x1
    IBV_QP_INIT_ATTR_XRCD = 0x2
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 0x4
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 0x8
    IBV_QP_INIT_ATTR_IND_TABLE = 0x10
    IBV_QP_INIT_ATTR_RX_HASH = 0x20
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 0x40


class ibv_wr_opcode(IntEnum):
    """
    Operations of send requests.
    """

    IBV_WR_RDMA_WRITE = 0
    IBV_WR_RDMA_WRITE_WITH_IMM = 1
    IBV_WR_SEND = 2
    IBV_WR_SEND_WITH_IMM = 3
    IBV_WR_RDMA_READ = 4
    IBV_WR_ATOMIC_CMP_AND_SWP = 5
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6
    IBV_WR_LOCAL_INV = 7
    IBV_WR_BIND_MW = 8
    IBV_WR_SEND_WITH_INV = 9
    IBV_WR_TSO = 10
    IBV_WR_DRIVER1 = 11
    # ib_user_verbs.h: 12 and 13 are masked atomics, which libibverbs does not have.
    IBV_WR_FLUSH = 14
    IBV_WR_ATOMIC_WRITE = 15


class ibv_send_flags(IntFlag):
    """
    Flags of a send request.
    """

    # IBTA vol. 1 10.8.3.3: the request waits until no READ or atomic is outstanding.
    IBV_SEND_FENCE = 0x1
    # IBTA vol. 1 10.7.3.1: without it only an error generates a completion.
    IBV_SEND_SIGNALED = 0x2
    # The SE bit of the BTH (IBTA vol. 1 9.2): wakes a peer that armed its queue for solicited events only.
    IBV_SEND_SOLICITED = 0x4
    IBV_SEND_INLINE = 0x8
    IBV_SEND_IP_CSUM = 0x10


class ibv_wc_status(IntEnum):
    """
    Completion status (IBTA vol. 1 11.6.2).
    """

    IBV_WC_SUCCESS = 0
    IBV_WC_LOC_LEN_ERR = 1
    IBV_WC_LOC_QP_OP_ERR = 2
    # EE context and RDD errors are of the RD service, which nobody implements.
    IBV_WC_LOC_EEC_OP_ERR = 3
    IBV_WC_LOC_PROT_ERR = 4
    # Posted to a queue pair that was in ERR, or came to it: it may have been executed or not.
    IBV_WC_WR_FLUSH_ERR = 5
    IBV_WC_MW_BIND_ERR = 6
    IBV_WC_BAD_RESP_ERR = 7
    IBV_WC_LOC_ACCESS_ERR = 8
    # IBTA vol. 1 9.7.5.2: NAK codes 1, 2 and 3 become this and the next two.
    IBV_WC_REM_INV_REQ_ERR = 9
    IBV_WC_REM_ACCESS_ERR = 10
    IBV_WC_REM_OP_ERR = 11
    # No answer after retry_cnt retransmissions; the next is rnr_retry used up.
    IBV_WC_RETRY_EXC_ERR = 12
    IBV_WC_RNR_RETRY_EXC_ERR = 13
    IBV_WC_LOC_RDD_VIOL_ERR = 14
    IBV_WC_REM_INV_RD_REQ_ERR = 15
    IBV_WC_REM_ABORT_ERR = 16
    IBV_WC_INV_EECN_ERR = 17
    IBV_WC_INV_EEC_STATE_ERR = 18
    IBV_WC_FATAL_ERR = 19
    IBV_WC_RESP_TIMEOUT_ERR = 20
    IBV_WC_GENERAL_ERR = 21
    IBV_WC_TM_ERR = 22
    IBV_WC_TM_RNDV_INCOMPLETE = 23


class ibv_wc_flags(IntFlag):
    """
    Which optional fields of a completion are valid.
    """

    # Of a datagram: the first 40 octets of the buffer are the header (Linux rxe_resp.c sets it always).
    IBV_WC_GRH = 0x1
    IBV_WC_WITH_IMM = 0x2
    IBV_WC_IP_CSUM_OK = 0x4
    IBV_WC_WITH_INV = 0x8
    IBV_WC_TM_SYNC_REQ = 0x10
    IBV_WC_TM_MATCH = 0x20
    IBV_WC_TM_DATA_VALID = 0x40


# libibverbs/verbs.h: the bit number of C{IBV_WC_IP_CSUM_OK}.
IBV_WC_IP_CSUM_OK_SHIFT = 2


# libibverbs/verbs.h: the fields of C{struct ibv_wc}, and all that an extended queue may have.
IBV_WC_STANDARD_FLAGS = 127
IBV_CREATE_CQ_SUP_WC_FLAGS = 0xFFF


class ibv_cq_init_attr_mask(IntFlag):
    """
    Which attributes of an extended completion queue are valid.
    """

    IBV_CQ_INIT_ATTR_MASK_FLAGS = 0x1
    IBV_CQ_INIT_ATTR_MASK_PD = 0x2


class ibv_create_cq_attr_flags(IntFlag):
    """
    Flags of an extended completion queue.
    """

    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 0x1
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 0x2


class ibv_cq_attr_mask(IntFlag):
    """
    Which attributes a modify of a completion queue sets.
    """

    IBV_CQ_ATTR_MODERATE = 0x1
    IBV_CQ_ATTR_RESERVED = 0x2


class ibv_srq_type(IntEnum):
    """
    The kinds of shared receive queue.
    """

    IBV_SRQT_BASIC = 0
    IBV_SRQT_XRC = 1
    IBV_SRQT_TM = 2


class ibv_srq_attr_mask(IntFlag):
    """
    Which attributes a modify of a shared receive queue sets.
    """

    IBV_SRQ_MAX_WR = 0x1
    # IBTA vol. 1 10.2.9: arms the limit, for one event.
    IBV_SRQ_LIMIT = 0x2


class ibv_srq_init_attr_mask(IntFlag):
    """
    Which extended attributes of a new shared receive queue are valid.
    """

    IBV_SRQ_INIT_ATTR_TYPE = 0x1
    IBV_SRQ_INIT_ATTR_PD = 0x2
    IBV_SRQ_INIT_ATTR_XRCD = 0x4
    IBV_SRQ_INIT_ATTR_CQ = 0x8
    IBV_SRQ_INIT_ATTR_TM = 0x10
    IBV_SRQ_INIT_ATTR_RESERVED = 0x20


# Those that code of this package names, for type checkers.
ibv_mig_state: type[IntEnum]
ibv_qp_create_flags: type[IntFlag]
ibv_qp_create_send_ops_flags: type[IntFlag]
ibv_wc_opcode: type[IntEnum]
_DECLARED = """
# The states of path migration (IBTA vol. 1 17.2.8).
enum ibv_mig_state { IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_MIG_ARMED };
# Flags of a new queue pair.
flags ibv_qp_create_flags {
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 0x2, IBV_QP_CREATE_SCATTER_FCS = 0x100,
    IBV_QP_CREATE_CVLAN_STRIPPING = 0x200, IBV_QP_CREATE_SOURCE_QPN = 0x400,
    IBV_QP_CREATE_PCI_WRITE_END_PADDING = 0x800 };
# The operations that will be posted to an extended queue pair.
flags ibv_qp_create_send_ops_flags {
    # libibverbs/verbs.h: 1 << the IBV_WR_* opcode up to TSO; FLUSH and ATOMIC_WRITE differ.
    IBV_QP_EX_WITH_RDMA_WRITE = 0x1, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 0x2, IBV_QP_EX_WITH_SEND = 0x4,
    IBV_QP_EX_WITH_SEND_WITH_IMM = 0x8, IBV_QP_EX_WITH_RDMA_READ = 0x10,
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 0x20, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 0x40,
    IBV_QP_EX_WITH_LOCAL_INV = 0x80, IBV_QP_EX_WITH_BIND_MW = 0x100, IBV_QP_EX_WITH_SEND_WITH_INV = 0x200,
    IBV_QP_EX_WITH_TSO = 0x400, IBV_QP_EX_WITH_FLUSH = 0x800, IBV_QP_EX_WITH_ATOMIC_WRITE = 0x1000 };
# The operation that completed; 0x80 is set if it is a receive.
enum ibv_wc_opcode {
    IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_BIND_MW,
    IBV_WC_LOCAL_INV, IBV_WC_TSO, IBV_WC_FLUSH, IBV_WC_ATOMIC_WRITE, IBV_WC_RECV = 0x80,
    # A WRITE with immediate consumes a receive, but writes nothing into its buffer.
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_TM_ADD, IBV_WC_TM_DEL, IBV_WC_TM_SYNC, IBV_WC_TM_RECV, IBV_WC_TM_NO_TAG,
    IBV_WC_DRIVER1, IBV_WC_DRIVER2, IBV_WC_DRIVER3 };
# The optional fields of completions of an extended queue.
flags ibv_create_cq_wc_flags {
    IBV_WC_EX_WITH_BYTE_LEN = 0x1, IBV_WC_EX_WITH_IMM = 0x2, IBV_WC_EX_WITH_QP_NUM = 0x4,
    IBV_WC_EX_WITH_SRC_QP = 0x8, IBV_WC_EX_WITH_SLID = 0x10, IBV_WC_EX_WITH_SL = 0x20,
    IBV_WC_EX_WITH_DLID_PATH_BITS = 0x40, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 0x80,
    IBV_WC_EX_WITH_CVLAN = 0x100, IBV_WC_EX_WITH_FLOW_TAG = 0x200, IBV_WC_EX_WITH_TM_INFO = 0x400,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 0x800 };
"""
globals().update(declared(__name__, _DECLARED))
