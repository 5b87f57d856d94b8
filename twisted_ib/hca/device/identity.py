"""
The addresses of a device, and of its peers.

Devices whose peers are processes of this host share the host's addresses, and have a GID of their own from
their GUID.  Others have one IP address, and so have their peers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.traits import Peers, Traits
from twisted_ib.hca.connection.rdmacm import gidNumber, gidText, guidOf
from twisted_ib.hca.host.addresses import isLocalAddress, isPeersAddress, localAddresses, normalise

#: The lower half of a GID.
_GUID_BITS = 64
#: Addresses that name no interface.
_WILDCARDS = ("0.0.0.0", "::")


class Identity:
    """
    The names and addresses of a device.
    """

    #: C{"shm0"} or another of L{twisted_ib.hca.device.registry}.
    name: str
    #: Whether peers are IP addresses, not processes of this host.
    traits: Traits
    #: Its own IP address, if it has one, without a scope.
    address: str | None
    #: Its port.
    port: Port
    #: The GUID of its port.
    guid: int
    #: Its first GID, the source GID of its datagrams.
    gid: int
    #: The largest payload of a packet, bytes.
    pathMTU: int
    #: Returns its time, seconds.
    clock: Callable[[], float]
    #: Carries its operations.
    fabric: Any
    #: Finds peers by IP addresses that are not this host's, an L{IAddressResolver
    #: <twisted_ib.hca.connection.interfaces.IAddressResolver>}; L{None} where there are none.
    resolver: Any = None
    #: Knows the paths to its peers.
    paths: Any

    @property
    def nodeGUID(self) -> int:
        """
        The GUID of its node: in a subnet that below its port's, which the topology counts on from it; else
        both are one.
        """
        return self.guid - (self.traits.peers is Peers.SUBNET)

    def gids(self) -> list[str]:
        """
        @return: the GID table: the port's own; where peers are processes the host's addresses follow.
        """
        own = [normalise(gidText(gid)) for gid in self.port.gids]
        # IBTA vol. 1 annex A17: one entry per IP address of the host.  Read when asked for, as they come and
        # go.
        return [*own, *localAddresses()] if self.traits.peers is Peers.PROCESSES else own

    def hasGID(self, gid: int) -> bool:
        """
        @param gid: 128 bits; an IPv4 address is C{::ffff:a.b.c.d}.
        @return: whether the GID table has it.
        """
        if gid == self.gid or gid in self.port.gids:
            return True
        return self.traits.peers is not Peers.SUBNET and self.isLocal(gidText(gid))

    def hostNamed(self, name: str) -> str:
        """
        Find a host by a name that the reactor's resolver need not know.

        @return: the GID of the node of a subnet with this description; C{""} if there is none, or no subnet.
        """
        guid = self.fabric.named(name) if self.traits.peers is Peers.SUBNET else 0
        return normalise(gidText(self.port.subnetPrefix << _GUID_BITS | guid)) if guid else ""

    def unknownHost(self, name: str) -> str:
        """
        @return: the reason why no host has a name that neither L{hostNamed} nor the resolver knows, and what
            is one; C{""} where names are the resolver's alone.
        """
        if self.traits.peers is not Peers.SUBNET:
            return ""
        return (
            f"no node of the subnet with a device has the description {name!r}, and no address was found for"
            f" it; a host of {self.name} is a GID, the description of a node, or this host"
        )

    def guidOf(self, address: str) -> int:
        """
        @return: the GUID in an address that is a GID of this subnet, whether or not a device has it; 0 if
            it is none, or there is no subnet.
        """
        # RFC 4007 section 11: what has a zone is the address of an interface of this host.
        if self.traits.peers is not Peers.SUBNET or "%" in address:
            return 0
        return guidOf(address, self.port.subnetPrefix)

    def localAddressFor(self, address: str, bound: str = "") -> str:
        """
        Choose the source address of a connection.

        @param address: the destination.
        @param bound: the address that the user bound, if any.
        @raise NoRouteError: C{bound} is not an address of this host, or not the device's.
        """
        resolver = self.resolver
        if resolver is not None:
            source: str = bound if resolver.isOwn(bound) else resolver.sourceFor(address)
            if source and (not bound or bound in (source, *_WILDCARDS)):
                return source
        if bound and bound not in _WILDCARDS:
            if self.address is not None:
                if not self.isAt(bound):
                    raise NoRouteError(f"device {self.name} has the address {self.address}, not {bound}")
            elif not isLocalAddress(bound):
                raise NoRouteError(f"{bound} is not an address of this host")
            return bound
        if self.traits.peers is Peers.SUBNET and not isPeersAddress(address, int(self.clock())):
            # A GID of the subnet.
            return normalise(gidText(self.gid))
        # Between processes of one host the destination is as good a source as any; it keeps the IP version
        # and scope right.
        return address if self.address is None else self.address

    def listeningAddress(self, bound: str) -> str:
        """
        Choose the address to listen on: a device with an address of its own has no other.

        @param bound: the address that the user bound, or a wildcard.
        @raise ValueError: the device does not have this address.
        """
        own = self.address
        if own is None or (self.resolver is not None and self.resolver.isOwn(bound)):
            return bound
        # A wildcard listener of IPv6 includes IPv4 (RFC 3493 section 5.3), one of IPv4 does not include IPv6.
        if bound == "::" or (bound == "0.0.0.0" and ":" not in own):
            return own
        if not self.isAt(bound):
            raise ValueError(f"device {self.name} has the address {own}, not {bound}")
        return bound

    def isAt(self, address: str | None) -> bool:
        """
        Whether an address is the device's own; without one, whether C{address} is L{None}.

        @param address: an IP address in any spelling, perhaps with a scope, or L{None}.
        """
        return self.address == (None if address is None else normalise(address).partition("%")[0])

    def isLocal(self, address: str) -> bool:
        """
        Whether an address is of this host, so that a local process may have it; where peers are IP addresses,
        whether it is the device's own.
        """
        if self.resolver is not None and self.resolver.isOwn(address):
            return True
        if self.address is not None:
            return address == self.address
        if self.traits.peers is Peers.SUBNET and gidNumber(address) in self.port.gids:
            return True
        # The host's address list is read at most once a second: that costs a socket, and each connection
        # makes a claim.
        return isPeersAddress(address, int(self.clock()))

    def pathMTUTo(self, path: Any) -> int:
        """
        The largest payload of a packet on a path, bytes.
        """
        if not self.traits.packets:
            return self.pathMTU
        found: int = self.fabric.pathMTUTo(path.peer.address)
        return found

    def isPeers(self, path: Any, address: str) -> bool:
        """
        Whether the peer of a path may have the address that it claims.

        @param path: the path that the claim came by.
        @param address: without a scope.
        """
        # As on any link whose addresses are found by ARP, there is no other proof of one than that.  Who
        # connects has asked for this host, and so told its own address, before.
        if self.resolver is not None and self.resolver.sourceFor(address):
            gid = self.resolver.gidOf(address)
            if gid or not self.traits.hasAddress:
                return bool(gid == self.paths.gidOf(path))
        if self.traits.hasAddress:
            # IBTA vol. 1 annex A17: a RoCEv2 peer is what its packets' source address says, and nothing else.
            found: str = path.peer.address
            return address == found
        guid = self.guidOf(address)
        if guid:
            return bool(guid == path.peer.guid)
        # All processes of a host have all its addresses; the claim cannot be narrowed further.
        return self.isLocal(address)


__all__ = ["Identity"]
