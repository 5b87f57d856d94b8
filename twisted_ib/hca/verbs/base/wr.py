"""
Work requests and scatter/gather elements, as plain values.

Source: rdma-core 65, C{pyverbs/wr.pyx}, C{libibverbs/verbs.h}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

import attrs

from twisted_ib.hca.verbs.base.base import PyverbsCM, PyverbsObject, flagged, inc_rkey, table, u32, u64
from twisted_ib.hca.verbs.base.errors import PyverbsUserError
from twisted_ib.hca.verbs.base.hub import hub, locked
from twisted_ib.hca.verbs.base.mwbind import MWBindInfo
from twisted_ib.hca.verbs.enums.queues import ibv_send_flags, ibv_wr_opcode

# pyverbs/wr.pyx mw_opcodes: the requests that may have no SGE.  A plain SEND of no octets needs one, too.
_NO_SGE = (ibv_wr_opcode.IBV_WR_LOCAL_INV, ibv_wr_opcode.IBV_WR_BIND_MW, ibv_wr_opcode.IBV_WR_SEND_WITH_INV)


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
        """
        Its present rkey.
        """


@attrs.define(eq=False)
class SGE(PyverbsCM):
    """
    A scatter/gather element: a piece of registered memory.

    @ivar addr: its first octet, as an address of the region.
    @ivar length: in octets.
    @ivar lkey: the region's local key.
    """

    addr: int = attrs.field(converter=u64)
    length: int = attrs.field(converter=u32)
    lkey: int = attrs.field(converter=u32)

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


def _copy(sg: Sequence[SGE] | None, num_sge: int) -> list[SGE]:
    # Copies, as copy_sg_array in pyverbs/wr.pyx: the caller may use the elements again for another request.
    chosen = list(sg or ())[:num_sge]
    if len(chosen) < num_sge or not all(isinstance(sge, SGE) for sge in chosen):
        raise PyverbsUserError(f"num_sge is {num_sge}, but sg has not as many SGEs")
    return [SGE(sge.addr, sge.length, sge.lkey) for sge in chosen]


@attrs.define(eq=False, init=False, slots=False)
class RecvWR(PyverbsCM):
    """
    A receive request.

    @ivar wr_id: the id of its completion.
    @ivar num_sge: how many elements of C{sg_list} count.
    @ivar sg_list: the buffers, in copies of the elements given.
    @ivar next_wr: the next request of a chain, or None.
    """

    wr_id: int = attrs.field(converter=u64)
    num_sge: int = attrs.field(converter=u32)
    sg_list: list[SGE]
    next_wr: RecvWR | None

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
        self.wr_id, self.num_sge = wr_id, num_sge
        self.sg_list = _copy(sg, self.num_sge)
        self.next_wr = next_wr

    def __str__(self) -> str:
        return table([("WR ID", self.wr_id), ("Num SGE", self.num_sge)])


@attrs.frozen(eq=False)
class RDMATarget:
    """
    The remote memory of an RDMA READ or WRITE (the RETH, IBTA vol. 1 9.3).

    @ivar remote_addr: an address of the peer's region or window.
    @ivar rkey: its remote key.
    """

    remote_addr: int = attrs.field(converter=u64)
    rkey: int = attrs.field(converter=u32)


@attrs.frozen(eq=False)
class AtomicTarget(RDMATarget):
    """
    The remote memory of an atomic, and its operands (the AtomicETH).

    @ivar compare_add: 64 bits: the operand of FETCH_ADD, or what CMP_SWP compares with.
    @ivar swap: 64 bits: what CMP_SWP stores if the values are equal.
    """

    compare_add: int = attrs.field(converter=u64)
    swap: int = attrs.field(converter=u64)


@attrs.frozen(eq=False)
class DatagramTarget:
    """
    The destination of a datagram.

    @ivar remote_qpn: the peer's queue pair number.
    @ivar remote_qkey: its Q_Key.
    """

    # The address handle; its class is in a module that imports this one.
    ah: PyverbsObject = attrs.field(validator=attrs.validators.instance_of(PyverbsObject))
    remote_qpn: int = attrs.field(converter=u32)
    # IBTA vol. 1 10.2.5: with bit 31 set, the Q_Key of the sending queue pair is used instead.
    remote_qkey: int = attrs.field(converter=u32)


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


@attrs.define(eq=False, init=False, slots=False)
class SendWR(PyverbsCM):
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

    wr_id: int = attrs.field(converter=u64)
    opcode: int = attrs.field(converter=u32)
    num_sge: int = attrs.field(converter=u32)
    imm_data: int = attrs.field(converter=u32)
    send_flags: int = attrs.field(converter=u32)
    next_wr: SendWR | None
    target: RDMATarget | DatagramTarget | None
    bind_mw: WindowBind | None
    remote_srqn: int | None
    _sg_list: list[SGE]

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = ibv_wr_opcode.IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = ibv_send_flags.IBV_SEND_SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        """
        The parameters are the attributes, in pyverbs' order.

        @param sg: scatter/gather elements; the first C{num_sge} are copied.
        @raise PyverbsUserError: C{sg} has fewer than C{num_sge} elements, or none though the operation needs
            one.
        """
        if opcode not in _NO_SGE and (num_sge < 1 or sg is None):
            raise PyverbsUserError("A WR needs at least one SGE")
        self.wr_id, self.opcode, self.num_sge = wr_id, opcode, num_sge
        self.imm_data, self.send_flags, self.next_wr = imm_data, send_flags, next_wr
        self._sg_list = _copy(sg, self.num_sge)
        self.target = self.bind_mw = self.remote_srqn = None

    @property
    def sg_list(self) -> list[SGE]:
        """
        Copies of the scatter/gather elements given.
        """
        return self._sg_list

    @sg_list.setter
    def sg_list(self, val: SGE) -> None:
        """
        Replace the elements by one.
        """
        # pyverbs/wr.pyx leaves num_sge as it is, too.
        self._sg_list = _copy([val], 1)

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
