"""
Tests of L{twisted_ib.rds.media.rcrelay}: several processes on one address, each with ports of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from os import geteuid
from subprocess import PIPE, Popen
from typing import Any

from twisted.internet.error import CannotListenError

from tests.rds.ends import Process, ProcessesTestCase
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.errors import RDSUnsupportedError
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rds.media import rcrelay, rcrelaymedium
from twisted_ib.rds.media.rcprocesses import ProcessAttempt
from twisted_ib.rds.media.rcrelay import RelayNetwork
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.machine import RDSMessage

#: How many processes share an address, and how many of them are of the system's.
PROCESSES, CHILDREN = 16, 4
#: With an address and a port: echoes what comes.
_ECHO = """
import os, sys
from twisted.internet import reactor
from twisted.internet.protocol import DatagramProtocol
from twisted_ib.rds import listenRDS
class Echo(DatagramProtocol):
    def datagramReceived(self, datagram, source):
        self.transport.write(datagram, source)
listenRDS(reactor, int(sys.argv[2]), Echo(), sys.argv[1], device="roce0")
os.write(1, b"ready\\n")
reactor.run()
"""
#: The same on a reactor that polls, but for the answers: the devices that it looks at in each turn, the paths
#: to other processes, and how often it has looked at shm0.
_POLLED = """
import os, sys
from twisted_ib.reactor import ibreactor
ibreactor.install()
from twisted.internet import reactor
from twisted.internet.protocol import DatagramProtocol
from twisted_ib.internet.channel import channelFor
from twisted_ib.rds import listenRDS
class Answer(DatagramProtocol):
    def datagramReceived(self, datagram, source):
        relay = self.transport.network.medium.relay
        found = [*sorted(each.device.name for each in reactor._channels), len(relay.paths)]
        turns = channelFor(reactor, "shm0").device.turns
        self.transport.write(f"{found}: {turns}".encode(), source)
listenRDS(reactor, int(sys.argv[2]), Answer(), sys.argv[1], device="roce0")
os.write(1, b"ready\\n")
reactor.run()
"""


class RelayTestCase(ProcessesTestCase):
    """
    Processes on one address, and one on another.
    """

    device = "roce0"

    def setUp(self) -> None:
        """
        The other host.
        """
        super().setUp()
        ownRunDirectory(self)
        self.here, self.there = ownAddress(1), ownAddress(2)
        self.far = self.process()
        self.peer = self.far.listen(5000, self.there)
        self.nears: list[Process] = []
        self.ends: list[Any] = []

    def near(self, count: int) -> None:
        """
        Begin processes, which have the ports from 4000 on.
        """
        for _ in range(count):
            process = self.process()
            self.ends.append(process.listen(4000 + len(self.nears), self.here))
            self.nears.append(process)

    def kill(self, process: Process) -> None:
        """
        End a process without a word.
        """
        process.kill()
        self.processes.remove(process)

    def meet(self, count: int) -> None:
        """
        Begin processes, each of which the peer has had a datagram from and has sent one.
        """
        self.near(count)
        for at, end in enumerate(self.ends):
            self.peer.transport.write(b"in", (self.here, 4000 + at))
            end.transport.write(b"out", (self.there, 5000))
        self.until(lambda: len(self.peer.got) == count and all(end.got for end in self.ends))
        self.settle()

    def guid(self, process: Process) -> int:
        """
        @return: that of the HCA by which a process meets the others.
        """
        return int(process.medium.relay.medium.channel(self.here).device.guid)

    def forger(self) -> RelayNetwork:
        """
        @return: that of a process of another address, which sends what it wants to.
        """
        process = self.process()
        process.listen(6000, ownAddress(3))
        return self.lenient(process)

    def lenient(self, process: Process) -> RelayNetwork:
        """
        Have a process break the rules.

        @return: its network.
        """
        relay = process.medium.relay
        self.patch(relay.medium, "_hasMoved", lambda path: False)
        self.patch(relay.medium, "areBetween", lambda session, ours, theirs: True)
        for name in ("messageDone", "messageDropped"):
            self.patch(relay, name, lambda message: None)
        return relay

    def forge(
        self, relay: RelayNetwork, source: tuple[str, int], to: tuple[str, int], at: Process
    ) -> RDSPath:
        """
        Have a process send in another's name.

        @return: the path that it went by.
        """
        path = relay.path((source[0], to[0], self.guid(at)), source[0], to[0])
        path.send(RDSMessage(source[1], to[1], b"forged", relay))
        self.pass_(0.3)
        return path

    def owners(self) -> list[Process]:
        """
        @return: those that have the connections.
        """
        return [each for each in self.nears if each.alive and each.medium.services]


class RelayTests(RelayTestCase):
    """
    Datagrams of several processes.
    """

    def exchange(self, count: int) -> None:
        """
        Each sends so many datagrams to the peer, and gets as many; all come once and in order.
        """
        alive = [
            (end, 4000 + at)
            for at, end in enumerate(self.ends)
            if self.nears[at].alive and end.socket.connected
        ]
        for end in (self.peer, *self.ends):
            del end.got[:]
        for n in range(count):
            for end, port in alive:
                end.transport.write(b"%d %d" % (port, n), (self.there, 5000))
                self.peer.transport.write(b"%d %d" % (port, n), (self.here, port))
        self.until(
            lambda: (
                len(self.peer.got) >= count * len(alive) and all(len(end.got) >= count for end, _ in alive)
            )
        )
        self.settle()
        for end, port in alive:
            sent = [b"%d %d" % (port, n) for n in range(count)]
            self.assertEqual(end.got, [(each, (self.there, 5000)) for each in sent])
            self.assertEqual([data for data, address in self.peer.got if address == (self.here, port)], sent)

    def test_two(self) -> None:
        """
        Of two, one has the connection; datagrams of both come once, in order, and with the peer's address.
        """
        self.near(2)
        self.exchange(20)
        self.assertEqual(self.owners(), self.nears[:1])
        self.assertEqual(len(self.far.medium.sessions), 1)

    def test_many(self) -> None:
        """
        Of sixteen one has the connection, and each has its own datagrams.
        """
        self.near(PROCESSES)
        self.exchange(10)
        self.assertEqual(self.owners(), self.nears[:1])
        self.assertEqual(len(self.far.medium.sessions), 1)

    def test_ports(self) -> None:
        """
        A port that one has is taken for the others, and free again when it is closed; any free one is free in
        all.
        """
        self.near(2)
        one, two = self.nears
        self.assertRaises(CannotListenError, two.listen, 4000, self.here)
        self.assertRaises(CannotListenError, one.listen, 4001, self.here)
        self.ends[0].socket.stopListening()
        self.settle()
        two.listen(4000, self.here)
        self.assertNotEqual(one.listen(0, self.here).socket._realPort, 4000)

    def test_eachOther(self) -> None:
        """
        Processes of the address send to each other without the owner.
        """
        self.near(3)
        for end in self.ends:
            for port in (4000, 4001, 4002):
                end.transport.write(b"x", (self.here, port))
        self.until(lambda: all(len(end.got) == 3 for end in self.ends))
        for end in self.ends:
            self.assertEqual(sorted(end.got), [(b"x", (self.here, port)) for port in (4000, 4001, 4002)])
        self.assertEqual(sum(self.handed(each) for each in self.nears), 0)

    def handed(self, process: Process) -> int:
        """
        @return: how many datagrams a process has handed on.
        """
        counters = process.network.counters
        return counters["recv_handed_on"] + counters["send_handed_on"]

    def test_sizes(self) -> None:
        """
        Datagrams of any size, small ones in bundles.
        """
        self.near(2)
        sizes = [0, 1, 100, 4096, 4097, 70000, 1 << 20, 3, 3, 3]
        sent = [bytes([n]) * size for n, size in enumerate(sizes)]
        for data in sent:
            self.ends[1].transport.write(data, (self.there, 5000))
            self.peer.transport.write(data, (self.here, 4001))
        self.until(lambda: len(self.peer.got) == len(self.ends[1].got) == len(sent))
        self.assertEqual([self.peer.data, self.ends[1].data], [sent, sent])
        self.assertEqual(self.handed(self.nears[0]), 2 * len(sent))

    def test_nobodys(self) -> None:
        """
        What is for a port that nobody has is dropped, and looked for once for a while.
        """
        self.near(2)
        self.exchange(1)
        relay = self.nears[0].medium.relay
        looks = []
        self.patch(relay, "isElsewhere", lambda host, port: looks.append(port))
        for _ in range(20):
            self.peer.transport.write(b"x", (self.here, 4999))
        counters = self.nears[0].network.counters
        self.until(lambda: counters["recv_drop_no_sock"] == 20)
        self.assertLess(len(looks), 10)

    def test_refused(self) -> None:
        """
        What only the owner can do is refused by name: pings, and RDMA.
        """
        self.near(2)
        owner, other = (end.transport for end in self.ends)
        answers: list[float] = []
        owner.ping(self.there).addCallback(answers.append)
        self.until(lambda: answers)
        owner.registerMemory(100)
        self.assertRaises(RDSUnsupportedError, other.ping, self.there)
        self.assertRaises(RDSUnsupportedError, other.registerMemory, 100)
        self.assertRaises(RDSUnsupportedError, other.rdmaRead, 1, 100, (self.there, 5000))

    def test_closed(self) -> None:
        """
        When the owner has closed its last socket, another is the owner.
        """
        self.near(3)
        self.exchange(3)
        self.ends[0].socket.stopListening()
        self.until(lambda: not self.ends[0].socket.connected and self.owners())
        self.exchange(3)
        self.assertEqual(len(self.owners()), 1)

    def test_closedElsewhere(self) -> None:
        """
        When the owner has closed its last socket of an address and has one of another, all others go on with
        the next owner, and so does the peer.
        """
        self.near(4)
        self.nears[0].listen(4000, ownAddress(4))
        self.exchange(3)
        self.ends[0].socket.stopListening()
        self.until(lambda: not self.ends[0].socket.connected)
        self.exchange(3)
        self.assertEqual(len(self.owners()), 2)
        self.assertFalse([path for path in self.nears[0].network.paths.values() if path.carrier])

    def test_bundleMoved(self) -> None:
        """
        Datagrams that were one message between the processes are not for the peer, when their sender becomes
        the owner; each counts against the socket's budget until it is acknowledged.
        """
        self.near(2)
        self.exchange(1)
        self.processes.remove(self.nears[0])
        end, sent = self.ends[1], [b"", b"a", bytes(2000), bytes(2000), b"b"]
        for data in sent:
            end.transport.write(data, (self.there, 5000))
        self.settle()
        self.nears[0].kill()
        self.until(lambda: len(self.peer.got) >= 2 + len(sent))
        self.assertEqual([data for data in self.peer.data if data in sent], sent)
        self.until(lambda: not end.socket.queued())

    def test_dying(self) -> None:
        """
        While an owner is being killed, and has one of its two services yet, another process can bind, and is
        the owner thereafter.
        """
        for isFirst in (True, False):
            self.near(1)
            owner = self.nears[-1]
            self.until(lambda owner=owner: owner in self.owners())
            gone = next(
                each for each in channelsOf(owner.reactor) if (each.device.name == "roce0") is isFirst
            )
            gone.leave()
            gone.device.close()
            self.near(1)
            self.kill(owner)
            self.until(lambda: self.owners() == self.nears[-1:])
            self.kill(self.nears[-1])

    def test_killed(self) -> None:
        """
        When the owner is killed, another is; what waits is sent by it, and nothing that was acknowledged is
        lost.
        """
        self.near(4)
        self.exchange(3)
        for end in (self.peer, *self.ends):
            del end.got[:]
        for n in range(300):
            if n == 100:
                self.kill(self.nears[0])
            for port in (4001, 4002, 4003):
                self.ends[port - 4000].transport.write(b"%d" % n, (self.there, 5000))
                self.peer.transport.write(b"%d" % n, (self.here, port))
            for process in self.processes:
                if process.alive:
                    process.turn()
        expected = {b"%d" % n for n in range(300)}

        def hasAll(end: Any, address: Any) -> bool:
            return {data for data, source in end.got if source == address} == expected

        self.until(
            lambda: all(
                hasAll(self.peer, (self.here, 4000 + at)) and hasAll(self.ends[at], (self.there, 5000))
                for at in (1, 2, 3)
            )
        )
        self.assertEqual(len(self.owners()), 1)
        self.exchange(3)

    def test_acknowledged(self) -> None:
        """
        A sender has its acknowledgement when the last process has the datagram: what the owner alone has when
        it is killed is sent again.
        """
        for isIn in (True, False):
            self.near(2)
            owner, other = self.nears[-2:]
            end = self.ends[-1]
            port = 3999 + len(self.nears)
            self.until(lambda owner=owner: owner.medium.services)
            sender, receiver, host, place = self.peer, end, self.here, port
            stopped = other
            if not isIn:
                sender, receiver, host, place, stopped = end, self.peer, self.there, 5000, self.far
            sender.transport.write(b"first", (host, place))
            self.until(lambda receiver=receiver: receiver.data[-1:] == [b"first"])
            self.until(lambda sender=sender: not sender.socket.queued())
            self.processes.remove(stopped)
            sent = {b"%d" % n for n in range(20)}
            for data in sent:
                sender.transport.write(data, (host, place))
            self.settle()
            self.assertGreaterEqual(self.handed(owner), len(sent))
            self.assertGreaterEqual(sender.socket.queued(), sum(map(len, sent)))
            self.kill(owner)
            self.processes.append(stopped)
            self.until(lambda sent=sent, receiver=receiver: sent <= set(receiver.data))
            self.until(lambda sender=sender: not sender.socket.queued())
            end.socket.stopListening()
            self.until(lambda end=end: not end.socket.connected)

    def test_otherKilled(self) -> None:
        """
        One that is not the owner is killed: the others lose nothing, and its port is free.
        """
        self.near(3)
        self.exchange(3)
        self.kill(self.nears[1])
        for _ in range(10):
            self.peer.transport.write(b"lost", (self.here, 4001))
        self.exchange(20)
        self.until(lambda: self.nears[0].medium.services and not self.nears[0].medium.relay._late)
        end = self.nears[2].listen(4001, self.here)
        self.pass_(1.0)
        self.peer.transport.write(b"again", (self.here, 4001))
        self.until(lambda: b"again" in end.data)

    def test_congested(self) -> None:
        """
        A socket that is not read is congested for the peer, whoever has the connection, and the others are
        not.
        """
        self.near(2)
        self.exchange(1)
        slow = self.ends[1].socket
        slow.pauseProducing()
        path = next(iter(self.far.network.paths.values()))
        for _ in range(30):
            self.peer.transport.write(bytes(100000), (self.here, 4001))
            self.settle()
        self.until(lambda: path.isCongested(4001))
        self.peer.transport.write(b"x", (self.here, 4000))
        self.until(lambda: self.ends[0].data[-1:] == [b"x"])
        slow.resumeProducing()
        self.until(lambda: not path.isCongested(4001) and self.ends[1].data.count(bytes(100000)) == 30)

    def test_peerCongested(self) -> None:
        """
        A port of the peer that is congested is so for all processes.
        """
        self.near(2)
        self.exchange(1)
        self.peer.socket.pauseProducing()
        other = self.ends[1].transport
        sent = 0
        while not other._held:
            other.write(bytes(100000), (self.there, 5000))
            sent += 1
            self.assertLess(sent, 100)
            self.settle()
        self.peer.socket.resumeProducing()
        self.until(lambda: self.peer.data.count(bytes(100000)) == sent)
        self.assertEqual(other._held, {})

    def test_stopped(self) -> None:
        """
        For a process that takes nothing so much waits, its port is congested, and the peer gets the
        acknowledgements of the others after a while.
        """
        self.near(2)
        self.exchange(1)
        self.patch(limits, "RDS_RECEIVE_BUDGET", 300000)
        path = next(iter(self.far.network.paths.values()))
        self.processes.remove(self.nears[1])
        for _ in range(5):
            self.peer.transport.write(bytes(100000), (self.here, 4001))
        self.until(lambda: path.isCongested(4001))
        self.peer.transport.write(b"x", (self.here, 4000))
        self.until(lambda: self.ends[0].data[-1:] == [b"x"])
        self.until(lambda: path.machine.isIdle())
        self.assertGreater(self.nears[0].network.counters["recv_handed_late"], 0)
        self.processes.append(self.nears[1])
        self.until(lambda: not path.isCongested(4001) and self.ends[1].data.count(bytes(100000)) == 5)

    def test_bound(self) -> None:
        """
        From a peer that goes on nothing more is read than the bound.
        """
        self.near(2)
        self.exchange(1)
        self.patch(rcrelay, "RDS_HANDED_MOST", 300000)
        path = next(iter(self.far.network.paths.values()))
        self.patch(type(path), "isCongested", lambda path, port: False)
        self.processes.remove(self.nears[1])
        for _ in range(20):
            self.peer.transport.write(bytes(100000), (self.here, 4001))
        (near,) = self.nears[0].network.paths.values()
        self.until(lambda: near._blockers)
        self.pass_(2.0)
        flows = self.nears[0].medium.relay._flows.values()
        self.assertLess(max(flow.bytes for flow in flows), 500000)
        self.processes.append(self.nears[1])
        self.until(lambda: self.ends[1].data.count(bytes(100000)) == 20)


class FlowTests(RelayTestCase):
    """
    What waits for processes, and what they say of their ports.
    """

    def test_peers(self) -> None:
        """
        What waits for a process is bounded, and its port congested, whoever sends it.
        """
        self.meet(2)
        self.patch(limits, "RDS_RECEIVE_BUDGET", 300000)
        others = [self.process() for _ in range(4)]
        peers = [process.listen(5000, ownAddress(10 + n)) for n, process in enumerate(others)]
        self.processes.remove(self.nears[1])
        for peer in peers:
            peer.transport.write(bytes(100000), (self.here, 4001))
        paths = [path for process in others for path in process.network.paths.values()]
        self.until(lambda: len(paths) == 4 and all(path.isCongested(4001) for path in paths))
        flows = self.nears[0].medium.relay._flows
        self.assertGreater(flows[self.guid(self.nears[1])].bytes, 400000)
        self.processes.append(self.nears[1])
        self.until(lambda: self.ends[1].data.count(bytes(100000)) == 4)
        self.until(lambda: not any(path.isCongested(4001) for path in paths))

    def test_peersBound(self) -> None:
        """
        Beyond the bound no peer of it is read.
        """
        self.meet(2)
        self.patch(rcrelay, "RDS_HANDED_MOST", 300000)
        others = [self.process() for _ in range(4)]
        peers = [process.listen(5000, ownAddress(10 + n)) for n, process in enumerate(others)]
        self.processes.remove(self.nears[1])
        for peer in peers:
            for _ in range(5):
                peer.transport.write(bytes(100000), (self.here, 4001))
        network = self.nears[0].network
        self.until(lambda: sum(bool(path._blockers) for path in network.paths.values()) == 4)
        self.pass_(2.0)
        flow = self.nears[0].medium.relay._flows[self.guid(self.nears[1])]
        self.assertLess(flow.bytes, 1000000)
        self.processes.append(self.nears[1])
        self.until(lambda: self.ends[1].data.count(bytes(100000)) == 20)

    def say(self, process: Process, congested: set[int], cleared: set[int]) -> None:
        """
        A process says to the owner which ports are congested.
        """
        ports = process.network.mapOf(self.here)
        for port in congested:
            ports.mark(port)
        for port in cleared:
            ports.clear(port)
        for path in process.medium.relay.paths.values():
            path.mapChanged()
        self.pass_(0.3)

    def test_othersPorts(self) -> None:
        """
        A process speaks for its own ports only: it neither marks nor clears those of another.
        """
        self.meet(3)
        (path,) = self.far.network.paths.values()
        self.nears[0].network.setCongested(self.here, 4000, True)
        self.pass_(0.3)
        self.say(self.nears[1], {700, 4000, 4001, 4002}, set())
        self.assertEqual(path.machine.peerMap.ports(), {4000, 4001})
        self.say(self.nears[1], set(), {700, 4000, 4001, 4002})
        self.assertEqual(path.machine.peerMap.ports(), {4000})

    def test_oneMap(self) -> None:
        """
        Ports that are congested at once, or clear, are one map for the peer.
        """
        self.meet(2)
        ports = {self.nears[1].listen(0, self.here).socket._realPort for _ in range(20)}
        (path,) = self.nears[0].network.paths.values()
        sent: list[set[int]] = []
        self.patch(path, "mapChanged", lambda: sent.append(self.nears[0].network.mapOf(self.here).ports()))
        self.say(self.nears[1], ports, set())
        self.say(self.nears[1], set(), ports)
        self.assertEqual(sent, [ports, set()])

    def test_inherited(self) -> None:
        """
        A port that was congested because its process is dead is not when the owner binds it.
        """
        self.meet(2)
        (path,) = self.far.network.paths.values()
        self.say(self.nears[1], {4001}, set())
        self.assertTrue(path.isCongested(4001))
        self.kill(self.nears[1])
        self.nears[0].listen(4001, self.here)
        self.until(lambda: not path.isCongested(4001))


class AdmissionTests(RelayTestCase):
    """
    Who may hand on.
    """

    def test_forged(self) -> None:
        """
        A process that has no port of an address speaks neither for it nor for its peers.
        """
        self.meet(2)
        relay = self.forger()
        before = [list(end.got) for end in (self.peer, *self.ends)]
        here, there = self.here, self.there
        self.forge(relay, (there, 5000), (here, 4001), self.nears[1])
        self.forge(relay, ("192.0.2.1", 5000), (here, 4000), self.nears[0])
        self.forge(relay, (here, 4001), (there, 5000), self.nears[0])
        self.assertEqual([list(end.got) for end in (self.peer, *self.ends)], before)

    def test_notOwner(self) -> None:
        """
        Nor does one that has a port of the address speak for its peers.
        """
        self.meet(3)
        relay = self.lenient(self.nears[2])
        self.forge(relay, (self.there, 5000), (self.here, 4001), self.nears[1])
        self.assertEqual(self.ends[1].data, [b"in"])

    def test_names(self) -> None:
        """
        What is no address, or not its normal form, names no path.
        """
        self.meet(2)
        relay, owner = self.lenient(self.nears[1]), self.nears[0]
        for name in ("garbage", "::ffff:192.0.2.1"):
            self.forge(relay, (self.here, 4001), (name, 5000), owner)
            self.assertNotIn(name, [path.remote for path in owner.network.paths.values()])
        self.assertEqual(self.flushLoggedErrors(), [])

    def squat(self) -> Any:
        """
        @return: the port of owners, which a process has without the connections.
        """
        process = self.process()
        process.listen(6000, ownAddress(3))
        medium: Any = process.medium.relay.medium
        return medium.serve(medium.channel(self.here), self.here, rcrelaymedium.OWNER_PORT)

    def test_squatter(self) -> None:
        """
        Who has the port of owners without the connections, as one that is being killed for a moment, keeps
        nobody from binding; when it is gone, another is the owner.
        """
        service = self.squat()
        self.near(2)
        self.assertEqual(self.owners(), [])
        service.close()
        self.until(self.owners)
        for at, end in enumerate(self.ends):
            self.peer.transport.write(b"in", (self.here, 4000 + at))
            end.transport.write(b"out", (self.there, 5000))
        self.until(lambda: len(self.peer.got) == 2 and all(end.got for end in self.ends))
        self.assertEqual(len(self.owners()), 1)

    def test_otherUsersSquatter(self) -> None:
        """
        Another user's process that has the port of owners is not followed: the bind fails until it is gone.
        """
        service = self.squat()
        self.patch(SharedMemoryFabric, "servingOurs", lambda fabric, service, address: [])
        process = self.process()
        self.assertRaises(CannotListenError, process.listen, 4000, self.here)
        self.assertEqual((process.network.sockets, process.medium.services), ({}, {}))
        service.close()
        process.listen(4000, self.here)

    def test_otherUsersService(self) -> None:
        """
        Where another user's process has the service nothing is sent to it.
        """
        self.meet(2)
        relay = self.nears[0].medium.relay
        self.assertTrue(relay.isElsewhere(self.here, 4001))
        rendezvous = relay.medium.channel(self.here).device.fabric.rendezvous
        self.patch(rendezvous, "uid", geteuid() + 1)
        self.patch(rendezvous, "checkOwner", lambda: None)
        self.assertFalse(relay.isElsewhere(self.here, 4001))
        self.assertEqual(relay.medium.portsOf(self.here, self.guid(self.nears[1])), set())

    def test_otherUser(self) -> None:
        """
        A process of another user is neither dialled nor accepted, though the run directory lets it in.
        """
        self.patch(rcrelaymedium, "geteuid", lambda: geteuid() + 1)
        self.near(2)
        sessions = self.nears[0].medium.relay.medium.sessions
        for send in (rcrelaymedium.RelayAttempt.send, ProcessAttempt.send):
            self.patch(rcrelaymedium.RelayAttempt, "send", send)
            self.peer.transport.write(b"in", (self.here, 4001))
            self.ends[1].transport.write(b"out", (self.there, 5000))
            self.pass_(1.0)
            self.assertEqual((self.peer.got, self.ends[1].got, sessions), ([], [], {}))
        self.assertGreater(self.nears[0].medium.relay.counters["recv_bad_request"], 0)


class ProcessTests(RelayTestCase):
    """
    Processes of their own, which are killed.
    """

    def begin(self, port: int, program: str = _ECHO) -> Popen[bytes]:
        """
        @return: a process that echoes what comes to a port.
        """
        child = Popen([sys.executable, "-c", program, self.here, str(port)], stdout=PIPE)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        assert child.stdout is not None
        self.addCleanup(child.stdout.close)
        self.assertEqual(awaitReady(child.stdout, HANG_SECONDS) and child.stdout.readline(), b"ready\n")
        return child

    def untilLive(self, holds: Callable[[], object]) -> None:
        """
        Serve the peer until something holds, by the clock that the others have.
        """
        before = time.monotonic()

        def turn() -> None:
            nonlocal before
            passed, before = time.monotonic() - before, time.monotonic()
            self.far.reactor.advance(passed)
            if not self.far.turn():
                time.sleep(0.001)

        waitUntil(holds, turn)

    def test_deaths(self) -> None:
        """
        The owner is killed with datagrams on their way, again and again: each that is for one of those left
        is answered.
        """
        children = {port: self.begin(port) for port in range(4000, 4000 + CHILDREN)}
        rounds = 0
        while len(children) > 1:
            sent = set()
            for n in range(60):
                if n == 30:
                    # They begin one after the other, and the eldest is the owner.
                    children.pop(min(children)).kill()
                for port in children:
                    sent.add((b"%d %d" % (rounds, n), (self.here, port)))
                    self.peer.transport.write(b"%d %d" % (rounds, n), (self.here, port))
                self.far.turn()
            sent = {(data, source) for data, source in sent if source[1] in children}
            self.untilLive(lambda sent=sent: sent <= set(self.peer.got))
            rounds += 1
        self.assertEqual(rounds, CHILDREN - 1)

    def test_alone(self) -> None:
        """
        A reactor that polls looks at C{shm0} only while another process on the address has datagrams.
        """

        def ask(port: int) -> tuple[bytes, int]:
            count = len(self.peer.got)
            self.peer.transport.write(b"", (self.here, port))
            self.untilLive(lambda: len(self.peer.got) > count)
            names, _, turns = self.peer.data[-1].partition(b": ")
            return names, int(turns)

        alone, shared = b"['roce0', 0]", b"['roce0', 'shm0', 1]"
        self.begin(4000, _POLLED)
        self.assertEqual([ask(4000) for _ in range(100)], [(alone, 0)] * 100)
        other = self.begin(4001, _POLLED)
        self.assertEqual(ask(4000), (alone, 0))
        self.assertEqual((ask(4001)[0], ask(4000)[0]), (shared, shared))
        other.kill()
        self.untilLive(lambda: ask(4000)[0] == alone)
        before = ask(4000)
        self.assertEqual([ask(4000) for _ in range(100)], [before] * 100)
