"""
The interfaces between a path and the connections that carry its messages.

A I{carrier} is one connection: a TCP byte stream, or an RC queue pair with its fragments.  A I{path}
(L{twisted_ib.rds.paths.path.RDSPath}) outlives its carriers: it keeps unacknowledged messages and gives
them to the next one.  A I{medium} makes carriers, when a peer connects or a path asks for one.

No method calls back: what a carrier has to report during C{send}, it reports later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from twisted_ib.errors import HCAError
    from twisted_ib.rds.paths.network import Route
    from twisted_ib.rds.paths.path import RDSPath
    from twisted_ib.rds.paths.relay import IRelay
    from twisted_ib.rds.protocol.machine import RDSMessage


class Attempt(Protocol):
    """
    A connection that is being made.
    """

    def cancel(self) -> object:
        """
        Give it up.
        """


class IRDSCarrier(Interface):
    """
    A connection that carries the messages of a path, in order and unchanged.
    """

    def send(message: RDSMessage) -> bool:
        """
        Send a message.

        @param message: an L{RDSMessage<twisted_ib.rds.protocol.machine.RDSMessage>}; the carrier writes
            its header.
        @return: whether it was accepted.  If not, C{path.resume()} is called when there is room.
        """

    def flush() -> None:
        """
        No more messages follow for now: send those that were held back to be sent together.
        """

    def pauseReading() -> None:
        """
        Receive nothing until C{resumeReading}, as there is no memory left.
        """

    def resumeReading() -> None:
        """
        Receive again.
        """

    def drain() -> None:
        """
        The connection is about to be replaced: give the path everything that was received, and all
        acknowledgements, whether reading is paused or not.
        """

    def close() -> None:
        """
        Close the connection at once; the path gets no further calls.
        """


class IRDSBundlingCarrier(IRDSCarrier):
    """
    A carrier whose peers understand bundles (L{twisted_ib.rds.protocol.bundle}): its medium shares
    addresses.
    """

    def gathers() -> bool:
        """
        @return: whether a message sent now would leave at the end of the turn, or wait.
        """

    def bundleOpened() -> None:
        """
        Have C{path.closeBundle()} called at the end of the turn.
        """


class IRDSMedium(Interface):
    """
    A factory of carriers between addresses of this host and of peers.
    """

    name: str = Attribute("The device's name: C{tcp}, C{shm0} ...")
    acknowledges: bool = Attribute("Whether its carriers want C{ACK_REQUIRED} in headers (RC).")

    sharesAddresses: bool = Attribute("Whether other processes have the same addresses.")
    relay: IRelay | None = Attribute("Hands datagrams on between the processes of an address.")

    def localAddresses() -> list[str]:
        """
        @return: the addresses that C{interface=""} stands for, as text; at least one.
        """

    def sourceFor(host: str) -> str:
        """
        @return: the address from which to send to a host, as text.
        @raise twisted_ib.errors.NoRouteError: there is no route.
        """

    def hostNamed(name: str) -> str:
        """
        @return: the address of a host with a name that the reactor's resolver need not know; C{""} if there
            is none.
        """

    def locate(host: str, found: Callable[[str | HCAError], object]) -> None:
        """
        Find the address by which a host is named in messages.

        @param found: called once, perhaps before this returns, with the address: the GID of an address of
            IPoIB, any other itself; or with an L{HCAError<twisted_ib.errors.HCAError>}.
        """

    def unknownHost(name: str) -> str:
        """
        @return: the reason why no host has a name that neither this nor the resolver knows; C{""} where names
            are the resolver's alone.
        """

    def bind(address: str, port: int) -> None:
        """
        A socket binds a port: accept connections from peers that send to it.

        @raise OSError: the address is not local, or cannot be bound.
        @raise twisted_ib.errors.HCAError: the port is in use
            (L{ServiceInUseError<twisted_ib.errors.ServiceInUseError>}), or there is no device.
        """

    def unbind(address: str, port: int) -> None:
        """
        The socket is closed.  The address's paths stay until C{network} closes them.
        """

    def pathTo(address: str, host: str, port: int) -> Route:
        """
        Find the path to a socket, or make one (C{network.path}).

        @param address: the sender's address.
        @param host: the receiver's address.
        @param port: the receiver's RDS port.
        """

    def connect(path: RDSPath) -> Attempt:
        """
        Start connecting a path.  C{path.carrierUp} or C{path.carrierFailed} reports the result, after
        this has returned.

        @return: an object with C{cancel()}, which has no effect once the result was reported or
            C{path.carrierUp} is about to be called.
        """

    def reconnects(path: RDSPath) -> bool:
        """
        @return: whether this end connects again after a loss; if not, it waits for the peer and connects
            only when it has something to send.
        """

    def whenQuiet() -> Deferred[None]:
        """
        Called when no socket is open and all paths are closed.

        @return: a Deferred that fires with L{None} when nothing of the medium is in the reactor.
        """
