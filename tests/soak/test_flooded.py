"""
A server on a real UDP socket among strangers, with the large numbers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from struct import pack
from typing import Any
from unittest import mock

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import Here, Lab, LabError, missing, unbuilt
from tests.cprograms.programs import PROGRAMS
from tests.hca.fabric.roce import flood
from tests.processes.programs.flooded import PORT
from tests.support.commands import running
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.roce.orphans import DATAGRAM_BYTES
from twisted_ib.hca.wire.icrcflow import ICRCState

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT, SERVER = ownAddress(2), ownAddress(1)
REQUESTS, MUTATIONS, RATE = 100_000, 30_000, 5000
#: Connections of somebody honest among the former, and among the latter.
CONNECTS, FEW = 100, 10
#: So many different ones are made; they come again and again.
MADE = 4000
#: Sent without a pause.
BATCH = 25
PATIENCE, GROWTH = 2.0, 16 << 20
#: Seconds that the connects take at most.
LONGEST = 5 * HANG_SECONDS
_IP_PKTINFO = 8
#: Where the numbers of a request and of its queue pair are in its datagram, behind BTH, DETH and the MAD's
#: header.
_NUMBERS_AT = 45, 77


class _Forger(flood.FloodTestCase):
    """
    Makes packets for a server.
    """

    def __init__(self) -> None:
        self.dice = flood.Random(3)
        self.device: Any = mock.Mock(queuePairs={})
        self.seen = [self.forged()[1] for _ in range(100)]

    def stranger(self) -> str:
        """
        An address of this host.
        """
        number = self.dice.randrange(flood.SOURCES)
        return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"


class FloodedTestCase(SynchronousTestCase):
    """
    Strangers on this host.

    @cvar addresses: Of somebody honest, and of the server.
    """

    addresses = CLIENT, SERVER
    #: Whether requests that are sent again are other ones.
    areNew = False

    def forger(self, port: int) -> _Forger:
        """
        @param port: of the streams and of the messages at the server that are asked for.
        @return: who makes the packets.
        """
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(made.close)
        made.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: the identification is 0.
        made.bind(("0.0.0.0", 0))
        self.socket = made
        self.patch(flood, "ADDRESSES", self.addresses)
        self.patch(flood, "PORT", port)
        self.patch(flood, "MESSAGES_PORT", port)
        self.patch(flood, "_CM_PORT", made.getsockname()[1])
        self.patch(flood, "TIMEOUTS", (20,))
        return _Forger()

    def send(self, packets: list[tuple[str, bytes]], sent: int) -> int:
        """
        Send a few more.

        @param sent: how many were sent.
        @return: how many are sent now.
        """
        # Those of 256 turns ago are long forgotten.
        turn, change = sent // len(packets) % 256 if self.areNew else 0, 0
        for source, octets in (packets[(sent + n) % len(packets)] for n in range(BATCH)):
            if turn and len(octets) == DATAGRAM_BYTES:
                # Those of one turn differ from those of the first in the same bits: the CRC is linear.
                change = change or self.changes(source, octets, turn)
                octets = (int.from_bytes(octets, "big") ^ change).to_bytes(DATAGRAM_BYTES, "big")
            where = [(socket.IPPROTO_IP, _IP_PKTINFO, pack("I4s4x", 0, socket.inet_aton(source)))]
            self.socket.sendmsg([octets], where, 0, (self.addresses[1], 4791))
        return sent + BATCH

    def changes(self, source: str, octets: bytes, turn: int) -> int:
        """
        @return: the bits of a request that are others, of its number and of that of its queue pair.
        """
        other = bytearray(octets[:-4])
        for at in _NUMBERS_AT:
            other[at] ^= turn
        flow = ICRCState(gidOf(source), gidOf(self.addresses[1]), self.socket.getsockname()[1], 1)
        return int.from_bytes(octets, "big") ^ int.from_bytes(flow.sign(bytes(other)), "big")


class FloodedTests(FloodedTestCase):
    """
    Forged requests and damaged packets from thousands of addresses of this host, 5,000 per second.
    """

    def start(self, role: str, *addresses: str) -> subprocess.Popen[str]:
        """
        Start a process.
        """
        program = "tests.processes.programs.flooded"
        environment = {**os.environ, "TWISTED_IB_RUN_DIR": self.directory}
        return running(
            self, "-m", program, role, *addresses, cwd=ROOT, stderr=subprocess.STDOUT, env=environment
        )

    def resident(self) -> int:
        """
        The memory of the server, in bytes.
        """
        pages = Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def arrive(self, packets: list[tuple[str, bytes]], count: int, connects: int) -> None:
        """
        Send so many or more, while somebody honest connects so often: all come through.
        """
        begin, sent = time.monotonic(), 0
        client = self.start("client", CLIENT, SERVER, str(connects))
        while packets and (sent < count or client.poll() is None) and time.monotonic() < begin + LONGEST:
            sent = self.send(packets, sent)
            time.sleep(max(0.0, begin + sent / RATE - time.monotonic()))
        told, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertRegex(told, rf"^(\d+\.\d+\n){{{connects}}}$")
        self.times += map(float, told.split())
        if packets:
            # What was sent is what was meant to be.
            self.assertGreater(sent / (time.monotonic() - begin), RATE / 2)

    def test_flooded(self) -> None:
        """
        Memory grows by less than 16 MiB, and somebody honest connects a hundred times, sends 100 kB and has
        the answer within 2 s, and so during the latter and after it.  The server says nothing.
        """
        self.directory = self.mktemp()
        os.makedirs(self.directory, 0o700)
        self.directory = os.path.abspath(self.directory)
        self.times: list[float] = []
        forger = self.forger(PORT)
        requests = [forger.forged() for _ in range(MADE)]
        mutated = [forger.mutated() for _ in range(MADE)]
        self.server = self.start("server", SERVER, "-")
        assert self.server.stdout is not None
        self.assertEqual(self.server.stdout.readline(), "listening\n")
        self.arrive([], 0, 1)
        before = self.resident()
        self.areNew = True
        self.arrive(requests, REQUESTS, CONNECTS)
        self.areNew = False
        self.arrive(mutated, MUTATIONS, FEW)
        self.arrive([], 0, 1)
        growth = self.resident() - before
        self.assertLess(growth, GROWTH)
        # On a shared processor the client may be later, but it comes through.
        self.times.sort()
        self.assertLess(self.times[len(self.times) // 2], PATIENCE, self.times)
        self.assertLess(self.times[-1], 5 * PATIENCE, self.times)
        self.server.terminate()
        self.assertEqual(self.server.communicate()[0], "")


class ProgramTests(FloodedTestCase):
    """
    A program of verbs that connects a thousand times at once, with the same strangers beside it.
    """

    timeout = 3 * HANG_SECONDS
    skip = unbuilt()

    def test_ucmatose(self) -> None:
        """
        All of its connections come up and are closed, at both ends.
        """
        (program,) = (each for each in PROGRAMS if each.name == "ucmatose_1000")
        reason = missing(program)
        if reason is not None:
            raise SkipTest(reason)
        # Of the program's own port each of them would be one of its thousand, on Linux too.
        forger = self.forger(PORT)
        packets = [forger.forged() for _ in range(MADE)]
        over = threading.Event()
        told: list[int] = []

        def flooded() -> None:
            begin, sent = time.monotonic(), 0
            while not over.wait(max(0.0, begin + sent / RATE - time.monotonic())):
                sent = self.send(packets, sent)
            told.append(int(sent / (time.monotonic() - begin)))

        thread = threading.Thread(target=flooded)
        thread.start()
        try:
            Lab(Here("roce0", SERVER), Here("roce0", CLIENT)).run(program)
        except LabError as error:
            self.fail(str(error))
        finally:
            over.set()
            thread.join()
        # What was sent is what was meant to be.
        self.assertGreater(told[0], RATE // 2)
