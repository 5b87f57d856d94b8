"""
The two ends of a connection in the making: what its users may ask, and what they are told.

Times (C{now}) are the device's, in seconds.  A command returns False if the other end, or the path, has ended
the connection meanwhile, and raises
L{ConnectionStateError<twisted_ib.errors.ConnectionStateError>} if the user has misordered its commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath, IPeerPath, Search
    from twisted_ib.hca.connection.request import (
        ConnectReply,
        ConnectRequest,
        LookupReply,
        LookupRequest,
        Rejection,
        RejectReason,
    )


class IServiceListener(Interface):
    """
    The listener of a service.
    """

    def connectionRequested(connection: IConnection, request: ConnectRequest) -> None:
        """
        A request arrived: answer with C{connection.accept}, C{reject} or C{ignore}, now or later.
        """

    def requestWithdrawn(connection: IConnection) -> None:
        """
        The request needs no answer any more.
        """

    # Optional, for datagram services (IBTA vol. 1 12.11): lookupRequested(lookup, request), with an ILookup
    # and a LookupRequest: answer with lookup.answer, reject or ignore, now or later.


class IConnection(Interface):
    """
    One end of a connection: of the communication manager it is L{twisted_ib.hca.cm.machine.Connection}.
    """

    user: Any = Attribute("The L{IConnectionUser} that its events go to, or L{None}; the user's to set.")
    destination: IPath = Attribute("The path that the request took.")
    localID: int = Attribute("Active: its number in messages, see C{ConnectRequest.communicationID}.")
    disconnectData: bytes = Attribute("The private data by which the peer ended the connection, or empty.")
    ackSeconds: float = Attribute("For how long packets of a connection that has ended may be on their way.")
    isDelayed: bool = Attribute("Active: whether the peer has asked for time (MRA), which is not over.")

    def accept(reply: ConnectReply, now: float, isConfirmed: bool = True) -> bool:
        """
        Passive: accept.

        @param isConfirmed: whether the active side's C{ready} is told to this side even where no message is
            lost: a protocol whose two sides have no use for that says so at both.
        """

    def reject(reason: RejectReason, privateData: bytes, now: float) -> bool:
        """
        Refuse a request; of the active side, a reply.
        """

    def ignore(now: float) -> bool:
        """
        Passive: forget the request, as if it had been lost.
        """

    def sendMRA(now: float) -> bool:
        """
        Keep the peer from giving up: the answer will be late (IBTA vol. 1 12.6.6).
        """

    def ready(now: float, privateData: bytes = b"", isConfirmed: bool = True) -> bool:
        """
        Active: the reply is good, and the queue pair takes data.

        @param isConfirmed: see C{accept}.
        """

    def abandon(now: float) -> bool:
        """
        End it, in whatever state it is, and hear no more of it.
        """

    def disconnect(now: float, privateData: bytes = b"") -> bool:
        """
        End it; its user hears of the peer's answer.
        """

    def leave(now: float, privateData: bytes = b"") -> bool:
        """
        End it, where no message is lost, for a user that waits for no answer.
        """


class IConnector(Interface):
    """
    Asks peers for connections: the communication manager of a device, or a fabric in its own way.
    """

    def sendRequest(
        path: IPeerPath, request: ConnectRequest, user: IConnectionUser, now: float
    ) -> IConnection:
        """
        Send a request to connect over a path that was resolved.

        @param user: hears of it in a later turn.
        @raise ResourceLimitError: there are too many connections.
        """

    def sendLookup(path: IPeerPath, request: LookupRequest, user: Any, now: float) -> ILookup:
        """
        Ask for the queue pair of a datagram service.

        @param user: see L{ILookup}.
        @raise ResourceLimitError: there are too many lookups.
        @raise NoRouteError: there are no datagrams here.
        """


class IConnectionUser(Interface):
    """
    The user of an L{IConnection}, which it sets as C{connection.user}.  It has those of these that can happen
    while it is the user.
    """

    readsFirst: bool = Attribute("Whether the end waits for messages that have no receive yet.")

    def replied(connection: IConnection, reply: ConnectReply) -> None:
        """
        Active: the peer accepts.  Answer with C{connection.ready} or C{reject}.
        """

    def rejected(connection: IConnection, rejection: Rejection) -> None:
        """
        The peer has refused.
        """

    def unreachable(connection: IConnection) -> None:
        """
        The peer has not answered.
        """

    def peerDisconnected(connection: IConnection) -> None:
        """
        The connection has ended: the peer has ended it, or has answered C{Device.disconnect}.
        """

    # Optional: established(connection), passive: the peer is ready; givenUp(connection), passive, in place of
    # peerDisconnected: the peer has ended it before it heard of it; pathLost(reason): the path is gone, and
    # with it the connection.


class IAddressResolver(Interface):
    """
    Finds the HCAs of IP addresses that no directory of the fabric has: those of IPoIB.

    Addresses are texts, normalised and without a scope.
    """

    def isOwn(address: str) -> bool:
        """
        @return: whether an address is of this HCA.
        """

    def sourceFor(address: str) -> str:
        """
        @return: this HCA's address in the network of an address; empty if it has none there.
        """

    def gidOf(address: str) -> int:
        """
        @return: the GID of the port that is known to have an address; 0 if none is.
        """

    def locate(address: str, found: Callable[[Any], object]) -> None:
        """
        Find the port that has an address which C{sourceFor} has a source for.

        @param found: called once, perhaps before this returns, with the GID or an
            L{HCAError<twisted_ib.errors.HCAError>}.
        """

    def resolve(address: str, user: Any, seconds: float = 0.0) -> Search:
        """
        Resolve the path to the HCA of an address that C{sourceFor} has a source for.

        @param user: gets C{pathReady(path)} or C{connectFailed(error)}, perhaps before this returns.
        @param seconds: how long one that does not answer is asked again.
        @return: an object with C{cancel()}.
        """


class ILookup(Interface):
    """
    One end of a search for the queue pair of a datagram service: of the communication manager it is
    L{twisted_ib.hca.cm.sidr.Lookup}.
    """

    user: Any = Attribute(
        "It hears C{found(lookup, reply)} or C{unreachable(lookup)}, and of C{pathLost(reason)}."
    )
    destination: IPath = Attribute("The path that the request took.")

    def answer(reply: LookupReply, now: float) -> bool:
        """
        Passive: answer.
        """

    def reject(status: int, privateData: bytes, now: float) -> bool:
        """
        Passive: refuse.

        @param status: a L{SIDRStatus<twisted_ib.hca.connection.request.SIDRStatus>} other than VALID.
        """

    def ignore(now: float) -> bool:
        """
        Passive: forget the request, as if it had been lost.
        """

    def close(now: float) -> bool:
        """
        Its user has no more use for it.
        """


class ParkedUser(Protocol):
    """
    The listener of connections that are parked.
    """

    def resumed(self, connection: IConnection, number: int, kept: bytes) -> object:
        """
        There is news for a connection: make its C{user}.

        @param number: our queue pair number, which the reply had.
        @param kept: what was given to L{Parking.park}.
        """


class Parking(Protocol):
    """
    Where connections that await the peer's confirmation are kept as octets, until there is news for them.

    @ivar ofListener: how many there are, by listener.
    @ivar proposal: makes what C{IPeerPath.prepareReply} has returned of its octets.
    """

    ofListener: dict[ParkedUser, int]
    proposal: Callable[[bytes], bytes]

    def begin(
        self,
        nameOf: Callable[[object], int],
        sourceOf: Callable[[int], IPeerPath],
        proposal: Callable[[bytes], bytes],
    ) -> None:
        """
        Park connections from now on.

        @param nameOf: gives the name of a source: the GID of its path.
        @param sourceOf: gives the path to a GID.
        """

    def park(self, connection: IConnection, kept: bytes) -> None:
        """
        Have octets stand for a connection that awaits the RTU, and for its user; else do nothing.

        @param kept: what the user needs when its listener is asked for it again.
        """

    def resumeAll(self, listener: ParkedUser | None = None, name: int | None = None) -> None:
        """
        Resume all; those of a listener, or of a source with this name, if one is given.
        """
