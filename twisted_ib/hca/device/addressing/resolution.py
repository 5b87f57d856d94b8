"""
Address resolution, whatever names the peers: who gets the datagrams that arrive, and multicast groups.

A L{Resolution} is of one device.  Its subclasses find the paths: C{processes} by GUIDs, C{addresses} by IP
addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.interfaces import IDevice, IPacketFabric
from twisted_ib.hca.base.partition import matches
from twisted_ib.hca.base.states import RECEIVING, QPType
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.fabric.base.streams import IStreamFabric
from twisted_ib.hca.fabric.base.subnetdirectory import ISubnetDirectory
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.hca.host.socketpage.page import IListed
from twisted_ib.hca.wire.grh import DETH_BYTES, isMulticast
from twisted_ib.hca.wire.headers import IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, DatagramPath, IPeerPath, PathUser, Search
    from twisted_ib.hca.connection.interfaces import IAddressResolver
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair

#: Bytes from the DETH on, at most.
_LONGEST = DETH_BYTES + IMMEDIATE.size + limits.DATAGRAM_BYTES


class IDeviceFabric(IPacketFabric, IStreamFabric, ISubnetDirectory, IListed):
    """
    All that a device asks of fabrics: each of them has the part that its traits say.
    """


class IResolvingDevice(IDevice, Protocol):
    """
    A device, as its resolution sees it.

    @ivar resolver: finds the HCAs of addresses that no directory of the fabric has.
    """

    resolver: IAddressResolver | None

    @property
    def fabric(self) -> IDeviceFabric:
        """
        The device's fabric.
        """


class Resolution:
    """
    The paths of one device by its peers' addresses, and its members of multicast groups; see
    L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.

    @ivar takesDatagrams: whether the device ever had UD queue pairs.
    @cvar hasSMI: whether ports have a subnet manager's agent, and so queue pair 0.
    @cvar sharesAddresses: whether peers are processes that have all addresses of this host; the resolver's
        are of one device in any case.
    """

    hasSMI = True
    sharesAddresses = False

    def __init__(self, device: IResolvingDevice) -> None:
        self.takesDatagrams = False
        self._device = device
        self._attached: dict[int, dict[StreamQueuePair, None]] = {}

    def joined(self) -> None:
        """
        The device has its port.
        """

    # -- addresses

    @property
    def nodeGUID(self) -> int:
        """
        The GUID of the device's node.
        """
        return self._device.guid

    def gids(self) -> list[str]:
        """
        @return: the GID table as text: the port's own, and what else names it.
        """
        return [normalise(gidText(gid)) for gid in self._device.port.gids]

    def hasGID(self, gid: int) -> bool:
        """
        @param gid: 128 bits; an IPv4 address is C{::ffff:a.b.c.d}.
        @return: whether the GID table has it.
        """
        device = self._device
        return gid == device.gid or gid in device.port.gids or self.isLocal(gidText(gid))

    def guidOf(self, address: str) -> int:
        """
        @return: the GUID in an address that is a GID of the device's subnet, whether or not a device has it;
            0 if it is none, or there is no subnet.
        """
        return 0

    def hostNamed(self, name: str) -> str:
        """
        Find a host by a name that the reactor's resolver need not know.

        @return: the GID of the node of a subnet with this description; C{""} if there is none, or no subnet.
        """
        return ""

    def unknownHost(self, name: str) -> str:
        """
        @return: the reason why no host has a name that neither L{hostNamed} nor the resolver knows, and what
            is one; C{""} where names are the resolver's alone.
        """
        return ""

    def sourceFor(self, address: str) -> str:
        """
        @return: the source address of connections to an address, where the user has bound none.
        """
        raise NotImplementedError

    def isLocal(self, address: str) -> bool:
        """
        Whether an address is of this host, so that a local process may have it; where peers are IP addresses,
        whether it is the device's own.
        """
        raise NotImplementedError

    def isPeers(self, path: IPeerPath, address: str) -> bool:
        """
        Whether the peer of a path may have the address that it claims.

        @param path: the path that the claim came by.
        @param address: without a scope.
        """
        raise NotImplementedError

    def isOfGUID(self, address: str) -> bool:
        """
        @return: whether an address is the GID made of an HCA's GUID, which leads to it without a look-up.
        """
        return False

    # -- paths

    def check(self, key: int, number: int = 0) -> int:
        """
        Check that an address leads to one HCA.

        @param key: an L{AddressVector<twisted_ib.hca.services.address.AddressVector>}'s.
        @param number: the destination queue pair, if it is known.
        @return: the HCA's GUID, or 0 if that is not what finds it.
        @raise SharedGIDError: it is an address of this host, which all HCAs share, and no queue pair here has
            the number.
        @raise NoRouteError: it is unreachable.
        """
        raise NotImplementedError

    def reach(self, key: int, user: PathUser) -> Search | None:
        """
        Resolve the path for datagrams to an address.

        @param key: a vector's.
        @param user: gets C{pathReady(path)}, perhaps before this returns, with a path or a group's; or
            C{connectFailed(error)} later.
        @return: an object with C{cancel()}, or L{None} if the user was called already.
        @raise HCAError: there is no path.
        """
        raise NotImplementedError

    def reachHCA(self, gid: int, user: PathUser) -> Search | None:
        """
        Resolve the path for connections to the HCA of a port.

        @param gid: the port's.
        @param user: gets C{pathReady(path)}, perhaps before this returns, or C{connectFailed(error)} later.
        @return: an object with C{cancel()}, or L{None} if the user was called already.
        @raise HCAError: there is no path.
        """
        raise NotImplementedError

    def gidOf(self, path: DatagramPath) -> int:
        """
        @param path: one for connections.
        @return: the GID of the peer's port.
        """
        gid: int = path.peer.gid
        return gid

    def lidOf(self, path: DatagramPath) -> int:
        """
        @param path: one for connections.
        @return: the LID of the peer's port; 0 where there are none.
        """
        return 0

    def resolvePath(self, queuePair: QueuePair) -> None:
        """
        Resolve the path of a queue pair in RTR that has an address vector.

        Calls C{queuePair.pathFound(path)}, perhaps before this returns; C{queuePair.pathFailed(error)} ends
        it.

        @raise SharedGIDError: the GID is an address of this host.
        @raise NoRouteError: it is unreachable.
        @raise ResourceLimitError: too many are being resolved.
        """
        raise NotImplementedError

    def leave(self, queuePair: StreamQueuePair) -> None:
        """
        Stop the resolution for a queue pair, if there is one.
        """

    def pathAccepted(self, path: IPeerPath) -> None:
        pass

    def pathLost(self, path: IPeerPath) -> None:
        pass

    def isProven(self, path: DatagramPath) -> bool:
        """
        Whether the peer of a path is the one that its datagrams name.
        """
        return True

    # -- management

    def hold(self, key: int, number: int) -> Any:
        """
        Get the way of management datagrams to an address, until L{release}.

        @param key: a vector's.
        @param number: the destination queue pair.
        @return: an object with C{send}, as of L{AddressPath<twisted_ib.hca.services.address.AddressPath>}.
        """
        return self._device.addressPaths.hold(key)

    def release(self, way: Any) -> None:
        """
        Undo L{hold}.
        """
        self._device.addressPaths.release(way)

    # -- datagrams

    def datagramReceived(
        self,
        path: DatagramPath,
        opcode: int,
        number: int,
        buffer: Buffer,
        start: int,
        stop: int,
        partition: int = 0,
    ) -> None:
        device = self._device
        form = device.datagramForm
        # IBTA vol. 1 9.8.3: the headers precede the payload, which has at most the path MTU.
        if not DETH_BYTES <= stop - start - form.size <= _LONGEST:
            device.count("datagrams_malformed")
            return
        # Copied once, as the buffer may be memory that the peer still writes: the check of the destination
        # and all readers must see the same bytes.
        record = bytes(buffer[start:stop])
        group = form.group(record)
        if group:
            # A list: the program may attach and detach while it handles a datagram.
            targets = [queuePair for queuePair in self._attached.get(group, ()) if takesDatagrams(queuePair)]
        else:
            target = device.queuePairs.get(number)
            targets = [target] if target is not None and takesDatagrams(target) else []
        # Dropped silently, and counted: UD has no acknowledgements (IBTA vol. 1 9.8.3; Linux rxe_recv.c).
        if not targets:
            device.count("datagrams_unclaimed")
        # A datagram names its sender, and replies go there: without proof of the caller's GUID it is dropped.
        elif not self.isProven(path):
            device.count("datagrams_unproven")
        else:
            for target in targets:
                # A packet was let through if it matched any P_Key of the port; each queue pair has its own.
                if partition and not matches(partition, target.partition):
                    device.count("packets_bad_pkey")
                    continue
                target.work.responder.received(path, opcode, record, 0, len(record))

    # -- multicast

    def attach(self, queuePair: QueuePair, gid: int) -> None:
        """
        Attach a queue pair to a multicast group.  Idempotent.

        @raise QueuePairError: it is not a UD queue pair, or C{gid} is not a multicast GID.
        @raise ResourceLimitError: the device has L{limits.MULTICAST_GROUPS}, or the group
            L{limits.MULTICAST_QUEUE_PAIRS} here.
        @raise HCAError: the membership cannot be published.
        """
        if queuePair.type != QPType.UD or not isMulticast(gid):
            raise QueuePairError(f"queue pair {queuePair.number} cannot join group {gid:#x}")
        members = self._attached.get(gid)
        if members is None:
            if len(self._attached) >= limits.MULTICAST_GROUPS:
                raise ResourceLimitError(f"{limits.MULTICAST_GROUPS} multicast groups are joined")
            # Published before the queue pair is entered: if that fails there is nothing to undo.
            self._device.fabric.join(gid)
            members = self._attached[gid] = {}
        elif queuePair not in members and len(members) >= limits.MULTICAST_QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.MULTICAST_QUEUE_PAIRS} queue pairs are in that group")
        members[queuePair] = None

    def detach(self, queuePair: StreamQueuePair, gid: int) -> None:
        """
        Undo L{attach}.

        @raise QueuePairError: it is not attached.
        """
        members = self._attached.get(gid, {})
        if queuePair not in members:
            raise QueuePairError(f"queue pair {queuePair.number} is not in group {gid:#x}")
        del members[queuePair]
        if not members:
            del self._attached[gid]
            self._device.fabric.leave(gid)

    def groupsOf(self, queuePair: StreamQueuePair) -> list[int]:
        """
        The multicast GIDs that a queue pair is attached to.
        """
        return [gid for gid, members in self._attached.items() if queuePair in members]

    # -- ends

    def queuePairClosed(self, queuePair: StreamQueuePair) -> None:
        """
        Forget a destroyed queue pair.
        """
        # A program should have detached it (ibv_detach_mcast); if not, its number must not stay in the group.
        if self._attached:
            for gid in self.groupsOf(queuePair):
                self.detach(queuePair, gid)

    def close(self) -> None:
        """
        End all resolutions; the device is closing.
        """


def takesDatagrams(queuePair: StreamQueuePair | None) -> bool:
    """
    Whether a queue pair, or L{None}, receives datagrams now.
    """
    return (
        queuePair is not None
        and queuePair.type == QPType.UD
        and queuePair.work is not None
        and queuePair.state in RECEIVING
    )


def isWaiting(queuePair: QueuePair, vector: object) -> bool:
    """
    Whether a queue pair still wants the path of an address vector.
    """
    # Compared by identity: an equal vector of a later transition has a search of its own.
    return queuePair.path is None and queuePair.vector is vector and queuePair.state in RECEIVING
