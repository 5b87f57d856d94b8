"""
The packets that crossed a guest's card: every packet of RoCEv2 in a capture, as this package decodes it, and
what tshark says of ours.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from attrs import frozen

from tests.hca.capture.tcpstreams import framesOf
from tests.interop.lab.network import HOST_MAC, IPV4, IPV6
from tests.support.captures import IWARP_WRONG, TSHARK, tshark
from twisted_ib.hca.wire import Packet, decodePacket, encodePacket

_ETHERNET, _UDP = 14, 8
_PORT = 4791
#: How addresses of this side end.
_OURS = "19"
#: A display filter: packets of ours that tshark finds wrong.
_WRONG = (
    "_ws.malformed || ip.checksum.status == Bad || udp.checksum.status == Bad || "
    "(infiniband && _ws.expert.severity >= error)"
)


@frozen
class Seen:
    """
    One packet.

    @ivar network: its IP and UDP header.
    """

    source: str
    destination: str
    network: bytes
    packet: Packet

    @property
    def ours(self) -> bool:
        """
        Whether this side has sent it.
        """
        return self.source.startswith((IPV4, IPV6)) and self.source[-1] in _OURS

    @property
    def name(self) -> str:
        """
        Its operation, as the sheet has it.
        """
        return self.packet.row.name


def packetsOf(file: Path) -> list[Seen]:
    """
    The packets of RoCEv2 in a capture; each is sound, and is the same octets when it is encoded.

    @raise WireError: one is not.
    """
    seen = []
    for frame in framesOf(file):
        version = {b"\x08\0": 4, b"\x86\xdd": 6}.get(frame[12:14])
        if version == 4 and frame[23] == 17:
            udp, addresses = _ETHERNET + 20, (frame[26:30], frame[30:34])
            source, destination = (str(IPv4Address(each)) for each in addresses)
        elif version == 6 and frame[20] == 17:
            udp, addresses = _ETHERNET + 40, (frame[22:38], frame[38:54])
            source, destination = (str(IPv6Address(each)) for each in addresses)
        else:
            continue
        if int.from_bytes(frame[udp + 2 : udp + 4], "big") != _PORT:
            continue
        end = udp + int.from_bytes(frame[udp + 4 : udp + 6], "big")
        network, body = frame[_ETHERNET : udp + _UDP], frame[udp + _UDP : end]
        packet = decodePacket(network, body)
        assert encodePacket(packet, network) == body, f"{packet} is encoded otherwise"
        seen.append(Seen(source, destination, network, packet))
    return seen


def wrongOf(file: Path) -> list[list[str]]:
    """
    The packets of this side that tshark finds wrong; none without tshark.
    """
    if TSHARK is None:
        return []
    return tshark(file, f"eth.src == {HOST_MAC} && ({_WRONG})", "frame.number", "_ws.col.Info")


def malformedOf(file: Path) -> list[list[str]]:
    """
    The segments of TCP of this side that tshark finds wrong, or their FPDUs; none without tshark.
    """
    if TSHARK is None:
        return []
    return tshark(file, f"eth.src == {HOST_MAC} && ({IWARP_WRONG})", "frame.number", "_ws.col.Info")
