"""
Texts of codes, and rates.
"""

from __future__ import annotations

from twisted_ib.verbs.c.functions import handler
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


def _text(texts: tuple[str, ...], code: int) -> CData:
    return lasting(texts[code] if 0 <= code < len(texts) else _UNKNOWN)


@handler
def ibv_node_type_str(node_type: int) -> CData:
    return _text(_NODES, node_type)


@handler
def ibv_port_state_str(port_state: int) -> CData:
    return _text(_PORTS, port_state)


@handler
def ibv_event_type_str(event: int) -> CData:
    return _text(_EVENTS, event)


@handler
def ibv_wc_status_str(status: int) -> CData:
    return _text(_STATUSES, status)


@handler
def ibv_rate_to_mult(rate: int) -> int:
    return next((mult for code, mult, _ in _RATES if code == rate and mult is not None), -1)


@handler
def mult_to_ibv_rate(mult: int) -> int:
    return next((code for code, each, _ in _RATES if each == mult), _NO_LIMIT)


@handler
def ibv_rate_to_mbps(rate: int) -> int:
    return next((mbps for code, _, mbps in _RATES if code == rate), -1)


@handler
def mbps_to_ibv_rate(mbps: int) -> int:
    return next((code for code, _, each in _RATES if each == mbps), _NO_LIMIT)
