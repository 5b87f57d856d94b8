"""
Tests of open streams whose connections have settled (L{twisted_ib.hca.cm.peer.SettledConnections}), and of
what a peer may send about them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import ClientFactory, Factory
from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.pair import LOCALHOST, End, Ends, HandReactor, Keeper, PairTestCase, Plain, Raw
from twisted_ib.errors import HCAError, QueuePairError, WrongThreadError
from twisted_ib.hca.cm.machine import Connection
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.wire.cm.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU, AnyMessage
from twisted_ib.internet import connector, port
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.sdp.port import connectSDP, listenSDP
from twisted_ib.sdp.protocol.wire import MID


class SettledTests(PairTestCase):
    """
    Two ends, and a peer that sends what it likes.
    """

    def setUp(self) -> None:
        super().setUp()
        self.managers = [end.device.cm for end in self.pair.ends]

    def give(self, stream: Any, message: AnyMessage) -> None:
        """
        A message comes from a stream's peer.
        """
        device = stream.channel.device
        octets = device.cm.pack(message)
        path = stream.connection.destination
        device.managementReceived(path, message.attribute, octets, 0, len(octets))
        self.settle()

    def request(self, stream: Any, **fields: int) -> REQ:
        """
        @return: a REQ as that of a stream's peer, but for C{fields}.
        """
        remote, peer = stream.queuePair.remote, stream.connection
        fields = {"localCommunicationID": remote, "localQPN": remote, "localCAGUID": peer.guid, **fields}
        return REQ(serviceID=PortSpace.SDP << 16 | self.pair.port, **fields)

    def assertOpen(self, *streams: Any) -> None:
        """
        They are settled, and what one end writes comes to the other.
        """
        self.assertEqual([len(cm._connections) for cm in self.managers], [0, 0])
        for one, other in (streams, streams[::-1]):
            self.assertIsInstance(one.connection, Peer)
            before = len(other.heard.data)
            one.write(b"on")
            self.settle()
            self.assertEqual(other.heard.data[before:], b"on")
            self.assertEqual(one.heard.calls, [])

    def assertEnded(self) -> None:
        """
        Nothing is left of any connection.
        """
        self.settle()
        for end, cm in zip(self.pair.ends, self.managers, strict=True):
            sizes = len(cm), len(cm._connections), cm.settled.count, len(cm._peers), len(cm.accepted)
            self.assertEqual((sizes, len(cm._deadlines), end.device.inUse()["qp"]), ((0,) * 5, 0, 0))

    def test_ends(self) -> None:
        """
        However it ends, nothing is left.
        """
        acts: list[Callable[[Any], object]] = [
            lambda one: one.loseConnection(),
            lambda one: one.abortConnection(),
            lambda one: one.queuePair.fail(QueuePairError("x")),
        ]
        for act in acts:
            for first in (0, 1):
                ends = self.pair.connected()
                self.assertEqual([(len(cm), len(cm._connections)) for cm in self.managers], [(1, 0)] * 2)
                act(ends[first])
                self.settle()
                end = "ConnectionDone" if act is acts[0] else "ConnectionLost"
                self.assertEqual(ends[1 - first].heard.calls, [end])
                self.assertEnded()

    def test_goesOn(self) -> None:
        """
        REQ, REP, RTU, LAP, APR, MRA and DREP come again, at both ends: there is one connection, and it goes
        on.
        """
        ends = self.pair.connected()
        for stream in ends:
            numbers = stream.queuePair.remote, stream.queuePair.number
            for message in (
                self.request(stream),
                REP(*numbers, localQPN=numbers[0], localCAGUID=stream.connection.guid),
                RTU(*numbers),
                LAP(*numbers),
                APR(*numbers),
                *(MRA(*numbers, kind, 20) for kind in range(3)),
                DREP(*numbers),
                # It names none of ours, so it is about a request that is not here.
                REJ(numbers[0], 0, reason=RejectReason.TIMEOUT),
            ):
                for _ in range(2):
                    self.give(stream, message)
                self.assertOpen(*ends)
        self.assertEqual([len(cm) for cm in self.managers], [1, 1])
        self.assertEqual(self.managers[1].counters["repeatedREQ"], 2)
        ends[0].loseConnection()
        self.assertEnded()

    def test_rejected(self) -> None:
        """
        A REJ, whatever its reason, or a DREQ with both numbers ends it, at either end; it is a reset.
        """
        reasons: list[Any] = [*RejectReason, None]
        for place, reason in enumerate(reasons):
            one, two = ends = self.pair.connected()
            stream = ends[place % 2]
            numbers = stream.queuePair.remote, stream.queuePair.number
            self.give(stream, DREQ(*numbers, numbers[1]) if reason is None else REJ(*numbers, reason=reason))
            self.assertEqual(stream.heard.calls, ["ConnectionLost"], reason)
            # The peer has not meant it.
            one.abortConnection(), two.abortConnection()
            self.assertEnded()

    def test_stale(self) -> None:
        """
        A REQ of the same queue pair with another communication id is of a peer that has begun anew: the old
        connection ends (IBTA vol. 1 12.9.8.3.1), and there is no new one.
        """
        for first in (0, 1):
            one, two = self.pair.connected()
            stream = (one, two)[first]
            self.give(stream, self.request(stream, localCommunicationID=stream.queuePair.remote ^ 1))
            self.assertEqual([end.heard.calls for end in (one, two)], [["ConnectionLost"]] * 2)
            self.assertEnded()

    def test_others(self) -> None:
        """
        Of many connections of one peer only the meant one ends.
        """
        ends = [self.pair.connected() for _ in range(3)]
        _, two = ends[1]
        numbers = two.queuePair.remote, two.queuePair.number
        self.give(two, DREQ(*numbers, numbers[1]))
        self.assertEqual([two.heard.calls for _, two in ends], [[], ["ConnectionLost"], []])
        ends[1][0].abortConnection()
        self.settle()
        self.assertOpen(*ends[0])
        self.assertOpen(*ends[2])
        self.assertEqual([len(cm) for cm in self.managers], [2, 2])

    def test_abortFirst(self) -> None:
        """
        A peer that aborts the stream and does not disconnect leaves the connection, which is an object then;
        its DREQ ends that.
        """
        raw = Raw(self.pair.a.device)
        self.pair.join(raw, lambda: self.pair.transport(self.pair.b))
        stream = self.pair.attach(self.pair.listener.stream)
        self.assertIsInstance(stream.connection, Peer)
        raw.send(MID.ABORT_CONN)
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionLost"])
        self.assertIsInstance(stream.connection, Connection)
        cm = self.managers[1]
        self.assertEqual((len(cm), cm.settled.count), (1, 0))
        raw.disconnect()
        self.settle()
        self.assertEqual(raw.log, ["DREQ"])
        raw.queuePair.close()
        self.assertEnded()

    def test_deviceClosed(self) -> None:
        """
        When a device closes, or its process ends, nothing is left at the other end.
        """
        ends = [self.pair.connected() for _ in range(3)]
        self.pair.a.device.close()
        self.settle()
        for _, two in ends:
            self.assertEqual(len(two.heard.calls), 1)
        cm = self.managers[1]
        self.assertEqual((len(cm), cm.settled.count, len(cm._peers)), (0, 0, 0))

    def test_forked(self) -> None:
        """
        A forked child ends what it has of it, and the parent's goes on.
        """
        ends = self.pair.connected()
        child = os.fork()
        if not child:
            try:
                for stream in ends:
                    for act in (stream.loseConnection, stream.abortConnection):
                        try:
                            act()
                        except (HCAError, WrongThreadError):
                            pass
            except BaseException:
                os._exit(1)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertOpen(*ends)


class _Shared(End):
    """
    One on shared memory, where the first connection has to wait for a path.
    """

    def __init__(self, polled: bool, seed: int) -> None:
        self.keeper, self.reactor = Keeper(), HandReactor()
        self.device = Device("shm0", self.reactor.seconds)
        self.channel = DeviceChannel(self.reactor, self.device)
        self.channel.acquire(self.keeper)
        self.turn = self.reactor.turn


class TogetherTests(SynchronousTestCase):
    """
    Ports of two devices on shared memory.
    """

    def test_together(self) -> None:
        """
        Connections that have waited together for one path settle, at both ends, and so do later ones.
        """
        ends = Ends(False, _Shared)
        self.addCleanup(ends.close)
        channels = {end.reactor: end.channel for end in ends.ends}
        for module in (connector, port):
            self.patch(module, "channelFor", lambda reactor, *_: channels[reactor])
        factory = ClientFactory.forProtocol(Plain)
        listening = listenSDP(ends.b.reactor, 0, Factory.forProtocol(Plain)).getHost().port
        for count in (5, 6):
            for _ in range(count - len(ends.a.device.cm)):
                connectSDP(ends.a.reactor, LOCALHOST, listening, factory)
            ends.settle()
            managers = [end.device.cm for end in ends.ends]
            found = [(len(cm), len(cm._connections), cm.settled.count) for cm in managers]
            self.assertEqual(found, [(count, 0, count)] * 2)
