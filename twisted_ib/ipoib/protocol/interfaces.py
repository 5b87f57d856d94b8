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
from zope.interface import Interface

if TYPE_CHECKING:
    from collections.abc import Hashable

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
        Find the path to a port.  It is answered once, by L{Machine.pathResolved} or L{Machine.pathFailed}.
        """

    def join(mgid: int, isSendOnly: bool, template: Group | None) -> None:
        """
        Join a group.  It is answered by L{Machine.joined}, which also tells later changes, or by
        L{Machine.joinFailed}, which also tells that a membership was lost.  A second call for a group that
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
        L{Machine.connected} or L{Machine.connectFailed}, unless C{disconnect} comes first.

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
        Answer of L{Machine.lookup}.

        @param address: what was asked for.
        @param hardwareAddress: 20 octets: the capabilities, the UD queue pair, the GID.
        @param path: as C{resolve} was answered; L{None} for an own address.
        """

    def notFound(address: bytes) -> None:
        """
        Answer of L{Machine.lookup}: it is not on this link, or does not answer.
        """

    def deadlineChanged() -> None:
        """
        L{Machine.deadline} may have become earlier than when it was last asked.
        """

    def count(name: str) -> None:
        """
        Add one to a counter of L{COUNTERS<twisted_ib.ipoib.protocol.counters.COUNTERS>}.
        """
