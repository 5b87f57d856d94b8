"""
Connection management over TCP: MPA's startup frames (RFC 5044 section 7.1, RFC 6581).

A request to connect becomes a TCP connection and a Request, which a Reply answers; a Reply with R refuses,
and FIN ends the connection. The peer's queue pair has no number: one for each connection stands for it.

RDMA-CM's header in private data is not sent (Linux cma.c has none over iWARP): the addresses are those of
TCP.
"""

from __future__ import annotations

import errno
import fcntl
import secrets
import socket
import struct
import termios
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import LengthError, PathLostError, ResourceLimitError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.operation import GSI_QPN, MULTICAST_QPN
from twisted_ib.hca.base.traits import STREAM
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection, RejectReason
from twisted_ib.hca.connection.interfaces import IConnector
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace, RDMACMHeader
from twisted_ib.hca.connection.receives import Receives, isTold, sendsHello, toldIn
from twisted_ib.hca.fabric.base.streams import FabricConnector, pathRecord
from twisted_ib.hca.fabric.iwarp.connection import MPAConnection
from twisted_ib.hca.fabric.iwarp.peerpath import Setup, StreamPeerPath
from twisted_ib.hca.fabric.iwarp.protocol.mpa import MPAErrorCode
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import MAX_ULPDU, MAX_ULPDU_MARKERS, mulpdu
from twisted_ib.hca.fabric.iwarp.protocol.startup import (
    HOLD_SECONDS,
    Failed,
    Initiator,
    Rejected,
    Replied,
    Requested,
    Responder,
    StartupOptions,
)
from twisted_ib.hca.fabric.iwarp.protocol.terminate import Termination
from twisted_ib.hca.fabric.iwarp.streampath import StreamPath
from twisted_ib.hca.host.libc import KernelSocket

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, IPeerPath
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric
    from twisted_ib.hca.fabric.iwarp.protocol.mpa import StartupFrame
    from twisted_ib.hca.fabric.iwarp.protocol.startup import Startup
    from twisted_ib.structs import Packed

#: Options of a socket to a peer that counts its receives.  A message that waits for one is not in TCP, which
#: would not see that the peer's host is gone: so it probes after 15 s, every 5 s, six times.
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
#: A request that finds no room here is offered again after so many seconds, as long as its initiator may
#: wait for the Reply.
IWARP_AGAIN_SECONDS = 1.0
_AGAIN_TIMES: Final = 9

#: The highest port, and depth, that fit in their fields.
_PORT: Final = 0xFFFF
_DEPTH: Final = 0xFF
_RETRIES: Final = 7
_PRIVATE: Final = STREAM.privateBytes
#: The header of private data is RDMA-CM's own, and not the program's, in this port space alone.
_TCP: Final = PortSpace.TCP.value
_MTU_CODE: Final = MTU_CODES[limits.DATAGRAM_BYTES]
#: Octets that are in TCP's send queue, not acknowledged (tcp(7)).
_SIOCOUTQ: Final = termios.TIOCOUTQ
_INT: Final[Packed[tuple[int]]] = struct.Struct("=i")
#: connect(2): nobody listens, or something on the way has said so.
_REFUSED: Final = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


@implementer(IConnector)
class MPAService(FabricConnector):
    """
    The connections of one fabric.

    @ivar options: what is asked for on connections that begin.
    @ivar connections: they, until they have ended.
    @ivar unanswered: the passive ones whose peers are not known to be ready.
    """

    def __init__(self, fabric: IWARPFabric, options: StartupOptions) -> None:
        self.fabric = fabric
        self.options = options
        self.connections: dict[MPAConnection, None] = {}
        self.unanswered: set[MPAConnection] = set()
        self._last = GSI_QPN

    def _options(self, readsIn: int = 0, readsOut: int = 0) -> StartupOptions:
        return evolve(self.options, readsIn=readsIn, readsOut=readsOut)

    def _stream(self, way: StreamPeerPath, made: socket.socket, serviceID: int) -> StreamPath:
        streams, number = self.fabric.streams, self._last
        while True:
            number = number + 1 if number < MULTICAST_QPN - 1 else GSI_QPN + 1
            if number not in streams:
                break
        self._last = number
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = streams[number] = StreamPath(way, number, made)
        stream.startup = Setup(serviceID)
        return stream

    # -- active

    def sendRequest(self, path: IPeerPath, request: ConnectRequest, user: Any, now: float) -> MPAConnection:
        if len(self.connections) >= limits.CM_CONNECTIONS:
            raise ResourceLimitError(f"{limits.CM_CONNECTIONS} connections are open")
        assert isinstance(path, StreamPeerPath)
        space, privateData, port = request.serviceID >> 16, request.privateData, 0
        if space == _TCP:
            port = RDMACMHeader.parse(privateData).sourcePort
            privateData = privateData[HEADER_BYTES:]
        connection = MPAConnection(self, path, "calling")
        connection.user = user
        given = path.connected()
        if given is None and (path.isSpent or space == PortSpace.IB or request.serviceID >> 32):
            # rdma_cm over iWARP has IP addresses only.
            self._refuse(connection, RejectReason.INVALID_SERVICE_ID)
            return connection
        leftover, code = b"", 0
        if given is None:
            try:
                made, code = self._dial(path, request.serviceID & _PORT, port)
            except OSError as error:
                self._unreached(connection, error.errno or 0)
                return connection
        else:
            made, leftover = given
        connection.expect()
        stream = connection.stream = self._stream(path, made, request.serviceID)
        stream.connection = connection
        setup = stream.startup
        assert setup is not None
        if isTold(request):
            privateData = Receives().behind(privateData, space == PortSpace.SDP)
        setup.privateData = privateData
        setup.leftover = leftover
        setup.depths = request.responderResources, request.initiatorDepth
        if code == errno.EINPROGRESS:
            setup.isDialling = True
            stream.watchConnect()
        else:
            self._request(stream)
        return connection

    def _dial(self, way: StreamPeerPath, port: int, source: int) -> tuple[socket.socket, int]:
        fabric = self.fabric
        made = KernelSocket(fabric.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # The number that the program was told, if TCP has it free.
                made.bind(fabric.where(fabric.address, source))
            except OSError:
                made.bind(fabric.where(fabric.address, 0))
            code = made.connect_ex(fabric.where(way.peer.address, port))
            if code == errno.EADDRNOTAVAIL and source:
                made.close()
                return self._dial(way, port, 0)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, "connect")
        except BaseException:
            made.close()
            raise
        return made, code

    def dialled(self, stream: StreamPath) -> None:
        """
        The TCP connection is made, or is not.
        """
        code = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            if stream.connection is not None:
                self._unreached(stream.connection, code)
            stream.close()
            return
        assert stream.startup is not None
        stream.startup.isDialling = False
        self._request(stream)

    def _unreached(self, connection: MPAConnection, code: int) -> None:
        # TCP's refusal is that of a service that nobody listens for (IBTA vol. 1 12.6.7.2, reason 8).  For
        # what the network says there is no better reason.
        self.fabric.count("iwarp_refused" if code in _REFUSED else "iwarp_unreachable")
        self._refuse(connection, RejectReason.INVALID_SERVICE_ID)

    def _refuse(self, connection: MPAConnection, reason: RejectReason, privateData: bytes = b"") -> None:
        # In the next turn: its user does not have the connection yet, or is calling.
        self.fabric.soonCall(connection.refused, Rejection(reason, privateData))

    def _request(self, stream: StreamPath) -> None:
        setup, fabric = stream.startup, self.fabric
        assert setup is not None
        leftover, setup.leftover = setup.leftover, b""
        stream.socket = fabric.shown(stream.socket, True, leftover)
        machine = setup.machine = Initiator(self._options(*setup.depths))
        now = fabric.clock()
        try:
            frame = machine.request(setup.privateData, now)
        except LengthError:
            # The bounds of private data in requests are below those of MPA.
            if stream.connection is not None:
                self._refuse(stream.connection, RejectReason.UNSUPPORTED_REQUEST)
            stream.close()
            return
        stream.sendFrame(frame)
        self._limit(stream, machine, now)
        stream.watchFrames(leftover)

    def reply(self, stream: StreamPath, reply: ConnectReply) -> None:
        """
        Passive: accept.
        """
        if stream.startup is None:
            # It has ended meanwhile, as the event on the way here says.
            return
        setup = stream.startup
        machine, data = setup.machine, reply.privateData
        if setup.there is not None:
            data = Receives().behind(data)
        resources, depth = reply.responderResources, reply.initiatorDepth
        frame = machine.accept(data, resources, depth, self.fabric.clock())
        if not frame:
            return
        stream.sendFrame(frame)
        self._agreed(stream, machine)
        if machine.releasesWhenQuiet:
            stream.startTimer(HOLD_SECONDS, lambda: self._quiet(stream, machine, False))

    def _quiet(self, stream: StreamPath, machine: Responder, wasQuiet: bool) -> None:
        # For an initiator that sends nothing first: see the module startup.
        if stream.isEstablished or not stream.alive or stream.isClosing:
            return
        isQuiet = not _INT.unpack(fcntl.ioctl(stream.socket.fileno(), _SIOCOUTQ, bytes(4)))[0]
        if isQuiet and wasQuiet:
            machine.replyAcknowledged()
            stream.release()
        else:
            stream.startTimer(HOLD_SECONDS, lambda: self._quiet(stream, machine, isQuiet))

    def again(self, stream: StreamPath) -> None:
        """
        Offer a request once more later, for which there is no room now.
        """
        setup = stream.startup
        if setup is None or stream.isClosing or not stream.alive:
            return
        setup.times += 1
        if setup.times > _AGAIN_TIMES:
            stream.sendFrame(setup.machine.reject())
            stream.finish()
        else:
            stream.startTimer(IWARP_AGAIN_SECONDS, lambda: self.fabric.soonCall(self._offer, stream))

    def _offer(self, stream: StreamPath) -> None:
        setup = stream.startup
        if setup is None or setup.request is None or stream.isClosing or not stream.alive:
            return
        isFull = len(self.unanswered) >= limits.CM_HALF_OPEN_PATHS
        if isFull or len(self.connections) >= limits.CM_CONNECTIONS:
            self.fabric.count("iwarp_requests_exceeded")
            self.again(stream)
            return
        connection = stream.connection = MPAConnection(self, stream.way, "requested")
        connection.stream = stream
        self.unanswered.add(connection)
        # Each listener gets one of its own.
        self.fabric.owner.connectionRequested(connection, evolve(setup.request))

    def _requested(self, stream: StreamPath, frame: StartupFrame) -> None:
        setup, fabric = stream.startup, self.fabric
        assert setup is not None
        self._notHalfOpen(setup)
        served, asked = limits.READS, limits.READS
        if frame.depths is not None:
            served, asked = min(frame.depths.ird, _DEPTH), min(frame.depths.ord, _DEPTH)
        here, there = fabric.address, stream.peer.address
        privateData, setup.there = toldIn(frame.privateData, sendsHello(setup.serviceID))
        if setup.serviceID >> 16 == _TCP:
            try:
                port = stream.socket.getpeername()[1]
            except OSError as error:
                # Reset behind its Request.
                self.broken(stream, error)
                return
            privateData = RDMACMHeader(there, port, here).pack() + privateData
        if len(privateData) > _PRIVATE.request:
            fabric.count("iwarp_private_data_exceeded")
            stream.sendFrame(setup.machine.reject())
            stream.finish()
            return
        setup.request = ConnectRequest(
            serviceID=setup.serviceID,
            privateData=privateData,
            localQPN=stream.number,
            responderResources=served,
            initiatorDepth=asked,
            retryCount=_RETRIES,
            rnrRetryCount=_RETRIES,
            pathMTU=_MTU_CODE,
            primaryPath=pathRecord(there, here),
        )
        fabric.soonCall(self._offer, stream)

    def _replied(self, stream: StreamPath, frame: StartupFrame) -> None:
        setup = stream.startup
        assert setup is not None
        machine = setup.machine
        privateData, setup.there = toldIn(frame.privateData)
        self._agreed(stream, machine)
        reply = ConnectReply(
            privateData[: _PRIVATE.reply],
            stream.number,
            min(machine.ord, _DEPTH),
            min(machine.ird, _DEPTH),
            _RETRIES,
        )
        if stream.connection is not None:
            self.fabric.soonCall(stream.connection.replied, reply)

    def established(self, stream: StreamPath) -> None:
        """
        The peer of a passive side is known to be ready.
        """
        # As of InfiniBand (IBTA vol. 1 12.9.8): a ready-to-receive message, or the first of all, says so.
        if stream.connection is not None:
            stream.connection.established()

    # -- startup frames

    def await_(self, way: StreamPeerPath, made: socket.socket, serviceID: int, leftover: bytes = b"") -> None:
        """
        Await the Request of a connection for a service.

        @param leftover: octets that were received on it.
        """
        fabric = self.fabric
        stream = self._stream(way, fabric.shown(made, False, leftover), serviceID)
        now = fabric.clock()
        setup = stream.startup
        assert setup is not None
        setup.halfOpen = way.peer.address
        fabric.halfOpen[setup.halfOpen] += 1
        machine = setup.machine = Responder(self._options(), now)
        stream.isPassive = True
        self._limit(stream, machine, now)
        stream.watchFrames(leftover)

    def _limit(self, stream: StreamPath, machine: Initiator | Responder, now: float) -> None:
        seconds = stream.way.seconds
        if seconds is not None:
            machine.deadline = now + seconds
        stream.startTimer((machine.deadline or now) - now, lambda: self._expired(stream))

    def _notHalfOpen(self, setup: Setup) -> None:
        address, setup.halfOpen = setup.halfOpen, ""
        if address:
            halfOpen = self.fabric.halfOpen
            halfOpen[address] -= 1
            if not halfOpen[address]:
                del halfOpen[address]

    def frames(self, stream: StreamPath, buffer: Buffer, start: int, stop: int) -> int:
        """
        Octets arrived that are none of an FPDU yet.

        @return: the offset of those that are left.
        """
        setup = stream.startup
        if setup is None or setup.machine is None:
            return stop
        machine = setup.machine
        start = machine.received(buffer, start, stop, self.fabric.clock())
        self._heard(stream, machine)
        return stop if stream.isClosing or not stream.alive else start

    def _expired(self, stream: StreamPath) -> None:
        setup = stream.startup
        if setup is not None and setup.machine is not None:
            setup.machine.tick(self.fabric.clock())
            self._heard(stream, setup.machine)

    def _heard(self, stream: StreamPath, machine: Startup) -> None:
        event = machine.event
        if event is None:
            return
        if stream.timer is not None:
            stream.timer.cancel()
        if isinstance(event, Requested):
            self._requested(stream, event.frame)
        elif isinstance(event, Replied):
            self._replied(stream, event.frame)
        elif isinstance(event, Rejected):
            if stream.connection is not None:
                privateData = event.frame.privateData[: _PRIVATE.rejection]
                self._refuse(stream.connection, RejectReason.CONSUMER_DEFINED, privateData)
            stream.finish()
        elif isinstance(event, Failed):
            self._failed(stream, event)

    def _failed(self, stream: StreamPath, event: Failed) -> None:
        fabric = self.fabric
        fabric.count("iwarp_startup_failed")
        if event.output:
            stream.sendFrame(event.output)
        if event.code is not None:
            assert stream.startup is not None
            machine = stream.startup.machine
            stream.terminateStartup(machine, Termination(2, 0, int(MPAErrorCode(event.code))))
        # A peer that is there, and silent, is no port without a listener.
        self.gone(stream, RejectReason.TIMEOUT if event.isLate else RejectReason.INVALID_SERVICE_ID)
        stream.finish()

    def _agreed(self, stream: StreamPath, machine: Startup) -> None:
        most = MAX_ULPDU_MARKERS if machine.markersOut else MAX_ULPDU
        if not machine.largeFPDUs:
            # tcp(7): what TCP puts into a segment now; the path's MTU may change, which receivers bear.
            segment = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            most = mulpdu(segment, machine.markersOut)
        there = None if stream.startup is None else stream.startup.there
        receives = 0 if there is None else there.count
        for option in KEEPALIVE if receives else ():
            stream.socket.setsockopt(*option)
        stream.open(machine, most, secrets.randbits(8), receives)

    # -- ends

    def broken(self, stream: StreamPath, error: OSError) -> None:
        """
        TCP has lost the connection.
        """
        self.fabric.count("iwarp_connections_lost")
        text = f"the TCP connection to {stream.peer.address} is lost: {error.strerror}"
        self.fabric.doom(stream, PathLostError(text))
        self.gone(stream)
        stream.close()

    def ended(self, stream: StreamPath, isCut: bool) -> None:
        """
        The peer has sent FIN.

        @param isCut: whether amidst an FPDU.
        """
        if stream.isClosing:
            stream.mark()
            return
        if isCut:
            self.fabric.count("iwarp_connections_cut")
        isCut = isCut or stream.isUnfinished
        how = "amidst a message or a READ" if isCut else "and its queue pair is gone"
        reason = PathLostError(f"{stream.peer.address} has closed the connection, {how}")
        if isCut:
            self.fabric.doom(stream, reason)
        elif stream.isPassive and stream.startup is None and not stream.isEstablished:
            # An initiator without an RTR, as Linux's siw, that has the Reply and nothing to say: it was
            # connected, and closes.
            stream.isEstablished = True
            self.established(stream)
        # The queue pair is of no use then.
        self.gone(stream)
        self.fabric.doom(stream, reason)
        stream.finish()

    def gone(self, stream: StreamPath, reason: RejectReason = RejectReason.INVALID_SERVICE_ID) -> None:
        """
        A connection has ended: tell its user.

        @param reason: why, where this side awaits an answer to its Request.
        """
        connection = stream.connection
        if connection is None:
            return
        if stream.startup is not None:
            self._refuse(connection, RejectReason.TIMEOUT if stream.isPassive else reason)
        elif stream.isPassive and not stream.isEstablished and connection.stage == "accepted":
            self._refuse(connection, RejectReason.CONSUMER_DEFINED)
        else:
            # FIN between messages, or the end of the queue pair. There is no half-close.
            self.fabric.soonCall(connection.gone)

    def closed(self, stream: StreamPath) -> None:
        """
        A connection is closed: forget it.
        """
        fabric = self.fabric
        # Its user may have closed the queue pair alone.
        self.gone(stream)
        if stream.startup is not None:
            self._notHalfOpen(stream.startup)
        if fabric.streams.get(stream.number) is stream:
            del fabric.streams[stream.number]
        fabric.soon.pop(stream, None)
        stream.way.closed()
