"""
The services that a device with an address of its own answers for: nobody else has the address, so
nobody else need know of them.
"""

from __future__ import annotations

from twisted_ib.errors import NoRouteError, ServiceInUseError
from twisted_ib.hca.host.addresses import conflict, freePort, normalise, wildcard


class ServiceTable:
    """
    Services at an address.
    """

    __slots__ = ("_address", "_services")

    def __init__(self, address: str) -> None:
        """
        There are none.

        @param address: The device's, as text without a scope.
        """
        self._address = address
        self._services: set[tuple[int, str]] = set()

    def _check(self, address: str) -> str:
        """
        @return: An address to listen on, normalised.
        @raise NoRouteError: The device has another one.
        """
        address = normalise(address).partition("%")[0]
        if address not in (self._address, wildcard(self._address)):
            raise NoRouteError(f"this device has the address {self._address}, not {address}")
        return address

    def publish(self, serviceID: int, address: str) -> None:
        """
        Answer for a service.

        @param address: The device's, or that which stands for all of its IP version.
        @raise ServiceInUseError: It does so already.
        @raise NoRouteError: The address is another one's.
        """
        address = self._check(address)
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"this device listens on {other} already")
        self._services.add((serviceID, address))

    def publishAny(self, prefix: int, address: str) -> int:
        """
        The same with a port that is free.

        @return: The port.
        """
        address = self._check(address)
        port = freePort({service - prefix for service, _ in self._services})
        self._services.add((prefix + port, address))
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Take back what L{publish} or L{publishAny} did.
        """
        self._services.discard((serviceID, normalise(address).partition("%")[0]))


__all__ = ["ServiceTable"]
