"""
The two sides of an IPoIB interface: its machine, and the driver that the machine acts through; and its
counters.

A I{frame} is an encapsulation header (RFC 4391 section 6: EtherType, and two octets that are 0) and a packet;
a I{packet} is an IP packet.  GIDs are integers, IP addresses C{bytes} of 4 or 16 octets in network order,
times (C{now}) seconds of one clock.  A I{path} and a I{handle} are opaque: the driver has made them.
"""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from zope.interface import Interface

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twisted_ib.ipoib.protocol.wire import Buffer

#: The counters of an interface, and what each counts: nearly all are packets that were dropped.
COUNTERS: Final = {
    "address_conflict": "ARP and ND by which another port has an address of this interface",
    "arp_malformed": "ARP packets with a hardware type other than 32, other lengths, or cut short",
    "bad_source": "packets from broadcast or loopback addresses",
    "connected_full": "packets for which a connection had no room",
    "connected_too_long": "packets longer than this end has announced; the connection was ended",
    "connections_refused": "requests for connections with wrong private data, or beyond their bound",
    "encapsulation": "frames whose EtherType is unknown, or whose reserved octets are not 0",
    "fragmentation_needed": "packets longer than the path takes, answered by ICMP",
    "group_failed": "packets for groups that could not be joined",
    "group_waiting": "packets for groups that are being joined, beyond those that wait",
    "icmp_suppressed": "ICMP errors that were not made because there were too many",
    "ip_malformed": "packets shorter than their header, or of another version than the EtherType says",
    "local_full": "packets of ports to their own interface, beyond those that wait for the next turn",
    "malformed": "packets of IP, UDP and ICMP with wrong lengths, checksums or fragments",
    "nd_malformed": "neighbour discovery that RFC 4861 says to discard",
    "nd_of_user": "neighbour discovery of the user's own: the interface does it",
    "neighbour_failed": "packets whose neighbour did not answer, answered by ICMP",
    "neighbour_waiting": "packets whose neighbour is being resolved, beyond those that wait",
    "no_port": "datagrams to a number that no port has, answered by ICMP",
    "no_route": "packets to addresses that are not on this link and have no gateway, answered by ICMP",
    "not_for_us": "packets to other addresses, or to groups that no port has joined",
    "not_up": "packets while the broadcast group is not joined",
    "other_protocol": "packets that are neither UDP nor ICMP",
    "own_source": "packets with this port or an address of it as their sender; ARP and ND with it as subject",
    "send_malformed": "frames of the user that are no IP packets",
    "source_mismatch": "ARP and ND whose hardware address is of another port than their sender",
    "stray_error": "ICMP errors about datagrams that no port has sent",
}


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
        Add one to a counter of L{COUNTERS<twisted_ib.ipoib.protocol.interfaces.COUNTERS>}.
        """
