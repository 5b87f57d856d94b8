"""
Tests for C{ib-ping --as}: C{ucmatose}, C{udaddy} and C{mckey}, both ends in one process, on C{lo0}.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from tests.support.waiting import waitUntil
from tests.tools.ping.test_ping import DEVICE, HOST, EndsTestCase
from twisted_ib import limits
from twisted_ib.tools.ping import messages, ping, transfers
from twisted_ib.tools.ping.station import VerbsSession
from twisted_ib.verbs.pyverbs import CMID, CQ, AddrInfo, ConnParam, QPCap, QPInitAttr, enums

GROUP = "239.1.2.3"


class TransferTestCase(EndsTestCase):
    """
    Both ends are C{ib-ping}.

    @cvar program: which one.
    """

    program: str

    def both(self, *options: str, server: tuple[str, ...] = (), client: tuple[str, ...] = ()) -> None:
        """
        Run both ends, which have to succeed.

        @param options: of both.
        """
        begin = "--as", self.program
        ended = self.server(*begin, "-b", HOST, *options, *server)
        status = ping.main([*begin, *DEVICE, "-s", HOST, *options, *client])
        self.assertEqual((status, ended(), self.said.getvalue()), (0, 0, ""))

    def refused(self) -> None:
        """
        Nobody listens: one sentence.
        """
        self.assertEqual(ping.main(["--as", self.program, *DEVICE, "-s", HOST, "-p", "7999"]), 1)
        self.assertEqual(
            self.said.getvalue(), "ib-ping: 127.0.0.1 port 7999: connection refused, nobody listens there\n"
        )


class MessagesTests(TransferTestCase):
    """
    C{ucmatose}.
    """

    program = "ucmatose"

    def test_messages(self) -> None:
        """
        Messages go both ways.
        """
        self.both()
        said = "1 connections, 10 messages of 100 bytes each way\n"
        self.assertEqual(self.printed.getvalue(), 2 * said)

    def test_many(self) -> None:
        """
        Over many connections; of any length; none at all.
        """
        self.both("-c", "7", "-C", "50", "-S", "3000")
        self.both("-C", "2", "-S", "200000")
        self.both("-C", "0")
        self.both("-S", "0")

    def test_options(self) -> None:
        """
        Another port and port space, another event channel, another timeout.
        """
        self.both("-p", "7999", "-P", "ib", "-m", "-a", "18")

    def test_refused(self) -> None:
        """
        Nobody listens.
        """
        self.refused()

    def test_parameters(self) -> None:
        """
        The client's connection parameters are ucmatose's.
        """
        asked: list[ConnParam] = []
        connect = CMID.connect

        def watched(made: CMID, param: Any = None) -> None:
            asked.append(param)
            connect(made, param)

        self.patch(CMID, "connect", watched)
        self.both()
        [param] = asked
        self.assertEqual((param.resources, param.depth, param.retry, param.rnr_retry), (1, 1, 5, 0))

    def test_tooShort(self) -> None:
        """
        A message longer than the receiver's buffer fails at both ends.
        """
        ended = self.server("--as", self.program, "-b", HOST, "-S", "200")
        status = ping.main(["--as", self.program, *DEVICE, "-s", HOST, "-S", "100"])
        self.assertEqual((status, ended()), (1, 1))

    def test_tooFew(self) -> None:
        """
        A client that waits for more messages than come has failed.
        """
        ended = self.server("--as", self.program, "-b", HOST, "-C", "2")
        self.patch(VerbsSession.finish, "__defaults__", (0.5,))
        status = ping.main(["--as", self.program, *DEVICE, "-s", HOST, "-C", "3"])
        self.assertEqual((status, ended()), (1, 1))


class RepliesTests(TransferTestCase):
    """
    C{udaddy}.
    """

    program = "udaddy"

    def test_datagrams(self) -> None:
        """
        Datagrams go both ways.
        """
        self.both()
        said = "1 connections, 10 datagrams of 100 bytes each way\n"
        self.assertEqual(self.printed.getvalue(), 2 * said)

    def test_many(self) -> None:
        """
        Many, and more than can wait for their way.
        """
        self.patch(limits, "DATAGRAMS_QUEUED", 64)
        self.both("-c", "4", "-C", str(2 * limits.DATAGRAMS_QUEUED), "-S", "1000")
        self.both("-S", str(limits.DATAGRAM_BYTES))
        self.both("-C", "0")

    def test_port(self) -> None:
        """
        A port, and a port space.
        """
        self.both("-p", "7999")
        self.both("-P", "ipoib")

    def test_refused(self) -> None:
        """
        A service without a listener is refused.
        """
        self.refused()

    def test_tooLong(self) -> None:
        """
        A datagram is one packet.
        """
        size = str(limits.DATAGRAM_BYTES + 1)
        self.assertEqual(ping.main(["--as", self.program, *DEVICE, "-s", HOST, "-S", size]), 1)
        self.assertEqual(
            self.said.getvalue(), "ib-ping: a datagram of 4097 bytes is longer than the MTU, 4096\n"
        )

    def test_immediate(self) -> None:
        """
        Datagrams carry the number of their sender's queue pair, as on the wire of C{rxe-udaddy}.
        """
        seen: list[tuple[int, int]] = []
        aim = messages.DatagramConnection.aimBack

        def watched(line: messages.DatagramConnection, wc: Any) -> None:
            seen.append((socket.ntohl(wc.imm_data), wc.src_qp))
            aim(line, wc)

        self.patch(messages.DatagramConnection, "aimBack", watched)
        self.both()
        [(immediate, sender)] = seen
        self.assertEqual(immediate, sender)


class GroupTests(EndsTestCase):
    """
    C{mckey}.
    """

    def setUp(self) -> None:
        """
        Do not wait for switches.
        """
        super().setUp()
        self.patch(messages, "SETTLING", 0.1)

    def mckey(self, *options: str) -> int:
        """
        @return: its exit status.
        """
        return ping.main(["--as", "mckey", *DEVICE, "-m", GROUP, "-b", HOST, *options])

    def joined(self, count: int) -> None:
        """
        Wait until so many receivers have joined.
        """
        waitUntil(lambda: self.printed.getvalue().count("joined") >= count)

    def test_group(self) -> None:
        """
        All receivers get the datagrams of one sender, and end.
        """
        receivers = [self.started(lambda: self.mckey("-C", "5", "-S", "200")) for _ in range(3)]
        self.joined(3)
        self.assertEqual(self.mckey("-C", "5", "-S", "200", "-s"), 0)
        self.assertEqual([ended() for ended in receivers], [0, 0, 0])
        self.assertEqual(self.printed.getvalue().count("5 datagrams of 200 bytes received\n"), 3)

    def test_waiting(self) -> None:
        """
        A receiver does not end before all of its messages came.
        """
        ended = self.started(lambda: self.mckey("-C", "5"))
        self.joined(1)
        self.assertEqual(self.mckey("-C", "4", "-s"), 0)
        time.sleep(0.2)
        self.assertNotIn("received", self.printed.getvalue())
        self.assertEqual(self.mckey("-C", "1", "-s", "-o"), 0)
        self.assertEqual(ended(), 0)

    def test_noGroup(self) -> None:
        """
        An address that is no group's.
        """
        self.assertEqual(ping.main(["--as", "mckey", *DEVICE, "-m", HOST]), 1)
        self.assertEqual(self.said.getvalue().count("\n"), 1)


class BusyTests(EndsTestCase):
    """
    Limits of memory, queues and packets.
    """

    def test_queues(self) -> None:
        """
        The longest queues that can be asked for can be had.
        """
        station = VerbsSession("lo0")
        self.addCleanup(station.close)
        depth = limits.WORK_QUEUE_DEPTH
        cq = CQ(station.context, 2 * depth)
        attr = QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(depth, depth))
        with CMID(AddrInfo(None, HOST, None, "7999", enums.RDMA_PS_TCP), None, station.pd) as made:
            made.create_qp(attr)

    def test_memory(self) -> None:
        """
        Memory is counted for messages of both directions.
        """
        self.assertIsNone(messages.checkMemory(8, transfers.PING_MESSAGE))
