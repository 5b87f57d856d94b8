"""
Tests of L{twisted_ib.subnet.sm.manager}, on subnets whose nodes have true agents.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.topologies import TOPOLOGIES, star, text, unlinked, without
from tests.subnet.sm.subnets import Managed
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.node import (
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    SwitchInfo,
)
from twisted_ib.hca.mad.attributes.port import Capability, PKeyTable, PortInfo
from twisted_ib.hca.wire.mad.mad import GET, SET, decodeMAD
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.manager import Options
from twisted_ib.subnet.sm.partitions import parse as parsePartitions

#: Four switches in a circle with a CA each.
CIRCLE = text(
    {f"s{number}": 4 for number in range(4)},
    [f"h{number}" for number in range(4)],
    [
        *((f"s{number}", 1, f"h{number}", 1) for number in range(4)),
        *((f"s{number}", 2, f"s{(number + 1) % 4}", 3) for number in range(4)),
    ],
)
#: An adapter that is alone at its switch.
ALONE = 'Switch 8 "s"\n[1] "a"[1]\n\nCa 1 "a"\n[1] "s"[1]\n'


def fabric() -> str:
    """
    @return: 100 CAs at four switches, each of which is linked with the others.
    """
    links = [(f"s{number % 4}", number // 4 + 1, f"h{number}", 1) for number in range(100)]
    pairs = ((one, other) for one in range(4) for other in range(one + 1, 4))
    links += [(f"s{one}", 30 + other, f"s{other}", 30 + one) for one, other in pairs]
    return text({f"s{number}": 36 for number in range(4)}, [f"h{number}" for number in range(100)], links)


class SweepTests(SynchronousTestCase):
    """
    A subnet is brought up.
    """

    def test_topologies(self) -> None:
        """
        All links are Active, all end ports have LIDs of their own and the subnet manager's, and between all
        CAs there is a way.
        """
        for name in ("pair", "star8", "trunks", "fatTree"):
            managed = Managed(TOPOLOGIES[name], Options())
            self.assertEqual((managed.notActive(), managed.lost), ([], {}), name)
            lids = managed.lids()
            self.assertEqual(sorted(lids.values()), list(range(1, len(lids) + 1)), name)
            ends = [
                port
                for port in managed.subnet.graph.ports()
                if port.isEnd and (port.peer or port.isManagement)
            ]
            self.assertEqual({port.smLID for port in ends}, {lids["Hca1"]}, name)
            names = [node for node in lids if node.startswith("Hca")]
            for one in names:
                for other in names:
                    if one != other:
                        self.assertNotIn("...", managed.way(one, other), (name, one, other))

    def test_count(self) -> None:
        """
        100 CAs and four switches: each attribute is asked once and each Set is sent once, 1,214 SMPs in all;
        when nothing has changed a light sweep asks the switches and the own port.
        """
        managed = Managed(fabric())
        sent: Counter[tuple[int, int]] = Counter()
        exchange = managed.subnet.exchange

        def counted(port: Any, packet: Packet) -> Packet | None:
            mad = decodeMAD(packet.octets)
            sent[mad.method, mad.attribute] += 1
            return exchange(port, packet)

        self.patch(managed.subnet, "exchange", counted)
        managed.subnet.manage(Options())
        managed.settle()
        self.assertEqual(managed.notActive(), [])
        expected = {
            # Of the six links between the switches three found one; the others are asked from both ends.
            (GET, NodeInfo.ID): 104 + 2 * 3,
            (GET, NodeDescription.ID): 104,
            (GET, SwitchInfo.ID): 4,
            (GET, PortInfo.ID): 100 + 4 * 37,
            # A CA has 64 entries, which are two blocks, a switch 8.
            (GET, PKeyTable.ID): 2 * 100 + 4,
            # That ports have changed their states is cleared; the highest LID.
            (SET, SwitchInfo.ID): 2 * 4,
            # LIDs; Armed and Active of both ends of 106 links.
            (SET, PortInfo.ID): 104 + 2 * 2 * 106,
            (SET, LinearForwardingTable.ID): 2 * 4,
        }
        self.assertEqual(sent, expected)
        sent.clear()
        managed.settle(limits.SM_SWEEP_SECONDS)
        self.assertEqual(sent, {(GET, SwitchInfo.ID): 4, (GET, PortInfo.ID): 1})

    def test_alone(self) -> None:
        """
        One adapter at its switch, as C{ib0} of a process that is alone, is Active after 27 SMPs and one
        wake-up, in no time: how long that takes on a busy machine is no gate, these numbers are.
        """
        managed = Managed(ALONE)
        count = 0
        exchange = managed.subnet.exchange

        def counted(port: Any, packet: Packet) -> Packet | None:
            nonlocal count
            count += 1
            return exchange(port, packet)

        self.patch(managed.subnet, "exchange", counted)
        managed.subnet.manage(Options())
        (call,) = managed.clock.getDelayedCalls()
        managed.clock.advance(call.getTime() - managed.clock.seconds())
        self.assertEqual((managed.notActive(), managed.clock.seconds()), ([], 0.0))
        self.assertLessEqual(count, 27)

    def test_model(self) -> None:
        """
        The model is what the subnet has.
        """
        managed = Managed(TOPOLOGIES["trunks"], Options())
        model = managed.manager.model
        graph = managed.subnet.graph
        self.assertEqual(set(model.nodes), set(graph.nodes))
        for node in model.nodes.values():
            true = graph.nodes[node.guid]
            self.assertEqual((node.description.text, node.kind), (true.description, true.kind))
            for port in node.ports.values():
                other = true.ports[port.number]
                assert other is not None
                expected = other.peer and (other.peer.node.guid, other.peer.number)
                self.assertEqual(port.peer and (port.peer.node.guid, port.peer.number), expected)
                self.assertEqual((port.info.linkState, port.lid), (other.state, true.end(other).lid))
                if port.isEnd:
                    self.assertEqual(port.keys, other.partitions.keys)
                    self.assertIs(model.byGID(0xFE80 << 112 | port.guid), port)
            if node.switch is not None and true.switch is not None:
                self.assertEqual(node.switch.linear, true.switch.linear[: len(node.switch.linear)])
                self.assertEqual(true.switch.top, len(node.switch.linear) - 1)
                self.assertEqual(set(true.switch.linear[len(node.switch.linear) :]), {NO_PORT})
        one, other = model.lids[managed.port("Hca1").lid], model.lids[managed.port("Hca4").lid]
        path = model.path(one, other)
        assert path is not None
        switches = [port.node.description.text for port in path[1::2]]
        self.assertEqual(switches, [*managed.way("Hca1", "Hca4"), "Hca4"])
        self.assertEqual(model.path(one, one), [])
        self.assertIsNone(model.byGID(1))

    def test_reregister(self) -> None:
        """
        When it has become the master it asks clients of all ports that can be asked to register again, later
        those of ports whose link was down.
        """
        asked: list[str] = []
        managed = Managed(star(3))
        inner = managed.subnet._linksChanged

        def changed(changes: Any, isRerouted: bool = False) -> None:
            found = list(changes)
            asked.extend(each.port.node.description for each in found if each.reregister)
            inner(found, isRerouted)

        self.patch(managed.subnet, "_linksChanged", changed)
        for name in ("Hca1", "Hca3"):
            managed.port(name).capMask |= Capability.CLIENT_REREGISTRATION
        managed.subnet.manage(Options())
        managed.settle()
        self.assertEqual(sorted(asked), ["Hca1", "Hca3"])
        del asked[:]
        whole = parse(star(3), "star")
        managed.load(unlinked(whole, "Hca3"))
        managed.load(whole)
        self.assertEqual(asked, ["Hca3"])
        del asked[:]
        managed.manager.resign()
        managed.load(whole)
        self.assertEqual(sorted(asked), ["Hca1", "Hca3"])

    def test_returned(self) -> None:
        """
        A port that was out of reach for a sweep is asked to register again, though its own link was Active
        all the time; also if the first Set that asks it is lost.
        """
        asked: list[int] = []
        links = [("s1", 1, "h1", 1), ("s1", 2, "s2", 1), ("s2", 2, "s3", 1), ("s3", 2, "h2", 1)]
        whole = parse(text({"s1": 2, "s2": 2, "s3": 2}, ["h1", "h2"], links), "chain")
        managed = Managed(text({"s1": 2, "s2": 2, "s3": 2}, ["h1", "h2"], links))
        managed.port("h2").capMask |= Capability.CLIENT_REREGISTRATION
        managed.subnet.manage(Options())
        managed.settle()
        exchange, lid = managed.subnet.exchange, managed.port("h2").lid

        def lossy(port: Any, packet: Packet) -> Packet | None:
            mad = decodeMAD(packet.octets)
            if (mad.method, mad.attribute) == (SET, PortInfo.ID) and isinstance(mad.data, bytes):
                info = PortInfo.parse(mad.data)
                if info.lid == lid:
                    asked.append(info.clientReregister)
                    if len(asked) <= 1 + limits.SM_RETRIES:
                        return None
            return exchange(port, packet)

        managed.load(unlinked(whole, "s2"))
        self.assertNotIn(managed.port("h2").guid, managed.manager.model.guids)
        self.patch(managed.subnet, "exchange", lossy)
        managed.load(whole)
        managed.settle(2 * limits.SM_SWEEP_SECONDS)
        self.assertEqual(asked, [1] * (2 + limits.SM_RETRIES))

    def test_foreign(self) -> None:
        """
        Settings that another subnet manager has left are made its own, but for LIDs.
        """
        managed = Managed(star(3))
        port = managed.port("Hca2")
        port.lid, port.lmc, port.smLID, port.smSL, port.subnetPrefix = 8, 2, 9, 3, 0xFEC0 << 48
        managed.subnet.manage(Options())
        managed.settle()
        self.assertEqual((port.lid, port.lmc, port.smLID, port.smSL), (8, 0, managed.port("Hca1").lid, 0))
        self.assertEqual(port.subnetPrefix, 0xFE80 << 48)

    def test_noLID(self) -> None:
        """
        Ports beyond what a switch can forward get no LID and do not become Active; each sweep tries it again.
        """
        managed = Managed(star(3))
        node = managed.port("Switch1").node
        node.switch.linear = bytearray([NO_PORT]) * 4
        managed.subnet.manage(Options())
        managed.settle()
        self.assertEqual(managed.lids(), {"Hca1": 1, "Hca2": 3, "Hca3": 0, "Switch1": 2})
        self.assertEqual((managed.notActive(), managed.lost["sm_no_lid"]), (["Hca3"], 1))
        node.switch.linear = bytearray([NO_PORT]) * 64
        managed.settle(limits.SM_SWEEP_SECONDS)
        self.assertEqual((managed.notActive(), managed.lids()["Hca3"]), ([], 4))

    def test_lost(self) -> None:
        """
        SMPs that are lost are sent again.
        """
        managed = Managed(TOPOLOGIES["fatTree"])
        carry, turn = managed.subnet._carrier.carry, iter(range(1 << 20))

        def lossy(port: Any, packet: Packet) -> Any:
            return None if next(turn) % 5 == 0 else carry(port, packet)

        self.patch(managed.subnet._carrier, "carry", lossy)
        managed.subnet.manage(Options())
        for _ in range(100):
            managed.settle(limits.SM_TIMEOUT_SECONDS)
        self.assertEqual((managed.notActive(), managed.manager._stages), ([], None))

    def test_unanswered(self) -> None:
        """
        A node that does not answer is left out; when it answers, a later sweep finds it.
        """
        managed = Managed(star(3))
        mute = managed.port("Hca3")
        original = managed.subnet.answer
        self.patch(
            managed.subnet,
            "answer",
            lambda port, packet: None if port is mute else original(port, packet),
        )
        managed.subnet.manage(Options())
        for _ in range(limits.SM_RETRIES + 2):
            managed.settle(limits.SM_TIMEOUT_SECONDS)
        self.assertEqual(set(managed.notActive()), {"Hca3", "Switch1"})
        self.assertEqual((managed.port("Hca2").lid, mute.lid), (3, 0))
        self.patch(managed.subnet, "answer", original)
        managed.settle(limits.SM_SWEEP_SECONDS)
        managed.settle(limits.SM_SWEEP_GAP_SECONDS)
        self.assertEqual((managed.notActive(), managed.manager.sweeps), ([], 2))


class ChangeTests(SynchronousTestCase):
    """
    Changes after the first sweep.
    """

    def test_link(self) -> None:
        """
        A link that goes down is routed around, and used again when it is back: the trap of its switch is
        enough.
        """
        managed = Managed(CIRCLE, Options())
        whole = parse(CIRCLE, "circle")
        self.assertEqual(managed.way("h0", "h1"), ["s0", "s1"])
        cut = text(
            {f"s{number}": 4 for number in range(4)},
            [f"h{number}" for number in range(4)],
            [
                *((f"s{number}", 1, f"h{number}", 1) for number in range(4)),
                *((f"s{number}", 2, f"s{(number + 1) % 4}", 3) for number in range(1, 4)),
            ],
        )
        lids = managed.lids()
        for _ in range(3):
            managed.load(cut)
            self.assertEqual(managed.way("h0", "h1"), ["s0", "s3", "s2", "s1"])
            managed.load(whole)
            self.assertEqual(managed.way("h0", "h1"), ["s0", "s1"])
        self.assertEqual((managed.lids(), managed.notActive()), (lids, []))
        self.assertEqual(managed.manager.sweeps, 7)

    def test_duringFirst(self) -> None:
        """
        A node that comes while the first sweep configures, of which the switch can send no trap yet, need not
        wait for the next light sweep.
        """
        managed = Managed(star(2))
        exchange = managed.subnet.exchange
        loads = [star(3)]

        def coming(port: Any, packet: Packet) -> Packet | None:
            mad = decodeMAD(packet.octets)
            if loads and (mad.method, mad.attribute) == (SET, PortInfo.ID):
                managed.subnet.load(parse(loads.pop(), "star"))
            return exchange(port, packet)

        self.patch(managed.subnet, "exchange", coming)
        managed.subnet.manage(Options())
        managed.settle(limits.SM_SWEEP_SECONDS / 2)
        self.assertEqual((managed.notActive(), managed.lost["trap_no_manager"], loads), ([], 1, []))

    def test_nodeGone(self) -> None:
        """
        A CA that is gone has no entries, and when it comes back, though without its LID, it gets the one it
        had.
        """
        managed = Managed(star(4), Options())
        lid = managed.port("Hca3").lid
        whole = parse(star(4), "star")
        managed.load(without(whole, "Hca3"))
        switch = managed.port("Switch1").node.switch
        self.assertEqual(switch.lookup(lid), NO_PORT)
        self.assertNotIn(lid, managed.manager.model.lids)
        managed.load(whole)
        self.assertEqual((managed.port("Hca3").lid, switch.lookup(lid)), (lid, 3))
        self.assertEqual(managed.notActive(), [])

    def test_switchGone(self) -> None:
        """
        After a switch is lost no table has a way by it, or to what was behind it.
        """
        managed = Managed(CIRCLE, Options())
        lids = managed.lids()
        managed.load(without(parse(CIRCLE, "circle"), "s1"))
        self.assertEqual(managed.way("h0", "h2"), ["s0", "s3", "s2"])
        for name in ("s0", "s2", "s3"):
            switch = managed.port(name).node.switch
            for gone in ("s1", "h1"):
                self.assertEqual(switch.lookup(lids[gone]), NO_PORT, name)
            for kept in ("s0", "s2", "s3", "h0", "h2", "h3"):
                port = managed.port(name).node.ports[switch.lookup(lids[kept])]
                self.assertTrue(port.isManagement or port.peer is not None, name)

    def test_fewer(self) -> None:
        """
        Blocks of LIDs that nobody has any more have no ways.
        """
        links = [("s", number, f"h{number}", 1) for number in range(1, 71)]
        few, many = (text({"s": 70}, [each[2] for each in some], some) for some in (links[:3], links))
        managed = Managed(many, Options())
        switch = managed.port("s").node.switch
        self.assertEqual(switch.top, 71)
        managed.load(few)
        self.assertEqual(switch.top, 4)
        self.assertEqual(set(switch.linear[5:]), {NO_PORT})

    def test_unconfirmed(self) -> None:
        """
        A block whose Set was not answered is written again, though it is what the switch once had.
        """
        managed = Managed(CIRCLE, Options())
        whole = parse(CIRCLE, "circle")
        switch = managed.port("s0").node.switch
        before = bytes(switch.linear[:64])
        exchange = managed.subnet.exchange

        def mute(port: Any, packet: Packet) -> Packet | None:
            response = exchange(port, packet)
            return None if decodeMAD(packet.octets).attribute == LinearForwardingTable.ID else response

        self.patch(managed.subnet, "exchange", mute)
        managed.load(unlinked(whole, "h2"))
        self.assertNotEqual(bytes(switch.linear[:64]), before)
        self.patch(managed.subnet, "exchange", exchange)
        managed.load(whole)
        managed.settle(limits.SM_SWEEP_SECONDS)
        self.assertEqual(bytes(switch.linear[:64]), before)

    def test_switchReset(self) -> None:
        """
        A switch that comes back without its tables gets them again.
        """
        managed = Managed(CIRCLE, Options())
        whole = parse(CIRCLE, "circle")
        lids = managed.lids()
        # Both are over before the manager looks.
        managed.subnet.load(without(whole, "s1"))
        managed.load(whole)
        self.assertEqual((managed.notActive(), managed.lids()), ([], lids))
        self.assertEqual(managed.way("h0", "h1"), ["s0", "s1"])

    def test_ownLink(self) -> None:
        """
        Without a switch the next light sweep finds that the own link is down or up.
        """
        managed = Managed(TOPOLOGIES["pair"], Options())
        whole = parse(TOPOLOGIES["pair"], "pair")
        managed.load(unlinked(whole, "Hca2"))
        managed.settle(limits.SM_SWEEP_SECONDS)
        self.assertEqual(len(managed.manager.model.nodes), 1)
        managed.load(whole)
        managed.settle(limits.SM_SWEEP_SECONDS)
        self.assertEqual((len(managed.manager.model.nodes), managed.notActive()), (2, []))

    def test_groups(self) -> None:
        """
        The members of a multicast group, and no others, are on a tree; it follows changes of members and
        links.
        """
        managed = Managed(CIRCLE, Options())
        mlid = 0xC003

        def reached(source: str) -> set[str]:
            found, turn = set(), [managed.port(source).peer]
            for port in turn:
                if port.node.switch is None:
                    found.add(port.node.description)
                    continue
                numbers = port.node.switch.replicated(mlid, port.number)
                turn += [port.node.ports[number].peer for number in numbers if number]
                self.assertLess(len(turn), 20, "a loop")
            return found

        members = {name: managed.port(name).guid for name in ("h0", "h1", "h3")}
        managed.manager.setGroup(mlid, members.values())
        managed.manager.expired(managed.clock.seconds())
        managed.subnet.manager._wake()
        managed.settle()
        for name in members:
            self.assertEqual(reached(name), set(members) - {name})
        managed.load(without(parse(CIRCLE, "circle"), "s3"))
        self.assertEqual(reached("h0"), {"h1"})
        managed.load(CIRCLE)
        self.assertEqual(reached("h0"), {"h1", "h3"})
        managed.manager.setGroup(mlid, [])
        managed.settle(limits.SM_SWEEP_SECONDS)
        for name in ("s0", "s1", "s2", "s3"):
            self.assertEqual(managed.port(name).node.switch.replicated(mlid, 1), [])

    def test_wideSwitch(self) -> None:
        """
        Groups at ports and with multicast LIDs of other blocks than the first; the end of one that a switch
        was not told of is told again.
        """
        links = [("s", number, f"h{number}", 1) for number in (1, 17, 40)]
        managed = Managed(text({"s": 40}, [each[2] for each in links], links), Options())
        switch = managed.port("s").node.switch
        exchange = managed.subnet.exchange
        mlids = 0xC000, 0xC01F, 0xC020, 0xC3FF
        everybody = [managed.port(each[2]).guid for each in links]
        for mlid in mlids:
            managed.manager.setGroup(mlid, everybody[1:] if mlid & 1 else everybody)
        managed.settle(limits.SM_SWEEP_SECONDS)
        for mlid in mlids:
            self.assertEqual(switch.replicated(mlid, -1), [17, 40] if mlid & 1 else [1, 17, 40], hex(mlid))
        self.assertEqual(switch.replicated(0xC001, -1), [])

        def lossy(port: Any, packet: Packet) -> Packet | None:
            isTable = decodeMAD(packet.octets).attribute == MulticastForwardingTable.ID
            return None if isTable else exchange(port, packet)

        self.patch(managed.subnet, "exchange", lossy)
        managed.manager.setGroup(0xC020, [])
        # With all attempts.
        managed.settle(limits.SM_SWEEP_SECONDS + 5)
        self.assertEqual(switch.replicated(0xC020, -1), [1, 17, 40])
        self.patch(managed.subnet, "exchange", exchange)
        managed.settle(2 * limits.SM_SWEEP_SECONDS)
        self.assertEqual(switch.replicated(0xC020, -1), [])


class PartitionTests(SynchronousTestCase):
    """
    P_Key tables.
    """

    def test_partitions(self) -> None:
        """
        Each port has the P_Keys that the file gives it.
        """
        guid = Managed(star(3)).port("Hca2").guid
        file = f"Default=0x7fff, ipoib: ALL=full;\nblue=0x8001: ALL_CAS=limited, {guid:#x}=full;"
        managed = Managed(star(3), Options(partitions=parsePartitions(file, "file")))
        keys = {
            name: {key for key in managed.port(name).partitions.keys if key}
            for name in ("Hca1", "Hca2", "Switch1")
        }
        self.assertEqual(keys, {"Hca1": {0xFFFF, 0x0001}, "Hca2": {0xFFFF, 0x8001}, "Switch1": {0xFFFF}})

    def test_full(self) -> None:
        """
        P_Keys that a table has no room for are counted: a switch has room for 8.
        """
        file = "".join(f"p{number}={number}: ALL_SWITCHES=full;" for number in range(1, 11))
        managed = Managed(star(1), Options(partitions=parsePartitions(file, "file")))
        keys = managed.port("Switch1").partitions.keys
        # Without a rule for the default partition all are limited members.
        self.assertEqual(keys, (0x7FFF, *(0x8000 | number for number in range(1, 8))))
        self.assertEqual((managed.lost, managed.notActive()), ({"sm_no_pkey": 3}, []))
