"""
OpenSM and infiniband-diags on C{libibumad.so.3} of this package: C{ib-run} starts each on C{ib0}, at a port
of its own in the subnet of C{ib-fabric}.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from subprocess import Popen

from tests.opensm import dumps
from tests.opensm.diagnostics.commands import HOST, masked
from tests.opensm.lab import Programs
from tests.opensm.topologies import TOPOLOGIES, star
from tests.processes.subnet.fabrics import FabricTestCase
from tests.support.commands import programOf
from tests.verbs.c.library import built
from twisted_ib.settings import RUN_DIR

#: Commands that print the same wherever they are.
COMMANDS = (
    *("sminfo", "ibtracert 1 4", "smpquery nodeinfo 1", "smpquery portinfo 1 1", "smpquery sl2vl 1"),
    *("perfquery -x 1 1", "ibportstate 1 1 query", "saquery -c"),
)
#: The flows of osmtest: inventory, and multicast groups.  The others compare with an inventory, which has the
#: port of another process.
FLOWS = "cm"
#: So many nodes need many MADs in most tables; their switch has ports left for programs.
ADAPTERS, PORTS = 34, 40
PINGS = 100
#: Each program is another node, and OpenSM ignores the traps of a switch after ten without a pause.
SWEEPS = "sweep_interval 1"
MASTER, STANDBY = "SMINFO_MASTER", "SMINFO_STANDBY"
#: A standby looks often whether the master is there.
POLLING = ("sminfo_polling_timeout 500", "polling_retry_number 2")


class LibraryPrograms(Programs):
    """
    Starts programs by C{ib-run}.
    """

    def __init__(self, directory: Path, runDirectory: str) -> None:
        """
        @param runDirectory: that of the subnet.
        """
        super().__init__(directory)
        self._runDirectory = runDirectory

    def environment(self, host: str, **more: str) -> dict[str, str]:
        """
        See L{Programs.environment}.  No library is preloaded.
        """
        found = super().environment(host, **more)
        for name in ("LD_PRELOAD", "SIM_HOST", "IBSIM_SOCKNAME"):
            del found[name]
        same = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
        return {**found, **same, RUN_DIR: self._runDirectory}

    def start(self, host: str, *command: str, **more: str) -> Popen[bytes]:
        run = sys.executable, "-c", programOf("run.run"), "--quiet", "--device", "ib0"
        return super().start(host, *run, *command, **more)


class LibraryTests(FabricTestCase):
    """
    OpenSM is the master of the subnet.
    """

    def begin(self, topology: str, *options: str) -> None:
        """
        Bring a subnet up.

        @param options: lines of OpenSM's configuration.
        """
        built()
        self.programs = LibraryPrograms(Path(self.mktemp()).resolve(), self.runDirectory)
        self.addCleanup(self.programs.stop)
        file = self.programs.directory / "topology"
        file.write_text(topology)
        self.host("--no-sm", "--topology", str(file), "--ibsim", self.programs.name)
        self.manager = self.programs.opensm("", SWEEPS, *options)
        self.programs.until((self.programs.directory / "opensm-subnet.lst").exists)

    def run_(self, *command: str) -> str:
        """
        @return: the output of a program, which has to succeed.
        """
        status, output = self.programs.run("", *command)
        self.assertEqual(status, 0, output)
        return output

    def test_commands(self) -> None:
        """
        The commands print what they print on ibsim's library, at a node of the topology; those that show
        where they are show a node with the device's name.
        """
        self.begin(TOPOLOGIES["trunks"])
        simulated = Programs(Path(self.mktemp()).resolve())
        self.addCleanup(simulated.stop)
        simulated.name = self.programs.name
        for command in COMMANDS:
            _, expected = simulated.run(HOST, *command.split())
            self.assertEqual(masked(self.run_(*command.split())), masked(expected), command)
        self.assertIn(" ib0 ", self.run_("iblinkinfo"))
        self.assertRegex(self.run_("ibnetdiscover", "-H"), r' "\S+ ib0 \d+"')
        stat = self.run_("ibstat")
        self.assertIn("CA 'ib0'", stat)
        self.assertIn("State: Active", stat)

    def test_tables(self) -> None:
        """
        Tables of many MADs are whole, in queries of all kinds.
        """
        self.begin(star(ADAPTERS).replace(f"Switch {ADAPTERS} ", f"Switch {PORTS} "))
        for query in ("LR", "MFTR", "-I"):
            self.run_("saquery", query)
        names = set(re.findall(r"Hca\d+", self.run_("saquery", "-N")))
        self.assertEqual(names, {f"Hca{number}" for number in range(1, ADAPTERS + 1)})
        records = re.findall(r"PathRecord dump", self.run_("saquery", "-p", "--slid", "1"))
        # All nodes of the topology, OpenSM's and the query's own.
        self.assertGreaterEqual(len(records), ADAPTERS + 2)

    def test_osmtest(self) -> None:
        """
        OpenSM's own test of subnet administration passes each flow at once.
        """
        self.begin(TOPOLOGIES["trunks"])
        for flow in FLOWS:
            self.assertTrue(self.run_("osmtest", "-f", flow).rstrip().endswith("PASS"), flow)

    def test_ping(self) -> None:
        """
        C{ibping} to a program that serves it, and when that has ended to nobody.
        """
        self.begin(TOPOLOGIES["trunks"])
        server = self.programs.start("", "ibping", "-S")
        name = f"ib0 {server.pid}"
        self.programs.until(lambda: name in self.programs.run("", "saquery", "-N")[1])
        records = self.run_("saquery", "-N").split("NodeRecord dump:")
        (record,) = [each for each in records if name in each]
        (lid,) = re.findall(r"\blid\.+(\d+)", record)
        status, output = self.programs.run("", "ibping", "-c", str(PINGS), "-f", lid)
        self.assertEqual(status, 0, output)
        self.assertIn(f"{PINGS} packets transmitted, {PINGS} received, 0% packet loss", output)
        server.kill()
        server.wait()
        self.assertIn("100% packet loss", self.programs.run("", "ibping", "-c", "1", lid)[1])

    def test_masters(self) -> None:
        """
        A second OpenSM is standby, and is master when the first is killed.
        """
        self.begin(TOPOLOGIES["trunks"], *POLLING)
        first = self.run_("sminfo")
        self.assertIn(MASTER, first)
        self.programs.start(
            *("", "opensm", "-f", str(self.programs.directory / "second.log")),
            *("-F", str(self.programs.directory / "opensm.conf")),
        )

        def isThere() -> bool:
            found = dumps.subnet(self.programs.directory)
            return self.programs.run("", "saquery", "-s")[1].count("PortInfoRecord") >= 2 and bool(found)

        self.programs.until(isThere)
        self.manager.kill()
        self.manager.wait()

        def isNext() -> bool:
            status, output = self.programs.run("", "sminfo")
            return status == 0 and MASTER in output and output.split(",")[0] != first.split(",")[0]

        self.programs.until(isNext)
