"""
Which addresses a device has, and which its peers may have.

Devices whose peers are processes of this host share the host's addresses, and have a GID of their own by
their GUID.  Others have one IP address, and so have their peers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_ib.errors import NoRouteError
from twisted_ib.hca.host.addresses import isLocalAddress, isPeersAddress, localAddresses, normalise
from twisted_ib.hca.wire.cm.rdmacm import gidText

#: Addresses that name no interface.
_WILDCARDS = ("0.0.0.0", "::")


class Identity:
    """
    What a device is called.

    @ivar name: C{"shm0"} or another of L{twisted_ib.hca.device.registry}.
    @ivar addressed: Whether peers are IP addresses, and not processes of this host.
    @ivar address: Its own IP address, if it has one, without a scope.
    @ivar gid: What its datagrams say who sent them: its first GID.
    @ivar pathMTU: The bytes that a packet carries at most.
    @ivar clock: Gives its time, seconds.
    @ivar fabric: What carries its operations.
    """

    name: str
    addressed: bool
    address: str | None
    gid: int
    pathMTU: int
    clock: Callable[[], float]
    fabric: Any

    def gids(self) -> list[str]:
        """
        @return: The GID table: the GUID's GID, then the host's addresses.  Where peers are IP
            addresses, its own.
        """
        if self.addressed:
            return list(self.fabric.gids())
        return [normalise(gidText(self.gid)), *localAddresses()]

    def hasGID(self, gid: int) -> bool:
        """
        @param gid: 128 bits; an IPv4 address is in them as C{::ffff:a.b.c.d}.
        @return: Whether it is one of the GID table.
        """
        if gid == self.gid:
            return True
        return self.isLocal(gidText(gid))

    def localAddressFor(self, address: str, bound: str = "") -> str:
        """
        Choose the source address of a connection.

        @param address: Where to.
        @param bound: What the user bound, or nothing.
        @raise NoRouteError: C{bound} is not an address of this host, or not that of the device.
        """
        if bound and bound not in _WILDCARDS:
            if self.address is not None:
                if not self.isAt(bound):
                    raise NoRouteError(f"device {self.name} has the address {self.address}, not {bound}")
            elif not isLocalAddress(bound):
                raise NoRouteError(f"{bound} is not an address of this host")
            return bound
        return address if self.address is None else self.address

    def listeningAddress(self, bound: str) -> str:
        """
        Choose the address to listen on: a device with an address of its own has no other.

        @param bound: What the user bound, or a wildcard.
        @raise ValueError: The device does not have this address.
        """
        own = self.address
        if own is None:
            return bound
        if bound == "::" or (bound == "0.0.0.0" and ":" not in own):
            return own
        if not self.isAt(bound):
            raise ValueError(f"device {self.name} has the address {own}, not {bound}")
        return bound

    def isAt(self, address: str | None) -> bool:
        """
        @param address: Any spelling of an IP address, perhaps with a scope; L{None} for none.
        @return: Whether it is the device's own; without one, whether it is none.
        """
        return self.address == (None if address is None else normalise(address).partition("%")[0])

    def isLocal(self, address: str) -> bool:
        """
        @param address: Of a peer, or one that a peer says is of this side.
        @return: Whether it is an address of this host, which peers have that are its processes; where
            peers are IP addresses: whether it is the device's own.
        """
        if self.address is not None:
            return address == self.address
        return isPeersAddress(address, int(self.clock()))

    def pathMTUTo(self, path: Any) -> int:
        """
        @param path: The way to a peer's HCA.
        @return: The bytes that a packet carries to it at most.
        """
        if not self.addressed:
            return self.pathMTU
        found: int = self.fabric.link.pathMTUTo(path.peer.address)
        return found

    def isPeers(self, path: Any, address: str) -> bool:
        """
        Whether who is at the other end of a path may have an address, as it says.

        @param path: The way that something came.
        @param address: Without a scope.
        """
        if self.addressed:
            found: str = path.peer.address
            return address == found
        return self.isLocal(address)


__all__ = ["Identity"]
