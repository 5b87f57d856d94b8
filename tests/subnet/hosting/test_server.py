"""
Tests for the server of devices of processes, driven by hand.
"""

from __future__ import annotations

import os
import select
import socket
from collections import Counter

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import interpreter
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.hostthread import Loop
from twisted_ib.subnet.hosting.messages import (
    ATTACHED,
    MESSAGE_BYTES,
    PORT,
    REFUSED,
    WAYS,
    Ways,
    kindOf,
    packAttach,
    parsePort,
    refusal,
)
from twisted_ib.subnet.hosting.place import Place, entryOf, runDirectories
from twisted_ib.subnet.hosting.server import SubnetServer
from twisted_ib.subnet.network.topology import parse

GUID = 0x1234567
#: A process that attaches, and ends while a child of it holds its socket.
PARENT = """
import os, socket, sys
pair = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
pair.connect(sys.argv[1])
pair.send(bytes.fromhex(sys.argv[2]))
pair.recv(1)
if not os.fork():
    sys.stdin.read()
"""


class ServerTests(SynchronousTestCase):
    """
    A subnet of one switch with two ports, and a process: this one.
    """

    def setUp(self) -> None:
        """
        Host it.
        """
        ownRunDirectory(self)
        opened = runDirectories(os.environ)
        (self.directory,) = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        place = Place.take(self.directory, "x")
        assert place is not None
        self.lost: Counter[str] = Counter()
        self.attended: list[bool] = []
        self.loop = Loop()
        self.subnet = HostedSubnet(parse('Switch 2 "s"', "test"), self.count, self.loop)
        users = {os.geteuid()}
        self.server = SubnetServer(
            *(self.subnet, place, self.loop, self.count), users.__contains__, self.attended.append
        )
        self.addCleanup(self.end)

    def end(self) -> None:
        """
        Host it no longer.
        """
        self.subnet.close()
        self.server.close()
        self.loop.close()

    def count(self, name: str) -> None:
        """
        Count a loss.
        """
        self.lost[name] += 1

    def turn(self) -> None:
        """
        Serve what there is, without waiting for more.
        """
        waking = self.loop.callLater(0.001, lambda: None)
        self.loop.turn()
        waking.cancel()

    def call(self, octets: bytes = b"") -> socket.socket:
        """
        @return: a process's socket, after it has said something.
        """
        pair = connect(self.directory, entryOf("x"), socket.SOCK_SEQPACKET)
        self.addCleanup(pair.close)
        if octets:
            pair.send(octets)
        self.turn()
        self.turn()
        return pair

    def heard(self, pair: socket.socket) -> list[bytes]:
        """
        @return: what a process is told.
        """
        found = []
        while (received := receiveWithDescriptors(pair, MESSAGE_BYTES, 1)) is not None and received[0]:
            closeAll(received[1])
            found.append(received[0])
        return found

    def test_attached(self) -> None:
        """
        A device has a port, and is told of it; when it is gone the subnet is as before.
        """
        before = self.subnet.summary()
        pair = self.call(packAttach(GUID, 9, "x"))
        # On a busy machine more than L{COLLECT_SECONDS} may have passed in a turn.
        attached, *told = self.heard(pair)
        self.assertEqual(kindOf(attached), ATTACHED)

        def listen() -> None:
            self.turn()
            told.extend(self.heard(pair))

        waitUntil(lambda: WAYS in map(kindOf, told), listen)
        self.assertEqual((kindOf(told[0]), parsePort(told[0]).lid), (PORT, 9))
        self.assertEqual((self.subnet.summary(), self.attended), ("nodes: 2, links: 1", [True]))
        pair.close()
        waitUntil(lambda: not self.attended[-1], self.turn)
        self.assertEqual((self.subnet.summary(), self.attended), (before, [True, False]))

    def test_full(self) -> None:
        """
        Without a free port of a switch it is refused, and says so.
        """
        pairs = [self.call(packAttach(GUID + 2 * n, 0, "")) for n in range(3)]
        answers = [self.heard(pair)[0] for pair in pairs]
        self.assertEqual([kindOf(each) for each in answers], [ATTACHED, ATTACHED, REFUSED])
        self.assertEqual(
            answers[2],
            refusal("no switch of the subnet has a free port: its topology needs one with more ports"),
        )
        self.assertEqual(self.lost["attach_refused"], 1)

    def test_comingUp(self) -> None:
        """
        Of a device whose link comes up, at either end, or at this one's, nothing is known: its connections go
        on.  When it is down, or Active, it is known whether it is reached.
        """
        for n in range(2):
            self.call(packAttach(GUID + 2 * n, n + 1, ""))
        one, two = self.subnet.attached.values()
        assert one.port.peer is not None and two.port.peer is not None
        down, init, armed, active = PortState.DOWN, PortState.INIT, PortState.ARMED, PortState.ACTIVE
        for states, isKnown in (
            ((active, active, active, active), True),
            ((active, active, active, armed), False),
            ((active, active, armed, active), False),
            ((active, armed, active, active), False),
            ((init, active, active, active), False),
            ((active, active, down, down), True),
        ):
            ports = one.port, one.port.peer, two.port, two.port.peer
            for port, state in zip(ports, states, strict=True):
                port.state = state
            self.subnet.forwarding.changed()
            devices = Ways(self.server.waysOf(one)).devices
            self.assertEqual(two.guid in devices, isKnown, states)

    def test_blocked(self) -> None:
        """
        A process that does not read is told the latest when it reads again, and that it was asked to register
        again.
        """
        pair = self.call(packAttach(GUID, 0, "x"))
        (client,) = self.server._clients
        client.pair.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

        def fill() -> None:
            client.rerouted()
            self.turn()

        waitUntil(lambda: client.isBlocked, fill)
        assert client.attached is not None
        settings = client.attached.settings()
        client.portChanged(evolve(settings, state=PortState.INIT, reregister=True))
        client.portChanged(evolve(settings, state=PortState.ARMED))
        client.rerouted()
        self.turn()
        self.assertTrue(client.isBlocked)
        self.heard(pair)
        waitUntil(lambda: not client.isBlocked, self.turn)
        port, ways = self.heard(pair)
        self.assertEqual((parsePort(port).state, parsePort(port).reregister), (PortState.ARMED, True))
        self.assertEqual(kindOf(ways), WAYS)
        # Nobody waits any longer for what is always so.
        self.assertEqual({events for _, events in self.loop._watched.values()}, {select.EPOLLIN})

    def test_ended(self) -> None:
        """
        A process that has ended is gone, though its child holds the socket; one that lives is not, whoever
        had the number of its descriptor before.
        """
        self.call(packAttach(GUID, 0, "x"))
        (client,) = self.server._clients
        self.server.ended(client)
        self.assertEqual(self.attended, [True])
        path, octets = self.directory.socketPath(entryOf("x")), packAttach(GUID + 2, 0, "y").hex()
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        with open(read) as standardInput:
            process = interpreter(self, "-c", PARENT, path, octets, stdin=standardInput)
        waitUntil(lambda: self.attended == [True, True], self.turn)
        waitUntil(lambda: len(self.subnet.attached) == 1, self.turn)
        process.wait()
        self.assertEqual(self.server._clients, {client})

    def test_closed(self) -> None:
        """
        Nothing is watched any more, no call is left, processes know it, and the place is free.
        """
        one, two = self.call(packAttach(GUID, 0, "x")), self.call()
        self.server.collect()
        self.subnet.close()
        self.server.close()
        self.assertEqual((self.loop._watched, self.loop._timers.deadline()), ({}, None))
        for pair in (one, two):
            self.heard(pair)
            self.assertEqual(pair.recv(1), b"")
        place = Place.take(self.directory, "x")
        assert place is not None
        # For the end of the test.
        self.server._place = place
        self.server._descriptor.fileno = lambda: -1  # type: ignore[method-assign]

    def test_forked(self) -> None:
        """
        A child of the host leaves all to it: it closes what it has inherited, and undoes nothing.
        """
        pair = self.call(packAttach(GUID, 0, "x"))
        child = os.fork()
        if not child:
            try:
                self.server.forget()
                self.loop.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.assertIn("subnet-x", os.listdir(self.directory.fd))
        self.assertIsNone(Place.take(self.directory, "x"))
        pair.close()
        waitUntil(lambda: not self.attended[-1], self.turn)
