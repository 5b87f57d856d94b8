"""
The directory of a fabric of hosts: peers are IP addresses.

A path to an address exists at once, without an exchange.  The table of services is local, since no other
device has this address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from attrs import frozen

from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import NoRouteError, ServiceInUseError
from twisted_ib.hca.connection.rdmacm import gidNumber, gidText
from twisted_ib.hca.fabric.base.fabric import CompletedSearch, Fabric
from twisted_ib.hca.fabric.base.waker import LinkWaker
from twisted_ib.hca.host.addresses import conflict, freePort, normalise, wildcard
from twisted_ib.hca.wire.grh import isMulticast


def _rank(error: BaseException | None) -> int:
    # Which of a turn's errors is raised: the first of the highest.
    if error is None:
        return 0
    return 1 if isinstance(error, Exception) else 2


@frozen(weakref_slot=False)
class PeerAddress:
    """
    The identity of a peer: its address. GUID, process and user are unknown; anybody can have one made.

    @ivar address: the IP address, as text without a scope.
    @ivar gid: the same as a GID.
    """

    address: str
    gid: int
    guid: ClassVar[int] = 0
    pid: ClassVar[int] = 0
    uid: ClassVar[int] = -1
    program: ClassVar[str] = ""

    @classmethod
    def of(cls, address: str) -> PeerAddress:
        """
        @param address: an IP address.
        """
        return cls(address, gidNumber(address))


@mypyc_attr(allow_interpreted_subclasses=True)
class AddressDirectory(Fabric):
    """
    The half of a fabric that deals with services and peers, and with its descriptor: see
    L{IAddressDirectory<twisted_ib.hca.base.interfaces.IAddressDirectory>}.

    @ivar address: the HCA's IP address, as text without a scope.
    @ivar gid: the same as a GID.
    """

    _waker: LinkWaker

    def __init__(self, owner: Any, guid: int, address: str) -> None:
        super().__init__(owner, guid)
        self.address = address
        self.gid = gidNumber(address)
        self._services: set[tuple[int, str]] = set()
        # Weak: a path lasts as long as it is referenced, so packets with forged sources consume no memory.
        self._peers: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._failure: BaseException | None = None

    @property
    def gidSlots(self) -> int:
        return self.traits.gidSlots

    # -- turns

    def want(self) -> None:
        """
        Ask the device for a turn.
        """
        wanted = self.owner.wanted
        if wanted is not None:
            wanted()

    def failed(self, error: BaseException) -> None:
        """
        A user raised in a turn. The turn goes on; the first error is raised at its end, but one that ends the
        program before others.
        """
        if _rank(error) > _rank(self._failure):
            self._failure = error

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _try(self, call: Callable[..., object], *arguments: Any) -> None:
        # An exception of one user must not keep the others from being notified.
        try:
            call(*arguments)
        except BaseException as error:
            self.failed(error)

    # -- the descriptor

    def signal(self) -> None:
        self._waker.signal()

    def attend(self) -> None:
        self._waker.attend()

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        self._waker.watch(fd, call)

    def fileno(self) -> int:
        return self._waker.fileno()

    # -- services

    def _check(self, address: str) -> str:
        address = normalise(address).partition("%")[0]
        if address not in (self.address, wildcard(self.address)):
            raise NoRouteError(f"this device has the address {self.address}, not {address}")
        return address

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        # No TCP socket belongs to it here: the inode is ignored.
        address = self._check(address)
        # As bind(2) of TCP: a wildcard address conflicts with every address of the same port.
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"this device listens on {other} already")
        self._services.add((serviceID, address))

    def publishAny(self, prefix: int, address: str) -> int:
        address = self._check(address)
        port = freePort({service - prefix for service, _ in self._services})
        self._services.add((prefix + port, address))
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        self._services.discard((serviceID, normalise(address).partition("%")[0]))

    # -- peers

    def resolve(self, serviceID: int, address: str, user: Any) -> CompletedSearch:
        # Whether anybody listens there shows in the answer to a REQ.
        address = normalise(address).partition("%")[0]
        # As connect(2) does on Linux: the wildcard address means this host.
        if address == wildcard(self.address):
            address = self.address
        if (":" in address) != (":" in self.address) or isMulticast(gidNumber(address)):
            raise NoRouteError(f"{address} cannot be reached from {self.address}")
        user.pathReady(self.pathTo(address))
        return CompletedSearch()

    def reachGID(self, gid: int, user: Any) -> CompletedSearch:
        address = gidText(gid)
        if (":" in address) != (":" in self.address) or not gid:
            raise NoRouteError(f"GID {address} cannot be reached from {self.address}")
        user.pathReady(self.pathTo(address))
        return CompletedSearch()

    def reachPeer(self, gid: int, user: Any) -> CompletedSearch:
        return self.reachGID(gid, user)

    def pathTo(self, address: str) -> Any:
        """
        @return: the path to a peer's address, given as text without a scope.
        """
        path = self._peers.get(address)
        if path is None:
            path = self._peers[address] = self.newPath(address)
        return path

    def newPath(self, address: str) -> Any:
        """
        @return: a path to a peer's address.
        """
        raise NotImplementedError
