"""
Capture of a link: the packets themselves.

A UDP socket shows neither the Ethernet header, which is made up, nor the IPv4 identification, which is
recovered from the ICRC (see L{twisted_ib.hca.wire.icrcflow}).
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted_ib.errors import WireError
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.capture.framing import hardwareOf
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.link import ILink
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import ICRC
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.rocev2 import UDPDatagram, ethernet, hardwareAddress, ipVersion


@implementer(ILink)
class TracedLink:
    """
    A link that shows its datagrams to a capture: see L{ILink}.

    @ivar user: see L{ILink}.
    """

    def __init__(self, link: Any, capture: Capture, interface: int) -> None:
        """
        @param link: the link; its user becomes this one's.
        @param interface: the number of its interface in the capture.
        """
        self._link = link
        self._capture = capture
        self._interface = interface
        self.user: Any = link.user
        link.user = self
        self.address: str = link.address
        self.pathMTU: int = link.pathMTU
        capture.addresses.add(self.address)

    # -- ILink, passed on

    def pathMTUTo(self, destination: str) -> int:
        found: int = self._link.pathMTUTo(destination)
        return found

    def sourcePort(self, wanted: int) -> int:
        found: int = self._link.sourcePort(wanted)
        return found

    def receive(self, budget: int) -> int:
        found: int = self._link.receive(budget)
        return found

    def pending(self) -> bool:
        return bool(self._link.pending())

    def fileno(self) -> int:
        found: int = self._link.fileno()
        return found

    def join(self, group: str) -> None:
        self._link.join(group)

    def leave(self, group: str) -> None:
        self._link.leave(group)

    def close(self) -> None:
        self._link.close()

    @property
    def burst(self) -> int:
        found: int = self._link.burst
        return found

    # -- the link's user

    @property
    def asleep(self) -> bool:
        """
        Whether the user wants C{signal} when something arrives.
        """
        return bool(self.user.asleep)

    def signal(self) -> None:
        """
        Wake the user.
        """
        self.user.signal()

    def undelivered(self, address: str, datagram: bytes) -> None:
        """
        See L{ILink}.
        """
        self.user.undelivered(address, datagram)

    def count(self, name: str) -> None:
        """
        Increment one of the user's counters.
        """
        self.user.count(name)

    def arrived(
        self,
        source: str,
        port: int,
        destination: str,
        buffer: Any,
        start: int,
        stop: int,
        size: int,
        trafficClass: int = 0,
    ) -> None:
        """
        Show datagrams, unless their sender writes to the same capture, and pass them on.
        """
        if size > 0 and source not in self._capture.addresses:
            self._show(
                *(False, source, destination, port, bytes(buffer[start:stop]), size),
                *(trafficClass, HOP_LIMIT),
            )
        self.user.arrived(source, port, destination, buffer, start, stop, size, trafficClass)

    # -- sending

    def send(
        self,
        destination: str,
        port: int,
        pieces: list[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = HOP_LIMIT,
    ) -> bool:
        if not self._link.send(destination, port, pieces, size, trafficClass, hopLimit):
            return False
        self._show(True, self.address, destination, port, b"".join(pieces), size, trafficClass, hopLimit)
        return True

    def _show(
        self,
        outbound: bool,
        source: str,
        destination: str,
        port: int,
        data: bytes,
        size: int,
        trafficClass: int,
        hopLimit: int,
    ) -> None:
        capture = self._capture
        if capture.closed:
            return
        here, there = gidOf(source), gidOf(destination)
        flow = ICRCState(here, there, port)
        fromGID, toGID = int.from_bytes(here, "big"), int.from_bytes(there, "big")
        version = ipVersion(fromGID, toGID)
        hardware = hardwareAddress(toGID, hardwareOf(toGID))
        head = ethernet(hardwareOf(fromGID), hardware, version)
        # One call may have many datagrams of equal size (UDP_SEGMENT, UDP_GRO): each is a packet on the
        # wire.
        for at in range(0, len(data), size):
            each = data[at : at + size]
            end = len(each) - ICRC.size
            try:
                datagram = UDPDatagram(
                    *(fromGID, toGID, port, each[:end], trafficClass, hopLimit),
                    identification=flow.identification(each),
                    checksum=0 if version == 4 else None,
                ).pack()
            except WireError:
                continue  # Malformed: it cannot be shown as a packet.
            # With the ICRC as it arrived, right or wrong.
            capture.write(self._interface, outbound, head + datagram[: -ICRC.size] + each[end:])
