"""
RDS of the kernel and of this package: over TCP, and over queue pairs of rxe.
"""

from __future__ import annotations

import sys
import time

from tests.interop.case import DEVICE, InteropTestCase, Program
from tests.support.commands import PATH
from tests.support.waiting import HANG_SECONDS

#: Octets of messages: what fits a fragment, what does not, and the most there may be.
SIZES = (0, 1, 100, 4096, 9000, 1 << 20)
PORT = 4000
SECONDS = HANG_SECONDS
#: Messages that are more than the kernel holds for a socket that does not read, and their size.
MANY, LONG = 100, 9000
#: How long a side does not read, seconds.
PAUSE = 3
_TALKER = f"{PATH}from tests.interop.talker import main; main()"
_ANEW = "rmmod rds_tcp rds_rdma rds 2>/dev/null; modprobe -a rds {module}"


class RDSTestCase(InteropTestCase):
    """
    One socket on each side.

    @cvar transport: what the kernel calls it, with its module and our device.
    @cvar larger: whether our address is larger than the kernel's: over TCP, the smaller connects.
    """

    transport, module, device = "tcp", "rds_tcp", "tcp"
    larger = False

    def setUp(self) -> None:
        """
        Load the kernel's RDS.
        """
        super().setUp()
        if self.larger:
            self.host = self.lab.network.second(self.ipv6)
        self.guest.must(_ANEW.format(module=self.module))
        self.addCleanup(self.guest.run, "rmmod rds_tcp rds_rdma rds")

    # The kernel's side

    def kernel(self, command: str, *rest: object) -> int:
        """
        @return: the number of a process in the guest that has a socket.
        """
        words = " ".join(map(str, rest))
        return self.start(f"exec python3 /interop/rds.py {self.transport} {command} {self.there} {words}")

    def bound(self, command: str, *rest: object) -> int:
        """
        @return: the same, which is bound to L{PORT} by now.
        """
        self.guest.must("rm -f /tmp/bound")
        number = self.kernel(command, PORT, *rest)
        self.guest.must("until [ -e /tmp/bound ]; do sleep 0.1; done", SECONDS)
        return number

    def ended(self, number: int) -> str:
        """
        @return: what a process in the guest has written, which has succeeded.
        """
        return self.succeeded(self.guest.finish(number, SECONDS)).output

    # Our side

    def ours(self, port: int, command: str, *rest: object) -> Program:
        """
        @return: a process of ours, whose socket is bound by now.
        """
        arguments = [self.device, self.host, port, command, *rest]
        program = self.program([sys.executable, "-c", _TALKER, *map(str, arguments)])
        self.until(program, "bound")
        return program

    def talk(self, port: int = 0) -> Program:
        """
        @return: a process of ours that does what it is told.
        """
        return self.ours(port, "talk", self.there, PORT)

    def told(self, program: Program, *lines: str) -> None:
        """
        Tell it, and wait until it is done.
        """
        for line in lines:
            before = program.ended.output.count("done")
            program.say(line)
            self.until(program, "done", before + 1)


class RDSTests(RDSTestCase):
    """
    Over TCP, IPv4; our address is the smaller one.
    """

    def test_ask(self) -> None:
        """
        The kernel echoes what we send first, in all sizes.
        """
        server = self.bound("echo", 3 * len(SIZES))
        client = self.talk()
        self.told(client, *(f"ask 3 {size}" for size in SIZES))
        self.succeeded(client.end(SECONDS))
        self.ended(server)

    def test_echo(self) -> None:
        """
        We echo what the kernel sends first.
        """
        server = self.ours(PORT, "echo", 3 * len(SIZES))
        self.ended(self.kernel("ask", self.host, PORT, ",".join(map(str, SIZES)), 3))
        self.succeeded(server.finish(SECONDS))

    def test_both(self) -> None:
        """
        Both begin at once: all arrives, once, and in order.
        """
        ours, theirs = self.talk(PORT), self.bound("take", 200)
        kernel = self.kernel("send", self.host, PORT, 200, 1000)
        self.told(ours, "send 200 1000")
        self.assertEqual(self.ended(theirs).split()[1:], [str(number) for number in range(200)])
        self.ended(kernel)
        self.until(ours, "got", 200)
        lines = self.succeeded(ours.end(SECONDS)).output.splitlines()
        self.assertEqual(
            [line for line in lines if "got" in line], [f"got {number}" for number in range(200)]
        )

    def test_ping(self) -> None:
        """
        Each side's RDS answers a ping: ours while a socket is open.
        """
        client = self.talk()
        self.told(client, "ping", "ping")
        self.ended(self.kernel("ping", self.host, 3))
        self.told(client, "ping")

    def test_command(self) -> None:
        """
        C{ib-ping --rds} is C{rds-ping}.
        """
        pinging = self.ping("--rds", "-I", self.host, "-c", "3", self.there, device=self.device)
        self.succeeded(pinging.finish(SECONDS))

    def test_kernelCongested(self) -> None:
        """
        A program in the guest does not read for a while: we are told, and nothing is lost.
        """
        client = self.talk()
        server = self.bound("take", MANY, PAUSE)
        self.told(client, f"send {MANY // 2} {LONG}")
        time.sleep(1)
        self.told(client, f"send {MANY // 2} {LONG}")
        self.until(client, "cleared")
        self.assertIn("congested", client.ended.output)
        self.assertEqual(self.ended(server).split()[1:], [str(number) for number in range(MANY)])
        self.succeeded(client.end(SECONDS))

    def test_congested(self) -> None:
        """
        A program of ours does not read for a while: the kernel holds back what it has, and nothing is lost.
        """
        ours = self.ours(PORT, "take", MANY, PAUSE)
        self.ended(self.kernel("send", self.host, PORT, MANY, LONG))
        numbers = [str(number) for number in range(MANY)]
        self.assertEqual(self.succeeded(ours.finish(SECONDS)).output.split()[2:], numbers)

    def test_kernelRestarted(self) -> None:
        """
        The kernel's RDS begins anew: our socket goes on.
        """
        client = self.talk()
        for _ in range(3):
            server = self.bound("echo", 5)
            self.told(client, "ask 5 100")
            self.ended(server)
            self.guest.must(_ANEW.format(module=self.module))
        self.succeeded(client.end(SECONDS))

    def test_restarted(self) -> None:
        """
        A process of ours is killed, and another one begins, with numbers of its own: the kernel, which has
        kept what it knew, answers it.
        """
        server = self.bound("echo", 15)
        for _ in range(3):
            client = self.talk()
            self.told(client, "ask 5 100")
            client.kill()
        self.ended(server)


class RDSLargerTests(RDSTests):
    """
    Our address is the larger one: the kernel connects.
    """

    larger = True


class RDSIPv6Tests(RDSTests):
    """
    IPv6.
    """

    ipv6 = True


class ConnectedTests(RDSTests):
    """
    Over rxe.
    """

    transport, module, device = "ib", "rds_rdma", DEVICE

    def setUp(self) -> None:
        """
        The kernel posts its receives when it is connected: what comes before is refused, and what is behind
        that comes too early.  And queue pairs end with what is on its way to them.
        """
        super().setUp()
        self.trouble = {"out_of_seq_request"}
        self.lost = True


class ConnectedIPv6Tests(ConnectedTests):
    """
    IPv6.
    """

    ipv6 = True
