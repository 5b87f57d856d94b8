"""
Texts of codes, and rates.
"""

from __future__ import annotations

from twisted_ib.hca.base.events import EventType
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, lasting

_NODES = {1: "channel adapter", 2: "switch", 3: "router", 4: "RNIC", 5: "usNIC", 6: "usNIC over UDP"}
_PORTS = {0: "no change", 1: "down", 2: "initializing", 3: "armed", 4: "active", 5: "active, deferred"}
#: IBTA vol. 1 11.6.2, by the numbers of C{enum ibv_wc_status}.
_STATUSES = (
    "success",
    "local length error",
    "local queue pair operation error",
    "local EE context operation error",
    "local protection error",
    "work request flushed",
    "memory window bind error",
    "bad response",
    "local access error",
    "remote invalid request",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation",
    "remote invalid RD request",
    "remote aborted",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout",
    "general error",
    "tag matching error",
    "tag matching: rendezvous incomplete",
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


@handler
def ibv_node_type_str(node_type: int) -> CData:
    return lasting(_NODES.get(node_type, "unknown"))


@handler
def ibv_port_state_str(port_state: int) -> CData:
    return lasting(_PORTS.get(port_state, "unknown"))


@handler
def ibv_event_type_str(event: int) -> CData:
    known = {int(each) for each in EventType}
    return lasting(EventType(event).name.replace("_", " ").lower() if event in known else "unknown")


@handler
def ibv_wc_status_str(status: int) -> CData:
    return lasting(_STATUSES[status] if 0 <= status < len(_STATUSES) else "unknown")


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
