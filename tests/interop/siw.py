"""
C{ib-ping} and programs of rdma-core over iWARP, each the other's server: the guest has siw.
"""

from __future__ import annotations

import subprocess
import sys
import time

from twisted.trial.unittest import SkipTest

from tests.hca.capture.tcpstreams import Connection, connectionsOf, framesOf
from tests.hca.fabric.iwarp.protocol.streams import Direction, directionsOf
from tests.interop.case import GuestTestCase, Program
from tests.interop.examples import Messages
from tests.interop.lab.images import Images, cacheDirectory
from tests.interop.lab.lab import SIW, Peer
from tests.interop.lab.machine import Ended
from tests.interop.lab.wire import malformedOf
from tests.interop.rping import GONE_SECONDS, ROUNDS, SECONDS, UNUSED, Rounds, RPingPrograms, addSizes
from tests.support.captures import TSHARK, crcsOf
from tests.support.commands import PATH, programOf
from tests.support.waiting import PATIENCE
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.mpa import hasCRC32C

#: Rejects one request.
_REJECTS = """
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

channel = verbs.CMEventChannel()
listener = verbs.CMID(channel)
listener.bind_addr(verbs.AddrInfo(sys.argv[1], None, "7174", None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE))
listener.listen(1)
print("listens", flush=True)
event = channel.get_cm_event()
cmid = verbs.CMID(event, listen_id=listener)
event.ack_cm_event()
cmid.reject(b"no")
cmid.close()
listener.close()
"""
#: How soon the other side of a process that is killed has to say so.
ERROR_SECONDS = 5 * PATIENCE
#: How many frames are no beginning any more.
FRAMES = 500
#: The states of a TCP connection that is open, or that nobody has closed.
_OPEN = ("established", "syn-sent", "syn-recv", "close-wait", "fin-wait-1")


class SIWTestCase(GuestTestCase):
    """
    Everything between both sides is looked at: when a test ends, each octet of each connection was what the
    protocol's modules make of it, and tshark has found nothing wrong in ours.
    """

    kind = "iwarp"
    peer = Peer.SIW

    def setUp(self) -> None:
        """
        Skip the test without siw.
        """
        lacking = Images(cacheDirectory()).noSIW
        if lacking is not None:
            raise SkipTest(lacking)
        super().setUp()

    def tearDown(self) -> None:
        """
        Look at what happened.
        """
        self.release()
        for connection in self.connections():
            directionsOf(connection)
        self.assertEqual(malformedOf(self.file), [])
        super().tearDown()

    def connections(self) -> list[Connection]:
        """
        @return: the connections that were made so far, after which none is captured.
        """
        self.release()
        return [
            each for each in connectionsOf(framesOf(self.file)) if each.client.octets and each.server.octets
        ]

    def directions(self) -> tuple[Direction, Direction]:
        """
        @return: what the client and the server of the one connection have sent.
        """
        (connection,) = self.connections()
        return directionsOf(connection)

    def nothingLeft(self) -> None:
        """
        Wait until the guest's kernel has no object of RDMA any more but those of devices, and this side no
        open socket.
        """
        kinds = "pd cq qp cm_id mr".split()
        empty = " ".join(f"{kind} 0" for kind in kinds)
        gone = f"rdma resource show | grep -q '{SIW}: {empty} '"
        self.guest.must(f"until {gone}; do sleep 0.1; done", ERROR_SECONDS)
        states = [word for state in _OPEN for word in ("state", state)]
        command = self.lab.network.within(["ss", "-tnH", *states])
        deadline = time.monotonic() + ERROR_SECONDS
        while left := subprocess.run(command, check=True, capture_output=True, text=True).stdout:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


class SIWRounds(SIWTestCase, Rounds):
    """
    Rounds with siw.
    """

    def look(self, size: int) -> None:
        client, server = self.directions()
        self.assertGreaterEqual(client.payload(Opcode.READ_RESPONSE), ROUNDS * size)
        self.assertGreaterEqual(server.payload(Opcode.WRITE), ROUNDS * size)
        self.assertNotIn("TERMINATE", client.counts + server.counts)
        self.nothingLeft()


@addSizes
class RoundsTests(SIWRounds):
    """
    IPv4.
    """


@addSizes
class RoundsIPv6Tests(SIWRounds):
    """
    IPv6.
    """

    ipv6 = True


class MessagesTests(SIWTestCase, Messages):
    """
    C{ucmatose}, whose server sends first.
    """

    def test_client(self) -> None:
        """
        We are the client.
        """
        self.asClient()
        self.nothingLeft()

    def test_server(self) -> None:
        """
        We are the server.
        """
        self.asServer()
        self.nothingLeft()


class MessagesIPv6Tests(MessagesTests):
    """
    IPv6.
    """

    ipv6 = True


class RefusedTests(SIWTestCase, RPingPrograms):
    """
    A port without a listener: TCP's RST.
    """

    def test_client(self) -> None:
        """
        C{ib-ping} says so at once, in one sentence.
        """
        began = time.monotonic()
        ended = self.client("-p", UNUSED, "-C", "1").finish(SECONDS)
        self.assertLess(time.monotonic() - began, ERROR_SECONDS)
        self.assertNotIn(ended.status, (0, -1))
        self.assertEqual((ended.output, len(ended.errors.splitlines())), ("", 1), ended.errors)
        self.assertIn("refused", ended.errors)
        self.nothingLeft()

    def test_server(self) -> None:
        """
        C{rping} hears so from an address at which there are other services.  It does not end then.
        """
        server = self.server("-C", "1")
        client = self.start(f"timeout 3 rping -c -a {self.host} -p {UNUSED} -C 1")
        ended = self.guest.finish(client, SECONDS)
        self.assertIn("Connection refused", ended.output + ended.errors)
        self.assertIsNone(server.process.poll())


class RefusedIPv6Tests(RefusedTests):
    """
    IPv6.
    """

    ipv6 = True


class RejectedTests(SIWTestCase, RPingPrograms):
    """
    A program that does not want the connection: MPA's Reply says so, with private data.
    """

    def _look(self) -> None:
        """
        Check the Reply.
        """
        reply = self.directions()[1].startup
        self.assertEqual((reply.isRejected, reply.privateData), (True, b"no"))
        self.nothingLeft()

    def test_client(self) -> None:
        """
        C{ib-ping} hears it from the guest.
        """
        server = self.listening(f"python3 /interop/reject.py {self.there} 7174 no")
        ended = self.client("-C", "1").finish(SECONDS)
        self.assertIn("connection refused", ended.errors)
        self.succeeded(self.guest.finish(server, GONE_SECONDS))
        self._look()

    def test_server(self) -> None:
        """
        C{rping} hears it from this side.
        """
        server = self.program([sys.executable, "-c", PATH + _REJECTS, self.host])
        self.until(server, "listens")
        client = self.start(f"timeout 3 rping -c -a {self.host} -C 1")
        ended = self.guest.finish(client, SECONDS)
        self.assertIn("RDMA_CM_EVENT_REJECTED", ended.output + ended.errors)
        self.succeeded(server.finish(SECONDS))
        self._look()


class RejectedIPv6Tests(RejectedTests):
    """
    IPv6.
    """

    ipv6 = True


class CRCTests(SIWTestCase, RPingPrograms):
    """
    This side asks for CRCs, and siw checks and makes them.
    """

    options = ("-C", "20", "-S", "5003", "-V")

    def ping(self, *arguments: str, device: str | None = None) -> Program:
        """
        @return: an C{ib-ping} whose device asks for CRCs.
        """
        command = [sys.executable, "-c", PATH + programOf("ping.ping"), "--device", "iwarp0"]
        return self.program([*command, *arguments], TWISTED_IB_DEVICES=f"iwarp0=iwarp:{self.host}:crc=yes")

    def _look(self) -> None:
        """
        Check that there were CRCs, and that all were right.
        """
        directions = self.directions()
        count = sum(len(each.ulpdus) for each in directions)
        self.assertTrue(directions[0].startup.crc or directions[1].startup.crc)
        if TSHARK is not None:
            self.assertEqual(crcsOf(self.file), {"Good": count})

    def test_client(self) -> None:
        """
        As the client.
        """
        if not hasCRC32C():
            raise SkipTest("google-crc32c is not installed")
        server = self.remoteServer(*self.options)
        self.succeeded(self.client(*self.options).finish(SECONDS))
        self.succeeded(self.guest.finish(server, GONE_SECONDS))
        self._look()


class GoneTests(SIWTestCase, RPingPrograms):
    """
    One side is killed in the middle of its rounds: the other one has an error soon, and nothing is left.
    """

    options = ("-C", "1000000", "-S", "20000", "-V")

    def _rounds(self) -> None:
        """
        Wait until they go on.
        """
        packets = "cat /sys/class/net/eth0/statistics/rx_packets"
        isGoing = f"[ $({packets}) -gt $((before + {FRAMES})) ]"
        self.guest.must(f"before=$({packets}); until {isGoing}; do sleep 0.05; done", GONE_SECONDS)

    def _said(self, program: Program) -> None:
        """
        Check that a process of this side fails soon, with one sentence.
        """
        ended = program.finish(ERROR_SECONDS)
        self.assertNotIn(ended.status, (0, -9), ended.text)
        self.oneSentence(ended)
        self.nothingLeft()

    def _heard(self, number: int) -> None:
        """
        Check that a process of the guest fails soon.  rping's status says so only if its other thread was not
        the first to see it.
        """
        ended: Ended = self.guest.finish(number, ERROR_SECONDS)
        self.assertNotEqual(ended.status, 124, ended.text)
        self.assertRegex(ended.output + ended.errors, "DISCONNECT EVENT|cq completion failed")
        self.nothingLeft()

    def test_remoteServer(self) -> None:
        """
        The guest's server.
        """
        server = self.remoteServer(*self.options)
        client = self.client(*self.options)
        self._rounds()
        self.guest.kill(server)
        self._said(client)

    def test_remoteClient(self) -> None:
        """
        The guest's client.
        """
        server = self.server(*self.options)
        client = self.remoteClient(*self.options)
        self._rounds()
        self.guest.kill(client)
        self._said(server)

    def test_client(self) -> None:
        """
        Our client.
        """
        server = self.remoteServer(*self.options)
        client = self.client(*self.options)
        self._rounds()
        client.kill()
        self._heard(server)

    def test_server(self) -> None:
        """
        Our server.
        """
        server = self.server(*self.options)
        client = self.remoteClient(*self.options)
        self._rounds()
        server.kill()
        self._heard(client)


class GoneIPv6Tests(GoneTests):
    """
    IPv6.
    """

    ipv6 = True
