"""
Reads and checks capture files with a knowledge of the wire only, not of this program's
fabrics.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

from attrs import define, field

from tests.support.packets import fits, parseDatagram
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.wire.cm.messages import REP, REQ, AnyMessage
from twisted_ib.hca.wire.headers import ACK, MAD_BYTES, PSN_MASK
from twisted_ib.hca.wire.lrh import LinkPacket
from twisted_ib.hca.wire.mad.mad import Mad
from twisted_ib.hca.wire.opcodes import Kind
from twisted_ib.hca.wire.packet import Packet
from twisted_ib.hca.wire.rocev2 import ETHERNET

TSHARK = shutil.which("tshark")
# Linux writes the checksum 0 as 0xFFFF, which is the same in ones' complement, where it computes one that a
# device would have computed (skb_checksum_help()): one segment in 65,536.  tshark wants 0, by RFC 1624.
_BAD_CHECKSUM = "(tcp.checksum.status == Bad && !(tcp.checksum == 0xffff && tcp.checksum_calculated == 0))"
#: A display filter: FPDUs that tshark finds wrong.
IWARP_WRONG = f"_ws.malformed || iwarp_mpa.bad_length || {_BAD_CHECKSUM}"
#: Protocols that take for themselves what they do not know.
_NOT_GUESSED = ["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]


@define
class Frame:
    """
    One packet of a file.

    @ivar datagram: a L{UDPDatagram<twisted_ib.hca.wire.rocev2.UDPDatagram>}; on InfiniBand a L{LinkPacket}.
    """

    interface: str
    outbound: bool
    time: int
    data: bytes
    datagram: Any
    packet: Packet

    @property
    def isLocal(self) -> bool:
        """
        Whether it has a local route header.
        """
        return isinstance(self.datagram, LinkPacket)

    @property
    def port(self) -> int:
        """
        Its UDP source port; of InfiniBand one for all.
        """
        return 0xC000 if self.isLocal else self.datagram.port

    @property
    def mad(self) -> Mad:
        """
        What it carries.
        """
        return Mad.parse(self.packet.payload, 0, MAD_BYTES)

    @property
    def message(self) -> AnyMessage | None:
        """
        Its CM message, if it is one.
        """
        if self.packet.bth.destination != 1 or self.packet.row.name != "UD SEND Only":
            return None
        data = self.mad.data
        return None if isinstance(data, bytes) else data


def _options(block: bytes, at: int) -> dict[int, bytes]:
    """
    The options of a block; they end where it ends.
    """
    found = {}
    while True:
        code, size = unpack_from("<HH", block, at)
        at += 4
        if not code:
            assert not size and at == len(block), "something follows the end of options"
            return found
        found[code] = block[at : at + size]
        at += -(-size // 4) * 4


def read(path: str | Path) -> list[Frame]:
    """
    The packets of a file, each of InfiniBand's transport.
    """
    return [_frame(*each) for each in recorded(path)]


def recorded(path: str | Path) -> Iterator[tuple[str, int, bool, int, bytes]]:
    """
    The packets of a file, which has nothing else, and of which nothing is missing.

    @return: of each packet its interface, that one's link type, whether it was sent there, its time and
        its octets.
    """
    data = Path(path).read_bytes()
    names: list[tuple[str, int]] = []
    at = 0
    while at < len(data):
        kind, size = unpack_from("<II", data, at)
        assert size % 4 == 0 and at + size <= len(data), f"a block of {size} bytes at {at} of {len(data)}"
        assert unpack_from("<I", data, at + size - 4) == (size,)
        block = data[at + 8 : at + size - 4]
        assert (kind == 0x0A0D0D0A) is (at == 0), f"block {kind:#x} at {at}"
        at += size
        if kind == 0x0A0D0D0A:
            assert unpack_from("<IHHq", block) == (0x1A2B3C4D, 1, 0, -1)
            _options(block, 16)
        elif kind == 1:
            kind, *others = unpack_from("<HHI", block)
            assert kind in (1, 197) and others == [0, 0]
            options = _options(block, 8)
            assert options[9] == b"\x09"
            names.append((options[2].decode(), kind))
        else:
            assert kind == 6, f"block {kind:#x}"
            interface, high, low, here, there = unpack_from("<IIIII", block)
            assert here == there
            frame = block[20 : 20 + here]
            direction = _options(block, 20 + -(-here // 4) * 4)[2]
            yield (*names[interface], direction == b"\2\0\0\0", high << 32 | low, frame)


def _frame(interface: str, linkType: int, outbound: bool, time: int, data: bytes) -> Frame:
    """
    Take a packet apart; its CRCs are right.
    """
    if linkType == 197:
        ticks, code, flags, size, lost, length = unpack_from("<Q", data) + unpack_from(">BBHHH", data, 8)
        assert (code, flags, lost) == (21, 4, 0) and (size, length) == (len(data), len(data) - 16)
        assert ticks == time * 2**32 // 10**9
        data = data[16:]
        local = LinkPacket.parse(data)
        assert data == local.pack()
        packet = Packet.parse(local.body + bytes(4), 0, len(local.body) + 4)
        assert packet.pack() == local.body
        return Frame(interface, outbound, time, data, local, packet)
    kind = ETHERNET.unpack_from(data)[2]
    assert kind == (0x0800 if data[14] >> 4 == 4 else 0x86DD)
    datagram = parseDatagram(data, ETHERNET.size, len(data))
    assert data[ETHERNET.size :] == datagram.pack()
    packet = Packet.parse(datagram.body + bytes(4), 0, len(datagram.body) + 4)
    assert packet.pack() == datagram.body
    return Frame(interface, outbound, time, data, datagram, packet)


@define
class Stream:
    """
    The requests of one queue pair, and their answers.

    @ivar next: the sequence number that comes next.
    @ivar open: requests that are not acknowledged: first and last number, row, and whether
        they are whole.
    """

    source: int
    number: int
    next: int | None = None
    msn: int = 0
    kind: Any = None
    open: list[list[Any]] = field(factory=list)
    refused: int | None = None
    repeats: int = 0
    responses: int = 0
    acknowledged: int = 0
    answering: int | None = None
    ports: set[int] = field(factory=set)


class Observer:
    """
    Looks at packets one by one; what no requester or responder would have sent is an
    C{AssertionError}.

    @ivar counts: how many there were of each name.
    @ivar streams: by addresses of the two sides and the responder's queue pair number.
    """

    def __init__(self, mtu: int = 4096) -> None:
        self.mtu = mtu
        self.counts: Counter[str] = Counter()
        self.streams: dict[tuple[int, int, int], Stream] = {}
        self.messages: list[str] = []
        #: By address and number: the peer's number; the number that it begins with.
        self.peers: dict[tuple[int, int], int] = {}
        self.starts: dict[tuple[int, int], int] = {}
        self._ids: dict[tuple[int, int], int] = {}
        self._datagrams: dict[tuple[bytes, int], int] = {}

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> None:
        """
        Say which queue pairs are connected, of those that no CM has connected.
        """
        self.peers[first] = second[1]
        self.peers[second] = first[1]

    def see(self, frames: list[Frame]) -> Observer:
        """
        Look at all packets.
        """
        time = 0
        for n, frame in enumerate(frames, 1):
            assert frame.time >= time, f"packet {n} is older than the one before it"
            time = frame.time
            try:
                self._see(frame)
            except AssertionError as error:
                raise AssertionError(f"packet {n}, {frame.packet}: {error}") from None
        return self

    def _see(self, frame: Frame) -> None:
        packet, row = frame.packet, frame.packet.row
        self.counts[row.name] += 1
        assert fits(row, len(packet.payload), self.mtu), f"{len(packet.payload)} bytes"
        assert frame.port >= 0xC000
        assert packet.bth.partition == 0xFFFF or frame.isLocal
        ends = frame.datagram.source, frame.datagram.destination
        if row.name.startswith("UD"):
            # HCAs of one host may share an IP address.
            source = frame.data[6:8] if frame.isLocal else frame.data[6:12], packet["source"]
            assert packet.bth.psn == self._datagrams.get(source, packet.bth.psn), "a datagram is missing"
            self._datagrams[source] = packet.bth.psn + 1 & PSN_MASK
            self._listen(ends, frame)
        elif row.isRequest:
            self._request((*ends, packet.bth.destination), packet)
            self.streams[(*ends, packet.bth.destination)].ports.add(frame.port)
        else:
            self._answer(self._asked(ends, packet, frame.port), packet)

    def _listen(self, ends: tuple[int, int], frame: Frame) -> None:
        """
        Learn from the communication manager.
        """
        message = frame.message
        if message is None:
            return
        self.messages.append(type(message).__name__)
        if isinstance(message, (REQ, REP)):
            self._ids[ends[0], message.localCommunicationID] = message.localQPN
            self.starts[ends[0], message.localQPN] = message.startingPSN
        if isinstance(message, REQ):
            path = message.primaryPath
            gids = [int.from_bytes(gid, "big") for gid in (path.localGID, path.remoteGID)]
            assert ([path.localLID, path.remoteLID] if frame.isLocal else gids) == list(ends)
        if isinstance(message, REP):
            asked = self._ids[ends[1], message.remoteCommunicationID]
            self.pair((ends[0], message.localQPN), (ends[1], asked))
            for key in ((ends[1], ends[0], message.localQPN), (*ends, asked)):
                self.streams.pop(key, None)  # Of earlier queue pairs with these numbers.

    def _asked(self, ends: tuple[int, int], packet: Packet, port: int) -> Stream:
        """
        The requests that a packet answers: those to the requester's peer; if that is not known from
        the CM, the two directions still have the same UDP source port.
        """
        number = self.peers.get((ends[1], packet.bth.destination))
        if number is None:
            found = [
                key[2] for key, each in self.streams.items() if key[:2] == ends[::-1] and port in each.ports
            ]
            assert len(found) == 1, f"{len(found)} have asked"
            number = found[0]
            self.pair((ends[0], number), (ends[1], packet.bth.destination))
        return self.streams[ends[1], ends[0], number]

    def _request(self, key: tuple[int, int, int], packet: Packet) -> None:
        row = packet.row
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = Stream(key[0], key[2])
            assert packet.bth.psn == self.starts.get(key[1:], packet.bth.psn), "not the first number"
        if packet.bth.psn != stream.next and stream.next is not None:
            # Only what was refused, or found nobody, comes again.
            first = [request[0] for request in stream.open]
            assert packet.bth.psn in first, f"{packet.bth.psn} comes after {stream.next}"
            del stream.open[first.index(packet.bth.psn) :]
            stream.repeats += 1
            stream.refused = stream.kind = None
        assert row.begins is (stream.kind is None), f"{row.name} within {stream.kind}"
        assert row.begins or row.kind is stream.kind
        count = 1
        if row.kind is Kind.READ:
            count = max(1, -(-packet["length"] // self.mtu))
        last = packet.bth.psn + count - 1 & PSN_MASK
        if row.begins:
            stream.open.append([packet.bth.psn, last, row, row.ends])
        else:
            stream.open[-1][1], stream.open[-1][3] = last, row.ends
        stream.kind = None if row.ends else row.kind
        if row.name.startswith("UC"):
            stream.open.clear()
            assert not packet.bth.acknowledge
        else:
            assert packet.bth.acknowledge is row.ends, "who asks for an acknowledgement?"
        stream.next = last + 1 & PSN_MASK

    def _answer(self, stream: Stream, packet: Packet) -> None:
        row = packet.row
        assert stream.open, "nobody has asked"
        first, last, asked, whole = stream.open[0]
        if row.kind is Kind.ACKNOWLEDGE:
            syndrome, msn = packet["acknowledge"] >> 24, packet["acknowledge"] & PSN_MASK
            if syndrome != ACK:
                assert msn == stream.msn
                assert first <= packet.bth.psn <= last, f"{first} to {last} is what may be refused"
                stream.refused = packet.bth.psn
                return
            assert whole and asked.kind in (Kind.SEND, Kind.WRITE), f"{asked.name} is acknowledged"
            assert packet.bth.psn == last, f"{last} was to be acknowledged"
            stream.acknowledged += 1
        elif row.kind is Kind.ATOMIC_ACKNOWLEDGE:
            assert asked.kind is Kind.ATOMIC and packet.bth.psn == first
        else:
            assert asked.kind is Kind.READ
            expected = first if stream.answering is None else stream.answering
            assert row.begins is (stream.answering is None)
            assert packet.bth.psn == expected, f"{expected} was to be answered"
            stream.answering = packet.bth.psn + 1 & PSN_MASK
            assert row.ends is (packet.bth.psn == last)
            if row.ends:
                stream.answering = None
                stream.responses += 1
        if row.begins:
            stream.msn = stream.msn + 1 & PSN_MASK
        if row.headers:
            assert packet["acknowledge"] == ACK << 24 | stream.msn
        if row.ends:
            del stream.open[0]

    @property
    def unanswered(self) -> int:
        """
        How many requests have no answer.
        """
        return sum(len(stream.open) for stream in self.streams.values())


def crcsOf(path: str | Path) -> Counter[str]:
    """
    @return: how many CRCs of MPA tshark finds C{Good}, and how many C{Bad}.
    """
    assert TSHARK is not None
    arguments = [TSHARK, "-n", "-r", str(path), "-Y", "iwarp_mpa", "-O", "iwarp_mpa", *_NOT_GUESSED]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert not done.returncode, done.stderr
    return Counter(re.findall(r"\((Good|Bad) CRC32", done.stdout))


def tshark(path: str | Path, shown: str, *fields: str) -> list[list[str]]:
    """
    The output of tshark for a file.

    @param shown: a display filter.
    @param fields: the fields to show of each packet.
    """
    assert TSHARK is not None
    arguments = [TSHARK, "-n", "-r", str(path), "-Y", shown, "-T", "fields", "-o", "udp.check_checksum:TRUE"]
    arguments += ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"]
    arguments += _NOT_GUESSED
    for name in fields or ("frame.number",):
        arguments += ["-e", name]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert not done.returncode, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]
