"""
Twisted's own tests of UDP and multicast, run on ports of L{twisted_ib.ipoib.port}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.interfaces import IReactorMulticast, IReactorTime, IReactorUDP
from twisted.internet.test import test_udp as internetTests
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.test import test_udp as udpTests
from zope.interface import implementer

from tests.ipoib.userspace.wire import FakeInterface, Wire
from twisted_ib.ipoib.port import IPoIBPort
from twisted_ib.ipoib.userspace import IPStack


@implementer(IReactorUDP, IReactorMulticast, IReactorTime)
class Reactor:
    """
    A reactor whose UDP ports are on IPoIB; for the rest it is that which it is made with.
    """

    def __init__(self, reactor: Any) -> None:
        """
        @param reactor: the real one.
        """
        self._reactor = reactor
        self._stack = IPStack(FakeInterface(Wire(), "127.0.0.1/8", "::1/128"), reactor)

    def __getattr__(self, name: str) -> Any:
        """
        @return: what the reactor has.
        """
        return getattr(self._reactor, name)

    def listenUDP(self, port: Any, protocol: Any, interface: str = "", maxPacketSize: int = 8192) -> Any:
        """
        See C{IReactorUDP}.
        """
        return self.listenMulticast(port, protocol, interface, maxPacketSize)

    def listenMulticast(
        self,
        port: Any,
        protocol: Any,
        interface: str = "",
        maxPacketSize: int = 8192,
        listenMultiple: bool = False,
    ) -> Any:
        """
        See C{IReactorMulticast}.
        """
        opened = IPoIBPort(port, protocol, interface, maxPacketSize, self, "loopback", listenMultiple)
        opened.openOn(self._stack)
        return opened


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
        return Reactor(super().buildReactor())

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
        case.patch(udpTests, "reactor", Reactor(theReactor))
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


class MulticastTestsIPv6(OnIPoIB, udpTests.MulticastTestsIPv6):
    """
    Groups of IPv6.
    """
