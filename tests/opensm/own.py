"""
The subnet's own manager, the diagnostics that look at what it has made, and OpenSM that comes and goes.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm import dumps, master
from tests.opensm.diagnostics.commands import COMMANDS, HOST, masked
from tests.opensm.lab import Lab, lab
from tests.opensm.topologies import TOPOLOGIES, unlinked
from twisted_ib.hca.mad.attributes.node import SMState
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.manager import Options

#: They differ by which of two links is taken to which LID.
ROUTES = "ibroute 2"
#: Subnet administration has other abilities than OpenSM's.
ABILITIES = "saquery -c"


class OwnTests(SynchronousTestCase):
    """
    Two switches with two links between them.
    """

    def managed(self, made: Lab) -> dict[str, int]:
        """
        Let the subnet manage itself.

        @return: the LID of each node.
        """
        made.subnet.manage(Options())
        made.until(lambda: master.active(made))
        return self.lids(made)

    def lids(self, made: Lab) -> dict[str, int]:
        """
        @return: the LID of each node.
        """
        return {node.description: next(node.each()).lid for node in made.subnet.graph.nodes.values()}

    def state(self, made: Lab) -> SMState:
        """
        @return: the state of the subnet's own manager.
        """
        assert made.subnet.manager is not None
        return made.subnet.manager.manager.state

    def test_commands(self) -> None:
        """
        The diagnostics print what they print when OpenSM has taken the subnet over, at the same port.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            self.managed(made)
            commands = [command for command in COMMANDS if command != ABILITIES]
            found = {command: made.run(HOST, *command.split()) for command in commands}
            made.opensm("Hca1")
            made.until((made.directory / "opensm-subnet.lst").exists)
            expected = {command: made.run(HOST, *command.split()) for command in commands}
            different = [
                command for command in commands if masked(found[command][1]) != masked(expected[command][1])
            ]
            self.assertLessEqual(set(different), {ROUTES})
            self.assertEqual({status for status, _ in found.values()}, {0})

    def test_takenOver(self) -> None:
        """
        OpenSM at another port takes the subnet over, with all LIDs as they are, and manages it; when it has
        closed its port the subnet manages itself again.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            lids = self.managed(made)
            opensm = made.opensm("Hca2")
            listed = made.directory / "opensm-subnet.lst"
            made.until(
                lambda: listed.exists() and len(dumps.subnet(made.directory)) == len(master.linked(made))
            )
            self.assertEqual((self.state(made), self.lids(made)), (SMState.NOT_ACTIVE, lids))
            self.assertEqual(made.subnet.find("Hca4").smLID, lids["Hca2"])
            master.MasterTests.compare(self, made)  # type: ignore[arg-type]
            opensm.terminate()
            made.until(lambda: self.state(made) is SMState.MASTER)
            whole = parse(TOPOLOGIES["trunks"], "whole")
            made.subnet.load(unlinked(whole, "Hca4"))
            made.subnet.load(whole)
            made.until(lambda: master.active(made))
            self.assertEqual((made.subnet.find("Hca4").smLID, self.lids(made)), (lids["Hca1"], lids))
