"""
A capture file of the packets of a process.

A L{Capture} is one file and the state needed to fill it: addresses of connections and their first PSNs,
learned from CM messages as an observer of a wire would, and the L{flows<twisted_ib.hca.capture.flow>}.
Several HCAs of a process may write to one; traffic between two of them appears once.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from attrs import evolve

from twisted_ib.drive.process import forEach, life, time_ns
from twisted_ib.hca.base.operation import GSI_QPN, MANAGEMENT_HEADER
from twisted_ib.hca.capture.flow import Flow
from twisted_ib.hca.capture.framing import HOPS, Direction, Framing, management
from twisted_ib.hca.capture.pcapng import Writer
from twisted_ib.hca.services.datagramform import DatagramForm
from twisted_ib.hca.wire.cm.layout import BODY_BYTES
from twisted_ib.hca.wire.cm.messages import REP, REQ, SIDR_REP, SIDR_REQ, AnyMessage, byAttribute
from twisted_ib.hca.wire.headers import DETH, PSN_MASK, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.mad import cm
from twisted_ib.hca.wire.opcodes import MTU_BYTES, OPCODES, UD_SEND_ONLY
from twisted_ib.hca.wire.packet import BaseHeader, Packet
from twisted_ib.hca.wire.rocev2 import datagramPort, flowLabel, sourcePort

#: Queue pairs and connections that a capture remembers, of each; over it the oldest is forgotten.
CAPTURE_ENDS = 65536
#: Flows that a capture remembers without a queue pair.
CAPTURE_ENDED_FLOWS = 1024

_K = TypeVar("_K")
_V = TypeVar("_V")


def _remember(table: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > CAPTURE_ENDS:
        table.popitem(False)


def _addressed(request: REQ, way: Direction) -> REQ:
    # Fills in addresses and path MTU: a fabric of records needs neither, but Wireshark matches the packets
    # of a connection to its REQ by them.
    path = request.primaryPath
    local, remote = (gid.to_bytes(16, "big") for gid in (way.fromGID, way.toGID))
    path = evolve(path, localGID=local, remoteGID=remote, hopLimit=path.hopLimit or HOPS)
    return evolve(request, primaryPath=path, pathMTU=request.pathMTU or max(MTU_BYTES))


class Capture:
    """
    One capture file.

    @ivar path: its name.
    @ivar lock: held while something is added, since HCAs may belong to several threads.
    @ivar guids: GUIDs of the HCAs that write here.
    @ivar addresses: IP addresses of those that have one.
    @ivar flows: (requester's GUID, responder's GUID, responder's QPN) -> flow.
    """

    def __init__(self, path: str) -> None:
        """
        Begin a file.

        @param path: its name, used as it is.
        @raise OSError: it cannot be written.
        """
        self.path = path
        self.lock = threading.RLock()
        self.guids: set[int] = set()
        self.addresses: set[str] = set()
        self.flows: dict[tuple[int, int, int], Flow] = {}
        #: Of the interfaces.
        self._framings: list[Framing] = []
        self._ended: OrderedDict[tuple[int, int, int], bool] = OrderedDict()
        #: (GUID, QPN) -> first PSN that it expects, direction to it.
        self._ends: OrderedDict[tuple[int, int], tuple[int, Direction]] = OrderedDict()
        #: (GUID, communication id) -> direction from it.
        self._connections: OrderedDict[tuple[int, int], Direction] = OrderedDict()
        #: (GUID, QPN) -> PSN of its next datagram.
        self._datagrams: OrderedDict[tuple[int, int], int] = OrderedDict()
        #: The latest multicast datagram: (word, record), and the paths that it was posted to.
        self._latest: tuple[object, list[object]] = (None, [])
        self._writer: Writer | None = Writer(path, time_ns)
        _open.add(self)

    # -- the file

    @property
    def closed(self) -> bool:
        """
        Whether nothing is written any more.
        """
        return self._writer is None

    def interface(self, name: str, guid: int, framing: Framing) -> int:
        """
        Add an HCA.

        @return: the number of its interface; -1 if the capture is closed.
        """
        with self.lock:
            self.guids.add(guid)
            writer = self._writer
            if writer is None:
                return -1
            self._framings.append(framing)
            return writer.interface(name, f"HCA {guid:016x}", framing.linkType)

    def write(self, interface: int, outbound: bool, frame: bytes) -> None:
        """
        Write a frame as it is.

        @param outbound: whether the interface sent it.
        """
        with self.lock:
            try:
                if self._writer is not None:
                    self._writer.packet(interface, outbound, frame)
            except OSError as error:
                self.stop(error)

    def flush(self) -> None:
        """
        Write the buffer.
        """
        with self.lock:
            try:
                if self._writer is not None:
                    self._writer.flush()
            except OSError as error:
                self.stop(error)

    def stop(self, error: Exception) -> None:
        """
        End the capture because of an error, with a warning.
        """
        # Nothing is raised: a full disk must not break the connections that are observed.
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()
            warnings.warn(f"capture in {self.path} ends: {error}", RuntimeWarning, stacklevel=2)

    def drop(self) -> None:
        """
        Close without writing the buffer: in a forked child the file is the parent's.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()

    def close(self) -> None:
        """
        Complete the file.
        """
        self.flush()
        self.drop()
        _open.discard(self)
        if _captures.get(self.path) is self:
            del _captures[self.path]

    def complete(self) -> None:
        """
        The process exits: write the buffer, and each later packet at once.
        """
        with self.lock:
            if self._writer is not None:
                self._writer.eager = True
        self.flush()

    # -- flows

    def flow(self, key: tuple[int, int, int]) -> Flow | None:
        """
        @param key: (requester's GUID, responder's GUID, responder's QPN).
        @return: the flow, or L{None}.
        """
        return self.flows.get(key)

    def begin(
        self,
        key: tuple[int, int, int],
        source: int,
        reliable: bool,
        psn: int | None,
        mtu: int,
        partition: Callable[[bool], int],
        level: int,
    ) -> Flow:
        """
        Begin a flow.

        @param key: see L{flow}.
        @param source: the requester's QPN, 0 if unknown.
        @param reliable: whether there are responses.
        @param psn: its first PSN, L{None} to use that of a CM message.
        @param mtu: the path MTU in bytes.
        @param partition: gives the P_Key of requests, or of responses if it is called with true.
        @param level: service level.
        """
        requester, responder, number = key
        expected, way = self._ends.get((responder, number), (0, Direction.between(requester, responder)))
        way = evolve(way, level=level)
        back = way.back()
        # One source port for both directions, as rxe has it for a connected queue pair (rxe_verbs.c
        # rxe_modify_qp).
        port = sourcePort(way.label or flowLabel(source, number))

        def emit(answer: bool, packet: Packet) -> None:
            destination = source if answer else number
            bth = evolve(packet.bth, destination=destination, partition=partition(answer))
            shown = evolve(packet, bth=bth)
            if answer:
                self.show(self._fromResponder, back, port, shown)
            else:
                self.show(self._fromRequester, way, port, shown)

        flow = self.flows[key] = Flow(emit, expected if psn is None else psn, mtu, reliable)
        return flow

    #: Interface and direction of the packets shown now.
    _fromRequester: tuple[int, bool] = (0, True)
    _fromResponder: tuple[int, bool] = (0, False)

    def seenFrom(self, interface: int, isRequester: bool) -> None:
        """
        Set the interface from which the following packets are observed.

        @param isRequester: whether its HCA is the requester.
        """
        self._fromRequester = interface, isRequester
        self._fromResponder = interface, not isRequester

    def ended(self, key: tuple[int, int, int], was: bool = True) -> None:
        """
        The queue pair of a flow is gone.

        @param was: whether there was one.
        """
        # The flow is kept for a while: records that are on their way may still arrive.
        self._ended.setdefault(key, was)
        if len(self._ended) > CAPTURE_ENDED_FLOWS:
            self.flows.pop(self._ended.popitem(False)[0], None)

    def renewed(self, key: tuple[int, int, int]) -> None:
        """
        A queue pair begins, perhaps with a number used before.
        """
        if self._ended.pop(key, False):
            self.flows.pop(key, None)

    # -- datagrams

    def management(self, seen: tuple[int, bool], source: int, target: int, record: bytes) -> None:
        """
        Show a CM message.

        @param seen: interface, and whether it is the sender.
        @param source: GUID of the sender.
        @param target: GUID of the receiver.
        @param record: attribute, modifier and body.
        """
        if len(record) != MANAGEMENT_HEADER.size + BODY_BYTES:
            return
        attribute, modifier = MANAGEMENT_HEADER.unpack_from(record, 0)
        kind = byAttribute.get(attribute)
        body = record[MANAGEMENT_HEADER.size :]
        transaction, way = 0, Direction.between(source, target)
        if kind is not None:
            message = kind.parse(body, 0, BODY_BYTES)
            transaction = cm.transactionOf(message)
            way = self._wayOf(message, way)
            if isinstance(message, REQ):
                body = _addressed(message, way).pack()
        payload = cm.wrap(attribute, body, transaction, modifier).pack()
        # IBTA vol. 1 12.6: CM messages travel between queue pairs 1, with its well-known Q_Key (Linux
        # ib_mad.h IB_QP1_QKEY).
        bth = BaseHeader(UD_SEND_ONLY, GSI_QPN, self._nextDatagram(source, GSI_QPN))
        packet = Packet.of(bth, (QUEUE_KEY, GSI_QPN), payload)
        self.show(seen, way, datagramPort(GSI_QPN), packet)

    def _wayOf(self, message: AnyMessage, way: Direction) -> Direction:
        # Learns the direction of a connection from its messages: only the REQ carries GIDs, the others have
        # its ids.
        if isinstance(message, (SIDR_REQ, SIDR_REP)):
            return way
        source, target = way.source, way.target
        mine = source, message.localCommunicationID
        if isinstance(message, REQ):
            path = message.primaryPath
            local, remote = (int.from_bytes(gid, "big") for gid in (path.localGID, path.remoteGID))
            if local and remote:
                way = Direction(source, target, local, remote, path.flowLabel)
        else:
            known = self._connections.get((target, message.remoteCommunicationID))
            if known is not None:
                way = known.back()
            else:
                way = self._connections.get(mine, way)
        if isinstance(message, (REQ, REP)):
            _remember(self._connections, mine, way)
            # IBTA vol. 1 12.7.31: the starting PSN in a REQ or REP is the one that its sender expects first.
            _remember(self._ends, (source, message.localQPN), (message.startingPSN, way.back()))
        return way

    def sentBefore(self, form: DatagramForm, end: object, word: int, record: bytes) -> bool:
        """
        Whether a multicast datagram was shown already: it leaves an HCA once, but is posted here to each
        member.

        @param form: of the record.
        @param end: the path that it was posted to.
        """
        if not form.group(record):
            return False
        latest, ends = self._latest
        if latest == (word, record) and end not in ends:
            ends.append(end)
            return True
        self._latest = (word, record), [end]
        return False

    def datagram(self, seen: tuple[int, bool], source: int, target: int, word: int, record: bytes) -> None:
        """
        Show an unreliable datagram.

        @param seen: interface, and whether it is the sender.
        @param source: GUID of the sender.
        @param target: GUID of the receiver.
        @param word: opcode and QPN.
        @param record: what its form has, DETH, immediate if there is one, and payload.
        """
        writer, framing = self._writer, self._framings[seen[0]]
        row, form = OPCODES[word >> 24 & 0x7F], framing.form
        payload = form.size + row.layout.size
        if writer is None or len(record) < payload:
            return
        numbers = row.layout.unpack_from(record, form.size)
        _, sender = DETH.unpack_from(record, form.size)
        bth = BaseHeader(
            *(row.code, word & QPN_MASK, self._nextDatagram(source, sender & QPN_MASK)),
            solicited=bool(word >> 31),
        )
        packet = Packet.of(bth, numbers, record[payload:])
        port = datagramPort(sender & QPN_MASK)
        writer.packet(*seen, framing.datagram(Direction.between(source, target), port, packet, record))

    def passed(self, seen: tuple[int, bool], source: int, packet: Any) -> None:
        """
        Show a MAD that passes a port of a subnet.

        @param seen: interface, and whether it is the sender.
        @param source: GUID of the sender, or a number that stands for it.
        @param packet: a L{Packet<twisted_ib.subnet.network.smi.Packet>}.
        """
        writer = self._writer
        if writer is not None:
            psn = self._nextDatagram(source, packet.source)
            ends = packet.slid, packet.dlid, packet.source, packet.destination
            writer.packet(*seen, management(*ends, psn, bytes(packet.octets)))

    def _nextDatagram(self, guid: int, number: int) -> int:
        # IBTA vol. 1 9.8.3: datagrams have PSNs, per sending queue pair, though no receiver checks them.
        psn = self._datagrams.get((guid, number), 0)
        _remember(self._datagrams, (guid, number), psn + 1 & PSN_MASK)
        return psn

    def show(self, seen: tuple[int, bool], way: Direction, port: int, packet: Packet) -> None:
        """
        Write a packet.

        @param seen: interface, and whether it is the sender.
        @param port: UDP source port.
        @raise OSError: the file cannot be written.
        """
        writer = self._writer
        if writer is not None:
            writer.packet(*seen, self._framings[seen[0]].packet(way, port, packet))


#: All open captures; and file name -> capture, of those opened by L{capture}.
_open: set[Capture] = set()
_captures: dict[str, Capture] = {}


def fileOf(name: str) -> str:
    """
    The file name for this process.

    @param name: C{%p} is replaced by the process id; without it the id is put before the extension.
    """
    pid = str(os.getpid())
    if "%p" in name:
        return os.path.abspath(name.replace("%p", pid))
    stem, ending = os.path.splitext(name)
    return os.path.abspath(f"{stem}.{pid}{ending}")


def capture(name: str) -> Capture | None:
    """
    The process's capture of a name.

    @param name: see L{fileOf}.
    @return: L{None}, with a warning, if it cannot be written.
    """
    path = fileOf(name)
    found = _captures.get(path)
    if found is None:  # One that was stopped stays: opening it again would overwrite the file.
        try:
            found = _captures[path] = Capture(path)
        except OSError as error:
            warnings.warn(f"no capture in {path}: {error}", RuntimeWarning, stacklevel=2)
    return found


def _forget() -> None:
    # In a forked child: the files are the parent's, and the child's HCAs open captures of their own.
    _captures.clear()
    _dropAll()


_dropAll = forEach(_open, lambda each: each.drop())
life.atFork(__name__, inChild=_forget)
life.atEnd(__name__, forEach(_open, lambda each: each.complete()))
