"""
The two sides of an IPoIB interface: its machine, and the driver that the machine acts through.

A I{frame} is an encapsulation header (RFC 4391 section 6: EtherType, and two octets that are 0) and a packet;
a I{packet} is an IP packet.  GIDs are integers, IP addresses C{bytes} of 4 or 16 octets in network order,
times (C{now}) seconds of one clock.  A I{path} and a I{handle} are opaque: the driver has made them.
"""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import TYPE_CHECKING, Any

from attrs import frozen
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twisted_ib.ipoib.protocol.neighbours import Neighbours
    from twisted_ib.ipoib.protocol.routes import AnyInterface
    from twisted_ib.ipoib.protocol.wire import Buffer


@frozen(eq=False)
class Group:
    """
    A multicast group that subnet administration has, as a member needs it.

    @ivar mgid: its GID.
    @ivar mlid: its LID; 0 where ports have none.
    @ivar qKey: the Q_Key of its datagrams; the broadcast group's is that of all unicast datagrams too.
    @ivar mtu: the IB MTU, octets: 2048 or 4096.
    @ivar path: what L{IMachineDriver.postGroup} needs to send to it.
    """

    mgid: int
    mlid: int
    qKey: int
    mtu: int
    sl: int = 0
    rate: int = 0
    flowLabel: int = 0
    tClass: int = 0
    hopLimit: int = 0
    pKey: int = 0xFFFF
    path: Any = None


@frozen(eq=False)
class Settings:
    """
    The settings of a machine.

    @ivar gid: the port's GID.
    @ivar qpn: the number of the interface's UD queue pair.
    @ivar addresses: the interface's IP addresses and networks.  The machine adds the link-local IPv6 address
        that the GID gives.
    @ivar pKey: the partition.
    @ivar isConnected: whether connected mode is offered, and used with neighbours that offer it.
    @ivar mtu: the longest packet, octets; by default, and at most, what the mode has.
    @ivar gateways: networks that are not on this link, and the address of the neighbour that leads there.
    """

    gid: int
    qpn: int
    addresses: tuple[IPv4Interface | IPv6Interface, ...] = ()
    pKey: int = 0xFFFF
    isConnected: bool = True
    mtu: int | None = None
    gateways: tuple[tuple[IPv4Network | IPv6Network, bytes], ...] = ()


class IMachineDriver(Interface):
    """
    The calls that a machine makes to its adapter.

    C{resolve} and C{join} may be answered before they return; C{connect} may not.  No method raises.
    """

    def resolve(gid: int) -> None:
        """
        Find the path to a port.  It is answered once, by L{IMachine.pathResolved} or L{IMachine.pathFailed}.
        """

    def join(mgid: int, isSendOnly: bool, template: Group | None) -> None:
        """
        Join a group.  It is answered by L{IMachine.joined}, which also tells later changes, or by
        L{IMachine.joinFailed}, which also tells that a membership was lost.  A second call for a group that
        is joined to send only makes this end a full member.

        @param isSendOnly: whether nothing is to be received from it.
        @param template: L{None} for the broadcast group, which must exist; else the broadcast group's
            L{Group}, whose values a group is made with (RFC 4391 section 10).
        """

    def leave(mgid: int) -> None:
        """
        Leave a group, or stop joining it.  It is not answered.
        """

    def post(path: Any, qpn: int, frame: Buffer) -> None:
        """
        Send a frame to a UD queue pair with the broadcast group's Q_Key, or lose it, as on a wire.

        @param frame: bytes-like; copied before this returns.
        """

    def postGroup(group: Group, frame: Buffer) -> None:
        """
        Send a frame to a L{Group}, or lose it.
        """

    def connect(gid: int, qpn: int, privateData: bytes) -> Hashable:
        """
        Ask for a reliable connection (RFC 4755): service id C{0x1000000000000000 | qpn}.  It is answered by
        L{IMachine.connected} or L{IMachine.connectFailed}, unless C{disconnect} comes first.

        @param qpn: the peer's UD queue pair.
        @return: the connection's handle: hashable, and never used for another.
        """

    def postConnected(handle: Any, frame: Buffer) -> bool:
        """
        Send a frame on a connection that was made by C{connect}.

        @return: False if there was no room, and it was dropped.
        """

    def disconnect(handle: Any) -> None:
        """
        End a connection of either direction, or an attempt.  It is not answered.
        """

    def deliver(buffer: Buffer, start: int, stop: int) -> None:
        """
        Take an IP packet: one that arrived, or an ICMP error about one that was to be sent.

        @param buffer: valid during the call only.
        """

    def interfaceUp(mtu: int) -> None:
        """
        The broadcast group is joined, for the first time or again: packets pass.

        @param mtu: the longest packet, octets.
        """

    def interfaceFailed(error: Exception) -> None:
        """
        The broadcast group could not be joined, or was lost.  The machine tries again by itself.
        """

    def found(address: bytes, hardwareAddress: bytes, path: Any) -> None:
        """
        Answer of L{IMachine.lookup}.

        @param address: what was asked for.
        @param hardwareAddress: 20 octets: the capabilities, the UD queue pair, the GID.
        @param path: as C{resolve} was answered; L{None} for an own address.
        """

    def notFound(address: bytes) -> None:
        """
        Answer of L{IMachine.lookup}: it is not on this link, or does not answer.
        """

    def deadlineChanged() -> None:
        """
        L{IMachine.deadline} may have become earlier than when it was last asked.
        """

    def count(name: str) -> None:
        """
        Add one to a counter of L{COUNTERS<twisted_ib.ipoib.protocol.counters.COUNTERS>}.
        """


class IMachine(Interface):
    """
    The machine of one interface: C{Machine(driver, settings)}.  No method raises for what a peer sends.
    """

    mtu: int = Attribute("The longest packet, octets; 0 until the broadcast group is joined.")
    hardwareAddress: bytes = Attribute("The 20 octets that ARP and ND tell (RFC 4391 section 9.1.1).")
    neighbours: Neighbours = Attribute(
        "The L{Neighbours<twisted_ib.ipoib.protocol.neighbours.Neighbours>} of this link."
    )
    addresses: tuple[AnyInterface, ...] = Attribute(
        "A tuple of C{IPv4Interface} and C{IPv6Interface}, the link-local one included."
    )

    def begin(now: float) -> None:
        """
        Join the broadcast group, and all else when that is done.
        """

    def send(frame: Buffer, now: float) -> None:
        """
        Send a packet with its header in front.

        @param frame: bytes-like; it is copied if it must wait.
        """

    def datagramReceived(sourceGID: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        A frame arrived at the UD queue pair.

        @param sourceGID: 0 where the datagram has no GRH.
        """

    def pathResolved(gid: int, path: Any, now: float) -> None:
        """
        Answer of L{IMachineDriver.resolve}; also, unasked, a new path to a port.
        """

    def pathFailed(gid: int, now: float) -> None:
        """
        Answer of L{IMachineDriver.resolve}: there is no path.
        """

    def joined(mgid: int, group: Group, now: float) -> None:
        """
        Answer of L{IMachineDriver.join}: a L{Group}.
        """

    def joinFailed(mgid: int, error: Exception, now: float) -> None:
        """
        A group could not be joined, or its membership was lost.

        @param error: an exception.
        """

    def connected(handle: Hashable, privateData: bytes, now: float) -> None:
        """
        Answer of L{IMachineDriver.connect}.

        @param privateData: of the REP.
        """

    def connectFailed(handle: Hashable, now: float) -> None:
        """
        Answer of L{IMachineDriver.connect}: refused, or not answered.
        """

    def connectionRequested(handle: Hashable, gid: int, privateData: bytes, now: float) -> bytes | None:
        """
        A peer asks for a connection, on which only the peer sends.

        @param gid: the peer's port.
        @param privateData: of the REQ.
        @return: the private data of the REP; L{None} to refuse.
        """

    def connectedReceived(handle: Hashable, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        A frame arrived on a connection that was accepted.
        """

    def connectionEnded(handle: Hashable, now: float) -> None:
        """
        A connection of either direction was ended by the peer, or failed.
        """

    def joinGroup(group: bytes) -> None:
        """
        Receive what is sent to an IP multicast address.  Joins are counted.

        @param group: 4 or 16 octets.
        @raise ValueError: it is no multicast address.
        @raise ResourceLimitError: there are too many groups.
        """

    def leaveGroup(group: bytes) -> None:
        """
        Undo one C{joinGroup}.  A group that was not joined is ignored.
        """

    def lookup(address: bytes, now: float) -> None:
        """
        Resolve an IP address without a packet: its own, if it is on this link, or its gateway's.  It is
        answered by L{IMachineDriver.found} or L{IMachineDriver.notFound}, perhaps before this returns.
        """

    def subnetChanged(now: float) -> None:
        """
        Ports may have other LIDs: all paths are resolved again.  Groups are rejoined by who has joined them.
        """

    def deadline() -> float | None:
        """
        @return: when C{tick} is to be called, or L{None}.
        """

    def tick(now: float) -> None:
        """
        Do what is due.
        """

    def close(now: float) -> None:
        """
        Leave all groups and end all connections.  Packets that come later are counted, and dropped.
        """
