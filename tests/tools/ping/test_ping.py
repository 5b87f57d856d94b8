"""
Tests for C{ib-ping}'s rounds: options, texts, and what goes between the ends, on C{lo0}.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from struct import pack, unpack
from threading import Event, Thread
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import refusal
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.hca.device import registry
from twisted_ib.hca.wire.cm.messages import timeoutSeconds
from twisted_ib.tools.ping import line as pingline
from twisted_ib.tools.ping import ping, rounds, transfers
from twisted_ib.tools.ping import station as pingstation
from twisted_ib.tools.ping.device import addressOf, chosen
from twisted_ib.tools.ping.line import PeerGone
from twisted_ib.tools.ping.rounds import Server, text
from twisted_ib.tools.ping.station import Listener, VerbsSession
from twisted_ib.tools.program import ProgramError
from twisted_ib.verbs.pyverbs import CMID, MR, AddrInfo, ConnParam, PyverbsRDMAError, QPCap, QPInitAttr, enums
from twisted_ib.verbs.pyverbs.cm import negotiation

HOST = "127.0.0.1"
PORT = "7174"
DEVICE = ("--device", "lo0")

#: Of the capture C{rxe-rping}, the data of the first and of the third round.
FIRST = b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0"
THIRD = b"rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrst\0"


class OptionTests(SynchronousTestCase):
    """
    The command line.
    """

    def refused(self, *arguments: str) -> str:
        """
        @return: the one line with which a command line is refused.
        """
        return refusal(self, ping.main, *arguments)

    def test_defaults(self) -> None:
        """
        Without options: rping's port and size, and rounds without end.
        """
        options = ping.commandLine().parse_args(["-c"])
        found = options.port, options.size, options.count, options.address, options.source, options.device
        self.assertEqual(found, (7174, 64, 0, None, None, None))
        self.assertFalse(options.server or options.persistent or options.validate or options.verbose)

    def test_bounds(self) -> None:
        """
        Sizes are rping's: 23 to 65535.
        """
        for size in ("23", "65535"):
            self.assertEqual(ping.commandLine().parse_args(["-s", "-S", size]).size, int(size))
        for size in ("22", "65536", "x"):
            self.assertIn("no number from 23 to 65535", self.refused("-s", "-S", size))
        self.assertIn("no number", self.refused("-c", "-C", "-1"))
        self.assertIn("no number", self.refused("-c", "-C", str(limits.PING_COUNT + 1)))
        self.assertIn("no number", self.refused("-c", "-p", "65536"))

    def test_roles(self) -> None:
        """
        One of two roles has to be said.
        """
        self.assertIn("required", self.refused())
        self.assertIn("not allowed", self.refused("-s", "-c"))

    def test_programs(self) -> None:
        """
        C{--as} names a program, and what follows are its options.
        """
        self.assertEqual(transfers.programOf(["-c", "-C", "3"]), ("rping", ["-c", "-C", "3"]))
        self.assertEqual(transfers.programOf(["--as", "mckey", "-s"]), ("mckey", ["-s"]))
        self.assertIn("invalid choice", self.refused("--as", "qperf"))

    def test_ucmatose(self) -> None:
        """
        ucmatose's options: C{-s} has an address, C{-c} a number.
        """
        given = [
            "-s",
            "h",
            "-b",
            "o",
            "-c",
            "3",
            "-C",
            "4",
            "-S",
            "5",
            "-p",
            "6",
            "-m",
            "-P",
            "ib",
            "-a",
            "7",
        ]
        found = transfers.parseArguments("ucmatose", given)
        self.assertEqual((found.peer, found.own, found.connections), ("h", "o", 3))
        self.assertEqual((found.count, found.size, found.port, found.migrate), (4, 5, 6, True))
        self.assertEqual((found.space, found.timeout), (enums.RDMA_PS_IB, 7))
        found = transfers.parseArguments("ucmatose", [])
        self.assertEqual((found.peer, found.connections, found.count, found.size), (None, 1, 10, 100))
        self.assertEqual((found.port, found.space), (7471, enums.RDMA_PS_TCP))

    def test_udaddy(self) -> None:
        """
        udaddy's C{-p} is a port space; any other number is a port.
        """
        found = transfers.parseArguments("udaddy", [])
        self.assertEqual((found.port, found.space), (7174, enums.RDMA_PS_UDP))
        found = transfers.parseArguments("udaddy", ["-p", "0x2"])
        self.assertEqual((found.port, found.space), (7174, enums.RDMA_PS_IPOIB))
        found = transfers.parseArguments("udaddy", ["-p", "7999"])
        self.assertEqual((found.port, found.space), (7999, enums.RDMA_PS_UDP))
        self.assertIn("no port", self.refused("--as", "udaddy", "-p", "65536"))

    def test_mckey(self) -> None:
        """
        mckey needs a group, and an own address for one that is a GID.
        """
        found = transfers.parseArguments("mckey", ["-m", "239.1.2.3", "-s", "-o", "-l"])
        self.assertEqual((found.group, found.sender, found.sendOnly), ("239.1.2.3", True, True))
        found = transfers.parseArguments("mckey", ["-M", "ff0e::1", "-b", "::1"])
        self.assertEqual((found.group, found.own, found.sender), ("ff0e::1", "::1", False))
        self.assertIn("required", self.refused("--as", "mckey"))
        self.assertIn("-M needs -b", self.refused("--as", "mckey", "-M", "ff0e::1"))
        self.assertIn("no port space", self.refused("--as", "mckey", "-m", "239.1.2.3", "-p", "1"))

    def test_empty(self) -> None:
        """
        Messages of no bytes are no messages.
        """
        self.assertEqual(transfers.parseArguments("udaddy", ["-S", "0"]).count, 0)

    def test_memory(self) -> None:
        """
        All messages need memory, which has a bound.
        """
        said = io.StringIO()
        with redirect_stderr(said):
            status = ping.main(["--as", "ucmatose", *DEVICE, "-c", "16", "-S", str(transfers.PING_MESSAGE)])
        self.assertEqual(status, 1)
        self.assertIn("too much memory", said.getvalue())

    def test_connections(self) -> None:
        """
        So have connections, and messages.
        """
        self.assertIn("no number", self.refused("--as", "udaddy", "-c", str(transfers.PING_CONNECTIONS + 1)))
        self.assertIn("no number", self.refused("--as", "udaddy", "-C", str(limits.WORK_QUEUE_DEPTH + 1)))
        self.assertIn("no number", self.refused("--as", "udaddy", "-S", str(transfers.PING_MESSAGE + 1)))


class TextTests(SynchronousTestCase):
    """
    The data of a round.
    """

    def test_captured(self) -> None:
        """
        They are rping's.
        """
        self.assertEqual((text(0, 64), text(2, 64)), (FIRST, THIRD))

    def test_rotated(self) -> None:
        """
        The first character comes again after 58 rounds; after z there is A.
        """
        self.assertEqual(text(57, 24), b"rdma-ping-57: zABCDEFGH\0")
        self.assertEqual(text(58, 24), b"rdma-ping-58: ABCDEFGHI\0")

    def test_sizes(self) -> None:
        """
        They have as many octets as asked for, and no 0 but the last.
        """
        for size in (23, 64, 1000, 65535):
            for number in (0, 1, 9999, (1 << 31) - 1):
                data = text(number, size)
                self.assertEqual((len(data), data.index(b"\0")), (size, size - 1))
        self.assertEqual(text((1 << 31) - 1, 23), b"rdma-ping-2147483647: \0")


class GoneTests(SynchronousTestCase):
    """
    A server whose client does not answer a probe.
    """

    def serve(self, done: int, isWithin: bool, count: int) -> None:
        """
        @param done: the rounds that were done.
        @param isWithin: whether another one has begun.
        @param count: those that it was told of.
        """

        def rounds(*_: object) -> Any:
            raise PeerGone("it does not answer any more")
            yield

        self.patch(Server, "__init__", lambda *_: None)
        self.patch(Server, "accept", lambda *_: None)
        self.patch(Server, "up", lambda *_: iter(()))
        self.patch(Server, "_rounds", rounds)
        server: Any = Server()  # type: ignore[call-arg]
        server.count, server.isWithin = done, isWithin
        list(server.serve(False, False, count))

    def test_done(self) -> None:
        """
        After all rounds that is no error: the DREQ may be lost.
        """
        self.serve(20, False, 20)

    def test_notDone(self) -> None:
        """
        Before that, or where it knows no number, it is one.
        """
        for done, isWithin, count in ((19, False, 20), (20, True, 20), (20, False, 0)):
            self.assertRaises(PeerGone, self.serve, done, isWithin, count)


class DeviceTests(SynchronousTestCase):
    """
    Which device is used.
    """

    def setUp(self) -> None:
        """
        Nothing is configured, and nothing stays.
        """
        self.patch(os, "environ", {"TWISTED_IB_CONFIG": os.devnull})
        self.patch(registry, "_read", dict(registry._read))
        before = set(registry.DEVICES)

        def clean() -> None:
            for name in set(registry.DEVICES) - before:
                registry.removeDevice(name)

        self.addCleanup(clean)

    def test_default(self) -> None:
        """
        Shared memory, unless C{roce0} is configured.
        """
        self.assertEqual(chosen(None, None), "shm0")
        os.environ["TWISTED_IB_DEVICES"] = "roce0=roce:127.0.0.1"
        self.assertEqual(chosen(None, None), "roce0")
        self.assertEqual(chosen("lo0", None), "lo0")

    def test_file(self) -> None:
        """
        The file of rules configures devices, too.
        """
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("device roce0 roce 127.0.0.9\n")
        os.environ["TWISTED_IB_CONFIG"] = os.path.abspath(path)
        self.assertEqual(chosen(None, None), "roce0")
        self.assertEqual(registry.addressOf("roce0"), "127.0.0.9")

    def test_bound(self) -> None:
        """
        Without being configured it is where the user binds, or where the way to the peer begins.
        """
        self.assertEqual(chosen("roce0", "127.0.0.3"), "roce0")
        self.assertEqual(registry.addressOf("roce0"), "127.0.0.3")
        registry.removeDevice("roce0")
        self.assertEqual(chosen("roce0", None, "127.0.0.1"), "roce0")
        self.assertEqual(registry.addressOf("roce0"), "127.0.0.1")

    def test_unknown(self) -> None:
        """
        An unknown device, a device without an address, or an unknown host name.
        """
        self.assertIn("no device 'x'", str(self.assertRaises(ProgramError, chosen, "x", None)))
        self.assertIn("no address", str(self.assertRaises(ProgramError, chosen, "roce0", None)))
        self.assertIn("invalid.:", str(self.assertRaises(ProgramError, addressOf, "invalid.")))


class Heard(VerbsSession):
    """
    A station that signals when it listens.
    """

    listening = Event()

    def listen(self, host: str, port: int, space: int, backlog: int = 0) -> Listener:
        """
        Listen, and set the event.
        """
        found = super().listen(host, port, space, backlog)
        self.listening.set()
        return found


class EndsTestCase(SynchronousTestCase):
    """
    Both ends in one process: the server in a thread.
    """

    def setUp(self) -> None:
        """
        Nobody listens.
        """
        self.patch(Heard, "listening", Event())
        self.patch(ping, "VerbsSession", Heard)
        self.patch(transfers, "VerbsSession", Heard)
        self.said = io.StringIO()
        self.printed = io.StringIO()
        for redirect in (redirect_stderr(self.said), redirect_stdout(self.printed)):
            redirect.__enter__()
            self.addCleanup(redirect.__exit__, None, None, None)

    def started(self, function: Callable[[], int]) -> Callable[[], int]:
        """
        Run something in a thread.

        @return: what waits for its result.
        """
        results: list[int] = []
        thread = Thread(target=lambda: results.append(function()), daemon=True)
        thread.start()

        def ended() -> int:
            thread.join(HANG_SECONDS)
            self.assertFalse(thread.is_alive(), "it goes on")
            return results[0]

        return ended

    def server(self, *options: str) -> Callable[[], int]:
        """
        Start a server.

        @return: what waits for its exit status.
        """
        Heard.listening.clear()
        first = () if "--as" in options else ("-s", "-a", HOST)
        ended = self.started(lambda: ping.main([*options, *DEVICE, *first]))
        self.assertTrue(Heard.listening.wait(HANG_SECONDS))
        return ended

    def client(self, *options: str) -> int:
        """
        Run a client.

        @return: its exit status.
        """
        return ping.main(["-c", *DEVICE, "-a", HOST, *options])


class RoundTests(EndsTestCase):
    """
    Both ends are C{ib-ping}.
    """

    def test_sizes(self) -> None:
        """
        Rounds of all sizes are done and are right.
        """
        for size in ("23", "64", "1000", "5000", "65535"):
            ended = self.server("-S", size, "-V", "-C", "5")
            self.assertEqual(self.client("-S", size, "-C", "5", "-V"), 0)
            self.assertEqual(ended(), 0)
        self.assertEqual((self.said.getvalue(), self.printed.getvalue()), ("", ""))

    def test_verbose(self) -> None:
        """
        C{-v} prints the data at both ends.
        """
        ended = self.server("-v")
        self.assertEqual((self.client("-C", "1", "-v"), ended()), (0, 0))
        data = FIRST[:-1].decode()
        lines = sorted(self.printed.getvalue().splitlines())
        self.assertEqual(lines, [f"ping data: {data}", f"server ping data: {data}"])

    def test_debug(self) -> None:
        """
        C{-d} prints what goes on.
        """
        ended = self.server()
        self.assertEqual((self.client("-C", "1", "-d"), ended()), (0, 0))
        for each in ("RDMA_CM_EVENT_ESTABLISHED", "recv completion", "told of 0 bytes at 0x0"):
            self.assertIn(each, self.printed.getvalue())

    def test_tooFew(self) -> None:
        """
        A server with C{-C} has failed if its client does fewer rounds; one without has not.
        """
        ended = self.server("-C", "3")
        self.assertEqual((self.client("-C", "2"), ended()), (0, 1))
        self.assertEqual(self.said.getvalue(), "ib-ping: 127.0.0.1 has disconnected after 2 of 3 rounds\n")
        ended = self.server()
        self.assertEqual((self.client("-C", "2"), ended()), (0, 0))

    def test_tooMuch(self) -> None:
        """
        A client with more data than the server has room for: both fail.
        """
        ended = self.server("-S", "100")
        self.assertEqual((self.client("-C", "2", "-S", "101"), ended()), (1, 1))
        self.assertIn("127.0.0.1 has 101 bytes, this server room for 100 (-S)\n", self.said.getvalue())
        self.assertIn("127.0.0.1 has disconnected after 0 of 2 rounds\n", self.said.getvalue())

    def test_refused(self) -> None:
        """
        Nobody listens: one sentence.
        """
        self.assertEqual(self.client("-C", "2", "-p", "7999"), 1)
        said = "ib-ping: 127.0.0.1 port 7999: connection refused, nobody listens there\n"
        self.assertEqual(self.said.getvalue(), said)

    def test_elsewhere(self) -> None:
        """
        No way leads there, or the address to listen at is another host's.
        """
        self.assertEqual(ping.main(["-c", *DEVICE, "-a", "192.0.2.77", "-C", "1"]), 1)
        self.assertEqual(ping.main(["-s", *DEVICE, "-a", "192.0.2.77"]), 1)
        lines = self.said.getvalue().splitlines()
        self.assertEqual(lines[0], "ib-ping: no way leads from device lo0 to 192.0.2.77")
        self.assertIn("not an address of this host", lines[1])
        self.assertEqual(len(lines), 2)

    def test_taken(self) -> None:
        """
        Two servers with one port.
        """
        ended = self.server()
        self.assertEqual(ping.main(["-s", *DEVICE, "-a", HOST]), 1)
        self.assertEqual((self.client("-C", "1"), ended()), (0, 0))
        self.assertEqual(self.said.getvalue().count("\n"), 1)

    def test_silent(self) -> None:
        """
        A server that never answers: the client gives up in time.
        """
        self.patch(ping, "CONNECTING", 0.2)
        with CMID(
            AddrInfo(HOST, None, PORT, None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE), None, self.pd()
        ) as made:
            made.listen()
            self.assertEqual(self.client("-C", "1"), 1)
        self.assertEqual(self.said.getvalue(), "ib-ping: 127.0.0.1 does not answer\n")

    def test_delayed(self) -> None:
        """
        A server that asks for time by MRAs is waited for, and given up when it asks no more (issue 16, point
        8).
        """
        self.patch(ping, "CONNECTING", 0.05)
        looks: list[bool] = []

        def isDelayed(cmid: CMID) -> bool:
            looks.append(len(looks) < 3)
            return looks[-1]

        self.patch(CMID, "isDelayed", property(isDelayed))
        with CMID(
            AddrInfo(HOST, None, PORT, None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE), None, self.pd()
        ) as made:
            made.listen()
            self.assertEqual(self.client("-C", "1"), 1)
        self.assertEqual(looks, [True] * 3 + [False])
        self.assertEqual(self.said.getvalue(), "ib-ping: 127.0.0.1 does not answer\n")

    def test_repeats(self) -> None:
        """
        Two repeats of the REQ, and the answer to the second, fit into the time for connecting.
        """
        self.assertGreater(pingstation.CONNECTING, 3 * timeoutSeconds(negotiation.RESPONSE_TIMEOUT))

    def pd(self) -> Any:
        """
        A domain of the device.
        """
        station = VerbsSession("lo0")
        self.addCleanup(station.close)
        return station.pd

    def test_crowd(self) -> None:
        """
        A persistent server has a bounded number of clients at a time.
        """
        self.patch(rounds, "PING_CLIENTS", 1)
        stations: list[VerbsSession] = []
        made = Heard.__init__

        def init(station: VerbsSession, *arguments: Any) -> None:
            made(station, *arguments)
            stations.append(station)

        self.patch(Heard, "__init__", init)
        ended = self.server("-P")
        stranger = Stranger(self, self.pd())
        stranger.connect()
        self.assertEqual(self.client("-C", "1"), 1)
        self.assertIn("connection refused\n", self.said.getvalue())
        stranger.close()
        # Its place is free as soon as the server has heard of that.
        self.assertEqual(0, self.client("-C", "1") and self.client("-C", "1"))
        stations[0]._signal = 15
        self.assertEqual(ended(), 143)

    def test_persistent(self) -> None:
        """
        A persistent server has many clients, of which one is silent and one breaks the rules.
        """
        begin, lines = Server.begin, []

        def begun(line: Server, seconds: float | None) -> None:
            # The silent one comes first, and its time is short; a busy machine may let the others wait.
            lines.append(line)
            begin(line, 0.5 if line is lines[0] else seconds)

        self.patch(Server, "begin", begun)
        stations: list[VerbsSession] = []
        made = Heard.__init__

        def init(station: VerbsSession, *arguments: Any) -> None:
            made(station, *arguments)
            stations.append(station)

        self.patch(Heard, "__init__", init)
        ended = self.server("-P", "-V")
        silent, wrong = Stranger(self, self.pd()), Stranger(self, self.pd())
        silent.connect()
        wrong.connect()
        wrong.send(b"seven..")
        clients = [self.started(lambda: self.client("-C", "20")) for _ in range(3)]
        self.assertEqual([client() for client in clients], [0, 0, 0])
        silent.disconnected()
        wrong.disconnected()
        stations[0]._signal = 2
        self.assertEqual(ended(), 130)
        said = sorted(self.said.getvalue().splitlines())
        self.assertEqual(
            said,
            ["ib-ping: 127.0.0.1 does not answer", "ib-ping: 127.0.0.1 has sent 7 bytes where 16 were due"],
        )


class Stranger:
    """
    An end that does what the test says, octet by octet.
    """

    def __init__(self, case: SynchronousTestCase, pd: Any, listens: bool = False) -> None:
        """
        @param listens: whether it is the server.
        """
        self._case = case
        attr = QPInitAttr(enums.IBV_QPT_RC, cap=QPCap(max_send_wr=16, max_recv_wr=16))
        self.listener: CMID | None = None
        self._open: list[CMID] = []
        if listens:
            info = AddrInfo(HOST, None, PORT, None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE)
            self.listener = CMID(info, attr, pd)
            self.listener.listen()
            self._open.append(self.listener)
        else:
            self._hold(CMID(AddrInfo(None, HOST, None, PORT, enums.RDMA_PS_TCP), attr, pd))
        case.addCleanup(self.close)

    def _hold(self, made: CMID) -> None:
        """
        Have memory, and receives.
        """
        self.made = made
        self._open.insert(0, made)
        access = enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_WRITE
        pd: Any = made.pd
        self.data = MR(pd, 4096, int(enums.IBV_ACCESS_LOCAL_WRITE | access))
        self.out = made.reg_msgs(4096)
        self.inbox = made.reg_msgs(4096)
        made.post_recv(self.inbox)

    def connect(self) -> None:
        """
        Call.
        """
        self.made.connect(ConnParam(resources=1, depth=1, retry=7, rnr_retry=7))

    def accept(self) -> None:
        """
        Wait for a call, and take it.
        """
        assert self.listener is not None
        self._hold(self.listener.get_request())
        self.made.accept()

    def send(self, data: bytes) -> None:
        """
        Send a message.
        """
        self.out.write(data, len(data))
        self.made.post_send(self.out, length=len(data))
        self.complete()

    def complete(self) -> None:
        """
        Wait until what was asked for is done.
        """
        completion = self.made.get_send_comp()
        assert completion is not None
        self._case.assertEqual(completion.status, enums.IBV_WC_SUCCESS)

    def tell(self, size: int) -> None:
        """
        Tell of the memory.
        """
        self.send(pack("!QII", self.data.buf, self.data.rkey, size))

    def heard(self) -> bytes:
        """
        @return: the next message.
        """
        completion = self.made.get_recv_comp()
        assert completion is not None
        self._case.assertEqual(completion.status, enums.IBV_WC_SUCCESS)
        data = self.inbox.read(completion.byte_len, 0)
        self.made.post_recv(self.inbox)
        return data

    def disconnected(self) -> None:
        """
        Wait for the other end to go.
        """
        completion = self.made._complete()
        assert completion is not None
        self._case.assertEqual(completion.kind, enums.RDMA_CM_EVENT_DISCONNECTED)

    def close(self) -> None:
        """
        Give everything back.
        """
        for each in self._open:
            with contextlib.suppress(PyverbsRDMAError):
                each.disconnect()
            each.close()
        self._open.clear()


class WireTests(EndsTestCase):
    """
    One end is C{ib-ping}, what the other does is written out.
    """

    def stranger(self, listens: bool = False) -> Stranger:
        """
        The other end.
        """
        station = VerbsSession("lo0")
        self.addCleanup(station.close)
        return Stranger(self, station.pd, listens)

    def test_server(self) -> None:
        """
        A server READs the advertised memory, replies with 16 zeros, and WRITEs the text and its 0, no more.
        """
        ended = self.server("-V", "-S", "200")
        client = self.stranger()
        client.connect()
        for number in range(2):
            client.data.write(text(number, 64) + b"?" * 136, 200)
            client.tell(64)
            self.assertEqual(client.heard(), bytes(16))
            client.data.write(b"!" * 200, 200)
            client.tell(200)
            self.assertEqual(client.heard(), bytes(16))
            self.assertEqual(client.data.read(200, 0), text(number, 64) + b"!" * 136)
        client.close()
        self.assertEqual(ended(), 0)

    def test_escapes(self) -> None:
        """
        Control characters of a client's data do not reach the terminal.
        """
        ended = self.server("-v")
        client = self.stranger()
        client.connect()
        client.data.write(b"\x1b[2J\xff\n\0", 7)
        client.tell(7)
        self.assertEqual(client.heard(), bytes(16))
        client.close()
        self.assertEqual(ended(), 1)
        self.assertEqual(self.printed.getvalue(), "server ping data: \\x1b[2J\xff\\n\n")

    def failing(self, said: str, *options: str) -> Stranger:
        """
        @param said: what a server will have said.

        @return: its client.
        """
        ended = self.server(*options)
        client = self.stranger()
        client.connect()

        def check() -> None:
            self.assertEqual(ended(), 1)
            self.assertEqual(self.said.getvalue(), f"ib-ping: 127.0.0.1 {said}\n")

        self.addCleanup(check)
        return client

    def test_endless(self) -> None:
        """
        Data without a 0 have no end.
        """
        client = self.failing("has data without an end")
        client.data.write(b"?" * 64, 64)
        client.tell(64)

    def test_empty(self) -> None:
        """
        No data have none either.
        """
        self.failing("has data without an end").tell(0)

    def test_otherData(self) -> None:
        """
        With C{-V} a server wants to see what rping sends.
        """
        client = self.failing("has other data than due in round 1", "-V")
        client.data.write(text(1, 64), 64)
        client.tell(64)

    def test_noAccess(self) -> None:
        """
        A key that is none.
        """
        client = self.failing("gives no access to the memory that it tells of")
        client.send(pack("!QII", client.data.buf, client.data.rkey ^ 0x100, 64))

    def test_short(self) -> None:
        """
        A note that is none.
        """
        self.failing("has sent 15 bytes where 16 were due").send(bytes(15))

    def test_tooLong(self) -> None:
        """
        A message for which there is no room.
        """
        client = self.failing("sends more than there is room for")
        client.out.write(bytes(4096), 4096)
        client.made.post_send(client.out, length=4096)

    def test_leaving(self) -> None:
        """
        A client that goes within a round.
        """
        client = self.failing("has disconnected within round 1")
        client.data.write(FIRST, 64)
        client.tell(64)
        self.assertEqual(client.heard(), bytes(16))
        client.close()

    def test_client(self) -> None:
        """
        A client tells of two regions of its size, one after the other; the second is empty before.
        """
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "1", "-S", "64"))
        server.accept()
        address, key, size = unpack("!QII", server.heard())
        self.assertEqual(size, 64)
        server.made.post_read(server.data, size, address, key, enums.IBV_SEND_SIGNALED)
        server.complete()
        self.assertEqual(server.data.read(64, 0), FIRST)
        server.send(bytes(16))
        other, otherKey, size = unpack("!QII", server.heard())
        self.assertEqual(size, 64)
        self.assertNotEqual(other, address)
        server.made.post_write(server.data, 64, other, otherKey, enums.IBV_SEND_SIGNALED)
        server.complete()
        server.send(bytes(16))
        server.disconnected()
        server.close()
        self.assertEqual(ended(), 0)

    def lying(self, *options: str) -> None:
        """
        A server that writes something else, and a client that finds it out.
        """
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "2", *options))
        server.accept()
        server.heard()
        server.send(bytes(16))
        address, key, _ = unpack("!QII", server.heard())
        server.data.write(FIRST[:-2] + b"!\0", 64)
        server.made.post_write(server.data, 64, address, key, enums.IBV_SEND_SIGNALED)
        server.complete()
        server.send(bytes(16))
        server.disconnected()
        server.close()
        self.assertEqual(ended(), 1)
        self.assertEqual(self.said.getvalue(), "ib-ping: 127.0.0.1 has sent other data back in round 1\n")

    def test_lying(self) -> None:
        """
        Other data come back.
        """
        self.lying("-V")

    def test_lyingUnasked(self) -> None:
        """
        A client compares without being asked to.
        """
        self.lying()

    def test_lazy(self) -> None:
        """
        A server that says that it has written and has not.
        """
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "2", "-V"))
        server.accept()
        for _ in range(2):
            server.heard()
            server.send(bytes(16))
        self.assertEqual(ended(), 1)
        self.assertIn("has sent other data back in round 1\n", self.said.getvalue())

    def test_leavingServer(self) -> None:
        """
        A server that goes.
        """
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "2"))
        server.accept()
        server.heard()
        server.close()
        self.assertEqual(ended(), 1)
        self.assertIn("has disconnected after 0 of 2 rounds\n", self.said.getvalue())

    def test_rejecting(self) -> None:
        """
        A server that refuses.
        """
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "2"))
        assert server.listener is not None
        with server.listener.get_request() as made:
            made.reject()
        self.assertEqual(ended(), 1)
        self.assertEqual(self.said.getvalue(), "ib-ping: 127.0.0.1 port 7174: connection refused\n")

    def test_doubt(self) -> None:
        """
        A server that takes its time is asked whether it is there, which neither it nor the rounds notice;
        if it is not, that is found out soon.
        """
        self.patch(pingline, "DOUBT", 0.05)
        probed: list[pingline.PingConnection] = []
        probe = pingline.PingConnection._probe

        def watched(line: pingline.PingConnection) -> None:
            probe(line)
            probed.append(line)

        self.patch(pingline.PingConnection, "_probe", watched)
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "1", "-S", "64"))
        server.accept()
        server.data.write(FIRST, 64)
        for note in range(2):
            address, key, _ = unpack("!QII", server.heard())
            before = len(probed)
            waitUntil(lambda: len(probed) >= before + 2)  # noqa: B023
            if note:
                server.made.post_write(server.data, 64, address, key, enums.IBV_SEND_SIGNALED)
                server.complete()
            server.send(bytes(16))
        self.assertEqual(ended(), 0)

    def test_speechless(self) -> None:
        """
        A server that accepts and says nothing: the client gives up.
        """
        self.patch(pingstation.VerbsSession.finish, "__defaults__", (0.2,))
        server = self.stranger(True)
        ended = self.started(lambda: self.client("-C", "2"))
        server.accept()
        self.assertEqual(ended(), 1)
        self.assertEqual(self.said.getvalue(), "ib-ping: 127.0.0.1 does not answer\n")
