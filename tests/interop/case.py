"""
A test with a real kernel as the peer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.interop.lab.anew import LIMIT_SECONDS, limit, runWithRepetition
from tests.interop.lab.lab import Lab, Peer, hasNeighbour, theLab
from tests.interop.lab.machine import Ended
from tests.interop.lab.network import HOST4, HOST6
from tests.interop.lab.wire import Seen, packetsOf, wrongOf
from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.wire import Packet, decodeMAD
from twisted_ib.hca.wire.cm.messages import DREQ

#: The device of this side where its kind is RoCE's.
DEVICE = "roce0"
#: The counters of packets that were lost, late or refused: by rxe's names.
TROUBLE = ("out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err")
#: How long a side may take until it listens, seconds.
LISTENING = HANG_SECONDS / 2
#: The port of the other process that shares our address.
NEIGHBOUR_PORT = "7199"


class Program:
    """
    A process on this side.
    """

    def __init__(self, command: list[str], environment: dict[str, str], directory: Path) -> None:
        """
        Start it.

        @param directory: where it writes to.
        """
        number = len(list(directory.glob("*.output")))
        self._files = [directory / f"{number}.{name}" for name in ("output", "errors")]
        output, errors = (file.open("wb") for file in self._files)
        with output, errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, cwd="/", env=environment
            )

    @property
    def ended(self) -> Ended:
        """
        The state of the process.
        """
        status = self.process.poll()
        output, errors = (file.read_text() for file in self._files)
        return Ended(-1 if status is None else status, output, errors)

    def say(self, line: str) -> None:
        """
        Write a line to its standard input.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, seconds: float) -> Ended:
        """
        End its standard input.

        @return: how it ended.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.finish(seconds)

    def finish(self, seconds: float = HANG_SECONDS) -> Ended:
        """
        @param seconds: after which it is killed.

        @return: how it ended.
        """
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.ended

    def kill(self) -> None:
        """
        It is killed, and does nothing any more.
        """
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def unclaimedIn(packets: list[Seen]) -> int:
    """
    @return: how many packets of ours rxe may have no queue pair for any more: those behind a DREQ, and those
        that are sent again, as when the guest does nothing for a while.
    """
    found, ending = 0, False
    seen: set[tuple[int, int]] = set()
    for each in packets:
        header = each.packet.bth
        if header.destination == GSI_QPN:
            ending = ending or _isDREQ(each.packet)
        elif each.ours:
            found += ending or (header.opcode, header.psn) in seen
            seen.add((header.opcode, header.psn))
    return found


def _isDREQ(packet: Packet) -> bool:
    """
    @return: whether a packet for QP 1 has a DREQ.
    """
    return decodeMAD(packet.payload).attribute == DREQ.attribute


class GuestTestCase(SynchronousTestCase):
    """
    Programs of both sides, between which all frames are captured.

    @cvar mtu: the largest Ethernet frames.
    @cvar ipv6: whether the addresses are IPv6.
    @cvar kind: that of the device of this side, the first of its kind.
    @cvar peer: the guest's device.
    @cvar rights: what starts the processes of this side with fewer rights.
    @ivar host: the address of this side, and C{there} the guest's.
    @ivar file: the capture.
    """

    mtu = 1500
    ipv6 = False
    kind = "roce"
    peer = Peer.RXE
    rights: tuple[str, ...] = ()
    lab: Lab

    def run(self, result: Any) -> None:
        """
        Run the test, and once more with a new guest if this one does not answer.
        """
        runWithRepetition(self, super().run, lambda: theLab().silence, result)

    def setUp(self) -> None:
        """
        Have a guest that answers and a new device there, and capture what happens.
        """
        self.lab = theLab()
        self.guest = self.lab.awake()
        limit(self, LIMIT_SECONDS)
        self.host, self.there = (HOST6, self.guest.ipv6) if self.ipv6 else (HOST4, self.guest.ipv4)
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir(mode=0o700)
        self.guest.must("dmesg --clear")
        self.lab.renew(self.mtu, self.peer)
        self.file = self.directory / "capture.pcap"
        self._capture: str | None = self.guest.capture(self.file)
        self._running: list[int] = []
        self._lacksNeighbour = hasNeighbour() and self.kind == "roce"
        self.addCleanup(self._clean)

    def tearDown(self) -> None:
        """
        The guest's kernel has found no fault in itself.
        """
        oops = self.guest.run("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace'").output
        self.assertEqual(oops, "")

    def _clean(self) -> None:
        """
        Nothing of this test runs any more.
        """
        self.release()
        for number in self._running:
            self.guest.kill(number)

    def release(self) -> None:
        """
        Stop to capture.
        """
        if self._capture is not None:
            self.guest.release(self._capture)
            self._capture = None

    # This side

    def program(self, command: list[str], **environment: str) -> Program:
        """
        @return: a process on this side, which has the device.
        """
        self.neighbour()
        return self._program(command, environment)

    def _program(self, command: list[str], environment: dict[str, str]) -> Program:
        variables = dict(os.environ, TWISTED_IB_RUN_DIR=str(self.directory), PYTHONUNBUFFERED="1")
        variables["TWISTED_IB_DEVICES"] = f"{self.kind}0={self.kind}:{self.host}"
        command = self.lab.network.within([*self.rights, *command])
        program = Program(command, variables | environment, self.directory)
        self.addCleanup(program.finish, 0)
        return program

    def neighbour(self) -> None:
        """
        Have another process share the address of those that follow, where there is to be one: none of them is
        the first.
        """
        if not self._lacksNeighbour:
            return
        self._lacksNeighbour = False
        words = "--device", DEVICE, "-s", "-d", "-a", self.host, "-p", NEIGHBOUR_PORT
        command = [sys.executable, "-c", programOf("ping.ping"), *words]
        self.until(self._program(command, {}), "waits for clients")

    def ping(self, *arguments: str, device: str | None = None) -> Program:
        """
        @return: an C{ib-ping} on this side.
        """
        command = [sys.executable, "-c", programOf("ping.ping"), "--device", device or f"{self.kind}0"]
        return self.program([*command, *arguments])

    def until(self, program: Program, text: str, times: int = 1) -> None:
        """
        Wait until a process of this side has written something.

        @param times: how often.
        """
        deadline = time.monotonic() + LISTENING
        while (program.ended.output + program.ended.errors).count(text) < times:
            done = program.process.poll() is not None or time.monotonic() > deadline
            assert not done, f"there is no {text!r}: {program.ended.text}"
            time.sleep(0.05)

    def succeeded(self, ended: Ended) -> Ended:
        """
        Check that a process of either side has succeeded.
        """
        self.assertEqual(ended.status, 0, ended.text)
        return ended

    # The guest

    def start(self, command: str) -> int:
        """
        @return: the number of a process in the guest.
        """
        number = self.guest.start(command)
        self._running.append(number)
        return number

    def listening(self, command: str, space: str = "TCP") -> int:
        """
        @param space: the port space in which it listens.

        @return: the number of a process in the guest that listens by now.
        """
        number = self.start(command)
        found = f"rdma resource show cm_id | grep -q 'state LISTEN ps {space}'"
        self.guest.must(f"until {found}; do sleep 0.1; done", LISTENING)
        return number


class InteropTestCase(GuestTestCase):
    """
    The guest has an rxe, and everything is looked at: when a test ends, every packet was sound, tshark has
    found nothing wrong in ours, rxe has taken each of them, and has counted no L{TROUBLE}.

    @ivar trouble: of what L{TROUBLE} there may be some in this test.
    @ivar lost: whether packets of ours may find nobody.
    @ivar sound: L{False} where packets are spoiled.
    @ivar looped: how many packets rxe gets from itself.
    """

    def setUp(self) -> None:
        """
        Expect no trouble.
        """
        self.trouble: set[str] = set()
        self.lost = False
        self.sound = True
        self.looped = 0
        super().setUp()

    def tearDown(self) -> None:
        """
        Look at what happened.
        """
        counted = self.lab.counters()
        trouble = {name: counted[name] for name in TROUBLE if counted[name] and name not in self.trouble}
        self.assertEqual(trouble, {})
        if not self.sound:
            return
        packets = self.packets()
        sent = sum(each.ours for each in packets)
        self.assertEqual(wrongOf(self.file), [])
        if self.lost:
            self.assertLessEqual(counted["rcvd_pkts"], sent)
        else:
            missing = sent + self.looped - counted["rcvd_pkts"]
            self.assertIn(missing, range(unclaimedIn(packets) + 1), "rxe has not taken all packets")
        super().tearDown()

    def packets(self) -> list[Seen]:
        """
        @return: the packets so far, after which none is captured.
        """
        self.release()
        return packetsOf(self.file)
