"""
The states of a queue pair, and the attributes of each transition.

A queue pair starts in RESET and advances: INIT (receives may be posted), RTR (ready to receive), RTS (ready
to send).  SQD drains the send queue, SQE is where the send queue of an unreliable queue pair stops after an
error, ERR flushes whatever is posted.  Each transition requires some attributes and permits some others; any
other attribute is refused, so that a mistake shows where it is made.

The numbers are those of verbs (C{libibverbs/verbs.h}: C{enum ibv_qp_state}, C{enum ibv_qp_attr_mask}, C{enum
ibv_qp_type}); the table is that of IBTA vol. 1 "Modify Queue Pair" as Linux has it (C{qp_state_table} in
C{drivers/infiniband/core/verbs.c}).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from functools import lru_cache

from twisted_ib.errors import QueuePairError


class QPType(IntEnum):
    """
    The transport services, numbered as in C{enum ibv_qp_type}.
    """

    RC = 2
    UC = 3
    UD = 4


class QPState(IntEnum):
    """
    The states, numbered as in C{enum ibv_qp_state} (IBTA vol. 1 10.3.1).
    """

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


#: States in which a queue pair receives, and has a path or wants one (IBTA vol. 1 10.3.1).
RECEIVING = frozenset((QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE))


class QPAttribute(IntFlag):
    """
    The attributes of a queue pair, one bit each, as in C{enum ibv_qp_attr_mask}.
    """

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    EN_SQD_ASYNC_NOTIFY = 1 << 2
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    ALT_PATH = 1 << 14
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    PATH_MIG_STATE = 1 << 18
    CAP = 1 << 19
    DEST_QPN = 1 << 20
    RATE_LIMIT = 1 << 25


#: The attributes by the field names of C{struct ibv_qp_attr} (C{libibverbs/verbs.h}).
ATTRIBUTE_NAMES: dict[str, QPAttribute] = {
    "qp_state": QPAttribute.STATE,
    "cur_qp_state": QPAttribute.CUR_STATE,
    "en_sqd_async_notify": QPAttribute.EN_SQD_ASYNC_NOTIFY,
    "qp_access_flags": QPAttribute.ACCESS_FLAGS,
    "pkey_index": QPAttribute.PKEY_INDEX,
    "port_num": QPAttribute.PORT,
    "qkey": QPAttribute.QKEY,
    "ah_attr": QPAttribute.AV,
    "path_mtu": QPAttribute.PATH_MTU,
    "timeout": QPAttribute.TIMEOUT,
    "retry_cnt": QPAttribute.RETRY_CNT,
    "rnr_retry": QPAttribute.RNR_RETRY,
    "rq_psn": QPAttribute.RQ_PSN,
    "max_rd_atomic": QPAttribute.MAX_QP_RD_ATOMIC,
    "alt_ah_attr": QPAttribute.ALT_PATH,
    "min_rnr_timer": QPAttribute.MIN_RNR_TIMER,
    "sq_psn": QPAttribute.SQ_PSN,
    "max_dest_rd_atomic": QPAttribute.MAX_DEST_RD_ATOMIC,
    "path_mig_state": QPAttribute.PATH_MIG_STATE,
    "cap": QPAttribute.CAP,
    "dest_qp_num": QPAttribute.DEST_QPN,
    "rate_limit": QPAttribute.RATE_LIMIT,
}

_A = QPAttribute
_NONE = QPAttribute(0)
_RC, _UC, _UD = QPType.RC, QPType.UC, QPType.UD
_RESET, _INIT, _RTR, _RTS, _SQD, _SQE, _ERR = QPState

_Rule = tuple[QPAttribute, QPAttribute]

# A UD queue pair has no remote access rights, as RDMA needs a connection; it has a Q_Key instead
# (IBTA vol. 1 9.8.3).
_CONNECTED_INIT = _A.PKEY_INDEX | _A.PORT | _A.ACCESS_FLAGS
_DATAGRAM_INIT = _A.PKEY_INDEX | _A.PORT | _A.QKEY
# IBTA vol. 1 9.8.2: UC never acknowledges, so it has no RNR timer and no READs or atomics to serve.
_UC_RTR = _A.AV | _A.PATH_MTU | _A.DEST_QPN | _A.RQ_PSN
_RC_RTR = _UC_RTR | _A.MAX_DEST_RD_ATOMIC | _A.MIN_RNR_TIMER
_RC_RTS = _A.SQ_PSN | _A.TIMEOUT | _A.RETRY_CNT | _A.RNR_RETRY | _A.MAX_QP_RD_ATOMIC
_OPTIONAL_RTR = _A.ALT_PATH | _A.ACCESS_FLAGS | _A.PKEY_INDEX
_UC_RUNNING = _A.CUR_STATE | _A.ALT_PATH | _A.ACCESS_FLAGS | _A.PATH_MIG_STATE
_RC_RUNNING = _UC_RUNNING | _A.MIN_RNR_TIMER
_UD_RUNNING = _A.CUR_STATE | _A.QKEY
_UC_DRAINED = _A.AV | _A.ALT_PATH | _A.ACCESS_FLAGS | _A.PKEY_INDEX | _A.PATH_MIG_STATE
# IBTA vol. 1 10.3.1.5: with nothing in flight, path and timeouts may change.
_RC_DRAINED = (
    _UC_DRAINED
    | _A.PORT
    | _A.TIMEOUT
    | _A.RETRY_CNT
    | _A.RNR_RETRY
    | _A.MAX_QP_RD_ATOMIC
    | _A.MAX_DEST_RD_ATOMIC
    | _A.MIN_RNR_TIMER
)
_NOTIFY = _A.EN_SQD_ASYNC_NOTIFY

# IBTA vol. 1 10.3.1: (from, to) -> type -> (required, optional).  Every state may go to RESET and to ERR,
# with the state as only attribute; Linux ib_verbs.c refuses RESET -> ERR.
_TRANSITIONS: dict[tuple[QPState, QPState], dict[QPType, _Rule]] = {
    (_RESET, _INIT): {
        _RC: (_CONNECTED_INIT, _NONE),
        _UC: (_CONNECTED_INIT, _NONE),
        _UD: (_DATAGRAM_INIT, _NONE),
    },
    (_INIT, _INIT): {
        _RC: (_NONE, _CONNECTED_INIT),
        _UC: (_NONE, _CONNECTED_INIT),
        _UD: (_NONE, _DATAGRAM_INIT),
    },
    (_INIT, _RTR): {
        _RC: (_RC_RTR, _OPTIONAL_RTR),
        _UC: (_UC_RTR, _OPTIONAL_RTR),
        _UD: (_NONE, _A.PKEY_INDEX | _A.QKEY),
    },
    (_RTR, _RTS): {
        _RC: (_RC_RTS, _RC_RUNNING),
        _UC: (_A.SQ_PSN, _UC_RUNNING),
        _UD: (_A.SQ_PSN, _UD_RUNNING),
    },
    (_RTS, _RTS): {
        _RC: (_NONE, _RC_RUNNING),
        _UC: (_NONE, _UC_RUNNING),
        _UD: (_NONE, _UD_RUNNING),
    },
    (_RTS, _SQD): {
        _RC: (_NONE, _NOTIFY),
        _UC: (_NONE, _NOTIFY),
        _UD: (_NONE, _NOTIFY),
    },
    (_SQD, _SQD): {
        _RC: (_NONE, _RC_DRAINED),
        _UC: (_NONE, _UC_DRAINED),
        _UD: (_NONE, _A.PKEY_INDEX | _A.QKEY),
    },
    (_SQD, _RTS): {
        _RC: (_NONE, _RC_RUNNING),
        _UC: (_NONE, _UC_RUNNING),
        _UD: (_NONE, _UD_RUNNING),
    },
    # IBTA vol. 1 10.3.1.6: there is no SQE for RC, whose errors end the connection.
    (_SQE, _RTS): {
        _UC: (_NONE, _A.CUR_STATE | _A.ACCESS_FLAGS),
        _UD: (_NONE, _UD_RUNNING),
    },
}


def _names(attributes: int) -> str:
    known = [bit.name or "" for bit in QPAttribute if attributes & bit]
    # Bits without a name are not in the iteration, but must be in the error's text.
    unknown = attributes & ~sum(QPAttribute)
    return ", ".join(known + [f"unknown attribute {unknown:#x}"] * bool(unknown))


def attributeBits(names: Iterable[str]) -> int:
    """
    Convert attribute names to bits.

    @raise QueuePairError: a name is unknown.
    """
    bits = 0
    for name in names:
        bit = ATTRIBUTE_NAMES.get(name)
        if bit is None:
            raise QueuePairError(f"a queue pair has no attribute {name!r}")
        bits |= bit.value
    return bits


def transitionRule(qpType: QPType, current: QPState, new: QPState) -> tuple[QPAttribute, QPAttribute] | None:
    """
    The attributes that a transition requires, and those that it permits besides.

    @return: (required, optional), or L{None} if there is no such transition.
    """
    # IBTA vol. 1 10.3.1: from any state.
    if new == QPState.RESET or new == QPState.ERR:
        return _NONE, _NONE
    return _TRANSITIONS.get((current, new), {}).get(qpType)


def checkTransition(qpType: QPType, current: QPState, new: QPState, attributes: int | Iterable[str]) -> None:
    """
    Check that a queue pair may change its state with these attributes.

    @param attributes: L{QPAttribute} bits, or names of L{ATTRIBUTE_NAMES}; the state itself may be among
        them.
    @raise QueuePairError: there is no such transition, an attribute is missing, or one is not permitted; the
        text names it.
    """
    refusal = _refusal(qpType, current, new, attributes if isinstance(attributes, int) else tuple(attributes))
    if refusal:
        raise QueuePairError(refusal)


# Each connection takes the same few transitions; the bound covers all of them.
@lru_cache(maxsize=256)
def _refusal(qpType: QPType, current: QPState, new: QPState, attributes: int | tuple[str, ...]) -> str:
    bits = attributes if isinstance(attributes, int) else attributeBits(attributes)
    rule = transitionRule(qpType, current, new)
    step = f"{current.name} -> {new.name} of a queue pair of type {qpType.name}"
    if rule is None:
        return f"there is no transition {step}"
    required, optional = rule
    # Plain integers: the complement of an IntFlag has only the bits that have names.
    missing = int(required) & ~bits
    if missing:
        return f"{step} requires {_names(missing)}"
    unwanted = bits & ~int(required | optional | QPAttribute.STATE)
    return f"{step} does not take {_names(unwanted)}" if unwanted else ""
