"""
The subnet's ports have the values that OpenSM and ibportstate set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.lab import Lab, lab
from tests.opensm.master import active
from tests.opensm.topologies import TOPOLOGIES
from twisted_ib.hca.base.port import KeyViolation, PhysicalState, PortState

KEY = 0x1234
#: Two lanes of the high priority table, three of the low one; service levels on four lanes.
QOS = (
    "max_op_vls 3",
    "qos TRUE",
    "qos_max_vls 4",
    "qos_high_limit 5",
    "qos_vlarb_high 0:4,2:3",
    "qos_vlarb_low 1:4,2:7,3:9",
    "qos_sl2vl 0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,3",
)
PARTITIONS = """\
Default=0x7fff, ipoib: ALL=full;
blue=0x8001: ALL=limited, 0x100001=full;
"""


class SettingsTests(SynchronousTestCase):
    """
    Two switches with two links between them.
    """

    def ends(self, made: Lab) -> list[Any]:
        """
        @return: the ports with LIDs.
        """
        return [port for port in made.subnet.graph.ports() if port.isEnd and (port.peer or port.isManagement)]

    def test_keyed(self) -> None:
        """
        M_Key, protect bits, lease and LMC.  OpenSM is refused what it sends with M_Key 0 when it has set one,
        and sweeps again.  A client that knows the M_Key is answered, others are not, and are reported; so
        are packets with wrong P_Keys and Q_Keys.
        """
        options = (f"m_key {KEY:#x}", "m_key_protection_level 2", "m_key_lease_period 20", "lmc 1")
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            made.opensm("Hca1", *options)
            made.until(lambda: active(made) and all(port.mkey for port in self.ends(made)))
            for port in self.ends(made):
                self.assertEqual((port.mkey, port.protectBits, port.mkeyLeasePeriod), (KEY, 2, 20))
                # Of a switch's port 0 the LMC is 0, if it is not enhanced.
                self.assertEqual(port.lmc, 0 if port.isManagement else 1)
            port = made.subnet.find("Hca1")
            violations = port.mkeyViolations
            command = "smpquery", "portinfo", str(port.lid), "1"
            self.assertEqual(made.run("Hca3", *command, "-y", hex(KEY))[0], 0)
            self.assertEqual(port.mkeyViolations, violations)
            self.assertNotEqual(made.run("Hca3", *command)[0], 0)
            self.assertGreater(port.mkeyViolations, violations)
            log = made.directory / "opensm.log"
            made.until(lambda: "num:256 (Bad M_Key)" in log.read_text())
            for isQueueKey, number in ((False, 257), (True, 258)):
                violation = KeyViolation(isQueueKey, 0x8001, 5, port.lid, 0, 7, 8)
                made.subnet.violated(port, 2, violation)
                made.until(lambda number=number: f"num:{number} (Bad" in log.read_text())
            # Each was repressed.
            made.until(lambda: made.subnet._traps.deadline() is None)
            self.assertEqual((port.pkeyViolations, port.qkeyViolations), (2, 2))

    def test_partitions(self) -> None:
        """
        P_Keys of the CAs, and of the switches' ports that lead to them.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            file = made.directory / "partitions"
            file.write_text(PARTITIONS)
            made.opensm("Hca1", f"partition_config_file {file}")
            made.until(lambda: active(made))
            full = made.subnet.find("Hca1")
            for port in self.ends(made):
                if not port.isManagement:
                    own = 0x8001 if port is full else 0x0001
                    for each in (port, port.peer):
                        self.assertEqual({key for key in each.partitions.keys if key}, {0xFFFF, own})
                    self.assertTrue(port.peer.partEnforceInb)

    def test_qualityOfService(self) -> None:
        """
        SLtoVL and VL arbitration of CAs and of switches.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            made.opensm("Hca1", *QOS)
            made.until(lambda: active(made))
            low = [(1, 4), (2, 7), (3, 9), *[(0, 0)] * 5]
            high = [(0, 4), (2, 3), *[(0, 0)] * 6]
            for port in made.subnet.graph.ports():
                if port.peer is None:
                    continue
                self.assertEqual(port.arbitration, [low, high])
                self.assertEqual((port.vlHighLimit, port.operVLs), (5, 3))
                switch = port.node.switch
                lanes = (0, 1, 2, 3) * 4
                if switch is None:
                    self.assertEqual(port.mapping, lanes)
                else:
                    self.assertEqual(switch.mappings[1, port.number], lanes)

    def test_portState(self) -> None:
        """
        C{ibportstate} takes a link down and up, makes it slower and narrower.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            made.opensm()
            made.until(lambda: active(made))
            port = made.subnet.find("Hca2")
            far, lid = port.peer, str(port.peer.node.ports[0].lid)

            def change(*what: str) -> None:
                self.assertEqual(made.run("Hca1", "ibportstate", lid, str(far.number), *what)[0], 0, what)

            change("disable")
            self.assertEqual((far.physicalState, far.state), (PhysicalState.DISABLED, PortState.DOWN))
            self.assertEqual((port.physicalState, port.state), (PhysicalState.POLLING, PortState.DOWN))
            change("enable")
            made.until(lambda: active(made))
            change("speed", "2")
            change("reset")
            made.until(lambda: active(made))
            self.assertEqual((far.linkSpeedActive, port.linkSpeedActive), (2, 2))
