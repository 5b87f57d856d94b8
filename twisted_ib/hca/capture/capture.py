"""
The packets of a process in a file, for Wireshark and its relatives.

A L{Capture} is one file and what must be known to fill it: which addresses connections have,
with which sequence numbers they begin (from the messages of the communication manager, as an
observer of a wire would), and the L{flows<twisted_ib.hca.capture.flow>}.  Several HCAs of a
process may write into one; what goes between two of them is in it once.

Frames are those of RoCEv2.  Who has no other address has the GID of its HCA's GUID, an IPv6
address.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections import OrderedDict
from typing import Final, TypeVar

from attrs import evolve, frozen

from twisted_ib.hca.base.operation import GSI_QPN, MANAGEMENT_HEADER, UD_SEND_ONLY
from twisted_ib.hca.capture.flow import Flow
from twisted_ib.hca.capture.pcapng import Writer
from twisted_ib.hca.wire.cm import BODY_BYTES, REP, REQ, SIDR_REP, SIDR_REQ, AnyMessage, byAttribute
from twisted_ib.hca.wire.grh import DETH_BYTES, GRH, GRH_BYTES, HEADER_BYTES, guidGID
from twisted_ib.hca.wire.headers import DETH, PSN_MASK, QPN_MASK
from twisted_ib.hca.wire.mad import cm, mad
from twisted_ib.hca.wire.opcodes import MTU_BYTES, OPCODES
from twisted_ib.hca.wire.packet import BaseHeader, Packet
from twisted_ib.hca.wire.rocev2 import (
    UDPDatagram,
    datagramPort,
    ethernet,
    flowLabel,
    hardwareAddress,
    ipVersion,
    sourcePort,
)

#: Queue pairs and connections that a capture has heard of, each kind; the oldest are forgotten.
CAPTURE_ENDS = 65536
#: Flows that a capture remembers whose queue pair is gone or never was.
CAPTURE_ENDED_FLOWS = 1024

#: The first octet of a group's address.
_GROUP: Final = 0xFF
#: The hop limit of what has none.
_HOPS: Final = 64

_K = TypeVar("_K")
_V = TypeVar("_V")


@frozen
class Way:
    """
    From where to where packets go.

    @ivar source: GUID of the HCA that sends.
    @ivar target: GUID of the HCA that receives.
    @ivar fromGID: the address of one.
    @ivar toGID: the address of the other.
    @ivar label: the flow label, 0 if there is none.
    """

    source: int
    target: int
    fromGID: int
    toGID: int
    label: int = 0

    @classmethod
    def between(cls, source: int, target: int) -> Way:
        """
        The way between two HCAs of which only the GUIDs are known.
        """
        return cls(source, target, guidGID(source), guidGID(target))

    def back(self) -> Way:
        """
        The other direction.
        """
        return Way(self.target, self.source, self.toGID, self.fromGID, self.label)


def _remember(table: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > CAPTURE_ENDS:
        table.popitem(False)


def _hardware(guid: int) -> bytes:
    """
    @return: An Ethernet address for an HCA, one that is locally administered.
    """
    return b"\x02" + (guid & (1 << 40) - 1).to_bytes(5, "big")


def _addressed(request: REQ, way: Way) -> REQ:
    """
    A REQ with the addresses and the path MTU that its packet would have needed: a medium of
    operations asks for neither, and readers of captures know connections by them.
    """
    path = request.primaryPath
    local, remote = (gid.to_bytes(16, "big") for gid in (way.fromGID, way.toGID))
    path = evolve(path, localGID=local, remoteGID=remote, hopLimit=path.hopLimit or _HOPS)
    return evolve(request, primaryPath=path, pathMTU=request.pathMTU or max(MTU_BYTES))


class Capture:
    """
    One capture file.

    @ivar path: its name.
    @ivar lock: held while something is added: HCAs may belong to several threads.
    @ivar guids: of the HCAs that write here.
    @ivar addresses: of those of them that have one.
    @ivar flows: by GUIDs of requester and responder, and the responder's queue pair number.
    """

    def __init__(self, path: str) -> None:
        """
        Begin a file.

        @param path: its name, as it is.
        @raise OSError: it cannot be written.
        """
        self.path = path
        self.lock = threading.RLock()
        self.guids: set[int] = set()
        self.addresses: set[str] = set()
        self.flows: dict[tuple[int, int, int], Flow] = {}
        self._ended: OrderedDict[tuple[int, int, int], bool] = OrderedDict()
        #: By HCA and queue pair number: the first sequence number that it expects, the way to it.
        self._ends: OrderedDict[tuple[int, int], tuple[int, Way]] = OrderedDict()
        #: By HCA and its communication id: the way from it.
        self._connections: OrderedDict[tuple[int, int], Way] = OrderedDict()
        #: By HCA and queue pair number: the next sequence number of its datagrams.
        self._datagrams: OrderedDict[tuple[int, int], int] = OrderedDict()
        #: What was sent to a group last: word and record, and to whom.
        self._latest: tuple[object, list[object]] = (None, [])
        self._writer: Writer | None = Writer(path, time.time_ns)
        _open.add(self)

    # -- the file

    @property
    def closed(self) -> bool:
        """
        Whether nothing is written any more.
        """
        return self._writer is None

    def interface(self, name: str, guid: int) -> int:
        """
        An HCA begins to write here.

        @return: the number of its interface.
        """
        with self.lock:
            self.guids.add(guid)
            writer = self._writer
            return -1 if writer is None else writer.interface(name, f"HCA {guid:016x}")

    def write(self, interface: int, outbound: bool, frame: bytes) -> None:
        """
        Write a frame as it is.

        @param interface: whose.
        @param outbound: whether it has left there.
        """
        with self.lock:
            try:
                if self._writer is not None:
                    self._writer.packet(interface, outbound, frame)
            except OSError as error:
                self.stop(error)

    def flush(self) -> None:
        """
        Write what waits to be written.
        """
        with self.lock:
            try:
                if self._writer is not None:
                    self._writer.flush()
            except OSError as error:
                self.stop(error)

    def stop(self, error: Exception) -> None:
        """
        The file cannot be written any more: say so, and let everything else go on.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()
            warnings.warn(f"capture in {self.path} ends: {error}", RuntimeWarning, stacklevel=2)

    def drop(self) -> None:
        """
        In a forked child: the file is the parent's.
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
        The process ends: from now on nothing waits to be written.
        """
        with self.lock:
            if self._writer is not None:
                self._writer.eager = True
        self.flush()

    # -- flows

    def flow(self, key: tuple[int, int, int]) -> Flow | None:
        """
        @param key: GUIDs of requester and responder, and the responder's queue pair number.
        @return: what was begun under it.
        """
        return self.flows.get(key)

    def begin(
        self, key: tuple[int, int, int], source: int, reliable: bool, psn: int | None, mtu: int
    ) -> Flow:
        """
        Begin a flow.

        @param key: see L{flow}.
        @param source: the requester's queue pair number, 0 if that is not known.
        @param reliable: whether there are answers.
        @param psn: its first sequence number, L{None} if nobody here was told.
        @param mtu: the path MTU in bytes.
        """
        requester, responder, number = key
        expected, way = self._ends.get((responder, number), (0, Way.between(requester, responder)))
        back = way.back()
        port = sourcePort(way.label or flowLabel(source, number))

        def emit(answer: bool, packet: Packet) -> None:
            bth = evolve(packet.bth, destination=source if answer else number)
            shown = evolve(packet, bth=bth)
            if answer:
                self.show(self._fromResponder, back, port, shown)
            else:
                self.show(self._fromRequester, way, port, shown)

        flow = self.flows[key] = Flow(emit, expected if psn is None else psn, mtu, reliable)
        return flow

    #: Interface and direction of what is shown now.
    _fromRequester: tuple[int, bool] = (0, True)
    _fromResponder: tuple[int, bool] = (0, False)

    def seenFrom(self, interface: int, isRequester: bool) -> None:
        """
        Say who sees what comes now.

        @param interface: whose interface.
        @param isRequester: whether its HCA sends the requests.
        """
        self._fromRequester = interface, isRequester
        self._fromResponder = interface, not isRequester

    def ended(self, key: tuple[int, int, int], was: bool = True) -> None:
        """
        The queue pair of a flow is gone; what is on the way may still come.

        @param was: whether there was one, or is none yet.
        """
        self._ended.setdefault(key, was)
        if len(self._ended) > CAPTURE_ENDED_FLOWS:
            self.flows.pop(self._ended.popitem(False)[0], None)

    def renewed(self, key: tuple[int, int, int]) -> None:
        """
        A queue pair begins, perhaps with a number that another one had.
        """
        if self._ended.pop(key, False):
            self.flows.pop(key, None)

    # -- datagrams

    def management(self, seen: tuple[int, bool], source: int, target: int, record: bytes) -> None:
        """
        Show a message of the communication manager.

        @param seen: interface, and whether it has sent it.
        @param source: GUID of the sender's HCA.
        @param target: GUID of the receiver's.
        @param record: attribute, modifier and body.
        """
        if len(record) != MANAGEMENT_HEADER.size + BODY_BYTES:
            return
        attribute, modifier = MANAGEMENT_HEADER.unpack_from(record, 0)
        kind = byAttribute.get(attribute)
        body = record[MANAGEMENT_HEADER.size :]
        transaction, way = 0, Way.between(source, target)
        if kind is not None:
            message = kind.parse(body, 0, BODY_BYTES)
            transaction = cm.transactionOf(message)
            way = self._wayOf(message, way)
            if isinstance(message, REQ):
                body = _addressed(message, way).pack()
        payload = cm.wrap(attribute, body, transaction, modifier).pack()
        bth = BaseHeader(UD_SEND_ONLY, GSI_QPN, self._nextDatagram(source, GSI_QPN))
        packet = Packet.of(bth, (mad.QUEUE_KEY, GSI_QPN), payload)
        self.show(seen, way, datagramPort(GSI_QPN), packet)

    def _wayOf(self, message: AnyMessage, way: Way) -> Way:
        """
        Learn what a message says of its connection.

        @param way: of HCAs.
        @return: the way that it goes.
        """
        if isinstance(message, (SIDR_REQ, SIDR_REP)):
            return way
        source, target = way.source, way.target
        mine = source, message.localCommunicationID
        if isinstance(message, REQ):
            path = message.primaryPath
            local, remote = (int.from_bytes(gid, "big") for gid in (path.localGID, path.remoteGID))
            if local and remote:
                way = Way(source, target, local, remote, path.flowLabel)
        else:
            known = self._connections.get((target, message.remoteCommunicationID))
            if known is not None:
                way = known.back()
            else:
                way = self._connections.get(mine, way)
        if isinstance(message, (REQ, REP)):
            _remember(self._connections, mine, way)
            _remember(self._ends, (source, message.localQPN), (message.startingPSN, way.back()))
        return way

    def sentBefore(self, end: object, word: int, record: bytes) -> bool:
        """
        What is sent to a group goes out once, and here to each member.

        @param end: of which path it was posted.
        @return: whether it was shown when it went to another one.
        """
        if record[GRH_BYTES - 16] != _GROUP:
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

        @param seen: interface, and whether it has sent it.
        @param source: GUID of the sender's HCA.
        @param target: GUID of the receiver's.
        @param word: operation and queue pair number.
        @param record: GRH, DETH, immediate if it has one, and payload.
        """
        row = OPCODES[word >> 24 & 0x7F]
        payload = GRH_BYTES + row.layout.size
        if len(record) < payload:
            return
        grh = GRH.parse(record, 0, GRH_BYTES)
        numbers = row.layout.unpack_from(record, GRH_BYTES)
        _, sender = DETH.unpack_from(record, HEADER_BYTES - DETH_BYTES)
        bth = BaseHeader(
            *(row.code, word & QPN_MASK, self._nextDatagram(source, sender & QPN_MASK)),
            solicited=bool(word >> 31),
        )
        packet = Packet.of(bth, numbers, record[payload:])
        way = Way(source, target, grh.source, grh.destination, grh.flowLabel)
        port = datagramPort(sender & QPN_MASK)
        self.show(seen, way, port, packet, grh.trafficClass, grh.hopLimit)

    def _nextDatagram(self, guid: int, number: int) -> int:
        """
        @return: The sequence number of a queue pair's next datagram.
        """
        psn = self._datagrams.get((guid, number), 0)
        _remember(self._datagrams, (guid, number), psn + 1 & PSN_MASK)
        return psn

    def show(
        self,
        seen: tuple[int, bool],
        way: Way,
        port: int,
        packet: Packet,
        trafficClass: int = 0,
        hopLimit: int = _HOPS,
    ) -> None:
        """
        Write a packet.

        @param seen: interface, and whether it has sent it.
        @param port: UDP source port.
        @raise OSError: the file cannot be written.
        """
        writer = self._writer
        if writer is None:
            return
        version = ipVersion(way.fromGID, way.toGID)
        datagram = UDPDatagram(
            *(way.fromGID, way.toGID, port, packet.pack()),
            *(trafficClass, hopLimit, way.label),
            checksum=0 if version == 4 else None,
        )
        target = hardwareAddress(way.toGID, _hardware(way.target))
        frame = ethernet(_hardware(way.source), target, version) + datagram.pack()
        writer.packet(*seen, frame)


#: All that are open, and by file those that a name has opened.
_open: set[Capture] = set()
_captures: dict[str, Capture] = {}


def fileOf(name: str) -> str:
    """
    The file that a process writes.

    @param name: C{%p} stands for the process id; without it that goes before the ending.
    """
    pid = str(os.getpid())
    if "%p" in name:
        return os.path.abspath(name.replace("%p", pid))
    stem, ending = os.path.splitext(name)
    return os.path.abspath(f"{stem}.{pid}{ending}")


def capture(name: str) -> Capture | None:
    """
    The capture of a name: one for the process.

    @param name: see L{fileOf}.
    @return: L{None}, with a warning, if it cannot be written.
    """
    path = fileOf(name)
    found = _captures.get(path)
    if found is None:  # One that came to an end stays: what is in the file is kept.
        try:
            found = _captures[path] = Capture(path)
        except OSError as error:
            warnings.warn(f"no capture in {path}: {error}", RuntimeWarning, stacklevel=2)
    return found


@atexit.register
def _complete() -> None:
    for each in list(_open):
        each.complete()


def _forget() -> None:
    """
    In a forked child: its HCAs have captures of their own.
    """
    for each in _open:
        each.drop()
    _open.clear()
    _captures.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
