"""
A fabric of packets: RoCEv2 over a link that carries datagrams (IBTA vol. 1 annex A17).

Peers are IP addresses, and a path to an address exists at once, without an exchange. The service table is
local, since no other device has this address. Packets are sent at the end of a batch, those of one queue
pair together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import inf
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.errors import HCAError, NoRouteError, PathLostError
from twisted_ib.hca.base.interfaces import IPacketFabric
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.traits import ROUTED, Traits
from twisted_ib.hca.cm.states import State
from twisted_ib.hca.cm.transitions import HALF_OPEN
from twisted_ib.hca.connection.compacthello import refusal
from twisted_ib.hca.connection.interfaces import Parking
from twisted_ib.hca.connection.rdmacm import gidOf, gidText
from twisted_ib.hca.connection.request import RejectReason
from twisted_ib.hca.fabric.base.addressdirectory import AddressDirectory
from twisted_ib.hca.fabric.base.waker import LinkWaker
from twisted_ib.hca.fabric.roce.connparams import Proposal, sending
from twisted_ib.hca.fabric.roce.orphans import Orphan
from twisted_ib.hca.fabric.roce.peerpath import PeerPath
from twisted_ib.hca.fabric.roce.portgroup import PortGroup
from twisted_ib.hca.fabric.roce.qppath import PACKET_PATIENCE_SECONDS, QueuePairPath
from twisted_ib.hca.fabric.roce.receive import PacketReceiver, Sifting
from twisted_ib.hca.fabric.roce.sessions import ConnectedPaths
from twisted_ib.hca.fabric.roce.slots import filterOf, packed, serviceOf
from twisted_ib.hca.fabric.roce.transmit import ACKNOWLEDGE, PacketTransmitter
from twisted_ib.hca.host.addresses import freePort
from twisted_ib.hca.host.libc import keepFreed
from twisted_ib.hca.transport.parameters import Packet
from twisted_ib.hca.wire.cm.messages import DREQ, REJ, REQ, MessageKind
from twisted_ib.hca.wire.grh import GRH_BYTES, HOP_LIMIT, isMulticast
from twisted_ib.hca.wire.headers import BTH, DETH, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.icrc import CRC32_LIBRARY
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.mad import HEADER, communicationHeader
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE as ACKNOWLEDGEMENT
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

if TYPE_CHECKING:
    from select import epoll

#: How long to poll for an answer before sleeping, in seconds: longer than between processes of one host, as
#: the peer may have to wake up first.
PACKET_ANSWER_SECONDS = 0.0002
#: For so long, in seconds, so many path MTUs to addresses, and what their routes were set to, are known.
PACKET_ROUTE_SECONDS, PACKET_ROUTES = 1.0, 1024

_MAD_OFFSET: Final = BTH.size + DETH.size
_NUMBER: Final = Struct(">I")
_HOP_LIMIT_OFFSET: Final = 7
_GID: Final = attrgetter("peer.gid")


class PacketFabric(AddressDirectory):
    """
    The fabric of one HCA over one link.

    @ivar link: an L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
    @ivar group: the processes that share its address, or L{None}.
    @ivar slot: see L{IPacketFabric<twisted_ib.hca.base.interfaces.IPacketFabric>}.
    @ivar pathMTU: most bytes of a packet's payload.
    @cvar icrc: the library that computes the CRC of packets.
    @ivar clock: returns the time in seconds.
    @ivar randomBits: called with a number, returns that many random bits.
    @ivar acceptLabel: flow label of what accepts, see C{connparams.PACKET_ACCEPT_PORTS}.
    @ivar sessions: paths of connected queue pairs.
    @ivar sifting: when the kernel drops requests that nobody listens for.
    @ivar transmitter: sends packets.
    @ivar arrived: receives datagrams: see L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
    @ivar writable: paths whose send window has space again.
    @ivar partial: paths of streams that have received part of a message.
    @ivar patient: whether acknowledgements to streams may wait until nothing arrives; L{progress} is called
        again at once then.
    """

    name: ClassVar[str] = "roce"
    traits: ClassVar[Traits] = ROUTED
    icrc: ClassVar[str] = CRC32_LIBRARY
    answerSeconds: ClassVar[float] = PACKET_ANSWER_SECONDS

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        link: Any,
        randomBits: Callable[[int], int] = secrets.randbits,
        group: PortGroup | None = None,
    ) -> None:
        """
        @param owner: the device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: returns the time in seconds.
        @param link: owned by this fabric from now on.
        @param randomBits: called with a number, returns that many unpredictable bits.
        @param group: the L{PortGroup<twisted_ib.hca.fabric.roce.portgroup.PortGroup>} of processes that share
            the address; L{None} if none can.
        """
        super().__init__(owner, guid, link.address)
        self.group = group
        self.slot: int = 0 if group is None else group.slot
        self.clock = clock
        self.randomBits = randomBits
        self.acceptLabel: int = randomBits(20)
        self.link = link
        self.pathMTU: int = min(link.pathMTU, limits.DATAGRAM_BYTES)
        self.writable: list[QueuePairPath] = []
        self.partial: dict[QueuePairPath, None] = {}
        self._closed = self._busy = False
        #: Whether of the route, and address -> the path MTU, until that time.
        self._routes: dict[tuple[bool, str], int] = {}
        self._routesUntil = 0.0
        #: Paths with delayed acknowledgements.
        self._delayedAcks: dict[QueuePairPath, None] = {}
        #: When they are sent at the latest.
        self._owedAt = 0.0
        self.sessions = ConnectedPaths(clock)
        self.transmitter = PacketTransmitter(self)
        self.sifting = Sifting()
        self._receiver = PacketReceiver(self, self.sessions.byNumber)
        self.arrived = self._receiver.take
        #: DREQs that are sent at the end of the batch.
        self._pendingDREQs: list[tuple[str, int, bytes, int]] = []
        self._waker = LinkWaker(link)
        link.user = self
        keepFreed()  # Copies of what is on its way.

    def trace(self, observer: Any) -> None:
        self.link = self.transmitter.link = observer.tracedLink(self.link)

    def pathMTUTo(self, address: str) -> int:
        return min(self.link.pathMTUTo(address), limits.DATAGRAM_BYTES)

    def learnedMTUTo(self, address: str) -> int:
        return min(self._mtuTo(False, address), limits.DATAGRAM_BYTES)

    def routeMTUTo(self, address: str) -> int:
        return min(self.longRouteMTUTo(address), limits.DATAGRAM_BYTES)

    def longRouteMTUTo(self, address: str) -> int:
        """
        @return: the same, which may be a long path MTU.
        """
        return self._mtuTo(True, address)

    def _mtuTo(self, isOfRoute: bool, address: str) -> int:
        # The link makes a socket to know either, and anybody can send requests.
        now = self.clock()
        if now >= self._routesUntil:
            self._routes.clear()
            self._routesUntil = now + PACKET_ROUTE_SECONDS
        key = isOfRoute, address
        found = self._routes.get(key)
        if found is None:
            found = int(self.link.routeMTUTo(address) if isOfRoute else self.link.pathMTUTo(address))
            if len(self._routes) < PACKET_ROUTES:
                self._routes[key] = found
        return found

    @property
    def packetsSent(self) -> int:
        return self.transmitter.packets

    def published(self) -> int:
        return self.transmitter.packets - self.transmitter.answers

    @property
    def packetsReceived(self) -> int:
        return self._receiver.packets

    # -- services

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        # No other process of this address listens for it.
        super().publish(serviceID, address, inode)
        if self.group is not None:
            try:
                with self.group.locked():
                    self.group.services.add(serviceID)
            except HCAError:
                super().withdraw(serviceID, address)
                raise
        self._pass()

    def publishAny(self, prefix: int, address: str) -> int:
        # Free in all processes of this address.
        if self.group is None:
            return super().publishAny(prefix, address)
        with self.group.locked():
            services = (*(service for service, _ in self._services), *self.group.services.others())
            port = freePort({service - prefix for service in services})
            super().publish(prefix + port, address)
            self.group.services.add(prefix + port)
        self._pass()
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        super().withdraw(serviceID, address)
        if self.group is not None and all(service != serviceID for service, _ in self._services):
            self.group.services.remove(serviceID)

    def sift(self) -> None:
        services = {service for service, _ in self._services}
        if self.group is not None:
            services |= self.group.services.others()
        program = filterOf(services)
        if program is None:
            return
        self.link.sift(packed(program))
        # A process that begins to listen writes that first, then ends this: it is seen here, or ended there.
        if self.group is not None and not self.group.services.others() <= services:
            self.link.sift(b"")
        self.want()

    def _pass(self) -> None:
        # The service is not in the program, which may be one of another process.
        if self.group is not None or self.sifting.until:
            self.link.sift(b"")

    def isListened(self, serviceID: int) -> bool:
        """
        @return: whether this process listens for a service, or another one of this address.
        """
        if any(service == serviceID for service, _ in self._services):
            return True
        return self.group is not None and self.group.services.find(serviceID) not in (0, self.group.slot)

    # -- peers

    def join(self, group: int) -> None:
        self.link.join(self._group(group))

    def leave(self, group: int) -> None:
        self.link.leave(self._group(group))

    def _group(self, group: int) -> str:
        address = gidText(group)
        if not isMulticast(group) or (":" in address) != (":" in self.address):
            raise NoRouteError(f"{address} is no multicast group for {self.address}")
        return address

    def newPath(self, address: str) -> PeerPath:
        return PeerPath(self, address)

    def paths(self) -> list[QueuePairPath]:
        return [path for path in self.sessions.byNumber.values() if path.queuePair is not None]

    def flowTo(self, address: str, port: int) -> ICRCState:
        """
        @return: a new ICRC state for packets to an address from a UDP source port.
        """
        return ICRCState(gidOf(self.address), gidOf(address), port)

    def nameSources(self, parked: Parking) -> None:
        parked.begin(_GID, lambda gid: self.pathTo(gidText(gid)), Proposal)

    def undelivered(self, address: str, datagram: bytes) -> None:
        """
        ICMP says that nobody has the port at an address.

        @param datagram: what was sent, as far as the message has it.
        """
        # As good as a REJ, where it is about a REQ: that has a random id, so nobody forges this who does not
        # see it. It ends no connection that has an answer: those have the peer's id too.
        service = serviceOf(datagram, 0, len(datagram))
        if service is None:
            return
        attribute = HEADER.unpack_from(datagram, _MAD_OFFSET)[7]
        if attribute == REQ.attribute:
            (number,) = _NUMBER.unpack_from(datagram, _MAD_OFFSET + HEADER.size)
            reason = RejectReason.INVALID_SERVICE_ID
            # No adapter is there either.
            rejection = REJ(0, number, MessageKind.REQ, reason=reason, privateData=refusal(service))
            body = rejection.pack()
            self.owner.count("requests_undelivered")
            self.owner.managementReceived(self.pathTo(address), REJ.attribute, body, 0, len(body))

    # -- queue pairs

    def follow(self, connection: Any, message: object) -> None:
        group, state = self.group, connection.state
        if group is None or self._closed:
            return
        if message is None and state in (State.IDLE, State.TIMEWAIT):
            group.connections.remove(connection.localID)
            return
        remoteID: int = connection.remoteID
        numbers = connection.localID, remoteID, connection.localQPN, connection.remoteQPN
        address, partition = connection.destination.peer.address, self.owner.partitions.key(0)
        isHalfOpen = HALF_OPEN[state]
        asked = (self.guid, message.serviceID) if isinstance(message, REQ) else (0, 0)
        isKept = group.connections.add(Orphan(address, *numbers, partition, isHalfOpen, *asked))
        if not isKept and remoteID and not isHalfOpen:
            self.owner.count("connections_unregistered")

    # -- receiving

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        if self._busy or self._closed:
            return 0
        self._busy = True
        try:
            n: int = self.link.receive(budget)
            if self.writable:
                writable, self.writable = self.writable, []
                for path in writable:
                    n += path.progress(budget)
        finally:
            self._busy = False
        if self._failure is not None:
            self._raise()
        n += self._ringing() if self.transmitter.stalled else len(self.bells)
        if self._delayedAcks and (not n or not self.patient or self.clock() >= self._owedAt):
            self._acknowledge()
        return n

    def _acknowledge(self) -> None:
        # Nothing more arrives, or the delay is over: the acknowledgements are sent at the end of the batch.
        owing, self._delayedAcks = self._delayedAcks, {}
        for path in owing:
            # Makes _flush impatient with this path.
            path.flushed = -inf
            if not path.bell:
                path.bell = True
                self.bells.append(path)

    # -- sending

    def ringBells(self) -> None:
        transmitter = self.transmitter
        stalled = transmitter.stalled
        if stalled and self.clock() >= transmitter.again:
            transmitter.unstall()
        bells, self.bells = self.bells, []
        if bells:
            now = self.clock()
            waiting = []
            bells.reverse()
            try:
                while bells:
                    path = bells.pop()
                    # Its packets would only be queued behind those that wait: the transport keeps them until
                    # there is room.
                    if stalled and path.port in stalled:
                        waiting.append(path)
                        continue
                    path.bell = False
                    self._flush(path, now)
            finally:
                bells.reverse()
                # Also if a flush raised: the paths that were not flushed keep their turn.
                self.bells[:0] = waiting + bells
        if self._pendingDREQs:
            dreqs, self._pendingDREQs = self._pendingDREQs, []
            for each in dreqs:
                if stalled and self._isBehind(each[0]):
                    self._pendingDREQs.append(each)
                else:
                    self._sendManagement(*each)

    def _ringing(self) -> int:
        # Only these can make progress; a reactor must not spin on those that wait for room.
        stalled = self.transmitter.stalled
        return sum(path.port not in stalled for path in self.bells)

    def _isBehind(self, address: str) -> bool:
        stalled = self.transmitter.stalled
        return self.transmitter.isBehind(address) or any(
            path.port in stalled and path.peer.address == address for path in self.bells
        )

    def _flush(self, path: QueuePairPath, now: float) -> None:
        if not path.alive:
            return
        connection, queuePair = path.connection, path.queuePair
        # No queue pair and not lingering: this sends the last acknowledgement or NAK, then the path ends.
        isLast = queuePair is None and not path.until
        if isLast:
            connection.close()
        # Acknowledgements are delayed only while packets keep arriving, and never for work requests, whose
        # completion waits for the ACK.
        patient = (
            self.patient
            and now - path.flushed < PACKET_PATIENCE_SECONDS
            and path.isStream
            and queuePair is not None
            and queuePair.work is None
        )
        path.flushed = now
        path.sentAtOnce = False
        packets: list[Packet] = connection.outputs(limits.PACKET_OUTPUTS, now, patient)
        if packets:
            transmitter = self.transmitter
            # One acknowledgement at most: before the requests or behind them.
            if packets[0][0] == ACKNOWLEDGEMENT or packets[-1][0] == ACKNOWLEDGEMENT:
                transmitter.answers += 1
            if len(packets) == 1:
                transmitter.sendOne(path, packets[0])
            else:
                transmitter.send(path, packets)
        if isLast and not (packets and connection.pending()):
            self.sessions.drop(path)
            return
        if patient and connection.owes:
            if not self._delayedAcks:
                self._owedAt = now + PACKET_PATIENCE_SECONDS
            self._delayedAcks[path] = None
        # A full budget: other queue pairs have their turn first.
        if len(packets) >= limits.PACKET_OUTPUTS - 1 and connection.pending() and not path.bell:
            path.bell = True
            self.bells.append(path)
        # Mostly there is nothing to schedule: a deadline is set already, and an acknowledgement moves it on.
        requester, deadline = path.requester, path.deadline
        due = None if requester is None else requester.due
        if path.until or (due is not None and (deadline is None or due < deadline)):
            self.sessions.schedule(path)

    def sendManagement(self, address: str, attribute: int, body: bytes, transaction: int) -> None:
        """
        Send a CM message.

        @param body: the message without its MAD header, 232 bytes.
        @param transaction: the transaction id for that header.
        """
        if attribute == DREQ.attribute and (self.bells or self._busy):
            # After the packets of its connection: a NAK tells the peer why, a DREQ does not.
            self._pendingDREQs.append((address, attribute, body, transaction))
        else:
            if attribute == REQ.attribute:
                sending(self, body)
            self._sendManagement(address, attribute, body, transaction)
        # Also where it has left already, as a bell of the other fabrics does: the communication manager's
        # deadlines are its own, and outside of a turn nothing else begins to wait for them.
        self.want()

    def _sendManagement(self, address: str, attribute: int, body: bytes, transaction: int) -> None:
        head = communicationHeader(transaction, attribute)
        self.transmitter.datagram(
            *(address, UD_SEND_ONLY, GSI_QPN, ACKNOWLEDGE, self.owner.partitions.key(0)),
            *(GSI_QPN, b"".join((DETH.pack(QUEUE_KEY, GSI_QPN), head, body)), 0, HOP_LIMIT),
        )

    def sendDatagram(self, path: PeerPath, word: int, record: bytes, partition: int = 0) -> None:
        """
        Send a datagram of a queue pair.

        @param word: opcode and destination QPN.
        @param record: GRH, DETH, immediate if there is one, and payload.
        @param partition: its P_Key, or 0 for that of the queue pair.
        """
        source = DETH.unpack_from(record, GRH_BYTES)[1] & QPN_MASK
        if not partition:
            owner = self.owner
            # A datagram may have waited longer than its queue pair lived.
            queuePair = owner.queuePairs.get(source)
            partition = owner.partitions.key(0) if queuePair is None else queuePair.partition
        self.transmitter.datagram(
            *(path.peer.address, word >> 24, word & QPN_MASK, 0, partition, source),
            # Of the GRH, traffic class and hop limit (IBTA vol. 1 8.3).
            *(record[GRH_BYTES:], (record[0] & 0xF) << 4 | record[1] >> 4, record[_HOP_LIMIT_OFFSET]),
        )

    # -- sleeping and waking

    def pending(self) -> bool:
        if self._closed:
            return False
        if self.transmitter.stalled:
            if self._ringing() or self.writable:
                return True
        elif self.bells or self._pendingDREQs or self.writable:
            return True
        found: bool = self.link.pending()
        return found

    def registerWith(self, poller: epoll | None) -> None:
        self._waker.watchIn(poller)

    @property
    def hot(self) -> tuple[Any, ...]:
        return (self,) if self.sessions.byNumber else ()

    def arm(self) -> bool:
        # The process is about to sleep: no more packets come that could carry these acknowledgements.
        if self._delayedAcks:
            self._acknowledge()
            self.ringBells()
        return super().arm()

    def deadline(self) -> float | None:
        found = self.sessions.deadline()
        until = self.sifting.until
        if until and (found is None or until < found):
            found = until
        if self.transmitter.stalled and (found is None or self.transmitter.again < found):
            return self.transmitter.again
        return found

    def tick(self, now: float) -> None:
        self.sessions.tick(now)
        if 0 < self.sifting.until <= now:
            self.sifting.until = 0.0
            self.link.sift(b"")
        if self.transmitter.stalled and now >= self.transmitter.again:
            self.transmitter.unstall()
            if self._pendingDREQs or self._ringing():
                self.want()
        self._raise()

    # -- the end

    def forked(self) -> None:
        # Nothing is sent: the connections are the parent's.
        self._closed = True
        self.bells, self.writable = [], []
        self._delayedAcks.clear()
        self.transmitter.clear()
        self._closeAll()

    def _closeAll(self) -> None:
        self.link.close()
        self._waker.close()

    def close(self) -> None:
        # What is due is sent first.
        if self._closed:
            return
        gone = PathLostError("the device was closed")
        for peer in list(self._peers.values()):
            self._try(self.owner.pathLost, peer, gone)
            peer.lost(gone)
        for session in list(self.sessions.byNumber.values()):
            self._try(session.lost, gone)
        # The DREQs and last NAKs of the connections that were just failed.
        self.ringBells()
        self._closed = True
        if self.sifting.until:
            self.link.sift(b"")
        for session in list(self.sessions.byNumber.values()):
            self.sessions.drop(session)
        self.bells, self.writable = [], []
        self._delayedAcks.clear()
        self._closeAll()
        self._raise()


classImplements(PacketFabric, IPacketFabric)
