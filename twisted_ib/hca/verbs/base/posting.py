"""
Work requests of verbs as those of the core, and chains of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs

from twisted_ib.errors import HCAError
from twisted_ib.hca.queues import requests
from twisted_ib.hca.queues.requests import Destination, ReceiveRequest, SendOpcode, SendRequest
from twisted_ib.hca.verbs.base.base import checked
from twisted_ib.hca.verbs.base.errors import PyverbsError, PyverbsUserError
from twisted_ib.hca.verbs.base.mem_alloc import processMemory
from twisted_ib.hca.verbs.base.mwbind import MWBindInfo
from twisted_ib.hca.verbs.base.verb import invalid, unsupported
from twisted_ib.hca.verbs.base.wr import (
    SGE,
    AtomicTarget,
    DatagramTarget,
    RDMATarget,
    RecvWR,
    SendWR,
    storedImmediate,
)
from twisted_ib.hca.verbs.enums.queues import ibv_send_flags, ibv_wr_opcode

WR = TypeVar("WR", SendWR, RecvWR)

_FLAGS = int(
    ibv_send_flags.IBV_SEND_FENCE
    | ibv_send_flags.IBV_SEND_SIGNALED
    | ibv_send_flags.IBV_SEND_SOLICITED
    | ibv_send_flags.IBV_SEND_INLINE
)
_INLINE = int(ibv_send_flags.IBV_SEND_INLINE)
_INVALIDATING = (ibv_wr_opcode.IBV_WR_LOCAL_INV, ibv_wr_opcode.IBV_WR_SEND_WITH_INV)
_UNSUPPORTED = (ibv_wr_opcode.IBV_WR_TSO, ibv_wr_opcode.IBV_WR_FLUSH, ibv_wr_opcode.IBV_WR_ATOMIC_WRITE)
_OPCODES = {int(opcode): opcode for opcode in SendOpcode}


def pieces(sges: Iterable[SGE]) -> list[requests.SGE]:
    """
    @return: scatter/gather elements as the core has them.
    """
    return [requests.SGE(sge.addr, sge.length, sge.lkey) for sge in sges]


def gather(device: Any, sges: Iterable[SGE]) -> bytes:
    """
    The octets that an inline request carries, read now: by the key, or by the address alone if
    there is no such region, as inline data needs no key.  It may be memory of the process.

    @raise PyverbsRDMAError: they are nowhere (EINVAL, EFAULT).
    """
    return b"".join([_octets(device, sge.addr, sge.length, sge.lkey) for sge in sges])


def _octets(device: Any, address: int, length: int, key: int) -> memoryview | bytes:
    """
    @return: octets of a region of the device, or else of the process.
    """
    if not length:
        return b""
    regions = device.memory.regions
    for region in [regions[key]] if key in regions else regions.values():
        start = address - region.address
        if 0 <= start <= region.length - length:
            view: memoryview = region.view
            return view[start : start + length]
    if key in regions:
        raise invalid(f"The memory region of key {key:#x} has no {length} octets at {address:#x}")
    return processMemory(address, length, False)


def windowBind(mw: Any, info: MWBindInfo, key: int | None) -> requests.WindowBind:
    """
    @param mw: an MW.
    @param info: what it shall open.
    @param key: the key that it will have.

    @return: the same as the core has it.
    """
    mw._check()
    region: Any = info.mr
    region._check()
    return requests.WindowBind(mw._core, region._core, info.addr, info.length, int(info.mw_access_flags), key)


def sendRequest(device: Any, wr: SendWR) -> SendRequest:
    """
    @param device: the core's.
    @param wr: a request.

    @return: the same as the core has it.

    @raise PyverbsRDMAError: it cannot be (EINVAL), or is not supported (EOPNOTSUPP).
    """
    if wr.opcode in _UNSUPPORTED:
        raise unsupported("Failed to post send")
    opcode = _OPCODES.get(wr.opcode)
    if opcode is None:
        raise invalid(f"Failed to post send: there is no opcode {wr.opcode}")
    sges = wr.sg_list[: wr.num_sge]
    more: dict[str, Any] = {}
    if wr.opcode in _INVALIDATING:
        more["invalidateKey"] = wr.imm_data
    else:
        more["immediate"] = storedImmediate(wr.imm_data)
    target = wr.target
    if isinstance(target, RDMATarget):
        more["remoteAddress"], more["remoteKey"] = target.remote_addr, target.rkey
        if isinstance(target, AtomicTarget):
            more["compare"], more["swap"] = target.compare_add, target.swap
    elif isinstance(target, DatagramTarget):
        more["destination"] = destination(target)
    if wr.bind_mw is not None:
        more["bind"] = windowBind(wr.bind_mw.mw, wr.bind_mw.bind_info, wr.bind_mw.rkey)
    if wr.send_flags & _INLINE:
        more["inline"] = gather(device, sges)
        sges = []
    return SendRequest(wr.wr_id, opcode, pieces(sges), wr.send_flags & _FLAGS, **more)


def destination(target: DatagramTarget) -> Destination:
    """
    @return: where a datagram goes, as the core has it.
    """
    handle: Any = target.ah
    handle._check()
    return Destination(handle._core, target.remote_qpn, target.remote_qkey)


def _post(chain: WR | None, post: Callable[[WR], object], bad: WR | None) -> None:
    """
    Post a chain of requests; at the first that cannot be posted it ends.

    @param bad: becomes a copy of that one.
    """
    wr: Any = chain
    while wr is not None:
        try:
            post(wr)
        except (HCAError, PyverbsError):
            if bad is not None:
                _copy(wr, checked(bad, type(wr)))
            raise
        wr = wr.next_wr


def _copy(wr: Any, bad: Any) -> None:
    for field in attrs.fields(type(wr)):
        setattr(bad, field.name, getattr(wr, field.name))


def postSends(device: Any, post: Callable[[SendRequest], object], wr: SendWR, bad: SendWR | None) -> None:
    """
    Post a chain of send requests.

    @param device: the core's.
    @param post: posts one.
    @param bad: becomes a copy of the one that could not be posted.
    """
    _post(wr, lambda one: post(sendRequest(device, one)), bad)


def postReceives(post: Callable[[ReceiveRequest], object], wr: RecvWR, bad: RecvWR | None) -> None:
    """
    Post a chain of receives.

    @param post: posts one.
    @param bad: becomes a copy of the one that could not be posted.
    """
    _post(wr, lambda one: post(ReceiveRequest(one.wr_id, pieces(one.sg_list[: one.num_sge]))), bad)


def listed(sges: Sequence[SGE], num_sge: int) -> list[SGE]:
    """
    @return: copies of the first elements of a list.

    @raise PyverbsUserError: there are fewer.
    """
    chosen = list(sges)[:num_sge]
    if len(chosen) < num_sge:
        raise PyverbsUserError(f"num_sge is {num_sge}, but there are {len(chosen)} SGEs")
    return [SGE(sge.addr, sge.length, sge.lkey) for sge in chosen]
