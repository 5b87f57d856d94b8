"""
The tasks of C{ib-perf rds}, after rds-tools C{rds-stress.c}: parameters, and requests that are acknowledged.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.protocol import DatagramProtocol

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.tools.program import ProgramError, sentence

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: The parameters on the control connection, C{struct options_2_0_6} of C{rds-stress.c}, which newer ones
#: accept too: see L{StressParameters}.
TERMS: Packed[tuple[int, ...]] = Struct("!6I2HI15B3I")
#: The header of each message, as C{struct header} in C{rds-stress.c}: sequence, addresses, ports, index, op;
#: for RDMA: op, address, physical address, pattern, key, size, vector; retry, remote error, pending.
HEADER: Packed[tuple[int, ...]] = Struct("!3I3HBB4Q2I3B")
HEADER_BYTES = HEADER.size
REQUEST, ACK = 1, 2


def patternOf(size: int) -> bytes:
    """
    Return the content behind the header where contents are verified.
    """
    # As rds-stress's init_msg_pattern, so that its verification (-v) works against us.  The shift by index >>
    # 8 makes swapped blocks of 256 bytes visible.
    found, value = bytearray(size), 11
    for index in range(size):
        value = (41 * (value + 3) + (index >> 8)) & 0xFF
        found[index] = value
    return bytes(found)


@attrs.frozen
class StressParameters:
    """
    Parameters that the active side sends.

    @ivar depth: Requests in flight from one task to another.
    @ivar request: Bytes of a request.
    @ivar ack: Bytes of an acknowledgement.
    @ivar passive: The passive side's address; C{active} the other's.
    @ivar port: Of the control connection; tasks have the next ones.
    @ivar tasks: On each side.
    @ivar seconds: Duration; 0 is without end.
    @ivar verify: Whether contents are compared.
    """

    depth: int
    request: int
    ack: int
    passive: str
    active: str
    port: int
    tasks: int
    seconds: int
    verify: bool

    def pack(self) -> bytes:
        """
        Return the bytes for the control connection.
        """
        flags = [0] * 15
        flags[3] = int(self.verify)
        addresses = [int(ipaddress.IPv4Address(each)) for each in (self.passive, self.active)]
        head = (self.depth, self.request, self.ack, 0, *addresses, self.port, self.tasks, self.seconds)
        return TERMS.pack(*head, *flags, 1, 0, 0)

    @classmethod
    def parse(cls, data: bytes) -> StressParameters:
        """
        Parse the active side's parameters.

        @raise ProgramError: They are too much, or ask for RDMA.
        """
        depth, request, ack, rdma, passive, active, port, tasks, seconds, *flags = TERMS.unpack(data)
        if rdma:
            raise ProgramError("the other side wants RDMA, which is not done here")
        first, second = str(ipaddress.IPv4Address(passive)), str(ipaddress.IPv4Address(active))
        found = cls(depth, request, ack, first, second, port, tasks, seconds, bool(flags[3]))
        found.check()
        return found

    def check(self) -> None:
        """
        Check bounds.

        @raise ProgramError: A parameter is out of range.
        """
        for what, value, least, most in (
            ("requests", self.depth, 1, limits.PERF_RDS_DEPTH),
            ("tasks", self.tasks, 1, limits.PERF_TASKS),
            ("bytes of a request", self.request, HEADER_BYTES, limits.RDS_MESSAGE),
            ("bytes of an acknowledgement", self.ack, HEADER_BYTES, limits.RDS_MESSAGE),
            ("seconds", self.seconds, 0, limits.PERF_SECONDS),
            ("is the last port", self.port + self.tasks, 1, 65535),
        ):
            if not least <= value <= most:
                raise ProgramError(f"{value} {what}: it is {least} to {most}")
        # RDS sends never block here: what waits must fit into a socket's send budget, with room for
        # acknowledgements.
        waits = self.tasks * self.depth * (self.request + limits.RDS_DATAGRAM_OVERHEAD)
        if waits > limits.RDS_SEND_BUDGET // 2:
            raise ProgramError("the requests of one task are more than may wait: fewer, or smaller ones")


class Peer:
    """
    One task's view of a task of the other side.

    @ivar sent: Messages to it.
    @ivar received: Messages from it.
    @ivar began: Send times of unanswered requests, by index.
    """

    __slots__ = ("began", "received", "sent", "to")

    def __init__(self, to: tuple[str, int], depth: int) -> None:
        self.to = to
        self.sent = self.received = 0
        self.began: list[float | None] = [None] * depth


class Task(DatagramProtocol):
    """
    One task, with a socket of its own.

    @ivar requests: Requests sent; C{received} requests received; C{acks} acknowledgements received.
    @ivar bytes: Of all messages, both ways.
    @ivar waited: Total seconds from requests to their acknowledgements.
    """

    def __init__(
        self, terms: StressParameters, own: tuple[str, int], peers: Sequence[tuple[str, int]], fail: Any
    ) -> None:
        self._terms = terms
        self._own = own
        self._peers = {to: Peer(to, terms.depth) for to in peers}
        self._fail = fail
        longest = max(terms.request, terms.ack) - HEADER_BYTES
        self._content = patternOf(longest) if terms.verify else bytes(longest)
        self.requests = self.received = self.acks = self.bytes = 0
        self.waited = 0.0
        self._over = False

    def begin(self) -> None:
        """
        Send the first requests.
        """
        for peer in self._peers.values():
            for index in range(self._terms.depth):
                self._send(peer, index, REQUEST)

    def end(self) -> None:
        """
        Send no more requests.
        """
        self._over = True

    def _send(self, peer: Peer, index: int, op: int) -> None:
        terms, own, to = self._terms, self._own, peer.to
        size = terms.request if op == REQUEST else terms.ack
        addresses = int(ipaddress.IPv4Address(own[0])), int(ipaddress.IPv4Address(to[0]))
        fields = (peer.sent & 0xFFFFFFFF, *addresses, own[1], to[1], index, op)
        header = HEADER.pack(*fields, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        peer.sent += 1
        self.bytes += size
        if op == REQUEST:
            self.requests += 1
            peer.began[index] = perf_counter()
        try:
            self.transport.write(header + self._content[: size - HEADER_BYTES], to)  # type: ignore[union-attr]
        # RDS accepts a datagram or refuses it at once; nothing is retried here.
        except HCAError as error:
            self._fail(ProgramError(sentence(error)))

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        peer = self._peers.get(addr)
        if peer is None:
            # RDS has no connections: anyone may send to the port.
            return
        wrong = self._wrong(peer, datagram)
        if wrong:
            self._fail(ProgramError(f"{wrong} from {addr[0]} port {addr[1]}"))
            return
        index, op = datagram[16] << 8 | datagram[17], datagram[18]
        peer.received += 1
        self.bytes += len(datagram)
        if op == REQUEST:
            self.received += 1
            self._send(peer, index, ACK)
            return
        began, peer.began[index] = peer.began[index], None
        if began is None:
            self._fail(ProgramError(f"an acknowledgement of nothing from {addr[0]} port {addr[1]}"))
            return
        self.acks += 1
        self.waited += perf_counter() - began
        # The acknowledgement makes room for the next request with its index.
        if not self._over:
            self._send(peer, index, REQUEST)

    def _wrong(self, peer: Peer, datagram: bytes) -> str:
        terms = self._terms
        if len(datagram) < HEADER_BYTES:
            return f"a message of {len(datagram)} bytes"
        sequence, _, _, fromPort, toPort, index, op, *_ = HEADER.unpack_from(datagram)
        size = {REQUEST: terms.request, ACK: terms.ack}.get(op)
        if size != len(datagram) or index >= terms.depth:
            return f"a message of {len(datagram)} bytes, op {op}, index {index}"
        # RDS delivers in order, without loss or duplicates (Documentation/networking/rds.rst), which this
        # verifies.
        if sequence != peer.received & 0xFFFFFFFF:
            return f"message {sequence} where {peer.received} was due"
        if (fromPort, toPort) != (peer.to[1], self._own[1]):
            return f"a message from port {fromPort} to {toPort}"
        if terms.verify and datagram[HEADER_BYTES:] != self._content[: size - HEADER_BYTES]:
            return "a message with other content than it should have"
        return ""
