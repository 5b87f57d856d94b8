"""
Texts of codes, and rates.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_ib.verbs.c.functions import handlers
from twisted_ib.verbs.c.pointers import CData, lasting

#: Of what has no text.
_UNKNOWN = "unknown"
# The words of rdma-core's libibverbs (44), which programs print and scripts look for; each from code 0.
_NODES = (
    *(_UNKNOWN, "InfiniBand channel adapter", "InfiniBand switch", "InfiniBand router", "iWARP NIC"),
    *("usNIC", "usNIC UDP", "unspecified"),
)
_PORTS = ("no state change (NOP)", "down", "init", "armed", "active", "active defer")
_EVENTS = (
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
)
_STATUSES = (
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
)
#: C{enum ibv_rate}: the code, the multiple of 2.5 Gbit/s or None, and Mbit/s of the data rate.
_RATES: tuple[tuple[int, int | None, int], ...] = (
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120000),
    (11, None, 14062),
    (12, None, 56250),
    (13, None, 112500),
    (14, None, 168750),
    (15, None, 25781),
    (16, None, 103125),
    (17, None, 206250),
    (18, None, 309375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425000),
    (22, 240, 637500),
    (23, 320, 850000),
    (24, 480, 1275000),
)
#: IBV_RATE_MAX, for no limit.
_NO_LIMIT = 0


_TEXTS = {
    "ibv_node_type_str": _NODES,
    "ibv_port_state_str": _PORTS,
    "ibv_event_type_str": _EVENTS,
    "ibv_wc_status_str": _STATUSES,
}
#: The columns of what is known and of what is asked for, and the answer where there is none.
_CONVERSIONS = {
    "ibv_rate_to_mult": (0, 1, -1),
    "mult_to_ibv_rate": (1, 0, _NO_LIMIT),
    "ibv_rate_to_mbps": (0, 2, -1),
    "mbps_to_ibv_rate": (2, 0, _NO_LIMIT),
}


@handlers(*_TEXTS)
def _text(name: str) -> Callable[[int], CData]:
    texts = _TEXTS[name]
    return lambda code: lasting(texts[code] if 0 <= code < len(texts) else _UNKNOWN)


@handlers(*_CONVERSIONS)
def _conversion(name: str) -> Callable[[int], int]:
    known, asked, otherwise = _CONVERSIONS[name]

    def convert(value: int) -> int:
        found = next((row[asked] for row in _RATES if row[known] == value), None)
        return otherwise if found is None else found

    return convert
