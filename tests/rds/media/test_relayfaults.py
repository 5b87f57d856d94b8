"""
Tests of L{twisted_ib.rds.media.rcrelay}: what peers and other processes get wrong.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.rds.media.test_relay import RelayTestCase
from tests.support.ownaddress import ownAddress
from twisted_ib import limits
from twisted_ib.errors import RunDirectoryError
from twisted_ib.rds.paths.carrier import Pending
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import NO_EXTENSIONS, NO_PADDING, packChecksummed


class PendingTests(SynchronousTestCase):
    """
    What is acknowledged of what is handed on.
    """

    def test_refused(self) -> None:
        """
        After the first that is refused nothing is acknowledged, and no other is kept.
        """
        pending = Pending()
        pending.add(5)
        for number in range(7, 1000):
            pending.refuse(number)
        self.assertEqual([pending.confirmed(999), len(pending)], [4, 1])
        self.assertTrue(pending.take(5))
        self.assertEqual([pending.confirmed(999), len(pending)], [6, 0])


class RelayFaultTests(RelayTestCase):
    """
    Datagrams that nobody expects.
    """

    def warm(self, count: int = 2) -> None:
        """
        Begin processes, which have exchanged a datagram each with the peer.
        """
        self.near(count)
        for at, end in enumerate(self.ends):
            self.peer.transport.write(b"hi", (self.here, 4000 + at))
            end.transport.write(b"hi", (self.there, 5000))
        self.until(lambda: len(self.peer.got) == count and all(end.got for end in self.ends))
        self.pass_(0.3)

    def counters(self, at: int = 0) -> Any:
        """
        @return: those of a process.
        """
        return self.nears[at].network.counters

    def test_ownNobodys(self) -> None:
        """
        What one sends to a port of its own address that nobody has is dropped, and counts no more against its
        budget; once another process has the port, it gets what follows.
        """
        self.near(1)
        (end,) = self.ends
        for _ in range(2):
            end.transport.write(bytes(50000), (self.here, 4001))
        end.transport.write(b"mine", (self.here, 4000))
        self.until(lambda: end.data == [b"mine"])
        self.assertEqual(self.counters()["recv_drop_no_sock"], 2)
        self.assertEqual(end.socket.queued(), 0)
        self.near(1)
        self.pass_(0.3)
        for _ in range(2):
            end.transport.write(b"theirs", (self.here, 4001))
        self.until(lambda: self.ends[1].data == [b"theirs"] * 2)
        self.assertEqual(end.socket.queued(), 0)

    def test_ownRaises(self) -> None:
        """
        What fails to arrive at a socket of the same process counts no more either, and stops none after it.
        """
        self.near(1)
        (end,), network = self.ends, self.nears[0].network
        deliver = network.deliver

        def fail(*args: Any) -> None:
            self.patch(network, "deliver", deliver)
            raise ZeroDivisionError

        self.patch(network, "deliver", fail)
        end.transport.write(b"lost", (self.here, 4000))
        end.transport.write(b"next", (self.here, 4000))
        self.assertRaises(ZeroDivisionError, self.settle)
        self.settle()
        self.assertEqual((end.data, end.socket.queued()), ([b"next"], 0))

    def post(self, number: int, source: int, port: int) -> None:
        """
        Have the peer send a message of one byte.
        """
        (session,) = self.far.medium.sessions.values()
        header = packChecksummed(number, 0, 1, source, port, 0, 0, NO_PADDING, 0, NO_EXTENSIONS)
        session.post(header, b"z", 1)

    def test_unnumbered(self) -> None:
        """
        A peer's message without a number is handed on, and awaited by nobody.
        """
        self.warm()
        self.post(0, 5000, 4001)
        self.peer.transport.write(b"after", (self.here, 4000))
        self.until(lambda: self.ends[0].data[-1:] == [b"after"] and self.ends[1].data[-1:] == [b"z"])
        (path,) = self.nears[0].network.paths.values()
        self.assertEqual(len(path.pending), 0)
        self.assertEqual(len(self.nears[0].medium.sessions), 1)

    def test_restarted(self) -> None:
        """
        What a restarted peer sends to a process that takes nothing is not acknowledged, though its numbers
        are lower than those of its predecessor, of which the process had not taken all either.
        """
        self.warm()
        for _ in range(100):
            self.peer.transport.write(b"old", (self.here, 4001))
        self.pass_(0.2)
        stopped = self.nears[1]
        self.processes.remove(stopped)
        self.peer.transport.write(b"late", (self.here, 4001))
        self.pass_(0.05)
        (path,) = self.nears[0].network.paths.values()
        before = path.pending
        self.assertEqual(len(before), 1)
        self.kill(self.far)
        self.far = self.process()
        self.peer = self.far.listen(5000, self.there)
        for n in range(5):
            self.peer.transport.write(b"new%d" % n, (self.here, 4001))
        self.until(lambda: len(path.pending or ()) == 5)
        self.pass_(0.05)
        self.assertGreaterEqual(self.peer.socket.queued(), 5 * 4)
        self.processes.append(stopped)
        self.until(lambda: self.ends[1].data[-6:] == [b"late", *(b"new%d" % n for n in range(5))])
        self.until(lambda: not self.peer.socket.queued())
        self.assertEqual((len(before), len(path.pending)), (0, 0))

    def test_sourcePorts(self) -> None:
        """
        What comes from a port that no socket has is not handed on, either way: a path's pongs are its own.
        """
        self.warm()
        dropped = self.counters()["recv_drop_no_sock"]
        for n in range(10):
            self.post(1000 + n, n % 2, 4001)
        self.until(lambda: self.counters()["recv_drop_no_sock"] == dropped + 10)
        for n in range(10):
            (path,) = (
                each for each in self.nears[1].medium.relay.paths.values() if each.remote == self.there
            )
            path.send(RDSMessage(n % 2, 5000, b"z"))
        self.until(lambda: self.counters()["recv_drop_no_sock"] == dropped + 20)
        self.assertEqual([end.data for end in (self.peer, *self.ends)], [[b"hi"] * 2, [b"hi"], [b"hi"]])

    def test_fullIn(self) -> None:
        """
        What is for a process to which there can be no path is dropped, and what follows is not.
        """
        self.warm()
        self.near(1)
        relay = self.nears[0].medium.relay
        for path in relay.paths.values():
            path.held += 1
        self.patch(limits, "RDS_PATHS", len(relay.paths))
        self.peer.transport.write(b"x", (self.here, 4002))
        self.peer.transport.write(b"y", (self.here, 4000))
        self.until(lambda: self.ends[0].data[-1:] == [b"y"])
        self.assertEqual(self.counters()["recv_drop_no_sock"], 1)

    def test_fullOut(self) -> None:
        """
        What another process sends to a host to which there can be no path is dropped, and what follows is
        not.
        """
        self.warm()
        network = self.nears[0].network
        for path in network.paths.values():
            path.held += 1
        other = self.ends[1].transport
        deliver = network.medium.relay.deliver

        def deliverFull(*args: Any) -> None:
            # Only there: the sender has the same limits.
            self.patch(limits, "RDS_PATHS", len(network.paths))
            deliver(*args)
            self.patch(limits, "RDS_PATHS", most)

        most = limits.RDS_PATHS
        self.patch(network.medium.relay, "deliver", deliverFull)
        other.write(b"x", (ownAddress(9), 5000))
        self.until(lambda: self.counters()["recv_drop_no_sock"] == 1)
        other.write(b"y", (self.there, 5000))
        self.until(lambda: self.peer.data[-1:] == [b"y"])
        self.assertEqual(len(network.paths), 1)

    def test_boundLate(self) -> None:
        """
        A port that nobody had is found as soon as a process has bound it.
        """
        self.warm(1)
        self.peer.transport.write(b"too early", (self.here, 4001))
        self.until(lambda: self.counters()["recv_drop_no_sock"] == 1)
        # Longer than a tick of the kernel's clock, which the directory's time has.
        time.sleep(0.02)
        self.near(1)
        self.peer.transport.write(b"you are there", (self.here, 4001))
        self.until(lambda: self.ends[1].data == [b"you are there"])
        self.assertEqual(self.counters()["recv_drop_no_sock"], 1)

    def kept(self, at: int = 0) -> int:
        """
        @return: how many messages wait in a process for peers and for other processes.
        """
        network = self.nears[at].network
        paths = [*network.paths.values(), *network.medium.relay.paths.values()]
        return sum(1 for path in paths for _ in path.messages())

    def test_senderEnds(self) -> None:
        """
        What another process has sent to a host that takes nothing is one count, and gone when it has ended.
        """
        self.warm()
        relay = self.nears[0].medium.relay
        for at in range(5):
            for _ in range(2):
                self.ends[1].transport.write(bytes(100000), (ownAddress(10 + at), 5000))
        self.until(lambda: self.kept() == 10)
        self.assertEqual([flow.bytes // 100000 for flow in relay._senders.values()], [10])
        home = next(iter(relay.homes.values())).network
        self.assertFalse(set(home.paths.values()) & set(relay._flows))
        self.kill(self.nears[1])
        self.until(lambda: not self.kept())
        self.assertEqual(relay._senders, {})

    def test_takeoverFails(self) -> None:
        """
        A process that fails to take an address over, as without descriptors, tries it again, whatever the
        directory raises then.
        """
        self.warm(4)
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for at, error in enumerate(
            (full, RunDirectoryError("gone"), ValueError("cannot mmap an empty file")), 1
        ):
            for each in self.nears[at + 1 :]:
                self.processes.remove(each)
            relay = self.nears[at].medium.relay
            errors: list[Exception] = [error]
            servedBy = relay.medium.servedBy

            def failing(
                *where: Any, relay: Any = relay, errors: Any = errors, servedBy: Any = servedBy
            ) -> int | None:
                if errors and relay.isOwner(self.here):
                    raise errors.pop()
                found: int | None = servedBy(*where)
                return found

            self.patch(relay.medium, "servedBy", failing)
            self.kill(self.nears[at - 1])
            self.until(lambda errors=errors: not errors)
            self.until(lambda at=at: self.owners() == [self.nears[at]])
            self.ends[at].transport.write(b"%d" % at, (self.there, 5000))
            self.until(lambda at=at: self.peer.data[-1:] == [b"%d" % at])
            self.processes += self.nears[at + 1 :]

    def test_ownerCloses(self) -> None:
        """
        What waits in the owner when it closes its last socket is sent by the next owner, and never again by
        it.
        """
        self.warm()
        self.processes.remove(self.far)
        self.ends[1].transport.write(b"once", (self.there, 5000))
        self.settle()
        self.assertEqual(self.kept(), 1)
        self.ends[0].socket.stopListening()
        self.settle()
        self.assertEqual(self.kept(), 0)
        self.processes.append(self.far)
        self.until(lambda: self.peer.data[-1:] == [b"once"])
        self.until(lambda: not self.ends[1].socket.queued())
        self.ends[1].socket.stopListening()
        self.pass_(1.0)
        del self.peer.got[:]
        again = self.nears[0].listen(4000, self.here)
        again.transport.write(b"new", (self.there, 5000))
        self.until(lambda: self.peer.data)
        self.pass_(1.0)
        self.assertEqual(self.peer.data, [b"new"])

    def test_ownerClosesIn(self) -> None:
        """
        What waits in the owner for a process that takes nothing is not kept when the owner has closed its
        last socket, and not acknowledged: the peer sends it to the next.
        """
        self.warm()
        stopped = self.nears[1]
        self.processes.remove(stopped)
        self.peer.transport.write(b"once", (self.here, 4001))
        self.settle()
        self.assertEqual(self.kept(), 1)
        self.ends[0].socket.stopListening()
        self.settle()
        self.assertEqual(self.kept(), 0)
        self.processes.append(stopped)
        self.assertGreater(self.peer.socket.queued(), 0)
        self.until(lambda: self.ends[1].data[-1:] == [b"once"])

    def test_ownerClosesEarlier(self) -> None:
        """
        When the owner has closed its last socket and only the peer has something to send, it reaches the next
        owner, though its first request finds none.
        """
        self.warm()
        self.ends[0].socket.stopListening()
        self.settle()
        self.peer.transport.write(b"to the next", (self.here, 4001))
        self.until(lambda: self.ends[1].data[-1:] == [b"to the next"])
