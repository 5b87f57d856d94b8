"""
RDS on RC queue pairs: messages in fragments, acknowledgements, and the paths that share one.

Each fragment is one SEND: the header of the whole message and a part of its payload.  The fragments
of two messages are never mixed on one queue pair.

There are two forms:

  - As Linux speaks it, where peers are IP addresses: 4096 bytes a fragment, headers have checksums,
    one queue pair for each pair of addresses.  A receive is a promise; while there is no memory there
    is none, and the peer is answered RNR and asks again.
  - Between processes of this host, where all have the same addresses: a fragment is as long as a
    record, and nothing is summed up that never leaves memory.  Small messages of one turn are in one
    SEND, one behind the other, or one message (L{twisted_ib.rds.protocol.bundle}): a header whose length is
    more than what follows it begins a fragment.
    One queue pair carries all paths between two processes.  The padding of the header tells them
    apart: it is an index that the sender has announced by a I{control} frame, whose flags are 0x80,
    ports and sequence 0, and whose payload begins with its kind: 1 and the two addresses of the path,
    the sender's first, as text with a space between; 2 and the number of a port (16 bits, big endian)
    of the index's path, at which nobody is; 3, "send nothing more for now", or 4, "go on"; 5,
    "there are operations": both ends have work queues from then on.

An ack frame has ports, length and sequence 0.  Whoever gets a message that wants an acknowledgement
sends one at the end of the batch, unless it has sent something else on the path meanwhile; other
messages are acknowledged when there are some, or after a few milliseconds.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, RDSWireError, ResourceLimitError
from twisted_ib.rds.media.rccarrier import RCCarrier
from twisted_ib.rds.media.rcsend import (
    ADDRESSES,
    CONTROL,
    DUE,
    EACH,
    GO_ON,
    MUCH,
    NOBODY,
    OPERATIONS,
    PAUSE,
    RECEIVES,
    RCSender,
)
from twisted_ib.rds.protocol.wire import (
    ACK_REQUIRED,
    HEADER,
    HEADER_BYTES,
    MESSAGE_BYTES,
    NO_EXTENSIONS,
    Fields,
    checksum,
)

if TYPE_CHECKING:
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.paths.path import RDSPath

#: Those that one process of the host may announce.
RDS_SESSION_PATHS = limits.RDS_PATHS // 4
#: Bytes that come between processes of a host from one that was told to send nothing: a ring, and what
#: was before it.
RDS_PAUSED = 16 * 1024 * 1024

_unpack = HEADER.unpack_from
_pack = HEADER.pack

_PORT = Struct(">H")


class _Nobody:
    """
    Stands for a carrier where there was none yet.
    """

    path = None


_NOBODY = _Nobody()


class RCConnection(RCSender):
    """
    One queue pair and the paths that it carries.

    @ivar ours: carriers by the index that we announced.
    @ivar theirs: by the index that the peer announced: the carrier, and the path's addresses here.
    @ivar peerHas: the sequence number up to which the peer has everything, if it said so when it
        connected.
    @ivar asked: since when the peer, if it has asked, is expected to have the answer, in seconds.
    """

    asked = 0.0

    def __init__(self, medium: RCMedium, key: Any, channel: Any, shared: bool) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        RCSender.__init__(self, medium, key, channel, shared)
        self.ours: dict[int, RCCarrier] = {}
        self.theirs: dict[int, tuple[RCCarrier | None, str, str]] = {}
        self.peerHas = 0
        self._pauses = self._whilePaused = 0
        self._next = 0
        self._sockets = medium.network.sockets
        # Who got the last message, and what its header had: the next one is mostly for the same.
        self._last: Any = _NOBODY
        self._lastPadding = b""
        self._first: Fields | None = None
        self._pieces: list[bytes] = []
        self._missing = 0

    # -- paths

    def carrier(self, path: RDSPath) -> RCCarrier:
        """
        Carry a path; the path is told at the end of the batch.

        @raise ResourceLimitError: there are too many paths.
        """
        for found in self.ours.values():
            if found.path is path:
                return found
        if len(self.ours) >= limits.RDS_PATHS:
            raise ResourceLimitError("too many paths of RDS between two processes")
        self._next += 1
        carrier = self.ours[self._next] = RCCarrier(self, path, self._next if self.shared else 0)
        if self.shared:
            self._control(carrier, ADDRESSES, f"{path.local} {path.remote}".encode())
        return carrier

    def _control(self, carrier: RCCarrier, kind: int, content: bytes) -> None:
        payload = bytes([kind]) + content
        header = _pack(0, 0, len(payload), 0, 0, CONTROL, 0, carrier.padding, 0, NO_EXTENSIONS)
        self.gather(header, payload, len(payload))

    def endOfBatch(self) -> None:
        """
        The turn is over: acknowledge, send what waits, tell what happened.
        """
        if self.bundling:
            bundling, self.bundling = self.bundling, {}
            for carrier in bundling:
                if carrier.path is not None:
                    carrier.path.closeBundle()
        self.corked = False
        if self._completions:
            self.tellOperations()
        if self.loss is not None:
            self._over()
            return
        if self.gathered:
            self.flushGathered()
        if self.backlog:
            self.postBacklog()
        if self.work is not None and self.shared and not self._keyed:
            self.announce()
        if self.owing and not self.backlog:
            self.acknowledgeDue()
        if self.wanting and not self.stuck and not self.backlog and not self.peerPaused:
            wanting, self.wanting = self.wanting, {}
            for carrier in wanting:
                if carrier.path is not None:
                    carrier.path.resume(carrier)

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A fragment came.
        """
        if self.loss is not None:
            return  # What was wrong is repeated, and this behind it.
        if self._pauses and self._isFull():
            self.violated("something for which there is no memory")
            return
        if not self.shared:
            if not self._pauses:
                self.queuePair.posted = RECEIVES
            self._receivedOne(buffer, start, stop)
            return
        self.queuePair.posted = RECEIVES
        if self._pauses:
            self._whilePaused += stop - start
            if self._whilePaused > RDS_PAUSED:
                self.violated("more than it may")
                return
        while self.loss is None:
            body = start + HEADER_BYTES
            if body > stop:
                self.violated("a message without a header")
                return
            fields = _unpack(buffer, start)
            start = body + fields[2]
            if start > stop or self._first is not None:
                self._fragment(fields, bytes(buffer[body:stop]))
                return
            self._message(fields, buffer[body:start])
            if start == stop:
                return

    def _isFull(self) -> bool:
        """
        @return: Whether a peer that has connected again and again has sent all that may wait.
        """
        return any(each.path is not None and each.path.isFull() for each in self.ours.values())

    def _receivedOne(self, buffer: Any, start: int, stop: int) -> None:
        """
        A fragment as Linux sends it came.
        """
        body = start + HEADER_BYTES
        if body > stop:
            self.violated("a fragment without a header")
            return
        fields = _unpack(buffer, start)
        if fields[8] and checksum(buffer[start:body]):
            self.medium.network.counters["recv_drop_bad_checksum"] += 1
            self.violated("a wrong checksum")
        elif fields[2] != stop - body or (self._first is not None and (fields[0] or fields[2])):
            self._fragment(fields, bytes(buffer[body:stop]))
        else:
            # Linux sends ack frames between the fragments of a message, too.
            self._message(fields, bytes(buffer[body:stop]))

    def _fragment(self, fields: Fields, piece: bytes) -> None:
        first, length = self._first, fields[2]
        if first is None:
            if length > MESSAGE_BYTES or len(piece) != self.fragment or length < len(piece):
                self.violated(f"{len(piece)} bytes of a message of {length}")
                return
            self._first, self._pieces, self._missing = fields, [piece], length - len(piece)
            return
        same = (0, 2, 3, 4, 7)
        if any(fields[index] != first[index] for index in same):
            self.violated("fragments of two messages")
            return
        if len(piece) != min(self._missing, self.fragment):
            self.violated(f"{len(piece)} bytes where {self._missing} were missing")
            return
        self._pieces.append(piece)
        self._missing -= len(piece)
        if not self._missing:
            pieces, self._pieces, self._first = self._pieces, [], None
            self._message((*first[:1], fields[1], *first[2:]), b"".join(pieces))

    def _message(self, fields: Fields, payload: bytes) -> None:
        """
        A whole message came, an ack frame, or a control frame.
        """
        sequence, acknowledged, length, _, destinationPort, flags, _, padding, _, _ = fields
        carrier = self._last
        if carrier.path is None or padding != self._lastPadding or flags == CONTROL:
            carrier = self._carrierOf(padding, flags, payload)
            if carrier is None:
                return
            self._last, self._lastPadding = carrier, padding
        path = carrier.path
        if acknowledged > carrier.acknowledged:
            carrier.acknowledged = acknowledged
            path.acknowledged(carrier, acknowledged)
        if not sequence and not length:
            return
        if sequence:
            carrier.received = sequence
            if not carrier.owing:
                self.owing[carrier] = None
            carrier.owing += DUE if flags & ACK_REQUIRED else EACH + length
            if carrier.owing >= MUCH and self.shared and not self.backlog:
                # The peer may wait for it while there is more to take here.
                carrier.acknowledge()
                self.flushGathered()
                self.channel.device.ringBells()
            if not self.corked:
                self.corked = True
                self.channel.device.markDirty(self)
            if self.shared and destinationPort > 1 and (path.local, destinationPort) not in self._sockets:
                if not self.backlog:  # Else it has told enough already that it does not read.
                    self._control(carrier, NOBODY, _PORT.pack(destinationPort))
        path.messageReceived(carrier, fields, payload if payload.__class__ is bytes else bytes(payload))

    def _carrierOf(self, padding: bytes, flags: int, payload: bytes) -> RCCarrier | None:
        """
        Find the carrier that a message is for; a control frame is for this.
        """
        if not self.shared:
            return next(iter(self.ours.values()), None) or self._begun()
        index = int.from_bytes(padding, "big")
        if flags == CONTROL:
            self._controlled(index, payload)
            return None
        known = self.theirs.get(index)
        if known is None:
            self.violated(f"a message on path {index}, which was not announced")
            return None
        carrier = known[0]
        if carrier is None or carrier.path is None:
            carrier = self._announced(index, known[1], known[2])
        return carrier

    def _begun(self) -> RCCarrier | None:
        """
        The peer sends something before its path is carried: begin now.
        """
        self.medium.arrived(self)
        network = self.medium.network
        if network.dormant or self.loss is not None:
            return None
        ours, theirs = self.key
        try:
            path = network.path(self.key, ours, theirs)
            carrier = self.carrier(path)
        except ResourceLimitError:
            self.violated("something for which there is no path")
            return None
        path.carrierUp(carrier, self.peerHas)
        return carrier

    def _controlled(self, index: int, payload: bytes) -> None:
        kind = payload[0] if payload else 0
        if kind == ADDRESSES:
            try:
                theirs, ours = payload[1:].decode("ascii").split(" ")
            except ValueError:
                self.violated("a control frame without addresses")
                return
            if not index or index in self.theirs or not self._isLocal(theirs) or not self._isLocal(ours):
                self.violated(f"addresses {payload[1:]!r} for path {index}")
            elif len(self.theirs) >= RDS_SESSION_PATHS:
                self.violated("too many paths")
            else:
                self._announced(index, ours, theirs)
        elif kind == NOBODY and len(payload) == 1 + _PORT.size:
            self.medium.moved()
        elif kind == OPERATIONS and len(payload) == 1:
            self.beginOperations()
        elif kind in (PAUSE, GO_ON) and len(payload) == 1:
            self.peerPaused = kind == PAUSE
            self.cork()
        else:
            self.violated(f"a control frame of kind {kind}")

    def _isLocal(self, address: str) -> bool:
        """
        @return: Whether a peer may have an address, or we.
        """
        try:
            return bool(self.channel.device.isLocal(address))
        except ValueError:
            return False

    def _announced(self, index: int, ours: str, theirs: str) -> RCCarrier | None:
        """
        The peer uses a path: use it too.
        """
        self.theirs[index] = None, ours, theirs
        try:
            path = self.medium.pathOf(self, ours, theirs)
            if path is None:
                return None
            carrier = self.carrier(path)
        except ResourceLimitError:
            return None
        self.theirs[index] = carrier, ours, theirs
        if path.carrier is not carrier:
            path.carrierUp(carrier)
        return carrier

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        A message with immediate data came, which RDS does not have.
        """
        self.violated("immediate data")

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        The peer wrote to memory, with immediate data, which RDS does not have.
        """
        self.violated("immediate data")

    def pause(self, count: int) -> None:
        """
        A carrier has no memory left (1), or again has some (-1).
        """
        self._pauses += count
        if self.closed or self._pauses > 1 or (self._pauses == 1 and count < 0):
            return
        if not self.shared:
            self.queuePair.posted = 0 if self._pauses else RECEIVES
        elif self.ours and self.loss is None:
            self._whilePaused = 0
            carrier = next(iter(self.ours.values()))
            self._control(carrier, PAUSE if self._pauses else GO_ON, b"")

    # -- the end

    def violated(self, what: str) -> None:
        """
        The peer broke the rules: end the connection, and count it.
        """
        self.medium.network.counters["recv_bad_frame"] += 1
        self.broken(RDSWireError(f"the peer has sent {what}"))

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.
        """
        if isinstance(reason, PathLostError):
            self.connection = None
        self.broken(reason)

    def pathLost(self, reason: Exception) -> None:
        """
        The CM says that the peer's process is gone.
        """
        self.connection = None
        self.broken(reason)

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected, or confirmed that we did.
        """
        self.connection = None
        self.broken(PathLostError("the peer closed the connection"))

    def established(self, connection: Any, ready: Any) -> None:
        """
        The CM says that the peer has the REP.
        """
        self.medium.arrived(self)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.
        """
        self.peerDisconnected(connection)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.
        """
        self.peerDisconnected(connection)

    def connectionLost(self, reason: Any) -> None:
        """
        The device is going, with the reactor.
        """
        self.broken(PathLostError("the device is going"))
        if self.loss is not None:
            self._over()

    def forked(self) -> None:
        """
        In a forked child nobody may use this.
        """
        self.closed = True

    def carrierClosed(self, carrier: RCCarrier) -> None:
        """
        A path does not need this any more.
        """
        for index, found in list(self.ours.items()):
            if found is carrier:
                del self.ours[index]
        self.wanting.pop(carrier, None)
        self.owing.pop(carrier, None)
        self.bundling.pop(carrier, None)
        if not self.ours:
            self.close()

    def _over(self) -> None:
        reason = self.loss
        assert reason is not None
        carriers = list(self.ours.values())
        self.ours = {}
        self.close()
        for carrier in carriers:
            path, carrier.path = carrier.path, None
            if path is not None:
                path.lost(carrier, reason)

    def close(self) -> None:
        """
        Give everything back; the peer is told, if it may not know.
        """
        if self.closed:
            return
        self.closed = True
        self.isUp = False
        if self.ackCall is not None:
            self.ackCall.cancel()
            self.ackCall = None
        self.gathered = []
        self.backlog.clear()
        self.wanting.clear()
        self.owing.clear()
        self.bundling.clear()
        connection, self.connection = self.connection, None
        device = self.channel.device
        if self.queuePair.device is not None:
            self.queuePair.close()
        self.dropOperations()
        if connection is not None and not device.closed:
            device.disconnect(connection)
        self.medium.sessionClosed(self)


__all__ = ["CONTROL", "RCConnection"]
