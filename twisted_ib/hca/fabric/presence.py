"""
Where the processes of a host find an HCA, and what they can believe of it.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.errors import HCAError
from twisted_ib.hca.fabric.addresses import checkLocal
from twisted_ib.hca.fabric.rendezvous import Rendezvous


class Presence:
    """
    The part of a fabric between processes that others find it by.

    @ivar rendezvous: Its place in the run directories.
    """

    rendezvous: Rendezvous

    def publish(self, serviceID: int, address: str) -> None:
        """
        Let others find this HCA for a service at an address.

        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: the address is not one of this host.
        """
        checkLocal(address, True)
        self.rendezvous.publish(serviceID, address)

    def publishAny(self, prefix: int, address: str) -> int:
        """
        The same with a port that is free.

        @return: The port.
        """
        checkLocal(address, True)
        return self.rendezvous.publishAny(prefix, address)

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Take back what L{publish} did.
        """
        self.rendezvous.withdraw(serviceID, address)

    def proves(self, path: Any, guid: int) -> bool | None:
        """
        See L{IFabric}: a caller's process must be the one that listens where others
        find the HCA.
        """
        pairing = path.pairing
        if not pairing.server:
            return bool(pairing.guid == guid)
        try:
            listener = self.rendezvous.listenerOf(guid)
        except (HCAError, OSError):
            return None
        if listener is None or not listener.pid:
            return False  # Processes outside of our process namespace all have the number 0.
        caller = pairing.credentials
        return bool((listener.pid, listener.uid) == (caller.pid, caller.uid))

    def join(self, group: int) -> None:
        """
        Let others find this HCA as a member of a multicast group.

        @raise RunDirectoryError: the directory can not be written.
        """
        self.rendezvous.join(group)

    def leave(self, group: int) -> None:
        """
        Take back what L{join} did.
        """
        self.rendezvous.leave(group)

    def members(self, group: int) -> tuple[int, ...]:
        """
        @return: See L{IFabric}.
        """
        return self.rendezvous.members(group)


__all__ = ["Presence"]
