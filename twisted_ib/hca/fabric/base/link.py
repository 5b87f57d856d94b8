"""
The datagram medium of a fabric of packets.
"""

from __future__ import annotations

from typing import Any, Final

from zope.interface import Attribute, Interface

from twisted_ib import limits

#: Of longer datagrams no two fit into a call of L{ILink.send}.
SEVERAL_BYTES: Final = limits.PACKET_BURST_BYTES // 2


class ILink(Interface):
    """
    The datagram medium of a fabric of packets: UDP, or a substitute.

    A datagram is the payload of UDP, from the base transport header to the invariant CRC, which the fabric
    makes and checks.  Addresses are text as L{normalise<twisted_ib.hca.host.addresses.normalise>} returns it,
    without a scope.  Delivery is not reliable.
    """

    address: str = Attribute("The IP address of this end.")
    # The sizes of enum ib_mtu (Linux ib_verbs.h; IBTA vol. 1 9.7.3), and C{rocev2.LONG_MTU_BYTES}.
    pathMTU: int = Attribute("The most octets of a packet's payload: 256, 512, 1024, 2048, 4096 or more.")
    # The invariant CRC covers identification and flags of the IPv4 header (IBTA vol. 1 annex A17; Linux
    # rxe_icrc.c), so the sender must know what the kernel will write.
    burst: int = Attribute(
        "How many datagrams of one size C{send} takes at a time.  Of IPv4 the first of them has"
        " identification 0, the next 1, and so on; all have Don't Fragment."
    )
    user: Any = Attribute(
        "Who takes what arrives, set by that: C{user.arrived(source, port, destination, buffer,"
        " start, stop, size, trafficClass)}, where C{buffer} has from C{start} to C{stop} datagrams"
        " of C{size} octets each, the last perhaps shorter.  It is valid during the call only; its"
        " slices are bytes.  Where the medium says that nobody receives at an address,"
        " C{user.undelivered(address, datagram)} is called with what was sent, perhaps cut off."
    )

    def pathMTUTo(destination: str) -> int:
        """
        @return: the largest payload of a packet to an IP address, in octets, as far as is known.
        """

    def routeMTUTo(destination: str) -> int:
        """
        @return: the same as far as routes are set to it, or C{pathMTU}: nothing that a stranger can change.
        """

    # One source port for each flow keeps its packets in order on networks with several paths
    # (IBTA vol. 1 annex A17; Linux ib_verbs.h, rdma_flow_label_to_udp_sport).
    def sourcePort(wanted: int) -> int:
        """
        @param wanted: the UDP source port that a flow should have.
        @return: the one that it gets.
        """

    # Several datagrams in one call, for UDP segmentation offload (udp(7), UDP_SEGMENT).
    def send(
        destination: str,
        port: int,
        pieces: list[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = 64,
    ) -> bool:
        """
        Send datagrams.

        @param port: a source port from C{sourcePort}.
        @param pieces: bytes-like objects, together datagrams of C{size} octets each, the last perhaps
            shorter.
        @return: False if nothing was sent because there is no space now.  Other failures lose datagrams.
        """

    def receive(budget: int) -> int:
        """
        Deliver what has arrived to C{user}.

        @param budget: datagrams at most, or a few more.
        @return: the number of datagrams.
        """

    def pending() -> bool:
        """
        @return: whether C{receive} has something to deliver.
        """

    def waiting() -> int:
        """
        @return: the octets of what waits for C{receive}, as the system counts them.
        @raise OSError: it does not tell.
        """

    def sift(program: bytes) -> None:
        """
        Let the system drop requests to connect, where it can.

        @param program: of classic BPF, which sees a UDP datagram from its header; empty: it drops none.
        """

    def fileno() -> int:
        """
        @return: a descriptor that is readable while something has arrived; -1 if there is none: then
            C{user.signal()} is called when something arrives.
        """

    def join(group: str) -> None:
        """
        Receive datagrams to a multicast address too.

        @raise HCAError: it cannot be joined.
        """

    def leave(group: str) -> None:
        """
        Undo C{join}.
        """

    def close() -> None:
        """
        Release everything.
        """


class IFabricObserver(Interface):
    """
    An observer of the traffic of a fabric, which puts itself where that passes.
    """

    def tracedPaths(base: type) -> type:
        """
        @param base: the class of the paths of a fabric of records.
        @return: a subclass, for the paths that follow.
        """

    def tracedLink(link: ILink) -> ILink:
        """
        @param link: the L{ILink} of a fabric of packets.
        @return: another in its place.
        """

    def tracedStream(stream: Any, isInitiator: bool, leftover: bytes) -> Any:
        """
        @param stream: a TCP socket of a fabric of streams, which is connected.
        @param isInitiator: whether this side sends MPA's Request.
        @param leftover: octets of MPA's that were received on it before.
        @return: another in its place, or the same.
        """

    def tracedMAD(isOutbound: bool, packet: Any) -> None:
        """
        A MAD passes the port of the fabric of a subnet.

        @param isOutbound: whether it leaves the port.
        @param packet: the L{Packet<twisted_ib.subnet.network.smi.Packet>}, as it is on the link.
        """
