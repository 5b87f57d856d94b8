"""
The interfaces of a device in a reactor, and what endpoints and ports get from them: hosts named by the IP
addresses of IPoIB.

As rdma_cm does, an address is resolved by ARP or neighbour discovery to the GID of a port, to which
connections are then made.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import CancelledError, Deferred
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import DeviceError, HCAError, NoRouteError
from twisted_ib.hca.connection.interfaces import IAddressResolver
from twisted_ib.hca.device.registry import interfaceOf
from twisted_ib.internet.channel import channelFor, onOpened
from twisted_ib.ipoib.interface import IPoIBInterface

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase
    from twisted.python.failure import Failure

    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.channel import DeviceChannel

#: The GID in a hardware address (RFC 4391 section 9.1.1).
_GID: Final = slice(4, 20)


def _pause(device: Device) -> Deferred[None]:
    done: Deferred[None] = Deferred(lambda _: timer.cancel())
    timer = device.timers.start(limits.IPOIB_RETRY_SECONDS, lambda: done.callback(None))
    return done


async def _search(interface: IPoIBInterface, address: str, seconds: float = 0.0) -> int:
    device = interface.channel.device
    end = device.clock() + seconds
    # A program may connect as soon as its device is open, before the interface is up.
    await interface.ready()
    wasAway = False
    while True:
        try:
            found = await interface.resolve(address)
        except NoRouteError:
            if device.clock() < end:
                await _pause(device)
                continue
            # Who is asked needs a path to answer by, which only subnet administration has.
            isAway = await interface.silent()
            if not isAway and not wasAway:
                raise
            wasAway = isAway
        else:
            return int.from_bytes(found[0][_GID], "big")


class _Search:
    """
    One user's search for the HCA of an address.
    """

    def __init__(self, device: Device, user: Any) -> None:
        self._device, self._user = device, user
        self._search: Any = None

    def begin(self, interface: IPoIBInterface, address: str, seconds: float) -> None:
        self._search = Deferred.fromCoroutine(_search(interface, address, seconds))
        self._search.addCallbacks(self._found, self._failed)

    def _found(self, gid: int) -> None:
        try:
            self._search = self._device.services.connectHCA(gid, self._user)
        except HCAError as error:
            self._user.connectFailed(error)

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._user.connectFailed(failure.value)

    def cancel(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            search.cancel()


@implementer(IAddressResolver)
class Resolver:
    """
    The interfaces of one device.  Link-local addresses are not theirs: on a subnet those are GIDs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._interfaces: list[IPoIBInterface] = []

    def add(self, interface: IPoIBInterface) -> None:
        """
        Resolve addresses by another interface too, until it is closed.
        """
        self._interfaces.append(interface)

    def find(self, address: str) -> IPoIBInterface | None:
        """
        @return: the interface that has an address.
        """
        return next((each for each, own in self._own() if str(own.ip) == address), None)

    def first(self) -> IPoIBInterface | None:
        """
        @return: the interface that is the longest open; L{None} if there is none.
        """
        return next((each for each in self._interfaces if not each.isClosed), None)

    def _own(self) -> list[tuple[IPoIBInterface, IPv4Interface | IPv6Interface]]:
        self._interfaces = [each for each in self._interfaces if not each.isClosed]
        return [(each, own) for each in self._interfaces for own in each.addresses if not own.is_link_local]

    def _reaches(self, address: str) -> tuple[IPoIBInterface, str] | None:
        own = self._own()
        if not own:
            return None
        target = ip_address(address)
        return next(((each, str(own.ip)) for each, own in own if target in own.network), None)

    def isOwn(self, address: str) -> bool:
        return self.find(address) is not None

    def sourceFor(self, address: str) -> str:
        found = self._reaches(address.partition("%")[0])
        return "" if found is None else found[1]

    def gidOf(self, address: str) -> int:
        reached = self._reaches(address)
        return 0 if reached is None else reached[0].gidOf(address)

    def locate(self, address: str, found: Callable[[int | HCAError], object]) -> None:
        reached = self._reaches(address)
        assert reached is not None
        search = Deferred.fromCoroutine(_search(reached[0], address))
        search.addCallbacks(found, lambda failure: found(failure.value))

    def resolve(self, address: str, user: Any, seconds: float = 0.0) -> _Search:
        search, found = _Search(self._device, user), self._reaches(address)
        assert found is not None
        search.begin(found[0], address, seconds)
        return search


def resolverOf(channel: DeviceChannel) -> Resolver:
    """
    @return: the resolver of a channel's device, which has one from then on.
    """
    device = channel.device
    found: Any = device.resolver
    if found is None:
        found = device.resolver = Resolver(device)
    made: Resolver = found
    return made


def interfaceFor(reactor: ReactorBase, device: str, address: str) -> IPoIBInterface:
    """
    Find or open the interface that this process has with an address.  Each user calls
    L{IPoIBInterface.close}.

    @param address: with the length of the prefix, as C{"10.9.0.1/24"}; without it there must be such an
        interface already, or any at all for C{"0.0.0.0"} and C{"::"}.
    @raise DeviceError: there is none, or it has the address with another prefix; or the device cannot have
        one.
    @raise HCAError: the device cannot be opened.
    @raise ValueError: it is no address.
    """
    wanted = ip_interface(address)
    channel = channelFor(reactor, device)
    resolver = resolverOf(channel)
    found = resolver.first() if wanted.ip.is_unspecified else resolver.find(str(wanted.ip))
    if found is None:
        if wanted.ip.is_unspecified:
            raise DeviceError(f"{device} has no interface yet: open one with an address and its prefix")
        if "/" not in address:
            raise DeviceError(
                f"{device} has no interface with the address {address}: give the length of its prefix too,"
                f" as {address}/{24 if wanted.version == 4 else 64}"
            )
        found = IPoIBInterface(channel, [wanted])
        resolver.add(found)
        return found
    if "/" in address and wanted not in found.addresses:
        raise DeviceError(f"{device} has {wanted.ip} with another prefix: {_named(found, wanted)}")
    found.users += 1
    return found


def openConfigured(channel: DeviceChannel) -> None:
    """
    Open the interface that the configuration gives a device, for as long as the device is open.
    """
    address = interfaceOf(channel.device.name)
    if address is None:
        return
    try:
        resolverOf(channel).add(IPoIBInterface(channel, [ip_interface(address)]))
    except HCAError as error:
        channel.device.warn(f"no interface with the address {address}: {error}")


# Endpoint strings import this where a device is configured so, and programs that call interfaceFor().
onOpened.append(openConfigured)


def _named(interface: IPoIBInterface, wanted: IPv4Interface | IPv6Interface) -> str:
    return ", ".join(str(each) for each in interface.addresses if each.ip == wanted.ip)
