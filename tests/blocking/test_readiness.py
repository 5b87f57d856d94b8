"""
Readiness over SDP is what it is over TCP: C{select}, C{poll} and C{epoll} of sockets in each state.
"""

from __future__ import annotations

import select as kernelSelect
import socket
import struct
from collections.abc import Iterator
from typing import Any

from tests.blocking.case import LOOPBACK
from tests.blocking.test_descriptors import Case
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import select
from twisted_ib import socket as offloading

_IN, _OUT, _PRI = kernelSelect.POLLIN, kernelSelect.POLLOUT, kernelSelect.POLLPRI
_RDHUP, _HUP, _ERR = kernelSelect.POLLRDHUP, kernelSelect.POLLHUP, kernelSelect.POLLERR
#: What is asked for.
MASKS = (_IN, _OUT, _IN | _OUT, _RDHUP, _IN | _OUT | _RDHUP, _PRI, 0)


def idle(one: Any, other: Any) -> int:
    """
    Nothing has happened.

    @return: The events that there are then, of all.
    """
    return _OUT


def data(one: Any, other: Any) -> int:
    """
    Octets wait.
    """
    other.sendall(b"x")
    return _OUT | _IN


def peerEnded(one: Any, other: Any) -> int:
    """
    The peer sends no more.
    """
    other.shutdown(socket.SHUT_WR)
    return _OUT | _IN | _RDHUP


def bothEnded(one: Any, other: Any) -> int:
    """
    Nobody sends any more.
    """
    other.shutdown(socket.SHUT_WR)
    one.shutdown(socket.SHUT_WR)
    return _OUT | _IN | _RDHUP | _HUP


def ended(one: Any, other: Any) -> int:
    """
    This side sends no more.
    """
    one.shutdown(socket.SHUT_WR)
    return _OUT


def reset(one: Any, other: Any) -> int:
    """
    The peer has reset the connection.
    """
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    return _OUT | _IN | _RDHUP | _HUP | _ERR


def full(one: Any, other: Any) -> int:
    """
    There is no room.
    """
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(1 << 20))
    except BlockingIOError:
        return 0


STATES = (idle, data, peerEnded, bothEnded, ended, reset, full)


class StateTests(Case):
    """
    Each state of a connection.
    """

    def states(self) -> Iterator[tuple[Any, int]]:
        """
        Yield the sockets in their states, first those of TCP, with all the events that each has.
        """
        for made in (socket, offloading):
            for state in STATES:
                one, other = self.pair(made, made)
                yield one, state(one, other)

    def arrived(self, one: Any, events: int) -> None:
        """
        Wait until a socket has its events.
        """
        poller = select.poll()
        poller.register(one, _IN | _OUT | _RDHUP)
        waitUntil(lambda: dict(poller.poll(0)).get(one.fileno(), 0) == events)

    def test_poll(self) -> None:
        """
        C{poll} and C{epoll} say those events that are asked for, and an end or error unasked.
        """
        for one, events in self.states():
            self.arrived(one, events)
            for made in (select.poll, select.epoll):
                for mask in MASKS:
                    poller = made()
                    poller.register(one, mask)
                    expected = events & (mask | _HUP | _ERR)
                    found = [(one.fileno(), expected)] if expected else []
                    self.assertEqual(poller.poll(0), found, (events, mask))
                    if expected:
                        self.assertEqual(poller.poll(), found)
                        self.assertEqual(poller.poll(-1), found)
                    poller.modify(one, _IN)
                    expected = events & (_IN | _HUP | _ERR)
                    found = [(one.fileno(), expected)] if expected else []
                    self.assertEqual(poller.poll(0), found)
                    poller.unregister(one)
                    self.assertEqual(poller.poll(0), [])
                    if made is select.epoll:
                        poller.close()

    def test_defaults(self) -> None:
        """
        By default all of them wait to read, to write, and for what is urgent.
        """
        for one, events in self.states():
            self.arrived(one, events)
            expected = events & (_IN | _OUT | _PRI | _HUP | _ERR)
            for made in (select.poll, select.epoll):
                poller = made()
                poller.register(one.fileno())
                self.assertEqual(poller.poll(0), [(one.fileno(), expected)] if expected else [])
                if made is select.epoll:
                    poller.close()

    def test_select(self) -> None:
        """
        C{select} says which can be read and written, in each list that names them; beside one of the kernel's
        as well.
        """
        plain, _ = self.pair(socket, socket)
        for one, events in self.states():
            self.arrived(one, events)
            reads = [one] if events & (_IN | _HUP | _ERR) else []
            writes = [one] if events & (_OUT | _ERR) else []
            self.assertEqual(select.select([one], [one], [one], 0), (reads, writes, []))
            self.assertEqual(select.select([one], [], [], 0), (reads, [], []))
            self.assertEqual(select.select([], [one], [], 0), ([], writes, []))
            self.assertEqual(select.select([], [], [one.fileno()], 0), ([], [], []))
            self.assertEqual(
                select.select([plain, one], [one, plain], [plain], 0), (reads, [*writes, plain], [])
            )
            self.assertEqual(select.select([one, one], [], [], 0), (reads * 2, [], []))


class ObjectTests(Case):
    """
    The objects themselves.
    """

    def test_errors(self) -> None:
        """
        What is registered twice, or is not there, and numbers that cannot be, are the same errors.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            one, other = self.pair(made, made)
            third, fourth = self.pair(made, made)
            epoll, poll = select.epoll(), select.poll()
            self.addCleanup(epoll.close)
            epoll.register(one, _IN)
            said += [self.saying(epoll.register, one, _IN), self.saying(epoll.modify, third, _IN)]
            said += [self.saying(epoll.unregister, third), self.saying(epoll.poll, 0, 0)]
            said += [self.saying(poll.modify, third, _IN), self.saying(poll.unregister, third)]
            said += [self.saying(poll.register, "x"), self.saying(epoll.register, -1)]
            epoll.register(third, _IN)
            for each in (other, fourth):
                each.sendall(b"x")
            waitUntil(lambda epoll=epoll: len(epoll.poll(0)) == 2)
            said += [len(epoll.poll(0, 1)), len(epoll.poll(1, maxevents=2)), len(epoll.poll(0, -1))]
            epoll.modify(third, 0)
            said.append(epoll.poll(0) == [(one.fileno(), _IN)])
            epoll.unregister(one)
            epoll.register(one, _OUT)
            said.append(epoll.poll(0) == [(one.fileno(), _OUT)])
            said += [self.saying(select.select, [one], [], [], -1), self.saying(poll.poll, "x")]
        self.assertSame(said)

    def test_closed(self) -> None:
        """
        A closed epoll object refuses.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            one, _ = self.pair(made, made)
            with select.epoll() as epoll:
                epoll.register(one, _IN)
                said += [epoll.closed, epoll.fileno() >= 0, epoll.poll(0)]
            said += [epoll.closed, self.saying(epoll.fileno), self.saying(epoll.register, one, _IN)]
            said += [self.saying(epoll.poll, 0), self.saying(epoll.__enter__)]
            epoll.close()
        self.assertSame(said)

    def test_once(self) -> None:
        """
        C{EPOLLONESHOT} says what it was asked for once, until it is asked for again.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            one, other = self.pair(made, made)
            epoll = select.epoll()
            self.addCleanup(epoll.close)
            epoll.register(one, _IN | kernelSelect.EPOLLONESHOT)
            said.append(epoll.poll(0))
            other.sendall(b"x")
            said.append([events for _, events in epoll.poll(HANG_SECONDS)])
            said.append(epoll.poll(0))
            epoll.modify(one, _OUT | kernelSelect.EPOLLONESHOT)
            said += [[events for _, events in epoll.poll(0)], epoll.poll(0)]
            epoll.modify(one, _IN)
            said += [[events for _, events in epoll.poll(0)] for _ in range(2)]
        self.assertSame(said)

    def test_connecting(self) -> None:
        """
        A connect that does not block becomes writable with its end, well or not.
        """
        said: list[Any] = []
        with socket.create_server((LOOPBACK, 0)) as probe:
            nobody = probe.getsockname()
        for made in (socket, offloading):
            listener = self.server(made)
            for address in (listener.getsockname(), nobody):
                one = self.connecting(address, made)
                for poller in (select.poll(), select.epoll()):
                    poller.register(one, _OUT)
                    (found,) = poller.poll()
                    said.append(found[1])
                said.append(len(select.select([], [one], [], HANG_SECONDS)[1]))
                said.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        self.assertSame(said)

    def test_refused(self) -> None:
        """
        A connect that does not block and is refused, by a rule over SDP alone, ends with the events of TCP
        that are asked for.
        """
        self.rules("use sdp connect * *:*\n")
        said: list[Any] = []
        with socket.create_server((LOOPBACK, 0)) as probe:
            nobody = probe.getsockname()
        for made in (socket, offloading):
            for mask in (_IN, _OUT, _IN | _OUT, 0):
                one = self.connecting(nobody, made)
                poller = select.poll()
                poller.register(one, mask)
                said.append([events for _, events in poller.poll()])
                said.append([each == [one] for each in select.select([one], [one], [one], HANG_SECONDS)])
                said.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        self.assertSame(said)

    def test_listening(self) -> None:
        """
        A listener is readable while a connection waits, and never writable.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            listener = self.server(made)
            epoll = select.epoll()
            self.addCleanup(epoll.close)
            epoll.register(listener, _IN | _OUT)
            said += [epoll.poll(0), select.select([listener], [listener], [], 0) == ([], [], [])]
            client = self.inThread(self.client, listener, made)
            said.append([events for _, events in epoll.poll(HANG_SECONDS)])
            said.append(select.select([listener], [listener], [], 0) == ([listener], [], []))
            accepted = listener.accept()[0]
            self.addCleanup(accepted.close)
            client.result(HANG_SECONDS)
            said.append(epoll.poll(0))
        self.assertSame(said)
