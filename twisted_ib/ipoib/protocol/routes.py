"""
The IP addresses of an interface, and where a packet goes: to a neighbour, to a gateway, to all, to this
interface itself, or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Final

from twisted_ib.ipoib.protocol.ip import isMulticast

AnyInterface = IPv4Interface | IPv6Interface
AnyNetwork = IPv4Network | IPv6Network

#: The address of all on this link (RFC 919).
LIMITED_BROADCAST: Final = b"\xff\xff\xff\xff"


class Routes:
    """
    Addresses and networks of one interface.

    @ivar addresses: as the user has given them.
    @ivar own: the same, packed.
    @ivar broadcasts: the IPv4 addresses that are for all on this link.
    """

    def __init__(
        self, addresses: Iterable[AnyInterface], gateways: Iterable[tuple[AnyNetwork, bytes]]
    ) -> None:
        self.addresses = tuple(addresses)
        self.own = {each.packed: each for each in self.addresses}
        self.broadcasts = {LIMITED_BROADCAST}
        # Octets of an address, bits to drop, the rest, and what is there: an own address, or a gateway.
        self._onLink: list[tuple[int, int, int, bytes]] = []
        self._gateways = sorted((_row(*each) for each in gateways), key=lambda row: row[1])
        for each in self.addresses:
            self._onLink.append(_row(each.network, each.packed))
            # RFC 3021: a network of two addresses has none for all.
            if each.version == 4 and each.network.prefixlen < 31:
                self.broadcasts.add(each.network.broadcast_address.packed)

    def nextHop(self, destination: bytes) -> bytes | None:
        """
        @param destination: a unicast address.
        @return: the neighbour that a packet is sent to; L{None} if there is none.
        """
        if _match(self._onLink, destination) is not None:
            return destination
        return _match(self._gateways, destination)

    def isOnLink(self, address: bytes) -> bool:
        """
        @return: whether an address is of this link, and can be that of a neighbour.
        """
        return (
            _match(self._onLink, address) is not None
            and address not in self.own
            and address not in self.broadcasts
            and not isMulticast(address)
        )

    def sourceFor(self, target: bytes) -> bytes | None:
        """
        @return: the own address to ask a neighbour from.
        """
        found = _match(self._onLink, target)
        if found is None:
            found = next((each for each in self.own if len(each) == len(target)), None)
        return found

    def reporterFor(self, destination: bytes) -> bytes | None:
        """
        @return: the source of an ICMP error about a packet.  Linux takes none from an address of its own that
            comes from outside, so it is the destination, or for a group a neighbour's address.
        """
        if not isMulticast(destination) and destination not in self.broadcasts:
            return destination
        for each in self.addresses:
            if len(each.packed) == len(destination) and each.network.num_addresses >= 4:
                first = int(each.network.network_address) + 1
                return (first + (first == int(each))).to_bytes(len(destination), "big")
        return None


def _row(network: AnyNetwork, there: bytes) -> tuple[int, int, int, bytes]:
    shift = network.max_prefixlen - network.prefixlen
    return network.max_prefixlen // 8, shift, int(network.network_address) >> shift, there


def _match(rows: list[tuple[int, int, int, bytes]], address: bytes) -> bytes | None:
    number, size = int.from_bytes(address, "big"), len(address)
    for octets, shift, prefix, there in rows:
        if octets == size and number >> shift == prefix:
            return there
    return None
