"""
A fabric, as its device sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zope.interface import Attribute, Interface

from twisted_ib.hca.base.interfaces.roles import PathUser, Search, Segment
from twisted_ib.hca.base.traits import Traits

if TYPE_CHECKING:
    from select import epoll

    from twisted_ib.hca.connection.interfaces import Parking


class IFabricProgress(Interface):
    """
    How a fabric is driven: by polling, and by a descriptor that wakes whoever sleeps.
    """

    patient: bool = Attribute("Whether the caller polls C{progress} until nothing comes; set by the caller.")
    hot: tuple[Any, ...] = Attribute(
        "What is worth polling, a tuple; empty if nothing can arrive while this thread polls."
    )
    answerSeconds: float = Attribute("Seconds that polling for an answer pays, even if the peer has slept.")
    rung: int = Attribute("How often a peer was woken.")
    sleeps: int = Attribute("How often this side went to sleep; a caller adds what was as good as that.")

    def octets() -> tuple[int, int] | None:
        """
        @return: the octets sent and received, with the records' headers; L{None} if not counted.
        """

    def published() -> int:
        """
        @return: how many records were sent, of which long ones count more than once, and none for what is
            only received; always 0 if that is not known.
        """

    def progress(budget: int) -> int:
        """
        Process what has arrived.

        @param budget: records per path at most.
        @return: the number of records.
        """

    def ringBells() -> None:
        """
        Wake the peers that something was published for; the batch ends.
        """

    def pending() -> bool:
        """
        @return: whether C{progress} has something to do.
        """

    # Arming and the last look are one step: work that arrives between them would not wake anyone.
    def arm() -> bool:
        """
        Ask to be woken through the descriptor from now on.

        @return: False if there is work after all.
        """

    def look() -> bool:
        """
        Find the paths that have work, after waking.

        @return: whether any path is polled in each turn now.
        """

    def attend() -> None:
        """
        Serve the descriptors: incoming peers, handshakes, deaths.
        """

    def fileno() -> int:
        """
        @return: a descriptor that is readable when C{attend} has work.
        """

    def signal() -> None:
        """
        Make C{fileno} readable: there is work from outside of C{progress}.
        """

    # Edge-triggered eventfds that are never read save one system call for each wake-up.
    def registerWith(poller: epoll | None) -> None:
        """
        Register the doorbells with a reactor's C{select.epoll}, where they are never read, instead of behind
        C{fileno}; with L{None} there again.
        """

    def deadline() -> float | None:
        """
        @return: when C{tick} should be called, or L{None}.
        """

    def tick(now: float) -> None:
        """
        Run expired timers; C{now} is the device's time, seconds.
        """

    def unsent() -> bool:
        """
        @return: whether connection management messages wait for space on any path.
        """


class IDirectory(Interface):
    """
    The services of this HCA, as its peers find them, and the way to those of its peers.
    """

    # The equivalent of a listening CM service on a port (IBTA vol. 1 12.9; Linux cm.c, ib_cm_listen); here it
    # also rendezvouses the processes of a host.
    def publish(serviceID: int, address: str, inode: int = 0) -> None:
        """
        Let other HCAs find this one for a service at an address.

        @param inode: the inode of the same server's TCP socket there, or 0: clients of that socket may come
            here.
        @raise ServiceInUseError: another HCA has it.
        @raise NoRouteError: this fabric does not serve the address.
        """

    def publishAny(prefix: int, address: str) -> int:
        """
        Publish a service on any free port.

        @return: the port; the service id is C{prefix + port}.
        """

    def withdraw(serviceID: int, address: str) -> None:
        """
        Undo C{publish} or C{publishAny}.
        """

    # In place of the path record query to a subnet administrator, which RoCE does not have
    # (IBTA vol. 1 annex A17).
    def resolve(serviceID: int, address: str, user: PathUser) -> Search:
        """
        Resolve the path to the HCA that serves a service at an address.

        @param user: gets C{pathReady(path)}, perhaps before this returns, or C{connectFailed(error)} later.
        @return: an object with C{cancel()}.
        @raise NoRouteError: this fabric does not reach the address.
        @raise NoListenerError: no HCA serves it.
        @raise HiddenListenerError: one does, but not for this process.
        """

    # IBTA vol. 1 10.5: each HCA joins for all its queue pairs; they are attached by the device.
    def join(group: int) -> None:
        """
        Publish this HCA as a member of a multicast group.

        @param group: the MGID, 128 bits.
        @raise HCAError: it cannot be published.
        """

    def leave(group: int) -> None:
        """
        Undo C{join}; harmless if this HCA is not a member.
        """


class IHostDirectory(IDirectory):
    """
    The directory of one host: a peer is a process, named by the GUID of its HCA (L{Peers.PROCESSES
    <twisted_ib.hca.base.traits.Peers>}).
    """

    def serving(serviceID: int, address: str) -> Sequence[int]:
        """
        Find the HCAs that serve a service, without dialling them.

        @return: their GUIDs in order of preference; some may be dead.
        @raise ValueError: C{address} is not an IP address.
        """

    def reach(guid: int, user: PathUser) -> Search:
        """
        Resolve the path to the HCA of a GUID: one that this side has dialled, or a new one.  A path to this
        HCA itself has its other end as C{twin}.

        @param user: as for C{resolve}.
        @return: an object with C{cancel()}.
        @raise NoListenerError: there is no such HCA.
        """

    # A process may claim any GUID in its handshake; the kernel's credentials of the socket prove it.
    def proves(path: Any, guid: int) -> bool | None:
        """
        Verify that the HCA at the other end of a path has a GUID.  Its own claim is no proof.

        @return: L{None} if that cannot be verified now.
        """

    def guids(gid: int) -> tuple[set[int], set[int]]:
        """
        Find the HCAs whose GUIDs make one loopback address (L{twisted_ib.hca.wire.grh.loopbackGID}).

        @return: the GUIDs of those of this process's user, this HCA's perhaps among them; and if there are
            none, of those of other users.  Where they are several, none is dead.
        """

    def members(group: int) -> tuple[int, ...]:
        """
        @return: the GUIDs of a multicast group's HCAs, perhaps with this one; immutable.  The same object
            while nothing has changed.
        """


class IAddressDirectory(IDirectory):
    """
    The directory of addresses: a peer is an IP address, which is a GID as well (L{Peers.ADDRESSES
    <twisted_ib.hca.base.traits.Peers>}).
    """

    address: str = Attribute("The HCA's own IP address, as text without a scope.")
    gidSlots: int = Attribute("How many slots of the GID table it fills.")

    def reachGID(gid: int, user: PathUser) -> Search:
        """
        Find the path to a GID, of a peer or of a multicast group.

        @param user: as for C{resolve}.
        @return: an object with C{cancel()}.
        @raise NoRouteError: it is no IP address that can be reached from here.
        """

    def reachPeer(gid: int, user: PathUser) -> Search:
        """
        Find the path to the GID that a program gives a queue pair with its peer's number; as L{reachGID}.
        """

    # Such a device has no entry in the host's run directory; the socket at which commands query it is served
    # with the fabric.
    def watch(fd: int, call: Callable[[], object]) -> None:
        """
        Have C{attend} call C{call} while a descriptor is readable.
        """


class IFabricConnections(Interface):
    """
    The paths to peers, and what they have in common.
    """

    # Implementations: shared memory between processes, loopback within a thread, and RoCEv2 packets
    # (IBTA vol. 1 annex A17).
    name: str = Attribute("The name of its row in L{twisted_ib.hca.device.registry}.")
    traits: Traits = Attribute("Facts of its kind, L{Traits<twisted_ib.hca.base.traits.Traits>}.")
    owner: Any = Attribute("The device, an L{IFabricOwner}.")
    guid: int = Attribute("The device's GUID.")

    def count(name: str) -> None:
        """
        Add one to a counter of the device.
        """

    def paths() -> Sequence[Any]:
        """
        @return: the paths to living peers.
        """

    def allocate(size: int) -> Segment | None:
        """
        Allocate C{size} bytes of memory that peers can map.

        @return: an object with C{map}, a buffer of at least that size, and C{close()}; L{None} if
            unsupported.
        """

    def trace(observer: Any) -> None:
        """
        Have what this fabric sends and receives observed from now on.

        @param observer: an L{IFabricObserver<twisted_ib.hca.fabric.base.link.IFabricObserver>}.
        """

    def forked() -> None:
        """
        Make every use an error, in a forked child.
        """

    def close() -> None:
        """
        Withdraw and release everything.
        """


class IFabric(IFabricProgress, IDirectory, IFabricConnections):
    """
    A fabric carries operations from one HCA to others.  Its directory is an L{IHostDirectory} or an
    L{IAddressDirectory}, as its traits say.
    """

    facts: dict[str, str] = Attribute("Texts that describe it beside its traits, or instead of one, by name.")


class IPacketFabric(IFabric, IAddressDirectory):
    """
    A fabric of packets.
    """

    pathMTU: int = Attribute("The most octets of a packet's payload: its link's.")
    packetsSent: int = Attribute("Packets sent.")
    packetsReceived: int = Attribute("Packets received, valid or not.")
    slot: int = Attribute("The upper bits of the numbers of a process that shares its address; else 0.")
    icrc: str = Attribute("The library that computes the CRC of packets: C{isal}, or the slower C{zlib}.")

    def pathMTUTo(address: str) -> int:
        """
        @return: see L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
        """

    def learnedMTUTo(address: str) -> int:
        """
        @return: the same as it was within the last second: what a request has it asked costs no socket each.
        """

    def routeMTUTo(address: str) -> int:
        """
        @return: see L{ILink<twisted_ib.hca.fabric.base.link.ILink>}, within the last second.
        """

    def follow(connection: object, message: object) -> None:
        """
        The message of a connection, REQ, REP or RTU, will be sent, or with L{None} it is established, or has
        ended: another process that shares the address ends it if this one dies.
        """

    def nameSources(parked: Parking) -> None:
        """
        Say how the sources of requests are named, of which octets are kept alone.

        @param parked: to be told.
        """
