"""
The path between two addresses: its state machine, its current connection, and the pauses between
connection attempts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from twisted_ib.errors import PeerGoneError
from twisted_ib.rds.protocol.bundle import Bundle
from twisted_ib.rds.protocol.machine import Outcome, PathMachine, RDSMessage
from twisted_ib.rds.protocol.wire import PROBE_PORT, Fields

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.hca.base.interfaces import Search
    from twisted_ib.rds.paths.carrier import IRDSCarrier, IRDSMedium, Pending
    from twisted_ib.rds.paths.network import Network

#: Pauses between connection attempts, in seconds: they double from the first to the second (Linux
#: net/rds/sysctl.c: reconnect_min_delay_ms, reconnect_max_delay_ms).
RDS_RECONNECT_SECONDS = 0.001
RDS_RECONNECT_SECONDS_MOST = 1.0
#: The shortest pause where the peer has to connect and is only reminded.
RDS_NUDGE_SECONDS = 0.2
#: A peer that is unreachable for so long is reported as gone, in seconds.
RDS_GONE_SECONDS = 10.0
#: The interval of keepalives while all messages for the peer are held back, in seconds.
RDS_HELD_SECONDS = 10.0

_log = Logger()


class RDSPath:
    """
    A path from one of our addresses to a peer's, and back.

    @ivar local: our address, as text.
    @ivar remote: the peer's.
    @ivar key: its key in the medium.
    @ivar machine: its L{PathMachine}.
    @ivar carrier: the connection, or L{None}.
    @ivar held: the number of destinations whose messages are held back, as the peer's port is congested.
    @ivar closed: whether it was forgotten.
    @ivar bundles: whether the peer understands bundles (L{twisted_ib.rds.protocol.bundle}).
    @ivar bundle: the one being filled, or L{None}.
    @ivar pending: what other processes of our address have to take before it is acknowledged, or L{None}.
    @ivar pause: the next pause between connection attempts, in seconds.
    @ivar since: when the connection was first missed, in seconds; L{None} if it is not.
    """

    carrier: IRDSCarrier | None = None
    closed = False
    held = 0
    since: float | None = None
    bundle: Bundle | None = None
    pending: Pending | None = None

    _attempt: Search | None = None
    _retry: IDelayedCall | None = None
    _tick: IDelayedCall | None = None
    _watch: IDelayedCall | None = None
    pause = 0.0
    _told = False
    _pumping = False
    #: Whether the carrier is full; it calls C{resume}.
    _full = False

    def __init__(self, network: Network, medium: IRDSMedium, key: Any, local: str, remote: str) -> None:
        self.network = network
        self.medium = medium
        self.key = key
        self.local = local
        self.remote = remote
        self.machine = PathMachine(
            network.mapOf(local), network.generation, network.counters, medium.acknowledges
        )
        self.bundles: bool = medium.sharesAddresses
        self._blockers: set[Any] = set()

    def __repr__(self) -> str:
        state = "down" if self.carrier is None else "up"
        return f"<{type(self).__name__} {self.local} to {self.remote} ({state})>"

    # -- for sockets

    def isCongested(self, port: int) -> bool:
        """
        @return: whether a port of the peer is congested.
        """
        peerMap = self.machine.peerMap
        return peerMap.marked and port in peerMap

    def send(self, message: RDSMessage) -> None:
        """
        Send a message, now or when there is a connection.
        """
        # The bundle was written before.
        if self.bundle is not None:
            self.closeBundle()
        machine, carrier = self.machine, self.carrier
        if carrier is None:
            machine.send(message)
            self._want()
        # The slow path keeps the order: something is queued before the message, or is being sent right now.
        elif self._full or self._pumping or not machine.sendAtOnce(message):
            machine.send(message)
            self._pump()
        elif not carrier.send(message):
            machine.refused(message)
            self._full = True
            carrier.flush()
        # Bundling carriers hold nothing back, and their messages request no acknowledgements.
        elif not self.bundles:
            if machine.acknowledges:
                machine.sentAtOnce(message)
            carrier.flush()

    def gathers(self) -> bool:
        """
        @return: whether small datagrams may be bundled at the end of the turn.
        """
        # Where bundles are understood, they are L{IRDSBundlingCarrier}s.
        carrier: Any = self.carrier
        return self.bundles and carrier is not None and carrier.gathers()

    def openBundle(self, socket: Any, address: object, port: int) -> Bundle:
        """
        Open a bundle, after L{gathers} was true.

        @param port: the receiving socket's.
        """
        if self.bundle is not None:
            self.closeBundle()
        self.bundle = bundle = Bundle(self, socket, address, port)
        carrier: Any = self.carrier
        carrier.bundleOpened()
        return bundle

    def closeBundle(self) -> None:
        """
        Send the open bundle, if any.
        """
        bundle = self.bundle
        if bundle is not None:
            self.bundle = None
            self.send(bundle.socket.bundleClosed(bundle))

    def hold(self) -> None:
        """
        A socket waits for the peer's congestion map to change: keep the path connected.
        """
        self.held += 1
        if self.carrier is None:
            # Without a connection no map can arrive that clears the port.
            self._want()
        if self._watch is None and self.medium.acknowledges:
            self._watch = self.network.reactor.callLater(RDS_HELD_SECONDS, self._watched)

    def release(self) -> None:
        """
        A socket waits no more.
        """
        self.held -= 1
        if not self.held:
            self._stopWatching()

    def _watched(self) -> None:
        self._watch = self.network.reactor.callLater(RDS_HELD_SECONDS, self._watched)
        # An RC queue pair notices a dead peer only by unanswered requests (IBTA vol. 1 9.9.2.1.1), and
        # everything for this peer is held back.  A message to the probe port disturbs no socket.
        if self.carrier is not None and self.machine.isIdle():
            self.send(RDSMessage(self.machine.probePort, PROBE_PORT))

    def _stopWatching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def messages(self) -> Iterator[RDSMessage]:
        """
        @return: the queued and the unacknowledged messages.
        """
        return chain(self.machine.unacknowledged, self.machine.waiting)

    def drop(self, owner: object, port: int | None = None) -> list[RDSMessage]:
        """
        Drop an owner's messages.

        @param port: only those to this port; L{None} for all.
        @return: the dropped messages.
        """
        self.closeBundle()
        return self.machine.drop(owner, port)

    def mapChanged(self) -> None:
        """
        Our address's congestion map has changed: send it, if connected.
        """
        if self.carrier is not None:
            self._pump()

    def block(self, socket: Any) -> None:
        """
        A socket has no memory left: stop reading from the peer.
        """
        # Only the last resort: this stops all sockets of the two addresses.  Congestion maps come long
        # before.
        if not self._blockers and self.carrier is not None:
            self.carrier.pauseReading()
        self._blockers.add(socket)

    def isFull(self) -> bool:
        """
        @return: whether a blocked socket has no memory even for what is on the way when a connection
            ends.
        """
        return any(socket.isFull() for socket in self._blockers)

    def unblock(self, socket: Any) -> None:
        """
        The socket has memory again.
        """
        if socket in self._blockers:
            self._blockers.discard(socket)
            if not self._blockers and self.carrier is not None:
                self.carrier.resumeReading()

    # -- connecting

    def needed(self) -> bool:
        """
        @return: whether a connection is needed.
        """
        return bool(self.machine.waiting) or not self.machine.isIdle() or self.held > 0

    def _want(self) -> None:
        now = self.network.reactor.seconds()
        if self.since is None:
            self.since = now
        if self._attempt is None and self._retry is None and not self.closed and not self.network.dormant:
            self._connect()

    def connectNow(self) -> None:
        """
        Start connecting in the next turn: the peer asks for it.
        """
        if self.carrier is None and self._attempt is None and not self.network.dormant and not self.closed:
            self._schedule(0.0)

    def _schedule(self, pause: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self.network.reactor.callLater(pause, self._connect)

    def _connect(self) -> None:
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._retry = None
        self._attempt = self.medium.connect(self)

    def _stopTrying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()

    def _again(self) -> None:
        network = self.network
        if network.dormant or self.closed:
            return
        now = network.reactor.seconds()
        if self.since is None:
            self.since = now
        # The peer is reported as gone, but tried for ever while something waits: RDS gives up only on
        # cancel or close.
        gone = now - self.since >= RDS_GONE_SECONDS
        own = self.medium.reconnects(self)
        if not self.needed():
            if gone or not own:
                self.since = None
                return
        elif gone and not self._told:
            self._told = True
            network.peerGone(self, PeerGoneError(f"{self.remote} cannot be reached"))
        pause = self.pause
        self.pause = min(max(pause * 2, RDS_RECONNECT_SECONDS), RDS_RECONNECT_SECONDS_MOST)
        # At random, or two ends that connect at once would do so for ever (Linux threads.c,
        # rds_queue_reconnect).
        pause *= network.random()
        # A peer that has to connect itself needs time to do so.
        self._schedule(pause if own else max(pause, RDS_NUDGE_SECONDS))

    # -- from the carrier

    def carrierFailed(self, reason: Exception) -> None:
        """
        The attempt of C{medium.connect} failed.
        """
        self._attempt = None
        if self.carrier is None:
            self._again()

    def carrierUp(self, carrier: IRDSCarrier, sequence: int = 0) -> None:
        """
        A connection is up.  The path closes its previous carrier: the new one replaces it.

        @param sequence: the last number that the peer had received, if it was given at connecting; else
            0.
        """
        if self.carrier is not None:
            # The peer will not send again the data that the old connection still holds: it was acknowledged.
            self.carrier.drain()
        self._stopTrying()
        if self.carrier is not None:
            old, self.carrier = self.carrier, None
            old.close()
            self._down()
        self.carrier = carrier
        self._full = False
        self.since = None
        self._told = False
        self.machine.connected(self.network.reactor.seconds())
        if self._blockers:
            carrier.pauseReading()
        # Linux ib_cm.c processes the number in REQ or REP like an acknowledgement.  Before the first probe
        # is answered it may be about an earlier instance of ours.
        if sequence and self.machine.isOpen:
            self.acknowledged(carrier, sequence)
        # An owner's callback may have closed the path.
        if self.carrier is carrier:
            self._pump()

    def lost(self, carrier: IRDSCarrier, reason: Exception) -> None:
        """
        The connection was lost.
        """
        if carrier is not self.carrier:
            return
        self.carrier = None
        self._down()
        self.network.counters["conn_reset"] += 1
        self._again()

    def _down(self) -> None:
        for message in self.machine.disconnected(self.network.reactor.seconds()):
            if message.owner is not None:
                message.owner.messageDropped(message)
        # The open bundle is queued like any message: it was never sent, so it needs no RETRANSMITTED.
        bundle = self.bundle
        if bundle is not None:
            self.bundle = None
            self.machine.send(bundle.socket.bundleClosed(bundle))
        self._armTick()

    def resume(self, carrier: IRDSCarrier) -> None:
        """
        There is room again after C{send} had none.
        """
        if carrier is self.carrier:
            self._full = False
            self._pump()

    def acknowledged(self, carrier: IRDSCarrier, sequence: int) -> None:
        """
        The peer has received everything up to a sequence number.
        """
        if carrier is not self.carrier:
            return
        machine = self.machine
        for message in machine.acknowledged(sequence):
            if message.owner is not None:
                message.owner.messageDone(message)
        if not machine.isOpen:
            machine.probeAcknowledged(sequence, self.network.reactor.seconds())
            self._armTick()

    def operationDone(self, carrier: IRDSCarrier, message: RDSMessage) -> None:
        """
        A silent RDMA operation, one without a message, has completed.
        """
        if self.machine.finished(message):
            message.owner.messageDone(message)

    def messageReceived(self, carrier: IRDSCarrier, fields: Fields, payload: bytes) -> None:
        """
        A whole message was received.

        @param fields: its header as L{HEADER<twisted_ib.rds.protocol.wire.HEADER>} unpacks it; the
            carrier has verified the checksum, if its kind has one.
        @param payload: C{bytes}, of the length in the header.
        """
        # A replaced connection: its messages are retransmitted on the new one.
        if carrier is not self.carrier:
            return
        machine = self.machine
        # A connection that carries messages is good: the next loss begins with short pauses again.
        self.pause = 0.0
        outcome = machine.received(fields, payload, 0.0)
        if outcome is Outcome.DELIVER:
            self.network.deliver(self, fields, payload)
            return
        if outcome is Outcome.CONGESTION:
            # The bundle was written while the port was not congested.
            self.closeBundle()
            self.network.congestionChanged(self)
        elif outcome is Outcome.RESTARTED:
            _log.info("RDS on {host} was restarted", host=self.remote)
            # Its numbers begin again.
            self.pending = None
        if self.carrier is not None:
            self._pump()

    # -- sending

    def _pump(self) -> None:
        # Callbacks from here may send more, which the loop picks up.
        if self._pumping or self._full:
            return
        machine, carrier = self.machine, self.carrier
        assert carrier is not None
        self._pumping = True
        try:
            while True:
                message = machine.nextOutput()
                if message is None:
                    self.network.counters["send_queue_empty"] += 1
                    break
                if not carrier.send(message):
                    self._full = True
                    break
                machine.sent(message)
            carrier.flush()
        finally:
            self._pumping = False

    def _armTick(self) -> None:
        deadline = self.machine.deadline()
        if deadline is None:
            if self._tick is not None:
                self._tick.cancel()
                self._tick = None
        elif self._tick is None:
            reactor = self.network.reactor
            self._tick = reactor.callLater(max(0.0, deadline - reactor.seconds()), self._ticked)

    def _ticked(self) -> None:
        self._tick = None
        self.machine.tick(self.network.reactor.seconds())
        self._armTick()
        if self.carrier is not None:
            self._pump()

    # -- closing

    def close(self) -> None:
        """
        Close the connection and stop connecting.  The sequence numbers stay, for sockets that are opened
        later.
        """
        self._stopTrying()
        self._stopWatching()
        self.since = None
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.close()
            self._down()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
