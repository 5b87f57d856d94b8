"""
Twisted's own tests of UDP and multicast, run on ports of L{twisted_ib.ipoib.port}.
"""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.interfaces import IReactorMulticast, IReactorTime, IReactorUDP
from twisted.internet.test import test_udp as internetTests
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.test import test_udp as udpTests
from zope.interface import implementer

from tests.support.rundirectory import ownRunDirectory
from twisted_ib.internet.channel import channelFor
from twisted_ib.ipoib import listenIPoIB
from twisted_ib.ipoib.interface import IPoIBInterface
from twisted_ib.ipoib.resolver import resolverOf

DEVICE = "lo0"


@implementer(IReactorUDP, IReactorMulticast, IReactorTime)
class Reactor:
    """
    A reactor whose UDP ports are on IPoIB; for the rest it is that which it is made with.
    """

    def __init__(self, reactor: Any, case: Any) -> None:
        """
        @param reactor: the real one.
        @param case: a test: all is closed with it.
        """
        self._reactor = reactor
        ownRunDirectory(case)
        channel = channelFor(reactor, DEVICE)
        addresses = ip_interface("127.0.0.1/8"), ip_interface("::1/128")
        self._interface = IPoIBInterface(channel, addresses)
        resolverOf(channel).add(self._interface)
        case.addCleanup(self.close)

    def __getattr__(self, name: str) -> Any:
        """
        @return: what the reactor has.
        """
        return getattr(self._reactor, name)

    def close(self) -> Any:
        """
        Close the interface.
        """
        return self._interface.close()

    def listenUDP(self, port: Any, protocol: Any, interface: str = "", maxPacketSize: int = 8192) -> Any:
        return listenIPoIB(self._reactor, port, protocol, interface, DEVICE, maxPacketSize)

    def listenMulticast(
        self,
        port: Any,
        protocol: Any,
        interface: str = "",
        maxPacketSize: int = 8192,
        listenMultiple: bool = False,
    ) -> Any:
        return listenIPoIB(self._reactor, port, protocol, interface, DEVICE, maxPacketSize, listenMultiple)


class Builder(ReactorBuilder):
    """
    Twisted's parameterised tests, on one reactor.
    """

    requiredInterfaces = (IReactorUDP,)
    _reactors = ["twisted.internet.epollreactor.EPollReactor", "twisted_ib.reactor.ibreactor.IBReactor"]

    def buildReactor(self) -> Any:
        """
        Build one whose ports are on IPoIB.
        """
        return Reactor(super().buildReactor(), self)

    def getListeningPort(
        self, reactor: Any, protocol: Any, port: int = 0, interface: str = "", maxPacketSize: int = 8192
    ) -> Any:
        """
        Open a port.
        """
        return reactor.listenUDP(port, protocol, interface, maxPacketSize)


class PortTestsBuilder(Builder, internetTests.UDPPortTestsMixin, internetTests.DatagramTransportTestsMixin):
    """
    The tests of C{twisted.internet.test.test_udp}.
    """


globals().update(PortTestsBuilder.makeTestCaseClasses())


class OnIPoIB:
    """
    A test case that uses the global reactor of its module.
    """

    #: The module skips what the host's own stack does not have: here it is not asked.
    __unittest_skip__ = False

    def setUp(self) -> Any:
        """
        Put another in its place.
        """
        case: Any = self
        case.patch(udpTests, "reactor", Reactor(theReactor, self))
        return super().setUp()  # type: ignore[misc]


class UDPTests(OnIPoIB, udpTests.UDPTests):
    """
    Of C{twisted.test.test_udp}: datagrams.
    """


class ShutdownTests(OnIPoIB, udpTests.ReactorShutdownInteractionTests):
    """
    The end of a port in its protocol's call.
    """


class MulticastTests(OnIPoIB, udpTests.MulticastTests):
    """
    Groups.
    """


if hasattr(udpTests, "MulticastTestsIPv6"):
    # Twisted 23.10 has none.
    class MulticastTestsIPv6(OnIPoIB, udpTests.MulticastTestsIPv6):
        """
        Groups of IPv6.
        """
