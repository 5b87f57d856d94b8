"""
Work requests as values, and their scatter/gather elements.

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

# Requests that may go without an SGE.
_NO_SGE = (ibv_wr_opcode.IBV_WR_LOCAL_INV, ibv_wr_opcode.IBV_WR_BIND_MW, ibv_wr_opcode.IBV_WR_SEND_WITH_INV)


def storedImmediate(value: int) -> int:
    """
    Immediate data are of no byte order: a peer gets the octets that lie in memory.

    @param value: those octets, the first the highest; or what this gave.

    @return: them, read as a number of this machine; or the other way round.
    """
    return int.from_bytes(value.to_bytes(4, "big"), sys.byteorder)


class _HasRkey(Protocol):
    """
    A memory window, as far as L{SendWR.set_bind_wr} looks at it.
    """

    @property
    def rkey(self) -> int:
        """
        Its present rkey.
        """


@attrs.define(eq=False)
class SGE(PyverbsCM):
    """
    A piece of registered memory.

    @ivar addr: where it begins, as an address of the region.
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
        @param offset: of the first.

        @return: what is there, in the region that the key names.

        @raise PyverbsUserError: no device of this process has such a region with such octets.
        """
        for device in hub.devices:
            region = device.memory.regions.get(self.lkey)
            if region is not None:
                start = self.addr + offset - region.address
                if length >= 0 and 0 <= start <= region.length - length:
                    return bytes(region.view[start : start + length])
        raise PyverbsUserError(f"No memory region has {length} octets at {self.addr + offset:#x}")

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        return table([("Address", hex(self.addr)), ("Length", self.length), ("Key", hex(self.lkey))])


def _copy(sg: Sequence[SGE] | None, num_sge: int) -> list[SGE]:
    """
    @param sg: scatter/gather elements.
    @param num_sge: how many of them to take.

    @return: copies of them: who posts a request may use the elements again for another.

    @raise PyverbsUserError: if there are fewer, or other things among them.
    """
    chosen = list(sg or ())[:num_sge]
    if len(chosen) < num_sge or not all(isinstance(sge, SGE) for sge in chosen):
        raise PyverbsUserError(f"num_sge is {num_sge}, but sg has not as many SGEs")
    return [SGE(sge.addr, sge.length, sge.lkey) for sge in chosen]


@attrs.define(eq=False, init=False, slots=False)
class RecvWR(PyverbsCM):
    """
    A receive.

    @ivar wr_id: the id of its completion.
    @ivar num_sge: how many elements of C{sg_list} count.
    @ivar sg_list: where the message goes: copies of the elements given.
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
        The parameters are the attributes.

        @raise PyverbsUserError: if C{sg} has fewer than C{num_sge} elements.
        """
        self.wr_id, self.num_sge = wr_id, num_sge
        self.sg_list = _copy(sg, self.num_sge)
        self.next_wr = next_wr

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        return table([("WR ID", self.wr_id), ("Num SGE", self.num_sge)])


@attrs.frozen(eq=False)
class RDMATarget:
    """
    Where an RDMA READ or WRITE goes.

    @ivar remote_addr: an address of the peer's region or window.
    @ivar rkey: its remote key.
    """

    remote_addr: int = attrs.field(converter=u64)
    rkey: int = attrs.field(converter=u32)


@attrs.frozen(eq=False)
class AtomicTarget(RDMATarget):
    """
    Where an atomic goes, and with what.

    @ivar compare_add: what to compare with, or what to add: 64 bits.
    @ivar swap: what to put there if it is equal: 64 bits.
    """

    compare_add: int = attrs.field(converter=u64)
    swap: int = attrs.field(converter=u64)


@attrs.frozen(eq=False)
class DatagramTarget:
    """
    Where a datagram goes.

    @ivar ah: the address handle.
    @ivar remote_qpn: the queue pair there.
    @ivar remote_qkey: its Q_Key.
    """

    ah: PyverbsObject = attrs.field(validator=attrs.validators.instance_of(PyverbsObject))
    remote_qpn: int = attrs.field(converter=u32)
    remote_qkey: int = attrs.field(converter=u32)


@attrs.frozen(eq=False)
class WindowBind:
    """
    What a request binds.

    @ivar mw: the type 2 window.
    @ivar rkey: the rkey that it will have.
    @ivar bind_info: the part of a region that it opens.
    """

    mw: _HasRkey
    rkey: int
    bind_info: MWBindInfo


@attrs.define(eq=False, init=False, slots=False)
class SendWR(PyverbsCM):
    """
    A request that sends, reads, writes, invalidates or binds.

    @ivar wr_id: the id of its completion.
    @ivar opcode: one of C{ibv_wr_opcode}.
    @ivar num_sge: how many elements of C{sg_list} count.
    @ivar imm_data: the immediate data, or the rkey to invalidate; 32 bits as they lie in memory,
        of no byte order.
    @ivar send_flags: bits of C{ibv_send_flags}.
    @ivar next_wr: the next request of a chain, or None.
    @ivar target: where it goes, or None: the union C{wr} of C's structure.
    @ivar bind_mw: what it binds, or None.
    @ivar remote_srqn: the shared receive queue it goes to, of an XRC request, or None.
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

        @raise PyverbsUserError: if C{sg} has fewer than C{num_sge} elements, or none and the
            operation needs one.
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
        What is sent, or where it goes: copies of the elements given.
        """
        return self._sg_list

    @sg_list.setter
    def sg_list(self, val: SGE) -> None:
        """
        Replace them by one.  C{num_sge} stays, as in pyverbs.
        """
        self._sg_list = _copy([val], 1)

    def set_wr_ud(self, ah: PyverbsObject, rqpn: int, rqkey: int) -> None:
        """
        Say where a datagram goes.

        @param ah: the address handle.
        @param rqpn: the number of the queue pair there.
        @param rqkey: its Q_Key.
        """
        self.target = DatagramTarget(ah, rqpn, rqkey)

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """
        Say where an RDMA READ or WRITE goes.

        @param rkey: the remote key.
        @param addr: an address of the peer's region or window.
        """
        self.target = RDMATarget(addr, rkey)

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """
        Say where an atomic goes, and with what.

        @param rkey: the remote key.
        @param addr: an address of the peer's region or window, a multiple of 8.
        @param compare_add: what CMP_SWP compares with, or what FETCH_ADD adds.
        @param swap: what CMP_SWP puts there.
        """
        self.target = AtomicTarget(addr, rkey, compare_add, swap)

    def set_bind_wr(self, mw: _HasRkey, bind_info: MWBindInfo) -> None:
        """
        Say what to bind.  The window's rkey will be L{rkey}: its present one, counted up.

        @param mw: a type 2 window.
        @param bind_info: the part of a region that it opens.
        """
        self.bind_mw = WindowBind(mw, inc_rkey(mw.rkey), bind_info)

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """
        Say which shared receive queue takes an XRC request.

        @param remote_srqn: its number.
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
        """
        @return: a line for each field.
        """
        return table(
            [
                ("WR ID", self.wr_id),
                ("Num SGE", self.num_sge),
                ("Opcode", self.opcode),
                ("Send flags", flagged(ibv_send_flags, self.send_flags, "")),
                ("Imm Data", self.imm_data),
            ]
        )
