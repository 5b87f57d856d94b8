"""
One path of RDS on a queue pair.

L{twisted_ib.rds.media.rcconnection} documents the messages on the queue pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zope.interface import classImplements

from twisted_ib.rds.paths.carrier import IRDSBundlingCarrier
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import HEADER, NO_EXTENSIONS, NO_PADDING, packChecksummed

if TYPE_CHECKING:
    from twisted_ib.rds.media.rcconnection import RCConnection
    from twisted_ib.rds.paths.path import RDSPath

_pack: Final = HEADER.pack


class RCCarrier:
    """
    One path on a queue pair.

    @ivar session: the queue pair.
    @ivar path: the path; L{None} when the carrier has ended.
    @ivar padding: the padding of our headers: the index that we announced for the path.
    @ivar received: the sequence number of the last message received.
    @ivar owing: how much was received since our last acknowledgement, see C{DUE}; 0 if nothing.
    @ivar acknowledged: the last acknowledgement received.

    See L{IRDSCarrier<twisted_ib.rds.paths.carrier.IRDSCarrier>}.
    """

    __slots__ = ("acknowledged", "owing", "padding", "path", "paused", "received", "session")

    def __init__(self, session: RCConnection, path: RDSPath, index: int) -> None:
        self.session = session
        self.path: RDSPath | None = path
        self.padding = index.to_bytes(4, "big")
        self.received = self.acknowledged = 0
        self.owing = 0
        self.paused = False

    # -- IRDSCarrier

    def send(self, message: RDSMessage) -> bool:
        session = self.session
        if session.stuck or session.peerPaused or session.backlog:
            session.wanting[self] = None
            return False
        if message.once:
            # Linux send.c (rds_send_xmit): the operation is posted before its message, so that the memory
            # is complete when the message is delivered.
            if not session.postOperation(self, message):
                session.wanting[self] = None
                return False
            if message.silent:
                return True
        payload = message.payload
        length = message.size
        path = self.path
        # As confirmed(), whose call each message would pay.
        confirmed = self.received if path is None or path.pending is None else self.confirmed()
        # The header acknowledges too, as Linux ib_send.c piggybacks it (rds_ib_piggyb_ack).
        self.owing = 0
        if session.shared:
            header = _pack(
                message.sequence,
                confirmed,
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
        # Linux ib_recv.c drops the connection if the checksum of a header is wrong (rds_ib_process_recv).
        # h_credit is 0: Linux 6.1 never enables flow control (ib_sysctl.c), and posted receives do the
        # same.
        header = packChecksummed(
            message.sequence,
            confirmed,
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
        session = self.session
        if not session.shared or session.loss is not None:
            return False
        if session.stuck or session.peerPaused or session.backlog:
            session.cork()
        return session.batch == session.channel.device.batch

    def bundleOpened(self) -> None:
        self.session.bundling[self] = None
        self.session.cork()

    def flush(self) -> None:
        pass  # Nothing is held back.

    def pauseReading(self) -> None:
        if not self.paused:
            self.paused = True
            self.session.pause(1)

    def resumeReading(self) -> None:
        if self.paused:
            self.paused = False
            self.session.pause(-1)

    def drain(self) -> None:
        pass  # Messages are given to the path as they arrive.

    def close(self) -> None:
        session = self.session
        self.received = self.confirmed()
        self.path = None
        if session.isUp and session.loss is None:
            # The last acknowledgement saves the peer a retransmission.
            self.acknowledge()
            session.flushGathered()
        self.resumeReading()
        session.carrierClosed(self)

    # -- acknowledgements

    def confirmed(self) -> int:
        """
        @return: the number to acknowledge: the last that has come, or that others have of what is handed on.
        """
        path = self.path
        pending = None if path is None else path.pending
        return self.received if pending is None else pending.confirmed(self.received)

    def owe(self) -> None:
        """
        More can be acknowledged than was.
        """
        self.session.owe(self)

    def acknowledge(self) -> None:
        """
        Send an ack-only frame if an acknowledgement is pending.
        """
        if self.owing:
            self.owing = 0
            session = self.session
            # Linux ib_recv.c recognises it by ports and length 0.
            fields = (0, self.confirmed(), 0, 0, 0, 0, 0, self.padding, 0, NO_EXTENSIONS)
            if session.shared:
                session.gather(_pack(*fields), b"", 0)
            else:
                session.post(packChecksummed(*fields), b"", 0)


classImplements(RCCarrier, IRDSBundlingCarrier)
