"""
Conversion of verbs' work requests and their chains to those of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs

from twisted_ib.errors import HCAError
from twisted_ib.hca.queues import requests
from twisted_ib.hca.queues.requests import Destination, ReceiveRequest, SendOpcode, SendRequest
from twisted_ib.hca.services.operations.rows import OPERATIONS
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

# IBV_SEND_IP_CSUM is left out: a checksum offload, which no device here has.
_FLAGS = int(
    ibv_send_flags.IBV_SEND_FENCE
    | ibv_send_flags.IBV_SEND_SIGNALED
    | ibv_send_flags.IBV_SEND_SOLICITED
    | ibv_send_flags.IBV_SEND_INLINE
)
_INLINE = int(ibv_send_flags.IBV_SEND_INLINE)
# libibverbs/verbs.h: imm_data and invalidate_rkey share a union.
_INVALIDATING = (ibv_wr_opcode.IBV_WR_LOCAL_INV, ibv_wr_opcode.IBV_WR_SEND_WITH_INV)
_SUPPORTED = frozenset(each.opcode for each in OPERATIONS)
_OPCODES = {int(opcode): opcode for opcode in SendOpcode}


def pieces(sges: Iterable[SGE]) -> list[requests.SGE]:
    """
    @return: scatter/gather elements, as the core has them.
    """
    return [requests.SGE(sge.addr, sge.length, sge.lkey) for sge in sges]


def gather(device: Any, sges: Iterable[SGE]) -> bytes:
    """
    @return: the octets of an inline request, read now.  They may be memory of the process.
    @raise PyverbsRDMAError: there is no such memory (EINVAL, EFAULT).
    """
    # man ibv_post_send(3): with IBV_SEND_INLINE the lkey is not checked and the buffer may be reused at once.
    return b"".join([_octets(device, sge.addr, sge.length, sge.lkey) for sge in sges])


def _octets(device: Any, address: int, length: int, key: int) -> memoryview | bytes:
    if not length:
        return b""
    regions = device.memory.regions
    # Regions first: their addresses are random names, which the process cannot dereference.
    for region in [regions[key]] if key in regions else regions.values():
        start = address - region.address
        if 0 <= start <= region.length - length:
            view: memoryview = region.view
            return view[start : start + length]
    # A valid key with an address outside of its region is a fault of the program, not a plain pointer.
    if key in regions:
        raise invalid(f"The memory region of key {key:#x} has no {length} octets at {address:#x}")
    return processMemory(address, length, False)


def windowBind(mw: Any, info: MWBindInfo, key: int | None) -> requests.WindowBind:
    """
    @param key: the rkey that the window will have; None for a random one.
    @return: the bind, as the core has it.
    """
    mw._check()
    region: Any = info.mr
    # Now, not at execution: the core object of a closed region must not reach the send queue.
    region._check()
    return requests.WindowBind(mw._core, region._core, info.addr, info.length, int(info.mw_access_flags), key)


def sendRequest(device: Any, wr: SendWR) -> SendRequest:
    """
    @param device: the core's.
    @return: the request, as the core has it.
    @raise PyverbsRDMAError: it is invalid (EINVAL) or not supported (EOPNOTSUPP).
    """
    opcode = _OPCODES.get(wr.opcode)
    if opcode is None:
        raise invalid(f"Failed to post send: there is no opcode {wr.opcode}")
    if opcode not in _SUPPORTED:
        raise unsupported("Failed to post send")
    # As in C: num_sge decides, elements behind it are ignored.
    sges = wr.sg_list[: wr.num_sge]
    more: dict[str, Any] = {}
    if wr.opcode in _INVALIDATING:
        more["invalidateKey"] = wr.imm_data
    else:
        more["immediate"] = storedImmediate(wr.imm_data)
    target = wr.target
    if isinstance(target, RDMATarget):
        more["remoteAddress"], more["remoteKey"] = target.remote_addr, target.rkey
        # libibverbs/verbs.h wr.atomic: compare_add is the operand of FETCH_ADD too; swap is ignored there.
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
    @return: the destination of a datagram, as the core has it.
    """
    handle: Any = target.ah
    handle._check()
    return Destination(handle._core, target.remote_qpn, target.remote_qkey)


def _post(chain: WR | None, post: Callable[[WR], object], bad: WR | None) -> None:
    wr: Any = chain
    while wr is not None:
        try:
            post(wr)
        # man ibv_post_send(3): the chain stops at the first failure; bad_wr tells where, and the requests
        # before it stay posted.
        except (HCAError, PyverbsError):
            if bad is not None:
                _copy(wr, checked(bad, type(wr)))
            raise
        wr = wr.next_wr


def _copy(wr: Any, bad: Any) -> None:
    # In C bad_wr points into the caller's chain; a Python caller passes an object that is filled in.
    for field in attrs.fields(type(wr)):
        setattr(bad, field.name, getattr(wr, field.name))


def postSends(device: Any, post: Callable[[SendRequest], object], wr: SendWR, bad: SendWR | None) -> None:
    """
    Post a chain of send requests.

    @param post: posts one.
    @param bad: is overwritten with the request that failed.
    """
    _post(wr, lambda one: post(sendRequest(device, one)), bad)


def postReceives(post: Callable[[ReceiveRequest], object], wr: RecvWR, bad: RecvWR | None) -> None:
    """
    Post a chain of receives; parameters as in L{postSends}.
    """
    _post(wr, lambda one: post(ReceiveRequest(one.wr_id, pieces(one.sg_list[: one.num_sge]))), bad)


def listed(sges: Sequence[SGE], num_sge: int) -> list[SGE]:
    """
    @return: copies of the first C{num_sge} elements.
    @raise PyverbsUserError: there are fewer.
    """
    chosen = list(sges)[:num_sge]
    if len(chosen) < num_sge:
        raise PyverbsUserError(f"num_sge is {num_sge}, but there are {len(chosen)} SGEs")
    # Copies, as copy_sg_array in pyverbs/wr.pyx: a later change of the caller's element has no effect.
    return [SGE(sge.addr, sge.length, sge.lkey) for sge in chosen]
