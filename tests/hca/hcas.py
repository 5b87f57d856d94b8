"""
Two HCAs in one process, driven by hand: for tests of fabrics and paths.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import awaitWatches
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import NoListenerError
from twisted_ib.hca.base.operation import REFUSAL, word
from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY

SDP = 0x0001
#: Listens, and is never asked.
LISTENER = object()
#: Makes the fabric of a device.
FabricFactory = Callable[[Any, int, Callable[[], float]], Any]


class Work(tuple[()]):
    """
    No work queues, of whose SENDs some may still be refused.
    """

    def isSettled(self) -> bool:
        return False


class Taker(RecordReceiver):
    """
    A stand-in for a queue pair and its requester, as a path sees them.

    @ivar log: The events in order: tuples of a kind and a value.
    @ivar answers: The results of L{delivered}, one by one; then 0.
    @ivar upcall: Called with the bytes of each record.
    @ivar work: Not L{None}, as of a queue pair with work queues; a stream's has none.
    @ivar partition: Its P_Key.
    """

    work: Any = Work()
    partition = DEFAULT_PKEY

    def __init__(self, path: Any, number: int, remote: int) -> None:
        """
        Take the records for C{number} from C{path}.
        """
        self.number, self.remote = number, remote
        self.log: list[tuple[str, Any]] = []
        self.answers: deque[int] = deque()
        self.upcall: Callable[[bytes], object] | None = None
        self.failing: Callable[[], object] | None = None
        self.path = path.bind(self)

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived.
        """
        data = buffer[start:stop]
        assert data.__class__ is bytes
        if opcode == ACKNOWLEDGE:
            syndrome, number, position = REFUSAL.unpack(data)
            self.log.append(("refused", (syndrome, number, position)))
            return 0
        self.log.append(("taken", data))
        if self.upcall is not None:
            self.upcall(data)
        return self.answers.popleft() if self.answers else 0

    @property
    def records(self) -> list[bytes]:
        """
        The bytes of the records that arrived.
        """
        return [about for what, about in self.log if what == "taken"]

    def said(self, what: str) -> list[Any]:
        """
        @return: The events of one kind.
        """
        return [about for kind, about in self.log if kind == what]

    def post(self, data: bytes, opcode: int = SEND_ONLY) -> bool:
        """
        Publish a record for the peer's queue pair.
        """
        taken: bool = self.path.post(word(opcode, self.remote), b"", data, len(data))
        return taken

    def postKept(self, data: bytes) -> int:
        """
        Publish one and ask to be told when it is taken.

        @return: the position after it.
        """
        assert self.post(data)
        position: int = self.path.position()
        self.path.unacknowledged.append((position, self))
        return position

    def acknowledged(self, position: int) -> None:
        """
        The peer has taken the record before a position.
        """
        self.log.append(("acknowledged", position))

    def resume(self) -> None:
        """
        There is room again.
        """
        self.log.append(("resume", None))

    def pathLost(self, reason: Exception) -> None:
        """
        The path is gone.
        """
        self.log.append(("failed", reason))
        if self.failing is not None:
            self.failing()


class User:
    """
    A consumer that asks for a path.
    """

    def __init__(self) -> None:
        self.path: Any = None
        self.error: Exception | None = None

    def pathReady(self, path: Any) -> None:
        """
        It is found.
        """
        self.path = path

    def connectFailed(self, error: Exception) -> None:
        """
        It is not to be found.
        """
        self.error = error


def turn(device: Device) -> int:
    """
    One turn of a reactor with a device.

    @return: how much was done.
    """
    device.fabric.attend()
    device.fabric.look()
    return device.progress()


def readable(device: Device) -> bool:
    """
    @return: whether a device's descriptor calls for attention.
    """
    return bool(select.select([device.fabric.fileno()], [], [], 0)[0])


def wakes(device: Device) -> bool:
    """
    @return: whether a device's descriptor calls for attention, as soon as the kernel has passed on what was
        sent.
    """
    return bool(select.select([device.fabric.fileno()], [], [], HANG_SECONDS)[0])


def settle(*devices: Device) -> int:
    """
    Give each device its turn until nothing moves.

    @return: how much was done.
    """
    quiet = done = 0
    for _ in range(20000):
        n = sum([turn(device) for device in devices if not device.closed])
        done += n
        quiet = 0 if n else quiet + 1
        if quiet > 3:
            return done
    raise AssertionError("the devices do not come to rest")


def serve(clock: Clock, seconds: float, *devices: Device) -> None:
    """
    Serve devices while time passes.
    """
    end = clock.seconds() + seconds
    settle(*devices)
    while clock.seconds() < end:
        clock.advance(0.01)
        for device in devices:
            if not device.closed:
                device.tick(clock.seconds())
        settle(*devices)


class HCATestCase(SynchronousTestCase):
    """
    Base of tests with HCAs of one fabric.

    Two HCAs are connected by L{connected}, another pair of queue pairs on the same HCAs by L{another}.

    @cvar fabric: makes it.
    @ivar address: the address at which its HCAs listen.
    @ivar unused: an address of this host at which none of them listens.
    @ivar listener: who listens.
    @cvar space: the port space of their services.
    """

    fabric: FabricFactory
    address, unused = "127.0.0.1", "127.0.0.2"
    listener: Any = LISTENER
    space = SDP

    def setUp(self) -> None:
        """
        A run directory of this test's own.
        """
        super().setUp()
        self.clock = Clock()
        ownRunDirectory(self)
        awaitWatches(self)

    def device(self) -> Device:
        """
        @return: a new HCA, closed after the test.
        """
        device = Device("test", self.clock.seconds, type(self).fabric)
        self.addCleanup(device.close)
        return device

    def pathTo(self, a: Device, b: Device, port: int = 7001) -> Any:
        """
        @return: C{a}'s path to C{b}, which listens on a port.
        """
        user = User()
        a.connect(self.space, self.address, port, user)
        settle(a, b)
        assert user.path is not None, user.error
        return user.path

    def joined(self) -> tuple[Device, Device, Any, Any]:
        """
        @return: two HCAs, and each one's path to the other.
        """
        a, b = self.device(), self.device()
        b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        path = self.pathTo(a, b)
        (other,) = b.fabric.paths()
        return a, b, path, other

    def takers(self) -> tuple[Device, Device, Taker, Taker]:
        """
        @return: two HCAs, and on each a taker of what the other posts.
        """
        a, b = self.device(), self.device()
        b.listen(self.space, self.address, 7001, self.listener)
        return a, b, *self.connected(a, b)

    def connected(self, a: Device, b: Device, port: int = 7001, number: int = 20) -> tuple[Taker, Taker]:
        """
        Connect C{a} with C{b}, which may be the same and listens on a port.

        @param number: of C{a}'s taker; C{b}'s is the next.
        @return: on each a taker of what the other posts.
        """
        path = self.pathTo(a, b, port)
        (other,) = [end for end in b.fabric.paths() if end is not path and end.peer.guid == a.guid]
        return Taker(path, number, number + 1), Taker(other, number + 1, number)

    def another(self, a: Device, b: Device, one: Taker) -> Taker:
        """
        @param one: a taker of C{a} that is connected with C{b}.
        @return: one more.
        """
        return Taker(one.path, 30, 31)

    def assertNobody(self, a: Device, address: str, port: int) -> None:
        """
        Assert that nobody listens there, which is said by name.
        """
        self.assertRaises(NoListenerError, a.connect, self.space, address, port, User())

    def bystander(self, a: Device) -> tuple[Device, Taker, Taker]:
        """
        @return: one more HCA, and takers of what C{a} and it post to each other.
        """
        other = self.device()
        other.listen(SDP, "127.0.0.1", 7002, LISTENER)
        path = self.pathTo(a, other, 7002)
        return other, Taker(path, 40, 41), Taker(other.fabric.paths()[0], 41, 40)
