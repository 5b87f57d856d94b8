"""
The receive side of a fabric of packets: validation and dispatch.

A packet is validated before any state is looked up: length, opcode, ICRC, P_Key; then its queue pair, and
that it comes from that queue pair's peer. Invalid packets are dropped silently and counted:

  - C{packets_malformed}: too short, too long, not whole words, or another version;
  - C{packets_bad_opcode}: undefined opcode;
  - C{packets_bad_icrc}: corrupt;
  - C{packets_bad_pkey}: another partition;
  - C{packets_unknown_qp}: no such queue pair, not connected, or a single queue pair addressed by multicast;
  - C{packets_wrong_service}: the queue pair has another transport service;
  - C{packets_wrong_source}: not from the queue pair's peer;
  - C{packets_wrong_port}: from its peer's address, but not from the UDP source port of its flow;
  - C{qkey_violations}: a datagram with a wrong Q_Key;
  - C{management_malformed} and others: for queue pair 1, but no MAD that an agent takes
    (L{twisted_ib.hca.mad.dispatch}).

Requests to connect that come for the first time while more come than can be answered are dropped, and so are
those for services that nobody listens for: C{requests_sifted} counts them, L{Sieve}.  Of the latter the
kernel drops most before they are read, L{Sifting}.

C{packets_handed_on} counts what went on to another process of this address, C{packets_taken_over} what one
gave this process.  C{packets_marked} counts packets with a congestion mark, C{congestion_notified} the
notifications of peers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN, MULTICAST_QPN, QPN_SHIFT, SOLICITED
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.roce.slots import Handed, requesterOf, requestOf, serviceOf, slotOf
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import BTH, DETH, ICRC, PSN_MASK, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.icrcflow import LONGEST_PACKET, RIGHT, ICRCState, crc32
from twisted_ib.hca.wire.opcodes import (
    CONGESTION,
    MTU_BYTES,
    OPCODES,
    READ_RESPONSE_MIDDLE,
    SEND_MIDDLE,
    UD_SEND_ONLY,
    UD_SEND_ONLY_IMMEDIATE,
    WRITE_MIDDLE,
)
from twisted_ib.hca.wire.rocev2 import LONG_MTU_BYTES

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, IFabricOwner
    from twisted_ib.hca.fabric.roce.qppath import QueuePairPath

#: Sizes of packets whose ICRC state is cached for a flow without a connection, see L{limits.PACKET_SIZES}.
PACKET_SIZES_UNCONNECTED = 8

#: Requests are sifted from so many on that were answered and whose peers have not shown that they hear it,
#: while so many octets wait to be received, as Linux counts them: some 250 requests.
SIFTED_HALF_OPEN: Final = limits.CM_HALF_OPEN_PER_ADDRESS
SIFTED_WAITING = 256 * 1024
#: Or from so many on that came while it has never been less, refused ones as well: more than a socket keeps,
#: and than one program asks at once.
SIFTED_BURST: Final = 2048
#: So many requests are remembered, and then, in their places, others; each has one of sixteen times as many
#: bits.
SIFTED_REQUESTS = 65536
_SIFTED_BYTES: Final = 2 * SIFTED_REQUESTS
#: For so many seconds the kernel drops those that nobody listens for, twice as many each time that they are
#: still coming, and at most so many: meanwhile nobody is told that nobody listens.
SIFT_SECONDS, SIFT_MOST_SECONDS = 2.0, 16.0
#: For so long after that they need not be a burst.
SUSPECT_SECONDS = 10.0
#: After so many seconds of them a process that still reads some says it again: another one has begun to
#: listen, which ends it.
AGAIN_SECONDS = 0.5

_unpackBTH: Final = BTH.unpack_from
_ACKNOWLEDGE: Final = 0x80000000
_PAD_SHIFT: Final = 4
_VERSION_MASK: Final = 0xF
_SERVICE_MASK: Final = 0xE0
_SPECIAL: Final = SOLICITED | 3 << _PAD_SHIFT
_MIDDLES: Final = frozenset((SEND_MIDDLE, WRITE_MIDDLE, READ_RESPONSE_MIDDLE))
#: The ECN field of the traffic class; both bits are "congestion experienced" (RFC 3168 section 5).
_CONGESTED: Final = 3
#: The shortest packet.
_LEAST: Final = BTH.size + ICRC.size
#: IBTA's longest; octets besides the payload; the longest that two ends of this package agree on.
_MOST: Final = LONGEST_PACKET
_AROUND: Final = LONGEST_PACKET - max(MTU_BYTES.values())
_LONGEST: Final = _AROUND + max(LONG_MTU_BYTES.values())
#: Opcode -> offset of the payload from the BTH.
_STARTS: Final = {code: row.start for code, row in OPCODES.items()}
_DATAGRAMS: Final = frozenset((UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE))
#: The connections that multicast packets can reach: none.
_NO_SESSIONS: Final[dict[int, QueuePairPath]] = {}
#: The 40 octets in front of a received datagram, in place of a GRH: the IPv6 header, or 20 zero octets and
#: the IPv4 header (Linux ib_verbs.h union rdma_network_hdr).
_IPV4: Final = Struct(">20xBBHHHBBH4s4s")
_IPV4_WORDS: Final = Struct(">20x10H")
_IPV6: Final = Struct(">IHBB16s16s")
_UDP_BYTES: Final = 8
_IPV4_BYTES: Final = 20
_PROTOCOL: Final = 17
_DO_NOT_FRAGMENT: Final = 0x4000


@lru_cache(maxsize=64)
def _headers(size: int, count: int) -> Callable[[memoryview, int], tuple[int, ...]]:
    # The BTHs of several packets: of each the part up to the word with the PSN, and that word. The former is
    # the same in all Middle packets of a message, which have neither pad nor solicited event.
    return Struct(">" + f"QI{size - BTH.size}x" * count).unpack_from


class Sieve:
    """
    Passes those requests to connect that have come before, as a peer's that waits do.

    A process that has not the time to answer all would answer an honest one after those that strangers have
    put before it, if the kernel has not dropped it: to drop a request costs a tenth of answering it.  It
    forgets what it has seen after C{SIFTED_REQUESTS} others, twice that at most.
    """

    def __init__(self) -> None:
        self._before, self._seen, self._count = bytearray(_SIFTED_BYTES), bytearray(_SIFTED_BYTES), 0

    def passes(self, source: str, request: bytes) -> bool:
        """
        @param source: the address that a request comes from, and C{request} its number.
        @return: whether it is to be answered.
        """
        # Python's hash has a key that strangers do not know.
        number = hash((source, request)) % (8 * _SIFTED_BYTES)
        at, bit = number >> 3, 1 << (number & 7)
        if (self._seen[at] | self._before[at]) & bit:
            return True
        self._seen[at] |= bit
        self._count += 1
        if self._count == SIFTED_REQUESTS:
            self._before, self._seen, self._count = self._seen, bytearray(_SIFTED_BYTES), 0
        return False


class Sifting:
    """
    When the kernel drops requests that nobody listens for.

    @ivar until: it does until then; 0.0 if it does not.
    """

    __slots__ = ("_again", "_seconds", "_suspectUntil", "until")

    def __init__(self) -> None:
        self._seconds = SIFT_SECONDS
        self._again = self._suspectUntil = self.until = 0.0

    def begins(self, now: float) -> bool:
        """
        One was read, and too many wait.

        @return: whether the kernel is to be told.
        """
        if self.until:
            if now < self._again:
                return False  # It was in the buffer.
        else:
            isBack = now < self._suspectUntil
            self._seconds = min(2 * self._seconds, SIFT_MOST_SECONDS) if isBack else SIFT_SECONDS
            self.until = now + self._seconds
            self._suspectUntil = self.until + SUSPECT_SECONDS
        self._again = now + AGAIN_SECONDS
        return True

    def isSuspicious(self, now: float) -> bool:
        """
        @return: whether they are or were dropped a short time ago.
        """
        return now < self._suspectUntil


class PacketReceiver:
    """
    Receives packets for one HCA.

    @ivar packets: count of packets received, valid or not.
    """

    __slots__ = ("_burst", "_fabric", "_flows", "_owner", "_sessions", "_sieve", "packets")

    def __init__(self, fabric: Any, sessions: dict[int, QueuePairPath]) -> None:
        self._fabric = fabric
        self._owner: IFabricOwner = fabric.owner
        self._sessions = sessions
        self._flows: dict[tuple[str, str, int], ICRCState] = {}
        self._sieve: Sieve | None = None
        # Requests since few waited, as far as was asked.
        self._burst = 0
        self.packets = 0

    def take(
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
        Datagrams arrived: see L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
        """
        if size <= 0:
            self.packets += 1
            self._owner.count("packets_malformed")
            return
        key = source, destination, port
        flow = self._flows.get(key)
        isNew = flow is None
        if flow is None and (flow := self._begun(key, buffer, start, stop, size)) is None:
            return
        fabric, sessions = self._fabric, self._sessions
        # Connections are point to point: a multicast packet must not reach one, whatever its DestQP.
        if destination != fabric.address:
            sessions = _NO_SESSIONS
        now, states = fabric.clock(), flow.states
        isMarked = trafficClass & _CONGESTED == _CONGESTED
        # A slice of the buffer is a copy, which for one packet costs less than a view.
        view = buffer
        self.packets += 1
        if start + size < stop:
            view = memoryview(buffer)
            self.packets += (stop - start - 1) // size
        joining: QueuePairPath | None = None
        number, end = -1, start
        opcode: int
        flags: int
        partition: int
        target: int
        psn: int
        while end < stop:
            number += 1
            at = end
            end = at + size
            if end > stop:
                end = stop
            octets = end - at
            if octets & 3 or octets < _LEAST or octets > _MOST:
                if not self._isLong(source, sessions, buffer, at, octets, isNew):
                    self._owner.count("packets_malformed")
                    continue
                view = memoryview(buffer)
            opcode, flags, partition, target, psn = _unpackBTH(buffer, at)
            offset = _STARTS.get(opcode)
            if offset is None:
                self._owner.count("packets_bad_opcode")
                continue
            body, tail = at + offset, end - ICRC.size - (flags >> _PAD_SHIFT & 3)
            if tail < body or flags & _VERSION_MASK:
                self._owner.count("packets_malformed")
                continue
            # IBTA vol. 1 7.8.1: the ICRC is checked before a field selects any state. This is
            # ICRCState.isRight for the usual case, inlined.
            state = states.get(octets << 16 | number)
            if state is not None and not view[at + 4] and crc32(view[at:end], state) == RIGHT:
                flow.expected += 1
            elif not flow.isRight(view, at, end, number):
                self._owner.count("packets_bad_icrc")
                continue
            target &= QPN_MASK
            session = sessions.get(target)
            # IBTA vol. 1 10.9.3; Linux rxe_recv.c check_keys drops and counts such packets too.
            if partition not in (self._owner.partitions if session is None else session).accepted:
                self._owner.count("packets_bad_pkey")
                continue
            if session is None:
                if joining is not None:  # The datagram's receiver may raise.
                    joining.settle()
                    joining = None
                if isNew and opcode in _DATAGRAMS:
                    if target == MULTICAST_QPN or target in self._owner.queuePairs:
                        isNew = False
                        self._remember(key, flow)
                self._takeDatagram(
                    *(source, port, destination, trafficClass, opcode, flags, partition, target),
                    *(view, at, end, tail),
                )
            # Linux rxe_recv.c check_type_state and check_addr: a connected queue pair accepts its own
            # service, from its peer's address; or anybody could inject data.
            elif opcode & _SERVICE_MASK != session.service:
                self._owner.count("congestion_notified" if opcode == CONGESTION else "packets_wrong_service")
            elif session.heard is not flow.key and self._isForeign(session, key, flow, opcode, psn, now):
                pass
            else:
                if isNew:  # Kept only now: packets with forged sources must leave no state.
                    isNew = False
                    flow.most = limits.PACKET_SIZES
                    self._remember(key, flow)
                if isMarked:
                    self._owner.count("packets_marked")
                    fabric.transmitter.notify(session, now)
                if end < stop and opcode in _MIDDLES and not isMarked and not flags & _SPECIAL:
                    # Middle packets of one message are delivered at once: bulk transfer is nothing else.
                    parts, word = self._run(flow, view, at, stop, size, number)
                    several = len(parts)
                    continued = session.connection.continued
                    if several > 1 and continued(opcode, psn & PSN_MASK, word, parts, now):
                        if joining is not None and joining is not session:
                            joining.settle()  # Two connections may share a source port.
                        joining = session
                        end = at + several * size
                        number += several - 1
                        if not session.bell:
                            session.bell = True
                            fabric.bells.append(session)
                        continue
                if flags & SOLICITED:
                    opcode |= SOLICITED
                # Before the user is called: what it posts need not ask for a flush then.
                if not session.bell:
                    session.bell = True
                    fabric.bells.append(session)
                    flow.most = limits.PACKET_SIZES
                session.connection.receive(
                    opcode, psn & PSN_MASK, psn >= _ACKNOWLEDGE, buffer, at + BTH.size, tail, now
                )
        if joining is not None:
            joining.settle()

    def _begun(
        self, key: tuple[str, str, int], buffer: Any, start: int, stop: int, size: int
    ) -> ICRCState | None:
        source, destination, port = key
        if start + size >= stop and self._isSifted(source, buffer, start, stop):
            self.packets += 1
            self._owner.count("requests_sifted")
            return None
        return ICRCState(gidOf(source), gidOf(destination), port, PACKET_SIZES_UNCONNECTED, key)

    def _isSifted(self, source: str, buffer: Any, start: int, stop: int) -> bool:
        request = requestOf(buffer, start, stop)
        if request is None:
            return False
        self._burst += 1
        sifting: Sifting = self._fabric.sifting
        if self._burst <= SIFTED_BURST and len(self._owner.reserved) < SIFTED_HALF_OPEN:
            return False
        try:
            if self._fabric.link.waiting() < SIFTED_WAITING:
                if not sifting.isSuspicious(self._fabric.clock()):
                    self._burst = 0
                return False
        except OSError:
            return False  # Before Linux 4.12.
        service = serviceOf(buffer, start, stop)
        if service is not None and not self._fabric.isListened(service):
            # To refuse it takes the time that others need, also where it is repeated.
            if sifting.begins(self._fabric.clock()):
                self._fabric.sift()
            return True
        if self._sieve is None:
            self._sieve = Sieve()
        return not self._sieve.passes(source, request)

    def _isLong(
        self,
        source: str,
        sessions: dict[int, QueuePairPath],
        buffer: Any,
        at: int,
        octets: int,
        isNew: bool,
    ) -> bool:
        # No runt, as in Linux rxe_recv.c rxe_rcv, and of whole words (IBTA vol. 1 9.2); above IBTA's longest,
        # of a connection whose ends have agreed on it, or of one that awaits its first packet.  Those of
        # strangers are dropped here, as they would cost many CRCs.
        if octets & 3 or not _MOST < octets <= _LONGEST:
            return False
        opcode, _, _, target, _ = _unpackBTH(buffer, at)
        target &= QPN_MASK
        session = sessions.get(target)
        if session is None:
            # UDP_GRO may have joined a packet for another process of this address with packets of ours.
            isOurs = isNew or self._fabric.group is None or target >> QPN_SHIFT == self._fabric.slot
            return not opcode & _SERVICE_MASK and (target in self._owner.reserved or not isOurs)
        return octets <= session.mtu + _AROUND and source == session.peer.address

    def _isForeign(
        self,
        session: QueuePairPath,
        key: tuple[str, str, int],
        flow: ICRCState,
        opcode: int,
        psn: int,
        now: float,
    ) -> bool:
        # Of another flow than the peer's last packet, with which each packet is compared; or of the same one,
        # whose ICRC state was evicted in between.
        if session.peer.address != key[0]:
            self._owner.count("packets_wrong_source")
            return True
        if session.peerPort != key[2] and session.isForged(key[2], opcode, psn & PSN_MASK, now):
            self._owner.count("packets_wrong_port")
            return True
        # Not before the peer's port is known.
        if session.peerPort == key[2]:
            session.heard = flow.key
        return False

    def _run(
        self, flow: ICRCState, view: memoryview, at: int, stop: int, size: int, number: int
    ) -> tuple[list[memoryview], bool]:
        # The packets of a run equal the first up to the PSN, which counts up. Each is checked with its own
        # ICRC, but for the first, which was checked; one that differs ends the run and is processed alone.
        # The payloads are valid as long as the buffer. Few calls for all packets together: bulk transfer
        # spends most of its time here.
        fields = _headers(size, (stop - at) // size)(view, at)
        kinds, words = fields[::2], fields[1::2]
        first, several = words[0], kinds.count(kinds[0])
        if kinds[:several] != kinds[:1] * several or words[:several] != tuple(range(first, first + several)):
            # One is missing, the PSN wraps, or some have AckReq.
            several = 1
            for kind, word in zip(kinds[1:], words[1:], strict=True):
                if kind != kinds[0] or (word - first - several) & PSN_MASK:
                    break
                several += 1
        registers = flow.registers(size, number + several)[number + 1 : number + several]
        starts = range(at + size, at + several * size, size)
        checks = [
            crc32(view[start : start + size], register)
            for start, register in zip(starts, registers, strict=True)
        ]
        if checks.count(RIGHT) != several - 1:
            several = 1
            while checks[several - 1] == RIGHT:
                several += 1
        at += BTH.size
        length = size - _LEAST
        parts = [view[body : body + length] for body in range(at, at + several * size, size)]
        return parts, max(words[:several]) >= _ACKNOWLEDGE

    def _remember(self, key: tuple[str, str, int], flow: ICRCState) -> None:
        flows = self._flows
        # The oldest is evicted: its ICRC state is recomputed when it sends again.
        if len(flows) >= limits.PACKET_FLOWS:
            del flows[next(iter(flows))]
        flows[key] = flow

    def _takeDatagram(
        self,
        source: str,
        port: int,
        destination: str,
        trafficClass: int,
        opcode: int,
        flags: int,
        partition: int,
        target: int,
        view: Buffer,
        at: int,
        end: int,
        tail: int,
    ) -> None:
        fabric = self._fabric
        if (
            fabric.group is not None
            and target >> QPN_SHIFT != fabric.slot
            and destination == fabric.address
            and self._isHandedOn(source, port, trafficClass, view, at, end)
        ):
            self._owner.count("packets_handed_on")
        elif destination != fabric.address and target != MULTICAST_QPN:
            # Amplification: every host of the group would answer one packet, to a source that may be forged.
            self._owner.count("packets_unknown_qp")
        elif target == GSI_QPN and opcode == UD_SEND_ONLY:
            body = at + _STARTS[opcode]
            key, sender = DETH.unpack_from(view, at + BTH.size)
            # Queue pair 1 accepts its well-known Q_Key only (Linux rxe_recv.c check_keys).
            if key != QUEUE_KEY:
                self._owner.count("qkey_violations")
            else:
                path = self._fabric.pathTo(source)
                self._owner.madReceived(path, target, sender & QPN_MASK, view, body, tail, partition)
        # IBTA vol. 1 annex A17: RoCE has no queue pair 0.
        elif opcode in _DATAGRAMS and target > GSI_QPN:
            head = _header(source, destination, trafficClass, end - at)
            record = b"".join((head, view[at + BTH.size : tail]))
            opcode |= flags & SOLICITED
            path = self._fabric.pathTo(source)
            self._owner.datagramReceived(path, opcode, target, record, 0, len(record), partition)
        else:
            # Without an answer (IBTA vol. 1 9.6; Linux rxe_recv.c hdr_check): nothing proves its source, and
            # the peer's requester finds out by its timeout.  A peer that was told of a connection that we do
            # not have learns of that sooner by the REJ to its RTU.
            self._owner.count("packets_unknown_qp")
            if not opcode & _SERVICE_MASK:
                # IBTA vol. 1 12.9.8: the first packet may overtake the RTU. The owner takes it for an
                # RTU if address and PSN are those of an accepted REQ.
                psn = BTH.unpack_from(view, at)[-1] & PSN_MASK
                self._owner.arrivedEarly(target, source, psn)

    def _isHandedOn(self, source: str, port: int, trafficClass: int, view: Buffer, at: int, end: int) -> bool:
        # Of another process of this address: a request for a service or an agent's answer, which any of them
        # reads, or what UDP_GRO has joined with a packet of ours.
        group = self._fabric.group
        slot = slotOf(view, at, end)
        if not slot:
            service = serviceOf(view, at, end)
            slot = requesterOf(view, at, end) if service is None else group.services.find(service)
        if not slot or slot == group.slot:
            return False
        handed = Handed(source, port, trafficClass, bytes(view[at:end]))
        return bool(group.handOn(slot, handed))


def _header(source: str, destination: str, trafficClass: int, size: int) -> bytes:
    # Rebuilt, because a UDP socket shows no IP header: TTL and identification are those that we would send.
    length = size + _UDP_BYTES
    here, there = gidOf(source), gidOf(destination)
    if ":" in source:
        return _IPV6.pack(6 << 28 | trafficClass << 20, length, _PROTOCOL, HOP_LIMIT, here, there)
    fields = 0x45, trafficClass, length + _IPV4_BYTES, 0, _DO_NOT_FRAGMENT, HOP_LIMIT, _PROTOCOL
    head = _IPV4.pack(*fields, 0, here[12:], there[12:])
    # RFC 1071; programs may check the header, so it must be a valid one.
    total = sum(_IPV4_WORDS.unpack(head)) % 0xFFFF
    return _IPV4.pack(*fields, ~total & 0xFFFF, here[12:], there[12:])
