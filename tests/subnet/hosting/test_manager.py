"""
Tests of L{twisted_ib.subnet.hosting.manager}.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.topologies import TOPOLOGIES, star, text, unlinked, without
from tests.subnet.network.test_umad import DIRECTED, GET, PERF, SM_INFO, SUBN, Wire, mad
from tests.subnet.sm.subnets import Managed
from twisted_ib import limits
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.node import SMState
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.hca.wire.mad.administration import GET_TABLE
from twisted_ib.hca.wire.mad.mad import RESPONSE
from twisted_ib.subnet.hosting.manager import HostedManager
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.network.umad import (
    CLIENT,
    CONNECT,
    CONTROL,
    DISCONNECT,
    MAGIC,
    MESSAGE,
    SET_ISSM,
    UmadServer,
)
from twisted_ib.subnet.sm.manager import Options


class HostedManagerTests(SynchronousTestCase):
    """
    A switch with three CAs and with clients, managed by its own manager.
    """

    def setUp(self) -> None:
        """
        Bring it up.
        """
        self.managed = Managed(star(3))
        self.subnet = self.managed.subnet
        self.wire = Wire()
        self.server = UmadServer(self.subnet, self.wire, self.managed.count)
        self.subnet.consumer = self.server
        self.subnet.manage(Options())
        self.managed.settle()

    @property
    def state(self) -> SMState:
        """
        The manager's state.
        """
        return self.managed.manager.state

    def marked(self) -> list[str]:
        """
        @return: the nodes whose port says that it has a subnet manager.
        """
        ports = self.subnet.graph.ports()
        return [port.node.description for port in ports if port.capMask & Capability.SM]

    def attach(self, node: str) -> int:
        """
        @return: the number of a client.
        """
        request = CLIENT.pack(1, 0, 0, node.encode())
        reply = self.server.control(f"client at {node}", CONTROL.pack(MAGIC, 0, CONNECT, 0, request))
        assert reply is not None
        number: int = CLIENT.unpack_from(CONTROL.unpack(reply)[4])[0]
        return number

    def control(self, node: str, number: int, kind: int, data: bytes = b"") -> None:
        """
        A client sends a control message.
        """
        self.server.control(f"client at {node}", CONTROL.pack(MAGIC, number, kind, 0, data))

    def open(self, node: str) -> int:
        """
        @return: the number of a client that is a subnet manager.
        """
        number = self.attach(node)
        self.control(node, number, SET_ISSM, b"\1\0\0\0")
        return number

    def ask(self, number: int, octets: bytes, dlid: int) -> list[bytes]:
        """
        @return: the MADs that a client gets when it has sent one.
        """
        self.wire.sent.clear()
        queuePair = octets[1] not in (SUBN, DIRECTED)
        self.server.received(
            number, MESSAGE.pack(dlid, dlid if dlid == 0xFFFF else 0, queuePair, queuePair, 0, 256, octets)
        )
        self.managed.settle()
        return [MESSAGE.unpack(message)[6] for _, message in self.wire.sent if not MESSAGE.unpack(message)[4]]

    def test_asked(self) -> None:
        """
        Clients reach it by its LID and by directed routes, from its own node too.
        """
        lid = self.managed.port("Hca1").lid
        for node in ("Hca1", "Hca3"):
            number = self.attach(node)
            (response,) = self.ask(number, mad(SUBN, GET, SM_INFO), lid)
            self.assertEqual((response[3], response[16:18]), (0x81, b"\0\x20"))
        path = bytearray(mad(DIRECTED, GET, SM_INFO, at7=2))
        path[32:36] = b"\xff" * 4
        path[129:131] = b"\1\1"
        (response,) = self.ask(number, bytes(path), 0xFFFF)
        self.assertEqual((response[3:5], response[72:80]), (b"\x81\x80", bytes(8)))
        # Others of its port's agents answer as before.
        self.assertEqual(len(self.ask(number, mad(PERF, GET, 0x12, at65=1), lid)), 1)
        # And subnet administration, by its status for another version.
        (response,) = self.ask(number, mad(0x03, GET, 0x35), lid)
        self.assertEqual(response[4:6], b"\0\x04")

    def test_table(self) -> None:
        """
        Of a table a client gets the records that libumad2sim lets through, in a message that says how many.
        """
        number = self.attach("Hca3")
        lid = self.managed.port("Hca1").lid
        # All 6 LinkRecords, and 2 of 16 PathRecords.
        for attribute, octets in ((0x20, 6 * 8), (0x35, 2 * 64)):
            (response,) = self.ask(number, mad(0x03, GET_TABLE, attribute, at2=2), lid)
            self.assertEqual((response[3], response[4:6]), (GET_TABLE | RESPONSE, b"\0\0"))
            self.assertEqual([MESSAGE.unpack(message)[5] for _, message in self.wire.sent], [56 + octets])

    def test_resigned(self) -> None:
        """
        It leaves the subnet to a program that opens a port as subnet manager: IsSM is that port's alone,
        SMInfo is not answered, and LIDs stay.  When that port is closed it manages the subnet again.
        """
        self.assertEqual((self.state, self.marked()), (SMState.MASTER, ["Hca1"]))
        lids = self.managed.lids()
        number = self.open("Hca2")
        self.assertEqual((self.state, self.marked()), (SMState.NOT_ACTIVE, ["Hca2"]))
        asker = self.attach("Hca3")
        self.assertEqual(self.ask(asker, mad(SUBN, GET, SM_INFO), lids["Hca1"]), [])
        self.subnet.load(without(parse(star(3), "star"), "Hca3"))
        self.managed.settle(1000.0)
        self.assertEqual((self.managed.manager.sweeps, self.managed.lids()["Hca2"]), (1, lids["Hca2"]))
        self.subnet.load(parse(star(3), "star"))
        self.control("Hca2", number, SET_ISSM, bytes(4))
        self.managed.settle()
        self.assertEqual((self.state, self.marked()), (SMState.MASTER, ["Hca1"]))
        self.assertEqual((self.managed.lids(), self.managed.notActive()), (lids, []))

    def test_samePort(self) -> None:
        """
        The program may be at the manager's own port.
        """
        number = self.open("Hca1")
        self.assertEqual((self.state, self.marked()), (SMState.NOT_ACTIVE, ["Hca1"]))
        # Also when its own one is to go elsewhere.
        self.managed.load(unlinked(parse(star(3), "star"), "Hca1"))
        self.assertEqual((self.state, self.marked()), (SMState.NOT_ACTIVE, ["Hca1"]))
        self.control("Hca1", number, DISCONNECT)
        self.assertEqual(self.marked(), [])
        self.managed.load(star(3))
        self.assertEqual((self.state, self.marked()), (SMState.MASTER, ["Hca2"]))

    def test_removed(self) -> None:
        """
        A device whose node is gone has no subnet manager any more, and does not get one: it is in no subnet.
        """
        device = Mock()
        attached = self.subnet.attach(device, 0, "Hca2")
        attached.setSM(True)
        self.assertEqual((self.state, self.marked()), (SMState.NOT_ACTIVE, ["Hca2"]))
        self.managed.load(without(parse(star(3), "star"), "Hca2"))
        for isSM in (True, False, True):
            self.assertEqual((self.state, self.marked()), (SMState.MASTER, ["Hca1"]))
            attached.setSM(isSM)
            self.managed.settle()
        self.subnet.detach(attached)
        self.managed.settle()
        self.assertEqual((self.state, self.marked()), (SMState.MASTER, ["Hca1"]))
        self.assertEqual(device.portChanged.call_args.args[0].state, PortState.DOWN)

    def test_gone(self) -> None:
        """
        A program that has ended without closing its port is waited for; another one may take its place.
        """
        self.server.gone(self.open("Hca2"))
        self.managed.settle(limits.SM_RETURN_SECONDS - 1)
        self.assertEqual((self.state, self.marked()), (SMState.NOT_ACTIVE, []))
        number = self.open("Hca3")
        self.managed.settle(2 * limits.SM_RETURN_SECONDS)
        self.assertEqual(self.marked(), ["Hca3"])
        self.server.gone(number)
        # Not even a topology that is loaded meanwhile brings it back.
        self.subnet.load(parse(star(3), "star"))
        self.managed.settle(limits.SM_RETURN_SECONDS - 1)
        self.assertEqual(self.state, SMState.NOT_ACTIVE)
        self.managed.settle(1.0)
        self.assertEqual((self.state, self.marked()), (SMState.MASTER, ["Hca1"]))

    def test_two(self) -> None:
        """
        It comes back when the last of several programs has closed its port.
        """
        first, second = self.open("Hca2"), self.open("Hca3")
        self.control("Hca2", first, SET_ISSM, bytes(4))
        self.managed.settle(1000.0)
        self.assertEqual(self.state, SMState.NOT_ACTIVE)
        self.control("Hca3", second, SET_ISSM, bytes(4))
        self.managed.settle()
        self.assertEqual(self.state, SMState.MASTER)

    def test_moved(self) -> None:
        """
        When its own node is gone it goes on at the next CA, and ports keep their LIDs.
        """
        lids = self.managed.lids()
        self.managed.load(without(parse(star(3), "star"), "Hca1"))
        self.assertEqual(self.marked(), ["Hca2"])
        self.assertEqual(self.managed.lids(), {name: lid for name, lid in lids.items() if name != "Hca1"})
        self.assertEqual(self.managed.port("Hca3").smLID, lids["Hca2"])
        self.managed.load(star(3))
        self.assertEqual((self.marked(), self.managed.lids()), (["Hca2"], lids))
        self.assertEqual(self.managed.notActive(), [])

    def test_linked(self) -> None:
        """
        It is at the first port of a CA with a link; one without will do.
        """
        managed = Managed(text({}, ["alone", "a", "b"], [("a", 1, "b", 1)]), Options())
        self.assertEqual(managed.notActive(), [])
        managed = Managed(text({}, ["a", "b"], [("a", 2, "b", 1)]), Options())
        port = managed.subnet.manager and managed.subnet.manager.port
        assert port is not None
        self.assertEqual((port.node.description, port.number), ("a", 2))
        self.assertEqual(managed.notActive(), [])
        managed = Managed(text({}, ["a"], []), Options())
        self.assertEqual((managed.lids(), managed.manager.state), ({"a": 1}, SMState.MASTER))

    def test_noAdapter(self) -> None:
        """
        Where there is no CA there is no manager, until there is one.
        """
        managed = Managed(text({"s": 2, "t": 2}, [], [("s", 1, "t", 1)]), Options())
        self.assertEqual((managed.manager.state, managed.lids()), (SMState.NOT_ACTIVE, {"s": 0, "t": 0}))
        managed.load(star(2))
        self.assertEqual((managed.manager.state, managed.notActive()), (SMState.MASTER, []))

    def test_turns(self) -> None:
        """
        It sends so many MADs in a turn of the reactor, and goes on in the next.
        """
        self.patch(limits, "SM_MADS_PER_TURN", 2 * limits.SM_WINDOW)
        sent: list[int] = []
        turn = HostedManager._turn

        def counted(hosted: HostedManager) -> None:
            before = hosted.manager._requests.sent
            turn(hosted)
            sent.append(hosted.manager._requests.sent - before)

        self.patch(HostedManager, "_turn", counted)
        managed = Managed(star(64), Options())
        self.assertEqual(managed.notActive(), [])
        # Those of the window are made in the turn before.
        self.assertLess(max(sent), 4 * limits.SM_WINDOW)
        self.assertGreater(len(sent), 5)

    def test_answersInTurns(self) -> None:
        """
        So many of what subnet administration sends at once, as Reports, go in a turn too.
        """
        self.patch(limits, "SM_MADS_PER_TURN", 10)
        sent: list[int] = []
        turn, exchange = HostedManager._turn, self.subnet.exchange

        def counted(hosted: HostedManager) -> None:
            sent.append(0)
            turn(hosted)

        def exchanged(port: Any, packet: Any) -> Any:
            sent[-1] += 1
            return exchange(port, packet)

        self.patch(HostedManager, "_turn", counted)
        self.patch(self.subnet, "exchange", exchanged)
        hosted = self.subnet.manager
        assert hosted is not None
        for _ in range(35):
            hosted.manager.send(Packet(0, self.managed.port("Hca3").lid, 1, 1, bytearray(256)))
        hosted._wake()
        self.managed.settle()
        self.assertEqual(sent, [10, 10, 10, 5])

    def test_closed(self) -> None:
        """
        When the subnet is closed nothing is left that waits, and what was gone does not bring it back.
        """
        self.server.gone(self.open("Hca2"))
        self.subnet.close()
        self.subnet.close()
        self.assertEqual([call for call in self.managed.clock.getDelayedCalls() if call.active()], [])
        self.assertEqual(self.state, SMState.NOT_ACTIVE)

    def test_noClients(self) -> None:
        """
        A subnet without clients is managed too: traps and responses find their way.
        """
        managed = Managed(TOPOLOGIES["trunks"], Options())
        managed.load(without(parse(TOPOLOGIES["trunks"], "trunks"), "Hca4"))
        self.assertEqual((len(managed.manager.model.nodes), managed.notActive()), (5, []))
        switch: Any = managed.port("Switch2")
        self.assertIs(switch.node.ports[2].state, PortState.DOWN)
