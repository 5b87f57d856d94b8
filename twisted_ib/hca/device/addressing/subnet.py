"""
Address resolution where peers are ports of a subnet, named by LIDs.

A LID leads to what the subnet's switches say now.  It is valid whether or not it leads anywhere, as on a
wire: datagrams to it are lost, and requests end when their retries are used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID
from twisted_ib.hca.connection.rdmacm import gidNumber, gidText, guidOf
from twisted_ib.hca.device.addressing.processes import PendingPaths, ProcessResolution
from twisted_ib.hca.device.addressing.resolution import Resolution
from twisted_ib.hca.host.addresses import isPeersAddress, normalise
from twisted_ib.hca.services.address import AddressPath
from twisted_ib.hca.wire.headers import QPN_MASK

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import DatagramPath, IPeerPath, PathUser, Search, Waiter
    from twisted_ib.hca.device.addressing.resolution import IResolvingDevice
    from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair

#: IBTA vol. 1 4.1.1: the lower half of a GID is the GUID, and the upper half is not 0.
_GUID_BITS: Final = 64
_GUID: Final = (1 << _GUID_BITS) - 1


class LIDPath:
    """
    The path of datagrams to a unicast LID: that to the HCA which it leads to, while it does.

    @ivar path: that path; L{None} if no HCA is at the port, where programs take MADs alone.

    See L{IPeerPath<twisted_ib.hca.base.interfaces.IPeerPath>}.
    """

    __slots__ = ("_device", "_generation", "_guid", "_isHere", "lid", "path")

    def __init__(self, device: IResolvingDevice, lid: int, guid: int, path: IPeerPath | None) -> None:
        self._device = device
        self._guid = guid
        self._generation = device.fabric.generation
        self._isHere = True
        self.lid = lid
        self.path = path

    @property
    def alive(self) -> bool:
        return bool(self._guid and (self.path is None or self.path.alive))

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        device = self._device
        # One comparison for each datagram, while nothing changes.
        if self._generation != device.fabric.generation:
            self._follow()
        if word & QPN_MASK <= GSI_QPN:
            device.fabric.managementPath(self.lid).send(word, header, payload, length)
            return True
        if not self._isHere or self.path is None:
            device.count("datagrams_lost")
            return True
        posted: bool = self.path.post(word, header, payload, length)
        return posted

    def _follow(self) -> None:
        fabric = self._device.fabric
        self._generation = fabric.generation
        guid = fabric.route(self.lid)
        self._isHere = guid == self._guid
        if guid and (not self._isHere or (self.path is None and fabric.has(guid))):
            # Another port has the LID now, or this one an HCA: what is sent next is resolved anew.
            self._guid = 0

    def wantSpace(self, waiter: Waiter) -> None:
        if self.path is not None:
            self.path.wantSpace(waiter)

    def wantNoSpace(self, waiter: Waiter) -> None:
        if self.path is not None:
            self.path.wantNoSpace(waiter)


class _Search:
    """
    One that waits for the path to a LID.
    """

    def __init__(self, paths: SubnetResolution, lid: int, guid: int, user: PathUser) -> None:
        self._paths = paths
        self._lid = lid
        self._guid = guid
        self._user = user

    def pathReady(self, path: IPeerPath) -> None:
        self._user.pathReady(self._paths.lidPath(self._lid, self._guid, path))

    def connectFailed(self, error: Exception) -> None:
        self._user.connectFailed(error)


class SubnetResolution(ProcessResolution):
    """
    The paths of one device to ports of its subnet, and its multicast groups, by their LIDs.
    """

    # A GID is of one HCA.
    sharesAddresses = False

    def __init__(self, device: IResolvingDevice) -> None:
        super().__init__(device)
        self._lidPaths: dict[int, LIDPath] = {}

    def joined(self) -> None:
        # The port has what the subnet manager has set.
        self._device.changePort(self._device.fabric.settings())

    # -- addresses

    @property
    def nodeGUID(self) -> int:
        # The GUID below its port's, which the topology counts on from it.
        return self._device.guid - 1

    def gids(self) -> list[str]:
        # A subnet does not know the host's addresses.
        return Resolution.gids(self)

    def hasGID(self, gid: int) -> bool:
        return gid == self._device.gid or gid in self._device.port.gids

    def guidOf(self, address: str) -> int:
        # RFC 4007 section 11: what has a zone is the address of an interface of this host.
        return 0 if "%" in address else guidOf(address, self._device.port.subnetPrefix)

    def hostNamed(self, name: str) -> str:
        guid = self._device.fabric.named(name)
        return normalise(gidText(self._device.port.subnetPrefix << _GUID_BITS | guid)) if guid else ""

    def unknownHost(self, name: str) -> str:
        return (
            f"no node of the subnet with a device has the description {name!r}, and no address was found for"
            f" it; a host of {self._device.name} is a GID, the description of a node, or this host"
        )

    def sourceFor(self, address: str) -> str:
        # An address of this host itself; else the port's GID.
        isHere = isPeersAddress(address, int(self._device.clock()))
        return super().sourceFor(address) if isHere else normalise(gidText(self._device.gid))

    def isLocal(self, address: str) -> bool:
        return gidNumber(address) in self._device.port.gids or super().isLocal(address)

    def isPeers(self, path: IPeerPath, address: str) -> bool:
        # A GID names an HCA of the subnet, and no resolver has it.
        guid = self.guidOf(address)
        return guid == path.peer.guid if guid else super().isPeers(path, address)

    def isOfGUID(self, address: str) -> bool:
        # The device's own look-up finds it.
        return False

    # -- paths

    def check(self, key: int, number: int = 0) -> int:
        # The key is a LID.
        # A connected queue pair has one peer: multicast is for UD only (IBTA vol. 1 10.5).
        if key > LARGEST_UNICAST_LID:
            raise NoRouteError(f"no port has the LID {key:#x}")
        return 0

    def reach(self, key: int, user: PathUser) -> Search | None:
        # The key is a LID; or the GID of a member of a group, whose GUID the subnet has told.
        fabric = self._device.fabric
        if key >> _GUID_BITS:
            return fabric.reach(key & _GUID, user)
        if key > LARGEST_UNICAST_LID:
            user.pathReady(self._group(key))
            return None
        guid = self._routed(key)
        if not fabric.has(guid):
            user.pathReady(self.lidPath(key, guid, None))
            return None
        return fabric.reach(guid, _Search(self, key, guid, user))

    def reachHCA(self, gid: int, user: PathUser) -> Search | None:
        # The directory finds an HCA of the subnet by its GID, whatever the service.
        return self._device.fabric.resolve(0, gidText(gid), user)

    def gidOf(self, path: DatagramPath) -> int:
        prefix: int = self._device.port.subnetPrefix
        guid: int = path.peer.guid
        return prefix << _GUID_BITS | guid

    def lidOf(self, path: DatagramPath) -> int:
        lid: int = path.peer.lid
        return lid

    def lidPath(self, lid: int, guid: int, path: IPeerPath | None) -> LIDPath:
        """
        @return: the path to a LID over that to an HCA.
        """
        found = self._lidPaths.get(lid)
        if found is None or not found.alive or found.path is not path:
            found = self._lidPaths[lid] = LIDPath(self._device, lid, guid, path)
        return found

    def _routed(self, lid: int) -> int:
        guid: int = self._device.fabric.route(lid)
        if not guid:
            raise NoRouteError(f"nothing leads to the LID {lid:#x}")
        return guid

    # -- queue pairs

    def keyOf(self, queuePair: StreamQueuePair) -> int:
        lid: int = queuePair.vector.lid
        return lid

    def find(self, key: int, pendingPaths: PendingPaths) -> Search | None:
        return super().find(self._routed(key), pendingPaths)

    def pendingOf(self, guid: int) -> list[PendingPaths]:
        route = self._device.fabric.route
        return [each for each in self._pendingPaths.values() if route(each.key) == guid]

    def isProven(self, path: DatagramPath) -> bool:
        # A sender of MADs through the subnet need not be a device.
        return not path.peer.guid or super().isProven(path)

    def pathLost(self, path: IPeerPath) -> None:
        super().pathLost(path)
        for found in [each for each in self._lidPaths.values() if each.path is path]:
            del self._lidPaths[found.lid]
            self._device.addressPaths.pathLost(found)

    # -- management

    def hold(self, key: int, number: int) -> Any:
        return self._device.fabric.managementPath(key) if number <= GSI_QPN else super().hold(key, number)

    def release(self, way: Any) -> None:
        if isinstance(way, AddressPath):
            super().release(way)
