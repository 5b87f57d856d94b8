"""
Work requests, scatter/gather elements and the parameters of binding a memory window, as plain values.

Source: rdma-core 65, C{pyverbs/wr.pyx}, C{pyverbs/mr.pyx}, C{libibverbs/verbs.h}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from operator import index
from typing import Any, Protocol

import attrs

from twisted_ib.hca.queues.receives import SGE as Piece
from twisted_ib.hca.queues.requests import Destination, SendRequest
from twisted_ib.verbs.core.hub import hub, locked
from twisted_ib.verbs.pyverbs.base.base import (
    PyverbsCM,
    PyverbsObject,
    flagged,
    inc_rkey,
    table,
    u32,
    u64,
    unsigned,
)
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.enums.queues import ibv_send_flags, ibv_wr_opcode

# pyverbs/wr.pyx mw_opcodes: the requests that may have no SGE.  A plain SEND of no octets needs one, too.
_NO_SGE = (ibv_wr_opcode.IBV_WR_LOCAL_INV, ibv_wr_opcode.IBV_WR_BIND_MW, ibv_wr_opcode.IBV_WR_SEND_WITH_INV)
# Plain integers: members of an enumeration cost more to convert.
_SEND = int(ibv_wr_opcode.IBV_WR_SEND)
_SIGNALED = int(ibv_send_flags.IBV_SEND_SIGNALED)


@attrs.define(eq=False)
class MWBindInfo(PyverbsCM):
    """
    The part of a memory region that a window opens (C{struct ibv_mw_bind_info}).

    @ivar addr: the window's first octet, as an address of the region.
    @ivar length: in octets.
    @ivar mw_access_flags: the remote rights, bits of C{ibv_access_flags}.
    """

    # Any verbs object, as MR's module imports this one; L{windowBind} checks that it is a region.
    mr: PyverbsObject = attrs.field(validator=attrs.validators.instance_of(PyverbsObject))
    addr: int = attrs.field(converter=u64)
    length: int = attrs.field(converter=u64)
    mw_access_flags: int = attrs.field(converter=u32)

    def __str__(self) -> str:
        rows = [("Addr", self.addr), ("Length", self.length), ("MW access flags", self.mw_access_flags)]
        return "MWBindInfo:\n" + table(rows)


@attrs.define(eq=False)
class MWBind(PyverbsCM):
    """
    A request to bind a type 1 window (C{struct ibv_mw_bind}).

    @ivar send_flags: bits of C{ibv_send_flags}.
    @ivar wr_id: the id of its completion.
    """

    # C's field is bind_info; the name is that of the parameter in pyverbs/mr.pyx.
    info: MWBindInfo = attrs.field(validator=attrs.validators.instance_of(MWBindInfo))
    send_flags: int = attrs.field(converter=u32)
    wr_id: int = attrs.field(default=0, converter=u64)

    def __str__(self) -> str:
        return "MWBind:\n" + table([("WR id", self.wr_id), ("Send flags", self.send_flags)])


def storedImmediate(value: int) -> int:
    """
    Convert immediate data between the big-endian integer of the wire and the integer a program reads from
    memory.

    @param value: 32 bits; the function is its own inverse.
    """
    # IBTA vol. 1 9.3: ImmDt is opaque to the transport.  libibverbs/verbs.h has __be32 imm_data: a program
    # stores htonl(x), and the peer's ntohl gives x on any machine.
    return int.from_bytes(value.to_bytes(4, "big"), sys.byteorder)


class _HasRkey(Protocol):
    @property
    def rkey(self) -> int:
        pass


class SGE(PyverbsCM):
    """
    A scatter/gather element: a piece of registered memory.

    @ivar addr: its first octet, as an address of the region.
    @ivar length: in octets.
    @ivar lkey: the region's local key.
    """

    __slots__ = ("_addr", "_length", "_lkey")

    addr: int = unsigned("addr", 64)
    length: int = unsigned("length", 32)
    lkey: int = unsigned("lkey", 32)

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        """
        @raise TypeError: one of them is no integer; so too in the other classes here.
        @raise OverflowError: one is negative or too wide.
        """
        self._addr = addr = index(addr)
        self._length = length = index(length)
        self._lkey = lkey = index(lkey)
        # One test for all, as nearly all pass; the setters find the field.
        if addr >> 64 or (length | lkey) >> 32:
            self.addr, self.length, self.lkey = addr, length, lkey

    @locked
    def read(self, length: int, offset: int) -> bytes:
        """
        @param length: octets.
        @param offset: of the first octet, from C{addr}.
        @return: the octets in the region of C{lkey}.
        @raise PyverbsUserError: no region of this process has such a key with such octets.
        """
        # pyverbs dereferences the address.  Here it may be a random name, so the regions are searched.
        for device in hub.devices:
            region = device.memory.regions.get(self.lkey)
            if region is not None:
                start = self.addr + offset - region.address
                if length >= 0 and 0 <= start <= region.length - length:
                    return bytes(region.view[start : start + length])
        raise PyverbsUserError(f"No memory region has {length} octets at {self.addr + offset:#x}")

    def __str__(self) -> str:
        return table([("Address", hex(self.addr)), ("Length", self.length), ("Key", hex(self.lkey))])


def _copied(sg: Sequence[SGE] | None, count: int) -> list[Piece]:
    # Copies, as copy_sg_array in pyverbs/wr.pyx: the caller may use the elements again for another one.
    if count == 1 and sg and isinstance(sge := sg[0], SGE):
        return [Piece(sge._addr, sge._length, sge._lkey)]
    pieces = [
        Piece(sge._addr, sge._length, sge._lkey) for sge in islice(sg or (), count) if isinstance(sge, SGE)
    ]
    if len(pieces) < count:
        raise PyverbsUserError(f"num_sge is {count}, but sg has not as many SGEs")
    return pieces


class _WorkRequest(PyverbsCM):
    # The scatter/gather list is kept as the core has it, which does not change it; elements of verbs are made
    # when the program asks for them, and count from then on, as it may change them.
    _pieces: list[Piece]
    _sges: list[SGE] | None = None
    _num_sge: int

    def _elements(self) -> list[SGE]:
        if self._sges is None:
            self._sges = [SGE(piece.address, piece.length, piece.key) for piece in self._pieces]
        return self._sges

    def pieces(self) -> list[Piece]:
        # The elements that count, as the core has them.
        pieces, count = self._pieces, self._num_sge
        if self._sges is not None:
            pieces = [Piece(sge.addr, sge.length, sge.lkey) for sge in self._sges]
        # As in C: num_sge decides, elements behind it are ignored.
        return pieces if len(pieces) == count else pieces[:count]


class RecvWR(_WorkRequest):
    """
    A receive request.

    @ivar wr_id: the id of its completion.
    @ivar num_sge: how many elements of C{sg_list} count.
    @ivar next_wr: the next request of a chain, or None.
    """

    wr_id: int = unsigned("wr_id", 64)
    num_sge: int = unsigned("num_sge", 32)

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        """
        @raise PyverbsUserError: C{sg} has fewer than C{num_sge} elements.
        """
        self._wr_id = wr_id = index(wr_id)
        self._num_sge = num_sge = index(num_sge)
        if wr_id >> 64 or num_sge >> 32:
            self.wr_id, self.num_sge = wr_id, num_sge
        self._pieces = _copied(sg, num_sge)
        self.next_wr = next_wr

    @property
    def sg_list(self) -> list[SGE]:
        """
        The buffers, in copies of the elements given.
        """
        return self._elements()

    @sg_list.setter
    def sg_list(self, val: list[SGE]) -> None:
        self._sges = val

    def __str__(self) -> str:
        return table([("WR ID", self.wr_id), ("Num SGE", self.num_sge)])


class RDMATarget(PyverbsObject):
    """
    The remote memory of an RDMA READ or WRITE (the RETH, IBTA vol. 1 9.3).

    @ivar remote_addr: an address of the peer's region or window.
    @ivar rkey: its remote key.
    """

    __slots__ = ("_remote_addr", "_rkey")

    remote_addr: int = unsigned("remote_addr", 64)
    rkey: int = unsigned("rkey", 32)

    def __init__(self, remote_addr: int, rkey: int) -> None:
        self._remote_addr = remote_addr = index(remote_addr)
        self._rkey = rkey = index(rkey)
        if remote_addr >> 64 or rkey >> 32:
            self.remote_addr, self.rkey = remote_addr, rkey

    def fill(self, request: SendRequest) -> None:
        """
        Put it into a request of the core.
        """
        request.remoteAddress, request.remoteKey = self._remote_addr, self._rkey


class AtomicTarget(RDMATarget):
    """
    The remote memory of an atomic, and its operands (the AtomicETH).

    @ivar compare_add: 64 bits: the operand of FETCH_ADD, or what CMP_SWP compares with.
    @ivar swap: 64 bits: what CMP_SWP stores if the values are equal.
    """

    __slots__ = ("_compare_add", "_swap")

    compare_add: int = unsigned("compare_add", 64)
    swap: int = unsigned("swap", 64)

    def __init__(self, remote_addr: int, rkey: int, compare_add: int, swap: int) -> None:
        super().__init__(remote_addr, rkey)
        self.compare_add, self.swap = compare_add, swap

    def fill(self, request: SendRequest) -> None:
        super().fill(request)
        # libibverbs/verbs.h wr.atomic: compare_add is the operand of FETCH_ADD too; swap is ignored there.
        request.compare, request.swap = self.compare_add, self.swap


@attrs.frozen(eq=False)
class DatagramTarget:
    """
    The destination of a datagram: see L{RDMATarget}.

    @ivar remote_qpn: the peer's queue pair number.
    @ivar remote_qkey: its Q_Key.
    """

    # The address handle; its class is in a module that imports this one.
    ah: PyverbsObject = attrs.field(validator=attrs.validators.instance_of(PyverbsObject))
    remote_qpn: int = attrs.field(converter=u32)
    # IBTA vol. 1 10.2.5: with bit 31 set, the Q_Key of the sending queue pair is used instead.
    remote_qkey: int = attrs.field(converter=u32)

    def fill(self, request: SendRequest) -> None:
        handle: Any = self.ah
        handle._check()
        request.destination = Destination(handle._core, self.remote_qpn, self.remote_qkey)


@attrs.frozen(eq=False)
class WindowBind:
    """
    The bind of a type 2 window that a request carries.

    @ivar rkey: the rkey that the window will have.
    @ivar bind_info: the part of a region that it opens.
    """

    mw: _HasRkey
    rkey: int
    bind_info: MWBindInfo


class SendWR(_WorkRequest):
    """
    A request for the send queue: SEND, RDMA READ or WRITE, atomic, invalidate or bind.

    @ivar wr_id: the id of its completion.
    @ivar opcode: one of C{ibv_wr_opcode}.
    @ivar num_sge: how many elements of C{sg_list} count.
    @ivar imm_data: the immediate data, or the rkey to invalidate: 32 bits as they lie in memory, not
        converted.
    @ivar send_flags: bits of C{ibv_send_flags}.
    @ivar next_wr: the next request of a chain, or None.
    @ivar target: the remote side, or None: the union C{wr} of C's structure.
    @ivar bind_mw: the bind, or None.
    @ivar remote_srqn: the number of the peer's shared receive queue, of an XRC request, or None.
    """

    wr_id: int = unsigned("wr_id", 64)
    opcode: int = unsigned("opcode", 32)
    num_sge: int = unsigned("num_sge", 32)
    imm_data: int = unsigned("imm_data", 32)
    send_flags: int = unsigned("send_flags", 32)
    target: RDMATarget | DatagramTarget | None = None
    bind_mw: WindowBind | None = None
    remote_srqn: int | None = None

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = _SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = _SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        """
        The parameters are the attributes, in pyverbs' order.

        @param sg: scatter/gather elements; the first C{num_sge} are copied.
        @raise PyverbsUserError: C{sg} has fewer than C{num_sge} elements, or none though the operation needs
            one.
        """
        self._wr_id = wr_id = index(wr_id)
        self._opcode = opcode = index(opcode)
        self._num_sge = num_sge = index(num_sge)
        self._imm_data = imm_data = index(imm_data)
        self._send_flags = send_flags = index(send_flags)
        if (num_sge < 1 or sg is None) and opcode not in _NO_SGE:
            raise PyverbsUserError("A WR needs at least one SGE")
        if wr_id >> 64 or (opcode | num_sge | imm_data | send_flags) >> 32:
            self.wr_id, self.opcode, self.num_sge = wr_id, opcode, num_sge
            self.imm_data, self.send_flags = imm_data, send_flags
        self._pieces = _copied(sg, num_sge)
        self.next_wr = next_wr

    @property
    def sg_list(self) -> list[SGE]:
        """
        Copies of the scatter/gather elements given.
        """
        return self._elements()

    @sg_list.setter
    def sg_list(self, val: SGE) -> None:
        """
        Replace the elements by one.
        """
        # pyverbs/wr.pyx leaves num_sge as it is, too.
        self._pieces, self._sges = _copied([val], 1), None

    def set_wr_ud(self, ah: PyverbsObject, rqpn: int, rqkey: int) -> None:
        """
        Set the destination of a datagram.

        @param rqpn: the peer's queue pair number.
        @param rqkey: its Q_Key.
        """
        self.target = DatagramTarget(ah, rqpn, rqkey)

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """
        Set the remote memory of an RDMA READ or WRITE.

        @param addr: an address of the peer's region or window.
        """
        self.target = RDMATarget(addr, rkey)

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """
        Set the remote memory and the operands of an atomic.

        @param addr: an address of the peer's region or window, a multiple of 8.
        @param compare_add: what CMP_SWP compares with, or what FETCH_ADD adds.
        @param swap: what CMP_SWP stores.
        """
        # Linux rxe_resp.c: an unaligned address is a NAK "invalid request", and ends the connection.
        self.target = AtomicTarget(addr, rkey, compare_add, swap)

    def set_bind_wr(self, mw: _HasRkey, bind_info: MWBindInfo) -> None:
        """
        Set the bind of a type 2 window.  Its rkey will be L{rkey}: the present one with the low 8 bits
        counted up.

        @param bind_info: the part of a region that it opens.
        """
        # As pyverbs/wr.pyx, which leaves no choice of the key; QPEx.wr_bind_mw has a parameter for it.
        self.bind_mw = WindowBind(mw, inc_rkey(mw.rkey), bind_info)

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """
        Set the number of the peer's shared receive queue, of an XRC request.
        """
        self.remote_srqn = u32(remote_srqn)

    @property
    def rkey(self) -> int:
        """
        The rkey that L{set_bind_wr} chose; 0 before.
        """
        return self.bind_mw.rkey if self.bind_mw else 0

    @property
    def rdma_remote_addr(self) -> int:
        """
        The remote address of a READ, WRITE or atomic; 0 if none is set.
        """
        return self.target.remote_addr if isinstance(self.target, RDMATarget) else 0

    @property
    def rdma_rkey(self) -> int:
        """
        The remote key of a READ, WRITE or atomic; 0 if none is set.
        """
        return self.target.rkey if isinstance(self.target, RDMATarget) else 0

    def __str__(self) -> str:
        return table(
            [
                ("WR ID", self.wr_id),
                ("Num SGE", self.num_sge),
                ("Opcode", self.opcode),
                ("Send flags", flagged(ibv_send_flags, self.send_flags, "")),
                ("Imm Data", self.imm_data),
            ]
        )
