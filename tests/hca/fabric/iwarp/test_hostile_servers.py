"""
Listeners that mean no good, connections that come from elsewhere, and too many of them.
"""

from __future__ import annotations

import socket
from typing import Any

from tests.hca.fabric.iwarp.attacker import ADDRESS, AttackTestCase, fpdu, send
from tests.hca.fabric.iwarp.test_hostile_streams import ENDS, REQUEST, reset
from tests.support.waiting import waitUntil
from twisted_ib.errors import PathLostError
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader
from twisted_ib.hca.connection.receives import Receives
from twisted_ib.hca.fabric.iwarp import iwarp
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame, crc32c, hasCRC32C
from twisted_ib.hca.fabric.iwarp.protocol.startup import REPLY_SECONDS
from twisted_ib.hca.fabric.iwarp.streampath import RECEIVE_BYTES
from twisted_ib.hca.wire.opcodes import SEND_ONLY
from twisted_ib.rdma.handshake import SINGLE

SERVER = "127.0.0.4"
DATA = b"data"
DEPTHS = Depths(4, 4)
GOOD = StartupFrame(True, depths=DEPTHS).pack()
REFUSED, REJECTED = ["rejected 8"], ["rejected 28"]
_INSUFFICIENT_IRD = "00164147000000000000000200000001000000002006000000000000"


class ReplyTests(AttackTestCase):
    """
    Replies that are none, or cannot be agreed to.
    """

    def dial(self, vendorID: int = 0) -> socket.socket:
        """
        @param vendorID: see L{ConnectRequest}.
        @return: the server's end of a connection, which has the Request.
        """
        server = socket.create_server((SERVER, 0))
        port, victim = server.getsockname()[1], self.victim
        with server:

            def pathReady(path: Any) -> None:
                request = ConnectRequest(
                    serviceID=PortSpace.TCP << 16 | port,
                    localQPN=victim.queuePair.number,
                    responderResources=4,
                    initiatorDepth=4,
                    responseTimeout=20,
                    requestRetries=15,
                    privateData=RDMACMHeader(ADDRESS, 0, SERVER).pack() + DATA,
                    vendorID=vendorID,
                )
                victim.connection = self.device.sendRequest(path, request, victim, self.clock.seconds())

            victim.pathReady = pathReady  # type: ignore[method-assign]
            self.device.connect(PortSpace.TCP, SERVER, port, victim)
            made, _ = server.accept()
        self._peers.add(made)
        made.setblocking(False)

        def isAsked() -> bool:
            try:
                self.request = made.recv(1000)
            except BlockingIOError:
                return False
            return True

        self.until(isAsked)
        return made

    def test_receives(self) -> None:
        """
        Who asks by verbs sends its private data as it is; with messages its receives are told behind it.  A
        server that answers without is sent any number of messages, and one that tells as many as it has.
        """
        told = Receives(3, 0x1000, 9)
        for vendor, sent in ((0, DATA), (SINGLE, Receives().behind(DATA))):
            for data, most in ((b"", 9), (told.behind(b""), 3)):
                made = self.dial(vendor)
                frame = StartupFrame.parse(self.request, 0, len(self.request), False)
                assert frame is not None
                self.assertEqual(frame[0].privateData, sent)
                made.sendall(StartupFrame(True, data, depths=DEPTHS).pack())
                (stream,) = self.fabric.streams.values()
                self.until(lambda stream=stream: stream.isOpen and stream.queuePair)
                posted = [stream.post(SEND_ONLY << 24, b"", b"message", 7) for _ in range(9)]
                self.assertEqual(posted, [number < most for number in range(9)])
                reset(made)
                self.over()

    def over(self) -> None:
        """
        The connection is over: see that nothing is left of it.
        """
        self.pass_(6)
        self.assertNothingLeft()
        self.assertEqual(len(self.device.fabric.service.connections), 0)
        self.victim.renew()

    def test_replies(self) -> None:
        """
        The user is refused, with the peer's reason if it has one, and nothing is left, however it ends.
        """
        cases = [
            (b"HTTP/1.1 200 OK\r\n\r\n", REFUSED),
            (StartupFrame(False, depths=DEPTHS).pack(), REFUSED),
            (StartupFrame(True, depths=Depths(4, 5)).pack(), REFUSED),
            (StartupFrame(True, revision=1).pack(), REFUSED),
            (StartupFrame(True).pack(), REFUSED),
            (StartupFrame(True, markers=True, depths=DEPTHS).pack(), REFUSED),
            (StartupFrame(True, bytes(500), isRejected=True, depths=DEPTHS).pack(), REJECTED),
            (StartupFrame(True, bytes(500), isRejected=True, revision=1).pack(), REJECTED),
        ]
        for octets, log in cases:
            for end in ENDS:
                made = self.dial()
                made.sendall(octets)
                self.until(lambda: self.victim.log)
                self.assertEqual(self.victim.log, log, octets)
                end(made)
                self.over()

    def test_noReply(self) -> None:
        """
        No Reply, or a part of one: the request ends, at once with the connection, else in time.
        """
        for octets in (b"", GOOD[:10]):
            for end in (None, *ENDS):
                made = self.dial()
                made.sendall(octets)
                if end is None:
                    self.pass_(REPLY_SECONDS + 1)
                else:
                    end(made)
                self.until(lambda: self.victim.log)
                self.assertEqual(self.victim.log, ["rejected 4"] if end is None else REFUSED)
                made.close()
                self.over()

    def test_lateReply(self) -> None:
        """
        A server that is busy for two minutes, as long as Linux waits for TCP's connect, is waited for.
        """
        made = self.dial()
        self.pass_(126)
        self.assertEqual(self.victim.log, [])
        made.sendall(GOOD)
        self.until(lambda: self.victim.log)
        self.assertEqual(self.victim.log[0], "replied")
        made.close()
        self.until(lambda: "disconnected" in self.victim.log)
        self.over()

    def test_behindReply(self) -> None:
        """
        FPDUs in one piece with the Reply, and the end: they are taken first.
        """
        for rest, taken in ((send(b"early", 1), 1), (send(b"early", 1) + fpdu(b"x"), 1), (send(b"x", 2), 0)):
            for end in ENDS:
                made = self.dial()
                made.sendall(GOOD + rest)
                self.until(lambda: "replied" in self.victim.log)
                self.until(lambda: len(self.victim.completions.poll(1)) == 1 or self.victim.failures)
                end(made)
                self.until(lambda: "disconnected" in self.victim.log)
                self.assertEqual(self.victim.work.messagesReceived, taken)
                self.over()

    def test_agreedCRC(self) -> None:
        """
        The Terminate of a startup has the CRC that the Reply has agreed to.
        """
        for crc in (False, hasCRC32C()):
            made = self.dial()
            made.sendall(StartupFrame(True, crc=crc, depths=Depths(4, 100)).pack())
            octets = self.received(made)
            self.assertEqual(octets[:-4].hex(), _INSUFFICIENT_IRD[:-8])
            self.assertEqual(int.from_bytes(octets[-4:], "little"), crc32c(octets[:-4]) if crc else 0)
            made.close()
            self.over()


class AdoptedTests(AttackTestCase):
    """
    Connections that come from elsewhere.
    """

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """
        @return: both ends of one.
        """
        with socket.create_server((SERVER, 0)) as server:
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
        self._peers.update((near, far))
        return near, far

    def test_lost(self) -> None:
        """
        A connection that TCP has lost is refused by name, and closed.
        """
        near, far = self.connection()
        reset(far)
        waitUntil(lambda: near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x07")
        error = self.assertRaises(PathLostError, self.fabric.adopt, near)
        self.assertIn("is lost", str(error))
        self.assertEqual(near.fileno(), -1)

    def test_leftover(self) -> None:
        """
        A peer that has sent more than anybody may before the startup ends its connection only.
        """
        self.device.services.serve(77, self.victim)
        near, _ = self.connection()
        self.assertRaises(PathLostError, self.fabric.adopt, near, bytes(RECEIVE_BYTES + 1), 77)
        self.assertEqual(near.fileno(), -1)
        near, far = self.connection()
        self.fabric.adopt(near, bytes(RECEIVE_BYTES), 77)
        self.received(far)
        far.close()
        self.assertNothingLeft()


class HalfOpenTests(AttackTestCase):
    """
    Connections without a Request, of many addresses.
    """

    #: As many as all addresses may have; C{tests/soak} has the real bound.
    bound = 100

    def test_allAddresses(self) -> None:
        """
        Those above the bound are closed at once; a Request, or an end, makes room.
        """
        self.patch(iwarp, "IWARP_HALF_OPEN", self.bound)
        fabric, counters = self.fabric, self.device.counters
        made = []
        for index in range(self.bound):
            made.append(socket.create_connection(self.where, 10, (f"127.1.{index // 50}.1", 0)))
            if not index % 20:
                self.device.progress()
        self._peers.update(made)
        self.until(lambda: fabric.halfOpen.total() == self.bound)
        more = self.peer()
        self.assertEqual(self.received(more), b"")
        self.assertEqual((counters["iwarp_half_open_exceeded"], len(fabric.streams)), (1, self.bound))
        made.pop().close()
        self.until(lambda: fabric.halfOpen.total() == self.bound - 1)
        self.attacker()
        for each in made:
            each.close()
        self.victim.queuePair.close()
        self.pass_(6)
        self.assertNothingLeft()

    def test_slow(self) -> None:
        """
        A Request of one octet a second: the whole of it has to come in time.
        """
        made = self.peer()
        self.until(lambda: self.fabric.streams)
        for octet in REQUEST[:4]:
            made.sendall(bytes((octet,)))
            self.pass_(1.1)
        self.assertEqual(self.fabric.halfOpen.total(), 1)
        self.pass_(1.1)
        self.assertEqual(self.received(made), b"")
        made.close()
        self.assertNothingLeft()
