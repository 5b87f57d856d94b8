"""
How the queue pairs of two HCAs, or of one, find their path by GID: tests to mix into a
L{HCATestCase<tests.hca.hcas.HCATestCase>}.
"""

from __future__ import annotations

import random
import secrets
from itertools import permutations
from typing import Any

from tests.hca.hcas import LISTENER, SDP, serve, settle, turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from twisted_ib.errors import NoListenerError, NoRouteError, PathLostError, ResourceLimitError, SharedGIDError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.device.addressing import processes
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import guidGID, loopbackGID

LOW, HIGH, HIGHER = 0x11, 0x9900000000000021, 0xA900000000000031
SEND, WRITE, READ = SendOpcode.SEND, SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ
OK, FLUSH, RETRIES = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR, WCStatus.RETRY_EXC_ERR


class PathResolutionSide(DeviceSide):
    """
    A queue pair that is told its peer's GID.
    """

    def __init__(self, device: Device, guid: int, gid: int = 0) -> None:
        """
        @param guid: The peer's.
        @param gid: The peer's, if it is another than that made of the GUID.
        """
        super().__init__(device, AddressVector(gid or guidGID(guid)))

    def inbox(self, id: int, size: int = 64) -> Any:
        """
        Post a receive.

        @return: its memory.
        """
        region = self.register(size)
        self.receive(id, piece(region))
        return region

    def say(self, id: int, data: bytes) -> None:
        """
        Post a send.
        """
        self.send(id, SEND, piece(self.register(data)))


class PathResolutionContract:
    """
    Two HCAs with known GUIDs.
    """

    histories = 10

    def deviceOf(self: Any, guid: int) -> Device:
        """
        @return: an HCA with a GUID, closed after the test.
        """
        drawn = [guid]
        device = Device(
            "test",
            self.clock.seconds,
            type(self).fabric,
            lambda bits: drawn.pop() if drawn else secrets.randbits(bits),
        )
        assert device.guid == guid
        self.addCleanup(device.close)
        return device

    def run_(self: Any, seconds: float, *devices: Device) -> None:
        """
        Serve devices while time passes.
        """
        serve(self.clock, seconds, *devices)

    def talk(self: Any, one: DeviceSide, two: DeviceSide) -> None:
        """
        Both send what the other has no receive for yet, so that refusals and
        acknowledgements go both ways, too.
        """
        devices = {id(side.device): side.device for side in (one, two)}.values()
        for side in (one, two):
            side.say(77, b"from %d" % side.qp.number)
        settle(*devices)
        got = [side.inbox(78) for side in (one, two)]
        self.run_(1.0, *devices)
        for side, other, inbox in ((one, two, got[0]), (two, one, got[1])):
            self.assertEqual(side.statuses(), [(77, OK)])
            self.assertEqual([(c.workRequestID, c.status) for c in side.received()], [(78, OK)])
            expected = b"from %d" % other.qp.number
            self.assertEqual(bytes(inbox.view[: len(expected)]), expected)

    def assertNoneMeets(self: Any, *devices: Device) -> None:
        """
        Nothing is kept of meetings.
        """
        for device in devices:
            self.assertEqual((device.paths._pendingPaths, device.paths._met), ({}, {}))

    def test_eitherFirst(self: Any) -> None:
        """
        The two queue pairs get the two ends of one path, the one of the lower GUID, whichever is ready first,
        has the lower GUID or has dialled before.
        """
        for dialled in (False, True):
            for guids in permutations((LOW, HIGH)):
                a, b = map(self.deviceOf, guids)
                if dialled:
                    for port, (caller, called) in enumerate(((a, b), (b, a)), 7001):
                        called.listen(SDP, "127.0.0.1", port, LISTENER)
                        self.pathTo(caller, called, port)
                one, two = PathResolutionSide(a, b.guid), PathResolutionSide(b, a.guid)
                one.to(QPState.RTS, two.qp.number)
                settle(a, b)
                two.to(QPState.RTS, one.qp.number)
                settle(a, b)
                self.talk(one, two)
                self.assertEqual((one.qp.path.peer.guid, two.qp.path.peer.guid), (b.guid, a.guid))
                lower, higher = sorted((one, two), key=lambda side: side.device.guid)
                self.assertIs(lower.qp.path, lower.device.fabric._paths[HIGH])
                self.assertNotIn(higher.qp.path, higher.device.fabric._paths.values())
                self.assertNoneMeets(a, b)
                a.close()
                b.close()

    def test_many(self: Any) -> None:
        """
        All queue pairs of two HCAs share a path; the later ones have it at once.
        """
        a, b = self.deviceOf(HIGH), self.deviceOf(LOW)
        for n in range(3):
            one, two = PathResolutionSide(a, LOW), PathResolutionSide(b, HIGH)
            one.to(QPState.RTS, two.qp.number)
            two.to(QPState.RTS, one.qp.number)
            if n:
                self.assertEqual((one.qp.path is None, two.qp.path is None), (False, False))
            self.talk(one, two)
        self.assertEqual((len(a.fabric.paths()), len(b.fabric.paths())), (1, 1))

    def test_seconds(self: Any) -> None:
        """
        A peer that is ready seconds later finds what was sent to it: with no path, with a
        path that does not know its number yet, and whatever its GUID.
        """
        for guids in permutations((LOW, HIGH)):
            for known in (False, True):
                a, b = map(self.deviceOf, guids)
                if known:
                    first, other = PathResolutionSide(a, b.guid), PathResolutionSide(b, a.guid)
                    first.to(QPState.RTS, other.qp.number)
                    other.to(QPState.RTS, first.qp.number)
                    settle(a, b)
                one, two = PathResolutionSide(a, b.guid), PathResolutionSide(b, a.guid)
                one.to(QPState.RTS, two.qp.number, timeout=19, retry_cnt=7)
                one.say(1, b"early")
                self.run_(3.0, a, b)
                self.assertEqual(one.statuses(), [])
                two.to(QPState.RTS, one.qp.number)
                inbox = two.inbox(2)
                self.run_(3.0, a, b)
                self.assertEqual(one.statuses(), [(1, OK)])
                self.assertEqual(bytes(inbox.view[:5]), b"early")
                two.received()
                self.talk(one, two)
                a.close()
                b.close()

    def test_absentForgotten(self: Any) -> None:
        """
        A message that a queue pair sent to a number that was not there does not delay the next queue pair
        that sends to it.
        """
        a, b = self.deviceOf(LOW), self.deviceOf(HIGH)
        pair = PathResolutionSide(a, HIGH), PathResolutionSide(b, LOW)
        pair[0].to(QPState.RTS, pair[1].qp.number)
        pair[1].to(QPState.RTS, pair[0].qp.number)
        settle(a, b)
        one, two = PathResolutionSide(a, HIGH), PathResolutionSide(b, LOW)
        one.to(QPState.RTS, two.qp.number, timeout=14, retry_cnt=1)
        one.say(1, b"early")
        self.run_(1.0, a, b)
        self.assertEqual(one.statuses(), [(1, RETRIES)])
        one.qp.close()
        three = PathResolutionSide(a, HIGH)
        three.to(QPState.RTS, two.qp.number)
        settle(a, b)
        two.to(QPState.RTS, three.qp.number)
        self.talk(three, two)

    def test_notThereYet(self: Any) -> None:
        """
        An HCA that is not there yet is found when it is, without haste meanwhile; the one
        that waits to be called does not look at all.
        """
        for guids in permutations((LOW, HIGH)):
            a = self.deviceOf(guids[0])
            calls: list[int] = []

            def reach(guid: int, user: Any, calls: list[int] = calls, real: Any = a.fabric.reach) -> Any:
                calls.append(guid)
                return real(guid, user)

            a.fabric.reach = reach
            one = PathResolutionSide(a, guids[1])
            number = 0x1234
            one.to(QPState.RTS, number)
            self.run_(10.0, a)
            self.assertIsNone(one.qp.path)
            if guids[0] == HIGH:
                self.assertEqual((calls, a.timers.deadline()), ([], None))
            else:
                self.assertTrue(20 < len(calls) < 50, len(calls))
            b = self.deviceOf(guids[1])
            two = PathResolutionSide(b, guids[0])
            b.queuePairs[number] = b.queuePairs.pop(two.qp.number)
            two.qp.number = number
            two.to(QPState.RTS, one.qp.number)
            self.run_(1.0, a, b)
            self.talk(one, two)
            a.close()
            b.close()

    def test_dies(self: Any) -> None:
        """
        The end of the peer's HCA fails who is connected; who comes later waits for the next
        HCA with that GUID.
        """
        for guids in permutations((LOW, HIGH)):
            a, b = map(self.deviceOf, guids)
            one, two = PathResolutionSide(a, b.guid), PathResolutionSide(b, a.guid)
            one.to(QPState.RTS, two.qp.number)
            two.to(QPState.RTS, one.qp.number)
            self.talk(one, two)
            b.close()
            one.say(5, b"nobody")
            settle(a)
            self.assertEqual((one.qp.state, one.statuses()), (QPState.ERR, [(5, RETRIES)]))
            self.assertIsInstance(one.consumer.failures[0], PathLostError)
            three = PathResolutionSide(a, guids[1])
            three.to(QPState.RTS, 0x1234)
            self.run_(1.0, a)
            b = self.deviceOf(guids[1])
            four = PathResolutionSide(b, guids[0])
            four.to(QPState.RTS, three.qp.number)
            self.run_(1.0, a, b)
            self.assertEqual(three.qp.path.peer.guid, b.guid)
            self.assertEqual(four.qp.path.peer.guid, a.guid)
            a.close()
            b.close()

    def test_leaves(self: Any) -> None:
        """
        A queue pair that is destroyed, reset or failed while it meets gets no path and is
        forgotten; one that was reset and is ready again does.
        """
        for guids in permutations((LOW, HIGH)):
            a = self.deviceOf(guids[0])
            sides = [PathResolutionSide(a, guids[1]) for _ in range(4)]
            for side in sides:
                side.to(QPState.RTR, 0x1234)
            destroyed, reset, failed, again = (side.qp for side in sides)
            destroyed.close()
            reset.modify(QPState.RESET)
            failed.modify(QPState.ERR)
            again.modify(QPState.RESET)
            sides[3].to(QPState.RTR, 0x1234)
            self.run_(1.0, a)
            b = self.deviceOf(guids[1])
            side = PathResolutionSide(b, guids[0])
            side.to(QPState.RTR, again.number)
            self.run_(1.0, a, b)
            self.assertEqual([qp.path for qp in (destroyed, reset, failed)], [None, None, None])
            self.assertEqual(again.path.peer.guid, b.guid)
            self.assertEqual(again.path.queuePairs(), [again])
            self.assertNoneMeets(a, b)
            a.close()
            b.close()

    def test_anyOrder(self: Any) -> None:
        """
        After any history, in any order (queue pairs ready, sending, reset, devices served or not, paths lost
        at one end or the other), two queue pairs that are made ready have the two ends of one path.
        """
        for seed in range(self.histories):
            try:
                self.disorder(seed)
            except Exception as error:
                raise AssertionError(f"with seed {seed}") from error

    def disorder(self: Any, seed: int) -> None:
        """
        One story of L{test_anyOrder}.
        """
        maker = random.Random(seed)
        a, b = self.deviceOf(LOW), self.deviceOf(HIGH)
        devices = [a, a] if seed % 5 == 4 else [a, b]
        pairs = [
            [PathResolutionSide(devices[0], devices[1].guid), PathResolutionSide(devices[1], devices[0].guid)]
            for _ in range(3)
        ]
        for _ in range(60):
            pair = maker.choice(pairs)
            n = maker.randrange(2)
            side, peer = pair[n], pair[1 - n]
            action = maker.randrange(9)
            if action < 3 and side.qp.state == QPState.RESET:
                side.to(QPState.RTS, peer.qp.number)
            elif action == 3 and side.qp.state == QPState.RTS:
                side.say(1, b"whatever")
            elif action == 4:
                side.qp.modify(QPState.RESET)
            elif action == 5 and a.fabric.name == "shm":
                fabric = side.device.fabric
                if fabric.paths():
                    fabric._lose(maker.choice(fabric.paths()).peerSocket, PathLostError("a test"))
            else:
                turn(side.device)
                if action == 8:
                    self.clock.advance(0.05)
                    side.device.tick(self.clock.seconds())
        self.run_(1.0, a, b)
        for pair in pairs:
            maker.shuffle(pair)
            for side in pair:
                side.qp.modify(QPState.RESET)
            self.run_(1.0, a, b)
            for side, peer in (pair, pair[::-1]):
                side.to(QPState.RTS, peer.qp.number)
                for _ in range(maker.randrange(5)):
                    turn(maker.choice(devices))
            self.run_(1.0, a, b)
            for side in pair:
                side.statuses()
                side.received()
            self.talk(*pair)
        self.assertNoneMeets(a, b)
        a.close()
        b.close()

    def test_bound(self: Any) -> None:
        """
        The HCAs that are waited for are bounded; those that nobody waits for any more do
        not count.
        """
        self.patch(processes, "PENDING_PATHS", 2)
        a = self.deviceOf(LOW)
        sides = [PathResolutionSide(a, HIGH + 2 * n) for n in range(3)]
        for side in sides[:2]:
            side.to(QPState.RTR, 0x1234)
        self.assertRaises(ResourceLimitError, sides[2].to, QPState.RTR, 0x1234)
        same = PathResolutionSide(a, HIGH)
        same.to(QPState.RTR, 0x1235)
        sides[1].qp.modify(QPState.RESET)
        another = PathResolutionSide(a, HIGH + 4)
        another.to(QPState.RTR, 0x1234)
        self.assertEqual(len(a.paths._pendingPaths), 2)
        a.close()
        self.assertNoneMeets(a)

    def test_addresses(self: Any) -> None:
        """
        GIDs that are no HCA's are refused by name.
        """
        a = self.deviceOf(LOW)
        check = a.paths.check
        for gid in (0xFFFF_7F000001, 1):
            error = self.assertRaises(SharedGIDError, check, gid)
            self.assertIn("index 0", str(error))
            self.assertRaises(SharedGIDError, a.reach, gid, None)
        elsewhere = (0xFFFF_C0000201, 0x20010DB8 << 96 | 1, 0xFF02 << 112 | 1, 0xFEC0 << 112 | HIGH)
        for gid in (0, guidGID(0), *elsewhere):
            self.assertRaises(NoRouteError, check, gid)
        self.assertEqual((check(guidGID(LOW)), check(guidGID(HIGH))), (LOW, HIGH))
        self.assertRaises(NoListenerError, a.reach, guidGID(HIGH), None)

    def test_loopback(self: Any) -> None:
        """
        A loopback address made of a GUID leads to its HCA, be it the lower one, and to this one, whoever else
        has it; not while there is none, nor where there are two others.
        """
        a = self.deviceOf(LOW)
        own, gid = loopbackGID(LOW), loopbackGID(HIGH)
        self.assertEqual((gidText(gid), a.paths.check(own)), ("127.128.0.16", LOW))
        self.assertIn(gidText(own), a.gids())
        # Nor to a queue pair of this one that has the number of the absent one's.
        number = PathResolutionSide(a, LOW).qp.number
        error = self.assertRaises(NoRouteError, a.paths.check, gid, number)
        self.assertIn("no HCA of this host has the loopback address", str(error))
        b = self.deviceOf(HIGH)
        one, two = PathResolutionSide(a, HIGH, gid), PathResolutionSide(b, LOW, own)
        for side, other in ((one, two), (two, one)):
            side.to(QPState.RTS, other.qp.number)
        settle(a, b)
        self.talk(one, two)
        self.assertNoneMeets(a, b)
        c = self.deviceOf(HIGH ^ 1 << 40)
        self.assertEqual([device.paths.check(gid) for device in (b, c)], [HIGH, HIGH ^ 1 << 40])
        error = self.assertRaises(SharedGIDError, a.paths.check, gid, number)
        self.assertIn("with index 0, or", str(error))
        c.close()
        self.assertEqual(a.paths.check(gid), HIGH)

    # -- one HCA

    def test_oneHCA(self: Any) -> None:
        """
        Two queue pairs of one HCA are on the two ends of its path to itself, whoever is
        first; the lower number has the end that dialled.
        """
        for first in (0, 1):
            a = self.deviceOf(HIGH)
            sides = [PathResolutionSide(a, HIGH), PathResolutionSide(a, HIGH)]
            numbers = [side.qp.number for side in sides]
            for n in (first, 1 - first):
                sides[n].to(QPState.RTS, numbers[1 - n])
                settle(a)
            self.talk(*sides)
            lower, higher = sorted(sides, key=lambda side: side.qp.number)
            self.assertIs(lower.qp.path, a.fabric._paths[HIGH])
            self.assertIs(lower.qp.path.twin, higher.qp.path)
            self.assertIs(higher.qp.path.twin, lower.qp.path)
            a.close()

    def test_itsOwn(self: Any) -> None:
        """
        A queue pair connected to itself: sends that must wait for a receive keep their
        order, READ and WRITE work in all sizes, and its end leaves nothing.
        """
        a = self.deviceOf(HIGH)
        side = PathResolutionSide(a, HIGH)
        side.to(QPState.RTS, side.qp.number)
        settle(a)
        for id in range(3):
            side.say(id, b"%d" % id)
        settle(a)
        self.assertEqual(side.statuses(), [])
        inboxes = []
        for id in range(3):
            inboxes.append(side.inbox(id))
            self.run_(1.0, a)
            self.assertEqual(side.statuses(), [(id, OK)])
        self.assertEqual([bytes(inbox.view[:1]) for inbox in inboxes], [b"0", b"1", b"2"])
        data = random.Random(4).randbytes(1 << 20)
        for new in (side.register, side.allocate):
            source, target, back = new(data), new(len(data)), new(len(data))
            remote = {"remoteAddress": target.address, "remoteKey": target.remoteKey}
            side.send(7, WRITE, piece(source), **remote)
            side.send(8, READ, piece(back), **remote)
            self.run_(1.0, a)
            self.assertEqual(side.statuses(), [(7, OK), (8, OK)])
            self.assertTrue(bytes(target.view) == bytes(back.view) == data)
        path = side.qp.path
        side.qp.close()
        settle(a)
        self.assertEqual((path.queuePairs(), path.twin.queuePairs()), ([], []))

    def test_itsOwnOrder(self: Any) -> None:
        """
        Messages behind a refused one, of a queue pair that is connected to itself, do not overtake it when a
        receive is posted meanwhile.
        """
        a = self.deviceOf(HIGH)
        side = PathResolutionSide(a, HIGH)
        side.to(QPState.RTS, side.qp.number)
        settle(a)
        side.say(1, b"1")
        side.say(2, b"2")
        a.fabric.attend()
        a.fabric.look()
        a.progress(1)
        inboxes = [side.inbox(id) for id in (3, 4)]
        self.run_(1.0, a)
        self.assertEqual(side.statuses(), [(1, OK), (2, OK)])
        self.assertEqual([bytes(inbox.view[:1]) for inbox in inboxes], [b"1", b"2"])

    def test_itsOwnOffers(self: Any) -> None:
        """
        Memory that is offered at both ends of an HCA's path to itself is not mixed up.
        """
        a = self.deviceOf(HIGH)
        lower, higher = sorted(
            (PathResolutionSide(a, HIGH), PathResolutionSide(a, HIGH)), key=lambda side: side.qp.number
        )
        own = PathResolutionSide(a, HIGH)
        for side, peer in ((lower, higher), (higher, lower), (own, own)):
            side.to(QPState.RTS, peer.qp.number)
        settle(a)
        maker = random.Random(5)
        for side, peer in ((higher, lower), (higher, lower), (own, own), (lower, higher)):
            data = maker.randbytes(100000)
            source, target = side.allocate(data), peer.allocate(len(data))
            side.send(1, WRITE, piece(source), remoteAddress=target.address, remoteKey=target.remoteKey)
            self.run_(1.0, a)
            self.assertEqual(side.statuses(), [(1, OK)])
            self.assertTrue(bytes(target.view) == data)

    def test_itsOwnLost(self: Any) -> None:
        """
        An HCA's path to itself ends at both ends at once, and there is a new one.
        """
        a = self.deviceOf(HIGH)
        side = PathResolutionSide(a, HIGH)
        side.to(QPState.RTS, side.qp.number)
        settle(a)
        for called in (True, False):
            fabric, end = a.fabric, side.qp.path
            if called:
                end = end.twin
            if not hasattr(fabric, "_broken"):
                return  # On lo0 nothing is lost but with the HCA.
            fabric._lose(end.peerSocket, PathLostError("a test"))
            self.assertEqual(fabric.paths(), [])
            self.assertEqual(side.qp.state, QPState.ERR)
            side = PathResolutionSide(a, HIGH)
            side.to(QPState.RTS, side.qp.number)
            settle(a)
            side.inbox(1)
            side.say(2, b"again")
            settle(a)
            self.assertEqual(side.statuses(), [(2, OK)])
