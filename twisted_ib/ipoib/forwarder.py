"""
Packets between a TUN device and an IPoIB interface, in a reactor.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, InterfaceClosedError, TunError
from twisted_ib.ipoib.protocol import memberships
from twisted_ib.ipoib.protocol.wire import ENCAPSULATION_BYTES, IPV4_HEADER, IPV6_HEADER
from twisted_ib.ipoib.tun import Tun

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

    from twisted_ib.ipoib.interface import IPoIBInterface


#: The longest IP packet (RFC 791, 8200), without jumbograms.
PACKET_BYTES = 65535
#: Linux C{drivers/net/tun.c}: the device was removed, or the descriptor is closed.  All else is about one
#: packet, which the kernel cannot take.
_GONE = frozenset((errno.EBADFD, errno.EBADF))


@implementer(IReadDescriptor)
class Forwarder:
    """
    One TUN device and one interface, whose consumer this is: see
    L{IPacketConsumer<twisted_ib.ipoib.interface.IPacketConsumer>}.

    @ivar up: fires with this when the TUN is configured and packets pass; fails with L{TunError} if it cannot
        be configured, with L{InterfaceClosedError} if the interface is closed before.
    """

    def __init__(
        self,
        reactor: ReactorBase,
        tun: Tun,
        interface: IPoIBInterface,
        failed: Callable[[BaseException], object],
        isAlone: bool = False,
    ) -> None:
        """
        Become the consumer of an interface.

        @param failed: called with what ends well again by itself, or does not: see C{IPacketConsumer}.
            After a L{TunError} this has stopped, and closes the interface.
        @param isAlone: whether the namespace has no other interface: IPv4 multicast is routed to this one.
        """
        self._reactor, self._tun, self._isAlone = reactor, tun, isAlone
        self._interface, self._failed = interface, failed
        self._isBegun = self._isReading = self._isStopped = self._isRefused = False
        self._groups: set[bytes] = set()
        self.up: Deferred[Forwarder] = Deferred()
        # The encapsulation header, and where each packet is read to.
        self._frame = bytearray(ENCAPSULATION_BYTES + PACKET_BYTES)
        self._view = memoryview(self._frame)
        self._places = (self._view[ENCAPSULATION_BYTES:],)
        self._version = 0
        interface.consumer = self
        if interface.mtu:
            # It was up before it had a consumer.
            self.interfaceUp(interface.mtu)

    # -- of the interface: see IPacketConsumer

    def packetReceived(self, buffer: Any, start: int, stop: int) -> None:
        try:
            os.write(self._tun.descriptor, memoryview(buffer)[start:stop])
        except OSError as error:
            # Of packets that it cannot take the TUN device has counters itself.
            if error.errno in _GONE:
                self._gone()

    def interfaceUp(self, mtu: int) -> None:
        if self._isStopped:
            return
        try:
            if self._isBegun:
                self._tun.setMTU(mtu)
            else:
                self._begin(mtu)
        except TunError as error:
            self._end(error)

    def _begin(self, mtu: int) -> None:
        self._tun.begin(mtu, self._interface.addresses)
        if self._isAlone:
            self._tun.routeMulticast()
        self._isBegun = self._isReading = True
        self._reactor.addReader(self)
        self.up.callback(self)

    def interfaceFailed(self, error: BaseException) -> None:
        if self._isStopped:
            return
        if isinstance(error, InterfaceClosedError) and not self.up.called:
            self.up.errback(error)
        else:
            self._failed(error)

    # -- of the TUN

    def fileno(self) -> int:
        return self._tun.descriptor

    def logPrefix(self) -> str:
        return self._tun.name

    def doRead(self) -> None:
        descriptor, places, frame, view = self._tun.descriptor, self._places, self._frame, self._view
        send = self._interface.send
        for _ in range(limits.TUN_PACKETS_PER_TURN):
            try:
                length = os.readv(descriptor, places)
            except BlockingIOError:
                return
            except OSError:
                self._gone()
                return
            version = frame[ENCAPSULATION_BYTES] & 0xF0
            if version != self._version:
                self._version = version
                frame[:ENCAPSULATION_BYTES] = IPV4_HEADER if version == 0x40 else IPV6_HEADER
            packet = view[: ENCAPSULATION_BYTES + length]
            # IGMP, or the hop-by-hop options that only MLD has, mostly.
            if frame[13] == memberships.IGMP if version == 0x40 else frame[10] == memberships.HOP_BY_HOP:
                self._reported(packet[ENCAPSULATION_BYTES:])
            send(packet)

    def _reported(self, packet: Any) -> None:
        for group, isMember in memberships.changes(packet):
            # The kernel repeats its reports (RFC 3376 section 8.1), and the interface counts.
            if isMember == (group in self._groups):
                continue
            name = str(ip_address(group))
            if not isMember:
                self._groups.remove(group)
                self._interface.leave(name)
                continue
            try:
                self._interface.join(name)
            except (HCAError, ValueError) as error:
                # Once: with too many groups there are as many refusals as reports.
                if not self._isRefused:
                    self._isRefused = True
                    self._failed(error)
            else:
                self._isRefused = False
                self._groups.add(group)

    def stop(self) -> None:
        """
        Read no more, and close the TUN.  Idempotent.
        """
        self._isStopped = True
        if self._isReading:
            self._isReading = False
            self._reactor.removeReader(self)
        self._tun.close()

    def connectionLost(self, reason: Failure) -> None:
        # The reactor ends, or the TUN has gone with its namespace.
        self._gone()

    def _gone(self) -> None:
        if not self._isStopped:
            self._end(TunError(f"{self._tun.name}: the TUN device was removed, or its namespace"))

    def _end(self, error: TunError) -> None:
        self.stop()
        # Not here, which may be in the interface's own call.
        self._reactor.callLater(0, self._interface.close)
        if self.up.called:
            self._failed(error)
        else:
            self.up.errback(error)
