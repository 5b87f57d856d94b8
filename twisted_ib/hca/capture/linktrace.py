"""
Shows a capture what goes over a link: the packets themselves.

A UDP socket shows neither the Ethernet header nor, of IPv4, the identification: the first is made up,
the second is what the invariant CRC says it is.
"""

from __future__ import annotations

from typing import Any, Final

from zope.interface import implementer

from twisted_ib.errors import WireError
from twisted_ib.hca.base.interfaces import ILink
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.wire.cm.rdmacm import gidOf
from twisted_ib.hca.wire.headers import ICRC
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.rocev2 import UDPDatagram, ethernet, hardwareAddress, ipVersion

_HOP_LIMIT: Final = 64
#: The last octets of a made-up Ethernet address are those of the IP address.
_HARDWARE_MASK: Final = 0xFFFFFFFF


@implementer(ILink)
class TracedLink:
    """
    A link whose datagrams are shown.

    @ivar user: See L{ILink}.
    """

    def __init__(self, link: Any, capture: Capture, interface: int) -> None:
        """
        @param link: The link; its user becomes this one's.
        @param capture: Where to show them.
        @param interface: The number of its interface there.
        """
        self._link = link
        self._capture = capture
        self._interface = interface
        self.user: Any = link.user
        link.user = self
        self.address: str = link.address
        self.pathMTU: int = link.pathMTU
        capture.addresses.add(self.address)

    # -- what is passed on

    def pathMTUTo(self, destination: str) -> int:
        """
        See L{ILink}.
        """
        found: int = self._link.pathMTUTo(destination)
        return found

    def sourcePort(self, wanted: int) -> int:
        """
        See L{ILink}.
        """
        found: int = self._link.sourcePort(wanted)
        return found

    def receive(self, budget: int) -> int:
        """
        See L{ILink}.
        """
        found: int = self._link.receive(budget)
        return found

    def pending(self) -> bool:
        """
        See L{ILink}.
        """
        return bool(self._link.pending())

    def fileno(self) -> int:
        """
        See L{ILink}.
        """
        found: int = self._link.fileno()
        return found

    def join(self, group: str) -> None:
        """
        See L{ILink}.
        """
        self._link.join(group)

    def leave(self, group: str) -> None:
        """
        See L{ILink}.
        """
        self._link.leave(group)

    def close(self) -> None:
        """
        See L{ILink}.
        """
        self._link.close()

    @property
    def burst(self) -> int:
        """
        See L{ILink}.
        """
        found: int = self._link.burst
        return found

    # -- what the link's user has

    @property
    def asleep(self) -> bool:
        """
        Whether the user is to be told of what arrives.
        """
        return bool(self.user.asleep)

    def signal(self) -> None:
        """
        Tell it.
        """
        self.user.signal()

    def count(self, name: str) -> None:
        """
        Count something.
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
        Show datagrams, unless their sender has, and pass them on.
        """
        if size > 0 and source not in self._capture.addresses:
            self._show(
                *(False, source, destination, port, bytes(buffer[start:stop]), size),
                *(trafficClass, _HOP_LIMIT),
            )
        self.user.arrived(source, port, destination, buffer, start, stop, size, trafficClass)

    # -- what the user calls

    def send(
        self,
        destination: str,
        port: int,
        pieces: list[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = _HOP_LIMIT,
    ) -> bool:
        """
        Send datagrams, and show them if they are sent.
        """
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
        """
        Show datagrams.

        @param data: All of them; each has C{size} octets.
        """
        capture = self._capture
        if capture.closed:
            return
        here, there = gidOf(source), gidOf(destination)
        flow = ICRCState(here, there, port)
        fromGID, toGID = int.from_bytes(here, "big"), int.from_bytes(there, "big")
        version = ipVersion(fromGID, toGID)
        hardware = hardwareAddress(toGID, _hardware(toGID))
        head = ethernet(_hardware(fromGID), hardware, version)
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
                continue  # What is no packet is not shown.
            capture.write(self._interface, outbound, head + datagram[: -ICRC.size] + each[end:])


def _hardware(gid: int) -> bytes:
    """
    @return: An Ethernet address, one that is locally administered.
    """
    return b"\x02\x00" + (gid & _HARDWARE_MASK).to_bytes(4, "big")


__all__ = ["TracedLink"]
