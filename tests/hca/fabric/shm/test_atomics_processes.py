"""
Several processes count with one counter.
"""

from __future__ import annotations

import json
import os
import signal
from sys import byteorder
from time import sleep
from typing import Any
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import User, turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.descriptors import fork
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host import libc
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

MISSING = libc.available()
SERVICE = 0x1_0998
ADD, SWAP = SendOpcode.ATOMIC_FETCH_AND_ADD, SendOpcode.ATOMIC_CMP_AND_SWP
COUNT = 300
PAUSE_SECONDS = 5e-5


def serve(device: Device) -> None:
    """
    One turn of a device.  If there was nothing to do it sleeps: four processes that poll on two busy CPUs
    would wait for each other's time slices, at each of a thousand counts.
    """
    if not turn(device):
        sleep(PAUSE_SECONDS)


def count(asked: int, told: int) -> None:
    """
    Another process: add one, many times, and tell what was there; then add one by
    compare-and-swap, as often as that takes.

    @param asked: a pipe from the owner of the counter.
    @param told: a pipe to it.
    """
    os.read(asked, 2)
    device = Device("shm0")
    user = User()
    device.fabric.resolve(SERVICE, "127.0.0.1", user)
    while user.path is None:
        serve(device)
    side = DeviceSide(device, user.path)
    os.write(told, b"%d\n" % side.qp.number)
    number, address, key = json.loads(os.read(asked, 200))
    side.to(QPState.RTS, number)
    result = side.register(8)
    remote = {"remoteAddress": address, "remoteKey": key}

    def done(verb: SendOpcode, **fields: int) -> int:
        """
        Do one, and wait for its result.
        """
        side.send(1, verb, piece(result), **fields, **remote)
        while not side.statuses():
            serve(device)
        return int.from_bytes(result.view, byteorder)

    found = [done(ADD, compare=1) for _ in range(COUNT)]
    value = found[-1] + 1
    while True:
        old = done(SWAP, compare=value, swap=value + 1)
        if old == value:
            break
        value = old
    os.write(told, json.dumps([*found, value]).encode() + b"\n")
    while True:  # Until it is killed: its end must not end what is on the way.
        serve(device)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class CounterTests(SynchronousTestCase):
    """
    One owner, several others.
    """

    def setUp(self) -> None:
        """
        A run directory of this test's own.
        """
        ownRunDirectory(self)

    def start(self) -> tuple[int, int, Any]:
        """
        Start one of the others.

        @return: its process number, a pipe to it, a file from it.
        """
        (asked, ask), (hear, told) = os.pipe(), os.pipe()

        def child() -> None:
            """
            Be the other process.
            """
            os.close(ask)
            os.close(hear)
            count(asked, told)

        pid = fork(child)
        os.close(asked)
        os.close(told)
        os.set_blocking(hear, False)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        self.addCleanup(os.close, ask)
        file = os.fdopen(hear, "rb")
        self.addCleanup(file.close)
        return pid, ask, file

    def line(self, device: Device, file: Any) -> bytes:
        """
        Serve until one of the others says something.
        """
        text = b""

        def hear() -> None:
            nonlocal text
            serve(device)
            text += file.read() or b""

        waitUntil(lambda: text.endswith(b"\n"), hear)
        return text

    def test_count(self) -> None:
        """
        Each addition found a value that no other found, and none is missing.
        """
        others = [self.start() for _ in range(3)]
        device = Device("shm0")
        self.addCleanup(device.close)
        device.fabric.publish(SERVICE, "127.0.0.1")
        sides = []
        for pid, ask, file in others:
            os.write(ask, b"go")
            number = int(self.line(device, file))
            (path,) = [path for path in device.fabric.paths() if path.peer.pid == pid]
            sides.append((DeviceSide(device, path), number, ask))
        pd = sides[0][0].pd
        counter = sides[0][0].allocate(8)
        for side, number, ask in sides:
            side.work.pd = pd  # One domain, so that one key serves all.
            side.to(QPState.RTS, number)
            os.write(ask, json.dumps([side.qp.number, counter.address, counter.key]).encode())
        found: list[int] = []
        for _, _, file in others:
            found += json.loads(self.line(device, file))
        self.assertEqual(sorted(found), list(range(3 * COUNT + 3)))
        self.assertEqual(int.from_bytes(counter.view, byteorder), 3 * COUNT + 3)
        for side, _, _ in sides:
            side.work.pd = side.pd
            self.assertEqual(side.qp.state, QPState.RTS)
            self.assertEqual([c for c in side.received() if c.status != WCStatus.SUCCESS], [])
