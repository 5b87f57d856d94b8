"""
The search for the next hop to a peer, of devices whose peers the kernel finds.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_ib.hca.base.timers import Timer
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.hca.host.neighbours import NextHop
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

#: Between looks at the kernel's table: at first, and at most.
_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.001, 0.1


def searched(device: Device, peer: Address, seconds: float, found: Callable[[bool], None]) -> Search | None:
    """
    Search for the next hop to a peer, which may be a multicast group.

    @param seconds: how long.
    @param found: called with whether it was found, perhaps before this returns.
    @return: the search, if it goes on.
    @raise OSError: the kernel has no route.
    """
    own, address = device.address, peer.host
    # The kernel finds the peers of a device that has an address of this host, but for those that IPoIB finds.
    if own is None or peer.isMulticast or isLocalAddress(address) or not isLocalAddress(own):
        found(True)
        return None
    if device.resolver is not None and device.resolver.sourceFor(address):
        found(True)
        return None
    search = Search(device, NextHop(address, own), seconds, found)
    search.look()
    return search


class Search:
    """
    Looks again and again.
    """

    def __init__(
        self, device: Device, nextHop: NextHop, seconds: float, found: Callable[[bool], None]
    ) -> None:
        """
        @param seconds: how long.
        @param found: called with whether it was found.
        """
        self._device = device
        self._nextHop = nextHop
        self._end = device.clock() + seconds
        self._found = found
        self._pause = _LOOK_SECONDS
        self._timer: Timer | None = None

    def look(self) -> None:
        """
        Look whether it is known.
        """
        left = self._end - self._device.clock()
        if self._nextHop.isKnown():
            self._found(True)
        elif left > 0:
            self._timer = self._device.timers.start(min(self._pause, left), self.look)
            self._pause = min(2 * self._pause, _MOST_LOOK_SECONDS)
        else:
            self._found(False)

    def cancel(self) -> None:
        """
        Look no more.  Idempotent.
        """
        if self._timer is not None:
            self._timer.cancel()
