"""
Random work on two connected queue pairs: whatever is posted completes exactly once, in order,
and touches nothing but what it names.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.keyed_pair import ALL, End, Pair, piece
from twisted_ib import limits
from twisted_ib.errors import HCAError, MemoryAccessError, PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.core.completion import WCStatus
from twisted_ib.hca.core.requests import SendFlags, SendOpcode
from twisted_ib.hca.core.states import QPState

VERBS = (
    SendOpcode.SEND,
    SendOpcode.SEND_WITH_IMM,
    SendOpcode.RDMA_WRITE,
    SendOpcode.RDMA_WRITE_WITH_IMM,
    SendOpcode.RDMA_READ,
)
SIZE = 6000
GUARD = 500


class Player:
    """
    One side of the game.

    @ivar sends: what was posted: number and whether signalled, in order.
    @ivar receives: numbers of receives, in order.
    @ivar sendsDone: what completed: number and status.
    @ivar receivesDone: the same of receives.
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
        try:
            self.end.send(
                number, verb, piece(region, at, size), flags=flags, remoteAddress=address, remoteKey=key
            )
        except (QueuePairError, ResourceLimitError):
            return
        self.sends.append((number, signalled))

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

    def moves(self, pair: Pair, players: list[Player], maker: random.Random) -> str:
        """
        Make moves until something ends the game, if it does.

        @return: what.
        """
        for _ in range(maker.randrange(20, 400)):
            one, two = maker.sample(players, 2)
            move = maker.random()
            if move < 0.3:
                one.send(two)
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
        self.assertEqual(numbers, player.receives, about)
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

    def test_games(self) -> None:
        """
        Seeds 0 to 399.
        """
        for seed in range(400):
            self.play(seed)

    def test_errors(self: Any) -> None:
        """
        What is caught in the games is declared.
        """
        for error in (QueuePairError, ResourceLimitError, MemoryAccessError, PathLostError):
            self.assertTrue(issubclass(error, HCAError))
