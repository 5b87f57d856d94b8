"""
A device of kind C{iwarp} with granted memory, and peers of it that are plain TCP sockets and keep no rule.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any
from weakref import WeakSet

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.examples import ReadRequestHeader, TaggedHeader, UntaggedHeader
from tests.hca.fabric.roce.test_devices import INIT, End
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader, FPDUWriter
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage, Termination
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.services.work import WorkQueues

ADDRESS = "127.0.0.3"
#: Octets that are granted, between others that are not.
GRANTED, AROUND = 8192, 4096
#: Octets of each receive.
RECEIVE = 64
CANARY = 0xA5
_GRANTS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
_UNTAGGED_BYTES = 18


def fpdu(ulpdu: bytes) -> bytes:
    """
    @return: the FPDU of a ULPDU, without CRC and markers.
    """
    out: list[Any] = []
    FPDUWriter(False, False).frame(out, [ulpdu], len(ulpdu))
    return b"".join(out)


def send(data: bytes, sequence: int, isLast: bool = True, offset: int = 0) -> bytes:
    """
    @return: the FPDU of a segment of a Send.
    """
    return fpdu(UntaggedHeader(Opcode.SEND, isLast, 0, 0, sequence, offset).pack() + data)


def invalidate(stag: int, sequence: int) -> bytes:
    """
    @return: the FPDU of a Send with Invalidate.
    """
    return fpdu(UntaggedHeader(Opcode.SEND_INVALIDATE, True, stag, 0, sequence, 0).pack())


def write(stag: int, offset: int, data: bytes, isLast: bool = True) -> bytes:
    """
    @return: the FPDU of a segment of a Write.
    """
    return fpdu(TaggedHeader(Opcode.WRITE, isLast, stag, offset).pack() + data)


def read(stag: int, offset: int, size: int, sequence: int = 1, sink: int = 1) -> bytes:
    """
    @return: the FPDU of a Read Request.
    """
    header = UntaggedHeader(Opcode.READ_REQUEST, True, 0, 1, sequence, 0).pack()
    return fpdu(header + ReadRequestHeader(sink, 0, size, stag, offset).pack())


def terminateMessage(termination: Termination) -> bytes:
    """
    @return: the FPDU of a Terminate.
    """
    head = UntaggedHeader(Opcode.TERMINATE, True, 0, 2, 1, 0).pack()
    return fpdu(head + TerminateMessage(termination).pack())


class Victim(End):
    """
    An end whose region grants a part of its memory, and canaries stand around that.

    @ivar granted: the region that is granted to the peer.
    @ivar isServing: whether requests are accepted at once.
    @ivar asynchronous: the events of its queue pair.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device, 2 * AROUND + GRANTED)
        self.memory[:] = bytes((CANARY,)) * len(self.memory)
        view = memoryview(self.memory)[AROUND : AROUND + GRANTED]
        self.granted = device.memory.register(view, _GRANTS, self.pd)
        self.isServing = True
        self.receives = 8
        self.requests: list[tuple[Any, ConnectRequest]] = []
        self.watch()

    def watch(self) -> None:
        """
        Keep the events of its queue pair.
        """
        self.asynchronous: list[str] = []
        self.queuePair.onEvent = lambda kind, _: self.asynchronous.append(kind.name)

    def renew(self) -> None:
        """
        Take a new queue pair, for the next connection.
        """
        self.queuePair.close()
        self.failures.clear()
        self.log.clear()
        self.completions.poll(256)
        self.queuePair = self.device.createQueuePair(self, QPType.RC)
        self.work = WorkQueues(
            *(self.queuePair, self.pd, self.completions, self.completions, self.device.timers)
        )
        self.watch()

    def isIntact(self) -> bool:
        """
        @return: whether nothing was written outside of what is granted.
        """
        canary = bytes((CANARY,)) * AROUND
        return self.memory[:AROUND] == canary and self.memory[AROUND + GRANTED :] == canary

    def up(self, path: Any, message: Any) -> None:
        """
        Bring the queue pair to RTS, with receives posted.
        """
        queuePair = self.queuePair
        queuePair.modify(QPState.INIT, **INIT)
        for index in range(self.receives):
            self.receive(index, AROUND, RECEIVE)
        fields = {"path_mtu": 5, "rq_psn": 0, "max_dest_rd_atomic": 4, "min_rnr_timer": 1}
        queuePair.modify(QPState.RTR, ah_attr=path, dest_qp_num=message.localQPN, **fields)
        queuePair.modify(QPState.RTS, sq_psn=0, timeout=17, retry_cnt=7, rnr_retry=7, max_rd_atomic=4)

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        """
        Accept, or keep the request.
        """
        if self.isServing:
            super().connectionRequested(connection, request)
        else:
            self.requests.append((connection, request))

    def requestWithdrawn(self, connection: Any) -> None:
        """
        The peer has given up.
        """
        self.log.append("withdrawn")

    def unreachable(self, connection: Any) -> None:
        """
        No answer.
        """
        self.log.append("unreachable")


class AttackTestCase(SynchronousTestCase):
    """
    One device, and its peers.
    """

    def setUp(self) -> None:
        """
        A victim that listens.
        """
        super().setUp()
        ownRunDirectory(self)
        self.clock = Clock()
        self._peers: WeakSet[socket.socket] = WeakSet()
        self.device = Device(
            "iwarp0",
            self.clock.seconds,
            fabric=lambda owner, guid, clock: IWARPFabric(owner, guid, clock, ADDRESS),
        )
        self.addCleanup(self.device.close)
        self.fabric: Any = self.device.fabric
        self.victim = Victim(self.device)
        self.service = self.device.listen(PortSpace.TCP, ADDRESS, 0, self.victim)
        self.where = ADDRESS, self.service.port

    def tearDown(self) -> None:
        """
        Close the peers' sockets.
        """
        for made in list(self._peers):
            made.close()
        super().tearDown()

    def until(self, holds: Any) -> None:
        """
        Serve the device until something holds.
        """
        waitUntil(holds, self.device.progress)

    def pass_(self, seconds: float) -> None:
        """
        Let time pass.
        """
        for _ in range(20):
            self.clock.advance(seconds / 20)
            self.device.tick(self.clock.seconds())
            for _ in range(3):
                self.device.progress()

    def peer(self, octets: bytes = b"", **options: Any) -> socket.socket:
        """
        @return: a peer's socket that has sent something.
        """
        made = socket.socket()
        self._peers.add(made)
        for name, value in options.items():
            made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        made.connect(self.where)
        made.settimeout(HANG_SECONDS)
        if octets:
            made.sendall(octets)
        return made

    def attacker(
        self, ird: int = 4, ord: int = 4, receives: int = 8, **options: Any
    ) -> tuple[socket.socket, Any]:
        """
        @return: a peer's socket behind the exchange of startup frames, and the victim's stream.
        """
        made = self.peer(StartupFrame(False, depths=Depths(ird, ord)).pack(), **options)
        known = set(self.fabric.streams)
        self.victim.receives = receives
        self.until(lambda: any(each.queuePair for n, each in self.fabric.streams.items() if n not in known))
        number = max(self.fabric.streams)
        self.until(lambda: self.fabric.streams[number].isOpen)
        self.device.progress()
        reply = made.recv(24)
        assert StartupFrame.parse(reply, 0, len(reply), True) is not None, reply
        return made, self.fabric.streams[number]

    def received(self, made: socket.socket) -> bytes:
        """
        Serve the device until it has ended the connection.

        @return: what it has sent before; a reset ends it, too.
        """
        made.setblocking(False)
        parts: list[bytes] = []

        def isOver() -> bool:
            with contextlib.suppress(BlockingIOError):
                try:
                    part = made.recv(1 << 20)
                except ConnectionResetError:
                    return True
                if not part:
                    return True
                parts.append(part)
            return False

        self.until(isOver)
        return b"".join(parts)

    def terminate(self, made: socket.socket) -> TerminateMessage | None:
        """
        @return: the Terminate that the device has ended the connection with.
        """
        octets = bytearray(self.received(made))
        reader, start = FPDUReader(False, False), 0
        found = None
        while end := reader.next(octets, start, len(octets)):
            start = end
            if octets[reader.first + 1] & 0xF == Opcode.TERMINATE:
                found = TerminateMessage.parse(octets, reader.first + _UNTAGGED_BYTES, reader.last)
        return found

    def assertNothingLeft(self) -> None:
        """
        No stream, timer, descriptor or entry is left of any connection.
        """
        fabric = self.fabric
        self.until(lambda: not fabric.streams and not fabric.inbox)
        self.assertEqual((dict(fabric.halfOpen), fabric.soon, fabric.bells), ({}, {}, []))
        self.assertEqual(len(fabric._entries), len(fabric._listeners))
        self.assertIs(fabric.timers.deadline(), None)
