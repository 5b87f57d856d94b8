"""
An IPoIB interface of a device in a reactor.

Packets go to an L{IPacketConsumer}: a TUN, or a stack of this program's own.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from zope.interface import Interface, implementer

from twisted_ib import limits
from twisted_ib.errors import DeviceError, InterfaceClosedError, NoRouteError, ResourceLimitError
from twisted_ib.hca.base.partition import DEFAULT_PKEY, FULL_MEMBER
from twisted_ib.ipoib.driver import Driver
from twisted_ib.ipoib.protocol.interfaces import Group, Settings
from twisted_ib.ipoib.protocol.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Network, IPv6Network

    from twisted.python.failure import Failure

    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.ipoib.driver import Path
    from twisted_ib.ipoib.protocol.wire import Buffer


class IPacketConsumer(Interface):
    """
    The user of an interface.
    """

    def packetReceived(buffer: Buffer, start: int, stop: int) -> None:
        """
        An IP packet arrived; or it is an ICMP error about one that was to be sent.

        @param buffer: has the packet from C{start} to C{stop}; valid during the call only.
        """

    def interfaceUp(mtu: int) -> None:
        """
        Packets pass, for the first time or again.

        @param mtu: the longest packet, octets.
        """

    def interfaceFailed(error: Exception) -> None:
        """
        Packets do not pass.

        @param error: an L{InterfaceClosedError<twisted_ib.errors.InterfaceClosedError>} if they never will
            again; after others the interface tries again by itself.
        """


@implementer(IPacketConsumer)
class _Nobody:
    def packetReceived(self, buffer: Any, start: int, stop: int) -> None:
        pass

    def interfaceUp(self, mtu: int) -> None:
        pass

    def interfaceFailed(self, error: Exception) -> None:
        pass


#: The consumer of an interface that has none.
NOBODY: Final = _Nobody()
_log = Logger()


class IPoIBInterface:
    """
    One interface: see L{IPacketConsumer},
    L{IMachineDriver<twisted_ib.ipoib.protocol.interfaces.IMachineDriver>} and
    L{ISubnetAccess<twisted_ib.ipoib.subnetaccess.ISubnetAccess>}.

    @ivar channel: the channel of its device, which it is a user of.
    @ivar counters: L{COUNTERS<twisted_ib.ipoib.protocol.interfaces.COUNTERS>}.
    @ivar users: how many have it: each calls L{close}.
    @ivar isClosed: whether it is closed, or closing.
    """

    def __init__(
        self,
        channel: DeviceChannel,
        addresses: Sequence[IPv4Interface | IPv6Interface],
        *,
        isConnected: bool = True,
        pKey: int = DEFAULT_PKEY,
        mtu: int | None = None,
        gateways: Sequence[tuple[IPv4Network | IPv6Network, bytes]] = (),
    ) -> None:
        """
        Open one, and begin to join its broadcast group.

        @param addresses: its addresses; the link-local one of IPv6 is added.
        @param isConnected: whether connected mode is offered, and used with those that offer it too.
        @param pKey: its partition.
        @param mtu: the longest packet, octets; by default what the mode has.
        @param gateways: networks behind neighbours, and the neighbours' addresses.
        @raise DeviceError: the device is not in the partition, or cannot have an interface.
        @raise ResourceLimitError: there are too many queue pairs.
        """
        self.channel = channel
        self.users = 1
        self.isClosed = self._isUp = False
        self._lookups: dict[bytes, list[Deferred[tuple[bytes, Path]]]] = {}
        self._waiting: list[Deferred[IPoIBInterface]] = []
        self._closing: list[Deferred[None]] = []
        #: How often each group is joined.
        self._groups: Counter[bytes] = Counter()
        device = channel.device
        device.check()
        self._driver = driver = Driver(device, self, pKey | FULL_MEMBER)
        driver.consumer = NOBODY
        self.counters = driver.counters
        #: Sends an IP packet, or loses it.  Its argument is bytes or a memoryview: the EtherType, two octets
        #: of 0, and the packet.  It is copied before this returns.
        self.send = driver.send
        number = driver.number
        self._counting = "ipoib" if "ipoib" not in device.counting else f"ipoib_{number:06x}"
        device.counting[self._counting] = lambda: driver.counters
        channel.acquire(self)
        self._settings = Settings(
            *(device.gid, number, tuple(addresses), pKey | FULL_MEMBER, isConnected, mtu),
            gateways=tuple(gateways),
        )
        self._begin()

    def __str__(self) -> str:
        """
        @return: C{the interface of DEVICE with ADDRESS/LENGTH}, without the link-local address.
        """
        own = ", ".join(str(each) for each in self._settings.addresses)
        return f"the interface of {self.channel.device.name} with {own}"

    # -- users

    @property
    def consumer(self) -> Any:
        """
        The L{IPacketConsumer}; without one packets are dropped.  One that is set when the interface is up is
        told at once.
        """
        return self._driver.consumer

    @consumer.setter
    def consumer(self, consumer: Any) -> None:
        self._driver.consumer = consumer
        if self._isUp:
            consumer.interfaceUp(self.mtu)

    @property
    def mtu(self) -> int:
        """
        The longest packet, octets; 0 before the interface is up.
        """
        mtu: int = self._driver.machine.mtu
        return mtu

    @property
    def broadcast(self) -> Group | None:
        """
        The broadcast group as subnet administration has it, with its MLID and Q_Key; L{None} before it was
        joined.
        """
        return self._driver.broadcast

    @property
    def addresses(self) -> tuple[IPv4Interface | IPv6Interface, ...]:
        """
        The addresses, with the link-local one.
        """
        found: tuple[IPv4Interface | IPv6Interface, ...] = self._driver.machine.addresses
        return found

    @property
    def hardwareAddress(self) -> bytes:
        """
        The address that ARP tells, 20 octets (RFC 4391 section 9.1.1).
        """
        address: bytes = self._driver.machine.hardwareAddress
        return address

    def ready(self) -> Deferred[IPoIBInterface]:
        """
        @return: fires with this when packets pass.  Joining is tried again and again: cancel it to wait no
            longer.  It fails with L{InterfaceClosedError<twisted_ib.errors.InterfaceClosedError>} if the
            interface is closed before.
        """
        if self.isClosed:
            return fail(self._closedError())
        done: Deferred[IPoIBInterface] = Deferred(self._waiting.remove)
        self._waiting.append(done)
        if self._isUp:
            self._tellReady()
        return done

    def resolve(self, address: str) -> Deferred[tuple[bytes, Path]]:
        """
        Find the hardware address of an IP address of this link, or of the gateway to it, and the path to its
        port.

        @return: fires with the 20 octets (capabilities, queue pair, GID) and the path, or fails with
            L{NoRouteError<twisted_ib.errors.NoRouteError>}.
        """
        if self.isClosed:
            return fail(self._closedError())
        packed = ip_address(address.partition("%")[0]).packed
        if sum(map(len, self._lookups.values())) >= limits.IPOIB_RESOLUTIONS:
            return fail(ResourceLimitError(f"{limits.IPOIB_RESOLUTIONS} addresses are being looked up"))
        waiting = self._lookups.setdefault(packed, [])
        done: Deferred[tuple[bytes, Path]] = Deferred(waiting.remove)
        waiting.append(done)
        self._driver.machine.lookup(packed, self._driver.clock())
        self._driver.wake()
        return done

    def silent(self) -> Deferred[bool]:
        return self._driver.access.silent()

    def gidOf(self, address: str) -> int:
        """
        @return: the GID of the port that has an IP address of this link, as far as this interface knows; 0 if
            it does not.
        """
        machine, target = self._driver.machine, ip_address(address)
        if any(each.ip == target for each in machine.addresses):
            return self._settings.gid
        found: int = machine.neighbours.gidOf(target.packed)
        return found

    def join(self, group: str) -> None:
        """
        Receive what is sent to an IP multicast address.  Joins are counted.

        @raise ValueError: it is no multicast address.
        @raise ResourceLimitError: there are too many groups.
        """
        packed = ip_address(group).packed
        self._driver.machine.joinGroup(packed)
        self._groups[packed] += 1
        self._driver.wake()

    def leave(self, group: str) -> None:
        """
        Undo one L{join}.
        """
        packed = ip_address(group).packed
        if packed in self._groups:
            self._groups -= Counter((packed,))
            self._driver.machine.leaveGroup(packed)
            self._driver.wake()

    def close(self) -> Deferred[None]:
        """
        End the use of it; the last one's leaves its groups and ends its connections.

        @return: fires when subnet administration has been told, or does not answer.
        """
        self.users -= 1
        if self.users > 0:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._closing.append(done)
        if not self.isClosed:
            self._end(self._closedError())
        elif self not in self.channel.users:
            self._left()
        return done

    # -- of its driver

    def interfaceUp(self, mtu: int) -> None:
        self._isUp = True
        self._tell(self.consumer.interfaceUp, mtu)
        self._tellReady()

    def interfaceFailed(self, error: Exception) -> None:
        self._isUp = False
        self._tell(self.consumer.interfaceFailed, error)

    def _tell(self, call: Callable[[Any], object], argument: Any) -> None:
        # An exception of the consumer ends neither the machine's work nor the closing.
        try:
            call(argument)
        except Exception:
            _log.failure("while the user of {interface} was told", interface=self)

    def _tellReady(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(self)

    def found(self, address: bytes, hardwareAddress: bytes, path: Path) -> None:
        for each in self._lookups.pop(address, ()):
            each.callback((hardwareAddress, path))

    def notFound(self, address: bytes) -> None:
        error = NoRouteError(f"{ip_address(address)} does not answer on {self.channel.device.name}")
        for each in self._lookups.pop(address, ()):
            each.errback(error)

    def moved(self) -> None:
        """
        The port has another GID, or the driver another queue pair, which are the hardware address: begin
        anew.
        """
        self._stop("its hardware address is another, and its groups are joined anew")
        self._begin()

    def ended(self, reason: Exception) -> None:
        """
        The queue pair has failed.  The driver says when it has another.
        """
        self._stop(f"{reason}; it begins anew when the port is in its partition again")

    def _begin(self) -> None:
        driver = self._driver
        self._settings = evolve(self._settings, gid=self.channel.device.gid, qpn=driver.number)
        machine = Machine(driver, self._settings)
        for group in self._groups.elements():
            machine.joinGroup(group)
        driver.begin(machine)

    def _stop(self, why: str) -> None:
        driver = self._driver
        driver.machine.close(driver.clock())
        if self._isUp:
            self.interfaceFailed(DeviceError(f"{self}: {why}"))

    # -- of its channel

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor stops, or the device was removed.
        """
        if not self.isClosed:
            self._lost(InterfaceClosedError(f"{self.channel.device.name} was closed"))
        self._left()

    # -- the end

    def _closedError(self) -> InterfaceClosedError:
        return InterfaceClosedError(f"{self} was closed")

    def _lost(self, error: InterfaceClosedError) -> None:
        self._end(error)
        self._tell(self.consumer.interfaceFailed, error)

    def _end(self, error: InterfaceClosedError) -> None:
        self.isClosed, self._isUp = True, False
        self.channel.device.counting.pop(self._counting, None)
        lookups, self._lookups = self._lookups, {}
        waiting, self._waiting = self._waiting, []
        self._driver.close(self._left)
        waits: list[Deferred[Any]] = [*waiting, *chain.from_iterable(lookups.values())]
        for each in waits:
            each.errback(error)

    def _left(self) -> None:
        self.channel.release(self)
        closing, self._closing = self._closing, []
        for each in closing:
            each.callback(None)
