"""
Diagnostic commands print the same on a subnet of this package as on ibsim, for one topology file; this
package's own print what those print.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import settle
from tests.opensm.administration import openDevice
from tests.opensm.lab import Programs, lab
from tests.opensm.master import active
from tests.opensm.topologies import TOPOLOGIES
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.fabric.base.neighbours import Neighbours
from twisted_ib.subnet.sm.sweep import Discovery
from twisted_ib.tools import net
from twisted_ib.tools.show import stat

#: With two switches and two links between them, LIDs 1 and 5 are CAs, 2 and 3 switches.
TOPOLOGY = TOPOLOGIES["trunks"]
#: The node that they are attached to.
HOST = "Hca3"
#: The node at which this package's own commands are.
BESIDE = "Hca2"
COMMANDS = (
    "ibnetdiscover",
    "iblinkinfo",
    "ibroute 2",
    "ibtracert 1 4",
    "ibaddr",
    "ibstat",
    "sminfo",
    "ibhosts",
    "ibswitches",
    "smpquery nodeinfo 1",
    "smpquery nodedesc 2",
    "smpquery portinfo 1 1",
    "smpquery switchinfo 2",
    "smpquery pkeys 1",
    "smpquery sl2vl 1",
    "smpquery vlarb 1",
    "smpquery guidinfo 1",
    "perfquery 1 1",
    "perfquery -x 1 1",
    "ibqueryerrors",
    "ibportstate 1 1 query",
    "saquery -c",
    "saquery -s",
    "saquery -g",
    "saquery --src-to-dst 1:4",
)
#: Lists of nodes, and what is on them.
LISTS = {"ibnetdiscover -l": tuple(NodeType), "ibnetdiscover -S": (NodeType.SWITCH,)}
#: Fields that OpenSM sets, and that ibsim leaves as they were.
IGNORED = "MkeyLeasePeriod|LinkWidthEnabled|LinkSpeedEnabled|SubnetTimeout|LocalPhysErr|OverrunErr"
#: Of a device: its name, and what nobody else has so.
OWN = (
    (re.compile(r"(CA:? )'\w+'"), r"\1'NAME'"),
    (re.compile(r"((?:CA type|Firmware version|Hardware version|Link layer): ).+"), r"\1N"),
)
#: Parts that may differ: the time of day, counters, the activity of the subnet manager, versions.
MASKS = (
    (re.compile(r"generated on .*"), "generated on TIME"),
    (re.compile(r"(activity count) \d+"), r"\1 N"),
    (re.compile(r"(Revision:\.+|Hardware version: )\w+"), r"\1N"),
    (re.compile(rf"((?:{IGNORED}):\.+).+"), r"\1N"),
    (re.compile(r"((?:Xmit|Rcv)(?:Data|Pkts):\.+)\d+"), r"\1N"),
)


def masked(text: str) -> str:
    """
    @return: an output without the parts that may differ.
    """
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


class CommandTests(SynchronousTestCase):
    """
    25 commands.
    """

    def simulated(self) -> dict[str, tuple[int, str]]:
        """
        @return: exit status and output of each command on ibsim.
        """
        programs = Programs(Path(self.mktemp()).resolve())
        self.addCleanup(programs.stop)
        programs.simulator(TOPOLOGY)
        programs.opensm()
        listed = programs.directory / "opensm-subnet.lst"
        programs.until(listed.exists)
        found = {}
        for command in COMMANDS:
            ended = subprocess.run(
                command.split(),
                cwd=programs.directory,
                env=programs.environment(HOST),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=HANG_SECONDS,
            )
            found[command] = ended.returncode, masked(ended.stdout.decode())
        return found

    def test_commands(self) -> None:
        """
        Each command has the same exit status and output.
        """
        expected = self.simulated()
        found = {}
        with lab(TOPOLOGY, Path(self.mktemp()).resolve()) as made:
            made.opensm()
            made.until((made.directory / "opensm-subnet.lst").exists)
            for command in COMMANDS:
                status, output = made.run(HOST, *command.split())
                found[command] = status, masked(output)
        self.assertEqual([command for command in COMMANDS if found[command] != expected[command]], [])
        self.assertEqual({status for status, _ in expected.values()}, {0})


class PingTests(SynchronousTestCase):
    """
    C{ibping}, which does not work on ibsim.
    """

    def test_ping(self) -> None:
        """
        A hundred pings to a server without C{SIM_SET_ISSM}, and to a node without a server: none is lost.
        """
        with lab(TOPOLOGY, Path(self.mktemp()).resolve()) as made:
            made.opensm()
            made.until((made.directory / "opensm-subnet.lst").exists)
            made.start("Hca2", "ibping", "-S")
            port = made.subnet.find("Hca2")
            # A client of this node: OpenSM may open another one late.
            made.until(lambda: any(each.port is port for each in made.sockets.server._clients.values()))
            for name, byAgent in (("Hca2", False), ("Hca4", True)):
                lid = str(made.subnet.find(name).lid)
                # The server is attached before it has registered its class.
                made.until(lambda lid=lid: "1 received" in made.run(HOST, "ibping", "-c", "1", lid)[1])
                status, output = made.run(HOST, "ibping", "-c", "100", "-f", lid)
                self.assertEqual(status, 0)
                self.assertIn("100 packets transmitted, 100 received, 0% packet loss", output)
                # The node's own agent answers with the node's description, the server with the host's name.
                self.assertEqual(f"--- {name} (Lid" in output, byAgent)


class StatTests(SynchronousTestCase):
    """
    C{ib-stat} shows what C{ibstat} shows.
    """

    def test_text(self) -> None:
        """
        A port of which both are, whole, short, alone and by its GUID.
        """
        with ExitStack() as stack:
            made = stack.enter_context(lab(TOPOLOGY, Path(self.mktemp()).resolve()))
            device = openDevice(made, BESIDE, made.subnet._clock.seconds, Neighbours())
            stack.callback(device.close)
            made.opensm()

            def isActive() -> bool:
                settle(device)
                return active(made) and device.port.state is PortState.ACTIVE

            made.until(isActive)
            for arguments in ((), ("-s",), ("-p",), ("ibsim0", "1")):
                shown = stat.text([device.describe()], stat.commandLine().parse_args(arguments))
                expected = made.run(BESIDE, "ibstat", *arguments)[1]
                texts = ["\n".join(shown) + "\n", expected]
                for pattern, replacement in OWN:
                    texts = [pattern.sub(replacement, text) for text in texts]
                self.assertEqual(*texts)


class DiscoveryTests(SynchronousTestCase):
    """
    C{ib-net} shows what C{ibnetdiscover} shows.
    """

    def compare(self, name: str) -> None:
        """
        Compare the texts of one subnet.
        """
        with ExitStack() as stack:
            made = stack.enter_context(lab(TOPOLOGIES[name], Path(self.mktemp()).resolve()))
            made.opensm()
            made.until(lambda: active(made))
            device = openDevice(made, BESIDE, made.subnet._clock.seconds, Neighbours())
            stack.callback(device.close)
            requests = net.AgentRequests(device, 1.0)
            found = Discovery(requests, self.fail, manages=False)
            found.begin()

            def isDone() -> bool:
                settle(device)
                device.tick(device.clock())
                return bool(requests.done.called)

            made.until(isDone)
            assert found.own is not None
            self.assertTrue(found.isComplete)
            text = net.topology(found, found.own, "now")
            self.assertEqual(masked(text + "\n"), masked(made.run(BESIDE, "ibnetdiscover")[1]))
            for command, kinds in LISTS.items():
                self.assertEqual(net.listed(found, kinds) + "\n", made.run(BESIDE, *command.split())[1])
            self.simulated(text, net.listed(found, NodeType))

    def simulated(self, text: str, nodes: str) -> None:
        """
        ibsim makes the same nodes of the text.
        """
        programs = Programs(Path(self.mktemp()).resolve())
        self.addCleanup(programs.stop)
        programs.simulator(text)
        process = programs.start("", "ibnetdiscover", "-l")
        programs.until(lambda: process.poll() is not None)
        output = process.output.read_text()  # type: ignore[attr-defined]
        listed = [line for line in output.splitlines() if "\t : " in line]
        self.assertEqual(sorted(listed), sorted(nodes.splitlines()))

    def test_trunks(self) -> None:
        """
        Two switches with two links between them.
        """
        self.compare("trunks")

    def test_fatTree(self) -> None:
        """
        Four leaves and two spines, with many ways.
        """
        self.compare("fatTree")
