"""
What arrives on a fabric of packets, and whom it is given to.

A packet is checked before any state is asked: length, operation code, invariant CRC, partition; then
the queue pair that it is for, and that it comes from that one's peer.  What is wrong is dropped, as a
wire would lose it, and counted by what is wrong with it:

  - C{packets_malformed}: too short or too long, not whole words, another version;
  - C{packets_bad_opcode}: an operation code that nobody has;
  - C{packets_bad_icrc}: damaged on its way;
  - C{packets_bad_pkey}: of another partition;
  - C{packets_unknown_qp}: for a queue pair that is not there, or not connected, or for one queue pair
    but sent to a group;
  - C{packets_wrong_service}: for a queue pair of another transport service;
  - C{packets_wrong_source}: not from the peer of its queue pair;
  - C{qkey_violations}: a datagram with a wrong Q_Key;
  - C{management_malformed}, C{management_unsupported}: for queue pair 1, and no message of the
    communication manager (L{twisted_ib.hca.cm.transactions}).

C{packets_marked} counts those that routers have marked for congestion, C{congestion_notified} the
notifications that a peer had as many.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.operation import (
    GSI_QPN,
    MULTICAST_QPN,
    QPN_MASK,
    SEND_MIDDLE,
    SOLICITED,
    UD_SEND_ONLY,
    UD_SEND_ONLY_IMMEDIATE,
    WRITE_MIDDLE,
)
from twisted_ib.hca.wire.cm.rdmacm import gidOf
from twisted_ib.hca.wire.headers import BTH, DETH, ICRC, PSN_MASK
from twisted_ib.hca.wire.icrcflow import LONGEST_PACKET, ICRCState, crc32
from twisted_ib.hca.wire.mad.mad import QUEUE_KEY
from twisted_ib.hca.wire.opcodes import CONGESTION, OPCODES

#: The same for those that go to no connection.
PACKET_SIZES_OF_STRANGERS = 8

#: The default partition without the bit of full membership.
_PARTITION: Final = 0x7FFF
_ACKNOWLEDGE: Final = 0x80000000
_PAD_SHIFT: Final = 4
_VERSION_MASK: Final = 0xF
_SERVICE_MASK: Final = 0xE0
_HOP_LIMIT: Final = 64
#: What stands before the word with the sequence number is the same in all packets of a message's middle,
#: which have neither pad nor solicited event.
_KIND_BYTES: Final = 8
_SPECIAL: Final = SOLICITED | 3 << _PAD_SHIFT
_WORD: Final = Struct(">I")
_MIDDLES: Final = frozenset((SEND_MIDDLE, WRITE_MIDDLE))
#: The two bits of the traffic class that routers set, both if there is congestion.
_CONGESTED: Final = 3
#: The shortest packet.
_LEAST: Final = BTH.size + ICRC.size
#: Operation code -> where the payload begins.
_STARTS: Final = {code: row.start for code, row in OPCODES.items()}
_DATAGRAMS: Final = frozenset((UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE))
#: The connections that packets for a group are for.
_NO_SESSIONS: Final[dict[int, Any]] = {}
#: What stands in front of a datagram that came, where a GRH does elsewhere: 20 octets of zeros and the
#: IPv4 header, or the IPv6 header (Linux's C{union rdma_network_hdr}).
_IPV4: Final = Struct(">20xBBHHHBBH4s4s")
_IPV4_WORDS: Final = Struct(">20x10H")
_IPV6: Final = Struct(">IHBB16s16s")
_UDP_BYTES: Final = 8
_IPV4_BYTES: Final = 20
_PROTOCOL: Final = 17
_DO_NOT_FRAGMENT: Final = 0x4000


class PacketReceiver:
    """
    Takes what arrives for one HCA.

    @ivar packets: How many packets came, whatever they were.
    """

    __slots__ = ("_fabric", "_flows", "_general", "_owner", "_sessions", "packets")

    def __init__(self, fabric: Any, sessions: dict[int, Any], general: Any) -> None:
        """
        Nothing has come.

        @param fabric: The fabric of packets.
        @param sessions: By number, the paths of queue pairs that are connected.
        @param general: Queue pair 1.
        """
        self._fabric = fabric
        self._owner = fabric.owner
        self._sessions = sessions
        self._general = general
        self._flows: dict[tuple[str, str, int], ICRCState] = {}
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
        Datagrams came: see L{ILink<twisted_ib.hca.base.interfaces.ILink>}.
        """
        if size <= 0:
            self.packets += 1
            self._owner.count("packets_malformed")
            return
        key = source, destination, port
        flow = self._flows.get(key)
        isNew = flow is None
        if flow is None:
            flow = ICRCState(gidOf(source), gidOf(destination), port, PACKET_SIZES_OF_STRANGERS)
        fabric, sessions, count = self._fabric, self._sessions, self._owner.count
        if destination != fabric.address:
            sessions = _NO_SESSIONS
        view, now = memoryview(buffer), fabric.clock()
        states, unpackBTH, unpackICRC = flow.states, BTH.unpack_from, ICRC.unpack_from
        isMarked = trafficClass & _CONGESTED == _CONGESTED
        self.packets += -(-(stop - start) // size) or 1
        joining = None
        number, end = -1, start
        while end < stop:
            number += 1
            at = end
            end = at + size
            if end > stop:
                end = stop
            octets = end - at
            if not _LEAST <= octets <= LONGEST_PACKET or octets & 3:
                count("packets_malformed")
                continue
            opcode, flags, partition, target, psn = unpackBTH(buffer, at)
            offset = _STARTS.get(opcode)
            if offset is None:
                count("packets_bad_opcode")
                continue
            body, tail = at + offset, end - ICRC.size - (flags >> _PAD_SHIFT & 3)
            if tail < body or flags & _VERSION_MASK:
                count("packets_malformed")
                continue
            state = states.get(octets << 16 | number)
            if (
                state is not None
                and not view[at + 4]
                and crc32(view[at : end - 4], state) == unpackICRC(view, end - 4)[0]
            ):
                flow.expected += 1
            elif not flow.isRight(view, at, end, number):
                count("packets_bad_icrc")
                continue
            if partition & _PARTITION != _PARTITION:
                count("packets_bad_pkey")
                continue
            target &= QPN_MASK
            session = sessions.get(target)
            if session is None:
                if joining is not None:  # Who gets this may fail.
                    joining.settle()
                    joining = None
                if isNew and opcode in _DATAGRAMS:
                    if target == MULTICAST_QPN or target in self._owner.queuePairs:
                        isNew = False
                        self._remember(key, flow)
                self._takeDatagram(
                    *(source, destination, trafficClass, opcode, flags, target, view, at, end, tail)
                )
            elif opcode & _SERVICE_MASK != session.service:
                count("congestion_notified" if opcode == CONGESTION else "packets_wrong_service")
            elif session.peer.address != source:
                count("packets_wrong_source")
            else:
                if isNew:  # Of strangers who only ask, or guess, nothing is kept.
                    isNew = False
                    flow.most = limits.PACKET_SIZES
                    self._remember(key, flow)
                if isMarked:
                    count("packets_marked")
                    fabric.transmitter.notify(session, now)
                if opcode in _MIDDLES and end < stop and not isMarked and not flags & _SPECIAL:
                    parts, word = self._run(flow, view, at, stop, size, number)
                    several = len(parts)
                    if several > 1 and session.connection.continued(opcode, psn & PSN_MASK, word, parts):
                        if joining is not None and joining is not session:
                            joining.settle()  # Of connections that share a source port.
                        joining = session
                        end = at + several * size
                        number += several - 1
                        if not session.bell:
                            session.bell = True
                            fabric.bells.append(session)
                        continue
                if flags & SOLICITED:
                    opcode |= SOLICITED
                session.connection.receive(
                    opcode, psn & PSN_MASK, psn >= _ACKNOWLEDGE, buffer, at + BTH.size, tail, now
                )
                if not session.bell:
                    session.bell = True
                    fabric.bells.append(session)
                    flow.most = limits.PACKET_SIZES
        if joining is not None:
            joining.settle()

    def _run(
        self, flow: ICRCState, view: memoryview, at: int, stop: int, size: int, number: int
    ) -> tuple[list[memoryview], bool]:
        """
        Find the packets of bulk: a middle one, and those behind it that are just like it and right, each
        with the next number.

        @param at: Offset of the first, which is right.
        @param number: Which one of its datagrams that is.
        @return: Their payloads, which last as long as C{view}'s buffer, and whether one of them asks for
            an acknowledgement.
        """
        kind, body, tail = view[at : at + _KIND_BYTES], at + BTH.size, at + size - ICRC.size
        unpack, unpackICRC, states = _WORD.unpack_from, ICRC.unpack_from, flow.states
        parts = [view[body:tail]]
        (first,) = unpack(view, at + _KIND_BYTES)
        psn, asks = first & PSN_MASK, first
        for start in range(at + size, stop - size + 1, size):
            number += 1
            psn = psn + 1 & PSN_MASK
            body += size
            tail += size
            (word,) = unpack(view, start + _KIND_BYTES)
            if word & PSN_MASK != psn or view[start : start + _KIND_BYTES] != kind:
                break
            state = states.get(size << 16 | number)
            if state is None:
                state = flow.state(size, number)
            if crc32(view[start:tail], state) != unpackICRC(view, tail)[0]:
                break
            asks |= word
            parts.append(view[body:tail])
        return parts, asks >= _ACKNOWLEDGE

    def _remember(self, key: tuple[str, str, int], flow: ICRCState) -> None:
        """
        @param key: Source, destination and source port of packets.
        @param flow: What their checksums begin with.
        """
        flows = self._flows
        if len(flows) >= limits.PACKET_FLOWS:
            del flows[next(iter(flows))]
        flows[key] = flow

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
        if destination != self._fabric.address and target != MULTICAST_QPN:
            # Else many hosts would answer one packet, to whoever it says that it is from.
            self._owner.count("packets_unknown_qp")
        elif target == GSI_QPN and opcode == UD_SEND_ONLY:
            body = at + _STARTS[opcode]
            if DETH.unpack_from(view, at + BTH.size)[0] != QUEUE_KEY:
                self._owner.count("qkey_violations")
            else:
                self._general.received(source, view, body, tail)
        elif opcode in _DATAGRAMS and target != GSI_QPN:
            head = _header(source, destination, trafficClass, end - at)
            record = b"".join((head, view[at + BTH.size : tail]))
            opcode |= flags & SOLICITED
            path = self._fabric.pathTo(source)
            self._owner.datagramReceived(path, opcode, target, record, 0, len(record))
        else:
            self._owner.count("packets_unknown_qp")
            if not opcode & _SERVICE_MASK:
                psn = BTH.unpack_from(view, at)[-1] & PSN_MASK
                self._owner.arrivedEarly(target, source, psn)


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
    total = sum(_IPV4_WORDS.unpack(head)) % 0xFFFF
    return _IPV4.pack(*fields, ~total & 0xFFFF, here[12:], there[12:])


__all__ = ["PacketReceiver"]
