"""
Tests for L{twisted_ib.blocking.families.gids}.
"""

from __future__ import annotations

import errno
import gc
import os
import socket as kernel
import ssl
import warnings
from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol

from tests.blocking.case import BlockingTestCase, echo
from tests.support.descriptors import exactly
from tests.support.waiting import HANG_SECONDS
from twisted_ib import select, selectors
from twisted_ib import socket as offloading
from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.families.gids import GIDSocket
from twisted_ib.blocking.tls import wrap_socket
from twisted_ib.socket import AF_IB

#: The GID of 127.0.0.1, which is mapped.
HERE = "::ffff:127.0.0.1"


class Echo(Protocol):
    """
    Sends back what it gets.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        assert self.transport is not None
        self.transport.write(data)


class GIDTestCase(BlockingTestCase):
    """
    Sockets of AF_IB.
    """

    def made(self) -> Any:
        """
        Return a socket.
        """
        skt = offloading.socket(AF_IB, kernel.SOCK_STREAM)
        skt.settimeout(HANG_SECONDS)
        self.addCleanup(skt.close)
        return skt

    def listening(self, address: Any = (HERE, 0), backlog: int = 5) -> Any:
        """
        Return a socket that listens.
        """
        skt = self.made()
        skt.bind(address)
        skt.listen(backlog)
        return skt

    def connected(self, listener: Any) -> tuple[Any, Any]:
        """
        Return a socket that is connected to one that listens, and the one that was accepted.
        """
        accepting = self.inThread(listener.accept)
        skt = self.made()
        skt.connect(listener.getsockname())
        other, peer = accepting.result(HANG_SECONDS)
        other.settimeout(HANG_SECONDS)
        self.addCleanup(other.close)
        self.assertEqual(peer, skt.getsockname())
        return skt, other

    def raises(self, number: int, call: Any, *arguments: Any) -> None:
        """
        Check that a call raises the error of a number.
        """
        error = self.assertRaises(OSError, call, *arguments)
        self.assertEqual(errno.errorcode.get(error.errno or 0), errno.errorcode[number])


class StreamTests(GIDTestCase):
    """
    Connections.
    """

    def test_names(self) -> None:
        """
        Both ends go over SDP, and have pairs of GID and service.
        """
        listener = self.listening()
        gid, service = listener.getsockname()
        self.assertEqual(gid, HERE)
        one, other = self.connected(listener)
        self.assertEqual(one.getpeername(), (HERE, service))
        self.assertEqual(other.getsockname(), (HERE, service))
        self.assertEqual(other.getpeername(), one.getsockname())
        for each in (listener, one, other):
            self.assertIsInstance(each, GIDSocket)
            self.assertEqual((each.family, each.type, each.proto), (27, kernel.SOCK_STREAM, 0))
        self.assertIsInstance(one.sdp, Connection)
        one.sendall(b"to a GID")
        self.assertEqual(exactly(other, 8), b"to a GID")
        other.close()
        self.assertEqual(one.recv(1), b"")

    def test_kernel(self) -> None:
        """
        The kernel hears nothing of the family, nor of an address.
        """
        calls = []

        def spied(name: str) -> Any:
            method = getattr(kernel.socket, name)

            def spy(skt: Any, *arguments: Any) -> Any:
                if isinstance(skt, GIDSocket):
                    calls.append(name)
                return method(skt, *arguments)

            return spy

        for name in ("bind", "connect", "connect_ex", "listen", "accept", "sendto"):
            self.patch(kernel.socket, name, spied(name))
        one, other = self.connected(self.listening())
        with one.dup() as two:
            self.assertEqual((two.family, two.getpeername()), (AF_IB, one.getpeername()))
            two.sendall(b"a duplicate's")
        self.assertEqual(exactly(other, 13), b"a duplicate's")
        self.assertEqual(calls, [])

    def test_bulk(self) -> None:
        """
        More than any buffer holds, echoed by another thread.
        """
        listener = self.listening(("", 0))
        self.assertEqual(listener.getsockname()[0], "::")
        serving = self.inThread(echo, listener)
        one = self.made()
        one.connect((HERE, listener.getsockname()[1]))
        data = os.urandom(1 << 16) * 32
        sending = self.inThread(one.sendall, data)
        self.assertEqual(exactly(one, len(data)), data)
        sending.result(HANG_SECONDS)
        one.close()
        serving.result(HANG_SECONDS)

    def test_ownGID(self) -> None:
        """
        The GID made of an HCA's GUID, which needs no look-up of the service.
        """
        self.listening()
        with self.loop:
            gid = next(iter(self.loop.reactor._channels)).device.gids()[0]
        self.assertTrue(gid.startswith("fe80:"), gid)
        one, _ = self.connected(self.listening((gid, 0)))
        self.assertEqual((one.getsockname()[0], one.getpeername()[0]), (gid, gid))

    def test_boundClient(self) -> None:
        """
        A client has the service that it was bound to.
        """
        listener = self.listening()
        accepting = self.inThread(listener.accept)
        one = self.made()
        one.bind((HERE, 0))
        name = one.getsockname()
        self.assertGreater(name[1], 0)
        one.connect(listener.getsockname())
        self.assertEqual(one.getsockname(), name)
        other, peer = accepting.result(HANG_SECONDS)
        self.addCleanup(other.close)
        self.assertEqual(peer, name)

    def test_boundGID(self) -> None:
        """
        And the GID: from that of an HCA's GUID no way leads to another.
        """
        listener = self.listening(("::", 0))
        with self.loop:
            gid = next(iter(self.loop.reactor._channels)).device.gids()[0]
        one = self.made()
        one.bind((gid, 0))
        self.raises(errno.EADDRNOTAVAIL, one.connect, (HERE, listener.getsockname()[1]))

    def test_threeServices(self) -> None:
        """
        TCP, SDP of IP addresses and SDP of GIDs have one number, each with its own clients.
        """
        tcp = self.server()
        number = tcp.getsockname()[1]
        gids = self.listening((HERE, number))
        one, other = self.connected(gids)
        two = self.client(tcp)
        second = tcp.accept()[0]
        self.addCleanup(second.close)
        one.sendall(b"1")
        two.sendall(b"2")
        self.assertEqual((exactly(other, 1), exactly(second, 1)), (b"1", b"2"))

    def test_backlog(self) -> None:
        """
        Connections wait for C{accept}; when the socket closes they are reset.
        """
        listener = self.listening(backlog=2)
        clients = [self.made() for _ in range(2)]
        for each in clients:
            each.connect(listener.getsockname())
        listener.accept()[0].close()
        self.assertEqual(clients[0].recv(1), b"")
        listener.listen(1)
        listener.close()
        self.raises(errno.ECONNRESET, clients[1].recv, 1)

    def test_backlogs(self) -> None:
        """
        A second C{listen} changes how many wait, also where as many wait as might.
        """
        listener = self.listening(backlog=1)
        clients = [self.made() for _ in range(4)]
        clients[0].connect(listener.getsockname())
        listener.listen(3)
        for each in clients[1:3]:
            each.connect(listener.getsockname())
        clients[3].settimeout(0.01)
        self.assertRaises(TimeoutError, clients[3].connect, listener.getsockname())
        for _ in range(3):
            listener.accept()[0].close()
        last = self.made()
        last.connect(listener.getsockname())

    def test_duplicates(self) -> None:
        """
        A listener's duplicate listens on when the first is closed; C{fromfd} makes one, too.
        """
        listener = self.listening()
        name = listener.getsockname()
        again = offloading.fromfd(listener.fileno(), AF_IB, kernel.SOCK_STREAM)
        again.settimeout(HANG_SECONDS)
        self.addCleanup(again.close)
        listener.close()
        one = self.made()
        one.connect(name)
        other = again.accept()[0]
        self.addCleanup(other.close)
        again.close()
        self.raises(errno.ECONNREFUSED, self.made().connect, name)

    def test_endpoints(self) -> None:
        """
        The peer may be an C{ib:} endpoint with C{framing=sdp}.
        """
        reactor = self.loop.reactor
        endpoint = serverFromString(reactor, "ib:0:framing=sdp")
        with self.loop:
            port: Any = self.successResultOf(endpoint.listen(Factory.forProtocol(Echo)))
        one = self.made()
        one.connect((HERE, port.getHost().port))
        one.sendall(b"to Twisted")
        self.assertEqual(exactly(one, 10), b"to Twisted")


class SelectTests(GIDTestCase):
    """
    C{select} and C{selectors}.
    """

    def test_nonBlocking(self) -> None:
        """
        Connect, accept and receive, each when C{select} says so; a refused connect has its error.
        """
        listener = self.listening()
        listener.setblocking(False)
        self.assertRaises(BlockingIOError, listener.accept)
        one = self.made()
        one.setblocking(False)
        self.assertEqual(one.connect_ex(listener.getsockname()), errno.EINPROGRESS)
        self.assertEqual(select.select([listener], [], [], HANG_SECONDS)[0], [listener])
        other = listener.accept()[0]
        self.addCleanup(other.close)
        self.assertEqual(select.select([], [one], [], HANG_SECONDS)[1], [one])
        self.assertEqual(one.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), 0)
        self.assertEqual(select.select([one, listener], [], [], 0)[0], [])
        other.send(b"x")
        self.assertEqual(select.select([one, listener], [], [], HANG_SECONDS)[0], [one])
        gone = listener.getsockname()
        listener.close()
        two = self.made()
        two.setblocking(False)
        self.assertEqual(two.connect_ex(gone), errno.EINPROGRESS)
        select.select([], [two], [], HANG_SECONDS)
        self.assertEqual(two.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), errno.ECONNREFUSED)

    def test_selectors(self) -> None:
        """
        Each selector has a listener, a connection over SDP and one of TCP in one wait.
        """
        for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
            listener = self.listening()
            one, other = self.connected(listener)
            tcp, peer = self.pair(kernel, kernel)
            with kind() as selector:
                for each in (listener, one, tcp):
                    selector.register(each, selectors.EVENT_READ)
                self.assertEqual(selector.select(0), [])
                for each, send in ((one, other.send), (tcp, peer.send)):
                    send(b"x")
                    self.assertEqual([key.fileobj for key, _ in selector.select(HANG_SECONDS)], [each])
                    self.assertEqual(each.recv(2), b"x")
                client = self.made()
                client.connect(listener.getsockname())
                self.assertEqual([key.fileobj for key, _ in selector.select(HANG_SECONDS)], [listener])
                listener.accept()[0].close()


class RefusalTests(GIDTestCase):
    """
    Bad input is an C{OSError} with its number, and TypeError and OverflowError as of other addresses.
    """

    def test_types(self) -> None:
        """
        A socket of AF_IB is a stream, whether or not that is said; another type or protocol is refused.
        """
        flags = kernel.SOCK_NONBLOCK | kernel.SOCK_CLOEXEC
        for arguments in (
            (),
            (-1,),
            (-1, -1),
            (-1, 0),
            (kernel.SOCK_STREAM, 0),
            (kernel.SOCK_STREAM | flags,),
        ):
            with offloading.socket(AF_IB, *arguments) as made:
                self.assertEqual((made.family, made.type, made.proto), (27, kernel.SOCK_STREAM, 0))
        for number, arguments in (
            (errno.ESOCKTNOSUPPORT, (kernel.SOCK_DGRAM,)),
            (errno.ESOCKTNOSUPPORT, (kernel.SOCK_SEQPACKET | flags, 0)),
            (errno.EPROTONOSUPPORT, (kernel.SOCK_STREAM, 1)),
            (errno.EPROTONOSUPPORT, (-1, kernel.IPPROTO_TCP)),
        ):
            self.raises(number, offloading.socket, AF_IB, *arguments)

    def test_kinds(self) -> None:
        """
        There are streams only; classes of other families have no GIDs.
        """
        self.raises(errno.ESOCKTNOSUPPORT, offloading.socket, AF_IB, kernel.SOCK_DGRAM)
        self.raises(errno.EPROTONOSUPPORT, offloading.socket, AF_IB, kernel.SOCK_STREAM, 6)
        other = type("Other", (offloading.socket,), {})
        self.raises(errno.EAFNOSUPPORT, other, AF_IB)
        self.raises(errno.EAFNOSUPPORT, GIDSocket, kernel.AF_INET)
        self.raises(errno.EAFNOSUPPORT, wrap_socket, ssl.create_default_context(), self.made())

    def test_addresses(self) -> None:
        """
        No GID, no service, none of this host.
        """
        skt = self.made()
        for call in (skt.bind, skt.connect):
            for gid in ("localhost", "fe80::1%lo", "1.2.3", ":::", "é"):
                self.raises(errno.EINVAL, call, (gid, 7))
            for bad in ("::1", ("::1",), ("::1", 7, 0, 0), (b"::1", 7), ("::1", "7")):
                self.assertRaises(TypeError, call, bad)
            for service in (-1, 65536):
                self.assertRaises(OverflowError, call, ("::1", service))
        self.assertEqual(skt.connect_ex(("x", 7)), errno.EINVAL)
        self.raises(errno.EINVAL, skt.connect, ("::", 7))
        self.raises(errno.EINVAL, skt.connect, (HERE, 0))
        for gid in ("2001:db8::7", "::ffff:198.51.100.7", "fe80::7"):
            self.raises(errno.EADDRNOTAVAIL, skt.bind, (gid, 0))
        self.assertEqual(skt.getsockname(), ("::", 0))

    def test_refused(self) -> None:
        """
        Nobody has the service, or its socket is only bound, or it is of another kind; another try may do.
        """
        bound = self.made()
        bound.bind((HERE, 0))
        sdp = self.server()
        skt = self.made()
        for number in (9, bound.getsockname()[1], sdp.getsockname()[1]):
            self.raises(errno.ECONNREFUSED, skt.connect, (HERE, number))
        self.assertEqual(skt.connect_ex((HERE, 9)), errno.ECONNREFUSED)
        bound.listen()
        skt.connect(bound.getsockname())
        bound.accept()[0].close()
        self.assertEqual(skt.recv(1), b"")
        self.raises(errno.EISCONN, skt.connect, bound.getsockname())

    def test_states(self) -> None:
        """
        Calls that do not fit what the socket is.
        """
        skt = self.made()
        self.raises(errno.ENOTCONN, skt.getpeername)
        self.raises(errno.ENOTCONN, skt.sendto, b"x", (HERE, 9))
        self.raises(errno.ENOTCONN, skt.sendmsg, [b"x"], [], 0, (HERE, 9))
        self.raises(errno.ENOTCONN, skt.recv, 1)
        self.raises(errno.EINVAL, skt.accept)
        skt.bind((HERE, 0))
        self.raises(errno.EINVAL, skt.bind, (HERE, 0))
        self.raises(errno.EADDRINUSE, self.made().bind, skt.getsockname())
        skt.listen()
        self.raises(errno.EISCONN, skt.connect, (HERE, 9))
        skt.settimeout(0.01)
        self.assertRaises(TimeoutError, skt.accept)
        name = skt.getsockname()
        skt.close()
        for call in (
            skt.getsockname,
            skt.listen,
            skt.accept,
            lambda: skt.bind(name),
            lambda: skt.connect(name),
        ):
            self.raises(errno.EBADF, call)
        again = self.made()
        again.bind(name)
        again.listen()
        again.shutdown(kernel.SHUT_RDWR)
        self.raises(errno.EINVAL, again.accept)
        self.raises(errno.ECONNREFUSED, self.made().connect, name)
        again.listen()
        self.connected(again)

    def test_connecting(self) -> None:
        """
        A socket whose connect is under way does not listen, and keeps its name.
        """
        one = self.made()
        one.bind((HERE, 0))
        name = one.getsockname()
        one.setblocking(False)
        self.assertEqual(one.connect_ex(self.listening().getsockname()), errno.EINPROGRESS)
        self.raises(errno.EINVAL, one.listen)
        self.assertEqual(one.getsockname(), name)

    def test_forgotten(self) -> None:
        """
        A socket that was never closed gives its service up.
        """
        skt = offloading.socket(AF_IB)
        skt.bind((HERE, 0))
        name = skt.getsockname()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del skt
            gc.collect()
        self.made().bind(name)
