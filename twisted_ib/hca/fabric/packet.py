"""
A fabric of packets: RoCEv2 over a link that carries datagrams (IBTA vol. 1 annex A17).

What arrives is checked before any state is asked: length, operation code, invariant CRC, partition;
then the queue pair that it is for, and that it comes from that one's peer.  What is wrong is dropped,
as a wire would lose it, and counted by what is wrong with it.

Peers are IP addresses.  Nobody is dialled: a path to an address is there at once.  Services are the
device's own, since nobody else has its address.

Packets leave at the end of a batch, those of one queue pair together.
"""

from __future__ import annotations

import os
import secrets
import select
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final
from weakref import WeakValueDictionary

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import NoListenerError, NoRouteError, PathLostError, ServiceInUseError
from twisted_ib.hca.cm.clock import Deadlines
from twisted_ib.hca.fabric.addresses import conflict, freePort, normalise, wildcard
from twisted_ib.hca.fabric.fabric import Fabric
from twisted_ib.hca.fabric.general import GeneralServices
from twisted_ib.hca.fabric.invariant import Flow, crc32
from twisted_ib.hca.fabric.packetpath import ConnectionPath, PeerPath
from twisted_ib.hca.interfaces import IFabric
from twisted_ib.hca.operation import (
    GSI_QPN,
    QPN_MASK,
    RESPONSES,
    SOLICITED,
    UD_SEND_ONLY,
    UD_SEND_ONLY_IMMEDIATE,
)
from twisted_ib.hca.wire.grh import GRH, GRH_BYTES
from twisted_ib.hca.wire.headers import BTH, DETH, ICRC, PSN_MASK
from twisted_ib.hca.wire.mad import QUEUE_KEY
from twisted_ib.hca.wire.opcodes import CONGESTION, OPCODES
from twisted_ib.hca.wire.rdmacm import gidOf, textOf
from twisted_ib.hca.wire.rocev2 import datagramPort

_PARTITION: Final = 0xFFFF
_FULL_MEMBER: Final = 0x8000
_ACKNOWLEDGE: Final = 0x80000000
_BACKWARD: Final = 0x40000000
_PAD_SHIFT: Final = 4
_VERSION_MASK: Final = 0xF
_SERVICE_MASK: Final = 0xE0
_HOP_LIMIT: Final = 64
#: The two bits of the traffic class that routers set, both if there is congestion.
_CONGESTED: Final = 3
#: The shortest packet.
_LEAST: Final = BTH.size + ICRC.size
#: Operation code -> where the payload begins.
_STARTS: Final = {code: row.start for code, row in OPCODES.items()}
_DATAGRAMS: Final = frozenset((UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE))
_NOTIFICATION: Final = bytes(16)
_PADS: Final = (b"", b"\0", b"\0\0", b"\0\0\0")
#: What stands in front of a datagram that came, where a GRH does elsewhere: 20 octets of zeros and the
#: IPv4 header, or the IPv6 header (Linux's C{union rdma_network_hdr}).
_IPV4: Final = Struct(">20xBBHHHBBH4s4s")
_IPV6: Final = Struct(">IHBB16s16s")
_UDP_BYTES: Final = 8
_IPV4_BYTES: Final = 20
_PROTOCOL: Final = 17
_DO_NOT_FRAGMENT: Final = 0x4000


class _Found:
    """
    The result of a search, which is never late.
    """

    def cancel(self) -> None:
        """
        There is nothing to cancel.
        """


@implementer(IFabric)
class PacketFabric(Fabric):
    """
    The fabric of one HCA over one link.

    @ivar address: The HCA's IP address, as text without a scope.
    @ivar gid: The same as a GID.
    @ivar link: An L{ILink<twisted_ib.hca.interfaces.ILink>}.
    @ivar pathMTU: The most octets of a packet's payload.
    @ivar clock: Gives the time, seconds.
    @ivar randomBits: Gives that many random bits.
    @ivar packetsSent: How many have left.
    @ivar packetsReceived: How many came, whatever they were.
    @ivar roomy: Queue pairs' paths that have room for who waits.
    @ivar asleep: Whether the descriptor must tell of work.
    """

    name = "packet"
    addressed = True
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
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.interfaces.IFabricOwner>}.
        @param clock: Gives the time, seconds.
        @param link: What carries datagrams; it is this fabric's from now on.
        @param randomBits: Gives that many random bits, which nobody can guess.
        """
        super().__init__(owner, guid)
        self.clock = clock
        self.randomBits = randomBits
        self.link = link
        self.address: str = link.address
        self.gid = int.from_bytes(gidOf(self.address), "big")
        self.pathMTU: int = link.pathMTU
        self.packetsSent = self.packetsReceived = 0
        self.roomy: list[ConnectionPath] = []
        self.asleep = self._closed = self._busy = False
        self._services: set[tuple[int, str]] = set()
        self._peers: WeakValueDictionary[str, PeerPath] = WeakValueDictionary()
        self._sessions: dict[int, ConnectionPath] = {}
        #: Those whose queue pair is gone, and that go on.
        self._lingering: dict[ConnectionPath, None] = {}
        self._general = GeneralServices(owner, randomBits)
        self._deadlines: Deadlines[ConnectionPath] = Deadlines()
        self._flows: dict[tuple[str, str, int], Flow] = {}
        #: What found no room: arguments of the link's C{send}, and datagrams of each.
        self._stalled: deque[tuple[tuple[Any, ...], int]] = deque()
        self._again = 0.0
        self._sequence = randomBits(24)
        self._failure: BaseException | None = None
        self._pipe: tuple[int, int] | None = None
        self._poller: Any = None
        self._woken = False
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

    # -- services and peers

    def _check(self, address: str) -> str:
        """
        @return: An address to listen on, normalised.
        @raise NoRouteError: This device has another one.
        """
        address = normalise(address).partition("%")[0]
        if address not in (self.address, wildcard(self.address)):
            raise NoRouteError(f"this device has the address {self.address}, not {address}")
        return address

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        """
        Answer for a service at an address.

        @param inode: There is no socket beside it here.
        @raise ServiceInUseError: This device does so already.
        @raise NoRouteError: The address is another one's.
        """
        address = self._check(address)
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"this device listens on {other} already")
        self._services.add((serviceID, address))

    def publishAny(self, prefix: int, address: str) -> int:
        """
        The same with a port that is free.

        @return: The port.
        """
        address = self._check(address)
        port = freePort({service - prefix for service, _ in self._services})
        self._services.add((prefix + port, address))
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Take back what L{publish} did.
        """
        self._services.discard((serviceID, normalise(address).partition("%")[0]))

    def resolve(self, serviceID: int, address: str, user: Any) -> _Found:
        """
        Find the path to an address; whether somebody serves there is known only when a REQ is answered.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoRouteError: The address is of another IP version, or of nobody.
        """
        address = normalise(address).partition("%")[0]
        if address == wildcard(self.address):
            address = self.address
        if (":" in address) != (":" in self.address) or _isGroup(address):
            raise NoRouteError(f"{address} can not be reached from {self.address}")
        user.pathReady(self.pathTo(address))
        return _Found()

    def serving(self, serviceID: int, address: str) -> list[int]:
        """
        Peers have no GUIDs here.

        @return: None.
        """
        return []

    def reach(self, guid: int, user: Any) -> _Found:
        """
        Peers have no GUIDs here.

        @raise NoListenerError: Always.
        """
        raise NoListenerError(f"HCA {guid:016x} is not to be found by its GUID: give an IP address as GID")

    def reachGID(self, gid: int, user: Any) -> _Found:
        """
        Find the path to a GID: of a peer, or of a multicast group.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoRouteError: It is no IP address that can be reached from here.
        """
        address = textOf(gid.to_bytes(16, "big"))
        if (":" in address) != (":" in self.address) or not gid:
            raise NoRouteError(f"GID {address} can not be reached from {self.address}")
        user.pathReady(self.pathTo(address))
        return _Found()

    def proves(self, path: Any, guid: int) -> bool:
        """
        Whoever answers at an address has it, as far as anybody knows.
        """
        return True

    def join(self, group: int) -> None:
        """
        Take what is sent to a multicast group.

        @raise NoRouteError: It is no multicast address of this IP version.
        @raise HCAError: It can not be.
        """
        self.link.join(self._group(group))

    def leave(self, group: int) -> None:
        """
        Take back what L{join} did.
        """
        self.link.leave(self._group(group))

    def _group(self, group: int) -> str:
        """
        @return: The address of a multicast group.
        """
        address = textOf(group.to_bytes(16, "big"))
        if not _isGroup(address) or (":" in address) != (":" in self.address):
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

    def paths(self) -> list[ConnectionPath]:
        """
        @return: The paths of queue pairs that are connected.
        """
        return [path for path in self._sessions.values() if path.queuePair is not None]

    def flowTo(self, address: str, port: int) -> Flow:
        """
        @param address: Of a peer.
        @param port: The UDP source port.
        @return: What begins the checksums of packets to it.
        """
        return Flow(gidOf(self.address), gidOf(address), port)

    # -- queue pairs

    def enter(self, path: ConnectionPath) -> None:
        """
        A queue pair is connected.
        """
        before = self._sessions.get(path.localID)
        if before is not None:
            self._drop(before)
        self._sessions[path.localID] = path

    def parted(self, path: ConnectionPath, lingers: bool) -> None:
        """
        A queue pair is gone.

        @param lingers: Whether its path goes on until the peer has everything; else it says what it
            owes the peer, and no more.
        """
        if lingers:
            path.until = self.clock() + limits.PACKET_LINGER_SECONDS
            self._lingering[path] = None
            if len(self._lingering) > limits.PACKET_LINGERING:
                self._drop(next(iter(self._lingering)))
        else:
            self._lingering.pop(path, None)
            path.until = 0.0

    def _drop(self, path: ConnectionPath) -> None:
        """
        Forget the path of a queue pair that is gone.
        """
        self._lingering.pop(path, None)
        if path.deadline is not None:
            self._deadlines.clear(path)
        if self._sessions.get(path.localID) is path:
            del self._sessions[path.localID]
        path.alive = False

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
            if self.roomy:
                roomy, self.roomy = self.roomy, []
                for path in roomy:
                    n += path.progress(budget)
        finally:
            self._busy = False
        self._raise()
        return n + len(self.bells)

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
        Datagrams came: see L{ILink<twisted_ib.hca.interfaces.ILink>}.
        """
        key = source, destination, port
        flow = self._flows.get(key)
        if flow is None:
            flow = self._remember(key)
        view, sessions, now, count = memoryview(buffer), self._sessions, self.clock(), self.owner.count
        isMarked = trafficClass & _CONGESTED == _CONGESTED
        for number, at in enumerate(range(start, stop, size)):
            self.packetsReceived += 1
            end = min(at + size, stop)
            if end - at < _LEAST or end - at & 3:
                count("packets_malformed")
                continue
            opcode, flags, partition, target, psn = BTH.unpack_from(buffer, at)
            offset = _STARTS.get(opcode)
            if offset is None:
                count("packets_bad_opcode")
                continue
            body, tail = at + offset, end - ICRC.size - (flags >> _PAD_SHIFT & 3)
            if tail < body or flags & _VERSION_MASK:
                count("packets_malformed")
                continue
            if not flow.isRight(view, at, end, number):
                count("packets_bad_icrc")
                continue
            if partition & ~_FULL_MEMBER != _PARTITION & ~_FULL_MEMBER:
                count("packets_bad_pkey")
                continue
            target &= QPN_MASK
            session = sessions.get(target)
            if session is None:
                self._takeDatagram(
                    *(source, destination, trafficClass, opcode, flags, target, view, at, end, tail)
                )
            elif opcode & _SERVICE_MASK != session.service:
                count("congestion_notified" if opcode == CONGESTION else "packets_wrong_service")
            elif session.peer.address != source:
                count("packets_wrong_source")
            else:
                if isMarked:
                    self._notify(session, now)
                if flags & SOLICITED:
                    opcode |= SOLICITED
                session.connection.receive(
                    opcode, psn & PSN_MASK, psn >= _ACKNOWLEDGE, buffer, at + BTH.size, tail, now
                )
                if not session.bell:
                    session.bell = True
                    self.bells.append(session)

    def _remember(self, key: tuple[str, str, int]) -> Flow:
        """
        @param key: Source, destination and source port of packets.
        @return: Their flow.
        """
        flows = self._flows
        if len(flows) >= limits.PACKET_FLOWS:
            del flows[next(iter(flows))]
        flow = flows[key] = Flow(gidOf(key[0]), gidOf(key[1]), key[2])
        return flow

    def _takeDatagram(
        self,
        source: str,
        destination: str,
        trafficClass: int,
        opcode: int,
        flags: int,
        target: int,
        view: memoryview,
        at: int,
        end: int,
        tail: int,
    ) -> None:
        """
        Take a packet for a queue pair that is not connected.

        @param at: Offset of its base transport header, C{tail} that after the payload, C{end} after all.
        """
        if target == GSI_QPN and opcode == UD_SEND_ONLY:
            body = at + _STARTS[opcode]
            if DETH.unpack_from(view, at + BTH.size)[0] != QUEUE_KEY:
                self.owner.count("qkey_violations")
            else:
                self._general.received(self.pathTo(source), view, body, tail)
        elif opcode in _DATAGRAMS and target != GSI_QPN:
            head = _header(source, destination, trafficClass, end - at)
            record = b"".join((head, view[at + BTH.size : tail]))
            opcode |= flags & SOLICITED
            path = self.pathTo(source)
            self.owner.datagramReceived(path, opcode, target, record, 0, len(record))
        else:
            self.owner.count("packets_unknown_qp")

    def _notify(self, session: ConnectionPath, now: float) -> None:
        """
        A packet came over a congested way: tell its sender, but not all the time.
        """
        self.count("packets_marked")
        if now - session.notified >= limits.PACKET_NOTIFICATION_SECONDS:
            session.notified = now
            head = BTH.pack(CONGESTION, 0, _PARTITION, session.remote | _BACKWARD, 0)
            # Congestion bits are masked: the checksum is that of a packet without.
            plain = BTH.pack(CONGESTION, 0, _PARTITION, session.remote, 0) + _NOTIFICATION
            signed = session.flow.sign(plain)
            packet = head + signed[BTH.size :]
            self._transmit((session.peer.address, session.port, [packet], len(packet)), 1)

    # -- down

    def ringBells(self) -> None:
        """
        The batch ends: send what queue pairs have to send.
        """
        if self._stalled and not self._unstall():
            return
        bells, self.bells = self.bells, []
        if bells:
            now = self.clock()
            for path in bells:
                if self._stalled:
                    self.bells.append(path)
                else:
                    path.bell = False
                    self._flush(path, now)

    def _flush(self, path: ConnectionPath, now: float) -> None:
        """
        Send what one queue pair has to send.
        """
        if not path.alive:
            return
        connection = path.connection
        packets = connection.outputs(limits.PACKET_OUTPUTS, now)
        isLast = path.queuePair is None and not path.until
        if isLast:
            packets = [packet for packet in packets if packet[0] in RESPONSES]
        if packets:
            self._sendPackets(path, packets)
        if isLast:
            self._drop(path)
            return
        if connection.pending() and not path.bell:
            path.bell = True
            self.bells.append(path)
        deadline = connection.deadline()
        if path.until and (deadline is None or path.until < deadline):
            deadline = path.until
        if deadline != path.deadline:
            if deadline is None:
                self._deadlines.clear(path)
            else:
                self._deadlines.set(path, deadline)

    def _sendPackets(self, path: ConnectionPath, packets: list[Any]) -> None:
        """
        Send packets of one queue pair, as many of one size as possible at a time.
        """
        flow, remote, pack = path.flow, path.remote, BTH.pack
        most = 0
        pieces: list[Any] = []
        first = count = 0
        isOver = True
        for opcode, flags, psn, header, payload in packets:
            length = len(header) + len(payload)
            pad = -length & 3
            size = _LEAST + length + pad
            if isOver or size > first or count >= most:
                if count:
                    self._transmit(self._call(path, pieces, first), count)
                pieces, first, count = [], size, 0
                most = min(self.link.burst, limits.PACKET_BURST_BYTES // size)
            isOver = size < first
            if flags & 1:
                psn |= _ACKNOWLEDGE
            head = pack(opcode, flags & SOLICITED | pad << _PAD_SHIFT, _PARTITION, remote, psn) + header
            tail = _PADS[pad]
            check = crc32(payload, crc32(head, flow.state(size, count)))
            if pad:
                check = crc32(tail, check)
            pieces += (head, payload, tail + ICRC.pack(check))
            count += 1
        if count:
            self._transmit(self._call(path, pieces, first), count)

    @staticmethod
    def _call(path: ConnectionPath, pieces: list[Any], size: int) -> tuple[Any, ...]:
        """
        @return: The arguments of a link's C{send}.
        """
        return path.peer.address, path.port, pieces, size, path.trafficClass, path.hopLimit

    def _transmit(self, call: tuple[Any, ...], count: int) -> None:
        """
        Give datagrams to the link, now or when there is room.

        @param count: How many they are.
        """
        if self._stalled or not self.link.send(*call):
            if not self._stalled:
                self._again = self.clock() + limits.PACKET_PAUSE_SECONDS
            if len(self._stalled) < limits.PACKET_OUTPUTS:
                self._stalled.append((call, count))
            else:
                self.count("packets_dropped")
        else:
            self.packetsSent += count

    def _unstall(self) -> bool:
        """
        Try again to send what found no room.

        @return: Whether nothing is left of it.
        """
        stalled = self._stalled
        while stalled:
            call, count = stalled[0]
            if not self.link.send(*call):
                self._again = self.clock() + limits.PACKET_PAUSE_SECONDS
                return False
            self.packetsSent += count
            stalled.popleft()
        return True

    def sendManagement(self, address: str, attribute: int, body: bytes) -> None:
        """
        Send a connection management message.

        @param address: Where to.
        @param body: The message without its MAD header, 232 bytes.
        """
        rest = DETH.pack(QUEUE_KEY, GSI_QPN) + self._general.wrap(address, attribute, body)
        self._sendDatagram(address, UD_SEND_ONLY, GSI_QPN, _ACKNOWLEDGE, GSI_QPN, rest, 0, _HOP_LIMIT)

    def sendDatagram(self, path: PeerPath, word: int, record: bytes) -> None:
        """
        Send a datagram of a queue pair.

        @param word: Operation and destination queue pair.
        @param record: GRH, DETH, immediate if it has one, and payload.
        """
        grh = GRH.parse(record, 0, len(record))
        _, source = DETH.unpack_from(record, GRH_BYTES)
        self._sendDatagram(
            *(path.peer.address, word >> 24, word & QPN_MASK, 0, source & QPN_MASK),
            *(record[GRH_BYTES:], grh.trafficClass, grh.hopLimit),
        )

    def _sendDatagram(
        self,
        address: str,
        opcode: int,
        number: int,
        flags: int,
        source: int,
        rest: bytes,
        trafficClass: int,
        hopLimit: int,
    ) -> None:
        """
        Send one.

        @param number: The queue pair that it is for.
        @param flags: Of the word that has the sequence number.
        @param source: The queue pair that sends it.
        @param rest: What follows the base transport header.
        """
        if self._closed:
            return
        port = self.link.sourcePort(datagramPort(source))
        key = self.address, address, port
        flow = self._flows.get(key)
        if flow is None:
            flow = self._remember(key)
        pad = -len(rest) & 3
        self._sequence = sequence = self._sequence + 1 & PSN_MASK
        head = BTH.pack(
            *(opcode & ~SOLICITED, opcode & SOLICITED | pad << _PAD_SHIFT, _PARTITION),
            *(number, sequence | flags),
        )
        packet = flow.sign(b"".join((head, rest, _PADS[pad])))
        self._transmit((address, port, [packet], len(packet), trafficClass, hopLimit), 1)

    # -- sleeping and waking

    def pending(self) -> bool:
        """
        @return: Whether there is something to do.
        """
        if self._closed:
            return False
        if (self.bells and not self._stalled) or self.roomy:
            return True
        found: bool = self.link.pending()
        return found

    @property
    def hot(self) -> tuple[Any, ...]:
        """
        Where something may soon arrive.
        """
        return (self,) if self._sessions else ()

    def arm(self) -> bool:
        """
        Have work make the descriptor readable from now on.

        @return: False if there is work after all.
        """
        if self.pending():
            return False
        self.asleep = True
        self.sleeps += 1
        return True

    def look(self) -> bool:
        """
        Nobody need tell of work any more.

        @return: Whether there is some.
        """
        self.asleep = False
        return self.pending()

    def signal(self) -> None:
        """
        Make L{fileno} readable: there is something to do.
        """
        if not self._woken and not self._closed:
            self._woken = True
            if self._pipe is not None:
                os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        """
        Nobody need be woken any more.
        """
        if self._woken:
            self._woken = False
            if self._pipe is not None:
                os.read(self._pipe[0], 1)

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable when there is work.
        """
        if self._pipe is None:
            self._open()
        assert self._pipe is not None
        found: int = self._pipe[0] if self._poller is None else self._poller.fileno()
        return found

    def _open(self) -> None:
        """
        Make the descriptors; who never sleeps needs none.
        """
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)
        arrivals = self.link.fileno()
        if arrivals >= 0:
            self._poller = select.epoll()
            self._poller.register(arrivals, select.EPOLLIN)
            self._poller.register(self._pipe[0], select.EPOLLIN)
        elif self.link.pending():
            self._woken = True
        if self._woken:
            os.write(self._pipe[1], b"!")

    def registerWith(self, poller: Any) -> None:
        """
        The descriptor is enough.
        """

    def deadline(self) -> float | None:
        """
        @return: When L{tick} should be called.
        """
        found = self._deadlines.soonest()
        if self._stalled and (found is None or self._again < found):
            return self._again
        return found

    def tick(self, now: float) -> None:
        """
        Do what is due.
        """
        for path in self._deadlines.takeDue(now):
            if path.until and now >= path.until:
                self._drop(path)
            else:
                path.connection.tick(now)
                path.mark()
        if self._stalled and now >= self._again and self._unstall() and self.bells:
            self._want()
        self._raise()

    def _want(self) -> None:
        """
        Have a turn.
        """
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
        self._stalled.clear()
        self._closeAll()

    def _closeAll(self) -> None:
        """
        Give the descriptors back.
        """
        self.link.close()
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            for fd in pipe:
                os.close(fd)

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
        for session in list(self._sessions.values()):
            self._try(session.lost, gone)
        self.ringBells()
        self._closed = True
        for session in list(self._sessions.values()):
            self._drop(session)
        self.bells, self.roomy = [], []
        self._services.clear()
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
        """
        Raise the first of what was kept by L{failed}.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _isGroup(address: str) -> bool:
    """
    @return: Whether an address is one of multicast.
    """
    if ":" in address:
        return address.startswith("ff")
    return 224 <= int(address.partition(".")[0]) < 240


def _header(source: str, destination: str, trafficClass: int, size: int) -> bytes:
    """
    What a program finds in front of a datagram.

    @param size: Octets of the packet from its base transport header on.
    """
    length = size + _UDP_BYTES
    here, there = gidOf(source), gidOf(destination)
    if ":" in source:
        return _IPV6.pack(6 << 28 | trafficClass << 20, length, _PROTOCOL, _HOP_LIMIT, here, there)
    fields = 0x45, trafficClass, length + _IPV4_BYTES, 0, _DO_NOT_FRAGMENT, _HOP_LIMIT, _PROTOCOL
    head = _IPV4.pack(*fields, 0, here[12:], there[12:])
    total = sum(Struct(">20x10H").unpack(head)) % 0xFFFF
    return _IPV4.pack(*fields, ~total & 0xFFFF, here[12:], there[12:])


__all__ = ["PacketFabric"]
