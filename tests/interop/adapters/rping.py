"""
C{ib-ping} on a device of the kind C{hardware} in the guest and C{rping} on the same adapter, each the other's
server: a peer of Linux's own; and so the pingpongs, whose sides connect their queue pairs by themselves.
Then the commands of this package on the device alone: C{ib-perf}, C{ib-ss}, C{ib-devinfo}.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.interop.adapters.gone import LastingTestCase
from tests.interop.adapters.rxe import EXAMPLES, GUESTS, LASTING, PINGPONGS, PORT, SECONDS, HardwareTestCase
from tests.interop.adapters.siw import SIWMixin
from tests.interop.lab.anew import limit
from tests.interop.lab.machine import Ended
from tests.interop.lab.shipped import SITE
from tests.interop.rping import isDone

#: Rounds whose bytes are verified, and of how many bytes.
ROUNDS = 20
OPTIONS = f"-C {ROUNDS} -V -S 1000"
#: Of both sides of a pingpong, and the slot of the IPv4 address in the table of rxe.
PINGPONG, SLOT = "-n 100 -s 3000", 1
DATAGRAMS = "-n 100 -s 1000"
#: A command of this package, in the Python that has imported it.
COMMAND = Path(SITE, "command.py")
_COMMAND = """
import os
import sys
from importlib import import_module

exec(os.environ.get("BEFORE", ""))
sys.argv[:2] = sys.argv[1:2]
sys.exit(import_module("twisted_ib.tools." + sys.argv[0]).main())
"""
#: What C{ib-perf} measures there, for how many seconds, and how long one test may take.
TESTS = "send", "write", "read", "atomic", "sdp"
PERF, PERF_SECONDS = "-D 0.2", 4 * SECONDS
#: How often processes are asked that may be busy.
TRIES = 20


class PingPongTests(HardwareTestCase):
    """
    The examples of this package, and Linux's programs; they find each other over TCP.
    """

    def rounds(self, server: str, client: str) -> None:
        """
        Both do their rounds, well.
        """
        number = self.start(server)
        self.guest.must("until ss -ltn | grep -q :18515; do sleep 0.1; done", SECONDS)
        self.succeeded(self.guest.run(f"{client} {self.there}", SECONDS))
        self.succeeded(self.guest.finish(number, SECONDS))

    def both(self, index: int, options: str = PINGPONG) -> None:
        """
        Each is the client of the other.
        """
        ours = self.python(EXAMPLES[index], "-d", GUESTS, "-g", 0, options)
        theirs = f"exec {PINGPONGS[index]} -d {self.peer.value[0]} -g {SLOT} {options}"
        self.rounds(theirs, ours)
        self.rounds(ours, theirs)

    def test_reliable(self) -> None:
        """
        RC.
        """
        self.both(0)

    def test_unreliable(self) -> None:
        """
        UC.
        """
        self.both(1)

    def test_datagrams(self) -> None:
        """
        UD, in one packet each.
        """
        self.both(2, DATAGRAMS)


class CommandsMixin(HardwareTestCase):
    """
    Runs commands of this package in the guest.
    """

    def setUp(self) -> None:
        """
        Bring what runs them.
        """
        super().setUp()
        limit(self, PERF_SECONDS)
        self.release()
        self.guest.must(f"cat > {COMMAND} <<'END'{_COMMAND}END")

    def command(self, module: str, *words: object) -> str:
        """
        @return: the command line of one.
        """
        return self.python(COMMAND, module, *words)

    def said(self, module: str, *words: object) -> Ended:
        """
        @return: how one has ended, well.
        """
        return self.succeeded(self.guest.run(self.command(module, *words), SECONDS))

    def known(self, module: str, *words: object) -> Any:
        """
        @return: what one says as JSON.
        """
        return json.loads(self.said(module, *words, "--json").output)


class RPingTests(CommandsMixin):
    """
    Both in the guest, over its rxe.
    """

    def ibPing(self, role: str) -> str:
        """
        @return: the command line of an C{ib-ping}.
        """
        return self.command("ping.ping", "--device", GUESTS, role, "-a", self.there, OPTIONS)

    def rping(self, role: str) -> str:
        """
        @return: the command line of an C{rping}.
        """
        return f"rping {role} -a {self.there} {OPTIONS}"

    def rounds(self, server: str, client: str) -> None:
        """
        Both do their rounds, well.
        """
        number = self.start(server)
        self.untilListens()
        for ended in (self.guest.run(client, SECONDS), self.guest.finish(number, SECONDS)):
            if not isDone(ended):
                self.succeeded(ended)

    def test_client(self) -> None:
        """
        Of Linux's C{rping}.
        """
        self.rounds(self.rping("-s"), self.ibPing("-c"))

    def test_server(self) -> None:
        """
        Linux's C{rping} is the client.
        """
        self.rounds(self.ibPing("-s"), self.rping("-c"))


class PerfTests(CommandsMixin):
    """
    C{ib-perf} between two processes of the guest.

    @cvar tests: what it measures.
    """

    tests: tuple[str, ...] = TESTS

    def test_rates(self) -> None:
        """
        It has a time and a rate of each, and names the device.
        """
        if self.guest.run(
            "python3 -c 'import hdrh.histogram'".replace("python3", f"PYTHONPATH={SITE} python3")
        ).status:
            raise SkipTest("hdrhistogram is here for another Python than the guest's")
        for test in self.tests:
            server = self.start(self.command("perf.perf", test, "-d", GUESTS))
            self.untilListens()
            found = self.known("perf.perf", test, self.there, "-d", GUESTS, PERF)
            self.succeeded(self.guest.finish(server, SECONDS))
            (row,) = found["results"]
            self.assertEqual((found["test"], found["device"], row["bytes"] > 0), (test, GUESTS, True))
            self.assertGreater(row["latency"]["p50_usec"], 0, found)
            self.assertGreater(row["bandwidth"]["MB_per_sec"], 0, found)

    def test_table(self) -> None:
        """
        So it does for people.
        """
        server = self.start(self.command("perf.perf", "send", "-d", GUESTS))
        self.untilListens()
        said = self.said("perf.perf", "send", self.there, "-d", GUESTS, PERF).output
        self.succeeded(self.guest.finish(server, SECONDS))
        self.assertIn(f"ib-perf send: device {GUESTS}, ", said)
        self.assertRegex(said, r"\n +64 +\d+( +\d+\.\d\d){4} +\d+\n")


class SIWPerfTests(SIWMixin, PerfTests):
    """
    The same over siw, without atomics.
    """

    tests = tuple(each for each in TESTS if each != "atomic")


class ShowTests(CommandsMixin, LastingTestCase):
    """
    C{ib-ss} and C{ib-devinfo} while two processes of the guest talk.

    @cvar transport: what the device is, in C{ibv_devinfo}'s words, and its link.
    """

    transport = "InfiniBand", "Ethernet"

    def both(self, streams: str = "") -> list[int]:
        """
        @return: two processes that talk; the server is the first.
        """
        found = []
        for kind in ("echo", "rounds"):
            command = self.python(LASTING, f"{streams}{kind}", GUESTS, self.there, self.there, PORT)
            written = f"{self.written}.{kind}"
            self.guest.must(f"rm -f {written}")
            found.append(self.start(f"{command} > {written} 2>&1"))
            word = "listens" if kind == "echo" else "goes on"
            self.guest.must(f"until grep -qs '{word}' {written}; do sleep 0.1; done", SECONDS)
        return found

    def answered(self, *words: str) -> str:
        """
        @return: what C{ib-devinfo} says, if both processes answer: one that is busy is shown without figures.
        """
        said = ""
        for _ in range(TRIES):
            said = self.said("show.devinfo", "-v", *words).output
            if said.count("max_mr_size") >= 2 and not re.search("in_use.*(does not answer|null)", said):
                break
        return said

    def shown(self, streams: str, provider: str) -> None:
        """
        Check what both commands say.
        """
        self.both(streams)
        sockets = [each for each in self.known("show.ss", "-a") if each["device"] == GUESTS]
        listener, client, server = sorted(
            sockets, key=lambda each: (each["kind"] != "listener", each["local"])
        )
        if client["local"] == listener["local"]:
            client, server = server, client
        own = f"{self.there}:{PORT}"
        self.assertEqual((listener["local"], listener["state"]), (own, "LISTEN"))
        self.assertEqual((server["local"], server["remote"]), (own, client["local"]))
        self.assertEqual((client["remote"], client["state"]), (own, "ESTABLISHED"))
        self.assertEqual({each["provider"] for each in sockets}, {provider})
        said = self.said("show.ss", "-a").output
        self.assertRegex(said, rf"listener +{provider} +{GUESTS} +LISTEN +{re.escape(own)} ")
        found = json.loads(self.answered("--json"))
        devices = [each for each in found if each["hca_id"] == GUESTS]
        self.assertEqual(len(devices), 2, devices)
        for each in devices:
            (port,) = each["ports"]
            self.assertEqual((each["transport"], port["link_layer"]), self.transport)
            self.assertEqual(each["adapter"], self.peer.value[0])
            self.assertEqual((port["state"], port["phys_state"]), ("PORT_ACTIVE", "LINK_UP"))
            self.assertIn(f"::ffff:{self.there}", port["GID"])
            self.assertEqual(each["in_use"]["qp"], 1, each)
            self.assertGreater(each["counters"]["rdma_sends"], 0, each)
        said = self.answered("-d", GUESTS)
        self.assertEqual(said.count(f"hca_id:\t{GUESTS}\n"), 2, said)
        self.assertEqual(said.count(f"adapter:\t\t\t{self.peer.value[0]}\n"), 2, said)

    def test_messages(self) -> None:
        """
        In messages of C{ib:}.
        """
        self.shown("", "rdma")

    def test_streams(self) -> None:
        """
        In a stream of C{sdp:}.
        """
        self.shown("sdp-", "sdp")


class SIWShowTests(SIWMixin, ShowTests):
    """
    The same on siw.
    """

    transport = "iWARP", "Ethernet"


class PingTests(CommandsMixin):
    """
    C{ib-ping} with itself.
    """

    def test_rounds(self) -> None:
        """
        Rounds are verified, and each is told.
        """
        self.rounds(GUESTS)

    def test_ownName(self) -> None:
        """
        Without a row the adapter is a device of its own name.
        """
        self.rounds(self.peer.value[0], "TWISTED_IB_DEVICES=")

    def rounds(self, device: str, environment: str = "") -> None:
        """
        Have some.
        """
        words = f"--device {device} -a {self.there} -v {OPTIONS}"
        server, client = (
            self.python(COMMAND, "ping.ping", role, words, environment=environment) for role in ("-s", "-c")
        )
        number = self.start(server)
        self.untilListens()
        said = self.succeeded(self.guest.run(client, SECONDS)).output
        self.succeeded(self.guest.finish(number, SECONDS))
        self.assertEqual(said.count("ping data: rdma-ping-"), ROUNDS, said)


class SIWPingTests(SIWMixin, PingTests):
    """
    The same on siw.
    """


class RefusalTests(CommandsMixin):
    """
    What is lacking is said in one line, which says what to do.
    """

    def refused(self, command: str) -> str:
        """
        @return: the one line of a command that fails.
        """
        ended = self.guest.run(command, SECONDS)
        self.assertNotEqual(ended.status, 0, ended.text)
        (line,) = ended.errors.splitlines()
        return str(line)

    def without(self, adapter: str, before: str = "") -> str:
        """
        @param before: runs in the process first.

        @return: what C{ib-ping} says on a device of an adapter.
        """
        given = f"TWISTED_IB_DEVICES={GUESTS}=hardware:{adapter} BEFORE={shlex.quote(before)}"
        words = (COMMAND, "ping.ping", "--device", GUESTS, "-s")
        return self.refused(self.python(*words, environment=given))

    def test_extra(self) -> None:
        """
        The extra.
        """
        said = self.without(self.peer.value[0], "sys.modules['ibverbs'] = None")
        self.assertIn("the extra [hardware] is not installed: pip install 'twisted-ib[hardware]'", said)

    def test_adapter(self) -> None:
        """
        An adapter of that name.
        """
        self.assertIn("this host has no adapter rxe7: load its driver, or add one", self.without("rxe7"))

    def test_rights(self) -> None:
        """
        Rights on its node.
        """
        self.guest.must("chmod 600 /dev/infiniband/uverbs*")
        said = self.without(self.peer.value[0], "os.setgroups([]); os.setgid(65534); os.setuid(65534)")
        self.assertIn("no rights on /dev/infiniband", said)
        self.assertIn("become root, or a member of its group", said)

    def test_library(self) -> None:
        """
        The library.
        """
        words = f"ping.ping --device {GUESTS} -s"
        given = f"TWISTED_IB_DEVICES={GUESTS}=hardware:{self.peer.value[0]} PYTHONPATH={SITE}"
        hidden = "set -e; for each in /usr/lib/*/libibverbs.so.1; do mount --bind /dev/null $each; done"
        command = f"{hidden}; exec env {given} python3 {COMMAND} {words}"
        said = self.refused(f"exec unshare -m sh -c {shlex.quote(command)}")
        self.assertIn("there is no libibverbs.so.1: install it, as Debian's libibverbs1", said)
