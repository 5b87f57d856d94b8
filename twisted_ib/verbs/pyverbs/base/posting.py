"""
Conversion of verbs' work requests and their chains to those of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from twisted_ib.errors import HCAError
from twisted_ib.hca.queues import requests
from twisted_ib.hca.queues.receives import SGE as Piece
from twisted_ib.hca.queues.receives import ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.operations.message import PULL_LEAST
from twisted_ib.hca.services.operations.rows import OPERATIONS
from twisted_ib.hca.services.operations.send import PostedSend
from twisted_ib.hca.services.operations.write import PostedWrite
from twisted_ib.verbs.pyverbs.base.base import checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsError, PyverbsUserError
from twisted_ib.verbs.pyverbs.base.mem_alloc import processMemory
from twisted_ib.verbs.pyverbs.base.verb import failure, invalid, unsupported
from twisted_ib.verbs.pyverbs.base.wr import (
    SGE,
    MWBindInfo,
    RDMATarget,
    RecvWR,
    SendWR,
    storedImmediate,
)
from twisted_ib.verbs.pyverbs.enums.queues import ibv_send_flags, ibv_wr_opcode

#: Those flags of C{ibv_send_flags} that count.  IBV_SEND_IP_CSUM is left out: a checksum offload, which no
#: device here has.
FLAGS = int(
    ibv_send_flags.IBV_SEND_FENCE
    | ibv_send_flags.IBV_SEND_SIGNALED
    | ibv_send_flags.IBV_SEND_SOLICITED
    | ibv_send_flags.IBV_SEND_INLINE
)
#: The flag of a request whose payload is read when it is posted.
INLINE = int(ibv_send_flags.IBV_SEND_INLINE)
_SEND, _WRITE = int(ibv_wr_opcode.IBV_WR_SEND), int(ibv_wr_opcode.IBV_WR_RDMA_WRITE)
#: The flags of a request that L{postPlain} may post itself.
_PLAIN = (0, int(ibv_send_flags.IBV_SEND_SIGNALED))
#: Operations with a key in the place of immediate data: libibverbs/verbs.h has a union of both.
INVALIDATING = frozenset((int(ibv_wr_opcode.IBV_WR_LOCAL_INV), int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)))


class _Opcodes(dict[int, SendOpcode]):
    def __missing__(self, code: int) -> SendOpcode:
        if code in SendOpcode._value2member_map_:
            raise unsupported("Failed to post send")
        raise invalid(f"Failed to post send: there is no opcode {code}")


#: The operations by their numbers; any other raises what a post of it does: EINVAL, or EOPNOTSUPP.
OPCODES: Mapping[int, SendOpcode] = _Opcodes({int(each.opcode): each.opcode for each in OPERATIONS})


def pieces(sges: Iterable[SGE]) -> list[Piece]:
    """
    @return: scatter/gather elements, as the core has them.
    """
    return [Piece(sge.addr, sge.length, sge.lkey) for sge in sges]


def gather(device: Any, pieces: Iterable[Piece]) -> bytes:
    """
    @return: the octets of an inline request, read now.  They may be memory of the process.
    @raise PyverbsRDMAError: there is no such memory (EFAULT).
    """
    # man ibv_post_send(3): with IBV_SEND_INLINE the lkey is not checked and the buffer may be reused at once.
    return b"".join([_octets(device, piece.address, piece.length, piece.key) for piece in pieces])


def _octets(device: Any, address: int, length: int, key: int) -> memoryview | bytes:
    if not length:
        return b""
    regions = device.memory.regions
    # Regions first: their addresses may be random names, which the process cannot dereference.  The key only
    # says which is likely: UCX leaves that of its last request.
    likely = regions.get(key)
    for region in (likely, *regions.values()) if likely is not None else regions.values():
        start = address - region.address
        if 0 <= start <= region.length - length:
            view: memoryview = region.view
            return view[start : start + length]
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


def postPlain(device: Any, work: Any, wr: SendWR) -> SendWR | None:
    """
    As L{postSend}, on a connection that has SEND and WRITE: nearly all requests are one of them, from one
    short piece of memory, and need no request object of the core.
    """
    pieces, flags = wr._pieces, wr._send_flags
    if (
        len(pieces) == wr._num_sge == 1
        and (length := (piece := pieces[0]).length) < PULL_LEAST
        and flags in _PLAIN
        and wr._sges is None
        and wr.bind_mw is None
    ):
        code, target = wr._opcode, wr.target
        if code == _SEND and target is None:
            send = PostedSend(wr._wr_id, flags, piece.address, length, piece.key, None)
            work.requester.enqueueSends((send,))
            return wr.next_wr
        if code == _WRITE and target.__class__ is RDMATarget:
            remote = target._remote_addr, target._rkey
            write = PostedWrite(wr._wr_id, flags, piece.address, length, piece.key, None, remote)
            work.requester.enqueueSends((write,))
            return wr.next_wr
    return postSend(device, work, wr)


def postSend(device: Any, work: Any, wr: SendWR) -> SendWR | None:
    """
    Post a request to the send queue.

    @param device: the core's.
    @param work: the core's work queues.
    @return: the next request of the chain.
    @raise PyverbsRDMAError: it is invalid (EINVAL) or not supported (EOPNOTSUPP).
    """
    code, flags = wr._opcode, wr._send_flags
    opcode = OPCODES[code]
    pieces = wr._pieces
    if wr._sges is not None or len(pieces) != wr._num_sge:
        pieces = wr.pieces()
    if flags & INLINE:
        request = SendRequest(wr._wr_id, opcode, (), flags & FLAGS)
        request.inline = gather(device, pieces)
    else:
        request = SendRequest(wr._wr_id, opcode, pieces, flags & FLAGS)
    value = wr._imm_data
    if code in INVALIDATING:
        request.invalidateKey = value
    elif value:
        request.immediate = storedImmediate(value)
    if wr.target is not None:
        wr.target.fill(request)
    bind = wr.bind_mw
    if bind is not None:
        request.bind = windowBind(bind.mw, bind.bind_info, bind.rkey)
    work.requester.enqueue(request, True)
    return wr.next_wr


def postReceive(accept: Callable[[ReceiveRequest, bool], object], wr: RecvWR) -> RecvWR | None:
    """
    Post a receive.

    @param accept: the receive queue's: takes a request whose numbers are known to fit.
    @return: the next request of the chain.
    """
    accept(ReceiveRequest(wr._wr_id, wr.pieces()), True)
    return wr.next_wr


def refused(message: str, bad: Any, wr: Any, error: BaseException) -> None:
    """
    Tell a program which request of a chain failed.

    @param message: the verb that failed.
    @param bad: is overwritten with C{wr}, unless it is L{None}.
    @raise PyverbsRDMAError: the error, with its errno.
    """
    # In C bad_wr points into the caller's chain; a Python caller passes an object that is filled in.
    if bad is not None:
        vars(checked(bad, type(wr))).update(vars(wr))
    if isinstance(error, (HCAError, OSError)) and not isinstance(error, PyverbsError):
        raise failure(message, error) from error


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
