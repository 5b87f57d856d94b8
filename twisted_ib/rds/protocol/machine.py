"""
The state machine of one path: it makes datagrams between two addresses reliable, over any sequence of
connections.

A connection may break with messages on the way.  The sender keeps each message until it is acknowledged
and sends the others again on the next connection, with the same sequence number and RETRANSMITTED set.
The receiver drops a message with that flag and a number that it has seen.  Numbers continue across
connections, gaps are normal, and congestion maps have no number.

A restarted process counts from 1 while its peer may remember higher numbers.  The peer accepts its
messages without RETRANSMITTED; but if the connection broke at that moment, the retransmission would be
dropped.  So a path begins with a probe, which never carries the flag and declares our instance (GEN_NUM),
and sends nothing that matters until the peer has answered.  The probe is a ping from port 1; on RC from a
port that Linux takes for a socket's.

Linux differs in one point: on the news that the peer has restarted it counts from 1 again and flushes the
messages that await acknowledgement (C{rds_conn_peer_gen_update}).  Here both stay, as the new instance
accepts any number.

Commands: L{PathMachine.send}, C{connected}, C{disconnected}, C{received}, C{acknowledged}, C{tick}; after
each, drain C{nextOutput}.

Source: Linux 6.1 C{net/rds/send.c}, C{recv.c}, C{connection.c}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from twisted_ib.compilation import mypyc_attr
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

#: Pongs queued on one path; further pings are dropped, so that a peer cannot fill our memory with them.
RDS_PONGS = 256
#: How long the peer may take to answer the first probe after acknowledging it, in seconds.
RDS_PROBE_SECONDS = 1.0
#: An RC message asks for an acknowledgement after so many messages, or bytes, that did not (Linux
#: C{net/rds/sysctl.c}: max_unacked_packets, max_unacked_bytes).
RDS_UNACKNOWLEDGED = 8
RDS_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024

_REPEATED: Final = RETRANSMITTED | ACK_REQUIRED


class Outcome(IntEnum):
    """
    The result of L{PathMachine.received}.
    """

    #: Consumed or dropped; there may be new outputs.
    NOTHING = 0
    #: For a socket.
    DELIVER = 1
    #: The peer's congestion map has changed.
    CONGESTION = 2
    #: The peer's RDS instance was restarted.
    RESTARTED = 3


@mypyc_attr(allow_interpreted_subclasses=True)
class RDSMessage:
    """
    A message from C{send} until it is acknowledged.

    @ivar sequence: its number; 0 until one is assigned.
    @ivar flags: header flags.
    @ivar extensions: extension headers, 16 bytes.
    @ivar payload: C{bytes}, or for a bundle a list of C{bytes}.
    @ivar size: the bytes in it.
    @ivar owner: gets C{messageDone(message)} or C{messageDropped(message)}; L{None} for the machine's
        own.
    @ivar once: whether it must not be retransmitted, because it carries an RDMA operation.
    @ivar silent: whether there is an RDMA operation only, and no message (RDS_RDMA_SILENT in Linux
        uapi/linux/rds.h).
    @ivar count: the number of datagrams in it.
    """

    __slots__ = (
        "count",
        "destinationPort",
        "extensions",
        "flags",
        "once",
        "owner",
        "payload",
        "sequence",
        "silent",
        "size",
        "sourcePort",
    )

    def __init__(
        self,
        sourcePort: int,
        destinationPort: int,
        payload: Any = b"",
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
        self.size = len(payload)
        self.owner = owner
        self.once = once
        self.silent = False
        self.count = 1


class PathMachine:
    """
    The reliability state of one path.

    @ivar nextTransmit: sequence number of the next new message.
    @ivar nextReceive: one more than the last sequence number received.
    @ivar waiting: messages to send, retransmissions first.
    @ivar unacknowledged: messages sent, oldest first.
    @ivar peerMap: the peer's congestion map.
    @ivar peerGeneration: the peer's GEN_NUM; 0 if unknown.
    @ivar probePort: the source port of probes.
    @ivar repeated: the number of retransmitted messages.
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
        @param ownMap: the congestion map of our address, shared by all its paths.
        @param generation: our GEN_NUM, not 0.
        @param counters: see L{twisted_ib.rds.paths.network}.
        @param acknowledges: whether messages have to request acknowledgements (RC).
        """
        self.ownMap = ownMap
        self.generation = generation
        self.counters = counters
        self.acknowledges = acknowledges
        self.probePort = RC_PROBE_PORT if acknowledges else PROBE_PORT
        # Linux connection.c (__rds_conn_path_init): the first message is number 1.
        self.nextTransmit = 1
        self.nextReceive = 0
        self.waiting: deque[RDSMessage] = deque()
        self.unacknowledged: deque[RDSMessage] = deque()
        self.peerMap = CongestionMap()
        self.peerGeneration = 0
        self.repeated = 0
        self.isUp = False
        # Pongs to probes that come before our own is answered.  They are not retransmitted: until then the
        # peer may not know our instance, so RETRANSMITTED must not be set.
        self._early: deque[RDSMessage] = deque()
        self.isOpen = False
        self._probe: RDSMessage | None = None
        self._probeEnd: float | None = None
        self._mapVersion = -1
        self._pongs = 0
        # Messages and bytes left until one has to request an acknowledgement.  0 at the start: Linux sets
        # ACK_REQUIRED on the first message of a connection.
        self._asked = self._askedBytes = 0

    # -- commands

    def send(self, message: RDSMessage) -> None:
        """
        Queue a new message.  The caller bounds the queue.
        """
        self.waiting.append(message)
        self.counters["send_queued"] += message.count

    def connected(self, now: float) -> None:
        """
        A new connection is up; nothing was sent on it yet.
        """
        self.isUp = True
        # Linux threads.c (rds_connect_path_complete): each new connection begins with a congestion map.
        self._mapVersion = -1
        self._asked = 0
        self._probe = self._probeEnd = None

    def disconnected(self, now: float) -> list[RDSMessage]:
        """
        The connection was lost: queue the unacknowledged messages for retransmission.

        @return: messages that must not be retransmitted, as they carry an RDMA operation.
        """
        self.isUp = False
        self._early.clear()
        self._probeEnd = None
        dropped = []
        again = self.unacknowledged
        while again:
            message = again.pop()
            # Linux send.c (rds_send_xmit) drops messages with RDMA operations too: nobody knows whether the
            # operation was executed, and a bad rkey would break each new connection again.
            if message.once:
                dropped.append(message)
                continue
            # Linux send.c (rds_send_path_reset) sets both flags and keeps the sequence number.
            message.flags |= _REPEATED
            self.waiting.appendleft(message)
        return dropped

    def received(self, fields: Fields, payload: bytes, now: float) -> Outcome:
        """
        Process a message from the peer.

        @param fields: its header as L{HEADER<twisted_ib.rds.protocol.wire.HEADER>} unpacks it.
        @param payload: the whole payload.
        """
        sequence, _, length, sourcePort, destinationPort, flags, _, _, _, extensions = fields
        if length != len(payload) or length > MESSAGE_BYTES:
            self.counters["recv_bad_length"] += 1
            return Outcome.NOTHING
        # Linux tcp_recv.c and ib_recv.c compare all of h_flags: with another flag set it is no map.
        if flags == CONG_BITMAP:
            return self._mapReceived(length, sourcePort, destinationPort, payload)
        # Linux recv.c (rds_recv_incoming): only a flagged message is a duplicate.  Without the flag a lower
        # number is a restarted peer's, and has to be accepted.
        if flags & RETRANSMITTED and sequence < self.nextReceive:
            self.counters["recv_drop_old_seq"] += 1
            return Outcome.NOTHING
        self.nextReceive = sequence + 1
        if flags & ACK_REQUIRED:
            self.counters["recv_ack_required"] += 1
        # Counted, not refused: a later sender may have extensions that we do not know.
        if extensions != NO_EXTENSIONS and not areExtensionsGood(extensions):
            self.counters["recv_bad_extension"] += 1
        # RC_PROBE_PORT is a bindable port: a pong to it is ours only while our first probe is unanswered.
        if destinationPort > PROBE_PORT and (
            sourcePort != PING_PORT or destinationPort != self.probePort or self.isOpen
        ):
            return Outcome.DELIVER
        return self._serviceReceived(sourcePort, destinationPort, extensions)

    def acknowledged(self, sequence: int) -> list[RDSMessage]:
        """
        The peer has received everything up to a sequence number.  Messages queued for retransmission
        count too, as a peer on RC may report the number when it connects.

        @return: the messages that are done.
        """
        done: list[RDSMessage] = []
        # A number that was never sent: obeying it would free messages that are sent later.
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
        Start the timeout of the first probe, which is not kept and so not covered by L{acknowledged}:
        once it is received, its answer cannot be far.
        """
        probe = self._probe
        if probe is not None and not self.isOpen and self._probeEnd is None:
            if probe.sequence <= sequence < self.nextTransmit:
                self._probeEnd = now + RDS_PROBE_SECONDS

    def deadline(self) -> float | None:
        """
        @return: when C{tick} is due; L{None} for never.
        """
        return self._probeEnd

    def tick(self, now: float) -> None:
        """
        Open the path if the peer has acknowledged the probe but not answered it in time.
        """
        if self._probeEnd is not None and now >= self._probeEnd:
            # Perhaps the peer's ping service is disabled (rds_sysctl_ping_enable in Linux recv.c).
            self._open()

    def drop(self, owner: object, port: int | None = None) -> list[RDSMessage]:
        """
        Drop an owner's messages, as a closing socket does (Linux C{send.c}: C{rds_send_drop_to}).  Those
        on the wire may still arrive.

        @param port: only those to this port; L{None} for all.
        @return: the dropped messages.
        """

        def isMeant(message: RDSMessage) -> bool:
            return message.owner is owner and (port is None or message.destinationPort == port)

        return self.dropAll(isMeant)

    def dropAll(self, isMeant: Callable[[RDSMessage], bool]) -> list[RDSMessage]:
        """
        Drop messages.

        @param isMeant: says of each whether it is meant.
        @return: the dropped messages.
        """
        dropped = [message for message in self.waiting if isMeant(message)]
        if dropped:
            self.waiting = deque([message for message in self.waiting if not isMeant(message)])
        sent = [message for message in self.unacknowledged if isMeant(message)]
        if sent:
            self.unacknowledged = deque([message for message in self.unacknowledged if not isMeant(message)])
        return dropped + sent

    def finished(self, message: RDSMessage) -> bool:
        """
        A silent RDMA operation has completed; no acknowledgement will come for it.

        @return: whether it was still unacknowledged.
        """
        try:
            self.unacknowledged.remove(message)
        except ValueError:
            return False
        return True

    def isIdle(self) -> bool:
        """
        @return: whether nothing is queued or unacknowledged.
        """
        return not self.waiting and not self.unacknowledged

    # -- outputs

    def nextOutput(self) -> RDSMessage | None:
        """
        @return: the next message to send; when the carrier has accepted it, call L{sent}.
        """
        if not self.isUp:
            return None
        # Linux send.c (rds_send_xmit): a pending map goes before the next message.
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
            # On RC the acknowledgement starts the probe's timeout; TCP's comes without asking (tcp_send.c).
            flags = ACK_REQUIRED if self.acknowledges else 0
            return self._numbered(RDSMessage(self.probePort, PING_PORT, extensions=extensions, flags=flags))
        return None

    def _numbered(self, message: RDSMessage) -> RDSMessage:
        # A retransmission keeps its number: it is what the receiver recognises it by.
        if not message.sequence:
            message.sequence = self.nextTransmit
            self.nextTransmit += 1
        # A silent operation has no header to carry the flag.
        if self.acknowledges and not self._asked and not (message.once and message.silent):
            message.flags |= ACK_REQUIRED
        return message

    def sendAtOnce(self, message: RDSMessage) -> bool:
        """
        The fast path of L{send} and L{nextOutput}: admit a message if nothing is queued before it.

        @return: whether it was admitted: then give it to the carrier.  If that refuses it, call
            L{refused}; if it accepts it, and messages have to request acknowledgements, L{sentAtOnce}.
        """
        if self.waiting or not self.isOpen or not self.isUp or self._mapVersion != self.ownMap.version:
            return False
        self.counters["send_queued"] += message.count
        if self.acknowledges:
            self._numbered(message)
        else:
            message.sequence = self.nextTransmit
            self.nextTransmit += 1
        self.unacknowledged.append(message)
        return True

    def sentAtOnce(self, message: RDSMessage) -> None:
        """
        The carrier has accepted the message of L{sendAtOnce}.
        """
        self._asks(message)

    def refused(self, message: RDSMessage) -> None:
        """
        The carrier has not accepted the message of L{sendAtOnce}: queue it.
        """
        self.unacknowledged.pop()
        self.waiting.append(message)

    def _asks(self, message: RDSMessage) -> None:
        if message.flags & ACK_REQUIRED:
            self.counters["send_ack_required"] += 1
            self._asked = RDS_UNACKNOWLEDGED - 1
            self._askedBytes = RDS_UNACKNOWLEDGED_BYTES
        elif self.acknowledges and self._asked:
            self._asked -= 1
            self._askedBytes -= message.size
            if self._askedBytes <= 0:
                self._asked = 0

    def sent(self, message: RDSMessage) -> None:
        """
        The carrier has accepted the message of L{nextOutput}.
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
        # Neither probe nor early pong becomes unacknowledged: neither may be retransmitted.
        elif message.sourcePort == self.probePort:
            self._probe = message
        else:
            self._early.popleft()

    # -- receiving

    def _mapReceived(self, length: int, sourcePort: int, destinationPort: int, payload: bytes) -> Outcome:
        # Linux tcp_recv.c (rds_tcp_cong_recv) ignores a map of another length too.
        if length != MAP_BYTES or sourcePort or destinationPort:
            self.counters["recv_bad_map"] += 1
            return Outcome.NOTHING
        self.counters["cong_update_received"] += 1
        return Outcome.CONGESTION if self.peerMap.replace(payload) else Outcome.NOTHING

    def _serviceReceived(self, sourcePort: int, destinationPort: int, extensions: bytes) -> Outcome:
        if destinationPort:
            if sourcePort != PING_PORT:
                # Port 1 cannot be bound (RDS_FLAG_PROBE_PORT in Linux rds.h).
                self.counters["recv_drop_no_sock"] += 1
                return Outcome.NOTHING
            # A pong to our probe: the peer knows our instance now.
            self._open()
            return self._greeted(extensions)
        if sourcePort == PING_PORT:
            # Linux recv.c ignores a ping from port 0: its pong would be a ping again, for ever.
            self.counters["recv_bad_port"] += 1
            return Outcome.NOTHING
        self.counters["recv_ping"] += 1
        self._pong(sourcePort)
        return self._greeted(extensions) if sourcePort == self.probePort else Outcome.NOTHING

    def _pong(self, port: int) -> None:
        # Linux send.c (rds_send_probe) does not wait for a congested port either.
        if port in self.peerMap:
            self.counters["cong_send_error"] += 1
            return
        isProbe = port == self.probePort
        early = isProbe and not self.isOpen
        if (len(self._early) if early else self._pongs) >= RDS_PONGS:
            self.counters["send_drop_pong"] += 1
            return
        # NPATHS 1: a Linux peer then opens no further paths (rds_start_mprds in recv.c).
        extensions = pathsExtensions(1, self.generation) if isProbe else NO_EXTENSIONS
        message = RDSMessage(PING_PORT, port, extensions=extensions)
        self.counters["send_pong"] += 1
        if early:
            self._early.append(message)
        else:
            self._pongs += 1
            self.waiting.append(message)

    def _open(self) -> None:
        if not self.isOpen:
            self.isOpen = True
            self._probeEnd = None
            # In front: the peer sends nothing that matters until its probe is answered.
            self.waiting.extendleft(reversed(self._early))
            self._pongs += len(self._early)
            self._early.clear()

    def _greeted(self, extensions: bytes) -> Outcome:
        value = parseExtensions(extensions).get(Extension.GEN_NUM)
        generation = 0 if value is None else int.from_bytes(value, "big")
        # Linux recv.c (rds_conn_peer_gen_update): 0 is unknown, and the first number is no restart.
        if not generation or generation == self.peerGeneration:
            return Outcome.NOTHING
        known, self.peerGeneration = self.peerGeneration, generation
        if not known:
            return Outcome.NOTHING
        # The new instance counts from 1; its retransmissions must not look like duplicates.
        self.nextReceive = 0
        self.counters["peer_restarted"] += 1
        return Outcome.RESTARTED
