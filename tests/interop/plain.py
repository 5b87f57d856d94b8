"""
Single packets, made and read by the codec alone: no device of ours takes part.
"""

from __future__ import annotations

import sys

from tests.interop.case import InteropTestCase
from tests.support.commands import PATH
from twisted_ib.hca.wire import decodeMAD
from twisted_ib.hca.wire.cm.messages import REQ

#: Sends a UD SEND to queue pair 1, as any process may: from a UDP socket.  A MAD of a class that there is not
#: has no answer.
_SENDS = """
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, IPPROTO_IP, SOCK_DGRAM, socket
from struct import pack
from twisted_ib.hca.wire import BaseHeader, Packet, encodePacket

MTU_DISCOVER, DO = 10, 2
source, destination, spoiled = sys.argv[1], sys.argv[2], sys.argv[3] == "spoiled"
here, there = ip_address(source), ip_address(destination)
packet = Packet.of(BaseHeader(0x64, 1, 0), (0x80010000, 1), bytes([1, 7, 2, 3]) + bytes(252))
udp = 8 + len(packet.pack()) + 4
if here.version == 4:
    network = pack(">BBHHHBBH", 0x45, 0, 20 + udp, 0, 0x4000, 64, 17, 0)
else:
    network = pack(">IHBB", 0x60000000, udp, 17, 64)
network += here.packed + there.packed + pack(">HHHH", 50000, 4791, udp, 0)
octets = encodePacket(packet, network)
with socket(AF_INET if here.version == 4 else AF_INET6, SOCK_DGRAM) as sender:
    if here.version == 4:
        sender.setsockopt(IPPROTO_IP, MTU_DISCOVER, DO)
    sender.bind((source, 50000))
    sender.sendto(octets[:-1] + bytes([octets[-1] ^ spoiled]), (destination, 4791))
"""


class PacketTests(InteropTestCase):
    """
    IPv4.
    """

    def _send(self, how: str = "sound") -> int:
        """
        @return: how many packets rxe takes of one that is sent.
        """
        command = [sys.executable, "-c", PATH + _SENDS, self.host, self.there, how]
        self.succeeded(self.program(command).finish())
        return self.lab.counters()["rcvd_pkts"]

    def test_taken(self) -> None:
        """
        A plain socket's packet is one to rxe.
        """
        self.assertEqual(self._send(), 1)

    def test_spoiled(self) -> None:
        """
        With one bit of its invariant CRC wrong it is none.
        """
        self.sound = False
        self.assertEqual(self._send("spoiled"), 0)

    def test_request(self) -> None:
        """
        A kernel's request for a connection is read, and says what the program there has asked for.
        """
        self.guest.run(f"timeout 4 rping -c -a {self.there[:-1]}1 -C 1")
        requests = [decodeMAD(each.packet.payload).data for each in self.packets() if not each.ours]
        request = next(each for each in requests if isinstance(each, REQ))
        # IBTA annex A11: the TCP port space, rping's port.
        self.assertEqual(request.serviceID, 0x0000000001060000 | 7174)
        self.assertEqual(request.primaryPath.hopLimit, 64)


class PacketIPv6Tests(PacketTests):
    """
    IPv6.
    """

    ipv6 = True
