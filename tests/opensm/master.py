"""
OpenSM as the master of a subnet: what it says of the subnet is what the subnet's objects have.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm import dumps
from tests.opensm.lab import Lab, lab
from tests.opensm.topologies import TOPOLOGIES, unlinked, without
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.topology import Topology, parse

#: ff12:401b:ffff::ffff:ffff, the broadcast group of IPoIB (RFC 4391 section 4), and its MLID in OpenSM.
BROADCAST = bytes.fromhex("ff12401bffff000000000000ffffffff")
MLID = 0xC000
#: OpenSM does not look by itself; and a switch may send its next trap after 67 ms.
TRAPS_ONLY = ("sweep_interval 0", "subnet_timeout 14")
#: How often a link of each leaf goes down and comes back, in each of so many subnets.  OpenSM ignores
#: a switch's trap that has come more than ten times without a pause of ten seconds; and one that it was late
#: to repress comes twice.
ROUNDS, SUBNETS = 3, 2


def linked(lab: Lab) -> list[Any]:
    """
    @return: all ports that have links.
    """
    return [port for port in lab.subnet.graph.ports() if port.peer is not None]


def active(lab: Lab) -> bool:
    """
    @return: whether all links are up and Active.
    """
    return all(port.state is PortState.ACTIVE for port in linked(lab))


def join(port: Any, manager: int, transaction: int) -> Packet:
    """
    @param manager: LID of subnet administration.
    @return: a port's request to be a full member of the broadcast group (IBTA vol. 1 15.2.5.17).
    """
    mad = bytearray(256)
    mad[:4] = 1, 0x03, 2, 0x02
    mad[8:16] = transaction.to_bytes(8, "big")
    mad[16:18] = b"\0\x38"
    # MGID, PortGID, P_Key, JoinState.
    mad[48:56] = (1 << 0 | 1 << 1 | 1 << 7 | 1 << 16).to_bytes(8, "big")
    mad[56:72] = BROADCAST
    mad[72:88] = bytes.fromhex("fe80000000000000") + port.guid.to_bytes(8, "big")
    mad[96:98] = b"\xff\xff"
    mad[104] = 0x01
    return Packet(port.lid, manager, 1, 1, mad)


class MasterTests(SynchronousTestCase):
    """
    Six topologies.
    """

    def compare(self, made: Lab) -> None:
        """
        Compare all LIDs, links, port states, LFTs and MFTs with OpenSM's dumps.
        """
        expected = {
            dumps.End(near.node.guid, near.number, near.node.end(near).lid): (
                dumps.End(far.node.guid, far.number, far.node.end(far).lid),
                "ACT",
            )
            for near in linked(made)
            for far in (near.peer,)
        }
        self.assertEqual(dumps.subnet(made.directory), expected)
        switches = [node for node in made.subnet.graph.nodes.values() if node.switch is not None]
        unicast, multicast = dumps.unicast(made.directory), dumps.multicast(made.directory)
        self.assertEqual(set(unicast), {node.guid for node in switches})
        lids = {end.lid for end in expected}
        for node in switches:
            self.assertEqual(set(unicast[node.guid]), lids, node.description)
            self.assertEqual(
                {lid: node.switch.lookup(lid) for lid in lids}, unicast[node.guid], node.description
            )
            ports = multicast.get(node.guid, {}).get(MLID, set())
            self.assertEqual(set(node.switch.replicated(MLID, -1)), ports, node.description)

    def isMember(self, port: Any) -> bool:
        """
        @return: whether the switch of a CA's port sends it the group's packets.
        """
        switch = port.peer.node.switch
        return switch is None or port.peer.number in switch.replicated(MLID, -1)

    def bringUp(self, name: str) -> None:
        """
        Bring a topology up, let all CAs join a group, and compare.
        """
        with lab(TOPOLOGIES[name], Path(self.mktemp()).resolve()) as made:
            opensm = made.opensm()
            # Before it has swept the subnet it does not answer; at the end it writes this file.
            listed = made.directory / "opensm-subnet.lst"
            made.until(lambda: active(made) and listed.exists())
            manager = made.subnet.find("Hca1").lid
            adapters = [node.ports[1] for node in made.subnet.graph.nodes.values() if node.switch is None]
            for number, port in enumerate(adapters):
                request = join(port, manager, number)
                self.assertIsNone(made.sockets.server.take(made.subnet.carry(port, request), request))
            # It sets all MFT entries: what it then writes down has them.
            made.until(lambda: all(self.isMember(port) for port in adapters))
            listed.unlink()
            os.kill(opensm.pid, signal.SIGHUP)
            # It writes this file last, and a line for each port that has a link.
            made.until(lambda: listed.exists() and len(dumps.subnet(made.directory)) == len(linked(made)))
            self.compare(made)

    def test_pair(self) -> None:
        """
        Two CAs.
        """
        self.bringUp("pair")

    def test_star2(self) -> None:
        """
        A switch with two CAs.
        """
        self.bringUp("star2")

    def test_star8(self) -> None:
        """
        A switch with eight CAs.
        """
        self.bringUp("star8")

    def test_star64(self) -> None:
        """
        A switch with 64 CAs.
        """
        self.bringUp("star64")

    def test_trunks(self) -> None:
        """
        Two switches with two links between them.
        """
        self.bringUp("trunks")

    def test_fatTree(self) -> None:
        """
        Four leaves under two spines.
        """
        self.bringUp("fatTree")


class LinkTests(SynchronousTestCase):
    """
    Links that go down and come back: OpenSM learns it from trap 128.
    """

    def settled(self, made: Lab) -> bool:
        """
        @return: whether all links are Active, and OpenSM has written down all of them and no other.
        """
        return active(made) and len(dumps.subnet(made.directory)) == len(linked(made))

    def rounds(self, count: int, gone: Callable[[Topology, str], Topology]) -> None:
        """
        At each leaf of the fat tree, lose a CA and have it back.

        @param gone: L{unlinked} or L{without}.
        """
        with lab(TOPOLOGIES["fatTree"], Path(self.mktemp()).resolve()) as made:
            whole = parse(TOPOLOGIES["fatTree"], "whole")
            made.opensm("Hca1", *TRAPS_ONLY)
            made.until((made.directory / "opensm-subnet.lst").exists)
            made.until(lambda: self.settled(made))
            names = [f"Hca{number}" for number in range(1, 9)]
            lids = {name: made.subnet.find(name).lid for name in names}
            for name in names[1::2] * count:
                for topology in (gone(whole, name), whole):
                    made.subnet.load(topology)
                    made.until(lambda: self.settled(made))
            self.assertEqual({name: made.subnet.find(name).lid for name in names}, lids)

    def test_link(self) -> None:
        """
        A link, 24 times.
        """
        for _ in range(SUBNETS):
            self.rounds(ROUNDS, unlinked)

    def test_disabled(self) -> None:
        """
        A port of a switch that C{ibportstate} disables and enables: OpenSM, which does not sweep by itself,
        learns both.
        """
        with lab(TOPOLOGIES["fatTree"], Path(self.mktemp()).resolve()) as made:
            made.opensm("Hca1", *TRAPS_ONLY)
            made.until((made.directory / "opensm-subnet.lst").exists)
            made.until(lambda: self.settled(made))
            far = made.subnet.find("Hca2").peer
            lid, whole = str(far.node.ports[0].lid), len(dumps.subnet(made.directory))
            for what in ("disable", "enable") * 3:
                self.assertEqual(made.run("Hca1", "ibportstate", lid, str(far.number), what)[0], 0, what)
                isGone = what == "disable"
                made.until(lambda: (len(dumps.subnet(made.directory)) < whole) is isGone)  # noqa: B023
            made.until(lambda: self.settled(made))

    def test_node(self) -> None:
        """
        A node that is gone and comes back has its LID again.
        """
        self.rounds(1, without)


class KilledTests(SynchronousTestCase):
    """
    OpenSM that does not say goodbye.
    """

    def test_again(self) -> None:
        """
        Its place is free when its process has ended; the next one brings all links up again, with the same
        LIDs; a tool that is attached meanwhile has no manager to ask.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            listed = made.directory / "opensm-subnet.lst"
            lids: list[dict[str, int]] = []
            for _ in range(3):
                opensm = made.opensm()
                made.until(lambda: active(made) and listed.exists())
                lids.append({name: made.subnet.find(name).lid for name in ("Hca1", "Hca4", "Switch2")})
                opensm.kill()
                made.until(lambda: not made.sockets.server.clients)
                self.assertFalse(made.subnet.find("Hca1").capMask & Capability.SM)
                status, _ = made.run("Hca3", "sminfo")
                self.assertNotEqual(status, 0)
                listed.unlink()
                # So that there is something to bring up.
                made.subnet.load(unlinked(parse(TOPOLOGIES["trunks"], "down"), "Hca4"))
                made.subnet.load(parse(TOPOLOGIES["trunks"], "up"))
            self.assertEqual(lids, lids[:1] * 3)
