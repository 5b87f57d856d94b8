"""
Tests of connections of blocking sockets that another process is given: see L{twisted_ib.blocking.moving}.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from threading import Event
from typing import Any

from tests.blocking.case import BlockingTestCase
from tests.support.descriptors import exactly, moves
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.blocking import descriptors, moving
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.connecting import BlockingClient
from twisted_ib.blocking.connection import RECEIVE_BYTES
from twisted_ib.blocking.moving import Asking, State
from twisted_ib.blocking.patch import patched
from twisted_ib.hca.host.fdpassing import LINGER_RESET, refuse
from twisted_ib.switch.reason import kept

#: Answers once what is its standard input.
_ANSWERS = """
import signal, socket
signal.alarm(60)
with socket.socket(fileno=0) as skt:
    data = b""
    while len(data) < 99999:
        data += skt.recv(99999 - len(data))
    skt.sendall(data[::-1])
"""
#: Octets of that.
MANY = 99999
#: The same of all that comes before the end.
_ANSWERS_ALL = """
import signal, socket
signal.alarm(60)
with socket.socket(fileno=0) as skt:
    data = b""
    while piece := skt.recv(99999):
        data += piece
    skt.sendall(data[::-1])
"""
#: A client that sends, closes, and ends, or does so once its input has ended, amid other calls or without.
_LEAVES = """
import os, signal, sys
signal.alarm(60)
os.sched_getaffinity = lambda _: {0, 1}
from twisted_ib import socket
from twisted_ib.select import select
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as skt:
    assert skt.sdp is not None
    skt.sendall(b"0123456789" * 1000)
print("closed", flush=True)
if sys.argv[2] == "calls":
    listener = socket.create_server(("127.0.0.1", 0))
    select([listener, 0], [], [])
elif sys.argv[2] == "sleeps":
    os.read(0, 1)
"""
#: A client that sends, ends this direction, and prints what it is answered.
_CLIENT = """
import os, signal, sys
signal.alarm(60)
os.sched_getaffinity = lambda _: {0, 1}
from twisted_ib import socket
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as skt:
    assert skt.sdp is not None
    skt.sendall(b"request")
    if sys.argv[2] == "shut":
        skt.shutdown(socket.SHUT_WR)
    data = b""
    while piece := skt.recv(99):
        data += piece
    print(data.decode(), skt.sdp)
"""


class GivenTests(BlockingTestCase):
    """
    What another process is given moves to TCP before.
    """

    def process(self, skt: Any) -> None:
        """
        Give it to a process.
        """
        self.assertEqual(
            subprocess.call([sys.executable, "-c", _ANSWERS], stdin=skt, timeout=HANG_SECONDS), 0
        )

    def spawned(self, skt: Any) -> None:
        """
        The same by C{os.posix_spawn}.
        """
        actions = [(os.POSIX_SPAWN_DUP2, skt.fileno(), 0)]
        words = [sys.executable, "-c", _ANSWERS]
        child = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def rights(self, skt: Any) -> None:
        """
        Send it over a UNIX socket.
        """
        with contextlib.ExitStack() as ends:
            from_, to = (ends.enter_context(each) for each in socket.socketpair())
            socket.send_fds(from_, [b"x"], [skt.fileno()])
            skt.close()
            self.answer(*socket.recv_fds(to, 1, 1)[1])

    def pickled(self, skt: Any) -> None:
        """
        Pickle it for another process.
        """
        made = ForkingPickler.loads(ForkingPickler.dumps(skt))
        skt.close()
        self.answer(made.detach())

    def answer(self, descriptor: int) -> None:
        """
        Do as the processes do.
        """
        with socket.socket(fileno=descriptor) as made:
            made.sendall(exactly(made, MANY)[::-1])

    def test_moves(self) -> None:
        """
        Whether it has connected or accepted, and whatever was not read of it: no octet is lost.
        """
        for give, isServer in itertools.product(
            (self.process, self.spawned, self.rights, self.pickled), (False, True)
        ):
            one, other = self.pair()[:: -1 if isServer else 1]
            data = random.randbytes(MANY)
            other.sendall(data[:9])
            one.settimeout(None)
            with patched():
                self.assertEqual(one.recv(9, socket.MSG_PEEK), data[:9])
                other.sendall(data[9:])
                give(one)
            self.assertEqual(exactly(other, MANY), data[::-1])
            self.assertEqual([each.sdp for each in (one, other)], [None, None])
            self.assertEqual(
                {kept[each].fallback.kind for each in (other,)}, {"given" if isServer else "moved"}
            )
            one.close()
            self.assertEqual(other.recv(1), b"")

    # -- what goes along

    def test_meanwhile(self) -> None:
        """
        What comes over SDP after the question, or is read by another thread, neither comes twice nor is lost.
        """
        for taken, more in (0, b""), (0, b"-and-"), (2, b""), (5, b""), (3, b"abc"), (3, b"a"), (5, b"other"):
            other, one = self.pair()
            other.sendall(b"first")
            self.assertEqual(one.recv(5, socket.MSG_PEEK), b"first")
            connection = one.sdp
            with self.loop:
                connection.stream.given()
                octets = connection.inbox.take(taken) if taken else b""
                if more:
                    other.sdp.stream.thread = self.loop.owner
                    other.sdp.stream.write(more)
            rest = b"first"[taken:] + more
            self.assertEqual(connection.awaitMove(), rest in (b"first", b""))
            other.sendall(b"last")
            rest += b"last"
            self.assertEqual(exactly(one, len(rest)), rest)
            self.exchange(one, other)
            self.assertEqual([octets, one.sdp, other.sdp], [b"first"[:taken], None, None])

    def test_large(self) -> None:
        """
        All that SDP takes before it is read goes along, also where TCP's buffers are small at first; where
        that is impossible the connection stays, and nothing is lost.
        """

        class Small(moving._socket.socket):
            isFixed = False

            def setsockopt(self, *words: Any) -> None:
                if not self.isFixed:
                    super().setsockopt(*words)

        def pair(plain: Any = moving.pairOfTCP, isFixed: bool = False) -> Any:
            mine, theirs = plain()
            small = Small(fileno=theirs.detach())
            small.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            small.isFixed = isFixed
            return mine, small

        data = random.randbytes(RECEIVE_BYTES - 1)
        for size, made, hasMoved in (
            (len(data), moving.pairOfTCP, True),
            (MANY, pair, True),
            (len(data), lambda: pair(isFixed=True), False),
        ):
            self.patch(moving, "pairOfTCP", made)
            client, server = self.pair()
            client.sendall(data[:size])
            with self.loop:
                self.loop.wait(lambda of=server.sdp.inbox, size=size: of.size == size)
            self.assertEqual(server.sdp.give(), hasMoved)
            self.assertEqual(server.sdp is None, hasMoved)
            self.assertEqual(exactly(server, size), data[:size])
            self.exchange(client, server)

    def test_tooLarge(self) -> None:
        """
        More than that is still the peer's to send: the program is told, and the peer gets a reset.
        """
        self.patch(moving, "ANSWER_SECONDS", 0.0)
        client, server = self.pair()
        sent = self.inThread(client.sendall, bytes(16 * RECEIVE_BYTES))
        with self.loop:
            self.loop.wait(lambda: server.sdp.inbox.size >= RECEIVE_BYTES and not client.sdp.writable())
        error = self.assertRaises(OSError, descriptors.keep, [server.fileno()])
        self.assertEqual(error.errno, errno.EOPNOTSUPP)
        self.assertRaises(ConnectionResetError, sent.result, HANG_SECONDS)

    def test_shut(self) -> None:
        """
        A peer that sends no more, before the question or behind it, has all that is sent from then on; who
        has the descriptor has all that it had sent, then the end.
        """
        for isServer, isBefore in itertools.product((False, True), (False, True)):
            peer, skt = self.pair()[:: 1 if isServer else -1]
            peer.sendall(b"first")
            self.assertEqual(skt.recv(5, socket.MSG_PEEK), b"first")
            if isBefore:
                peer.shutdown(socket.SHUT_WR)
            part = skt.sdp
            with self.loop:
                if isBefore:
                    self.loop.wait(lambda of=part: of.ended)
                part.stream.given()
            if not isBefore:
                peer.shutdown(socket.SHUT_WR)
            self.assertTrue(part.awaitMove(), (isServer, isBefore))
            # It has the end over SDP, too, although nobody calls here any more.
            self.assertIsNone(peer.sdp)
            with socket.socket(fileno=os.dup(skt.fileno())) as copy:
                self.assertEqual(exactly(copy, 5), b"first")
                self.assertEqual(copy.recv(1), b"")
                copy.sendall(b"answer")
            skt.close()
            self.assertEqual(exactly(peer, 6), b"answer")
            self.assertEqual(peer.recv(1), b"")
            self.assertRaises(BrokenPipeError, peer.send, b"x")

    def test_shutProcess(self) -> None:
        """
        So it is between processes.
        """
        self.rules("use both server * *:*\nuse both client * *:*\n")
        listener = self.server()
        words = [sys.executable, "-c", _CLIENT, str(listener.getsockname()[1]), "shut"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.kill)
        skt, _ = listener.accept()
        with skt:
            self.assertIsNotNone(skt.sdp)
            self.assertEqual(skt.recv(7, socket.MSG_PEEK), b"request")
            with patched():
                command = [sys.executable, "-c", _ANSWERS_ALL]
                self.assertEqual(subprocess.call(command, stdin=skt, timeout=HANG_SECONDS), 0)
        self.assertEqual(child.communicate(timeout=HANG_SECONDS)[0], "tseuqer None\n")

    def test_closed(self) -> None:
        """
        A client that has sent and closed, and has ended or not: the process has all of it, and the end.
        """
        self.rules("use both server * *:*\nuse both client * *:*\n")
        listener = self.server()
        for word, isPeeked in itertools.product(("ends", "calls", "sleeps"), (False, True)):
            # The peer that sleeps is not waited for in vain.
            self.patch(moving, "ANSWER_SECONDS", 0.0 if word == "sleeps" else HANG_SECONDS)
            words = [sys.executable, "-c", _LEAVES, str(listener.getsockname()[1]), word]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                self.addCleanup(child.kill)
                skt, _ = listener.accept()
                with skt, patched():
                    skt.settimeout(None)
                    self.assertEqual(child.stdout.readline(), b"closed\n")
                    if word == "ends":
                        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
                    if isPeeked:
                        self.assertEqual(skt.recv(10, socket.MSG_PEEK), b"0123456789")
                    with self.loop:
                        self.loop.wait(lambda of=skt.sdp: of.peerEnded)
                    data = subprocess.check_output(["cat"], stdin=skt, timeout=HANG_SECONDS)
                    self.assertEqual(data, b"0123456789" * 1000)
                child.stdin.close()
            self.assertEqual(child.returncode, 0)

    def test_shutHere(self) -> None:
        """
        What receives no more moves likewise; one that itself sends no more cannot: the program is told.
        """
        client, server = self.pair()
        client.sendall(b"unread")
        server.shutdown(socket.SHUT_RD)
        self.assertTrue(server.sdp.give())
        self.exchange(server, client, isBoth=False)
        for one, other in self.pair(), self.pair()[::-1]:
            part = other.sdp
            other.shutdown(socket.SHUT_WR)
            # As of Linux's tcp_reset() in CLOSE_WAIT.
            self.assertRefused(one, other, BrokenPipeError)
            self.assertIsNone(part.move)

    def asking(self) -> tuple[Any, Any, Any]:
        """
        Return the two ends of a connection whose server has asked, and what restores the client's step, with
        which it waits.
        """
        # Whose end would be too late.
        self.patch(moving, "ANSWER_SECONDS", 2 * HANG_SECONDS)
        client, server = self.pair()
        hold = self.restless(client)
        with self.loop:
            server.sdp.stream.given()
        self.turns()
        self.assertIs(client.sdp.move.state, State.ASKED)
        return client, server, hold

    def test_endAhead(self) -> None:
        """
        The end of TCP alone is no answer: what comes over SDP behind it is waited for.
        """
        client, server, _ = self.asking()
        move, looked = server.sdp.move, Event()

        def look() -> None:
            Asking.look(move)
            looked.set()

        self.patch(move, "look", look)
        with self.loop:
            client.sdp.move.mine.shutdown(socket.SHUT_WR)
        given = self.awaiting(server)
        waitUntil(lambda: looked.is_set() and self.loop.sleeping)
        self.assertIs(move.state, State.ASKED)
        with self.loop:
            client.shutdown(socket.SHUT_WR)
            asked = client.sdp.move
            asked._decided(asked._mayMove())
        self.assertTrue(given.result(HANG_SECONDS))
        self.exchange(server, client, isBoth=False)

    def test_shutAmid(self) -> None:
        """
        A client that has more to send when it is asked, and ends that, gets what is sent to it from then on.
        """
        client, server, hold = self.asking()
        given = self.awaiting(server)
        client.shutdown(socket.SHUT_WR)
        with self.loop:
            self.loop.wait(lambda: server.sdp.peerEnded)
        self.turns()
        hold.restore()
        self.assertTrue(given.result(HANG_SECONDS))
        self.exchange(server, client, isBoth=False)

    def test_endLate(self) -> None:
        """
        A server whose client has shut down, and has answered so, waits until it can move itself.
        """
        client, server, hold = self.asking()
        client.shutdown(socket.SHUT_WR)
        hold.restore()
        hold, move = self.restless(server), server.sdp.move
        given = self.awaiting(server)
        waitUntil(lambda: move.state is State.ANSWERED)
        hold.restore()
        self.assertTrue(given.result(HANG_SECONDS))
        self.exchange(server, client, isBoth=False)

    def test_refusedAsleep(self) -> None:
        """
        A refusal, which comes by TCP alone, wakes who waits for the answer.
        """
        client, server, _ = self.asking()
        given = self.awaiting(server)
        refuse(client.sdp.move.mine.detach())
        self.assertFalse(given.result(HANG_SECONDS))
        client.sdp.move.mine = None
        self.exchange(server, client)

    def awaiting(self, server: Any) -> Any:
        """
        Have a thread wait for the answer to what the server's end has asked.
        """
        given = self.inThread(server.sdp.awaitMove)
        waitUntil(lambda: self.loop.sleeping)
        return given

    # -- who waits for what

    def waiting(self, client: Any, server: Any) -> Any:
        """
        Have a thread give the server's end, and wait before it asks.
        """
        given = self.inThread(server.sdp.give)
        waitUntil(lambda: self.loop.leader)
        self.assertIsNone(client.sdp.move)
        self.assertIsNone(server.sdp.move)
        return given

    def test_first(self) -> None:
        """
        A server waits for its client's first octets: they go along.
        """
        self.patch(moving, "FIRST_SECONDS", HANG_SECONDS)
        client, server = self.pair()
        given = self.waiting(client, server)
        client.sendall(b"first")
        self.assertTrue(given.result(HANG_SECONDS))
        self.assertEqual(exactly(server, 5), b"first")
        self.exchange(client, server)

    def filled(self, skt: Any) -> int:
        """
        Send until there is no room.

        @return: The octets.
        """
        skt.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += skt.send(bytes(4096))
        skt.setblocking(True)
        return sent

    def test_quiet(self) -> None:
        """
        It asks once its own octets are in the medium; if they are not in time, the program is told.
        """
        self.patch(moving, "FIRST_SECONDS", 0.0)
        self.patch(moving, "ANSWER_SECONDS", HANG_SECONDS)
        client, server = self.pair()
        size = self.filled(server)
        given = self.waiting(client, server)
        exactly(client, size)
        self.assertTrue(given.result(HANG_SECONDS))
        self.exchange(client, server)
        self.patch(moving, "ANSWER_SECONDS", 0.0)
        client, server = self.pair()
        self.filled(server)
        for each in server, client:
            self.filled(client)
            self.assertFalse(each.sdp.give())
            self.assertIsNone(each.sdp.move)

    def test_askedBefore(self) -> None:
        """
        A server whose client has asked already answers that, and asks nothing itself.
        """
        client, server = self.pair()
        hold = self.restless(server)
        moves(client)
        self.turns()
        hold.restore()
        move = server.sdp.move
        with self.loop:
            server.sdp.stream.given()
        self.assertIs(server.sdp.move, move)
        self.assertIs(move.state, State.ASKED)
        self.assertTrue(server.sdp.give())
        self.exchange(client, server)

    # -- both ends are given

    def test_bothGiven(self) -> None:
        """
        Both ends ask at the same moment: both move, with all that was not read.
        """
        for isFirst, data in itertools.product((False, True), (b"", b"request")):
            client, server = self.pair()
            client.sendall(data)
            self.assertEqual(server.recv(9, socket.MSG_PEEK) if data else b"", data)
            ends = (client, server) if isFirst else (server, client)
            with self.loop:
                for each in ends:
                    each.sdp.stream.given()
            for each in ends:
                self.assertTrue(each.sdp is None or each.sdp.awaitMove(), (isFirst, data))
            self.assertEqual(exactly(server, len(data)), data)
            self.exchange(client, server)
            self.assertEqual([client.sdp, server.sdp], [None, None])

    def test_bothWaiting(self) -> None:
        """
        A client that sends, and gives its end to a process, of a server that gives its own: neither is reset.
        """
        self.patch(moving, "FIRST_SECONDS", HANG_SECONDS)
        client, server = self.pair()
        given = self.waiting(client, server)
        with self.loop:
            client.sendall(b"request")
            client.sdp.stream.given()
        self.assertTrue(client.sdp is None or client.sdp.awaitMove())
        self.assertTrue(given.result(HANG_SECONDS))
        self.assertEqual(exactly(server, 7), b"request")
        self.exchange(client, server)

    def test_bothUnread(self) -> None:
        """
        An end that is to answer the other's question, and is given with octets that it has not read, asks
        itself.
        """
        self.patch(moving, "ANSWER_SECONDS", HANG_SECONDS)
        for isServer in True, False:
            other, one = self.pair()[:: 1 if isServer else -1]
            other.sendall(b"request")
            self.assertEqual(one.recv(9, socket.MSG_PEEK), b"request")
            hold = self.restless(one)
            with self.loop:
                other.sdp.stream.given()
                self.loop.wait(lambda of=one.sdp: of.move is not None)
            given = [self.inThread(each.sdp.give) for each in (one, other)]
            waitUntil(lambda of=one.sdp: of.isGiven)
            hold.restore()
            self.assertEqual([each.result(HANG_SECONDS) for each in given], [True, True])
            self.assertEqual(exactly(one, 7), b"request")
            self.exchange(one, other)

    def test_bothRefused(self) -> None:
        """
        Where both ends have octets that they have not read, the one that has asked first is told of an error.
        """
        self.patch(moving, "FIRST_SECONDS", 0.0)
        for isServer in True, False:
            other, one = self.pair()[:: 1 if isServer else -1]
            for sender, receiver in (one, other), (other, one):
                sender.sendall(b"first")
                self.assertEqual(receiver.recv(9, socket.MSG_PEEK), b"first")
            with self.loop:
                other.sdp.isGiven = one.sdp.isGiven = True
                other.sdp.stream.given()
            given = [self.inThread(each.sdp.give) for each in (one, other)]
            self.assertEqual([each.result(HANG_SECONDS) for each in given], [True, False])
            for receiver in one, other:
                self.assertEqual(exactly(receiver, 5), b"first")
            self.exchange(one, other)

    def test_bothAmid(self) -> None:
        """
        A client that has answered already, and gives its end, waits until its server has moved.
        """
        client, server = self.pair()
        with self.loop:
            server.sdp.stream.given()
            hold = self.restless(server)
            self.loop.wait(client.sdp.sendsByTCP)
        given = self.inThread(client.sdp.give)
        waitUntil(lambda: self.loop.sleeping or given.done())
        hold.restore()
        self.assertTrue(given.result(HANG_SECONDS))
        self.exchange(client, server)

    # -- those that stay

    def restless(self, skt: Any) -> Any:
        """
        Have an end of a connection wait with its step, until C{restore} of what this returns.
        """
        return self.patch(
            type(skt.sdp.stream), "isQuiet", lambda stream, of=skt.sdp: stream.protocol is not of
        )

    def turns(self, count: int = 20) -> None:
        """
        Drive the loop for some turns.
        """
        for _ in range(count):
            with self.loop:
                self.loop.poll()

    def exchange(self, *ends: Any, isBoth: bool = True) -> None:
        """
        Have both ends send, and the other one receive.
        """
        for one, other in (ends, ends[::-1])[: 1 + isBoth]:
            one.sendall(b"octets")
            self.assertEqual(exactly(other, 6), b"octets")

    def assertRefused(self, client: Any, server: Any, kind: type[OSError] = ConnectionResetError) -> None:
        """
        What cannot move is not given: the program gets an error, and the peer a reset.
        """
        error = self.assertRaises(OSError, descriptors.keep, [server.fileno()])
        self.assertEqual(error.errno, errno.EOPNOTSUPP)
        self.assertRaises(kind, client.sendall, b"x")

    def accepted(self, count: int = 1) -> tuple[Any, Any, list[Any]]:
        """
        Return a socket that listens, the one that it has accepted, and so many clients: the first has a
        duplicate, and cannot move.
        """
        listener = self.server()
        clients = [self.client(listener) for _ in range(count)]
        skt, _ = listener.accept()
        self.addCleanup(skt.close)
        copy = clients[0].dup()
        self.addCleanup(copy.close)
        return listener, skt, clients

    def test_later(self) -> None:
        """
        A server that gives what it accepts listens over TCP alone from then on, once a client cannot move; a
        rule for SDP alone is kept, and then none moves.
        """
        for rules in "", "use sdp server * *:*\nuse sdp connect * *:*\n":
            if rules:
                self.again(rules)
            listener, skt, (client,) = self.accepted()
            with patched():
                error = self.assertRaises(OSError, subprocess.call, [sys.executable, "-c", ""], stdin=skt)
            self.assertEqual(error.errno, errno.EOPNOTSUPP)
            self.assertRaises(ConnectionResetError, client.recv, 1)
            for _ in range(2):
                self.assertEqual(bool(listener.sdp.sdpListeners), bool(rules))
                listener.sdp.serve()
            self.assertEqual(
                kept[listener].fallback.kind if listener in kept else "", "" if rules else "given"
            )

    def test_backlog(self) -> None:
        """
        Those that wait for C{accept} meanwhile are served.
        """
        listener, skt, clients = self.accepted(3)
        self.assertRefused(clients[0], skt)
        clients.append(self.client(listener))
        for client in clients[1:]:
            made, _ = listener.accept()
            self.addCleanup(made.close)
            self.exchange(client, made)
            self.assertEqual(client.sdp is None, client is clients[-1])

    def test_rules(self) -> None:
        """
        An end that a rule has on SDP alone neither asks nor moves.
        """
        for rule in "both", "sdp":
            self.again(f"use {rule} server * *:*\nuse sdp client * *:*\n")
            client, server = self.pair()
            for each in client, server:
                self.assertFalse(each.sdp.give())
                self.exchange(client, server)
            self.assertIsNone(client.sdp.move)
            self.assertEqual(server.sdp.move is None, rule == "sdp")

    def test_older(self) -> None:
        """
        A peer of a version that does not know the question refuses it, and is not waited for: the program is
        told, and the connection goes on, or is reset.
        """
        self.patch(moving, "ANSWER_SECONDS", HANG_SECONDS)
        self.patch(BlockingClient, "suspended", lambda _, descriptor: descriptor < 0)
        listener = self.server()
        client = self.client(listener)
        server, _ = listener.accept()
        self.addCleanup(server.close)
        client.sendall(b"first")
        self.assertEqual(server.recv(5, socket.MSG_PEEK), b"first")
        with patched():
            self.assertRaises(TypeError, ForkingPickler.dumps, server)
        self.assertIs(server.sdp.move.state, State.REFUSED)
        self.assertEqual(server.recv(9), b"first")
        self.exchange(client, server)
        self.assertRefused(client, server)
        self.assertEqual(kept[listener].fallback.kind, "given")

    def again(self, rules: str) -> None:
        """
        Have a loop with other rules.
        """
        self.loop.close()
        self.rules(rules)
        self.loop = module.BlockingLoop()
        self.patch(module, "_loop", self.loop)
        self.addCleanup(self.loop.close)

    def test_pickled(self) -> None:
        """
        One that cannot move is not pickled, and goes on here, with what was not read.
        """
        listener, skt, (client,) = self.accepted()
        client.sendall(b"first")
        with patched():
            self.assertEqual(skt.recv(5, socket.MSG_PEEK), b"first")
            self.assertRaises(TypeError, ForkingPickler.dumps, skt)
        self.assertIs(skt.sdp.move.state, State.REFUSED)
        self.assertIsNone(skt.sdp.move.mine)
        self.assertEqual(skt.recv(9), b"first")
        self.exchange(client, skt)
        self.assertFalse(listener.sdp.sdpListeners)

    def test_again(self) -> None:
        """
        An end that was refused once moves when it is given later, if both can by then.
        """
        for isServer in False, True:
            client, server = self.pair()
            one, other = (server, client) if isServer else (client, server)
            with one.dup(), other.dup():
                for each in one, other:
                    self.assertFalse(each.sdp.give())
            copy = other.dup()
            self.assertFalse(one.sdp.give())
            self.assertIs(one.sdp.move.state, State.REFUSED)
            copy.close()
            self.assertTrue(one.sdp.give())
            self.exchange(client, server)
            client, server = self.pair()
            one, other = (server, client) if isServer else (client, server)
            copy = other.dup()
            self.assertFalse(one.sdp.give())
            copy.close()
            self.assertTrue(other.sdp.give())
            self.exchange(client, server)

    # -- peers that do as they like

    def test_unanswered(self) -> None:
        """
        An answer that never comes is an error of the program's, and a reset; one that is late changes
        nothing.  Of a peer that has shut down, who is given the descriptor has all, and an error if it sends.
        """
        self.patch(moving, "ANSWER_SECONDS", 0.0)
        for isShut in False, True:
            client, server = self.pair()
            client.sendall(b"first")
            if isShut:
                client.shutdown(socket.SHUT_WR)
            self.assertEqual(server.recv(5, socket.MSG_PEEK), b"first")
            with self.loop:
                self.loop.wait(lambda of=server.sdp, isShut=isShut: of.peerEnded is isShut)
            hold = self.restless(client)
            if isShut:
                descriptors.keep([server.fileno()])
                self.assertIsNone(server.sdp)
                self.assertEqual([server.recv(9), server.recv(9)], [b"first", b""])
                self.assertRaises(BrokenPipeError, server.send, b"x")
            else:
                error = self.assertRaises(OSError, descriptors.keep, [server.fileno()])
                self.assertEqual(error.errno, errno.EOPNOTSUPP)
            move = client.sdp.move
            self.assertRaises(ConnectionResetError, client.recv, 1)
            hold.restore()
            with self.loop:
                self.loop.wait(lambda of=move: of.mine is None)
            self.assertIs(move.state, State.REFUSED)

    def test_askedTwice(self) -> None:
        """
        A second question is refused, and the first one is answered.
        """
        client, server = self.pair()
        hold = self.restless(client)
        with self.loop:
            server.sdp.stream.given()
        self.turns()
        mine, theirs = moving.pairOfTCP()
        with contextlib.closing(mine):
            with contextlib.closing(theirs), self.loop:
                self.assertTrue(server.sdp.stream.suspend(theirs.fileno()))
            self.turns()
            self.assertRaises(ConnectionResetError, mine.recv, 1)
        hold.restore()
        self.assertTrue(server.sdp.give())
        self.exchange(client, server)

    def test_noTCP(self) -> None:
        """
        A descriptor that is no connection of TCP is refused, and the client goes on.
        """
        client, server = self.pair()
        one, other = socket.socketpair()
        with one:
            with other, self.loop:
                self.assertTrue(server.sdp.stream.suspend(other.fileno()))
            self.turns()
            self.assertEqual(one.recv(1), b"")
        self.assertIsNone(client.sdp.move)
        self.exchange(client, server)

    def test_noQuestion(self) -> None:
        """
        An answer to no question ends the connection: both ends get a reset.
        """
        client, server = self.pair()
        with self.loop:
            client.sdp.stream.answerSuspend()
        for each in server, client:
            self.assertRaises(ConnectionResetError, each.recv, 1)

    def test_reset(self) -> None:
        """
        A client that has answered, and resets TCP then, ends the connection: no error but that.
        """
        client, server = self.pair()
        client.sendall(b"first")
        self.assertEqual(server.recv(5, socket.MSG_PEEK), b"first")
        hold = self.restless(server)
        with self.loop:
            hold.restore()
            server.sdp.stream.given()
            hold = self.restless(server)
            self.loop.wait(lambda: server.sdp.move.state is State.ANSWERED)
        self.assertEqual(server.recv(1), b"f")
        move = server.sdp.move
        move.mine.close()
        move.mine, theirs = moving.pairOfTCP()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        theirs.close()
        hold.restore()
        with self.loop:
            self.loop.wait(lambda of=server.sdp: of.over)
        self.assertEqual(server.recv(9), b"irst")
        self.assertRaises(ConnectionResetError, server.recv, 1)

    def test_killed(self) -> None:
        """
        A client that is killed before it answers is not waited for: what it has sent is there, then an end
        or a reset.
        """
        self.patch(moving, "ANSWER_SECONDS", HANG_SECONDS)
        self.rules("use both server * *:*\nuse both client * *:*\n")
        for word in "stays", "shut":
            listener = self.server()
            words = [sys.executable, "-c", _CLIENT, str(listener.getsockname()[1]), word]
            with subprocess.Popen(words, stdout=subprocess.DEVNULL) as child:
                self.addCleanup(child.kill)
                skt, _ = listener.accept()
                self.addCleanup(skt.close)
                self.assertEqual(skt.recv(7, socket.MSG_PEEK), b"request")
                os.kill(child.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
                part = skt.sdp
                given = self.inThread(part.give)
                waitUntil(lambda of=part: of.move is not None)
                child.kill()
                given.result(HANG_SECONDS)
                self.assertEqual(exactly(skt, 7), b"request")
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(skt.recv(1), b"")
