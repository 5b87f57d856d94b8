"""
One SDP connection without Twisted's faces: bytes out, bytes in, and the end.

A L{Stream} adds to a L{Receiver}, which is a L{Sender<twisted_ib.sdp.sender.Sender>} too, the end
of both directions.  What Twisted calls a transport stands on top of it
(L{twisted_ib.sdp.transport}).

Closing: C{closeWrite} queues the DisConn behind the data; C{detach} ends the
application's part, after which the stream lives on by itself, as a closed
socket does in a kernel, until the peer has answered or has waited too long.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import PathLostError, ResourceLimitError, SDPError
from twisted_ib.sdp.protocol.machine import Action, Input, State
from twisted_ib.sdp.protocol.wire import MID
from twisted_ib.sdp.receiver import END, Receiver
from twisted_ib.sdp.zerocopyreceive import Placed

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel

# Names of this module are looked up faster than those of others.
_NOTHING, _END_OF_STREAM, _END_AND_DISCONNECT = (
    Action.NOTHING,
    Action.END_OF_STREAM,
    Action.END_AND_DISCONNECT,
)
_ESTABLISHED, _CLOSE_WAIT, _DREQ = State.ESTABLISHED, State.CLOSE_WAIT, Input.DREQ


class Stream(Receiver):
    """
    A stream of bytes over one queue pair.

    @ivar connection: The CM's side of this connection.
    """

    __slots__ = ("connection",)

    def __init__(self, channel: DeviceChannel) -> None:
        """
        Begin with nothing received.

        @param channel: The device in its reactor.
        """
        Receiver.__init__(self, channel)
        self.connection: Any = None

    # -- the batch

    def endOfBatch(self) -> None:
        """
        The turn is over: everything gathered leaves.
        """
        if self.buffer is not None:
            self._sync()
            self.room = -1
        self.corked = False
        try:
            self._batchEnded()
        except SDPError as error:
            self.violated(error)

    def _batchEnded(self) -> None:
        """
        Tell what came, and go on.

        @raise SDPError: The peer asks for too much.
        """
        if self.extensions is not None:
            self.extensions.tell()
        if self.held is not None and self.reading:
            self.read()
            if self.queuePair.path is None:
                return  # Who has written or closed meanwhile is dirty again.
        if self.corked:
            return
        if self.queuePair.path is not None:
            self._proceed()
        elif self.attached:
            self._proceedWithout()

    def _proceedWithout(self) -> None:
        """
        The queue pair has ended and the application, which does not read, has
        written or closed: that fails if the peer reset the connection, and is
        in vain if it closed.
        """
        loss = self.held[-1] if self.held else None
        if isinstance(loss, Exception):
            self._broken(loss)
        else:
            self.drained()

    # -- the end

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected (DREQ), or confirmed ours.

        @param connection: of the communication manager.
        """
        try:
            self._act(self.machine.feed(_DREQ))
        except SDPError as error:
            self.violated(error)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.

        @param connection: of the communication manager.
        @param rejection: what the peer said.
        """
        self.peerDisconnected(connection)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.

        @param connection: of the communication manager.
        """
        self.peerDisconnected(connection)

    def _act(self, action: Action) -> None:
        if action is _NOTHING:
            return
        if action is _END_OF_STREAM:
            self._ended()
        elif action is _END_AND_DISCONNECT:
            self._disconnect()
            self._ended()
        elif action == Action.RESET:
            writes = self.buffer is not None or self.queuePair.pending is not None
            writes = writes or self.writing()
            self._closeQueuePair()
            self._resetByPeer(PathLostError("the peer reset the connection"), writes)
        elif action == Action.FINISHED:
            self._closeQueuePair()
        else:
            if action == Action.ABORT_AND_DISCONNECT:
                self._abortMessage()
            self._disconnect()

    def _resetByPeer(self, reason: Exception, writes: bool) -> None:
        """
        The peer has reset the connection.  As with TCP the application hears of
        it behind what it has not read; if it does not read, when it reads again
        or writes, and at once if it is writing.
        """
        if self.attached and self._isPaused() and (self.reading or not writes):
            self._loseLater(reason)
        else:
            self._broken(reason)

    def _loseLater(self, reason: Exception) -> None:
        if self.held is None:
            self.held = deque()
        self.held.append(reason)
        if self.reading:
            self.cork()

    def _ended(self) -> None:
        """
        The end of the stream came; it waits behind bytes not read yet.
        """
        if not self.attached:
            return
        if self.held is None and self.reading:
            self._streamEnded()
        else:
            if self.held is None:
                self.held = deque()
            self.held.append(END)

    def _abortMessage(self) -> None:
        """
        AbortConn, if it can be sent at all; DREQ alone says as much.
        """
        queuePair = self.queuePair
        if queuePair.pending is None and queuePair.path is not None:
            message = self.machine.controlMessage(MID.ABORT_CONN, queuePair.posted)
            if message is not None:
                queuePair.postInline(message, b"", 0)

    def _disconnect(self) -> None:
        """
        Tell the CM to disconnect; nothing more is sent or taken.
        """
        connection = self.connection
        self._closeQueuePair()
        if connection is not None:
            self.channel.device.disconnect(connection)

    def _closeQueuePair(self) -> None:
        self.discard()
        self.owes = None
        self.ending = False
        self.queuePair.close()
        if self.extensions is not None:
            self.extensions.close()
        self.channel.closed(self)

    def reset(self) -> None:
        """
        End the connection so that the peer sees it as lost.
        """
        self.discard()
        self._release()
        self._act(self.machine.feed(Input.ABORT))
        self._closeQueuePair()

    def violated(self, error: Exception) -> None:
        """
        The peer broke the protocol: reset, and count it.

        @param error: what it did.
        """
        self.channel.device.count("sdp_protocol_errors")
        self.reset()
        self._broken(error)

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.

        @param reason: what happened.
        """
        writes = self.buffer is not None or self.queuePair.pending is not None or self.writing()
        if isinstance(reason, PathLostError):
            self.machine.state = State.CLOSED
            self._closeQueuePair()
        else:
            self.reset()
        if self.held and (self.reading or (END in self.held and not writes)):
            # What was published is valid, the peer's DisConn above all.
            self._loseLater(reason)
        else:
            self._broken(reason)

    def budgetExceeded(self) -> None:
        """
        This connection holds most of what there is no more memory for.
        """
        self.reset()
        self._broken(ResourceLimitError("too many bytes wait for a paused reader"))

    def _broken(self, reason: Exception) -> None:
        """
        Tell the application, if there is one, that the connection is lost.
        """
        self._release()
        if self.attached:
            self.lost(reason)

    def detach(self) -> None:
        """
        The application's part is over: finish with the peer alone.

        What it wrote still leaves.  If it did not read all, the connection is
        reset, as TCP does it.
        """
        self.attached = False
        self.reading = False
        unread = self.heldBytes > 0
        if self.held and any(isinstance(what, Placed) and what.count for what in self.held):
            unread = True
        if self.extensions is not None and self.extensions.inUse():
            unread = True
        self._release()
        state = self.machine.state
        if self.queuePair.path is None:
            return
        if unread:
            self.reset()
        else:
            if state is _ESTABLISHED or state is _CLOSE_WAIT:
                self.closeWrite()
            self.channel.closing(self)

    def destroy(self) -> None:
        """
        The handshake failed: destroy the queue pair.
        """
        self.queuePair.close()
