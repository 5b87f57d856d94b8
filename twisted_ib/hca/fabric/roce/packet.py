"""
A fabric of packets: RoCEv2 over a link that carries datagrams (IBTA vol. 1 annex A17).

Peers are IP addresses.  Nobody is dialled: a path to an address is there at once.  Services are the
device's own, since nobody else has its address.

Packets leave at the end of a batch, those of one queue pair together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import inf
from typing import Any, Final
from weakref import WeakValueDictionary

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import NoListenerError, NoRouteError, PathLostError
from twisted_ib.hca.base.interfaces import IFabric
from twisted_ib.hca.base.operation import GSI_QPN, QPN_MASK, UD_SEND_ONLY
from twisted_ib.hca.cm.transactions import CMTransactions
from twisted_ib.hca.fabric.base.fabric import Fabric, Found
from twisted_ib.hca.fabric.roce.connparams import sending
from twisted_ib.hca.fabric.roce.peerpath import PeerPath
from twisted_ib.hca.fabric.roce.qppath import QueuePairPath
from twisted_ib.hca.fabric.roce.receive import PacketReceiver
from twisted_ib.hca.fabric.roce.servicetable import ServiceTable
from twisted_ib.hca.fabric.roce.sessions import ConnectedPaths
from twisted_ib.hca.fabric.roce.transmit import ACKNOWLEDGE, PacketTransmitter
from twisted_ib.hca.fabric.roce.waker import LinkWaker
from twisted_ib.hca.host.addresses import normalise, wildcard
from twisted_ib.hca.wire.cm import DREQ, REQ
from twisted_ib.hca.wire.cm.rdmacm import gidNumber, gidOf, gidText
from twisted_ib.hca.wire.grh import GRH, GRH_BYTES, isMulticast
from twisted_ib.hca.wire.headers import DETH
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.mad import QUEUE_KEY

PACKET_ANSWER_SECONDS = 0.0002
#: Who is heard of again within this time, in seconds, waits for acknowledgements until nothing comes.
PACKET_PATIENCE_SECONDS = 0.0005

_HOP_LIMIT: Final = 64


@implementer(IFabric)
class PacketFabric(Fabric):
    """
    The fabric of one HCA over one link.

    @ivar address: The HCA's IP address, as text without a scope.
    @ivar gid: The same as a GID.
    @ivar link: An L{ILink<twisted_ib.hca.base.interfaces.ILink>}.
    @ivar pathMTU: The most octets of a packet's payload.
    @ivar clock: Gives the time, seconds.
    @ivar randomBits: Gives that many random bits.
    @ivar sessions: Queue pairs that are connected.
    @ivar outlet: What sends packets.
    @ivar arrived: Takes datagrams: see L{ILink<twisted_ib.hca.base.interfaces.ILink>}.
    @ivar roomy: Queue pairs' paths that have room for who waits.
    @ivar partial: Those of streams that have a part of a message.
    @ivar patient: Whether acknowledgements to streams may wait until nothing comes any more; then somebody
        calls L{progress} at once when nothing has come.
    """

    name = "packet"
    addressed = True
    answerSeconds = PACKET_ANSWER_SECONDS
    attributes = {"largestOperation": limits.INLINE_RECORD, "zeroCopy": False}

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        link: Any,
        randomBits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        """
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: Gives the time, seconds.
        @param link: What carries datagrams; it is this fabric's from now on.
        @param randomBits: Gives that many random bits, which nobody can guess.
        """
        super().__init__(owner, guid)
        self.clock = clock
        self.randomBits = randomBits
        self.link = link
        self.address: str = link.address
        self.gid = gidNumber(self.address)
        self.pathMTU: int = link.pathMTU
        self.roomy: list[QueuePairPath] = []
        self.partial: dict[QueuePairPath, None] = {}
        self._closed = self._busy = False
        #: Paths with acknowledgements that wait.
        self._owing: dict[QueuePairPath, None] = {}
        #: When they leave though others have something all the time.
        self._owedAt = 0.0
        self._published = ServiceTable(self.address)
        self._peers: WeakValueDictionary[str, PeerPath] = WeakValueDictionary()
        self.sessions = ConnectedPaths(clock)
        self._general = CMTransactions(owner, randomBits, self.pathTo)
        self.transmitter = PacketTransmitter(self)
        self._receiver = PacketReceiver(self, self.sessions.byNumber, self._general)
        self.arrived = self._receiver.take
        #: DREQs that leave at the end of the batch.
        self._farewells: list[tuple[str, int, bytes]] = []
        self._failure: BaseException | None = None
        self._waker = LinkWaker(link)
        link.user = self

    def allocate(self, size: int) -> None:
        """
        Nobody maps memory here.
        """

    def gids(self) -> list[str]:
        """
        @return: The addresses that lead here.
        """
        return [self.address]

    def traceLink(self, wrap: Callable[[Any], Any]) -> None:
        """
        Put something between this fabric and its link, which sees all packets.

        @param wrap: Function of the link; returns another C{ILink}.
        """
        self.link = self.transmitter.link = wrap(self.link)

    # -- services and peers

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        """
        Answer for a service at an address: see L{ServiceTable.publish}.

        @param inode: There is no socket beside it here.
        """
        self._published.publish(serviceID, address)

    def publishAny(self, prefix: int, address: str) -> int:
        """
        The same with a port that is free.

        @return: The port.
        """
        return self._published.publishAny(prefix, address)

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Take back what L{publish} did.
        """
        self._published.withdraw(serviceID, address)

    @property
    def packetsSent(self) -> int:
        """
        How many have left.
        """
        return self.transmitter.packets

    @property
    def packetsReceived(self) -> int:
        """
        How many came, whatever they were.
        """
        return self._receiver.packets

    def resolve(self, serviceID: int, address: str, user: Any) -> Found:
        """
        Find the path to an address; whether somebody serves there is known only when a REQ is answered.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoRouteError: The address is of another IP version, or of nobody.
        """
        address = normalise(address).partition("%")[0]
        if address == wildcard(self.address):
            address = self.address
        if (":" in address) != (":" in self.address) or isMulticast(gidNumber(address)):
            raise NoRouteError(f"{address} cannot be reached from {self.address}")
        user.pathReady(self.pathTo(address))
        return Found()

    def serving(self, serviceID: int, address: str) -> list[int]:
        """
        Peers have no GUIDs here.

        @return: None.
        """
        return []

    def reach(self, guid: int, user: Any) -> Found:
        """
        Peers have no GUIDs here.

        @raise NoListenerError: Always.
        """
        raise NoListenerError(f"HCA {guid:016x} is not to be found by its GUID: give an IP address as GID")

    def reachGID(self, gid: int, user: Any) -> Found:
        """
        Find the path to a GID: of a peer, or of a multicast group.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoRouteError: It is no IP address that can be reached from here.
        """
        address = gidText(gid)
        if (":" in address) != (":" in self.address) or not gid:
            raise NoRouteError(f"GID {address} cannot be reached from {self.address}")
        user.pathReady(self.pathTo(address))
        return Found()

    def proves(self, path: Any, guid: int) -> bool:
        """
        Whoever answers at an address has it, as far as anybody knows.
        """
        return True

    def join(self, group: int) -> None:
        """
        Take what is sent to a multicast group.

        @raise NoRouteError: It is no multicast address of this IP version.
        @raise HCAError: It cannot be.
        """
        self.link.join(self._group(group))

    def leave(self, group: int) -> None:
        """
        Take back what L{join} did.
        """
        self.link.leave(self._group(group))

    def _group(self, group: int) -> str:
        address = gidText(group)
        if not isMulticast(group) or (":" in address) != (":" in self.address):
            raise NoRouteError(f"{address} is no multicast group for {self.address}")
        return address

    def members(self, group: int) -> tuple[int, ...]:
        """
        @return: Nobody knows.
        """
        return ()

    def pathTo(self, address: str) -> PeerPath:
        """
        @param address: Of a peer, as text without a scope.
        @return: The path to it.
        """
        path = self._peers.get(address)
        if path is None:
            path = self._peers[address] = PeerPath(self, address)
        return path

    def paths(self) -> list[QueuePairPath]:
        """
        @return: The paths of queue pairs that are connected.
        """
        return [path for path in self.sessions.byNumber.values() if path.queuePair is not None]

    def flowTo(self, address: str, port: int) -> ICRCState:
        """
        @param address: Of a peer.
        @param port: The UDP source port.
        @return: What begins the checksums of packets to it.
        """
        return ICRCState(gidOf(self.address), gidOf(address), port)

    # -- queue pairs

    def failed(self, error: BaseException) -> None:
        """
        Who uses a queue pair has failed, in the middle of a batch, which goes on; the first error is
        raised at its end.
        """
        if self._failure is None:
            self._failure = error

    # -- up

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        """
        Take what has arrived.

        @param budget: Datagrams at most, or a few more.
        @return: How much was done, or will be at the end of the batch.
        """
        if self._busy or self._closed:
            return 0
        self._busy = True
        try:
            n: int = self.link.receive(budget)
            if self._general.questions:
                n += self._general.answer()
            if self.roomy:
                roomy, self.roomy = self.roomy, []
                for path in roomy:
                    n += path.progress(budget)
        finally:
            self._busy = False
        if self._failure is not None:
            self._raise()
        n += self._ringing() if self.transmitter.stalled else len(self.bells)
        if self._owing and (not n or self.clock() >= self._owedAt):
            self._acknowledge()
        return n

    def _acknowledge(self) -> None:
        """
        Nothing comes any more, or it lasts: what was not acknowledged leaves at the end of the batch.
        """
        owing, self._owing = self._owing, {}
        for path in owing:
            path.flushed = -inf
            if not path.bell:
                path.bell = True
                self.bells.append(path)

    # -- down

    def ringBells(self) -> None:
        """
        The batch ends: send what queue pairs have to send.
        """
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
                    if stalled and path.port in stalled:
                        waiting.append(path)
                        continue
                    path.bell = False
                    self._flush(path, now)
            finally:
                bells.reverse()
                self.bells[:0] = waiting + bells
        if self._farewells:
            farewells, self._farewells = self._farewells, []
            for each in farewells:
                if stalled and self._isBehind(each[0]):
                    self._farewells.append(each)
                else:
                    self._sendManagement(*each)

    def _ringing(self) -> int:
        """
        @return: How many queue pairs have something to send for which there may be room.
        """
        stalled = self.transmitter.stalled
        return sum(path.port not in stalled for path in self.bells)

    def _isBehind(self, address: str) -> bool:
        """
        @return: Whether something for an address waits for room.
        """
        stalled = self.transmitter.stalled
        return self.transmitter.isBehind(address) or any(
            path.port in stalled and path.peer.address == address for path in self.bells
        )

    def _flush(self, path: QueuePairPath, now: float) -> None:
        if not path.alive:
            return
        connection = path.connection
        isLast = path.queuePair is None and not path.until
        if isLast:
            connection.close()
        patient = (
            self.patient and now - path.flushed < PACKET_PATIENCE_SECONDS and connection.owes and path.isPlain
        )
        path.flushed = now
        packets = connection.outputs(limits.PACKET_OUTPUTS, now, patient)
        if packets:
            self.transmitter.send(path, packets)
        if isLast and not (packets and connection.pending()):
            self.sessions.drop(path)
            return
        if patient:
            if not self._owing:
                self._owedAt = now + PACKET_PATIENCE_SECONDS
            self._owing[path] = None
        # With fewer than there might be, there are no more.
        if len(packets) >= limits.PACKET_OUTPUTS - 1 and connection.pending() and not path.bell:
            path.bell = True
            self.bells.append(path)
        self.sessions.schedule(path)

    def sendManagement(self, address: str, attribute: int, body: bytes) -> None:
        """
        Send a connection management message.

        @param address: Where to.
        @param body: The message without its MAD header, 232 bytes.
        """
        if attribute == DREQ.attribute and (self.bells or self._busy):
            # What it ends comes first: a NAK says why.
            self._farewells.append((address, attribute, body))
            self._want()
        else:
            if attribute == REQ.attribute:
                sending(self, body)
            self._sendManagement(address, attribute, body)

    def _sendManagement(self, address: str, attribute: int, body: bytes) -> None:
        rest = DETH.pack(QUEUE_KEY, GSI_QPN) + self._general.wrap(address, attribute, body)
        self.transmitter.datagram(address, UD_SEND_ONLY, GSI_QPN, ACKNOWLEDGE, GSI_QPN, rest, 0, _HOP_LIMIT)

    def sendDatagram(self, path: PeerPath, word: int, record: bytes) -> None:
        """
        Send a datagram of a queue pair.

        @param word: Operation and destination queue pair.
        @param record: GRH, DETH, immediate if it has one, and payload.
        """
        grh = GRH.parse(record, 0, len(record))
        _, source = DETH.unpack_from(record, GRH_BYTES)
        self.transmitter.datagram(
            *(path.peer.address, word >> 24, word & QPN_MASK, 0, source & QPN_MASK),
            *(record[GRH_BYTES:], grh.trafficClass, grh.hopLimit),
        )

    # -- sleeping and waking

    def pending(self) -> bool:
        """
        @return: Whether there is something to do.
        """
        if self._closed:
            return False
        if self.transmitter.stalled:
            if self._ringing() or self.roomy:
                return True
        elif self.bells or self._farewells or self.roomy:
            return True
        if self._general.questions:
            return True
        found: bool = self.link.pending()
        return found

    @property
    def hot(self) -> tuple[Any, ...]:
        """
        Where something may soon arrive.
        """
        return (self,) if self.sessions.byNumber else ()

    def arm(self) -> bool:
        """
        Have work make the descriptor readable from now on.

        @return: False if there is work after all.
        """
        if self._owing:
            self._acknowledge()
            self.ringBells()
        return super().arm()

    def signal(self) -> None:
        """
        Make L{fileno} readable: there is something to do.
        """
        self._waker.signal()

    def attend(self) -> None:
        """
        Nobody need be woken any more.
        """
        self._waker.attend()

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """
        Have L{attend} call somebody while a descriptor of theirs is readable.
        """
        self._waker.watch(fd, call)

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable when there is work.
        """
        return self._waker.fileno()

    def registerWith(self, poller: Any) -> None:
        """
        The descriptor is enough.
        """

    def deadline(self) -> float | None:
        """
        @return: When L{tick} should be called.
        """
        found = self.sessions.deadline()
        if self.transmitter.stalled and (found is None or self.transmitter.again < found):
            return self.transmitter.again
        return found

    def tick(self, now: float) -> None:
        """
        Do what is due.
        """
        self.sessions.tick(now)
        if self.transmitter.stalled and now >= self.transmitter.again:
            self.transmitter.unstall()
            if self._farewells or self._ringing():
                self._want()
        self._raise()

    def _want(self) -> None:
        wanted = self.owner.wanted
        if wanted is not None:
            wanted()

    # -- the end

    def forked(self) -> None:
        """
        In a forked child: nothing of this may be touched any more.
        """
        self._closed = True
        self.bells, self.roomy = [], []
        self._owing.clear()
        self.transmitter.clear()
        self._closeAll()

    def _closeAll(self) -> None:
        self.link.close()
        self._waker.close()

    def close(self) -> None:
        """
        Say what is to be said, fail what is connected, and give everything back.
        """
        if self._closed:
            return
        gone = PathLostError("the device was closed")
        for peer in list(self._peers.values()):
            self._try(self.owner.pathLost, peer, gone)
            peer.lost(gone)
        for session in list(self.sessions.byNumber.values()):
            self._try(session.lost, gone)
        self.ringBells()
        self._closed = True
        for session in list(self.sessions.byNumber.values()):
            self.sessions.drop(session)
        self.bells, self.roomy = [], []
        self._owing.clear()
        self._closeAll()
        self._raise()

    def _try(self, call: Callable[..., object], *arguments: Any) -> None:
        """
        Call somebody whose exception keeps nobody else from hearing.
        """
        try:
            call(*arguments)
        except Exception as error:
            self.failed(error)

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


__all__ = ["PacketFabric"]
