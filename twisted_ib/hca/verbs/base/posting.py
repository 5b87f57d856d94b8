"""
Conversion of verbs' work requests and their chains to those of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from twisted_ib.errors import HCAError
from twisted_ib.hca.queues import requests
from twisted_ib.hca.queues.requests import ReceiveRequest, SendOpcode, SendRequest
from twisted_ib.hca.services.operations.rows import OPERATIONS
from twisted_ib.hca.verbs.base.base import checked
from twisted_ib.hca.verbs.base.errors import PyverbsError, PyverbsUserError
from twisted_ib.hca.verbs.base.mem_alloc import processMemory
from twisted_ib.hca.verbs.base.mwbind import MWBindInfo
from twisted_ib.hca.verbs.base.verb import invalid, unsupported
from twisted_ib.hca.verbs.base.wr import SGE, RecvWR, SendWR, storedImmediate
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
_INVALIDATING = frozenset((int(ibv_wr_opcode.IBV_WR_LOCAL_INV), int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)))
_SUPPORTED = {int(each.opcode): each.opcode for each in OPERATIONS}
_OPCODES = frozenset(int(opcode) for opcode in SendOpcode)


def pieces(sges: Iterable[SGE]) -> list[requests.SGE]:
    """
    @return: scatter/gather elements, as the core has them.
    """
    # No comprehension, which is one more call for each request in Python 3.11.
    found = []
    for sge in sges:
        found.append(requests.SGE(sge._addr, sge._length, sge._lkey))
    return found


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
    code, flags = wr._opcode, wr._send_flags
    opcode = _SUPPORTED.get(code)
    if opcode is None:
        if code not in _OPCODES:
            raise invalid(f"Failed to post send: there is no opcode {code}")
        raise unsupported("Failed to post send")
    # As in C: num_sge decides, elements behind it are ignored.
    sges = wr._sg_list[: wr._num_sge]
    if flags & _INLINE:
        request = SendRequest(wr._wr_id, opcode, (), flags & _FLAGS)
        request.inline = gather(device, sges)
    else:
        request = SendRequest(wr._wr_id, opcode, pieces(sges), flags & _FLAGS)
    value = wr._imm_data
    if code in _INVALIDATING:
        request.invalidateKey = value
    elif value:
        request.immediate = storedImmediate(value)
    if wr.target is not None:
        wr.target.fill(request)
    bind = wr.bind_mw
    if bind is not None:
        request.bind = windowBind(bind.mw, bind.bind_info, bind.rkey)
    return request


def _copy(wr: WR, bad: WR | None) -> None:
    # In C bad_wr points into the caller's chain; a Python caller passes an object that is filled in.
    if bad is not None:
        vars(checked(bad, type(wr))).update(vars(wr))


def postSends(device: Any, post: Callable[[SendRequest], object], wr: SendWR, bad: SendWR | None) -> None:
    """
    Post a chain of send requests.

    @param post: posts one.
    @param bad: is overwritten with the request that failed.
    """
    chain: SendWR | None = wr
    while chain is not None:
        try:
            post(sendRequest(device, chain))
        # man ibv_post_send(3): the chain stops at the first failure; bad_wr tells where, and the requests
        # before it stay posted.
        except (HCAError, PyverbsError):
            _copy(chain, bad)
            raise
        chain = chain.next_wr


def postReceives(post: Callable[[ReceiveRequest], object], wr: RecvWR, bad: RecvWR | None) -> None:
    """
    Post a chain of receives; parameters as in L{postSends}.
    """
    chain: RecvWR | None = wr
    while chain is not None:
        try:
            post(ReceiveRequest(chain._wr_id, pieces(chain.sg_list[: chain._num_sge])))
        except (HCAError, PyverbsError):
            _copy(chain, bad)
            raise
        chain = chain.next_wr


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
