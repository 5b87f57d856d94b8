"""
Each call of a connected or listening socket says over SDP what it says over TCP.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.blocking.case import LOOPBACK
from tests.blocking.test_descriptors import Case
from tests.blocking.test_files import waiting
from tests.support.calls import requireReplaceable
from tests.support.descriptors import exactly
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import socket as offloading
from twisted_ib.blocking.connection import RECEIVE_BYTES, SEND_BYTES
from twisted_ib.blocking.listening import Listening

#: Sends within which one hears of a reset.
_SENDS = 10_000


class OperationCase(Case):
    """
    Has connected pairs.
    """

    def holding(self, data: bytes) -> Iterator[tuple[Any, Any]]:
        """
        Yield pairs, over TCP and over SDP, of which the second has octets waiting.
        """
        for one, other in self.both():
            one.sendall(data)
            waitUntil(lambda other=other: waiting(other) == len(data))
            yield one, other


class ReceiveTests(OperationCase):
    """
    The calls that receive.
    """

    def test_shutBoth(self) -> None:
        """
        Data for an end that is shut in both directions resets it, whichever thread takes it from the device.
        """
        one, other = self.pair()
        other.shutdown(socket.SHUT_RDWR)

        def send() -> int | None:
            for _ in range(_SENDS):
                try:
                    one.sendall(b"x")
                except OSError as e:
                    return e.errno
            return None

        self.assertIn(self.inThread(send).result(HANG_SECONDS), (errno.EPIPE, errno.ECONNRESET))

    def test_sizes(self) -> None:
        """
        Each returns as much as it is asked for or there is, none if none is asked for, and refuses sizes that
        cannot be.
        """
        said: list[Any] = []
        for one, other in self.holding(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"):
            say = self.saying
            said += [say(other.recv, size) for size in (0, -1, 2, True, None, "1", 1.5)]
            said += [say(other.recvfrom, size) for size in (-1, 2, "1")]
            said += [say(other.recvmsg, *sizes) for sizes in ((-1,), (2,), (1, -1), (1, 4), ("1",))]
            for call in (other.recv_into, other.recvfrom_into):
                for size in ((), (0,), (1,), (3,), (4,), (-1,)):
                    room = bytearray(3)
                    said += [say(call, room, *size), bytes(room)]
                said += [say(call, b"xyz"), say(call, bytearray()), say(call, "text")]
            rooms = [bytearray(2), bytearray(0), bytearray(3)]
            said += [say(other.recvmsg_into, rooms), [bytes(room) for room in rooms]]
            said += [say(other.recvmsg_into, [bytearray(1)], -1), say(other.recvmsg_into, [b"x"])]
            numbers = array.array("h", [0, 0])
            said += [say(other.recv_into, numbers), list(numbers)]
            said.append(other.recv(100))
            one.close()
            room = bytearray(b"--")
            said += [other.recv(1), other.recvfrom(1), other.recvmsg(1), other.recv_into(room), bytes(room)]
            said += [other.recvmsg_into([room]), other.recvfrom_into(room), bytes(room), other.recv(0)]
        self.assertSame(said)

    def test_flags(self) -> None:
        """
        MSG_PEEK leaves what it shows, MSG_DONTWAIT does not wait, MSG_WAITALL waits for all or the end; what
        there is not is refused.
        """
        said: list[Any] = []
        peek, noWait, every = socket.MSG_PEEK, socket.MSG_DONTWAIT, socket.MSG_WAITALL
        for one, other in self.holding(b"0123456789"):
            room = bytearray(4)
            for flags in (peek, peek | noWait, noWait, every, socket.MSG_OOB):
                said += [self.saying(call, 3, flags) for call in (other.recv, other.recvfrom)]
                said += [self.saying(other.recv_into, room, 1, flags), bytes(room)]
                said.append(self.saying(other.recvmsg, 1, 0, flags))
                if flags == noWait:
                    said.append(other.recv(100))
                    said += [self.saying(other.recv, 1, each) for each in (noWait, noWait | peek)]
                    one.sendall(b"0123456789")
                    waitUntil(lambda other=other: waiting(other) == 10)
            said.append(waiting(other))
            got = self.inThread(other.recv, 6, every)
            one.sendall(b"abcd")
            said.append(got.result(HANG_SECONDS))
            got = self.inThread(other.recv, 100, every)
            one.sendall(b"last")
            one.close()
            said += [got.result(HANG_SECONDS), other.recv(1, every), other.recv(1, peek)]
        self.assertSame(said)

    def test_pieces(self) -> None:
        """
        Octets of many writes are one stream: read in parts that begin and end within any of them.
        """
        said: list[Any] = []
        for one, other in self.both():
            data = bytes(range(200))
            for at in range(0, 200, 10):
                one.sendall(data[at : at + 10])
            waitUntil(lambda other=other: waiting(other) == 200)
            for size in (3, 7, 4, 10, 16, 20, 25, 1, 14, 100):
                said += [other.recv(size, socket.MSG_PEEK), waiting(other), other.recv(size), waiting(other)]
        self.assertSame(said)
        self.assertEqual(b"".join(said[2:40:4]), bytes(range(200)))

    def test_unread(self) -> None:
        """
        The medium holds a peer back that is not read, and lets it go on when it is.
        """
        for one, other in self.both():
            data = os.urandom(3 * RECEIVE_BYTES + 12345)
            sent = self.inThread(one.sendall, data)
            waitUntil(lambda other=other: waiting(other) > 0)
            got = b""
            for size in (1, 4096, RECEIVE_BYTES):
                got += exactly(other, size)
            got += exactly(other, len(data) - len(got))
            sent.result(HANG_SECONDS)
            self.assertEqual(got, data)


class SendTests(OperationCase):
    """
    The calls that send.
    """

    def test_forms(self) -> None:
        """
        Each says how much it took, of whatever holds octets, and refuses what does not or has ancillary data
        that cannot be.
        """
        said: list[Any] = []
        where = (LOOPBACK, 1)
        for one, other in self.both():
            say = self.saying
            for data in (b"ab", bytearray(b"cd"), memoryview(b"efgh")[::2].tobytes(), array.array("h", [1])):
                said += [say(one.send, data), say(one.sendall, data), say(one.sendto, data, where)]
                said.append(say(one.sendmsg, [data, b"", data]))
            said += [say(one.send, b""), say(one.sendall, b""), say(one.sendmsg, [])]
            for wrong in ("text", None, 1):
                said += [say(call, wrong) for call in (one.send, one.sendall, one.sendmsg)]
                said.append(say(one.sendto, wrong, where))
            said += [say(one.sendto, b"x"), say(one.sendto, b"x", 0, where), say(one.sendto, b"x", 0, 1)]
            said += [say(one.sendto, b"x", 0, where, 1), say(one.sendto, b"x", "flags", where)]
            said += [say(one.sendmsg, [b"x"], [(1,)]), say(one.sendmsg, [b"x"], [(1, 2, 3)])]
            said += [say(one.sendmsg, [b"x"], [("a", 2, b"")]), say(one.sendmsg, [b"x"], (), 0, None)]
            said += [say(one.sendmsg, [b"x"], (), 0, "where"), say(one.sendmsg, [b"x"], (), "flags")]
            said.append(say(one.sendmsg, [b"x"], [(socket.IPPROTO_IP, 99, b"")]))
            said += [say(one.sendmsg, [b"x"], [(socket.SOL_SOCKET, kind, bytes(4))]) for kind in (1, 99)]
            said += [say(one.sendmsg, [b"x"] * pieces) for pieces in (1024, 1025)]
            one.shutdown(socket.SHUT_WR)
            whole = b""
            while piece := other.recv(1000):
                whole += piece
            said.append(whole)
        self.assertSame(said)

    def test_afterEnd(self) -> None:
        """
        After a shutdown, or the peer's reset, each send is a broken pipe or the reset, once.
        """
        said: list[Any] = []
        for one, other in self.both():
            one.shutdown(socket.SHUT_WR)
            said += [self.saying(call, b"x") for call in (one.send, one.sendall)]
            said.append(self.saying(one.sendmsg, [b"x"]))
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            other.close()
        for one, other in self.both():
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            other.close()
            waitUntil(lambda one=one: one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) & 0xFF == 7)
            said += [self.saying(one.send, b"x"), self.saying(one.send, b"x"), one.recv(1)]
        self.assertSame([*said[:3], *said[6:9], *said[3:6], *said[9:]])

    def test_full(self) -> None:
        """
        With no room a send waits, for its timeout or not at all.
        """
        for one, _ in self.both():
            one.setblocking(False)
            refused = 0

            def isFull(one: Any = one) -> bool:
                """
                Send as much as there is room for: TCP has more once the peer's end has what is on its way.
                """
                nonlocal refused
                try:
                    one.send(bytes(SEND_BYTES + 1))
                    refused = 0
                except BlockingIOError:
                    refused += 1
                return refused > 10

            waitUntil(isFull)

            def refuses(error: type[OSError], send: Callable[[], object]) -> None:
                """
                Send until there is no room: a loaded machine's TCP may have found some meanwhile.
                """

                def isRefused() -> bool:
                    try:
                        send()
                    except error:
                        return True
                    return False

                waitUntil(isRefused)

            refuses(BlockingIOError, partial(one.send, b"x", socket.MSG_DONTWAIT))
            refuses(BlockingIOError, partial(one.sendmsg, [b"x"]))
            one.settimeout(0.01)
            refuses(TimeoutError, partial(one.send, b"x"))
            refuses(TimeoutError, partial(one.send, b"x", socket.MSG_DONTWAIT))
            refuses(TimeoutError, partial(one.sendall, bytes(3 * SEND_BYTES)))

    def test_room(self) -> None:
        """
        What had no room is sent once the peer reads, and nothing that was taken is lost; a peer that closes
        ends the wait.
        """
        said: list[Any] = []
        for isClosed in (False, True):
            for one, other in self.both():
                one.setblocking(False)
                taken = 0
                with self.assertRaises(BlockingIOError):
                    while True:
                        taken += one.send(bytes(SEND_BYTES + 1))
                one.settimeout(HANG_SECONDS)
                rest = self.inThread(self.saying, one.sendall, b"x" * (3 * SEND_BYTES))
                if isClosed:
                    other.close()
                    said += [rest.result(HANG_SECONDS), self.saying(one.send, b"x")]
                    continue
                self.assertEqual(exactly(other, taken), bytes(taken))
                self.assertEqual(exactly(other, 3 * SEND_BYTES), b"x" * (3 * SEND_BYTES))
                self.assertIsNone(rest.result(HANG_SECONDS))
                self.assertEqual(one.send(b"end"), 3)
                one.shutdown(socket.SHUT_WR)
                self.assertEqual(other.recv(100, socket.MSG_WAITALL), b"end")
        self.assertEqual(said, [errno.ECONNRESET, errno.EPIPE] * 2)

    def test_large(self) -> None:
        """
        A send that may block takes all of it.
        """
        for one, other in self.both():
            data = os.urandom(2 * SEND_BYTES + 3)
            for call, form in ((one.send, bytes), (one.send, bytearray), (one.sendall, memoryview)):
                sent = self.inThread(call, form(data))
                self.assertEqual(exactly(other, len(data)), data)
                self.assertEqual(sent.result(HANG_SECONDS), len(data) if call == one.send else None)


class StateTests(OperationCase):
    """
    The calls about a socket.
    """

    def test_timeouts(self) -> None:
        """
        A receive waits as long as its timeout says, and says so.
        """
        said: list[Any] = []
        for _, other in self.both():
            for seconds in (0.01, 0.0):
                other.settimeout(seconds)
                for call, *arguments in (
                    (other.recv, 1),
                    (other.recv, 1, socket.MSG_PEEK),
                    (other.recv, 1, socket.MSG_WAITALL),
                    (other.recv, 1, socket.MSG_DONTWAIT),
                    (other.recv_into, bytearray(1)),
                    (other.recvmsg, 1),
                ):
                    said.append(self.saying(call, *arguments))
        self.assertSame(said)
        self.assertEqual(said[0], TimeoutError)

    def test_calls(self) -> None:
        """
        What a connected socket cannot do, and what it says of itself.
        """
        said: list[Any] = []
        for one, other in self.both():
            say = self.saying
            said += [say(one.bind, (LOOPBACK, 0)), say(one.listen), say(one.accept)]
            # The first connect of a socket that has connected without blocking may say that it has.
            say(one.connect, other.getsockname())
            said += [say(one.connect, other.getsockname()), one.connect_ex(other.getsockname())]
            said += [one.getpeername() == other.getsockname(), other.getpeername() == one.getsockname()]
            for option in (
                "SO_TYPE",
                "SO_ERROR",
                "SO_ACCEPTCONN",
                "SO_KEEPALIVE",
                "SO_DOMAIN",
                "SO_PROTOCOL",
            ):
                number = getattr(socket, option)
                said += [one.getsockopt(socket.SOL_SOCKET, number, *size) for size in ((), (4,))]
            for value in (1, 0, b"\1\0\0\0"):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, value)
                said.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            said += [say(one.setsockopt, socket.SOL_SOCKET, 9999, 1), say(one.getsockopt, 9999, 1)]
            said += [say(one.shutdown, how) for how in (3, -1, "x")]
            self.assertRaises(OverflowError, one.shutdown, 1 << 40)
            said += [one.getblocking(), one.gettimeout(), one.family, one.type, one.proto]
            one.shutdown(socket.SHUT_WR)
            said += [say(one.getpeername) == other.getsockname(), say(one.shutdown, socket.SHUT_WR)]
            other.close()
            waitUntil(lambda one=one: one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) & 0xFF == 7)
            said += [say(one.getpeername), say(one.shutdown, socket.SHUT_WR), one.recv(1)]
            said.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
        self.assertSame(said)

    def test_info(self) -> None:
        """
        TCP_INFO names the state through a connection's life.
        """
        said: list[Any] = []
        for one, other in self.both():

            def state(skt: Any) -> int:
                return int(skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0])

            said += [state(one), len(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8))]
            one.shutdown(socket.SHUT_WR)
            waitUntil(lambda other=other, state=state: state(other) == 8)
            waitUntil(lambda one=one, state=state: state(one) == 5)
            other.shutdown(socket.SHUT_WR)
            waitUntil(lambda other=other, state=state: state(other) == 7)
            said += [state(other), other.recv(1)]
        self.assertSame(said)

    def test_listens(self) -> None:
        """
        TCP_INFO of a socket that listens says so, over SDP alone, too; what is no integer is no backlog.
        """
        self.rules("use sdp listen * *:*\n")
        said: list[Any] = []
        for module in (socket, offloading):
            with module.socket() as server:
                server.bind(("127.0.0.1", 0))
                said.append([self.saying(server.listen, "1"), self.saying(server.listen, 1.0)])
                server.listen(1)
                said[-1].append(server.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
        self.assertSame(said)

    def test_resets(self) -> None:
        """
        A reset is told once, by the call that meets it first: SO_ERROR, a receive or a send.
        """
        said: list[Any] = []
        for call in ("option", "recv", "peek"):
            for one, other in self.both():
                other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                other.close()
                waitUntil(lambda one=one: one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) & 0xFF == 7)
                turn: list[Any] = []
                for _ in range(2):
                    if call == "option":
                        turn.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                    else:
                        turn.append(self.saying(one.recv, 1, socket.MSG_PEEK if call == "peek" else 0))
                turn.append(self.saying(one.send, b"x"))
                said.append(turn)
            self.assertEqual(said[-1], said[-2], call)
        self.assertEqual(said[0][:2], [errno.ECONNRESET, 0])

    def test_notConnected(self) -> None:
        """
        A socket that is not connected.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            one = made.socket()
            self.addCleanup(one.close)
            say = self.saying
            said += [say(one.recv, 1), say(one.recv_into, bytearray(1)), say(one.getpeername)]
            said += [say(one.recvfrom_into, bytearray(1)), say(one.recvmsg_into, [bytearray(1)])]
            said += [say(one.shutdown, socket.SHUT_RDWR), say(one.accept), one.getsockname()]
            said += [say(one.connect, ("127.0.0.1", "x")), say(one.connect, "x"), say(one.connect, ())]
            one.bind((LOOPBACK, 0))
            said.append(one.getsockname()[0])
            one.listen()
            said.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            with made.socket() as unbound:
                unbound.listen()
                said += [unbound.getsockname()[0], unbound.getsockname()[1] > 0]
        self.assertSame(said)


class ListenerTests(OperationCase):
    """
    A listener in each of its states.
    """

    def test_accept(self) -> None:
        """
        C{accept} says what is wrong at once, waits for its timeout, and has whoever came, though it has gone.
        """
        said: list[Any] = []
        for made, seconds in ((made, seconds) for made in (socket, offloading) for seconds in (0.0, 0.01)):
            say = self.saying
            with made.socket() as fresh:
                fresh.settimeout(seconds)
                said.append(say(fresh.accept))
                fresh.bind((LOOPBACK, 0))
                said.append(say(fresh.accept))
            listener = self.server(made)
            listener.settimeout(seconds)
            said.append(say(listener.accept))
            for kind in (socket, made):
                for end in ("open", "sent", "closed", "reset"):
                    client = self.client(listener, kind)
                    if end == "sent":
                        client.sendall(b"x")
                    if end == "reset":
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if end in ("closed", "reset"):
                        client.close()
                    found: list[Any] = []
                    waitUntil(
                        lambda found=found, listener=listener, say=say: (
                            found.append(say(listener.accept)) or isinstance(found[-1], tuple)
                        )
                    )
                    accepted, address = found[-1]
                    said += [end, accepted.gettimeout(), address[0], say(listener.accept)]
                    if end != "open":
                        accepted.settimeout(HANG_SECONDS)
                        said.append(say(accepted.recv, 9))
                    accepted.close()
            said += [say(listener.listen), say(listener.accept)]
            listener.shutdown(socket.SHUT_RD)
            said += [say(listener.accept), say(listener.listen), say(listener.accept)]
            listener.close()
            said += [say(listener.accept), say(listener.listen)]
        self.assertSame(said)

    def test_waiting(self) -> None:
        """
        Of threads that wait in C{accept} each has one client; what ends the listener ends the others' waits.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            for kind in (socket, made):
                listener = self.server(made)
                listener.settimeout(None)
                waits = [self.inThread(self.saying, listener.accept) for _ in range(3)]
                clients = [self.client(listener, kind) for _ in range(2)]
                waitUntil(lambda waits=waits: sum(each.done() for each in waits) == 2)
                done = [each.result()[0] for each in waits if each.done()]
                said.append(
                    sorted(map(str, (each.getpeername() for each in done)))
                    == sorted(str(each.getsockname()) for each in clients)
                )
                (left,) = (each for each in waits if not each.done())
                listener.shutdown(socket.SHUT_RDWR)
                said.append(left.result(HANG_SECONDS))
                for each in done:
                    each.close()
        self.assertSame(said)

    def test_descriptor(self) -> None:
        """
        A listener without a timeout does as its descriptor: by fcntl(2) it does not wait.  To accept a client
        over TCP leaves that as it is.
        """
        for made in (socket, offloading):
            listener = self.server(made)
            listener.settimeout(None)
            for blocks in (False, True):
                os.set_blocking(listener.fileno(), blocks)
                if not blocks:
                    asked = self.inThread(self.saying, listener.accept)
                    # If it waits, that ends it.
                    self.addCleanup(listener.close)
                    self.assertEqual(asked.result(HANG_SECONDS), errno.EAGAIN)
                self.client(listener, socket)
                found: list[Any] = []
                waitUntil(
                    lambda found=found, listener=listener: (
                        found.append(self.saying(listener.accept)) or isinstance(found[-1], tuple)
                    )
                )
                found[-1][0].close()
                self.assertEqual(os.get_blocking(listener.fileno()), blocks)

    def test_quicker(self) -> None:
        """
        A thread whose client over TCP another one has accepted goes on to wait for clients over SDP too,
        whatever its timeout.
        """
        requireReplaceable(Listening, "acceptTCP")
        accept = Listening.acceptTCP
        for seconds in (HANG_SECONDS, None):
            listener = self.server()
            listener.settimeout(seconds)
            second = socket.socket(fileno=os.dup(listener.fileno()))
            self.addCleanup(second.close)
            later: list[Any] = []

            def quicker(
                part: Listening, skt: Any, later: Any = later, more: Any = (listener, second)
            ) -> tuple[int, Any]:
                if not later:
                    later.append(None)
                    more[1].accept()[0].close()
                    later.append(self.inThread(self.client, more[0]))
                return accept(part, skt)

            self.client(listener, socket)
            self.patch(Listening, "acceptTCP", quicker)
            accepted = listener.accept()[0]
            self.assertIsNotNone(accepted.sdp)
            self.assertEqual(accepted.getpeername(), later[1].result(HANG_SECONDS).getsockname())
            accepted.close()

    def test_backlogs(self) -> None:
        """
        A backlog below one is one: one client waits over SDP, the next over TCP, until the first is accepted.
        """
        for backlog in (-1, 0, 1):
            listener = self.server(backlog=backlog)
            clients = [self.client(listener) for _ in range(2)]
            self.assertEqual([each.sdp is None for each in clients], [False, True], backlog)
            self.assertIsNotNone(listener.accept()[0].sdp)
            self.assertIsNotNone(self.client(listener).sdp)
            listener.close()

    def test_closes(self) -> None:
        """
        A listener listens until its last duplicate is closed; then clients that wait are reset.
        """
        said: list[Any] = []
        for made in (socket, offloading):
            listener = self.server(made)
            others = [listener.dup(), listener.dup()]
            waiting = self.client(listener, made)
            listener.close()
            others[0].close()
            second = self.client(others[1], made)
            address = others[1].getsockname()
            accepted = others[1].accept()[0]
            said.append(accepted.getpeername() == waiting.getsockname())
            accepted.close()
            others[1].close()
            said += [self.saying(second.recv, 1), self.saying(made.create_connection, address)]
        self.assertSame(said)
