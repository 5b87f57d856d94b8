"""
The move of a connection of blocking sockets, which gains nothing over SDP, to the kernel's TCP, between
processes of one user::

    the end that asks, which has connected           the end that is asked, which has accepted
    a descriptor, beside the path              ->
    SuspComm                                   ->    sends by TCP from now on
                                               <-    SuspCommAck
    sends and receives by TCP
    DisConn, behind what it had sent before    ->    receives by TCP

TCP's connection is one between two sockets that the first end has made; each takes the place of its end's own
at the descriptor.  So no byte overtakes another one: what is behind the mark of a direction comes by TCP.  An
end that cannot move refuses: it resets what it is given, and all stays as it is.

An end whose descriptor another process is about to be given asks, too, also one that has accepted, if it
blocks.  All that it has not read yet it sends to itself by TCP before.  If both ask, the one that has
connected drops its question.  One that is asked, and has octets which are not read, asks in its turn before
it refuses.  A peer that has shut down, and sends nothing more over SDP, answers by the end of TCP's other
direction.

SDP calls the question and the answer to suspend (L{SDPTransport.suspend
<twisted_ib.sdp.transport.SDPTransport.suspend>}); the path hands the descriptor over.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import socket as kernel
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted_ib.blocking import descriptors
from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.descriptors import pollerOf
from twisted_ib.drive.process import monotonic
from twisted_ib.hca.base.machine import Machine, ignored, listed
from twisted_ib.hca.host.fdpassing import LINGER_RESET, PAIR_SECONDS, pairOfTCP, refuse, takesAll, takeTCP
from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer, asOverSDP

if TYPE_CHECKING:
    from twisted_ib.blocking.socket import socket

    _Stream = RedirectedClient | RedirectedServer
    # Called with the socket once that has moved.
    _Moved = Callable[[socket], object]

#: Options that programs set, which go with a connection.
_OPTIONS: Final = (
    *((kernel.SOL_SOCKET, each) for each in (kernel.SO_KEEPALIVE, kernel.SO_LINGER)),
    *((kernel.IPPROTO_TCP, each) for each in (kernel.TCP_KEEPIDLE, kernel.TCP_KEEPINTVL, kernel.TCP_KEEPCNT)),
    (kernel.IPPROTO_TCP, kernel.TCP_USER_TIMEOUT),
)
#: Descriptors of a process, at most, that are asked whether they are the same.
_DESCRIPTORS: Final = 1024
#: How long a peer is waited for that was asked, and is busy.
ANSWER_SECONDS: Final = 1.0
#: And for its first octets: most clients speak first.
FIRST_SECONDS: Final = 0.02
_Plain: Final = _socket.socket
_dup2, _fstat = os.dup2, os.fstat


class State(Enum):
    """
    How far the move of a connection is, at one of its ends.
    """

    #: One end has asked the other; this one sends and receives over SDP.
    ASKED = auto()
    #: The same, and a call has waited for the answer in vain: none waits again, as a server may stand still.
    OVERDUE = auto()
    #: It stays with SDP.
    REFUSED = auto()
    #: At the end that has asked: the peer sends by TCP, and this end is to do so as soon as it can.
    ANSWERED = auto()
    #: This end sends by TCP; what the peer has sent before still arrives over SDP.
    SENDING = auto()
    #: Nothing more arrives over SDP: this end also receives by TCP, behind what is in the inbox.
    MOVED = auto()


class Input(Enum):
    """
    An event that changes it.
    """

    #: A call has waited for the answer in vain.
    WAITED = auto()
    #: One of the ends stays with SDP.
    REFUSE = auto()
    #: The peer sends by TCP: SuspCommAck has come.
    ANSWER = auto()
    #: A socket of TCP has taken the place at the descriptor.
    REPLACE = auto()
    #: Nothing more arrives over SDP.
    END = auto()


#: What is not listed changes nothing.
MOVES: Final = Machine[State, Input, "State | None"](
    listed(
        {
            State.ASKED: {
                Input.WAITED: State.OVERDUE,
                Input.REFUSE: State.REFUSED,
                Input.ANSWER: State.ANSWERED,
                Input.REPLACE: State.SENDING,
            },
            State.OVERDUE: {
                Input.REFUSE: State.REFUSED,
                Input.ANSWER: State.ANSWERED,
                Input.REPLACE: State.SENDING,
            },
            # The peer has answered what this end has closed: it is reset.
            State.REFUSED: {Input.ANSWER: State.ANSWERED},
            State.ANSWERED: {Input.REPLACE: State.SENDING},
            State.SENDING: {Input.END: State.MOVED},
        }
    ),
    unlisted=ignored,
)


class Move:
    """
    The move of one connection, at one of its ends, from the question on.

    @ivar connection: The connection.
    @ivar state: How far it is.
    @ivar mine: This end of TCP, until it has the place of SDP's, or is refused; then L{None}.
    """

    def __init__(self, connection: Connection, mine: _socket.socket, moved: _Moved) -> None:
        self.connection = connection
        self.mine: _socket.socket | None = mine
        self.moved = moved
        self.state = State.ASKED

    def feed(self, given: Input) -> None:
        """
        Change the state.
        """
        self.state = MOVES[self.state, given] or self.state

    def sends(self) -> bool:
        """
        Return whether the kernel carries what is sent from now on, at the connection's descriptor.
        """
        return self.state in (State.SENDING, State.MOVED)

    def receives(self) -> bool:
        """
        Return whether the kernel has all that is to be received behind the connection's inbox, too.
        """
        return self.state is State.MOVED

    # -- until it sends

    def answered(self) -> bool:
        """
        The peer sends by TCP from now on (SuspCommAck).

        @return: Whether it was asked to, and has not answered before.
        """
        return False

    def look(self) -> None:
        """
        Close this end of TCP if the peer has refused: it has reset it.  One that sends no more over SDP ends
        it if it moves.
        """
        if self.mine is not None:
            for _, events in pollerOf([(self.mine.fileno(), select.POLLRDHUP)]).poll(0):
                if events & select.POLLERR:
                    self.drop()
                elif self.connection.peerEnded:
                    self.answered()

    def drop(self) -> None:
        """
        The connection does not move: close this end of TCP, if it is not used yet.
        """
        mine, self.mine = self.mine, None
        if mine is not None:
            self.feed(Input.REFUSE)
            self._close(mine)

    def _close(self, mine: _socket.socket) -> None:
        mine.close()

    def awaitAnswer(self) -> bool:
        """
        See L{Connection.awaitMove<twisted_ib.blocking.connection.Connection.awaitMove>}.
        """
        connection = self.connection
        if not self._isOver():
            with connection.loop:
                # For its end alone: one that refuses resets it.
                mine = None if self.mine is None else pollerOf([(self.mine.fileno(), select.POLLRDHUP)])
                end = monotonic() + ANSWER_SECONDS
                connection.loop.wait(self._isOver, end, mine)
                self.look()
                if self.state is State.REFUSED:
                    # The peer's own question, if it has one, has come before.
                    connection.loop.poll()
                # The end of TCP, which is the answer of one that has shut down, overtakes that of SDP.
                connection.loop.wait(lambda: connection.peerEnded or self._isOver(), end)
                self.look()
                # Its octets from before that are on their way.
                connection.loop.wait(self._isOver, end)
                self.feed(Input.WAITED)
                # The end over SDP: nobody may drive the loop after this.
                connection.loop.changed()
        return self.receives() and not connection.inbox.size

    def _isOver(self) -> bool:
        if self.state is State.SENDING:
            # Only who has all of it can give it.
            return self.connection.over or not self.connection.isGiven
        return self.state not in (State.ASKED, State.ANSWERED) or self.connection.over

    def shutdown(self) -> None:
        """
        This end sends no more.
        """

    # -- from then on

    def _replace(self, ended: int | None = None) -> socket:
        # Put this end of TCP into the place of the socket of SDP, which sends by it from now on, but for the
        # direction that has ended; and return that socket.
        connection, plain, self.mine = self.connection, self.mine, None
        assert plain is not None
        number = connection.descriptor
        skt, it = descriptors.offloaded[number], descriptors.byDescriptor[number]
        for level, option in _OPTIONS:
            with suppress(OSError):
                plain.setsockopt(level, option, _Plain.getsockopt(skt, level, option, 8))
        asOverSDP(plain)
        plain.setblocking(os.get_blocking(number))
        _dup2(plain.fileno(), number, os.get_inheritable(number))
        if ended is not None:
            # The peer may have reset it meanwhile, which the next call says.
            with suppress(OSError):
                plain.shutdown(ended)
        plain.close()
        del descriptors.Offloaded.parts[it.inode]
        it.inode = connection.inode = _fstat(number).st_ino
        descriptors.Offloaded.parts[it.inode] = connection
        connection.isTrapped, connection.isShut = False, True
        self.feed(Input.REPLACE)
        return skt

    def peerEnded(self) -> bool:
        """
        The peer sends no more over SDP.

        @return: Whether it does by TCP.
        """
        if self.sends():
            self._end()
            return True
        # Its answer says so, too.
        return self.state is State.ANSWERED

    def _end(self) -> None:
        self.connection.ended = True
        self.feed(Input.END)
        self.settle()

    def settle(self) -> None:
        """
        Nothing more arrives over SDP; once all of that is read, the socket is the kernel's.
        """
        connection = self.connection
        if connection.stream is not None:
            # At once, as both are quiet: nobody may drive the loop after this.
            self._letGo().endNow()
        # Duplicates may have been made since.
        its = [each for each in tuple(descriptors.byDescriptor.values()) if each.part is connection]
        sockets = [descriptors.offloaded.get(each.descriptor) for each in its]
        if connection.inbox.size or None in sockets:
            # One that was detached has a socket later.
            return
        number = connection.descriptor
        for it, skt in zip(its, sockets, strict=True):
            descriptors.returning.add(it.descriptor)
            try:
                descriptors.close(it)
                if skt is not None:
                    skt.moved(connection)
            finally:
                descriptors.returning.discard(it.descriptor)
        connection.descriptor = number
        descriptors.Offloaded.parts.pop(connection.inode, None)

    def _letGo(self) -> _Stream:
        # The end over SDP is that of a connection which nobody has.
        stream, left = self.connection.owned(), Connection(self.connection.loop)
        stream.protocol = left
        self.connection.stream, left.sockets, left.refuses = None, 0, True
        return stream

    def closing(self, skt: socket) -> None:
        """
        A socket is about to close the connection: as over TCP, that is a reset if bytes are unread.
        """
        if self.sends() and self.connection.inbox.size and self.connection.sockets == 1:
            _Plain.setsockopt(skt, kernel.SOL_SOCKET, kernel.SO_LINGER, LINGER_RESET)


class Asking(Move):
    """
    The move at the end that asks.
    """

    def __init__(self, connection: Connection, mine: _socket.socket, moved: _Moved, ahead: bytes) -> None:
        """
        @param ahead: Octets of the inbox, its first, that this end of TCP has already.
        """
        super().__init__(connection, mine, moved)
        self._ahead = ahead
        #: The peer's question meanwhile: this end of its TCP, and what takes it.
        self.later: tuple[int, Callable[[], bool]] | None = None

    def drop(self) -> None:
        super().drop()
        self._endLater()

    def _end(self) -> None:
        super()._end()
        self._endLater()

    def _endLater(self) -> None:
        later, self.later = self.later, None
        if later is not None and not (self.state is State.REFUSED and later[1]()):
            refuse(later[0])

    def answered(self) -> bool:
        before = self.state
        self.feed(Input.ANSWER)
        if self.state is before:
            return False
        if self.connection.stream is not None:
            self.connection.stream.whenQuiet(self._mayMove, self._decided)
        return True

    def shutdown(self) -> None:
        try:
            if self.mine is not None:
                # The peer has the end there, if it moves before this end does.
                self.mine.shutdown(kernel.SHUT_WR)
        except OSError:
            # It has refused.
            self.drop()

    def leave(self) -> None:
        """
        Nothing more comes from the peer: move alone, with all of the inbox, and reset the peer, as it gets
        nothing more either.
        """
        connection, stream, mine = self.connection, self.connection.stream, self.mine
        assert stream is not None and mine is not None
        if stream.queuePair.path is not None:
            # It may wait for an answer: who writes one has an error at once.
            mine.shutdown(kernel.SHUT_WR)
        self.feed(Input.ANSWER)
        connection.inbox.clear()
        self.moved(self._replace())
        self._letGo().abortConnection()
        self._end()

    def _mayMove(self) -> bool:
        connection, stream = self.connection, self.connection.stream
        if stream is None or self.mine is None or not _isAlone(connection):
            return False
        stream.startReading()
        stream.read()
        return True

    def _comesOnce(self, mine: _socket.socket) -> bool:
        # This end of TCP has octets that are in the inbox, too: they are taken from there.  Where more is
        # behind them, or another thread has read some of them, nobody is to read those that the kernel has.
        inbox, left = self.connection.inbox, len(self._ahead)
        if inbox.size == left and inbox.peek(left) == self._ahead:
            inbox.clear()
            return True
        poller = pollerOf([(mine.fileno(), select.POLLIN)])
        # The peer may have ended it meanwhile, in order or not.
        with suppress(OSError):
            while left and poller.poll(PAIR_SECONDS * 1e3) and (octets := len(mine.recv(left))):
                left -= octets
        return not left

    def _decided(self, isAllowed: bool) -> None:
        connection, stream = self.connection, self.connection.stream
        if stream is None or connection.descriptor not in descriptors.byDescriptor:
            # It has ended meanwhile, or is closed, and ends as it would have.
            return
        if isAllowed and self._ahead and self.mine is not None:
            isAllowed = self._comesOnce(self.mine)
        if not isAllowed:
            # The peer has reset it there, or the program has duplicated the descriptor: nobody can tell the
            # duplicate where the rest is.
            connection.lost = errno.ECONNRESET
            stream.abortConnection()
            return
        self.moved(self._replace(kernel.SHUT_RD if connection.ended else None))
        self._end()


class Asked(Move):
    """
    The move at the end that is asked.
    """

    def __init__(self, connection: Connection, mine: _socket.socket, moved: _Moved, mayAsk: bool) -> None:
        """
        @param mayAsk: Whether this end may ask in its turn.
        """
        super().__init__(connection, mine, moved)
        self._mayAsk = mayAsk

    def _close(self, mine: _socket.socket) -> None:
        refuse(mine.detach())

    def _mayMove(self) -> bool:
        # The peer has not ended, nor has the program closed it meanwhile.
        connection = self.connection
        isOpen = connection.stream is not None and not connection.ended
        return isOpen and self.mine is not None and _isAlone(connection)

    def _decided(self, isAllowed: bool) -> None:
        connection = self.connection
        if isAllowed and self._mayAsk and connection.isGiven and connection.inbox.size:
            # Those octets are to come by TCP.  The peer finds this question before the refusal of its own.
            self.feed(Input.REFUSE)
            connection.owned().given()
            self.drop()
        elif not (isAllowed and _hasOneDescriptor(connection)):
            self.drop()
        else:
            isShut = connection.isShut
            skt = self._replace(kernel.SHUT_WR if isShut else None)
            if not isShut:
                # Else nothing follows its DisConn: the end of TCP is the answer.
                connection.owned().answerSuspend()
            self.moved(skt)


def ask(connection: Connection, stream: _Stream, moved: _Moved, isGiven: bool = False) -> None:
    """
    Ask the peer of a connection to move, if this end can.

    @param stream: The transport, which is quiet.
    @param isGiven: Whether what is not read yet is to come by TCP.
    """
    # Of a peer that sends no more, and does not answer, or is gone, nothing is needed.
    isLeft = connection.peerEnded and stream.queuePair.path is None
    if (before := connection.move) is not None:
        before.look()
        isLeft = isLeft or (connection.peerEnded and before.state is State.OVERDUE)
        # One that was refused may be given later: its peer may have had a duplicate.
        if not (isGiven and (isLeft or before.state is State.REFUSED)):
            return
    # The octets before a peer's end go along; nothing may follow this end's own.
    if connection.isShut or (connection.ended and not isGiven):
        return
    if not _isAlone(connection) or not _hasOneDescriptor(connection):
        return
    with suppress(OSError):
        mine, theirs = pairOfTCP()
        with closing(theirs):
            ahead = connection.inbox.peek(connection.inbox.size) if isGiven else b""
            move = connection.move = Asking(connection, mine, moved, ahead)
            connection.owned()
            if not takesAll(theirs, ahead):
                move.drop()
            elif isLeft:
                move.leave()
            elif not stream.suspend(theirs.fileno()):
                move.drop()


def asked(stream: _Stream, descriptor: int, moved: _Moved) -> bool:
    """
    The peer of a connection asks to move: do so as soon as that can be, or refuse.

    @param stream: The transport.
    @param descriptor: This end of TCP.
    @return: Whether that is taken care of, and the descriptor with it.
    """
    connection: object = stream.protocol
    if not isinstance(connection, Connection):
        return False
    if (before := connection.move) is not None:
        before.look()
        if isinstance(before, Asking) and before.state in (State.ASKED, State.OVERDUE):
            if isinstance(stream, RedirectedServer) and before.later is None:
                # Of two questions at the same time its own counts, unless that is refused.
                before.later = descriptor, partial(asked, stream, descriptor, moved)
                return True
            before.drop()
        if before.state is not State.REFUSED:
            return False
    mine = takeTCP(descriptor)
    if mine is not None:
        move = connection.move = Asked(connection, mine, moved, before is None)
        stream.whenQuiet(move._mayMove, move._decided)
    return True


def answered(stream: _Stream) -> bool:
    """
    The peer of a connection has answered that it moves.

    @return: Whether that is the first answer to a question.
    """
    move: Move | None = getattr(stream.protocol, "move", None)
    return move is not None and move.answered()


def given(connection: Connection) -> bool:
    """
    Another process is about to be given the descriptor of a connection: move before, if both ends can.

    @return: Whether the kernel has it now.
    """
    connection.isGiven = True
    try:
        with (loop := connection.loop):
            if isinstance(connection.stream, RedirectedServer):
                # TCP's stream has no place for what a client sends between the question and its answer.
                loop.wait(connection.readable, monotonic() + FIRST_SECONDS)
            loop.poll()
            isQuiet = loop.wait(lambda: _isSettled(connection.stream), monotonic() + ANSWER_SECONDS)
        return _moves(connection, isQuiet) or _moves(connection, connection.peerEnded)
    finally:
        connection.isGiven = False


def _moves(connection: Connection, mayAsk: bool) -> bool:
    with connection.loop:
        # It may have moved meanwhile, as its client has asked, or ended.
        if mayAsk and connection.stream is not None:
            connection.stream.given()
    return connection.awaitMove()


def _isSettled(stream: RedirectedServer | RedirectedClient | None) -> bool:
    # Whether nothing of it is to come any more into the medium.
    return stream is None or stream.queuePair.path is None or stream.isQuiet()


def _isAlone(connection: Connection) -> bool:
    # Whether one socket has a connection, at one descriptor that is known: then its carrier may change.
    number = connection.descriptor
    skt = descriptors.offloaded.get(number)
    it = None if skt is None else skt._sdp
    if skt is None or it is None or it.part is not connection or it.others or not skt.mayMove():
        return False
    if connection.sockets != 1 or connection.held is not None or connection.kept >= 0:
        return False
    return descriptors.inodeOf(number) == connection.inode


def _hasOneDescriptor(connection: Connection) -> bool:
    # The same of what is not known: duplicates without a socket, and those of processes that were forked.  It
    # takes long, and is asked once: what is duplicated between the question and the answer gets an error.
    if descriptors.lastFork not in (connection.forks, connection.looked):
        return False
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        # No descriptor is free to look.
        return False
    if len(names) > _DESCRIPTORS:
        return False
    return sum(descriptors.inodeOf(int(each)) == connection.inode for each in names) == 1
