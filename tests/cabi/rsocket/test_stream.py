"""
Tests of L{twisted_ib.cabi.rsocket.stream}: sockets of one process.
"""

from __future__ import annotations

import errno
from random import Random

from tests.hca.verbs.pair import VerbsTestCase
from tests.support.waiting import HANG_SECONDS
from twisted_ib.cabi.errors import HandleError
from twisted_ib.cabi.rsocket.protocol import Way
from twisted_ib.cabi.rsocket.stream import Phase, RSocket
from twisted_ib.hca.verbs.base.hub import hub
from twisted_ib.hca.verbs.cm.addrinfo import Address

BUFFER = 1 << 13


class RSocketTests(VerbsTestCase):
    """
    L{RSocket}.
    """

    def socket(self) -> RSocket:
        """
        A socket with small buffers, closed after the test.
        """
        made = RSocket(self.device)
        made.sendBytes = made.receiveBytes = BUFFER
        self.addCleanup(self.close, made)
        return made

    @staticmethod
    def close(socket: RSocket) -> None:
        """
        Close a socket.
        """
        with hub:
            socket.close()

    def listening(self) -> tuple[RSocket, Address]:
        """
        A socket that listens, and where.
        """
        made = self.socket()
        with hub:
            made.bind(Address("127.0.0.1", 0))
            made.listen(1)
        found = made.cmid.local_addr
        assert found is not None
        return made, Address(*found)

    def pair(self) -> tuple[RSocket, RSocket]:
        """
        Two sockets that are connected.
        """
        listener, address = self.listening()
        active = self.socket()
        with hub:
            active.connect(None, address)

        def connected() -> bool:
            for each in (listener, active, listener, active):
                each.progress()
            return listener.canAccept and active.phase is Phase.CONNECTED

        self.assertTrue(hub.wait(connected, HANG_SECONDS))
        passive = listener.accept()
        self.addCleanup(self.close, passive)
        return active, passive

    def test_data(self) -> None:
        """
        Octets both ways, many times the buffers; then the end.
        """
        sides = self.pair()
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
            # Nobody wakes this thread for what it can do by itself: one side's progress is the other's, too.
            while any([step(0), step(1), step(0), step(1)]):
                pass
            return all(len(each) == len(data[0]) for each in received)

        self.assertTrue(hub.wait(moved, HANG_SECONDS))
        self.assertEqual(received, [data[1], data[0]])
        with hub:
            sides[0].shutdown(Way.READ | Way.WRITE)

        def over() -> bool:
            for side in (*sides, *sides):
                side.progress()
            return sides[1].canRead and sides[0].isFlushed

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        with hub:
            self.assertEqual(sides[1].read(piece), 0)
            with self.assertRaises(HandleError) as caught:
                sides[1].write(piece)
        self.assertEqual(caught.exception.number, errno.ECONNRESET)

    def test_refused(self) -> None:
        """
        Nobody listens.
        """
        listener, address = self.listening()
        self.close(listener)
        active = self.socket()
        with hub:
            active.connect(None, address)

        def over() -> bool:
            active.progress()
            return active.phase is Phase.OVER

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        self.assertEqual(active.error, errno.ECONNREFUSED)
        self.assertTrue(active.canRead and active.canWrite)

    def test_peerCloses(self) -> None:
        """
        A peer that is gone ends the stream.
        """
        active, passive = self.pair()
        self.close(passive)

        def over() -> bool:
            active.progress()
            return active.canRead

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        with hub:
            self.assertEqual(active.read(memoryview(bytearray(1))), 0)

    def test_order(self) -> None:
        """
        A socket that is not bound cannot listen; one that is not connected has no data.
        """
        made = self.socket()
        with hub:
            for call, number in (
                (lambda: made.listen(1), errno.EINVAL),
                (lambda: made.read(memoryview(b"")), errno.ENOTCONN),
                (lambda: made.write(memoryview(b"x")), errno.ENOTCONN),
                (lambda: made.shutdown(Way.READ), errno.ENOTCONN),
            ):
                with self.assertRaises(HandleError) as caught:
                    call()
                self.assertEqual(caught.exception.number, number)
