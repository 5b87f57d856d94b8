"""
Work requests between two processes of which one is killed.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
from typing import Any
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import User, turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.descriptors import descriptors, descriptorsBefore, fork
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host import libc
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode

MISSING = libc.available()
SERVICE = 0x1_0999
SIZE = 300000
PATTERN = bytes(range(256)) * (SIZE // 256 + 1)
WRITE, READ, SEND = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ, SendOpcode.SEND


def serve(asked: int, told: int, asleep: bool) -> None:
    """
    The other process: tell what it has, take the peer's number, and serve until killed.

    @param asked: a pipe from the peer.
    @param told: a pipe to the peer.
    @param asleep: whether to look only when the descriptor says so.
    """
    device = Device("shm0")
    device.fabric.publish(SERVICE, "127.0.0.1")
    os.write(told, b"ready\n")
    while not device.fabric.paths():
        turn(device)
    side = DeviceSide(device, device.fabric.paths()[0])
    number = int(os.read(asked, 100))
    side.to(QPState.RTS, number)
    source, target = side.allocate(PATTERN[:SIZE]), side.allocate(SIZE)
    for id in range(100):
        side.receive(id, piece(target))
    mine = [side.qp.number, source.address, source.remoteKey, target.address, target.remoteKey]
    os.write(told, json.dumps(mine).encode() + b"\n")
    while True:
        if asleep and device.arm():
            select.select([device.fabric.fileno()], [], [])
        turn(device)
        for completion in side.received():
            if completion.status == WCStatus.SUCCESS:
                side.receive(completion.workRequestID, piece(target))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class DeathTests(SynchronousTestCase):
    """
    kill -9 of the peer, at any moment.
    """

    def setUp(self) -> None:
        """
        A run directory of this test's own.
        """
        ownRunDirectory(self)

    def peer(self, asleep: bool) -> tuple[int, int, Any]:
        """
        Start the other process.

        @return: its number, a pipe to it, a file from it.
        """
        (asked, ask), (hear, told) = os.pipe(), os.pipe()

        def child() -> None:
            """
            Be the other process.
            """
            os.close(ask)
            os.close(hear)
            serve(asked, told, asleep)

        pid = fork(child)
        os.close(asked)
        os.close(told)
        return pid, ask, os.fdopen(hear, "rb")

    def connect(self, device: Device, ask: int, hear: Any) -> tuple[DeviceSide, list[int]]:
        """
        Connect to the other process.

        @return: the side here, and what the other told: queue pair, address and key of its
            source and its target.
        """
        self.assertEqual(hear.readline(), b"ready\n")
        user = User()
        device.fabric.resolve(SERVICE, "127.0.0.1", user)
        while user.path is None:
            self.assertIsNone(user.error)
            turn(device)
        side = DeviceSide(device, user.path)
        os.write(ask, b"%d" % side.qp.number)
        told = json.loads(hear.readline())
        side.to(QPState.RTS, told[0])
        return side, told

    def die(self, seed: int) -> list[tuple[int, WCStatus]]:
        """
        Work until the peer is killed, and look at what is left.

        @return: the completions.
        """
        maker = random.Random(seed)
        pid, ask, hear = self.peer(bool(seed & 1))
        device = Device("shm0")
        try:
            side, told = self.connect(device, ask, hear)
            return self.work(device, side, told, maker, pid)
        finally:
            os.kill(pid, signal.SIGKILL)  # Again, or because the test failed.
            device.close()
            os.close(ask)
            hear.close()
            os.waitpid(pid, 0)

    def work(
        self, device: Device, side: DeviceSide, told: list[int], maker: random.Random, pid: int
    ) -> list[tuple[int, WCStatus]]:
        _, source, sourceKey, target, targetKey = told
        mine, back = side.allocate(PATTERN[:SIZE]), side.allocate(SIZE)
        plain = side.register(PATTERN[:SIZE])
        side.receive(1)
        end = time.monotonic() + maker.choice((0.0, 0.001, 0.003, 0.01))
        statuses: list[tuple[int, WCStatus]] = []
        posted = 0

        def post() -> None:
            """
            Post a request of a random kind.
            """
            nonlocal posted
            verb, region = maker.choice((WRITE, READ, SEND)), maker.choice((mine, plain))
            size = maker.choice((10, 5000, SIZE))
            fields = {"remoteAddress": target, "remoteKey": targetKey}
            if verb == READ:
                region, fields = back, {"remoteAddress": source, "remoteKey": sourceKey}
            side.send(
                posted,
                verb,
                SGE(region.address, size, region.localKey),
                flags=int(SendFlags.SIGNALED),
                **fields,
            )
            posted += 1

        while time.monotonic() < end:
            if posted - len(statuses) < 50:
                post()
            turn(device)
            statuses += side.statuses()
        for _ in range(5):
            post()
        os.kill(pid, signal.SIGKILL)
        waitUntil(lambda: side.qp.state == QPState.ERR, lambda: (turn(device), device.tick(device.clock())))
        statuses += side.statuses()
        self.assertEqual([number for number, _ in statuses], list(range(posted)))
        self.assertEqual([c.status for c in side.received()], [WCStatus.WR_FLUSH_ERR])
        self.assertEqual(len(side.consumer.failures), 1)
        side.qp.close()
        for region in (mine, back, plain):
            device.deregisterMemory(region)
        side.memory.deallocateDomain(side.pd)
        self.assertEqual(set(device.inUse().values()), {0})
        return statuses

    def test_kill(self) -> None:
        """
        Whatever was posted completes once, in order: with success as far as the peer is
        known to have taken it, then once with RETRY_EXC_ERR, then flushed.  No descriptor,
        queue pair or region is left.  Seeds 0 to 23.
        """
        self.die(0)
        before = descriptorsBefore()
        for seed in range(24):
            kinds = [status for _, status in self.die(seed)]
            good = kinds.count(WCStatus.SUCCESS)
            expected = [WCStatus.SUCCESS] * good
            if good < len(kinds):
                expected += [WCStatus.RETRY_EXC_ERR] + [WCStatus.WR_FLUSH_ERR] * (len(kinds) - good - 1)
            self.assertEqual(kinds, expected, f"seed {seed}")
            self.assertEqual(descriptors(), before, f"seed {seed}")
