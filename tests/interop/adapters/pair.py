"""
Devices of the kind C{hardware} in two guests against each other, and against the kernel's RDS; and
the contracts of streams against software on this side.
"""

from __future__ import annotations

import atexit
import shlex
import sys
from itertools import count
from pathlib import Path
from typing import Any

from tests.interop.adapters import gone, rxe
from tests.interop.adapters.rxe import (
    AGENT,
    GUESTS,
    LASTING,
    MESSAGES,
    PORT,
    ROOT,
    SECONDS,
    SIDE,
    STREAMS_SECONDS,
    TALKER,
    equip,
)
from tests.interop.adapters.siw import SIWMixin
from tests.interop.lab.anew import limit
from tests.interop.lab.images import Images, cacheDirectory
from tests.interop.lab.lab import MODPROBE, RENEW, theLab
from tests.interop.lab.machine import Ended, Machine
from tests.interop.lab.shipped import SITE
from tests.interop.rds import SIZES
from tests.support.waiting import PATIENCE

#: How long a test may take, whose first boots the second guest, in seconds.
PAIR_SECONDS = 3 * SECONDS
#: Where the agent of a guest is asked.
AGENT_PORT = 7178
#: Messages of RDS of each size.
EACH = 3
#: The kernel has no RDS then.
UNLOAD = "rmmod rds_tcp rds_rdma rds 2>/dev/null"

_booted: list[Machine] = []
_numbers = count()


def secondGuest() -> Machine:
    """
    @return: the other guest, which this process keeps; another one where it has fallen silent.
    """
    lab = theLab()
    if _booted and _booted[0].silence is not None:
        _booted.pop().close()
    if not _booted:
        directory = lab.directory / f"second{next(_numbers)}"
        directory.mkdir()
        guest = Machine(Images(cacheDirectory()), lab.network, directory, 2)
        # Before the lab's own network goes: the last that is registered is the first.
        atexit.register(guest.close)
        guest.must(MODPROBE)
        equip(lab, guest, directory)
        _booted.append(guest)
    return _booted[0]


class Remote:
    """
    A process of a guest, as L{Program<tests.interop.case.Program>} is one of this side.
    """

    def __init__(self, guest: Machine, command: str) -> None:
        """
        Start it.
        """
        self._guest, self._written = guest, f"/tmp/remote{next(_numbers)}"
        self._number = guest.start(f"{command} > {self._written} 2>&1")

    def until(self, text: str) -> None:
        """
        Wait until it has written something.
        """
        look = f"grep -qs '{text}' {self._written}"
        self._guest.must(
            f"until {look}; do kill -0 {self._number} || {{ cat {self._written}; exit 1; }}; sleep 0.1; done",
            SECONDS,
        )

    def finish(self, seconds: float = SECONDS) -> Ended:
        """
        @param seconds: after which it is killed.

        @return: how it ended.
        """
        status = self._guest.finish(self._number, seconds).status
        return Ended(status, self._guest.must(f"cat {self._written}"), "")

    def kill(self) -> None:
        """
        It is killed, and does nothing any more.
        """
        self._guest.kill(self._number)


class PairMixin(rxe.HardwareTestCase):
    """
    Has a second guest, which is what this side is elsewhere.

    @ivar second: the guest.
    """

    def setUp(self) -> None:
        """
        Give it a new device, too.
        """
        super().setUp()
        limit(self, PAIR_SECONDS)
        self.release()
        self.second = secondGuest()
        self.host = self.second.ipv4
        name, kind = self.peer.value
        self.second.must("dmesg --clear")
        self.second.must(f"ip link set eth0 mtu {self.mtu}")
        self.second.must(RENEW.format(name=name, kind=kind))

    def tearDown(self) -> None:
        """
        Its kernel has found no fault in itself, either.
        """
        super().tearDown()
        oops = self.second.run("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace'").output
        self.assertEqual(oops, "")

    def guests(self) -> list[Machine]:
        return [self.guest, self.second]

    def inSecond(self, program: Path, *words: object) -> Remote:
        """
        @return: a process of the second guest, which has its device.
        """
        remote = Remote(self.second, self.python(program, *words))
        self.addCleanup(remote.kill)
        return remote

    def here(self, kind: str, role: str) -> Any:
        return self.inSecond(SIDE, kind, role, GUESTS, self.host, self.there, PORT)

    def lastingHere(self, kind: str, port: str = PORT, **environment: str) -> Any:
        """
        @return: a side in the second guest.
        """
        return self.inSecond(LASTING, kind, GUESTS, self.host, self.there, port)

    def until(self, program: Any, text: str, times: int = 1) -> None:
        program.until(text)


class PairVerbsTests(PairMixin, rxe.VerbsTests):
    """
    SEND with and without immediate data, WRITE, READ and atomics by verbs.
    """


class PairMessagesTests(PairMixin, rxe.MessagesTests):
    """
    A file and its echo, with their hashes, in messages of C{ib:}; then WRITE, READ and atomics.
    """


class SIWPairMessagesTests(SIWMixin, PairMessagesTests):
    """
    The same over siw, without atomics.
    """

    sides = "iwarp"
    client = "echoed True\nread True\nregistered True []\nlost ConnectionDone\n"


class PairFileTests(PairMixin, rxe.FileTests):
    """
    A file and its echo, with their hashes, over C{sdp:}, also of registered memory.
    """


class SIWPairFileTests(SIWMixin, PairFileTests):
    """
    The same over siw.
    """


class ApartTests(rxe.StreamsTests):
    """
    The contracts of streams, whose two ends are of two kernels: those that look into the process of the
    server, at more than its calls and its log, are left out.  The other end is software on this side.
    """

    #: What trial says.
    summary = r"PASSED \(skips=20, successes=29\)"

    def test_contract(self) -> None:
        """
        The guest asks.
        """
        self.release()
        agent = self.agentHere()
        self.until(agent, "listens")
        self.apart(self.guest, self.there, self.host)

    def test_otherAsks(self) -> None:
        """
        The other side asks.
        """
        self.release()
        agent = Remote(self.guest, self.python(AGENT, GUESTS, self.there, AGENT_PORT))
        self.addCleanup(agent.kill)
        agent.until("listens")
        self.otherAsks()

    def variables(self, device: str, here: str, there: str) -> dict[str, str]:
        """
        @param here: the address of the side that asks.
        @param there: that of the other, which has the servers.

        @return: the environment of the tests.
        """
        return {
            "AGENT_OF_STREAMS": f"{device} {here} {there} {AGENT_PORT}",
            "TWISTED_IB_TEST_PATIENCE": f"{PATIENCE:g}",
            "NAMESPACE_OF_SOFTWARE": "",
        }

    def apart(self, guest: Machine, here: str, there: str) -> None:
        """
        Run the tests in a guest.

        @param here: its address.
        @param there: that of the other side.
        """
        limit(self, STREAMS_SECONDS)
        devices = {"TWISTED_IB_DEVICES": f"{GUESTS}=hardware:{self.peer.value[0]}", "PYTHONPATH": SITE}
        variables = self.variables(GUESTS, here, there) | devices
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        self.tried(guest, words, self.summary)

    def agentHere(self) -> Any:
        """
        @return: a process of the other side that has the servers.
        """
        command = [sys.executable, str(AGENT), f"{self.kind}0", self.host, str(AGENT_PORT)]
        return self.program(command, PYTHONPATH=str(ROOT))

    def otherAsks(self) -> None:
        """
        Run the tests on the other side.
        """
        limit(self, STREAMS_SECONDS)
        trial = [sys.executable, "-m", "twisted.trial", "--temp-directory", str(self.directory / "trial")]
        variables = self.variables(f"{self.kind}0", self.host, self.there)
        tests = self.program([*trial, MESSAGES.stem], PYTHONPATH=f"{ROOT}:{MESSAGES.parent}", **variables)
        self.assertRegex(self.succeeded(tests.finish(STREAMS_SECONDS)).output, self.summary)


class SIWApartTests(SIWMixin, ApartTests):
    """
    The same over siw.
    """


class PairStreamsTests(PairMixin, ApartTests):
    """
    The other end is the adapter of a second guest.
    """

    def agentHere(self) -> Any:
        return self.inSecond(AGENT, GUESTS, self.host, AGENT_PORT)

    def otherAsks(self) -> None:
        self.apart(self.second, self.host, self.there)


class SIWPairStreamsTests(SIWMixin, PairStreamsTests):
    """
    The same over siw.
    """


class PairKillTests(PairMixin, gone.LastingTestCase):
    """
    C{kill -9} of one side while messages go to and fro: its kernel tells the other, within C{TOLD_SECONDS}.
    """

    def test_client(self) -> None:
        """
        The client.
        """
        self.killThere(True)

    def test_server(self) -> None:
        """
        The server.
        """
        self.killThere(False)


class SIWPairKillTests(SIWMixin, PairKillTests):
    """
    The same over siw.
    """


class PairStreamKillTests(PairKillTests):
    """
    The same over C{sdp:}.
    """

    streams = "sdp-"


class SIWPairStreamKillTests(SIWMixin, PairStreamKillTests):
    """
    The same over siw.
    """


class RDSPairTests(PairMixin, gone.LastingTestCase):
    """
    Our RDS on the adapter in the first guest, and the kernel's C{rds_rdma} on that of the second.
    """

    def setUp(self) -> None:
        """
        Load the kernel's RDS there.
        """
        super().setUp()
        self.guest.run(UNLOAD)
        self.second.run(UNLOAD)
        self.second.must("modprobe -a rds rds_rdma; rm -f /tmp/bound")
        self.addCleanup(self.second.run, UNLOAD)

    def kernel(self, command: str, *rest: object) -> Remote:
        """
        @return: a program of the second guest with a socket of the kernel's.
        """
        words = " ".join(map(str, rest))
        remote = Remote(self.second, f"exec python3 /interop/rds.py ib {command} {self.host} {words}")
        self.addCleanup(remote.kill)
        return remote

    def ours(self, *words: object, lines: str = "true") -> Remote:
        """
        @param lines: a command that writes its standard input.

        @return: ours, which is bound.
        """
        command = self.python(TALKER, GUESTS, self.there, *words)
        remote = Remote(self.guest, f"({lines}) | ({command})")
        self.addCleanup(remote.kill)
        remote.until("bound")
        return remote

    def test_kernelAsks(self) -> None:
        """
        We echo what the kernel sends first, in all sizes.
        """
        ours = self.ours(PORT, "echo", EACH * len(SIZES))
        self.succeeded(self.kernel("ask", self.there, PORT, ",".join(map(str, SIZES)), EACH).finish())
        self.succeeded(ours.finish())

    def test_weAsk(self) -> None:
        """
        The kernel echoes what we send first, in all sizes.
        """
        lines = "".join(f"ask {EACH} {size}\\n" for size in SIZES)
        begins = "until [ -e /tmp/begin ]; do sleep 0.1; done"
        ends = "until [ -e /tmp/end ]; do sleep 0.1; done"
        self.guest.must("rm -f /tmp/begin /tmp/end")
        ours = self.ours(0, "talk", self.host, PORT, lines=f"{begins}; printf '{lines}'; {ends}")
        kernel = self.kernel("echo", PORT, EACH * len(SIZES))
        kernel.until("bound")
        self.guest.must("touch /tmp/begin")
        self.succeeded(kernel.finish())
        self.guest.must("touch /tmp/end")
        self.assertEqual(self.succeeded(ours.finish()).output.count("done"), len(SIZES))


class RDSHostTests(rxe.HardwareTestCase):
    """
    Our RDS and the kernel's C{rds_rdma} on one adapter: it has the one that is first.
    """

    def setUp(self) -> None:
        """
        Neither is there.
        """
        super().setUp()
        self.guest.run(UNLOAD)
        self.addCleanup(self.guest.run, UNLOAD)

    def test_kernelFirst(self) -> None:
        """
        Ours says that the address is in use.
        """
        self.guest.must("modprobe -a rds rds_rdma")
        ended = self.guest.run(self.python(TALKER, GUESTS, self.there, PORT, "echo", 1), SECONDS)
        self.assertNotEqual(ended.status, 0)
        self.assertIn(f"Couldn't listen on {self.there}:{PORT}: [Errno 98]", ended.errors)

    def test_oursFirst(self) -> None:
        """
        The kernel does not load its module.
        """
        ours = Remote(self.guest, self.python(TALKER, GUESTS, self.there, PORT, "echo", 1))
        self.addCleanup(ours.kill)
        ours.until("bound")
        self.guest.must("modprobe rds")
        ended = self.guest.run("modprobe rds_rdma")
        self.assertNotEqual(ended.status, 0)
        self.assertIn("Cannot assign requested address", ended.errors)
