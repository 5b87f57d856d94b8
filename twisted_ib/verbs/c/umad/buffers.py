"""
The buffers of programs: C{struct ib_user_mad}, and the MAD behind it; and memory of this library that
programs are given and give back.
"""

from __future__ import annotations

import os
import sys
from ipaddress import IPv6Address
from socket import htonl, htons, ntohl, ntohs

from _twisted_ib_umad import ffi

from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, addressOf, given

#: By its address, until the program releases it.
_held: dict[int, object] = {}

#: Octets in front of the MAD.
HEADER_BYTES = ffi.sizeof("struct ib_user_mad")

#: The level that C{umad_debug} has set.
_level = [0]


def hold(made: CData, *parts: CData) -> CData:
    """
    Keep memory for a program, until L{release}.

    @param parts: what it points to.
    @return: C{made}.
    """
    _held[addressOf(made)] = made, parts
    return made


def isHeld(pointer: CData) -> bool:
    """
    @return: whether there is memory of this library, which is not released.
    """
    return addressOf(pointer) in _held


def release(pointer: CData) -> None:
    """
    Free memory; harmless if it is not of this library, or is free.
    """
    _held.pop(addressOf(pointer), None)


def textOf(pointer: CData) -> str:
    """
    @return: a string of C; no text for a null pointer.
    """
    return ffi.string(pointer).decode("utf-8", "replace") if pointer else ""


def mad(umad: CData) -> CData:
    """
    @return: the C{struct ib_user_mad} of a buffer.
    @raise HandleError: there is none (EINVAL).
    """
    given(umad)
    return ffi.cast("struct ib_user_mad *", umad)


@handler
def umad_size() -> int:
    return int(HEADER_BYTES)


@handler
def umad_get_mad(umad: CData) -> CData:
    return ffi.cast("char *", umad) + HEADER_BYTES if umad else ffi.NULL


@handler
def umad_status(umad: CData) -> int:
    return int(mad(umad).status)


@handler
def umad_get_mad_addr(umad: CData) -> CData:
    return ffi.addressof(mad(umad), "addr") if umad else ffi.NULL


@handler
def umad_set_grh(umad: CData, mad_addr: CData) -> int:
    """
    Set the GRH, or that there is none; the flow label is in the host's byte order here.
    """
    target = mad(umad).addr
    target.grh_present = bool(mad_addr)
    if mad_addr:
        source = ffi.cast("struct ib_mad_addr *", mad_addr)
        target.gid = source.gid
        target.flow_label = htonl(source.flow_label)
        target.hop_limit, target.traffic_class = source.hop_limit, source.traffic_class
    return 0


@handler
def umad_set_addr(umad: CData, dlid: int, dqp: int, sl: int, qkey: int) -> int:
    number, key = (htonl(each & 0xFFFFFFFF) for each in (dqp, qkey))
    return umad_set_addr_net(umad, htons(dlid & 0xFFFF), number, sl, key)


@handler
def umad_set_addr_net(umad: CData, dlid: int, dqp: int, sl: int, qkey: int) -> int:
    target = mad(umad).addr
    target.lid, target.qpn, target.sl, target.qkey = dlid, dqp, sl & 0xFF, qkey
    return 0


@handler
def umad_set_pkey(umad: CData, pkey_index: int) -> int:
    mad(umad).addr.pkey_index = pkey_index & 0xFFFF
    return 0


@handler
def umad_get_pkey(umad: CData) -> int:
    return int(mad(umad).addr.pkey_index)


@handler
def umad_debug(level: int) -> int:
    """
    Set how much is written to the standard error, unless it is negative.
    """
    if level >= 0:
        _level[0] = level
    return _level[0]


def debug(text: str) -> None:
    """
    Write a line if the program has asked for these.
    """
    if _level[0]:
        _say(text)


def _say(text: str) -> None:
    print(f"libibumad [{os.getpid()}]: {text}", file=sys.stderr, flush=True)


@handler
def umad_addr_dump(addr: CData) -> None:
    given(addr)
    gid = IPv6Address(bytes(ffi.buffer(addr.gid)))
    _say(
        f"qpn {ntohl(addr.qpn)} qkey {ntohl(addr.qkey):#x} lid {ntohs(addr.lid)} sl {addr.sl} "
        f"grh_present {addr.grh_present} gid_index {addr.gid_index} hop_limit {addr.hop_limit} "
        f"traffic_class {addr.traffic_class} flow_label {ntohl(addr.flow_label):#x} "
        f"pkey_index {addr.pkey_index} gid {gid}"
    )


@handler
def umad_dump(umad: CData) -> None:
    found = mad(umad)
    _say(f"agent {found.agent_id} status {found.status} timeout {found.timeout_ms} retries {found.retries}")
    umad_addr_dump(ffi.addressof(found, "addr"))
