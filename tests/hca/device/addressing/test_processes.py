"""
Tests of L{twisted_ib.hca.device.addressing.processes} on a scripted fabric.  Real fabrics are tested by
L{tests.contracts.pathresolution}.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import (
    LayoutError,
    NoListenerError,
    NoRouteError,
    PathLostError,
    PeerIdentityError,
    PeerRefusedError,
    ResourceLimitError,
    RunDirectoryError,
    SharedGIDError,
    SilentPeerError,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LOCAL
from twisted_ib.hca.device.addressing import processes
from twisted_ib.hca.device.addressing.processes import ProcessResolution
from twisted_ib.hca.wire.grh import guidGID, loopbackGID

OWN, LOWER, HIGHER = 0x501, 0x101, 0x901


class Search:
    """
    A search that goes on.
    """

    cancelled = False

    def cancel(self) -> None:
        """
        It is not wanted any more.
        """
        self.cancelled = True


class FakeFabric:
    """
    Answers from lists.

    @ivar answers: The results of L{reach}: an exception to raise, a path to give, a L{Search}.
    @ivar proofs: The results of L{proves}, one after the other; the last for ever.
    @ivar users: The users that searched.
    @ivar listed: The results of L{guids}.
    """

    def __init__(self) -> None:
        self.listed: tuple[set[int], set[int]] = set(), set()
        self.answers: list[Any] = []
        self.proofs: list[bool | None] = [True]
        self.users: list[Any] = []
        self.asked = 0

    def reach(self, guid: int, user: Any) -> Any:
        self.users.append(user)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Search):
            user.pathReady(answer)
            return Search()
        return answer

    def guids(self, gid: int) -> tuple[set[int], set[int]]:
        ours, others = self.listed
        return set(ours), set(others)

    def proves(self, path: Any, guid: int) -> bool | None:
        self.asked += 1
        return self.proofs.pop(0) if len(self.proofs) > 1 else self.proofs[0]


class FakeDevice:
    """
    As much of a device as paths need.
    """

    traits = LOCAL

    def __init__(self) -> None:
        self.guid = OWN
        self.clock = Clock()
        self.timers = Timers(self.clock.seconds)
        self.fabric = FakeFabric()
        self.counters: Counter[str] = Counter()
        self.queuePairs: dict[int, Any] = {}
        self.paths: Any = ProcessResolution(self)
        # None is of this host.
        self.paths.isLocal = lambda address: False

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def wait(self, seconds: float) -> None:
        """
        Time passes.
        """
        self.clock.advance(seconds)
        self.timers.tick(self.clock.seconds())


class FakeQueuePair:
    """
    A queue pair in RTR.

    @ivar found: The paths that it was given.
    @ivar failures: Why it was given none.
    """

    def __init__(self, guid: int, number: int = 20, remote: int = 30) -> None:
        self.vector = SimpleNamespace(gid=guidGID(guid))
        self.number, self.remote = number, remote
        self.state = QPState.RTR
        self.path: Any = None
        self.found: list[Any] = []
        self.failures: list[Exception] = []
        self.error: Exception | None = None

    def pathFound(self, path: Any) -> None:
        """
        It is found.
        """
        self.path = path
        self.found.append(path)
        if self.error is not None:
            raise self.error

    def pathFailed(self, error: Exception) -> None:
        """
        It is given up.
        """
        self.failures.append(error)
        if self.error is not None:
            raise self.error


class FakePath:
    """
    A path, as far as it is looked at.
    """

    def __init__(self, guid: int) -> None:
        self.peer = SimpleNamespace(guid=guid)
        self.alive = True
        self.twin: Any = None


class MeetingTests(SynchronousTestCase):
    """
    Searches that fail, callers that prove nothing, and users that fail.
    """

    def setUp(self) -> None:
        """
        A device.
        """
        self.device = FakeDevice()
        self.paths, self.fabric = self.device.paths, self.device.fabric

    def resolvePath(self, guid: int, **fields: int) -> Any:
        """
        @return: A queue pair that meets.
        """
        queuePair: Any = FakeQueuePair(guid, **fields)
        self.paths.resolvePath(queuePair)
        return queuePair

    def assertDone(self) -> None:
        """
        Nobody meets, and no timer runs.
        """
        self.assertEqual((self.paths._pendingPaths, self.paths._met), ({}, {}))
        self.assertIsNone(self.device.timers.deadline())

    def test_oneSearch(self) -> None:
        """
        All queue pairs that wait for one HCA share one search.
        """
        search = Search()
        self.fabric.answers = [search]
        pairs = [self.resolvePath(HIGHER) for _ in range(3)]
        self.assertEqual(len(self.fabric.users), 1)
        path = FakePath(HIGHER)
        self.fabric.users[0].pathReady(path)
        self.assertEqual([pair.found for pair in pairs], [[path]] * 3)
        self.assertFalse(search.cancelled)
        self.assertDone()

    def test_retried(self) -> None:
        """
        Errors that may pass are retried, in pauses that double up to a bound.
        """
        errors = [
            NoListenerError("nobody"),
            ResourceLimitError("full"),
            PathLostError("gone"),
            SilentPeerError("silent"),
            OSError(24, "no descriptor"),
            NoListenerError("nobody"),
            NoListenerError("nobody"),
        ]
        path = FakePath(HIGHER)
        self.fabric.answers = [*errors, path]
        pair = self.resolvePath(HIGHER)
        pauses = []
        while not pair.found:
            before = self.device.clock.seconds()
            deadline = self.device.timers.deadline()
            assert deadline is not None
            self.device.wait(deadline - before)
            pauses.append(round(deadline - before, 6))
        first, most = processes.PENDING_PATH_SECONDS, processes.PENDING_PATH_SECONDS_MOST
        self.assertEqual(pauses, [min(first * 2**n, most) for n in range(len(errors))])
        self.assertEqual(pauses[-1], most)
        self.assertEqual((pair.found, pair.failures), ([path], []))
        self.assertDone()

    def test_later(self) -> None:
        """
        The same when a search fails after a while.
        """
        path = FakePath(HIGHER)
        self.fabric.answers = [Search(), path]
        pair = self.resolvePath(HIGHER)
        self.device.wait(100.0)
        self.assertEqual(len(self.fabric.users), 1)
        self.fabric.users[0].connectFailed(PathLostError("gone"))
        self.device.wait(processes.PENDING_PATH_SECONDS)
        self.assertEqual(pair.found, [path])
        self.assertDone()

    def test_final(self) -> None:
        """
        Final errors are reported at once, and to all.
        """
        for error in (
            LayoutError("x"),
            PeerIdentityError("x"),
            PeerRefusedError("x"),
            RunDirectoryError("x"),
        ):
            self.fabric.answers = [Search()]
            pairs = [self.resolvePath(HIGHER), self.resolvePath(HIGHER)]
            self.fabric.users.pop().connectFailed(error)
            self.assertEqual([pair.failures for pair in pairs], [[error], [error]])
            self.assertDone()
            self.fabric.answers = [error]
            self.assertEqual(self.resolvePath(HIGHER).failures, [error])
            self.assertDone()

    def test_deadPath(self) -> None:
        """
        A path that is lost when it is found is looked for again; so is one to ourselves
        that has no other end.
        """
        for guid in (HIGHER, OWN):
            bad, good = FakePath(guid), FakePath(guid)
            if guid == HIGHER:
                bad.alive = False
            else:
                good.twin = FakePath(guid)
            self.fabric.answers = [bad, good]
            pair = self.resolvePath(guid)
            self.assertEqual(pair.found, [])
            self.device.wait(processes.PENDING_PATH_SECONDS)
            self.assertEqual(pair.found, [good])
            self.assertDone()

    def test_ends(self) -> None:
        """
        Within one HCA the lower number has the end that dialled, and so has a queue pair that is connected to
        itself.
        """
        path, twin = FakePath(OWN), FakePath(OWN)
        path.twin, twin.twin = twin, path
        self.fabric.answers = [path] * 3
        ends = [
            self.resolvePath(OWN, number=number, remote=remote).found
            for number, remote in ((20, 21), (21, 20), (22, 22))
        ]
        self.assertEqual(ends, [[path], [twin], [path]])

    def test_cancelled(self) -> None:
        """
        When no queue pair waits any more the search is cancelled, or not repeated.
        """
        search = Search()
        self.fabric.answers = [search]
        pair = self.resolvePath(HIGHER)
        self.paths.leave(pair)
        self.paths.leave(pair)
        self.assertTrue(search.cancelled)
        self.assertDone()
        self.fabric.answers = [NoListenerError("nobody")]
        pair = self.resolvePath(HIGHER)
        self.paths.queuePairClosed(pair)
        self.assertDone()
        self.fabric.answers = [NoListenerError("nobody"), NoListenerError("nobody")]
        pair = self.resolvePath(HIGHER)
        pair.state = QPState.ERR
        self.device.wait(1.0)
        self.assertDone()

    def test_another(self) -> None:
        """
        A queue pair that is told another GID meets that one only; one that is given the
        same anew stays.
        """
        search = Search()
        self.fabric.answers = [search, Search(), Search()]
        pair = self.resolvePath(HIGHER)
        pair.vector = SimpleNamespace(gid=guidGID(HIGHER + 2))
        self.paths.resolvePath(pair)
        self.assertTrue(search.cancelled)
        self.assertEqual(list(self.paths._pendingPaths), [HIGHER + 2])
        self.paths.resolvePath(pair)
        self.assertEqual(list(self.paths._pendingPaths), [HIGHER + 2])
        self.fabric.users[0].pathReady(FakePath(HIGHER))
        self.assertEqual(pair.found, [])

    def test_failingUser(self) -> None:
        """
        A queue pair that fails over its path, or over the news that there is none, keeps no other from
        theirs.
        """
        for call, given in ("pathReady", FakePath(HIGHER)), ("connectFailed", LayoutError("x")):
            self.fabric.answers = [Search()]
            pairs = [self.resolvePath(HIGHER) for _ in range(3)]
            pairs[0].error = ZeroDivisionError()
            self.assertRaises(ZeroDivisionError, getattr(self.fabric.users.pop(), call), given)
            self.assertEqual([pair.found + pair.failures for pair in pairs], [[given]] * 3)
            self.assertDone()

    # -- being called

    def test_called(self) -> None:
        """
        The HCA with the higher GUID waits, without a timer, and accepts a caller that is proven; the fabric
        is asked once for each.
        """
        pair = self.resolvePath(LOWER)
        self.assertIsNone(self.device.timers.deadline())
        path = FakePath(LOWER)
        self.paths.pathAccepted(FakePath(LOWER + 2))
        self.paths.pathAccepted(FakePath(HIGHER))
        self.paths.pathAccepted(FakePath(OWN))
        self.paths.pathAccepted(path)
        self.assertEqual(set(self.paths._callers), {LOWER, LOWER + 2})
        # Of one that has called nothing else need be asked.
        self.paths.isLocal = None
        self.assertEqual((pair.found, self.resolvePath(LOWER).found), ([path], [path]))
        self.assertEqual((self.fabric.asked, self.fabric.users), (1, []))
        self.assertDone()

    def test_unproven(self) -> None:
        """
        A caller with a false GUID is passed over, for good, and counted; the real one gets the queue pair.
        """
        self.fabric.proofs = [False, True]
        pair = self.resolvePath(LOWER)
        liar, path = FakePath(LOWER), FakePath(LOWER)
        self.paths.pathAccepted(liar)
        self.assertEqual((pair.found, self.device.counters["callers_unproven"]), ([], 1))
        self.assertIsNone(self.device.timers.deadline())
        self.paths.pathAccepted(path)
        self.assertEqual(pair.found, [path])
        self.paths.pathLost(path)
        self.assertEqual(self.resolvePath(LOWER).found, [])
        self.assertEqual(self.fabric.asked, 2)
        self.paths.pathLost(liar)
        self.paths.pathLost(liar)
        self.assertEqual((self.paths._callers, self.paths._proofs), ({}, {}))

    def test_latest(self) -> None:
        """
        Of several calls of one HCA the latest counts: it has given up the others.
        """
        paths = [FakePath(LOWER), FakePath(LOWER)]
        for path in paths:
            self.paths.pathAccepted(path)
        self.assertEqual(self.resolvePath(LOWER).found, paths[1:])

    def test_proofLater(self) -> None:
        """
        When a caller's GUID cannot be verified now, that is tried again.
        """
        self.fabric.proofs = [None, None, True]
        path = FakePath(LOWER)
        self.paths.pathAccepted(path)
        self.assertEqual(self.fabric.asked, 0)
        pair = self.resolvePath(LOWER)
        self.assertEqual((pair.found, self.fabric.asked, self.paths._proofs), ([], 1, {}))
        self.device.wait(processes.PENDING_PATH_SECONDS)
        self.assertEqual((pair.found, self.fabric.asked), ([], 2))
        self.device.wait(2 * processes.PENDING_PATH_SECONDS)
        self.assertEqual(pair.found, [path])
        self.assertDone()

    def test_deadCaller(self) -> None:
        """
        A caller that is dead, and not buried yet, is not taken.
        """
        path = FakePath(LOWER)
        path.alive = False
        self.paths.pathAccepted(path)
        pair = self.resolvePath(LOWER)
        self.assertEqual((pair.found, self.paths._proofs), ([], {}))
        self.paths.pathLost(path)
        self.paths.pathAccepted(FakePath(LOWER))
        self.assertEqual(len(pair.found), 1)

    def test_closed(self) -> None:
        """
        When the device closes nothing is looked for any more.
        """
        search = Search()
        self.fabric.answers = [search, NoListenerError("nobody")]
        for guid in (HIGHER, HIGHER + 2, LOWER):
            self.resolvePath(guid)
        self.paths.close()
        self.assertTrue(search.cancelled)
        self.assertDone()


class GroupTests(SynchronousTestCase):
    """
    Datagrams to multicast groups: a copy for each member.
    """

    GROUP = 0xFF0E << 112 | 5

    def setUp(self) -> None:
        """
        A device, whose paths to members note what is sent.
        """
        self.device: Any = FakeDevice()
        self.sent: list[Any] = []
        self.held: list[int] = []
        self.device.addressPaths = SimpleNamespace(
            hold=self.hold, release=lambda way: self.held.remove(way.key), pathLost=None
        )
        self.members: Any = ()
        self.device.fabric.members = lambda gid: self.found(gid)

    def hold(self, key: int) -> Any:
        """
        @return: the path to one.
        """
        self.held.append(key)
        return SimpleNamespace(key=key, send=lambda *arguments: self.sent.append((key, arguments)))

    def found(self, gid: int) -> Any:
        """
        @return: the members, or what hinders.
        """
        self.assertEqual(gid, self.GROUP)
        if isinstance(self.members, Exception):
            raise self.members
        return self.members

    def group(self, gid: int = GROUP) -> Any:
        """
        @return: what a user gets.
        """
        got: list[Any] = []
        user: Any = SimpleNamespace(pathReady=got.append)
        self.assertIsNone(self.device.paths.reach(gid, user))
        return got[0]

    def test_members(self) -> None:
        """
        Each has a copy; paths are held to those that are there now, and while they cannot be read the last
        known ones are.
        """
        group = self.group()
        self.assertIs(self.group(), group)
        lower, higher = guidGID(LOWER), guidGID(HIGHER)
        for members, reached in (
            ((LOWER, HIGHER), [lower, higher]),
            (RunDirectoryError("unread"), [lower, higher]),
            ((HIGHER,), [higher]),
            ((HIGHER, OWN), [higher, guidGID(OWN)]),
            ((), []),
        ):
            self.members = members
            self.sent.clear()
            self.assertIs(group.post(2, b"h", b"p", 1), True)
            self.assertEqual(self.sent, [(key, (2, b"h", b"p", 1)) for key in reached])
            self.assertEqual(self.held, reached)
        self.assertEqual(self.device.counters, {"groups_unread": 1})
        group.wantSpace(None)
        group.wantNoSpace(None)

    def test_bound(self) -> None:
        """
        The oldest of too many groups is let go: its user sees that and asks again; a close lets go of all.
        """
        self.patch(limits, "MULTICAST_GROUPS", 2)
        self.members = (LOWER,)
        oldest = self.group()
        oldest.post(2, b"", b"", 0)
        others = [self.group(self.GROUP + number) for number in (1, 2)]
        self.assertEqual((oldest.alive, self.held), (False, []))
        self.assertEqual([each.alive for each in others], [True, True])
        self.assertIsNot(self.group(), oldest)
        self.assertEqual([each.alive for each in others], [False, True])
        self.device.paths.close()
        self.assertFalse(others[1].alive)

    def test_check(self) -> None:
        """
        A GID leads to one HCA, or the reason says why not: a loopback address that nobody has, one of this
        host, one of a group, one of another prefix.
        """
        paths, fabric = self.device.paths, self.device.fabric
        self.patch(processes, "localAddresses", lambda: ["127.128.0.9"])
        self.assertEqual(paths.check(guidGID(HIGHER)), HIGHER)
        for gid, text in (
            (loopbackGID(HIGHER), "loopback address 127.128.4.128"),
            (self.GROUP, "ff0e::5"),
            (0xFEC0 << 112 | HIGHER, "fec0::901"),
            (guidGID(0), "fe80::"),
        ):
            error = self.assertRaises(NoRouteError, paths.check, gid)
            self.assertIn(text, str(error))
        paths.isLocal = lambda address: address == "127.128.0.9"
        # An interface has this loopback address: all HCAs share it, but for a queue pair of our own.
        shared = 0xFFFF << 32 | 0x7F800009
        self.device.queuePairs[20] = object()
        for number in (0, 20):
            self.assertRaises(SharedGIDError, paths.check, shared, number)
        paths.isLocal = lambda address: address == "10.0.0.1"
        own = 0xFFFF << 32 | 0x0A000001
        self.assertEqual(paths.check(own, 20), OWN)
        error = self.assertRaises(SharedGIDError, paths.check, own, 21)
        self.assertIn("GID 10.0.0.1 is an address of this host", str(error))
        self.assertEqual(paths.check(loopbackGID(OWN)), OWN)
        search, user = Search(), object()
        for reach in (paths.reach, paths.reachHCA):
            fabric.answers = [search]
            self.assertIs(reach(guidGID(HIGHER), user), search)
        self.assertEqual(fabric.users, [user, user])


class LoopbackAddressTests(SynchronousTestCase):
    """
    A loopback address that several GUIDs make, as another user may choose his.
    """

    honest, chosen = 0x901, 0x901 ^ 1 << 40

    def setUp(self) -> None:
        """
        A device whose GUID is above them, and an address of the host.
        """
        self.device = FakeDevice()
        self.device.guid = 1 << 60
        self.paths: Any = ProcessResolution(self.device)
        self.paths.isLocal = lambda address: address.startswith("127.")
        self.gid = loopbackGID(self.honest)
        self.assertEqual(self.gid, loopbackGID(self.chosen))

    def check(self, ours: set[int], others: set[int]) -> int:
        """
        @return: the GUID that is found where these are listed, 0 if none is.
        """
        self.device.fabric.listed = ours, others
        try:
            return int(self.paths.check(self.gid))
        except SharedGIDError:
            return 0

    def test_ownUser(self) -> None:
        """
        HCAs of other users do not hide one of this user; two of this user are no answer, and two of others
        are none.
        """
        honest, chosen = {self.honest}, {self.chosen}
        self.assertEqual(self.check(honest, chosen), self.honest)
        self.assertEqual(self.check(honest | chosen, set()), 0)
        self.assertEqual(self.check(set(), honest | chosen), 0)
        self.assertEqual(self.check(set(), chosen), self.chosen)

    def test_called(self) -> None:
        """
        One that called does not come before one of this user, nor before others; others are not taken for
        one that called and has no entry.
        """
        self.paths.pathAccepted(FakePath(self.chosen))
        self.assertEqual(self.check({self.honest}, set()), self.honest)
        self.assertEqual(self.check(set(), {self.honest}), 0)
        self.assertEqual(self.check(set(), {self.chosen}), self.chosen)
        self.assertEqual(self.check(set(), set()), self.chosen)

    def test_named(self) -> None:
        """
        One that a queue pair waits for comes before others, even while it has no entry, but not before one
        of this user.
        """
        self.paths.resolvePath(FakeQueuePair(self.honest))
        self.paths.pathAccepted(FakePath(self.chosen))
        self.assertEqual(self.check(set(), {self.chosen}), self.honest)
        self.assertEqual(self.check(set(), {self.honest, self.chosen}), self.honest)
        self.assertEqual(self.check({self.chosen}, {self.honest}), self.chosen)

    def test_own(self) -> None:
        """
        The device's own address is its own, whoever else has it.
        """
        self.paths.guid = self.chosen
        self.assertEqual(self.check({self.honest}, set()), self.chosen)
