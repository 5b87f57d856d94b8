"""
The interfaces between a path and the connections that carry its messages.

A I{carrier} is one connection: a TCP byte stream, or an RC queue pair with its fragments.  A I{path}
(L{twisted_ib.rds.paths.path.RDSPath}) outlives its carriers: it keeps unacknowledged messages and gives
them to the next one.  A I{medium} makes carriers, when a peer connects or a path asks for one.

No method calls back: what a carrier has to report during C{send}, it reports later.

Paths of which several processes of an address have datagrams know a L{Pending}
(L{twisted_ib.rds.media.rcrelay}).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from twisted.internet.defer import Deferred

    from twisted_ib.errors import HCAError
    from twisted_ib.hca.base.interfaces import Search
    from twisted_ib.rds.paths.network import Network, Route
    from twisted_ib.rds.paths.path import RDSPath
    from twisted_ib.rds.protocol.machine import RDSMessage
    from twisted_ib.rds.protocol.wire import Fields


class Pending:
    """
    The messages of a path that were handed on, until those whose they are have them.  None of them, nor of
    those that came after it, is acknowledged before: the peer keeps them, and sends them again if this
    process ends.
    """

    def __init__(self) -> None:
        self._numbers: deque[int] = deque()
        self._taken: set[int] = set()
        self._refused: int | None = None
        #: The last that was handed on or refused.
        self.last = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        """
        A message is handed on.

        @param number: its sequence number; they rise.
        """
        self.last = number
        self._numbers.append(number)

    def refuse(self, number: int) -> None:
        """
        A message is not handed on: neither it nor one after it is ever acknowledged.
        """
        self.last = number
        if self._refused is None:
            self._refused = number

    def take(self, number: int) -> bool:
        """
        A message has arrived, or is lost.

        @return: whether more can be acknowledged.
        """
        numbers, taken = self._numbers, self._taken
        if not numbers or number < numbers[0]:
            return False
        taken.add(number)
        if number != numbers[0]:
            return False
        while numbers and numbers[0] in taken:
            taken.discard(numbers.popleft())
        return True

    def clear(self) -> None:
        """
        Wait for them no longer.
        """
        self._numbers.clear()
        self._taken.clear()

    def confirmed(self, last: int) -> int:
        """
        @param last: the last sequence number received.
        @return: the last that can be acknowledged.
        """
        if self._refused is not None:
            last = min(last, self._refused - 1)
        return min(last, self._numbers[0] - 1) if self._numbers else last


class IRelay(Protocol):
    """
    The network between the processes of an address, as the network of that address sees it.
    """

    @property
    def paths(self) -> Mapping[Hashable, RDSPath]:
        """
        Those to other processes.
        """

    def isElsewhere(self, host: str, port: int) -> bool:
        """
        @return: whether another process of one of our addresses has a port.
        """

    def handIn(self, network: Network, path: Route, fields: Fields, payload: bytes) -> bool:
        """
        Hand a peer's message on to the process of its port.

        @return: False if there is none.
        """

    def mapChanged(self, path: Route) -> None:
        """
        A peer's congestion map has changed.
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

    def connect(path: RDSPath) -> Search:
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
