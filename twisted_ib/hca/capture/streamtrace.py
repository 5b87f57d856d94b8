"""
Capture of iWARP's TCP connections: segments as they could have been on the wire.

A TCP socket shows octets only.  They are put into segments with made-up headers: one for each frame of MPA,
as RFC 5044 section 5 wants it and as Wireshark needs it to find markers.  A connection begins with the three
segments of a handshake: else an analyser would not know the protocol in it.

On a link the packets themselves are captured.  A UDP socket shows neither the Ethernet header, which is made
up, nor the IPv4 identification, which is recovered from the ICRC (see L{twisted_ib.hca.wire.icrcflow}).
"""

from __future__ import annotations

import errno
import socket
from enum import IntFlag
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from zope.interface import implementer

from twisted_ib.errors import HeaderError, WireError
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.capture.framing import hardwareOf
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.link import ILink
from twisted_ib.hca.fabric.iwarp.protocol.mpa import StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import ICRC
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.rocev2 import (
    UDPDatagram,
    ethernet,
    hardwareAddress,
    ipHeader,
    ipVersion,
    transportChecksum,
)

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: RFC 9293 section 3.1: ports, sequence and acknowledgement number, header length, flags, window, checksum,
#: urgent pointer.
_TCP: Final[Packed[tuple[int, int, int, int, int, int, int, int, int]]] = Struct(">HHIIBBHHH")
_PROTOCOL: Final = 6
#: In units of four octets: a header, and one with _OPTIONS.
_WORDS, _WORDS_SYN = 5, 7
#: The largest window, with the largest scale (RFC 7323 section 2.3) and no-operations: an analyser that
#: follows the windows must find no segment that exceeds one.
_WINDOW: Final = 0xFFFF
_OPTIONS: Final = b"\x03\x03\x0e\x01\x01\x01\x01\x01"
#: The most octets of a segment: the lengths of IP have 16 bits.
_SEGMENT_BYTES: Final = 0xFFFF - 40 - _TCP.size
_SEQUENCE_MASK: Final = 0xFFFFFFFF

#: GID and port.
_End = tuple[int, int]


@implementer(ILink)
class TracedLink:
    """
    A link that shows its datagrams to a capture: see L{ILink}.

    @ivar user: see L{ILink}.
    """

    def __init__(self, link: ILink, capture: Capture, interface: int) -> None:
        """
        @param link: the link; its user becomes this one's.
        @param interface: the number of its interface in the capture.
        """
        self._link = link
        self._capture = capture
        self._interface = interface
        self.user: Any = link.user
        link.user = self
        self.address: str = link.address
        self.pathMTU: int = link.pathMTU
        capture.addresses.add(self.address)

    # -- ILink, passed on

    def pathMTUTo(self, destination: str) -> int:
        found: int = self._link.pathMTUTo(destination)
        return found

    def routeMTUTo(self, destination: str) -> int:
        found: int = self._link.routeMTUTo(destination)
        return found

    def sourcePort(self, wanted: int) -> int:
        found: int = self._link.sourcePort(wanted)
        return found

    def receive(self, budget: int) -> int:
        found: int = self._link.receive(budget)
        return found

    def sift(self, program: bytes) -> None:
        self._link.sift(program)

    def waiting(self) -> int:
        found: int = self._link.waiting()
        return found

    def pending(self) -> bool:
        return bool(self._link.pending())

    def fileno(self) -> int:
        found: int = self._link.fileno()
        return found

    def join(self, group: str) -> None:
        self._link.join(group)

    def leave(self, group: str) -> None:
        self._link.leave(group)

    def close(self) -> None:
        self._link.close()

    @property
    def burst(self) -> int:
        found: int = self._link.burst
        return found

    # -- the link's user

    @property
    def asleep(self) -> bool:
        """
        Whether the user wants C{signal} when something arrives.
        """
        return bool(self.user.asleep)

    def signal(self) -> None:
        """
        Wake the user.
        """
        self.user.signal()

    def undelivered(self, address: str, datagram: bytes) -> None:
        """
        See L{ILink}.
        """
        self.user.undelivered(address, datagram)

    def count(self, name: str) -> None:
        """
        Increment one of the user's counters.
        """
        self.user.count(name)

    def arrived(
        self,
        source: str,
        port: int,
        destination: str,
        buffer: Any,
        start: int,
        stop: int,
        size: int,
        trafficClass: int = 0,
    ) -> None:
        """
        Show datagrams, unless their sender writes to the same capture, and pass them on.
        """
        if size > 0 and source not in self._capture.addresses:
            self._show(
                *(False, source, destination, port, bytes(buffer[start:stop]), size),
                *(trafficClass, HOP_LIMIT),
            )
        self.user.arrived(source, port, destination, buffer, start, stop, size, trafficClass)

    # -- sending

    def send(
        self,
        destination: str,
        port: int,
        pieces: list[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = HOP_LIMIT,
    ) -> bool:
        if not self._link.send(destination, port, pieces, size, trafficClass, hopLimit):
            return False
        self._show(True, self.address, destination, port, b"".join(pieces), size, trafficClass, hopLimit)
        return True

    def _show(
        self,
        outbound: bool,
        source: str,
        destination: str,
        port: int,
        data: bytes,
        size: int,
        trafficClass: int,
        hopLimit: int,
    ) -> None:
        capture = self._capture
        if capture.closed:
            return
        here, there = gidOf(source), gidOf(destination)
        flow = ICRCState(here, there, port)
        fromGID, toGID = int.from_bytes(here, "big"), int.from_bytes(there, "big")
        version = ipVersion(fromGID, toGID)
        hardware = hardwareAddress(toGID, hardwareOf(toGID))
        head = ethernet(hardwareOf(fromGID), hardware, version)
        # One call may have many datagrams of equal size (UDP_SEGMENT, UDP_GRO): each is a packet on the
        # wire.
        for at in range(0, len(data), size):
            each = data[at : at + size]
            end = len(each) - ICRC.size
            try:
                datagram = UDPDatagram(
                    *(fromGID, toGID, port, each[:end], trafficClass, hopLimit),
                    identification=flow.identification(each),
                    checksum=0 if version == 4 else None,
                ).pack()
            except WireError:
                continue  # Malformed: it cannot be shown as a packet.
            # With the ICRC as it arrived, right or wrong.
            capture.write(self._interface, outbound, head + datagram[: -ICRC.size] + each[end:])


class _Flags(IntFlag):
    # RFC 9293 section 3.1.
    FIN = 1
    SYN = 2
    RST = 4
    PSH = 8
    ACK = 16


class _Frames:
    """
    Cuts what one end has sent into frames of MPA.

    @ivar startup: its Request or Reply, L{None} until that is complete.
    """

    __slots__ = ("_isBroken", "_pending", "_reader", "startup")

    def __init__(self) -> None:
        self.startup: StartupFrame | None = None
        # At most a frame: the rest was shown.
        self._pending = b""
        self._reader: FPDUReader | None = None
        self._isBroken = False

    def cut(self, octets: bytes, peer: _Frames) -> list[bytes]:
        """
        @param octets: the next.
        @param peer: the other direction's.
        @return: the frames that are complete; of a stream that is none of MPA's, all octets.
        """
        octets = self._pending + octets
        buffer, at, found = bytearray(octets), 0, []
        try:
            while not self._isBroken and (end := self._next(buffer, at, peer)):
                found.append(octets[at:end])
                at = end
        except WireError:
            self._isBroken = True
        self._pending = octets[at:]
        return [*found, self.rest()] if self._isBroken else found

    def _next(self, buffer: bytearray, at: int, peer: _Frames) -> int:
        if self.startup is None:
            parsed = StartupFrame.parse(buffer, at, len(buffer))
            if parsed is None:
                return 0
            self.startup, end = parsed
            return end
        if at == len(buffer):
            return 0
        if self._reader is None:
            if peer.startup is None:
                raise HeaderError("an FPDU before both startup frames")
            # The receiver of markers asks for them.
            self._reader = FPDUReader(False, peer.startup.markers)
        return self._reader.next(buffer, at, len(buffer))

    def rest(self) -> bytes:
        pending, self._pending = self._pending, b""
        return pending


class _Connection:
    """
    The part of a connection that was shown.

    @ivar traced: the ends that write to the capture.
    @ivar frames: by the end that sends.
    """

    __slots__ = ("__weakref__", "_ended", "_next", "frames", "traced")

    def __init__(self, ends: tuple[_End, _End]) -> None:
        self.traced: set[_End] = set()
        self.frames = {end: _Frames() for end in ends}
        # By the end that sends: its next sequence number.
        self._next = dict.fromkeys(ends, 0)
        self._ended: set[_End] = set()

    def segment(self, source: _End, destination: _End, flags: _Flags, data: bytes = b"") -> bytes:
        # A frame; data fits in it.
        (fromGID, fromPort), (toGID, toPort) = source, destination
        sequence = self._next[source]
        isSYN = bool(flags & _Flags.SYN)
        counted = len(data) + isSYN + bool(flags & _Flags.FIN)
        self._next[source] = sequence + counted & _SEQUENCE_MASK
        acknowledged = self._next[destination] if flags & _Flags.ACK else 0
        options, words = (_OPTIONS, _WORDS_SYN) if isSYN else (b"", _WORDS)
        fields = fromPort, toPort, sequence, acknowledged, words << 4, flags, _WINDOW
        bare = _TCP.pack(*fields, 0, 0) + options + data
        checksum = transportChecksum(fromGID, toGID, _PROTOCOL, bare)
        segment = _TCP.pack(*fields, checksum, 0) + options + data
        head = ethernet(hardwareOf(fromGID), hardwareOf(toGID), ipVersion(fromGID, toGID))
        return head + ipHeader(fromGID, toGID, _PROTOCOL, len(segment)) + segment

    def ends(self, source: _End) -> bool:
        # Whether this side ends now, and not before.
        if source in self._ended:
            return False
        self._ended.add(source)
        return True


#: Connections of captures, as long as one of their sockets is open.
_connections: WeakValueDictionary[tuple[Capture, frozenset[_End]], _Connection] = WeakValueDictionary()


class TracedStream:
    """
    A connected TCP socket that shows what passes it to a capture: see L{socket.socket}, whose other methods
    it has.
    """

    def __init__(
        self,
        stream: socket.socket,
        isInitiator: bool,
        capture: Capture,
        interface: int,
        leftover: bytes = b"",
    ) -> None:
        """
        @param isInitiator: whether this side sends the Request; then it counts as the one that has connected.
        @param interface: the number of its interface in the capture.
        @param leftover: octets that were received on it before.
        @raise OSError: it is not connected any more.
        """
        self._stream = stream
        self._capture = capture
        self._interface = interface
        self._here, self._there = _endOf(stream.getsockname()), _endOf(stream.getpeername())
        key = capture, frozenset((self._here, self._there))
        with capture.lock:
            found = _connections.get(key)
            self._connection = found or _Connection((self._here, self._there))
            self._connection.traced.add(self._here)
            if found is None:
                _connections[key] = self._connection
                self._begin(isInitiator)
            self._passed(False, leftover)

    def _begin(self, isInitiator: bool) -> None:
        for isAnswer, flags in (
            (False, _Flags.SYN),
            (True, _Flags.SYN | _Flags.ACK),
            (False, _Flags.ACK),
        ):
            self._show(isInitiator is not isAnswer, flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    # -- sending

    def sendmsg(self, pieces: Any, *rest: Any) -> int:
        """
        Send, and show as much as was sent.
        """
        sent = self._stream.sendmsg(pieces, *rest)
        self._passed(True, b"".join(pieces)[:sent])
        return sent

    def send(self, data: Any, *rest: Any) -> int:
        sent = self._stream.send(data, *rest)
        self._passed(True, bytes(memoryview(data)[:sent]))
        return sent

    def shutdown(self, how: int) -> None:
        """
        Shut the socket down, and show that this side ends.
        """
        self._stream.shutdown(how)
        if how != socket.SHUT_RD:
            self._ended(self._here, _Flags.FIN)

    def close(self) -> None:
        """
        Likewise.
        """
        if self._stream.fileno() >= 0:
            self._ended(self._here, _Flags.FIN)
        self._stream.close()

    # -- receiving

    def recv_into(self, buffer: Any, *rest: Any) -> int:
        """
        Receive, and show what was received unless its sender writes to the same capture.
        """
        try:
            got = self._stream.recv_into(buffer, *rest)
        except OSError as error:
            self._lost(error)
            raise
        self._received(bytes(memoryview(buffer)[:got]))
        return got

    def recv(self, *arguments: Any) -> bytes:
        try:
            data = self._stream.recv(*arguments)
        except OSError as error:
            self._lost(error)
            raise
        self._received(data)
        return data

    def _received(self, data: bytes) -> None:
        if data:
            self._passed(False, data)
        else:
            self._ended(self._there, _Flags.FIN)

    def _lost(self, error: OSError) -> None:
        if error.errno == errno.ECONNRESET:
            self._ended(self._there, _Flags.RST)

    # -- showing

    def _ended(self, end: _End, flag: _Flags) -> None:
        isOwn = end == self._here
        with self._capture.lock:
            if (isOwn or end not in self._connection.traced) and self._connection.ends(end):
                self._push(isOwn, self._connection.frames[end].rest())
                self._show(isOwn, flag | _Flags.ACK)

    def _passed(self, isOutbound: bool, data: bytes) -> None:
        if not isOutbound and self._there in self._connection.traced:
            return
        with self._capture.lock:
            frames = self._connection.frames
            mine, theirs = frames[self._here], frames[self._there]
            for each in mine.cut(data, theirs) if isOutbound else theirs.cut(data, mine):
                self._push(isOutbound, each)

    def _push(self, isOutbound: bool, data: bytes) -> None:
        for at in range(0, len(data), _SEGMENT_BYTES):
            self._show(isOutbound, _Flags.PSH | _Flags.ACK, data[at : at + _SEGMENT_BYTES])

    def _show(self, isOutbound: bool, flags: _Flags, data: bytes = b"") -> None:
        if self._capture.closed:
            return
        ends = (self._here, self._there) if isOutbound else (self._there, self._here)
        self._capture.write(self._interface, isOutbound, self._connection.segment(*ends, flags, data))


def _endOf(name: tuple[Any, ...]) -> _End:
    return int.from_bytes(gidOf(name[0].partition("%")[0]), "big"), name[1]
