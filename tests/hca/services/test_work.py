"""
Random work on two connected queue pairs: whatever is posted completes exactly once, in order,
and touches nothing but what it names.
"""

from __future__ import annotations

import random
from sys import byteorder
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_cases import bound
from tests.hca.queues.keyed_pair import ALL, End, Pair, piece
from twisted_ib import limits
from twisted_ib.errors import HCAError, MemoryAccessError, PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.path import Refusing
from twisted_ib.hca.memory.windows import WindowType
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode, WindowBind

VERBS = (
    *(SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM) * 2,
    *(SendOpcode.RDMA_READ, SendOpcode.RDMA_READ),
    *(SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD),
    *(SendOpcode.BIND_MW, SendOpcode.LOCAL_INV, SendOpcode.SEND_WITH_INV),
)
INLINE = frozenset(VERBS[:4])
ADD = SendOpcode.ATOMIC_FETCH_AND_ADD
SIZE = 6000
GUARD = 500


class Player:
    """
    One side of the game.

    @ivar sends: what was posted: number and whether signalled, in order.
    @ivar receives: numbers of receives, in order.
    @ivar sendsDone: what completed: number and status.
    @ivar receivesDone: the same of receives.
    @ivar added: what was added to the other side's counter, by number.
    @ivar lone: how many sends of bytes were posted.
    """

    def __init__(self, end: End, maker: random.Random) -> None:
        """
        With memory: guarded on both sides, of which the middle is a region.
        """
        self.end, self.maker = end, maker
        self.sends: list[tuple[int, bool]] = []
        self.receives: list[int] = []
        self.sendsDone: list[tuple[int, WCStatus]] = []
        self.receivesDone: list[tuple[int, WCStatus]] = []
        self.buffers = [bytearray(b"\xaa" * (SIZE + 2 * GUARD)) for _ in range(2)]
        middle = [memoryview(buffer)[GUARD : GUARD + SIZE] for buffer in self.buffers]
        segment = bytearray(1)  # Only its being there counts; nothing is offered.
        self.regions = [end.memory.register(view, int(ALL), end.pd, segment=segment) for view in middle]
        self.gone: set[int] = set()
        self.counter = end.memory.register(bytearray(8), int(ALL), end.pd)
        self.results = end.memory.register(bytearray(8), int(ALL), end.pd)
        self.added: dict[int, int] = {}
        self.lone = 0

    def send(self, other: Player) -> None:
        """
        Post a send, now and then a wrong one.
        """
        maker, number = self.maker, len(self.sends)
        verb, region = maker.choice(VERBS), maker.choice(self.regions)
        target = maker.choice(other.regions)
        size = maker.choice((0, 1, 50, 300, 1200, 3000))
        at, there = maker.randrange(SIZE - size + 1), maker.randrange(SIZE - size + 1)
        wrong = maker.random()
        key = target.key ^ (wrong < 0.004)
        address = target.address + (there if wrong > 0.008 else SIZE - size + 1)
        signalled = maker.random() < 0.7
        flags = int(SendFlags.SIGNALED) if signalled else 0
        if maker.random() < 0.1:
            flags |= int(SendFlags.FENCE)
        fields: dict[str, Any] = {"flags": flags, "remoteAddress": address, "remoteKey": key}
        pieces = [piece(region, at, size)]
        if verb in INLINE and size <= 1000 and maker.random() < 0.3:
            fields["inline"], pieces = bytes(size), []
        elif verb == SendOpcode.ATOMIC_CMP_AND_SWP:
            pieces = [piece(self.results)]
            fields["remoteAddress"] = target.address + (there & ~7) % (SIZE - 8)
        elif verb == ADD:
            pieces = [piece(self.results)]
            fields.update(remoteKey=other.counter.key, remoteAddress=other.counter.address)
            fields["compare"] = 1 + maker.randrange(1000)
        else:
            pieces = self.windows(other, verb, fields, pieces)
        try:
            self.end.send(number, verb, *pieces, **fields)
        except (QueuePairError, ResourceLimitError):
            return
        self.sends.append((number, signalled))
        if verb == ADD:
            self.added[number] = fields["compare"]

    def windows(
        self, other: Player, verb: SendOpcode, fields: dict[str, Any], pieces: list[SGE]
    ) -> list[SGE]:
        """
        The windows for a request that binds or invalidates memory.

        @return: its pieces.
        """
        if verb == SendOpcode.BIND_MW:
            window = self.end.memory.allocateWindow(self.end.pd, WindowType.TYPE_1)
            fields["bind"] = WindowBind(window, self.counter, self.counter.address, 8, 4)
        elif verb == SendOpcode.LOCAL_INV:
            fields["invalidateKey"] = bound(self.end, self.counter, 0, 8).key
        elif verb == SendOpcode.SEND_WITH_INV:
            fields["invalidateKey"] = bound(other.end, other.counter, 0, 8).key
            return pieces
        else:
            return pieces
        return []

    def sendBytes(self) -> None:
        """
        Send bytes without a request.
        """
        size = self.maker.choice((0, 5, 1500))
        try:
            self.end.work.postInline(bytes(size), size, self.maker.choice((None, 5)))
        except (QueuePairError, ResourceLimitError):
            return
        self.lone += 1

    def receive(self) -> None:
        """
        Post a receive, now and then one that is too small.
        """
        size = SIZE if self.maker.random() < 0.97 else 100
        try:
            self.end.receive(len(self.receives), piece(self.maker.choice(self.regions), 0, size))
        except (QueuePairError, ResourceLimitError):
            return
        self.receives.append(len(self.receives))

    def collect(self) -> None:
        """
        Take completions.
        """
        self.sendsDone += self.end.statuses()
        self.receivesDone += [(c.workRequestID, c.status) for c in self.end.received()]


class WorkTests(SynchronousTestCase):
    """
    Games of random length, each with its seed.
    """

    seeds = 100

    def setUp(self) -> None:
        """
        Short records, so that most messages have several.
        """
        self.patch(limits, "INLINE_MESSAGE", 700)

    def play(self, seed: int) -> None:
        """
        Play a game and look at its result.
        """
        maker = random.Random(seed)
        pair = Pair(
            capacity=maker.choice((800, 3000, 20000)),
            depth=4096,
            rnr_retry=maker.choice((0, 3, 7, 7, 7, 7)),
            retry_cnt=maker.choice((0, 3)),
            min_rnr_timer=maker.choice((1, 12)),
            shared=maker.choice((0, 0, 4000)),
        )
        players = [Player(pair.a, maker), Player(pair.b, maker)]
        end = self.moves(pair, players, maker)
        for player in players:
            for _ in range(120):
                player.receive()
        try:
            pair.settle(2000)
        except AssertionError:
            end = "unsettled"
        for end_, path in ((pair.b, pair.a.path), (pair.a, pair.b.path)):
            del end_
            path.lost(PathLostError("the game is over"))
        for player in players:
            player.collect()
            self.judge(player, end, seed)
        self.judgeCounters(players, f"seed {seed}, {end}")

    def moves(self, pair: Pair, players: list[Player], maker: random.Random) -> str:
        """
        Make moves until something ends the game, if it does.

        @return: what.
        """
        for _ in range(maker.randrange(20, 400)):
            one, two = maker.sample(players, 2)
            move = maker.random()
            if move < 0.27:
                one.send(two)
            elif move < 0.3:
                one.sendBytes()
            elif move < 0.5:
                one.receive()
            elif move < 0.9:
                one.end.path.progress(maker.randrange(1, 6))
            elif move < 0.97:
                pair.pass_(maker.choice((0.0, 0.00001, 0.001, 0.1)))
            elif move < 0.975:
                one.collect()
            elif move < 0.9765:
                one.end.qp.modify(QPState.ERR)
                return "error"
            elif move < 0.978:
                pair.die(one.end)
                return "death"
            elif move < 0.98 and not one.gone:
                one.gone.add(1)
                one.end.memory.deregister(one.regions.pop())
        return "settled"

    def judge(self, player: Player, end: str, seed: int) -> None:
        """
        Every signalled send and every receive completed once, in order; the first bad end
        was the queue pair's; nothing outside was touched.
        """
        about = f"seed {seed}, {end}"
        done = [number for number, _ in player.sendsDone]
        self.assertEqual(done, sorted(set(done)), about)
        bad = {number for number, status in player.sendsDone if status != WCStatus.SUCCESS}
        expected = [number for number, signalled in player.sends if signalled or number in bad]
        self.assertEqual(done, expected, about)
        numbers = [number for number, _ in player.receivesDone]
        if player.end.shared is None:
            self.assertEqual(numbers, player.receives, about)
        else:
            left = [request.id for request in player.end.shared._requests]
            self.assertEqual(numbers + left, player.receives, about)
        for statuses in (player.sendsDone, player.receivesDone):
            kinds = [status for _, status in statuses]
            while kinds and kinds[0] == WCStatus.SUCCESS:
                del kinds[0]
            self.assertNotIn(WCStatus.SUCCESS, kinds, about)
            others = [status for status in kinds if status != WCStatus.WR_FLUSH_ERR]
            self.assertLessEqual(len(others), 1, about)
        for buffer in player.buffers:
            self.assertEqual(buffer[:GUARD] + buffer[-GUARD:], b"\xaa" * 2 * GUARD, about)
        self.assertEqual(player.end.qp.state, QPState.ERR)
        self.assertIsNone(player.end.timers.deadline())
        self.assertLessEqual(len(player.end.consumer.failures), 1, about)

    def judgeCounters(self, players: list[Player], about: str) -> None:
        """
        Each addition that completed was done once; of the others one that was on its way
        may have been done.
        """
        for one, two in (players, players[::-1]):
            value = int.from_bytes(two.counter.view, byteorder)
            failed = [number for number, status in one.sendsDone if status != WCStatus.SUCCESS]
            end = failed[0] if failed else len(one.sends)
            sums = [sum(add for number, add in one.added.items() if number < end)]
            for number, add in one.added.items():
                if number >= end:
                    sums.append(sums[-1] + add)
            self.assertIn(value, sums, about)

    def test_games(self) -> None:
        """
        Each seed's result is right.
        """
        for seed in range(self.seeds):
            self.play(seed)

    def test_errors(self: Any) -> None:
        """
        The errors that the games catch are the declared ones.
        """
        for error in (QueuePairError, ResourceLimitError, MemoryAccessError, PathLostError):
            self.assertTrue(issubclass(error, HCAError))


class LeavingTests(SynchronousTestCase):
    """
    A requester leaves at any time, its requests refused, lost or done; its peer may be late.
    """

    seeds = 400

    def test_resumed(self) -> None:
        """
        The peer does not go on dropping what comes to the number: the next requester's would be lost.
        """
        settled = [self.leave(seed) for seed in range(self.seeds)]
        self.assertEqual(set(settled), {False, True})

    def leave(self, seed: int) -> bool:
        """
        Post and progress at random, then leave.

        @return: whether everything that was sent was done by then.
        """
        maker = random.Random(seed)
        pair = Pair(maker.choice((200, 3000, 1 << 18)), connect=False)
        one, two = pair.a, pair.b
        one.to(QPState.RTS, 18, rnr_retry=maker.choice((0, 1, 7)), retry_cnt=maker.choice((0, 1, 3)))
        isLate = maker.random() < 0.4
        if not isLate:
            two.to(QPState.RTS, 17)
        here, there = one.register(70000), two.register(70000)
        for number in range(maker.randrange(1, 16)):
            move = maker.randrange(10)
            try:
                if move < 3:
                    one.send(number, SendOpcode.SEND, piece(here, 0, maker.choice((0, 1, 100, 5000))))
                elif move == 3:
                    target = {"remoteAddress": there.address, "remoteKey": there.remoteKey}
                    one.send(number, SendOpcode.RDMA_READ, piece(here, 0, maker.choice((1, 4000))), **target)
                elif move == 4 and not isLate:
                    two.receive(number, piece(there, 0, 50000))
                elif move == 5:
                    pair.turn()
                elif move < 8:
                    (one if move == 6 else two).path.progress()
                elif move == 8:
                    pair.pass_(maker.choice((0.0001, 0.01, 1)))
                elif isLate and maker.random() < 0.5:
                    two.to(QPState.RTS, 17)
                    isLate = False
            except QueuePairError:
                pass
        isSettled: bool = one.work.isSettled()
        how = maker.choice((QPState.RESET, QPState.ERR, None))
        if how is None:
            one.qp.close()
        else:
            one.qp.modify(how)
        for _ in range(20):
            pair.pass_(0.5)
        isRefused = isinstance(two.path.table.get(18), Refusing) or any(two.path.absent.values())
        self.assertFalse(isRefused, f"seed {seed}, {how}")
        return isSettled
