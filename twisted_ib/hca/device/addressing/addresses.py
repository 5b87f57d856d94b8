"""
Address resolution where peers are hosts: a GID is an IP address (IBTA vol. 1 annex A17), which names one HCA
or one multicast group, and its path is known at once.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from twisted_ib.errors import NoRouteError
from twisted_ib.hca.device.addressing.resolution import Resolution, isWaiting
from twisted_ib.hca.wire.grh import isMulticast

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath, IPeerPath, PathUser, Search
    from twisted_ib.hca.queues.queuepair import QueuePair


class AddressResolution(Resolution):
    """
    The paths of one device to IP addresses.
    """

    # IBTA vol. 1 annex A17: a RoCE port has no subnet manager.
    hasSMI = False

    def gids(self) -> list[str]:
        own = super().gids()
        return own * self._device.fabric.gidSlots if len(own) == 1 else own

    def sourceFor(self, address: str) -> str:
        return self._device.address or address

    def isLocal(self, address: str) -> bool:
        device = self._device
        return address == device.address or (device.resolver is not None and device.resolver.isOwn(address))

    def isPeers(self, path: IPeerPath, address: str) -> bool:
        resolver = self._device.resolver
        # As on any link whose addresses are found by ARP, there is no other proof of one than that.  Who
        # connects has asked for this host, and so told its own address, before.
        if resolver is not None and resolver.sourceFor(address) and (gid := resolver.gidOf(address)):
            return bool(gid == self.gidOf(path))
        # IBTA vol. 1 annex A17: a RoCEv2 peer is what its packets' source address says, and nothing else.
        found: str = path.peer.address
        return address == found

    def check(self, key: int, number: int = 0) -> int:
        # A connected queue pair has one peer: multicast is for UD only (IBTA vol. 1 10.5).
        if isMulticast(key) or not key:
            raise NoRouteError(f"no HCA has the GID {IPv6Address(key)}")
        return 0

    def reach(self, key: int, user: PathUser) -> Search | None:
        return self._device.fabric.reachGID(key, user)

    def reachHCA(self, gid: int, user: PathUser) -> Search | None:
        self.check(gid)
        return self.reach(gid, user)

    def resolvePath(self, queuePair: QueuePair) -> None:
        vector = queuePair.vector
        self.check(vector.gid)
        self._device.fabric.reachPeer(vector.gid, PendingPath(queuePair, vector))


class PendingPath:
    """
    One queue pair that waits for the path to an IP address: see
    L{PathUser<twisted_ib.hca.base.interfaces.roles.PathUser>}.
    """

    __slots__ = ("_queuePair", "_vector")

    def __init__(self, queuePair: QueuePair, vector: object) -> None:
        self._queuePair = queuePair
        self._vector = vector

    def pathReady(self, path: IPath) -> None:
        if isWaiting(self._queuePair, self._vector):
            self._queuePair.pathFound(path)

    def connectFailed(self, error: Exception) -> None:
        if isWaiting(self._queuePair, self._vector):
            self._queuePair.pathFailed(error)
