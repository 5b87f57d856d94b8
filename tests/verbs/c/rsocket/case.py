"""
Sockets of one process that are connected.
"""

from __future__ import annotations

import errno
from random import Random

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import VerbsTestCase
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.rsocket.protocol import Way
from twisted_ib.verbs.c.rsocket.stream import Phase, RSocket
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

BUFFER = 1 << 13


class RSocketTestCase(VerbsTestCase):
    """
    A test that connects sockets.

    @ivar host: where they listen.
    @ivar buffer: octets of their buffers.
    """

    host = "127.0.0.1"
    buffer = BUFFER

    def socket(self) -> RSocket:
        """
        A socket with small buffers, closed after the test.
        """
        made = RSocket(self.device)
        made.sendBytes = made.receiveBytes = self.buffer
        self.addCleanup(self.close, made)
        return made

    @staticmethod
    def close(socket: RSocket) -> None:
        """
        Close a socket.
        """
        with hub:
            socket.close()

    def listening(self, backlog: int = 1) -> tuple[RSocket, Address]:
        """
        A socket that listens, and where.
        """
        made = self.socket()
        with hub:
            made.bind(Address(self.host, 0))
            made.listen(backlog)
        found = made.cmid.local_addr
        assert found is not None
        return made, Address(*found)

    def pair(self) -> tuple[RSocket, RSocket]:
        """
        Two sockets that are connected.
        """
        listener, address = self.listening()
        return self.connected(listener, address)

    def connected(self, listener: RSocket, address: Address) -> tuple[RSocket, RSocket]:
        """
        A socket that is connected to a listener, and the one that the listener has for it.
        """
        active = self.connecting(address)

        def connected() -> bool:
            self.progress(listener, active)
            return listener.canAccept and active.phase is Phase.CONNECTED

        self.assertTrue(hub.wait(connected, HANG_SECONDS))
        return active, self.accepted(listener)

    @staticmethod
    def progress(*sockets: RSocket) -> None:
        """
        Let each take its next steps.
        """
        for each in sockets:
            each.progress()

    def connecting(self, address: Address) -> RSocket:
        """
        A socket that begins to connect.
        """
        made = self.socket()
        with hub:
            made.connect(None, address)
        return made

    def accepted(self, listener: RSocket) -> RSocket:
        """
        The next connection of a listener.
        """
        passive = listener.accept()
        self.addCleanup(self.close, passive)
        return passive

    def exchange(self, sides: tuple[RSocket, RSocket]) -> None:
        """
        Send data both ways, and end the connection.
        """
        data = [Random(seed).randbytes(20 * BUFFER) for seed in (23, 24)]
        sent, received = [0, 0], [bytearray(), bytearray()]
        piece = memoryview(bytearray(3000))

        def step(i: int) -> int:
            side, done = sides[i], 0
            side.progress()
            if sent[i] < len(data[i]) and side.canWrite:
                done = side.write(memoryview(data[i])[sent[i] : sent[i] + 5000])
                sent[i] += done
            if side.canRead:
                count = side.read(piece)
                received[i] += piece[:count]
                done += count
            return done

        def moved() -> bool:
            # Nobody wakes this thread for what it can do by itself.
            while any([step(0), step(1)]):
                pass
            return all(len(each) == len(data[0]) for each in received)

        self.assertTrue(hub.wait(moved, HANG_SECONDS))
        self.assertEqual(received, [data[1], data[0]])
        with hub:
            sides[0].shutdown(Way.READ | Way.WRITE)

        def over() -> bool:
            self.progress(*sides)
            return sides[1].canRead and sides[0].isFlushed

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        with hub:
            self.assertEqual(sides[1].read(piece), 0)
            with self.assertRaises(HandleError) as caught:
                sides[1].write(piece)
        self.assertEqual(caught.exception.number, errno.ECONNRESET)


__all__ = ["BUFFER", "RSocketTestCase"]
