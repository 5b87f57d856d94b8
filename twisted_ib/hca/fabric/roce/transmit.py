"""
The send side of a fabric of packets.

Packets of one queue pair go to the link in batches of equal size. Packets that the link has no room for
wait, in order, and so does everything behind them with the same source port: a peer whose address cannot be
resolved delays no others.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN, SOLICITED
from twisted_ib.hca.fabric.base.link import SEVERAL_BYTES
from twisted_ib.hca.transport.parameters import Packet
from twisted_ib.hca.wire.headers import BTH, ICRC, PSN_MASK, RETH
from twisted_ib.hca.wire.icrcflow import ICRCState, crc32
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE as ACKNOWLEDGEMENT
from twisted_ib.hca.wire.opcodes import (
    CONGESTION,
)
from twisted_ib.hca.wire.rocev2 import datagramPort

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.roce.qppath import QueuePairPath

#: How long packets that a socket had no room for wait, in seconds.
PACKET_PAUSE_SECONDS = 0.001
#: The least time between two congestion notification packets for one queue pair, in seconds, as is usual for
#: NICs.
PACKET_NOTIFICATION_SECONDS = 50e-6

#: AckReq, in the BTH word of the PSN.
ACKNOWLEDGE: Final = 0x80000000
_packBTH: Final = BTH.pack
_packICRC: Final = ICRC.pack
_BACKWARD: Final = 0x40000000
_PAD_SHIFT: Final = 4
_LEAST: Final = BTH.size + ICRC.size
_NOTIFICATION: Final = bytes(16)
#: A packet with so many bytes is one piece for the link: a copy costs less than its pieces.
_JOINED: Final = limits.DATAGRAM_BYTES + RETH.size
_PADS: Final = (b"", b"\0", b"\0\0", b"\0\0\0")


class PacketTransmitter:
    """
    Sends the packets of one HCA.

    @ivar packets: count of packets sent.
    @ivar answers: acknowledgements among them, which nothing answers.
    @ivar stalled: source port -> calls of the link's C{send} that had no room: arguments and number of
        packets.
    @ivar again: when to retry them.
    """

    __slots__ = ("_fabric", "_flows", "_sequence", "again", "answers", "link", "packets", "stalled")

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric
        self.link = fabric.link
        self._flows: dict[tuple[str, int], ICRCState] = {}
        self.stalled: dict[int, deque[tuple[tuple[Any, ...], int]]] = {}
        # IBTA vol. 1 9.8.3: datagrams have PSNs, but no receiver checks them; one sequence serves all queue
        # pairs.
        self._sequence = fabric.randomBits(24)
        self.again = 0.0
        self.packets = self.answers = 0

    def send(self, path: QueuePairPath, packets: list[Packet]) -> None:
        """
        Send packets of one queue pair.
        """
        # Linux udp(7): all segments of a call but the last have one size. An ACK may follow requests: the
        # two directions of a connection are independent.
        if packets[0][0] == ACKNOWLEDGEMENT:
            packets.append(packets.pop(0))  # A shorter packet can only end a UDP_SEGMENT batch.
        if len(packets[0][4]) > SEVERAL_BYTES:
            number = 0
            for parts in packets:
                if len(parts[4]) <= SEVERAL_BYTES:
                    break
                self.sendOne(path, parts)
                number += 1
            if number == len(packets):
                return
            packets = packets[number:]
        flow, remote, partition, pack, packICRC = path.flow, path.remote, path.partition, _packBTH, _packICRC
        states = flow.states
        most = 0
        pieces: list[Any] = []
        first = count = 0
        isOver = True
        for opcode, flags, psn, header, payload in packets:
            length = len(payload)
            if length + _LEAST == first and count < most and not header and flags <= 1 and not isOver:
                # Bulk transfer: the same as below, for one more packet of the same size. No comprehensions:
                # those have fewer bytecodes, but take longer.
                head = pack(opcode, 0, partition, remote, psn | ACKNOWLEDGE if flags else psn)
                state = states.get(first << 16 | count)
                if state is None:
                    state = flow.state(first, count)
                pieces += (head, payload, packICRC(crc32(payload, crc32(head, state))))
                count += 1
                continue
            length += len(header)
            pad = -length & 3
            size = _LEAST + length + pad
            if isOver or size > first or count >= most:
                if count:
                    self._transmit(self._call(path, pieces, first), count)
                pieces, first, count = [], size, 0
                most = min(self.link.burst, limits.PACKET_BURST_BYTES // size)
            isOver = size < first
            if flags & 1:
                psn |= ACKNOWLEDGE
            head = pack(opcode, flags & SOLICITED | pad << _PAD_SHIFT, partition, remote, psn) + header
            tail = _PADS[pad]
            # IBTA vol. 1 annex A17: the ICRC covers the IPv4 identification, which is the position in the
            # batch.
            state = states.get(size << 16 | count)
            if state is None:
                state = flow.state(size, count)
            check = crc32(payload, crc32(head, state))
            if pad:
                check = crc32(tail, check)
            pieces += (head, payload, tail + packICRC(check))
            count += 1
        if count:
            self._transmit(self._call(path, pieces, first), count)

    def sendOne(self, path: QueuePairPath, parts: Packet) -> None:
        """
        The same for one packet, which a queue pair mostly has, or which fills a call of the link.
        """
        opcode, flags, psn, header, payload = parts
        length = len(header) + len(payload)
        pad = -length & 3
        size = _LEAST + length + pad
        if flags & 1:
            psn |= ACKNOWLEDGE
        head = _packBTH(opcode, flags & SOLICITED | pad << _PAD_SHIFT, path.partition, path.remote, psn)
        state = path.flow.states.get(size << 16)
        if state is None:
            state = path.flow.state(size)
        pieces: list[Any]
        if length > _JOINED:
            head += header
            tail = _PADS[pad]
            pieces = [head, payload, tail + _packICRC(crc32(tail, crc32(payload, crc32(head, state))))]
        else:
            packet = b"".join((head, header, payload, _PADS[pad]))
            pieces = [packet + _packICRC(crc32(packet, state))]
        if self.stalled:
            self._transmit(self._call(path, pieces, size), 1)
        # As _transmit() does.
        elif self.link.send(path.peer.address, path.port, pieces, size, path.trafficClass, path.hopLimit):
            self.packets += 1
        else:
            self._stall(self._call(path, pieces, size), 1)

    @staticmethod
    def _call(path: QueuePairPath, pieces: list[Any], size: int) -> tuple[Any, ...]:
        return path.peer.address, path.port, pieces, size, path.trafficClass, path.hopLimit

    def _transmit(self, call: tuple[Any, ...], count: int) -> None:
        stalled = self.stalled
        # Behind packets that wait: a queue pair's packets must stay in order, or its peer NAKs (IBTA vol. 1
        # 9.7.5.2.3).
        if (stalled and call[1] in stalled) or not self.link.send(*call):
            self._stall(call, count)
        else:
            self.packets += count

    def _stall(self, call: tuple[Any, ...], count: int) -> None:
        waiting = self.stalled.get(call[1])
        if waiting is None:
            if not self.stalled:
                self.again = self._fabric.clock() + PACKET_PAUSE_SECONDS
            waiting = self.stalled[call[1]] = deque()
        # Dropped above this, as a full NIC queue drops: the transport retransmits.
        if len(waiting) < limits.PACKET_OUTPUTS:
            waiting.append((call, count))
        else:
            self._fabric.count("packets_dropped")

    def unstall(self) -> None:
        """
        Retry the packets that had no room.
        """
        for port in list(self.stalled):
            waiting = self.stalled[port]
            while waiting:
                call, count = waiting[0]
                if not self.link.send(*call):
                    break
                self.packets += count
                waiting.popleft()
            else:
                del self.stalled[port]
        if self.stalled:
            self.again = self._fabric.clock() + PACKET_PAUSE_SECONDS

    def isBehind(self, address: str) -> bool:
        """
        @return: whether packets for an address wait.
        """
        return any(call[0] == address for waiting in self.stalled.values() for call, _ in waiting)

    def notify(self, session: QueuePairPath, now: float) -> None:
        """
        A packet arrived with a congestion mark: notify its sender, at a limited rate.
        """
        if now - session.notified >= PACKET_NOTIFICATION_SECONDS:
            session.notified = now
            # IBTA vol. 1 annex A17: the CNP has BECN set, PSN 0, and 16 reserved octets. Linux rxe drops it
            # (no row in rxe_opcode.c).
            partition = session.partition
            head = BTH.pack(CONGESTION, 0, partition, session.remote | _BACKWARD, 0)
            # The ICRC masks BECN, so it is computed over a packet without it.
            plain = BTH.pack(CONGESTION, 0, partition, session.remote, 0) + _NOTIFICATION
            signed = session.flow.sign(plain)
            packet = head + signed[BTH.size :]
            self._transmit((session.peer.address, session.port, [packet], len(packet)), 1)

    def datagram(
        self,
        address: str,
        opcode: int,
        number: int,
        flags: int,
        partition: int,
        source: int,
        rest: bytes,
        trafficClass: int,
        hopLimit: int,
    ) -> None:
        """
        Send a datagram.

        @param number: destination QPN.
        @param flags: of the BTH word that has the PSN.
        @param partition: the P_Key.
        @param source: source QPN.
        @param rest: what follows the BTH.
        """
        port = self.link.sourcePort(datagramPort(source))
        flow = self._flows.get((address, port))
        if flow is None:
            flow = self._fabric.flowTo(address, port)
            if source != GSI_QPN:  # Answers to strangers' CM requests must leave no state.
                if len(self._flows) >= limits.PACKET_FLOWS:
                    del self._flows[next(iter(self._flows))]
                self._flows[address, port] = flow
        pad = -len(rest) & 3
        self._sequence = sequence = self._sequence + 1 & PSN_MASK
        head = BTH.pack(
            *(opcode & ~SOLICITED, opcode & SOLICITED | pad << _PAD_SHIFT, partition),
            *(number, sequence | flags),
        )
        packet = flow.sign(b"".join((head, rest, _PADS[pad])))
        self._transmit((address, port, [packet], len(packet), trafficClass, hopLimit), 1)

    def clear(self) -> None:
        """
        Drop all packets that wait.
        """
        self.stalled.clear()
