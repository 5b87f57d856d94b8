"""
One path: what makes datagrams reliable between two addresses, whatever connection carries them.

A connection may be lost with messages in it.  The sender keeps each until it is acknowledged and
repeats what is not, with its sequence number and a flag, on the next connection.  The receiver
drops what has the flag and a number that it has seen.  Numbers go on across connections, gaps are
normal, and congestion maps have none.

A process that begins anew counts from 1, while its peer may remember high numbers from the
process before: what such a peer is sent without the flag it takes, but if the connection is lost
just then, the repetition would be dropped.  So the first thing on a new path is a probe (a ping
from port 1, or on RC from one that Linux takes for a socket's), never flagged, with the number of
our instance (GEN_NUM); until the peer has answered nothing that matters is sent.

Linux differs in one point: when it learns that the peer was restarted it counts from 1 again and
forgets what was sent and not acknowledged.  Here both stay as they are, as the new instance takes
any number.

Commands: L{PathMachine.send}, C{connected}, C{disconnected}, C{received}, C{acknowledged},
C{tick}; after each, take what C{nextOutput} gives.

Source: Linux 6.1 C{net/rds/send.c}, C{recv.c}, C{connection.c}.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

from twisted_ib import limits
from twisted_ib.rds.protocol.congestion import MAP_BYTES, CongestionMap
from twisted_ib.rds.protocol.wire import (
    ACK_REQUIRED,
    CONG_BITMAP,
    MESSAGE_BYTES,
    NO_EXTENSIONS,
    PING_PORT,
    PROBE_PORT,
    RC_PROBE_PORT,
    RETRANSMITTED,
    Extension,
    Fields,
    areExtensionsGood,
    parseExtensions,
    pathsExtensions,
)

#: Answers to pings that wait on one path; more are not given.
RDS_PONGS = 256
#: How long a peer has to answer the first probe once it has acknowledged it, in seconds.
RDS_PROBE_SECONDS = 1.0
#: A message asks for an acknowledgement when so many, or so many bytes, have not (RC; Linux:
#: max_unacked_packets, max_unacked_bytes).
RDS_UNACKNOWLEDGED = 8
RDS_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024

_REPEATED = RETRANSMITTED | ACK_REQUIRED


class Outcome(IntEnum):
    """
    What L{PathMachine.received} made of a message.
    """

    #: It was for the machine, or for nobody; there may be new outputs.
    NOTHING = 0
    #: It is for a socket.
    DELIVER = 1
    #: The peer's map has changed.
    CONGESTION = 2
    #: The peer is another instance than before.
    RESTARTED = 3


class RDSMessage:
    """
    A message that is sent, until it is acknowledged.

    @ivar sequence: its number; 0 as long as it has none.
    @ivar sourcePort: the sending socket's port.
    @ivar destinationPort: the receiving socket's port.
    @ivar flags: of the header.
    @ivar extensions: of the header, 16 bytes.
    @ivar payload: C{bytes}.
    @ivar owner: whose it is; it has C{messageDone(message)} and C{messageDropped(message)}.
        L{None} for the machine's own.
    @ivar once: whether it must not be repeated: its RDMA operation was done, or not, on the
        connection that is gone.
    """

    __slots__ = (
        "destinationPort",
        "extensions",
        "flags",
        "once",
        "owner",
        "payload",
        "sequence",
        "sourcePort",
    )

    #: Whether nothing is sent but the operation.
    silent = False
    #: How many datagrams it has, and what they count for besides the bytes of the payload.
    count = 1
    overhead = limits.RDS_DATAGRAM_OVERHEAD

    def __init__(
        self,
        sourcePort: int,
        destinationPort: int,
        payload: bytes = b"",
        owner: Any = None,
        extensions: bytes = NO_EXTENSIONS,
        flags: int = 0,
        once: bool = False,
    ) -> None:
        self.sequence = 0
        self.sourcePort = sourcePort
        self.destinationPort = destinationPort
        self.flags = flags
        self.extensions = extensions
        self.payload = payload
        self.owner = owner
        self.once = once


class PathMachine:
    """
    The state of one path.

    @ivar nextTransmit: the number of the next new message.
    @ivar nextReceive: one more than the last number that came.
    @ivar waiting: messages to be sent, first those to be repeated.
    @ivar unacknowledged: messages that were sent, oldest first.
    @ivar peerMap: the peer's congestion map.
    @ivar peerGeneration: the number of the peer's instance; 0 if it has not said.
    @ivar probePort: the port that probes come from.
    @ivar repeated: how many messages were sent again.
    @ivar isUp: whether there is a connection.
    @ivar isOpen: whether the peer has answered the first probe.
    """

    def __init__(
        self,
        ownMap: CongestionMap,
        generation: int,
        counters: dict[str, int],
        acknowledges: bool = False,
    ) -> None:
        """
        @param ownMap: the map of our address, which all its paths share.
        @param generation: the number of our instance, not 0.
        @param counters: see L{twisted_ib.rds.protocol.counters}.
        @param acknowledges: whether messages have to ask for acknowledgements (RC).
        """
        self.ownMap = ownMap
        self.generation = generation
        self.counters = counters
        self.acknowledges = acknowledges
        self.probePort = RC_PROBE_PORT if acknowledges else PROBE_PORT
        self.nextTransmit = 1
        self.nextReceive = 0
        self.waiting: deque[RDSMessage] = deque()
        self.unacknowledged: deque[RDSMessage] = deque()
        self.peerMap = CongestionMap()
        self.peerGeneration = 0
        self.repeated = 0
        self.isUp = False
        # Answers to probes before the first own is answered: not kept, as nothing else has a number.
        self._early: deque[RDSMessage] = deque()
        self.isOpen = False
        self._probe: RDSMessage | None = None
        self._probeEnd: float | None = None
        self._mapVersion = -1
        self._pongs = 0
        # Messages and bytes until one has to ask for an acknowledgement.
        self._asked = self._askedBytes = 0

    # -- commands

    def send(self, message: RDSMessage) -> None:
        """
        Take a message.  How many wait is bounded by who sends.

        @param message: one that was not sent before.
        """
        self.waiting.append(message)
        self.counters["send_queued"] += message.count

    def connected(self, now: float) -> None:
        """
        There is a connection, and nothing was sent on it yet.
        """
        self.isUp = True
        self._mapVersion = -1
        self._asked = 0
        self._probe = self._probeEnd = None

    def disconnected(self, now: float) -> list[RDSMessage]:
        """
        The connection is gone: repeat on the next what was not acknowledged.

        @return: messages that are not repeated, as their operation is not.
        """
        self.isUp = False
        self._early.clear()
        self._probeEnd = None
        dropped = []
        again = self.unacknowledged
        while again:
            message = again.pop()
            if message.once:
                dropped.append(message)
                continue
            message.flags |= _REPEATED
            self.waiting.appendleft(message)
        return dropped

    def received(self, fields: Fields, payload: bytes, now: float) -> Outcome:
        """
        A message came.

        @param fields: its header as L{HEADER<twisted_ib.rds.protocol.wire.HEADER>} unpacks it.
        @param payload: as many bytes as the header says.
        @return: what to do with it.
        """
        sequence, _, length, sourcePort, destinationPort, flags, _, _, _, extensions = fields
        if length != len(payload) or length > MESSAGE_BYTES:
            self.counters["recv_bad_length"] += 1
            return Outcome.NOTHING
        if flags == CONG_BITMAP:
            return self._mapReceived(length, sourcePort, destinationPort, payload)
        if flags & RETRANSMITTED and sequence < self.nextReceive:
            self.counters["recv_drop_old_seq"] += 1
            return Outcome.NOTHING
        self.nextReceive = sequence + 1
        if flags & ACK_REQUIRED:
            self.counters["recv_ack_required"] += 1
        if extensions != NO_EXTENSIONS and not areExtensionsGood(extensions):
            self.counters["recv_bad_extension"] += 1
        if destinationPort > PROBE_PORT and (
            sourcePort != PING_PORT or destinationPort != self.probePort or self.isOpen
        ):
            return Outcome.DELIVER
        return self._serviceReceived(sourcePort, destinationPort, extensions)

    def acknowledged(self, sequence: int) -> list[RDSMessage]:
        """
        The peer has everything up to a number; of what is to be repeated too, if it says so when
        it connects.

        @return: the messages that are done.
        """
        done: list[RDSMessage] = []
        if sequence >= self.nextTransmit:
            self.counters["recv_bad_ack"] += 1
            return done
        for messages in (self.unacknowledged, self.waiting):
            while messages and 0 < messages[0].sequence <= sequence:
                message = messages.popleft()
                if message.sourcePort == PING_PORT:
                    self._pongs -= 1
                done.append(message)
        return done

    def probeAcknowledged(self, sequence: int, now: float) -> None:
        """
        The same for what is not kept: the probe arrived, so its answer cannot be far.
        """
        probe = self._probe
        if probe is not None and not self.isOpen and self._probeEnd is None:
            if probe.sequence <= sequence < self.nextTransmit:
                self._probeEnd = now + RDS_PROBE_SECONDS

    def deadline(self) -> float | None:
        """
        @return: when to call C{tick}.
        """
        return self._probeEnd

    def tick(self, now: float) -> None:
        """
        Time has passed: a peer that acknowledges probes and does not answer them is taken as it is.
        """
        if self._probeEnd is not None and now >= self._probeEnd:
            self._open()

    def drop(self, owner: Any, port: int | None = None) -> list[RDSMessage]:
        """
        Forget what somebody sends, as a closing socket does.  What is on its way may arrive.

        @param port: to this port only; L{None} for all.
        @return: the messages.
        """

        def isMeant(message: RDSMessage) -> bool:
            return message.owner is owner and (port is None or message.destinationPort == port)

        dropped = [message for message in self.waiting if isMeant(message)]
        if dropped:
            self.waiting = deque(message for message in self.waiting if not isMeant(message))
        sent = [message for message in self.unacknowledged if isMeant(message)]
        if sent:
            self.unacknowledged = deque(message for message in self.unacknowledged if not isMeant(message))
        return dropped + sent

    def finished(self, message: RDSMessage) -> bool:
        """
        An operation without a message was done; nobody acknowledges it.

        @return: whether it was on its way.
        """
        try:
            self.unacknowledged.remove(message)
        except ValueError:
            return False
        return True

    def isIdle(self) -> bool:
        """
        @return: whether nothing waits and all is acknowledged.
        """
        return not self.waiting and not self.unacknowledged

    # -- outputs

    def nextOutput(self) -> RDSMessage | None:
        """
        @return: what is to be sent next; when the carrier has taken it, call L{sent}.
        """
        if not self.isUp:
            return None
        if self._mapVersion != self.ownMap.version:
            return RDSMessage(0, 0, self.ownMap.pack(), flags=CONG_BITMAP)
        if self.isOpen:
            if not self.waiting:
                return None
            return self._numbered(self.waiting[0])
        if self._early:
            return self._numbered(self._early[0])
        if self._probe is None:
            extensions = pathsExtensions(1, self.generation)
            flags = ACK_REQUIRED if self.acknowledges else 0
            return self._numbered(RDSMessage(self.probePort, PING_PORT, extensions=extensions, flags=flags))
        return None

    def _numbered(self, message: RDSMessage) -> RDSMessage:
        if not message.sequence:
            message.sequence = self.nextTransmit
            self.nextTransmit += 1
        if self.acknowledges and not self._asked and not (message.once and message.silent):
            message.flags |= ACK_REQUIRED
        return message

    def sendAtOnce(self, message: RDSMessage) -> bool:
        """
        Take a message that nothing stands before, as L{send} and L{nextOutput} would.

        @return: whether it is so: then the carrier is to have it now, and L{sentAtOnce} is called if
            it has taken it, else L{refused}.
        """
        if self.waiting or not self.isOpen or not self.isUp or self._mapVersion != self.ownMap.version:
            return False
        self.counters["send_queued"] += message.count
        self._numbered(message)
        return True

    def sentAtOnce(self, message: RDSMessage) -> None:
        """
        The carrier has taken it.
        """
        if self.acknowledges:
            self._asks(message)
        self.unacknowledged.append(message)

    def refused(self, message: RDSMessage) -> None:
        """
        The carrier has not: it waits.
        """
        self.waiting.append(message)

    def _asks(self, message: RDSMessage) -> None:
        """
        Count what was sent since a message asked for an acknowledgement.
        """
        if message.flags & ACK_REQUIRED:
            self.counters["send_ack_required"] += 1
            self._asked = RDS_UNACKNOWLEDGED - 1
            self._askedBytes = RDS_UNACKNOWLEDGED_BYTES
        elif self.acknowledges and self._asked:
            self._asked -= 1
            self._askedBytes -= len(message.payload)
            if self._askedBytes <= 0:
                self._asked = 0

    def sent(self, message: RDSMessage) -> None:
        """
        The carrier has taken what L{nextOutput} gave.
        """
        if message.flags == CONG_BITMAP:
            self._mapVersion = self.ownMap.version
            self.counters["cong_update_queued"] += 1
            return
        self._asks(message)
        if self.isOpen:
            self.waiting.popleft()
            self.unacknowledged.append(message)
            if message.flags & RETRANSMITTED:
                self.repeated += 1
                self.counters["send_retransmitted"] += 1
        elif message.sourcePort == self.probePort:
            self._probe = message
        else:
            self._early.popleft()

    # -- what comes

    def _mapReceived(self, length: int, sourcePort: int, destinationPort: int, payload: bytes) -> Outcome:
        if length != MAP_BYTES or sourcePort or destinationPort:
            self.counters["recv_bad_map"] += 1
            return Outcome.NOTHING
        self.counters["cong_update_received"] += 1
        return Outcome.CONGESTION if self.peerMap.replace(payload) else Outcome.NOTHING

    def _serviceReceived(self, sourcePort: int, destinationPort: int, extensions: bytes) -> Outcome:
        """
        Something for port 0 or 1: a ping, or the answer to our probe.
        """
        if destinationPort:
            if sourcePort != PING_PORT:
                # Nobody has this port.
                self.counters["recv_drop_no_sock"] += 1
                return Outcome.NOTHING
            self._open()
            return self._greeted(extensions)
        if sourcePort == PING_PORT:
            self.counters["recv_bad_port"] += 1
            return Outcome.NOTHING
        self.counters["recv_ping"] += 1
        self._pong(sourcePort)
        return self._greeted(extensions) if sourcePort == self.probePort else Outcome.NOTHING

    def _pong(self, port: int) -> None:
        if port in self.peerMap:
            self.counters["cong_send_error"] += 1
            return
        isProbe = port == self.probePort
        early = isProbe and not self.isOpen
        if (len(self._early) if early else self._pongs) >= RDS_PONGS:
            self.counters["send_drop_pong"] += 1
            return
        # One path: 1 is what a peer with more of them takes for that.
        extensions = pathsExtensions(1, self.generation) if isProbe else NO_EXTENSIONS
        message = RDSMessage(PING_PORT, port, extensions=extensions)
        self.counters["send_pong"] += 1
        if early:
            self._early.append(message)
        else:
            self._pongs += 1
            self.waiting.append(message)

    def _open(self) -> None:
        """
        The peer knows our instance: everything may be sent.
        """
        if not self.isOpen:
            self.isOpen = True
            self._probeEnd = None
            self.waiting.extendleft(reversed(self._early))
            self._pongs += len(self._early)
            self._early.clear()

    def _greeted(self, extensions: bytes) -> Outcome:
        """
        A probe or its answer says who the peer is.
        """
        value = parseExtensions(extensions).get(Extension.GEN_NUM)
        generation = 0 if value is None else int.from_bytes(value, "big")
        if not generation or generation == self.peerGeneration:
            return Outcome.NOTHING
        known, self.peerGeneration = self.peerGeneration, generation
        if not known:
            return Outcome.NOTHING
        self.nextReceive = 0
        self.counters["peer_restarted"] += 1
        return Outcome.RESTARTED
