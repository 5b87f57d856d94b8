"""
Connection management over TCP: between the messages of the communication manager and MPA's startup frames.

iWARP has no messages of connection management. A REQ becomes a TCP connection and a Request, whose Reply
becomes a REP; a Reply that refuses is a REJ, and FIN a DREQ. The communication ids and queue pair numbers of
the peer, which do not exist, are invented here: one number for each connection.

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

from twisted_ib import limits
from twisted_ib.errors import LengthError, PathLostError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.operation import GSI_QPN, MULTICAST_QPN
from twisted_ib.hca.connection import PathRecord, RejectReason
from twisted_ib.hca.connection.codes import SIDRStatus
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace, RDMACMHeader, gidOf
from twisted_ib.hca.fabric.iwarp.peerpath import PeerPath, Setup
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
from twisted_ib.hca.wire.cm import DREP, DREQ, MRA, REJ, REP, REQ, SIDR_REP, SIDR_REQ, MessageKind
from twisted_ib.hca.wire.grh import HOP_LIMIT

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.structs import Packed

#: A request that finds no room in connection management is given to it again after so many seconds, as long
#: as its initiator may wait for the Reply.
IWARP_AGAIN_SECONDS = 1.0
_AGAIN_TIMES: Final = 9

#: The highest port, and depth, that fit in their fields.
_PORT: Final = 0xFFFF
_DEPTH: Final = 0xFF
_RETRIES: Final = 7
#: The header of private data is RDMA-CM's own, and not the program's, in this port space alone.
_TCP: Final = PortSpace.TCP.value
_SDP: Final = PortSpace.SDP.value
_MTU_CODE: Final = MTU_CODES[limits.DATAGRAM_BYTES]
#: Octets that are in TCP's send queue, not acknowledged (tcp(7)).
_SIOCOUTQ: Final = termios.TIOCOUTQ
_INT: Final[Packed[tuple[int]]] = struct.Struct("=i")
#: connect(2): nobody listens, or something on the way has said so.
_REFUSED: Final = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


class MPAService:
    """
    The connection management of one fabric.

    @ivar options: what is asked for on connections that begin.
    """

    def __init__(self, fabric: IWARPFabric, options: StartupOptions) -> None:
        self._fabric = fabric
        self.options = options
        self._last = GSI_QPN
        take: dict[int, Any] = {
            REQ.attribute: self._takeREQ,
            REP.attribute: self._takeREP,
            REJ.attribute: self._takeREJ,
            MRA.attribute: self._takeMRA,
            DREQ.attribute: self._takeDREQ,
            SIDR_REQ.attribute: self._takeSIDR,
        }
        self._receivers = take

    def _options(self, readsIn: int = 0, readsOut: int = 0) -> StartupOptions:
        return evolve(self.options, readsIn=readsIn, readsOut=readsOut)

    def _stream(self, way: PeerPath, made: socket.socket, serviceID: int) -> StreamPath:
        streams, number = self._fabric.streams, self._last
        while True:
            number = number + 1 if number < MULTICAST_QPN - 1 else GSI_QPN + 1
            if number not in streams:
                break
        self._last = number
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = streams[number] = StreamPath(way, number, made)
        stream.startup = Setup(serviceID)
        return stream

    # -- messages of this side's connection management

    def take(self, way: PeerPath, attribute: int, body: bytes) -> None:
        """
        Do what a message says.

        @param attribute: its attribute; the RTU, the DREP and whatever else has no meaning here is ignored.
        """
        receiver = self._receivers.get(attribute)
        if receiver is not None:
            receiver(way, body)

    def _takeREQ(self, way: PeerPath, body: bytes) -> None:
        request = REQ.parseExact(body, 0, len(body))
        fabric, space = self._fabric, request.serviceID >> 16
        privateData, port = request.privateData, 0
        if space == _TCP:
            port = RDMACMHeader.parse(privateData).sourcePort
            privateData = privateData[HEADER_BYTES:]
        given = way.connected()
        if given is None and (way.isSpent or space == PortSpace.IB or request.serviceID >> 32):
            # rdma_cm over iWARP has IP addresses only.
            self._reject(way, request.localCommunicationID, 0, RejectReason.INVALID_SERVICE_ID)
            return
        leftover, code = b"", 0
        if given is None:
            try:
                made, code = self._dial(way, request.serviceID & _PORT, port)
            except OSError as error:
                fabric.count("iwarp_unreachable")
                self._unreached(way, request.localCommunicationID, error.errno or 0)
                return
        else:
            made, leftover = given
        stream = self._stream(way, made, request.serviceID)
        stream.localID, stream.localQPN = request.localCommunicationID, request.localQPN
        setup = stream.startup
        assert setup is not None
        setup.privateData = privateData
        setup.leftover = leftover
        setup.depths = request.responderResources, request.initiatorDepth
        if code == errno.EINPROGRESS:
            setup.isDialling = True
            stream.watchConnect()
        else:
            self._request(stream)

    def _dial(self, way: PeerPath, port: int, source: int) -> tuple[socket.socket, int]:
        fabric = self._fabric
        made = socket.socket(fabric.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
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
            way, localID = stream.way, stream.localID
            stream.localID = 0
            stream.close()
            self._unreached(way, localID, code)
            return
        assert stream.startup is not None
        stream.startup.isDialling = False
        self._request(stream)

    def _unreached(self, way: PeerPath, localID: int, code: int) -> None:
        # TCP's refusal is that of a service that nobody listens for (IBTA vol. 1 12.6.7.2, reason 8).  For
        # what the network says REJ has no better reason.
        self._fabric.count("iwarp_refused" if code in _REFUSED else "iwarp_unreachable")
        self._reject(way, localID, 0, RejectReason.INVALID_SERVICE_ID)

    def _request(self, stream: StreamPath) -> None:
        setup, fabric = stream.startup, self._fabric
        assert setup is not None
        leftover, setup.leftover = setup.leftover, b""
        stream.socket = fabric.shown(stream.socket, True, leftover)
        machine = setup.machine = Initiator(self._options(*setup.depths))
        now = fabric.clock()
        try:
            frame = machine.request(setup.privateData, now)
        except LengthError:
            # The bounds of private data in connection management are below those of MPA.
            self._reject(stream.way, stream.localID, 0, RejectReason.UNSUPPORTED_REQUEST)
            stream.close()
            return
        stream.sendFrame(frame)
        self._limit(stream, machine, now)
        stream.watchFrames(leftover)

    def _takeREP(self, way: PeerPath, body: bytes) -> None:
        reply = REP.parseExact(body, 0, len(body))
        fabric = self._fabric
        stream = fabric.streams.get(reply.remoteCommunicationID)
        if stream is None or stream.startup is None:
            # It has ended meanwhile, as the message on the way here says.
            return
        stream.localID, stream.localQPN = reply.localCommunicationID, reply.localQPN
        machine = stream.startup.machine
        resources, depth = reply.responderResources, reply.initiatorDepth
        frame = machine.accept(reply.privateData, resources, depth, fabric.clock())
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

    def _takeREJ(self, way: PeerPath, body: bytes) -> None:
        reject = REJ.parseExact(body, 0, len(body))
        stream = self._of(way, reject.remoteCommunicationID, reject.localCommunicationID)
        if stream is None:
            return
        setup = stream.startup
        stream.localID = 0
        if setup is not None and isinstance(setup.machine, Responder):
            stream.sendFrame(setup.machine.reject(reject.privateData))
            stream.finish()
        elif setup is not None:
            stream.close()
        else:
            # Behind a Reply there is no word for it but the end.
            stream.finish()

    def _takeMRA(self, way: PeerPath, body: bytes) -> None:
        # Only the one that asks for the REQ again is sent unasked.
        message = MRA.parseExact(body, 0, len(body))
        stream = self._fabric.streams.get(message.remoteCommunicationID)
        if stream is None or stream.startup is None or not stream.startup.request:
            return
        setup = stream.startup
        setup.times += 1
        if setup.times > _AGAIN_TIMES:
            stream.sendFrame(setup.machine.reject())
            stream.finish()
        else:
            stream.startTimer(
                IWARP_AGAIN_SECONDS, lambda: self._fabric.manage(stream.way, REQ.attribute, setup.request)
            )

    def _takeDREQ(self, way: PeerPath, body: bytes) -> None:
        message = DREQ.parseExact(body, 0, len(body))
        fabric = self._fabric
        stream = fabric.streams.get(message.remoteCommunicationID)
        if stream is not None:
            stream.localID = 0
            stream.finish()
        # FIN has no answer of its own: the peer's FIN follows when its program is done.
        answer = DREP(message.remoteCommunicationID, message.localCommunicationID)
        fabric.manage(way, DREP.attribute, answer.packExact())

    def _takeSIDR(self, way: PeerPath, body: bytes) -> None:
        request = SIDR_REQ.parseExact(body, 0, len(body))
        answer = SIDR_REP(requestID=request.requestID, status=SIDRStatus.SERVICE_ID_UNSUPPORTED)
        self._fabric.manage(way, SIDR_REP.attribute, answer.packExact())

    def _of(self, way: PeerPath, number: int, localID: int) -> StreamPath | None:
        if number:
            return self._fabric.streams.get(number)
        # A REJ that gives up a REQ: no answer has told the peer's id (IBTA vol. 1 12.6.7.2, reason 4).
        for stream in self._fabric.streams.values():
            if stream.localID == localID and stream.way is way:
                return stream
        return None

    # -- messages to this side's connection management

    def _reject(
        self, way: PeerPath, localID: int, number: int, reason: RejectReason, privateData: bytes = b""
    ) -> None:
        message = REJ(number, localID, MessageKind.REQ, reason=reason, privateData=privateData)
        self._fabric.manage(way, REJ.attribute, message.packExact())

    def _requested(self, stream: StreamPath, frame: Any) -> None:
        setup, fabric = stream.startup, self._fabric
        assert setup is not None
        self._notHalfOpen(setup)
        served, asked = limits.READS, limits.READS
        if frame.depths is not None:
            served, asked = min(frame.depths.ird, _DEPTH), min(frame.depths.ord, _DEPTH)
        here, there = fabric.address, stream.peer.address
        privateData = frame.privateData
        if setup.serviceID >> 16 == _TCP:
            try:
                port = stream.socket.getpeername()[1]
            except OSError as error:
                # Reset behind its Request.
                self.broken(stream, error)
                return
            privateData = RDMACMHeader(there, port, here).pack() + privateData
        if len(privateData) > REQ.privateDataBytes:
            fabric.count("iwarp_private_data_exceeded")
            stream.sendFrame(setup.machine.reject())
            stream.finish()
            return
        path = PathRecord(localGID=gidOf(there), remoteGID=gidOf(here), hopLimit=HOP_LIMIT)
        setup.request = REQ(
            localCommunicationID=stream.number,
            serviceID=setup.serviceID,
            # By it, connection management knows the connection that a REJ gives up.
            localCAGUID=stream.number,
            localQPN=stream.number,
            responderResources=served,
            initiatorDepth=asked,
            retryCount=_RETRIES,
            rnrRetryCount=_RETRIES,
            pathMTU=_MTU_CODE,
            primaryPath=path,
            privateData=privateData,
        ).packExact()
        fabric.manage(stream.way, REQ.attribute, setup.request)

    def _replied(self, stream: StreamPath, frame: Any) -> None:
        assert stream.startup is not None
        machine = stream.startup.machine
        self._agreed(stream, machine)
        message = REP(
            localCommunicationID=stream.number,
            remoteCommunicationID=stream.localID,
            localQPN=stream.number,
            responderResources=min(machine.ord, _DEPTH),
            initiatorDepth=min(machine.ird, _DEPTH),
            rnrRetryCount=_RETRIES,
            privateData=frame.privateData[: REP.privateDataBytes],
        )
        self._fabric.manage(stream.way, REP.attribute, message.packExact())

    def established(self, stream: StreamPath) -> None:
        """
        The peer of a passive side is known to be ready.
        """
        self._fabric.owner.communicationEstablished(stream.localQPN)

    # -- startup frames

    def await_(self, way: PeerPath, made: socket.socket, serviceID: int, leftover: bytes = b"") -> None:
        """
        Await the Request of a connection for a service.

        @param leftover: octets that were received on it.
        """
        fabric = self._fabric
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
            halfOpen = self._fabric.halfOpen
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
        start = machine.received(buffer, start, stop, self._fabric.clock())
        self._heard(stream, machine)
        return stop if stream.isClosing or not stream.alive else start

    def _expired(self, stream: StreamPath) -> None:
        setup = stream.startup
        if setup is not None and setup.machine is not None:
            setup.machine.tick(self._fabric.clock())
            self._heard(stream, setup.machine)

    def _heard(self, stream: StreamPath, machine: Any) -> None:
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
            localID, stream.localID = stream.localID, 0
            self._reject(
                stream.way,
                localID,
                stream.number,
                RejectReason.CONSUMER_DEFINED,
                event.frame.privateData[: REJ.privateDataBytes],
            )
            stream.finish()
        elif isinstance(event, Failed):
            self._failed(stream, event)

    def _failed(self, stream: StreamPath, event: Failed) -> None:
        fabric = self._fabric
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

    def _agreed(self, stream: StreamPath, machine: Any) -> None:
        most = MAX_ULPDU_MARKERS if machine.markersOut else MAX_ULPDU
        if not machine.largeFPDUs:
            # tcp(7): what TCP puts into a segment now; the path's MTU may change, which receivers bear.
            segment = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            most = mulpdu(segment, machine.markersOut)
        stream.open(machine, most, secrets.randbits(8))

    # -- queue pairs

    def bind(self, way: PeerPath, queuePair: QueuePair) -> StreamPath:
        """
        Give a queue pair the path of its connection.
        """
        fabric = self._fabric
        stream = fabric.streams.get(queuePair.remote)
        if stream is None or stream.way is not way or stream.queuePair is not None or stream.isClosing:
            # It has ended while its Reply was on the way: the queue pair learns of it next.
            stream = StreamPath(way, queuePair.remote, None)
            stream.alive = False
            stream.queuePair = queuePair
            fabric.doom(stream, PathLostError(f"{way.peer.address} has closed the connection"))
            return stream
        stream.attach(queuePair)
        return stream

    # -- ends

    def broken(self, stream: StreamPath, error: OSError) -> None:
        """
        TCP has lost the connection.
        """
        self._fabric.count("iwarp_connections_lost")
        text = f"the TCP connection to {stream.peer.address} is lost: {error.strerror}"
        self._fabric.doom(stream, PathLostError(text))
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
            self._fabric.count("iwarp_connections_cut")
        isCut = isCut or stream.isUnfinished
        how = "amidst a message or a READ" if isCut else "and its queue pair is gone"
        reason = PathLostError(f"{stream.peer.address} has closed the connection, {how}")
        if isCut:
            self._fabric.doom(stream, reason)
        elif stream.isPassive and stream.startup is None and not stream.isEstablished:
            # An initiator without an RTR, as Linux's siw, that has the Reply and nothing to say: it was
            # connected, and closes.
            stream.isEstablished = True
            self.established(stream)
        # A FIN between messages is as a DREQ. There is no half-close: the queue pair is of no use then.
        self.gone(stream)
        self._fabric.doom(stream, reason)
        stream.finish()

    def gone(self, stream: StreamPath, reason: RejectReason = RejectReason.INVALID_SERVICE_ID) -> None:
        """
        A connection has ended: tell connection management, if it knows it.

        @param reason: why, where this side awaits an answer to its Request.
        """
        localID, stream.localID = stream.localID, 0
        setup = stream.startup
        if setup is not None:
            if isinstance(setup.machine, Responder):
                if setup.request:
                    guid = stream.number.to_bytes(8, "big")
                    message = REJ(
                        *(stream.number, 0, MessageKind.OTHER, len(guid), RejectReason.TIMEOUT, guid)
                    )
                    self._fabric.manage(stream.way, REJ.attribute, message.packExact())
            elif localID:
                self._reject(stream.way, localID, 0, reason)
        elif localID and stream.isPassive and not stream.isEstablished:
            message = REJ(stream.number, localID, MessageKind.REP, reason=RejectReason.CONSUMER_DEFINED)
            self._fabric.manage(stream.way, REJ.attribute, message.packExact())
        elif localID:
            end = DREQ(stream.number, localID, stream.localQPN)
            self._fabric.manage(stream.way, DREQ.attribute, end.packExact())

    def closed(self, stream: StreamPath) -> None:
        """
        A connection is closed: forget it.
        """
        fabric = self._fabric
        if stream.startup is not None:
            self._notHalfOpen(stream.startup)
        if fabric.streams.get(stream.number) is stream:
            del fabric.streams[stream.number]
        fabric.soon.pop(stream, None)
        stream.way.closed()


__all__ = ["MPAService"]
