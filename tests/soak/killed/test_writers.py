"""
RDMA WRITEs that the kernel copies from one process into the other (L{DirectWrites
<twisted_ib.hca.fabric.shm.sharedregions.DirectWrites>}), amid which one of both is killed, or takes back what
it had granted.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import User, turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.descriptors import descriptors, descriptorsBefore, fork
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.shm.sharedregions import WRITES
from twisted_ib.hca.host import libc
from twisted_ib.hca.memory.access import LOCAL_WRITE
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

MISSING = libc.available()
SERVICE = 0x1_0998
SIZE = limits.PULL_MOST
#: Octets in front of the region and behind it, which nobody may write.
EDGE = 4096
ROUNDS = 100
#: The region is deregistered, loses its right; the queue pair fails, loses its right, is closed: so the
#: writer is told.
WAYS = (
    *(WCStatus.REM_ACCESS_ERR, WCStatus.REM_ACCESS_ERR),
    *(WCStatus.RETRY_EXC_ERR, WCStatus.REM_INV_REQ_ERR, WCStatus.RETRY_EXC_ERR),
)
#: For how long memory must not change any more, in seconds.
STILL_SECONDS = 0.003


class End:
    """
    One of both processes.

    @ivar device: its device.
    @ivar side: its end of the connection of this round.
    """

    side: DeviceSide

    def __init__(self, hear: int, tell: int) -> None:
        """
        @param hear: a pipe from the other.
        @param tell: one to it.
        """
        self._hear, self._tell = hear, tell
        self._lines = b""
        self.device = Device("shm0")

    def told(self) -> list[int]:
        """
        Serve the other until it tells something.

        @return: the numbers.
        """
        self.until(self._isTold)
        line, _, self._lines = self._lines.partition(b"\n")
        numbers: list[int] = json.loads(line)
        return numbers

    def _isTold(self) -> bool:
        if b"\n" not in self._lines and select.select([self._hear], [], [], 0)[0]:
            octets = os.read(self._hear, 1000)
            assert octets, "the other has ended"
            self._lines += octets
        return b"\n" in self._lines

    def tell(self, *numbers: int) -> None:
        """
        Tell the other.
        """
        os.write(self._tell, json.dumps(numbers).encode() + b"\n")

    def until(self, condition: Callable[[], object]) -> None:
        """
        Go on until then.
        """
        waitUntil(condition, self.turn)

    def turn(self) -> None:
        """
        Do what there is to do.
        """
        turn(self.device)
        self.device.tick(self.device.clock())

    def listen(self) -> Any:
        """
        @return: the path that the other brings.
        """
        fabric = self.device.fabric
        fabric.publish(SERVICE, "127.0.0.1")
        self.tell()
        self.until(fabric.paths)
        return fabric.paths()[0]

    def connect(self) -> Any:
        """
        @return: the path to the other.
        """
        self.told()
        user = User()
        self.device.fabric.resolve(SERVICE, "127.0.0.1", user)
        self.until(lambda: user.path or user.error)
        assert user.path is not None, user.error
        return user.path

    def pair(self, path: Any) -> None:
        """
        Have a connection.
        """
        self.side = DeviceSide(self.device, path)
        self.tell(self.side.qp.number)
        self.side.to(QPState.RTS, *self.told())

    def write(self, source: Any, address: int, key: int) -> list[tuple[int, WCStatus]]:
        """
        Write values without an end, each all over the memory, until one fails, or the queue pair does.

        @return: what was not well.
        """
        side, value = self.side, 0
        while True:
            value = value % 250 + 1
            source.view[:] = bytes([value]) * SIZE
            side.send(value, SendOpcode.RDMA_WRITE, piece(source), remoteAddress=address, remoteKey=key)
            found: list[tuple[int, WCStatus]] = []

            def isOver(found: list[tuple[int, WCStatus]] = found) -> bool:
                found += side.statuses()
                return bool(found)

            self.until(isOver)
            if found != [(value, WCStatus.SUCCESS)]:
                return found


class Memory:
    """
    What is written to, between octets which are not.

    @ivar region: registered.
    """

    def __init__(self, end: End) -> None:
        """
        @param end: whose it is.
        """
        self.all = bytearray(b"\xee" * EDGE + bytes(SIZE) + b"\xee" * EDGE)
        self.octets = memoryview(self.all)[EDGE : EDGE + SIZE]
        side = end.side
        self.region = side.memory.register(self.octets, 0xF, side.pd)

    def isWhole(self) -> bool:
        """
        @return: whether one value, or two in a row, the later one in front, are all that there is; but for
            the last word, which comes last.
        """
        octets = bytes(self.octets)
        rest = octets.lstrip(octets[:1])
        before = (octets[0] - 2) % 250 + 1 if octets[0] > 1 else (0, 250)[octets[-1] == 250]
        edges = self.all[:EDGE] + self.all[EDGE + SIZE :]
        return rest == bytes([before]) * len(rest) and edges == b"\xee" * 2 * EDGE

    def isStill(self) -> bool:
        """
        @return: whether nobody writes any more.
        """
        before, end = bytes(self.all), time.monotonic() + STILL_SECONDS
        while time.monotonic() < end:
            if self.all != before:
                return False
        return True


@skipIf(bool(MISSING), f"missing: {MISSING}")
class WriterTests(SynchronousTestCase):
    """
    No hang, no wrong octet, and nothing is left.
    """

    timeout = 20 * HANG_SECONDS

    def setUp(self) -> None:
        """
        A run directory of this test's own.
        """
        ownRunDirectory(self)
        self.maker = random.Random(random.randrange(1 << 30))

    @contextmanager
    def other(self, child: Callable[[End], object]) -> Iterator[tuple[End, int]]:
        """
        Have another process.

        @return: this one's end, and the other's number.
        """
        (asked, ask), (hear, told) = os.pipe(), os.pipe()

        def begin() -> None:
            """
            Be the other process.
            """
            os.close(ask)
            os.close(hear)
            child(End(asked, told))

        pid = fork(begin)
        os.close(asked)
        os.close(told)
        end = End(hear, ask)
        try:
            yield end, pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            end.device.close()
            os.close(ask)
            os.close(hear)

    def over(self, end: End, *regions: Any) -> None:
        """
        A connection has failed: nothing of it is left.
        """
        side = end.side
        end.until(lambda: side.qp.state == QPState.ERR)
        side.qp.close()
        for region in regions:
            end.device.deregisterMemory(region)
        side.memory.deallocateDomain(side.pd)
        self.assertEqual(set(end.device.inUse().values()), {0})

    def test_writer(self) -> None:
        """
        The writer is killed amid a copy.
        """
        amid = 0

        def writer(end: End) -> None:
            """
            Write until killed.
            """
            end.pair(end.connect())
            end.write(end.side.register(SIZE), *end.told())

        def killed() -> bool:
            """
            Once.
            """
            with self.other(writer) as (end, pid):
                path = end.listen()
                end.pair(path)
                memory = Memory(end)
                end.tell(memory.region.address, memory.region.remoteKey)
                end.until(lambda: memory.region.grants)
                cells = path.theirs.cells
                for _ in range(self.maker.randrange(1, 20)):
                    waitUntil(lambda: cells[WRITES])
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                isAmid = bool(cells[WRITES])
                self.assertTrue(memory.isWhole())
                self.over(end, memory.region)
                self.assertEqual(memory.region.grants, ())
                return isAmid

        killed()
        before = descriptorsBefore()
        for _ in range(ROUNDS):
            amid += killed()
            self.assertEqual(descriptors(), before)
        self.assertGreater(amid, ROUNDS // 10)

    def test_target(self) -> None:
        """
        The target is killed while the writer has its grant.
        """

        def target(end: End) -> None:
            """
            Serve until killed.
            """
            end.pair(end.listen())
            memory = Memory(end)
            end.tell(memory.region.address, memory.region.remoteKey)
            end.until(lambda: memory.region.grants)
            end.tell()
            end.until(lambda: False)

        def killed() -> None:
            """
            Once.
            """
            with self.other(target) as (end, pid):
                end.pair(end.connect())
                source, remote = end.side.register(SIZE), end.told()
                number, left = 0, self.maker.randrange(3, 40)
                statuses: list[WCStatus] = []
                while end.side.qp.state != QPState.ERR:
                    if number - len(statuses) < 20:
                        end.side.send(
                            number,
                            SendOpcode.RDMA_WRITE,
                            piece(source, 0, self.maker.choice((8, 4096, SIZE))),
                            remoteAddress=remote[0],
                            remoteKey=remote[1],
                        )
                        number += 1
                    if number == left:
                        os.kill(pid, signal.SIGKILL)
                    end.turn()
                    statuses += [status for _, status in end.side.statuses()]
                statuses += [status for _, status in end.side.statuses()]
                good = statuses.count(WCStatus.SUCCESS)
                wanted = [WCStatus.SUCCESS] * good + [WCStatus.RETRY_EXC_ERR][: number - good]
                wanted += [WCStatus.WR_FLUSH_ERR] * (number - len(wanted))
                self.assertEqual(statuses, wanted)
                self.over(end, source)

        killed()
        before = descriptorsBefore()
        for _ in range(ROUNDS):
            killed()
            self.assertEqual(descriptors(), before)

    def test_revoked(self) -> None:
        """
        The target takes back what the writer has, amid its copies, in each way: not an octet comes later.
        """
        rounds = 10 * ROUNDS

        def once(end: End, path: Any, number: int) -> bool:
            """
            Take one back.
            """
            end.pair(path)
            side, memory, cells = end.side, Memory(end), path.theirs.cells
            region = memory.region
            ways: tuple[Callable[[], object], ...] = (
                lambda: end.device.deregisterMemory(region),
                lambda: side.memory.reregister(region, access=LOCAL_WRITE, keepKey=True),
                lambda: side.qp.modify(QPState.ERR),
                lambda: side.qp.modify(QPState.RTS, qp_access_flags=0),
                side.qp.close,
            )
            end.tell(region.address, region.remoteKey)
            end.until(lambda: region.grants)
            for _ in range(self.maker.randrange(1, 5)):
                waitUntil(lambda: cells[WRITES])
            isAmid = bool(cells[WRITES])
            way = number % len(ways)
            ways[way]()
            assert not region.grants, f"way {way}"
            assert memory.isStill(), f"way {way}"
            assert memory.isWhole(), f"way {way}"
            end.told()
            side.qp.close()
            if way:
                end.device.deregisterMemory(region)
            side.memory.deallocateDomain(side.pd)
            return isAmid

        def target(end: End) -> None:
            """
            Do so again and again.
            """
            path = end.listen()
            end.tell(sum([once(end, path, number) for number in range(rounds)]))

        with self.other(target) as (end, _):
            path = end.connect()
            for number in range(rounds):
                end.pair(path)
                source, remote = end.side.register(SIZE), end.told()
                [(_, status)] = end.write(source, *remote)
                self.assertEqual(status, WAYS[number % len(WAYS)])
                end.tell()
                self.over(end, source)
            self.assertGreater(end.told()[0], rounds // 10)
