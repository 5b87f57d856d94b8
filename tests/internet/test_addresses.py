"""
Tests for L{twisted_ib.internet.addressing.addresses}, L{twisted_ib.internet.addressing.localports},
L{twisted_ib.internet.addressing.resolution} and L{twisted_ib.internet.failures}: what happens
to hosts, ports, names and errors.
"""

from __future__ import annotations

import errno
from typing import Any
from unittest import SkipTest

from twisted.internet import error
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorPluggableNameResolver
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import (
    DeviceClosedError,
    HandshakeError,
    HCAError,
    HiddenListenerError,
    NoListenerError,
    NoRouteError,
    ResourceLimitError,
    RunDirectoryError,
    ServiceInUseError,
    UnknownDeviceError,
)
from twisted_ib.internet import failures
from twisted_ib.internet.addressing import addresses, resolution
from twisted_ib.internet.addressing.localports import LocalPorts
from twisted_ib.internet.addressing.resolution import resolve


class AddressTests(SynchronousTestCase):
    """
    Tests for L{twisted_ib.internet.addressing.addresses}.
    """

    def test_checkPort(self) -> None:
        """
        A port is an integer from C{lowest} to 65535.
        """
        self.assertEqual(addresses.checkPort(0, 0), 0)
        self.assertEqual(addresses.checkPort(65535, 1), 65535)
        wrong: list[Any] = [-1, 65536, 1 << 70, "80", 80.0, None, True, b"80"]
        for port in wrong:
            self.assertRaises(ValueError, addresses.checkPort, port, 0)
        self.assertRaises(ValueError, addresses.checkPort, 0, 1)

    def test_canonical(self) -> None:
        """
        An IP address has one form; a name has none.
        """
        for text, expected in [
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("0:0:0:0:0:0:0:1", "::1"),
            ("FE80::1%lo", "fe80::1%lo"),
            ("localhost", None),
            ("127.1", None),
            ("", None),
            ("127.0.0.1%lo", None),
            ("fe80::1%", None),
            ("[::1]", None),
        ]:
            self.assertEqual(addresses.canonical(text), expected)

    def test_addressOf(self) -> None:
        """
        The objects are those that a TCP transport shows.
        """
        self.assertEqual(addresses.addressOf("10.0.0.1", 80), IPv4Address("TCP", "10.0.0.1", 80))
        self.assertEqual(addresses.addressOf("::1", 80), IPv6Address("TCP", "::1", 80, 0, 0))
        self.assertEqual(addresses.addressOf("fe80::1%7", 80), IPv6Address("TCP", "fe80::1%7", 80, 0, 7))
        unknown = addresses.addressOf("fe80::1%no-such-one", 80)
        self.assertEqual(unknown, IPv6Address("TCP", "fe80::1%no-such-one", 80, 0, 0))
        hash(unknown)

    def test_scopeByName(self) -> None:
        """
        The scope's name is looked up.
        """
        import socket

        names = socket.if_nameindex()
        if not names:
            raise SkipTest("no network interface")
        number, name = names[0]
        self.assertEqual(addresses.scopeOf(f"fe80::1%{name}"), number)

    def test_withPort(self) -> None:
        """
        An IPv6 address is put in brackets.
        """
        self.assertEqual(addresses.withPort("::1", 80), "[::1]:80")
        self.assertEqual(addresses.withPort("host", 80), "host:80")

    def test_mapped(self) -> None:
        """
        An IPv4 address gets the form that sockets of both families show.
        """
        self.assertEqual(addresses.mapped("127.0.0.1"), "::ffff:127.0.0.1")
        self.assertEqual(addresses.mapped("::1"), "::1")

    def test_bindPair(self) -> None:
        """
        A bind address is nothing, a host or a pair.
        """
        for given, expected in [
            (None, ("", 0)),
            ("127.0.0.1", ("127.0.0.1", 0)),
            (("127.0.0.1", 5), ("127.0.0.1", 5)),
            ((b"127.0.0.1", 5), ("127.0.0.1", 5)),
        ]:
            self.assertEqual(addresses.parseBindAddress(given), expected)
        wrong: list[Any] = [("127.0.0.1", -1), ("127.0.0.1", "5"), (5, 5), (b"\xff", 5), 7, ("a", 1, 2)]
        for given in wrong:
            self.assertRaises(ValueError, addresses.parseBindAddress, given)


class _Resolver:
    """
    A resolver that answers from a list.
    """

    def __init__(self, *hosts: str) -> None:
        """
        @param hosts: The addresses of every name.
        """
        self.hosts = hosts
        self.asked: list[str] = []

    def resolveHostName(self, receiver: Any, hostName: str, portNumber: int, addressTypes: Any) -> None:
        """
        Answer at once.
        """
        self.asked.append(hostName)
        receiver.resolutionBegan(None)
        for host in self.hosts:
            receiver.addressResolved(addresses.addressOf(host, portNumber))
        receiver.resolutionComplete()


@implementer(IReactorPluggableNameResolver)
class _Reactor:
    """
    A reactor with a resolver for names and addresses.
    """

    def __init__(self, *hosts: str) -> None:
        """
        @param hosts: The addresses of every name.
        """
        self.nameResolver = _Resolver(*hosts)

    def installNameResolver(self, resolver: Any) -> Any:
        """
        Not used.
        """


class _OldReactor:
    """
    A reactor that only has C{resolve}.
    """

    def __init__(self, result: Deferred[str]) -> None:
        """
        @param result: The result of each look-up.
        """
        self.result = result

    def resolve(self, name: str) -> Deferred[str]:
        """
        Give it.
        """
        return self.result


class ResolutionTests(SynchronousTestCase):
    """
    Tests for L{resolve}.
    """

    def test_literals(self) -> None:
        """
        An address is not looked up; nothing means this host, as in C{resolve}.
        """
        for host, expected in [
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("fe80::1%ib0", "fe80::1%ib0"),
            ("", "127.0.0.1"),
        ]:
            self.assertEqual(self.successResultOf(resolve(object(), host)), [expected])

    def test_name(self) -> None:
        """
        IPv4 addresses come first, each address once.
        """
        reactor = _Reactor("::1", "127.0.0.1", "::1", "127.0.0.2")
        found = self.successResultOf(resolve(reactor, "example"))
        self.assertEqual(found, ["127.0.0.1", "127.0.0.2", "::1"])
        self.assertEqual(reactor.nameResolver.asked, ["example"])

    def test_bound(self) -> None:
        """
        Of very many addresses some are tried.
        """
        reactor = _Reactor(*[f"10.0.0.{n}" for n in range(resolution.RESOLVED_ADDRESSES + 5)])
        found = self.successResultOf(resolve(reactor, "example"))
        self.assertEqual(len(found), resolution.RESOLVED_ADDRESSES)

    def test_unknownName(self) -> None:
        """
        A name without an address is an error that names it.
        """
        reason = self.failureResultOf(resolve(_Reactor(), "no.such.name"), error.DNSLookupError)
        self.assertEqual(str(reason.value), "DNS lookup failed: no address for 'no.such.name'.")
        for name in ("no.such.name", "a..b"):
            reason = self.failureResultOf(resolve(_Reactor(), name, "not here"), error.DNSLookupError)
            self.assertEqual(str(reason.value), "DNS lookup failed: not here.")

    def test_noName(self) -> None:
        """
        Text that cannot be a name is not given to the resolver, which would never answer.
        """
        reactor = _Reactor("127.0.0.1")
        for host in ["a" * 64, "a..b", "nul\0", ".."]:
            reason = self.failureResultOf(resolve(reactor, host), error.DNSLookupError)
            self.assertIn(repr(host), str(reason.value))
        self.assertEqual(reactor.nameResolver.asked, [])

    def test_resolve(self) -> None:
        """
        Without a name resolver C{reactor.resolve} is asked.
        """
        reactor = _OldReactor(succeed("127.0.0.1"))
        self.assertEqual(self.successResultOf(resolve(reactor, "example")), ["127.0.0.1"])
        reactor = _OldReactor(fail(error.DNSLookupError("example")))
        self.failureResultOf(resolve(reactor, "example"), error.DNSLookupError)


class LocalPortTests(SynchronousTestCase):
    """
    Tests for L{LocalPorts}.
    """

    here = "127.0.0.1"
    peer = addresses.addressOf("127.0.0.1", 80)
    other = addresses.addressOf("127.0.0.1", 81)

    def test_any(self) -> None:
        """
        Any number is one from 49152 up that no connection to this peer has;
        for another peer the same number may do.
        """
        numbers = iter([0, 0, 0, 16383])
        ports = LocalPorts(lambda below: next(numbers))
        self.assertEqual(ports.take(self.here, 0, self.peer), 49152)
        self.assertEqual(ports.take(self.here, 0, self.other), 49152)
        self.assertEqual(ports.take(self.here, 0, self.peer), 65535)

    def test_asked(self) -> None:
        """
        A number that was asked for is not in use at all, at that address.
        """
        ports = LocalPorts(lambda below: 0)
        self.assertEqual(ports.take(self.here, 1234, self.peer), 1234)
        self.assertIsNone(ports.take(self.here, 1234, self.peer))
        self.assertIsNone(ports.take(self.here, 1234, self.other))
        self.assertEqual(ports.take("127.0.0.2", 1234, self.peer), 1234)

    def test_fabric(self) -> None:
        """
        A number that something else of the host has is neither given nor to be had.
        """
        numbers = iter([0, 0, 1])
        ports = LocalPorts(lambda below: next(numbers), lambda port: port not in (49152, 1234))
        self.assertEqual(ports.take(self.here, 0, self.peer), 49153)
        self.assertIsNone(ports.take(self.here, 1234, self.peer))
        self.assertEqual(ports.take(self.here, 1235, self.peer), 1235)

    def test_noneLeft(self) -> None:
        """
        The search for a free number has an end.
        """
        tried: list[int] = []
        ports = LocalPorts(lambda below: tried.append(below) or 0)
        ports.take(self.here, 0, self.peer)
        self.assertIsNone(ports.take(self.here, 0, self.peer))
        self.assertEqual(tried, [16384] * (1 + limits.PORT_ATTEMPTS))

    def test_giveBack(self) -> None:
        """
        A freed number can be taken again; freeing it twice does no harm.
        """
        ports = LocalPorts(lambda below: 0)
        local = addresses.addressOf(self.here, 1234)
        ports.take(self.here, 1234, self.peer)
        ports.release(local, self.other)
        self.assertIsNone(ports.take(self.here, 1234, self.peer))
        ports.release(local, self.peer)
        ports.release(local, self.peer)
        self.assertEqual(ports.ends, {})
        self.assertEqual(ports.take(self.here, 1234, self.peer), 1234)


class FailureTests(SynchronousTestCase):
    """
    Tests for L{twisted_ib.internet.failures}: classes and texts.
    """

    def test_connectErrors(self) -> None:
        """
        Each reason has its class of C{ConnectError} and a text that names host
        and port in one line.
        """
        cases: list[tuple[Exception, type[Exception], str]] = [
            (
                NoListenerError("x"),
                error.ConnectionRefusedError,
                "Connection was refused by other side: 111: nobody listens on SDP host:80.",
            ),
            (
                HiddenListenerError("it listens in another network namespace"),
                error.ConnectionRefusedError,
                "Connection was refused by other side: 111: "
                "SDP host:80: it listens in another network namespace.",
            ),
            (
                NoRouteError("x"),
                error.NoRouteError,
                f"No route to host: {errno.ENETUNREACH}: no HCA reaches SDP host:80.",
            ),
            (
                UnknownDeviceError("no HCA is called 'x'"),
                error.ConnectError,
                "An error occurred while connecting: SDP host:80: no HCA is called 'x'.",
            ),
            (
                HandshakeError("two\nlines.\n"),
                error.ConnectError,
                "An error occurred while connecting: SDP host:80: two lines.",
            ),
            (
                DeviceClosedError(),
                error.ConnectError,
                "An error occurred while connecting: SDP host:80: DeviceClosedError.",
            ),
        ]
        for reason, kind, text in cases:
            made = failures.connectError(reason, "SDP host:80")
            self.assertIs(type(made), kind)
            self.assertIsInstance(made, error.ConnectError)
            self.assertEqual(str(made), text)

    def test_connectErrorStays(self) -> None:
        """
        A C{ConnectError} is not changed.
        """
        reason = error.UserError()
        self.assertIs(failures.connectError(reason, "SDP host:80"), reason)

    def test_otherConnectErrors(self) -> None:
        """
        Rejects, silence and the user's timeout name host and port too.
        """
        for made, kind, text in [
            (
                failures.rejected("SDP host:80", 28),
                error.ConnectionRefusedError,
                "Connection was refused by other side: 111: "
                "SDP host:80 rejected the connection: consumer defined (28).",
            ),
            (
                failures.rejected("SDP host:80", 999),
                error.ConnectionRefusedError,
                "Connection was refused by other side: 111: "
                "SDP host:80 rejected the connection: unknown (999).",
            ),
            (
                failures.noAnswer("SDP host:80"),
                error.TCPTimedOutError,
                f"TCP connection timed out: {errno.ETIMEDOUT}: SDP host:80 did not answer.",
            ),
            (
                failures.timedOut("SDP host:80", 2.5),
                error.TimeoutError,
                "User timeout caused connection failure: SDP host:80 did not answer within 2.5 s.",
            ),
        ]:
            self.assertIs(type(made), kind)
            self.assertEqual(str(made), text)

    def test_bindErrors(self) -> None:
        """
        Local addresses that cannot be had are named.
        """
        for made, text in [
            (failures.notOurs("192.0.2.1"), "Couldn't bind: 99: 192.0.2.1 cannot be the local address."),
            (
                failures.localPortInUse("::1", 80),
                "Couldn't bind: 98: the local port [::1]:80 is in use.",
            ),
            (failures.localPortInUse("::1", 0), "Couldn't bind: 98: no local port of ::1 is free."),
        ]:
            self.assertIsInstance(made, error.ConnectBindError)
            self.assertEqual(str(made), text)

    def test_listenErrors(self) -> None:
        """
        Each reason has an errno and one line that names interface, port and
        what is wrong.
        """
        cases: list[tuple[str, Exception, int, str]] = [
            ("", ServiceInUseError("x"), errno.EADDRINUSE, "any:80: [Errno 98] Address already in use."),
            (
                "10.9.9.9",
                NoRouteError("x"),
                errno.EADDRNOTAVAIL,
                "10.9.9.9:80: [Errno 99] 10.9.9.9 is not an address of this host.",
            ),
            (
                "",
                UnknownDeviceError("no HCA is called 'shm9'"),
                errno.ENODEV,
                "any:80: [Errno 19] no HCA is called 'shm9'.",
            ),
            ("", UnknownDeviceError(), errno.ENODEV, "any:80: [Errno 19] device 'shm9': UnknownDeviceError."),
            (
                "",
                RunDirectoryError("/dev/null is not a directory"),
                errno.EACCES,
                "any:80: [Errno 13] /dev/null is not a directory.",
            ),
            ("", ResourceLimitError("too\nmany."), errno.ENOBUFS, "any:80: [Errno 105] too many."),
            ("::1", HCAError("other"), errno.EIO, "::1:80: [Errno 5] other."),
        ]
        for interface, reason, number, text in cases:
            made = failures.listenError(interface, 80, "shm9", reason)
            self.assertEqual((made.interface, made.port), (interface, 80))
            self.assertIsInstance(made.socketError, OSError)
            self.assertEqual(made.socketError.errno, number)
            self.assertEqual(str(made), "Couldn't listen on " + text)
