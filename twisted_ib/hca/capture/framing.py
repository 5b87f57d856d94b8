"""
How the packets of a device are framed: as its link layer has them.

On Ethernet they are RoCEv2 frames; an HCA without an IP address has the link-local GID of its GUID, an IPv6
address.  On InfiniBand they have a local route header, as on a link between two ports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from attrs import evolve, frozen

from twisted_ib.hca.base.operation import SMI_QPN
from twisted_ib.hca.capture.pcapng import ERF, ETHERNET
from twisted_ib.hca.services.datagramform import DatagramForm, LocalForm, RoutedForm
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.headers import QUEUE_KEY
from twisted_ib.hca.wire.lrh import LinkPacket
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY
from twisted_ib.hca.wire.packet import BaseHeader, Packet
from twisted_ib.hca.wire.rocev2 import UDPDatagram, ethernet, hardwareAddress, ipVersion

#: The hop limit of packets that were given none.
HOPS: Final = 64
#: Subnet management has a virtual lane of its own (IBTA vol. 1 7.6.1).
_MANAGEMENT_LANE: Final = 15


@frozen
class Direction:
    """
    The addresses of one direction between two HCAs.

    @ivar source: GUID of the sending HCA.
    @ivar target: GUID of the receiving HCA.
    @ivar fromGID: GID of the sender.
    @ivar toGID: GID of the receiver.
    @ivar label: flow label, 0 for none.
    @ivar level: service level, on InfiniBand.
    """

    source: int
    target: int
    fromGID: int
    toGID: int
    label: int = 0
    level: int = 0

    @classmethod
    def between(cls, source: int, target: int) -> Direction:
        """
        The direction between two HCAs of which only the GUIDs are known.
        """
        return cls(source, target, guidGID(source), guidGID(target))

    def back(self) -> Direction:
        """
        The opposite direction.
        """
        return Direction(self.target, self.source, self.toGID, self.fromGID, self.label, self.level)


class Framing(Protocol):
    """
    The frames of a device's packets.
    """

    @property
    def hasPartitions(self) -> bool:
        """
        Whether the packets of a connection have the P_Keys of its queue pairs, and not the default one.
        """

    @property
    def linkType(self) -> int:
        """
        That of the file's interface.
        """

    @property
    def form(self) -> DatagramForm:
        """
        That of the device's datagrams.
        """

    def packet(self, way: Direction, port: int, packet: Packet) -> bytes:
        """
        @param port: the UDP source port, where there is UDP.
        @return: the octets of a packet.
        @raise WireError: a field does not fit.
        """

    def datagram(self, way: Direction, port: int, packet: Packet, head: bytes) -> bytes:
        """
        @param head: what stands before the DETH in the datagram's record.
        @return: likewise, of a datagram.
        @raise WireError: a field does not fit, or the head is malformed.
        """


def hardware(guid: int) -> bytes:
    """
    @return: the MAC address of an HCA that has none.
    """
    # The first octet has the locally administered bit: a made-up MAC address must not be a vendor's.
    return b"\x02" + (guid & (1 << 40) - 1).to_bytes(5, "big")


def hardwareOf(gid: int) -> bytes:
    """
    @return: the MAC address to show for an IP address, whose last octets it ends with.
    """
    return b"\x02\x00" + (gid & 0xFFFFFFFF).to_bytes(4, "big")


class RoutedFraming:
    """
    RoCEv2 in Ethernet frames: see L{Framing}.
    """

    hasPartitions = False
    linkType = ETHERNET
    form = RoutedForm()

    def packet(
        self, way: Direction, port: int, packet: Packet, trafficClass: int = 0, hopLimit: int = HOPS
    ) -> bytes:
        version = ipVersion(way.fromGID, way.toGID)
        datagram = UDPDatagram(
            *(way.fromGID, way.toGID, port, packet.pack()),
            *(trafficClass, hopLimit, way.label),
            # RFC 8200 section 8.1: UDP over IPv6 needs a checksum, and Wireshark marks packets without one.
            checksum=0 if version == 4 else None,
        )
        target = hardwareAddress(way.toGID, hardware(way.target))
        return ethernet(hardware(way.source), target, version) + datagram.pack()

    def datagram(self, way: Direction, port: int, packet: Packet, head: bytes) -> bytes:
        fromGID, toGID, label, trafficClass, hopLimit = self.form.shown(head)
        way = Direction(way.source, way.target, fromGID, toGID, label)
        return self.packet(way, port, packet, trafficClass, hopLimit)


class LocalFraming:
    """
    InfiniBand packets: see L{Framing}.
    """

    hasPartitions = True
    linkType = ERF
    form = LocalForm()

    def __init__(self, lidOf: Callable[[int], int]) -> None:
        """
        @param lidOf: gives the LID of the port with a GUID, 0 if it has none.
        """
        self._lidOf = lidOf

    def packet(self, way: Direction, port: int, packet: Packet) -> bytes:
        source, target = self._lidOf(way.source), self._lidOf(way.target)
        return LinkPacket(source, target, packet.pack(), b"", way.level).pack()

    def datagram(self, way: Direction, port: int, packet: Packet, head: bytes) -> bytes:
        source, target, level, partition, grh = self.form.shown(head)
        packet = evolve(packet, bth=evolve(packet.bth, partition=partition))
        return LinkPacket(source, target, packet.pack(), grh, level).pack()


def management(source: int, target: int, number: int, peer: int, psn: int, octets: bytes) -> bytes:
    """
    @param source: SLID, and C{target} the DLID.
    @param number: the queue pair that sends it, and C{peer} the one that it is for.
    @param octets: a MAD.
    @return: its packet.
    """
    isSubnets = peer == SMI_QPN
    # Queue pair 0 has no Q_Key to check; what is sent to others has that of queue pair 1.
    packet = Packet.of(BaseHeader(UD_SEND_ONLY, peer, psn), (0 if isSubnets else QUEUE_KEY, number), octets)
    lane = _MANAGEMENT_LANE if isSubnets else 0
    return LinkPacket(source, target, packet.pack(), b"", 0, lane).pack()
