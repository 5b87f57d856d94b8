"""
The active side of a connection, whatever protocol it is for: path, request, reply, ready, and all ways in
which that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted_ib.errors import HCAError
from twisted_ib.hca.connection.request import RejectReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted_ib.errors import PathLostError
    from twisted_ib.hca.base.interfaces import IPeerPath, Search
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.connection.request import ConnectReply, Rejection


class Asking(Protocol):
    """
    A device, as an active side uses it.
    """

    closed: bool
    clock: Callable[[], float]
    sendRequest: Callable[..., IConnection]


class ActiveSide:
    """
    An attempt to connect: the user of a search for a path, and of the connection that is asked for over it.
    See L{PathUser<twisted_ib.hca.base.interfaces.roles.PathUser>} and
    L{IConnectionUser<twisted_ib.hca.connection.interfaces.IConnectionUser>}.

    @ivar device: sends the request.
    @ivar connection: the connection, from the request until it has ended.
    @ivar isOver: whether nothing more is to come of it.
    """

    # Class attributes: an attempt is short, and most change few of them.
    _search: Search | None = None
    _isAnswered = False
    connection: IConnection | None = None
    isOver = False
    readsFirst = False

    def __init__(self, device: Asking) -> None:
        self.device = device

    # -- what a protocol has of its own

    def send(self, path: IPeerPath) -> IConnection:
        """
        Send the request.

        @return: the connection that it asks for.
        @raise HCAError: none was sent.
        """
        raise NotImplementedError

    def join(self, connection: IConnection, reply: ConnectReply) -> bool:
        """
        Check a reply, and connect the queue pair.

        @return: whether the passive side is to be told that this one is ready, where it knows already.
        @raise HCAError: the reply is wrong.
        """
        raise NotImplementedError

    def connected(self, reply: ConnectReply) -> None:
        """
        Both sides are ready.
        """
        raise NotImplementedError

    def failed(self, reason: Exception) -> None:
        """
        It has failed; what is not over already is ended by L{giveUp}.
        """
        raise NotImplementedError

    def unsent(self, reason: Exception) -> None:
        """
        There is no path, or no request was sent: perhaps within L{find}.
        """
        self.failed(reason)

    def refused(self, rejection: Rejection) -> None:
        """
        The peer refuses.
        """
        raise NotImplementedError

    def unanswered(self) -> None:
        """
        The peer does not answer.
        """
        raise NotImplementedError

    # -- the path

    def find(self, search: Callable[..., Search | None], *arguments: object) -> None:
        """
        Search for the path.

        @param search: called with the arguments, and the user of the search.
        """
        self._isAnswered = False
        try:
            found = search(*arguments, self)
        except (HCAError, OSError) as reason:
            self.unsent(reason)
            return
        # It may have called pathReady or connectFailed already: what it returns is stale then.
        if not self._isAnswered and not self.isOver:
            self._search = found

    def pathReady(self, path: IPeerPath) -> None:
        self._search, self._isAnswered = None, True
        if self.isOver:
            return
        try:
            self.connection = self.send(path)
        except HCAError as reason:
            self.unsent(reason)

    def connectFailed(self, reason: Exception) -> None:
        self._search, self._isAnswered = None, True
        if not self.isOver:
            self.unsent(reason)

    # -- the answer

    def replied(self, connection: IConnection, reply: ConnectReply) -> None:
        # An earlier one may have been given up with its answer on the way.
        if connection is not self.connection:
            return
        now = self.device.clock()
        try:
            isConfirmed = self.join(connection, reply)
        except HCAError as reason:
            # IBTA vol. 1 12.6.7.2 reason 28: a reply can be refused by the consumer, too; the passive side
            # would wait otherwise.
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", now)
            self.connection = None
            self.failed(reason)
            return
        # Behind the queue pair: the peer may send as soon as it hears this (IBTA vol. 1 12.9.8).
        connection.ready(now, isConfirmed=isConfirmed)
        self.connected(reply)

    def rejected(self, connection: IConnection, rejection: Rejection) -> None:
        if connection is self.connection:
            self.connection = None
            self.refused(rejection)

    def unreachable(self, connection: IConnection) -> None:
        if connection is self.connection:
            self.connection = None
            self.unanswered()

    def pathLost(self, reason: PathLostError) -> None:
        """
        The peer is gone.
        """
        self.connection = None
        self.failed(reason)

    # -- the end

    def giveUp(self) -> None:
        """
        End it: nothing more comes of it.
        """
        self.isOver = True
        self.forget()

    def forget(self) -> None:
        """
        End the search and the connection, and hear no more of them.
        """
        search, self._search = self._search, None
        if search is not None:
            search.cancel()
        connection, self.connection = self.connection, None
        if connection is not None and not self.device.closed:
            # IBTA vol. 1 12.6.7.2, reason 4 (timeout): a REJ tells a peer that is about to accept; Linux cm.c
            # sends it when an id is destroyed in state REQ_SENT.
            connection.abandon(self.device.clock())
