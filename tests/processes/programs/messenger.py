"""
A child with messages and RDMA: the server offers memory, the client uses it.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.processes.programs.child import Line, Program
from twisted_ib.errors import WorkCompletionError
from twisted_ib.interfaces import IRDMAProtocol
from twisted_ib.rdma import Access

#: Bytes of the server's memory.
REGION_BYTES = 1 << 20

_EVERYTHING = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC


@implementer(IRDMAProtocol)
class Messages(Protocol):
    """
    One connection: what came, counted and hashed.

    @ivar region: the memory that it offers, or L{None}.
    @ivar count: messages that came.
    @ivar digest: the hash of their bytes.
    @ivar written: what C{remoteMemoryWritten} got.
    """

    transport: Any

    def __init__(self, program: Messenger, offers: bool) -> None:
        """
        @param offers: whether it offers memory.
        """
        self._program = program
        self._offers = offers
        self.region: Any = None
        self.count = 0
        self.digest = hashlib.sha256()
        self.written: list[tuple[int, int]] = []
        self.offer: Deferred[tuple[int, int]] = Deferred()
        self._waits: tuple[int, Deferred[None]] | None = None

    def connectionMade(self) -> None:
        """
        Offer memory.
        """
        self._program.wires.append(self)
        if self._offers:
            self.region = self.transport.registerMemory(REGION_BYTES, _EVERYTHING)
            self.transport.write(b"%d %d" % (self.region.address, self.region.remoteKey))

    def messageReceived(self, view: memoryview) -> None:
        """
        Take the offer, or count.
        """
        if not self._offers and not self.offer.called:
            address, key = map(int, bytes(view).split())
            self.offer.callback((address, key))
            return
        self.count += 1
        self.digest.update(view)
        self._look()

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        self.written.append((immediate, length))
        self._look()

    def _look(self) -> None:
        """
        Tell who waits.
        """
        if self._waits is not None and self.count + len(self.written) >= self._waits[0]:
            waits, self._waits = self._waits[1], None
            waits.callback(None)

    def whenHeard(self, count: int) -> Deferred[None]:
        """
        @return: fires when so many messages and writes have come.
        """
        done: Deferred[None] = Deferred()
        self._waits = (count, done)
        self._look()
        return done

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._program.tell("lost", reason=type(reason.value).__name__)


class Messenger(Program):
    """
    A process with such connections.

    @ivar wires: they.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        There are none.
        """
        super().__init__(reactor, line)
        self.wires: list[Messages] = []
        self._offer = (0, 0)

    async def do_listen(self, endpoint: str) -> int:
        """
        Listen.

        @param endpoint: the server's endpoint string.

        @return: the port.
        """
        factory = Factory.forProtocol(lambda: Messages(self, True))  # type: ignore[arg-type]
        port: Any = await serverFromString(self.reactor, endpoint).listen(factory)
        return int(port.getHost().port)

    async def do_connect(self, endpoint: str) -> None:
        """
        Connect, and wait for the offer.

        @param endpoint: the client's endpoint string.
        """
        factory = Factory.forProtocol(lambda: Messages(self, False))  # type: ignore[arg-type]
        wire: Any = await clientFromString(self.reactor, endpoint).connect(factory)
        self._offer = await wire.offer

    def do_write(self, sizes: list[int]) -> str:
        """
        Send messages.

        @param sizes: of each.

        @return: the hash of all their bytes.
        """
        digest = hashlib.sha256()
        for number, size in enumerate(sizes):
            message = bytes([number % 251]) * size
            digest.update(message)
            self.wires[-1].transport.write(message)
        return digest.hexdigest()

    async def do_heard(self, count: int) -> dict[str, object]:
        """
        Wait for messages and writes.

        @param count: how many in all.

        @return: what came.
        """
        wire = self.wires[-1]
        await wire.whenHeard(count)
        return {"count": wire.count, "sha256": wire.digest.hexdigest(), "written": wire.written}

    async def do_bulk(self, rounds: int, immediate: bool = True) -> bool:
        """
        Write all of the peer's memory from registered memory, and read it back, into memory and
        as bytes.

        @param immediate: whether to tell the peer at the end.

        @return: whether it was the same each time.
        """
        wire = self.wires[-1]
        transport = wire.transport
        address, key = self._offer
        with transport.registerMemory(REGION_BYTES) as region:
            for number in range(rounds):
                pattern = bytes([number, *range(255)]) * (REGION_BYTES // 256)
                region.view[:] = pattern
                await transport.rdmaWrite(region, address, key)
                region.view[:] = bytes(REGION_BYTES)
                await transport.rdmaRead(REGION_BYTES, address, key, region)
                if bytes(region.view) != pattern:
                    return False
                if await transport.rdmaRead(REGION_BYTES, address, key) != pattern:
                    return False
        if immediate:
            await transport.rdmaWriteWithImmediate(b"done", address, key, rounds)
        return True

    async def do_add(self, count: int) -> int:
        """
        Add one to the first 8 bytes of the peer's memory, often.

        @return: what was there before the last time.
        """
        address, key = self._offer
        transport = self.wires[-1].transport
        added = [transport.fetchAdd(address, key, 1) for _ in range(count)]
        found = 0
        for each in added:
            found = await each
        return found

    def do_clear(self) -> None:
        """
        Clear our memory.
        """
        self.wires[-1].region.view[:] = bytes(REGION_BYTES)

    def do_revoke(self) -> None:
        """
        Close our memory.
        """
        self.wires[-1].region.close()

    async def do_read(self) -> str:
        """
        Read the peer's memory.

        @return: the bytes as hexadecimal digits, or the status if that failed.
        """
        address, key = self._offer
        try:
            found: bytes = await self.wires[-1].transport.rdmaRead(8, address, key)
        except WorkCompletionError as error:
            return error.statusName
        return found.hex()

    def do_begin(self) -> None:
        """
        Send a message, and tell what becomes of it.
        """
        done: Deferred[None] = self.wires[-1].transport.send(b"x")
        done.addCallbacks(
            lambda ignored: self.tell("sent"),
            lambda failure: self.tell("failed", status=failure.value.statusName),
        )

    def do_fork(self) -> list[str]:
        """
        Use the connection in a forked child.

        @return: what each call raised there.
        """
        wire = self.wires[-1]
        transport = wire.transport
        region = transport.registerMemory(8)
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            raised = []
            for call in (
                lambda: transport.write(b"x"),
                lambda: transport.send(b"x"),
                lambda: transport.fetchAdd(0, 0, 1),
                lambda: transport.registerMemory(8),
                lambda: transport.loseConnection(),
                region.close,
            ):
                try:
                    call()
                    raised.append("nothing")
                except BaseException as error:
                    raised.append(type(error).__name__)
            os.write(writer, " ".join(raised).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with open(reader) as answer:
            return answer.read().split()

    def do_pause(self) -> None:
        """
        Read no more.
        """
        self.wires[-1].transport.pauseProducing()

    def do_resume(self) -> None:
        """
        Read again.
        """
        self.wires[-1].transport.resumeProducing()

    def do_close(self) -> None:
        """
        Close in an orderly way.
        """
        self.wires[-1].transport.loseConnection()

    def do_abort(self) -> None:
        """
        Reset.
        """
        self.wires[-1].transport.abortConnection()
