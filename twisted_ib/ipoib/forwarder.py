"""
Packets between a TUN device and an IPoIB interface, in a reactor.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, TunError
from twisted_ib.ipoib.protocol import memberships
from twisted_ib.ipoib.tun import Tun

#: The longest IP packet (RFC 791, 8200), without jumbograms.
PACKET_BYTES = 65535
#: In front of each packet in the TUN: C{struct virtio_net_hdr} (linux/virtio_net.h).
VNET_BYTES = 10

# RFC 4391 section 6
_ENCAPSULATION_BYTES = 4
_IPV4, _IPV6 = b"\x08\x00\x00\x00", b"\x86\xdd\x00\x00"
_PLAIN = bytes(VNET_BYTES)
#: linux/if_tun.h: a packet that the kernel cannot take, because the interface is down or has no memory for
#: it.
_LOST = frozenset((errno.EIO, errno.EINVAL, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN))


@implementer(IReadDescriptor)
class Forwarder:
    """
    One TUN device and one interface, whose consumer this is.

    @ivar up: fires with this at the first time that packets can pass; fails if they cannot.
    @ivar lost: packets that the TUN did not take.
    """

    _log = Logger()

    def __init__(self, reactor: Any, tun: Tun, isAlone: bool = False) -> None:
        """
        @param isAlone: whether the namespace has no other interface: IPv4 multicast is routed to this one.
        """
        self._reactor, self._tun, self._isAlone = reactor, tun, isAlone
        self._interface: Any = None
        self._isBegun = self._isReading = False
        self._groups: set[bytes] = set()
        self.lost = 0
        self.up: Deferred[Forwarder] = Deferred()
        # The encapsulation header, and where each packet is read to.
        self._frame = bytearray(_ENCAPSULATION_BYTES + PACKET_BYTES)
        self._header = bytearray(VNET_BYTES)
        self._view = memoryview(self._frame)
        self._places = (self._header, self._view[_ENCAPSULATION_BYTES:])
        self._version = 0

    def attach(self, interface: Any) -> None:
        """
        @param interface: an L{IPoIBInterface<twisted_ib.ipoib.interface.IPoIBInterface>}.
        """
        self._interface = interface

    # -- of the interface: see IPacketConsumer

    def packetReceived(self, buffer: Any, start: int, stop: int) -> None:
        """
        Write a packet to the TUN.
        """
        try:
            os.writev(self._tun.descriptor, (_PLAIN, memoryview(buffer)[start:stop]))
        except OSError as error:
            if error.errno not in _LOST:
                raise
            self.lost += 1

    def interfaceUp(self, mtu: int) -> None:
        """
        Configure the TUN, and begin to read it.
        """
        try:
            if self._isBegun:
                self._tun.setMTU(mtu)
            else:
                self._begin(mtu)
        except TunError as error:
            self.interfaceFailed(error)

    def _begin(self, mtu: int) -> None:
        self._tun.begin(mtu, self._interface.addresses)
        if self._isAlone:
            self._tun.routeMulticast()
        self._isBegun = self._isReading = True
        self._reactor.addReader(self)
        if not self.up.called:
            self.up.callback(self)

    def interfaceFailed(self, error: BaseException) -> None:
        """
        Fail before the first packet; later ones are lost until the interface is up again.
        """
        if not self.up.called:
            self.up.errback(error)
        elif self._isReading:
            self._log.warn("{name}: {error}", name=self._tun.name, error=error)

    # -- of the TUN

    def fileno(self) -> int:
        """
        @return: the TUN's descriptor.
        """
        return self._tun.descriptor

    def logPrefix(self) -> str:
        """
        @return: the TUN's name.
        """
        return self._tun.name

    def doRead(self) -> None:
        """
        Send what the TUN has, but no more packets than one turn may have.
        """
        descriptor, places, frame, view = self._tun.descriptor, self._places, self._frame, self._view
        send = self._interface.send
        for _ in range(limits.TUN_PACKETS_PER_TURN):
            try:
                length = os.readv(descriptor, places) - VNET_BYTES
            except BlockingIOError:
                return
            except OSError as error:
                self.connectionLost(Failure(error))
                return
            version = frame[_ENCAPSULATION_BYTES] & 0xF0
            if version != self._version:
                self._version = version
                frame[:_ENCAPSULATION_BYTES] = _IPV4 if version == 0x40 else _IPV6
            packet = view[: _ENCAPSULATION_BYTES + length]
            # IGMP, or the hop-by-hop options that only MLD has, mostly.
            if frame[13] == memberships.IGMP if version == 0x40 else frame[10] == memberships.HOP_BY_HOP:
                self._reported(packet[_ENCAPSULATION_BYTES:])
            send(packet)

    def _reported(self, packet: Any) -> None:
        for group, isMember in memberships.changes(packet):
            # The kernel repeats its reports (RFC 3376 section 8.1), and the interface counts.
            if isMember == (group in self._groups):
                continue
            try:
                if isMember:
                    self._interface.join(group)
                    self._groups.add(group)
                else:
                    self._groups.remove(group)
                    self._interface.leave(group)
            except (HCAError, ValueError) as error:
                self._log.warn("{name}: {error}", name=self._tun.name, error=error)

    def stop(self) -> None:
        """
        Read no more, and close the TUN.
        """
        if self._isReading:
            self._isReading = False
            self._reactor.removeReader(self)
        self._tun.close()

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor ends, or the TUN has gone with its namespace.
        """
        self.stop()


__all__ = ["PACKET_BYTES", "VNET_BYTES", "Forwarder"]
