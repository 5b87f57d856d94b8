"""
One path of RDS on a queue pair.

What is on the queue pair is in L{twisted_ib.rds.media.rcconnection}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib.rds.paths.carrier import IRDSBundlingCarrier
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import HEADER, NO_EXTENSIONS, NO_PADDING, packChecksummed

if TYPE_CHECKING:
    from twisted_ib.rds.media.rcconnection import RCConnection
    from twisted_ib.rds.paths.path import RDSPath

_pack = HEADER.pack


@implementer(IRDSBundlingCarrier)
class RCCarrier:
    """
    One path on a queue pair.

    @ivar session: the queue pair.
    @ivar path: the path; L{None} when the carrier has ended.
    @ivar padding: what our headers have there, the index that we have announced.
    @ivar received: the sequence number of the last message.
    @ivar owing: how much the acknowledgement is due that the peer gets: 0 if it is not.
    @ivar acknowledged: the last acknowledgement that came.
    """

    __slots__ = ("acknowledged", "owing", "padding", "path", "paused", "received", "session")

    def __init__(self, session: RCConnection, path: RDSPath, index: int) -> None:
        """
        @param index: ours for the path.
        """
        self.session = session
        self.path: Any = path
        self.padding = index.to_bytes(4, "big")
        self.received = self.acknowledged = 0
        self.owing = 0
        self.paused = False

    # -- IRDSCarrier

    def send(self, message: RDSMessage) -> bool:
        """
        See L{IRDSCarrier.send}.
        """
        session = self.session
        if session.stuck or session.peerPaused or session.backlog:
            session.wanting[self] = None
            return False
        if message.once:
            if not session.postOperation(self, message):
                session.wanting[self] = None
                return False
            if message.silent:
                return True
        payload = message.payload
        length = len(payload)
        self.owing = 0
        if session.shared:
            header = _pack(
                message.sequence,
                self.received,
                length,
                message.sourcePort,
                message.destinationPort,
                message.flags,
                0,
                self.padding,
                0,
                message.extensions,
            )
            session.gather(header, payload, length)
            return True
        header = packChecksummed(
            message.sequence,
            self.received,
            length,
            message.sourcePort,
            message.destinationPort,
            message.flags,
            0,
            NO_PADDING,
            0,
            message.extensions,
        )
        if length <= session.fragment:
            session.post(header, payload, length)
        else:
            session.postFragments(header, payload)
        return True

    def gathers(self) -> bool:
        """
        @return: whether what is sent now would leave at the end of the turn, or wait.
        """
        session = self.session
        if not session.shared or session.loss is not None:
            return False
        if session.stuck or session.peerPaused or session.backlog:
            session.cork()
        return session.corked

    def bundleOpened(self) -> None:
        """
        The path has something for the end of the turn.
        """
        self.session.bundling[self] = None

    def flush(self) -> None:
        """
        See L{IRDSCarrier.flush}: nothing is held back.
        """

    def pauseReading(self) -> None:
        """
        See L{IRDSCarrier.pauseReading}.
        """
        if not self.paused:
            self.paused = True
            self.session.pause(1)

    def resumeReading(self) -> None:
        """
        See L{IRDSCarrier.resumeReading}.
        """
        if self.paused:
            self.paused = False
            self.session.pause(-1)

    def drain(self) -> None:
        """
        See L{IRDSCarrier.drain}: whatever came was given to the path when it came.
        """

    def close(self) -> None:
        """
        See L{IRDSCarrier.close}.
        """
        session = self.session
        self.path = None
        if session.isUp and session.loss is None:
            self.acknowledge()
            session.flushGathered()
        self.resumeReading()
        session.carrierClosed(self)

    # -- what comes

    def acknowledge(self) -> None:
        """
        Send an ack frame, unless something else has said as much.
        """
        if self.owing:
            self.owing = 0
            session = self.session
            fields = (0, self.received, 0, 0, 0, 0, 0, self.padding, 0, NO_EXTENSIONS)
            if session.shared:
                session.gather(_pack(*fields), b"", 0)
            else:
                session.post(packChecksummed(*fields), b"", 0)
