"""
Unreliable datagrams of an adapter: its queue pair takes the steps of ours, what is sent goes through a ring,
and what comes becomes a record again.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Mapping
from mmap import mmap
from typing import TYPE_CHECKING, ClassVar, Final

from twisted_ib.errors import PathLostError, QueuePairError, ResourceLimitError, WireError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.base.states import ATTRIBUTE_NAMES, QPAttribute, QPState
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.fabric.base.streams import PeerPath
from twisted_ib.hca.fabric.hardware.adapterpath import SENDS, SLOT_BYTES, SLOTS, AdapterPath
from twisted_ib.hca.fabric.hardware.provider import told
from twisted_ib.hca.wire.grh import GRH_BYTES, HEADER_BYTES, route
from twisted_ib.hca.wire.headers import DETH, IMMEDIATE, QPN_MASK
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE
from twisted_ib.hca.wire.rocev2 import internetChecksum

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair, Waiter
    from twisted_ib.hca.base.interfaces.roles import Buffer
    from twisted_ib.hca.fabric.hardware.connector import AdapterConnection
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
    from twisted_ib.hca.fabric.hardware.provider import AdapterQueuePair, Closed, Completion

#: The numbers of a connection the other way round, as a datagram is small, and lost without a receive: as
#: many requests in all, in as many bytes.
DATAGRAM_SENDS, DATAGRAM_SLOTS = SLOTS, SENDS
#: Addresses that the adapter knows of one queue pair, and that the kernel looks for at a time for it, where
#: no more of the connector's C{LOOKUPS} are left: a program that answers to forged addresses leaves others
#: these.
HANDLES = 1024
LOOKUPS_EACH = 128

# enum ibv_wr_opcode, and of ibv_wc_flags.
_SEND, _SEND_IMM = 2, 3
_WITH_IMM = 2
#: Of the attributes of a step those that the adapter has of datagrams.
_ATTRIBUTES: Final = ("pkey_index", "port_num", "qkey", "sq_psn")
_SENDING: Final = frozenset((QPState.RTS, QPState.SQD))
_UNUSED: Final = frozenset((QPState.RESET, QPState.ERR))
#: Of the version in the first octet of a GRH, and the first octet of an IPv4 header without options.
_IPV6: Final = 6
_IPV4: Final = 0x45
_UNDEFINED: Final = bytes(20)


class DatagramWay(PeerPath):
    """
    The path to a peer's address, with datagrams.
    """

    __slots__ = ("_answer", "_asker", "_full", "_waiting")

    def __init__(self, fabric: HardwareFabric, address: str) -> None:
        super().__init__(fabric, address)
        # The queue pair that had no room for the last one.
        self._full: DatagramPath | None = None
        # Those that wait until the kernel has looked for the address; the queue pair for which it looks; and
        # whether it was found, told to them alone, as a neighbour may go.
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        self._asker: DatagramPath | None = None
        self._answer: bool | None = None

    def post(self, word: int, header: bytes, payload: Buffer | list[Buffer], length: int) -> bool:
        # By the queue pair that its DETH names.
        record = b"".join((header, *payload) if isinstance(payload, list) else (header, payload))
        _, source = DETH.unpack_from(record, GRH_BYTES)
        fabric: HardwareFabric = self.fabric
        path = fabric.reserved.get(source & QPN_MASK)
        if not isinstance(path, DatagramPath) or not path.isSending:
            return super().post(word, header, payload, length)
        isSent = path.send(word, record, self)
        self._full = None if isSent or self._asker is not None else path
        return isSent

    def wantSpace(self, waiter: Waiter) -> None:
        # For room in that queue pair, or until the address was looked for.
        if self._full is not None:
            self._full.wantSpace(waiter)
        elif self._asker is not None:
            self._waiting[waiter] = None

    def wantNoSpace(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
        # It may wait for another queue pair than the one that had no room last.
        for path in self.fabric.reserved.values():
            if isinstance(path, DatagramPath):
                path.wantNoSpace(waiter)

    def isFound(self, path: DatagramPath) -> bool:
        """
        Have the kernel look for the address on its link, unless it does.

        @param path: the queue pair that sends there.
        @return: whether it was found just now, so that C{ibv_create_ah} does not wait for it.
        @raise OSError: nobody has it, or the kernel does not look for it now.
        """
        if self._answer is None and self._asker is None:
            connector = self.fabric.connector
            # Where there are places for others, one may have more.
            if path.looking >= LOOKUPS_EACH and connector.lookupsLeft < LOOKUPS_EACH:
                raise OSError(errno.EAGAIN, f"the kernel looks for {path.looking} addresses for it already")
            connector.lookUp(self.peer.address, self._looked)
            self._asker = path
            path.looking += 1
        if self._answer is False:
            raise OSError(errno.EHOSTUNREACH, "nobody has the address")
        return self._answer is True

    def _looked(self, answer: bool) -> None:
        asker, self._asker, self._answer = self._asker, None, answer
        if asker is not None:
            asker.looking -= 1
        _resume(self.fabric, self._waiting)
        self._answer = None


def _resume(fabric: HardwareFabric, waiting: OrderedDict[Waiter, None]) -> None:
    # One that raises keeps no others from it.
    while waiting:
        try:
            waiting.popitem(False)[0].resume()
        except BaseException as error:
            fabric.failed(error)


class DatagramPath(AdapterPath):
    """
    One queue pair of the adapter's.

    @ivar isSending: whether it takes requests.
    @ivar looking: how many addresses the kernel looks for because of it.
    """

    slots: ClassVar[int] = DATAGRAM_SLOTS
    slotBytes: ClassVar[int] = SLOTS * SLOT_BYTES // DATAGRAM_SLOTS
    slotHead: ClassVar[int] = 0

    def __init__(self, way: PeerPath, number: int, connection: AdapterConnection | None) -> None:
        super().__init__(way, number, connection)
        self.isSending = False
        self.looking = 0
        # Counts how often it was given its receives; negative while it has none.
        self._fills = -1
        self._handles: dict[bytes, Closed] = {}

    @classmethod
    def of(cls, fabric: HardwareFabric, made: AdapterQueuePair, domain: object) -> AdapterPath:
        """
        @param made: the adapter's queue pair; it is closed if this raises.
        @return: the path that has it.
        @raise OSError: the adapter takes no memory.
        @raise ResourceLimitError: there are too many.
        """
        path: AdapterPath | None = None
        try:
            path = fabric.stream(fabric.pathTo(fabric.address), None, cls)
            path.allocate(domain)
        except (OSError, ResourceLimitError):
            made.close()
            if path is not None:
                path.close()
            raise
        path.adopt(made)
        return path

    def step(self, state: QPState, attributes: Mapping[str, int]) -> None:
        """
        Our queue pair is about to take a step.

        @raise QueuePairError: the adapter does not take it.
        """
        if not self.alive:
            return
        given = {name: int(attributes[name]) for name in _ATTRIBUTES if name in attributes}
        mask = QPAttribute.STATE
        for name in given:
            mask |= ATTRIBUTE_NAMES[name]
        try:
            self._verbs.modify(int(mask), None, qp_state=int(state), **given)
            if state is QPState.INIT and self._fills < 0:
                self.fill()
                self._fills = -self._fills
        except OSError as error:
            # An adapter that is gone keeps nobody from the end.
            if state not in _UNUSED:
                raise QueuePairError(f"the adapter does not take the step: {told(error)}") from None
            self.fabric.count("hardware_cm_refused")
        self.isSending = state in _SENDING
        if state is QPState.RESET:
            self.fabric.purge(self.adapterNumber)
            self._fills = -1 - abs(self._fills)
        if state in _UNUSED:
            self._forget()

    def _forget(self) -> None:
        # Requests that are not done are not sent; the waiting ones find that.
        self._sent.clear()
        self._batch.clear()
        self._tail = self._head
        waiting = list(self.waiting)
        self.waiting.clear()
        for each in waiting:
            each.resume()

    # -- down

    def send(self, word: int, record: bytes, way: DatagramWay) -> bool:
        """
        @param word: operation and destination queue pair number.
        @param record: GRH, DETH, immediate if there is one, and payload.
        @param way: the path to its address.
        @return: False if there is no room now, or the address is being looked for.
        """
        if len(self._sent) >= DATAGRAM_SENDS:
            return False
        try:
            handle = self._handleOf(record, way)
        except OSError:
            self.fabric.count("datagrams_unsendable")
            return True
        opcode, immediate, begin = _SEND, 0, HEADER_BYTES
        if word >> 24 & ~SOLICITED == UD_SEND_ONLY_IMMEDIATE:
            (immediate,) = IMMEDIATE.unpack_from(record, begin)
            opcode, begin = _SEND_IMM, begin + IMMEDIATE.size
        length = len(record) - begin
        start = -1 if handle is None else self._place(b"", memoryview(record)[begin:], length)
        if start < 0:
            return False
        key, _ = DETH.unpack_from(record, GRH_BYTES)
        self._posted += 1
        pieces = [(self._base + start, length, self._key)] if length else []
        to = {"remote_qpn": word & QPN_MASK, "remote_qkey": key, "imm_data": immediate}
        self._request(opcode, pieces, 0, ah=handle, **to)
        self._sending()
        self.mark()
        return True

    def _handleOf(self, record: bytes, way: DatagramWay) -> Closed | None:
        # The adapter's address handle; None while there is no room for one more, or no answer of the address.
        key = record[:4] + record[7:8] + record[24:GRH_BYTES]
        found = self._handles.get(key)
        if found is None:
            if len(self._handles) >= HANDLES:
                if self._sent:
                    return None
                self._closeHandles()
            # Otherwise this thread would wait until the kernel has asked the network: up to a second for each
            # address that a peer invents.
            if not way.isFound(self):
                return None
            fabric = self.fabric
            if (index := fabric.gidIndex()) < 0:
                raise OSError(errno.EADDRNOTAVAIL, "the adapter has lost its address")
            _, _, label, trafficClass, hopLimit = route(record)
            vector: object = fabric.verbs.AHAttr(
                dgid=record[24:GRH_BYTES],
                sgid_index=index,
                is_global=1,
                port_num=1,
                hop_limit=hopLimit,
                traffic_class=trafficClass,
                flow_label=label,
            )
            made: Closed = self.domain.create_ah(vector)
            found = self._handles[key] = made
        return found

    # -- up

    def _received(self, completion: Completion, slot: int) -> None:
        fabric, number = self.fabric, self.adapterNumber
        if completion.status:
            if self.isFault(completion):
                fabric.doom(self, QueuePairError(f"the adapter failed a receive: {completion.status_str}"))
            return
        fills, queuePair = self._fills, self._queuePairs().get(number)
        if queuePair is not None and queuePair.work is not None:
            key: int = queuePair.work.attributes.queueKey
            opcode, record = self._recordOf(completion, slot, key)
            try:
                way: PeerPath = fabric.pathTo(gidText(route(record)[0]))
                fabric.owner.datagramReceived(way, opcode, number, record, 0, len(record))
            except WireError:
                fabric.count("datagrams_malformed")
            except BaseException as error:
                fabric.failed(error)
        # Its program may have taken it through RESET meanwhile.
        if self.alive and 0 < fills == self._fills:
            self._verbs.post_recv([self._receive(slot)])

    def _queuePairs(self) -> Mapping[int, BoundQueuePair]:
        found: Mapping[int, BoundQueuePair] = self.fabric.owner.queuePairs
        return found

    def _recordOf(self, completion: Completion, slot: int, key: int) -> tuple[int, bytes]:
        start = self.startOf(slot)
        head = start + GRH_BYTES
        memory: mmap = self._memory
        # The adapter has compared the Q_Key, and does not say it, nor whether the sender wants an event: each
        # makes one.
        opcode, behind = UD_SEND_ONLY, DETH.pack(key, completion.src_qp)
        if completion.wc_flags & _WITH_IMM:
            opcode, behind = UD_SEND_ONLY_IMMEDIATE, behind + IMMEDIATE.pack(completion.imm_data)
        header = memory[start:head]
        behindAnything = header[len(_UNDEFINED) :]
        # Before an IPv4 header there may be anything (IBTA vol. 1 annex A17), such as the IPv6 header of who
        # had this slot last: a right checksum tells, as in Linux verbs.c, ib_get_rdma_header_version().
        isIPv4 = behindAnything[0] == _IPV4 and not internetChecksum(behindAnything)
        if isIPv4 or header[0] >> 4 != _IPV6:
            header = _UNDEFINED + behindAnything
        return opcode | SOLICITED, header + behind + memory[head : start + completion.byte_len]

    def _failed(self, completion: Completion) -> None:
        if self.isFault(completion):
            self.fabric.count("hardware_requests_failed")
            self.lost(QueuePairError(f"the adapter failed a datagram: {completion.status_str}"))
        self._forget()

    # -- the end

    def lost(self, reason: PathLostError | QueuePairError) -> None:
        self.isSending = False
        queuePair = self._queuePairs().get(self.adapterNumber)
        if queuePair is not None:
            queuePair.fail(reason)

    def _closeHandles(self) -> None:
        for each in self._handles.values():
            each.close()
        self._handles.clear()

    def _returnQueuePair(self) -> None:
        self.isSending = False
        super()._returnQueuePair()
        self._closeHandles()
        self._forget()
