"""
The services that a device listens for: a local table, since no other device has its address.
"""

from __future__ import annotations

from twisted_ib.errors import NoRouteError, ServiceInUseError
from twisted_ib.hca.host.addresses import conflict, freePort, normalise, wildcard


class ServiceTable:
    """
    Service ids at one address.
    """

    __slots__ = ("_address", "_services")

    def __init__(self, address: str) -> None:
        """
        @param address: the device's, as text without a scope.
        """
        self._address = address
        self._services: set[tuple[int, str]] = set()

    def _check(self, address: str) -> str:
        address = normalise(address).partition("%")[0]
        if address not in (self._address, wildcard(self._address)):
            raise NoRouteError(f"this device has the address {self._address}, not {address}")
        return address

    def publish(self, serviceID: int, address: str) -> None:
        """
        Listen for a service id.

        @param address: the device's, or the wildcard of its IP version.
        @raise ServiceInUseError: it is in the table.
        @raise NoRouteError: the address is not the device's.
        """
        address = self._check(address)
        # As bind(2) of TCP: a wildcard address conflicts with every address of the same port.
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"this device listens on {other} already")
        self._services.add((serviceID, address))

    def publishAny(self, prefix: int, address: str) -> int:
        """
        Listen at a free port.

        @return: the port.
        """
        address = self._check(address)
        port = freePort({service - prefix for service, _ in self._services})
        self._services.add((prefix + port, address))
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Undo L{publish} or L{publishAny}.
        """
        self._services.discard((serviceID, normalise(address).partition("%")[0]))


__all__ = ["ServiceTable"]
