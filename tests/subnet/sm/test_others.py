"""
Tests of a subnet manager among others, and of MADs that come to it unasked.
"""

from __future__ import annotations

from random import Random
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.topologies import TOPOLOGIES, star, unlinked
from tests.subnet.sm.subnets import Managed
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.node import SMInfo, SMState
from twisted_ib.hca.mad.attributes.notice import LinkStateDetails, LocalChangeDetails, Notice, Trap
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.hca.wire.mad.classes import (
    SUBNET,
    SUBNET_ADMINISTRATION,
    SUBNET_DIRECTED,
    DirectedHeader,
)
from twisted_ib.hca.wire.mad.mad import (
    GET,
    GET_RESPONSE,
    SET,
    SM_VERSION,
    TRAP,
    TRAP_REPRESS,
    Mad,
    decodeMAD,
)
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.election import Control
from twisted_ib.subnet.sm.manager import Manager, Options

KEY = 0x77
OWN = 5


class Administration:
    """
    Writes down how it is called.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.wait: float | None = None

    def received(self, packet: Packet, now: float) -> None:
        self.calls.append(("received", packet.slid))

    def swept(self, now: float) -> None:
        self.calls.append("swept")

    def notify(self, notice: Notice, gid: int, now: float) -> None:
        self.calls.append((notice.noticeTrapNumber, gid))

    def deadline(self) -> float | None:
        return self.wait

    def expired(self, now: float) -> None:
        self.wait = None
        self.calls.append(("expired", now))

    def reset(self) -> None:
        self.calls.append("reset")


class OtherCase(SynchronousTestCase):
    """
    A switch with three CAs; the manager at the first has priority 5, at the second there may be another one.
    """

    def setUp(self) -> None:
        """
        Nobody is there yet.
        """
        self.managed = Managed(star(3))
        self.other = self.managed.port("Hca2")
        #: The SMInfo of the other one, C{None} if it does not answer; and the Sets that it got.
        self.info: SMInfo | None = None
        self.controls: list[tuple[int, SMInfo]] = []
        inner = self.managed.subnet.answer
        self.patch(
            self.managed.subnet,
            "answer",
            lambda port, packet: (
                self.answer(packet) if self.isForOther(port, packet) else inner(port, packet)
            ),
        )

    def isForOther(self, port: Any, packet: Packet) -> bool:
        """
        @return: whether a MAD is an SMInfo for the other one.
        """
        return port is self.other and decodeMAD(packet.octets).attribute == SMInfo.ID

    def answer(self, packet: Packet) -> bytes | None:
        """
        @return: the other one's response.
        """
        mad = decodeMAD(packet.octets)
        if self.info is None or mad.method & 0x80:
            return None
        if mad.method == SET:
            assert isinstance(mad.data, bytes)
            self.controls.append((mad.modifier, SMInfo.parse(mad.data)))
        return evolve(mad, method=GET_RESPONSE, data=self.info.pack()).pack()

    def appear(self, state: SMState, priority: int) -> None:
        """
        There is another subnet manager.
        """
        self.info = SMInfo(smInfoGuid=self.other.guid, smPriority=priority, smState=state)
        self.other.capMask |= Capability.SM

    def begin(self, **options: Any) -> None:
        """
        Begin to manage.
        """
        self.managed.subnet.manage(Options(priority=OWN, key=KEY, **options))
        self.managed.settle()

    @property
    def state(self) -> SMState:
        """
        The manager's state.
        """
        return self.managed.manager.state

    def ask(self, mad: Mad) -> list[Mad]:
        """
        @return: the packets of the manager when a MAD of the other one has come.
        """
        packet = Packet(self.other.lid, self.managed.port("Hca1").lid, 0, 0, bytearray(mad.pack()))
        self.managed.manager.received(packet, self.managed.clock.seconds())
        return [decodeMAD(each.octets) for each in self.managed.manager.outgoing()]

    def control(self, control: int, key: int = KEY, **fields: Any) -> list[Mad]:
        """
        @return: the packets of the manager when the other one has sent a Set of SMInfo.
        """
        data = SMInfo(smInfoGuid=self.other.guid, smInfoKey=key).pack()
        return self.ask(Mad(**{**self.fields(SET, SMInfo.ID), "modifier": control, "data": data, **fields}))

    def fields(self, method: int, attribute: int) -> dict[str, Any]:
        """
        @return: of a LID-routed SMP.
        """
        return {
            "managementClass": SUBNET,
            "classVersion": SM_VERSION,
            "method": method,
            "transaction": 0x1234,
            "attribute": attribute,
        }


class ElectionTests(OtherCase):
    """
    The election of the master.
    """

    def test_discovering(self) -> None:
        """
        It becomes the master if it goes before all others and none is one, and else configures nothing.
        """
        for state in (SMState.DISCOVERING, SMState.STANDBY, SMState.MASTER):
            for priority in (OWN - 1, OWN + 1):
                self.setUp()
                self.appear(state, priority)
                self.begin()
                isMaster = priority < OWN and state is not SMState.MASTER
                expected = SMState.MASTER if isMaster else SMState.STANDBY
                self.assertEqual(self.state, expected, (state, priority))
                self.assertEqual(bool(self.other.lid), isMaster)
                self.assertEqual(self.controls, [])

    def test_standby(self) -> None:
        """
        It asks the master, and takes its place when that is silent for 40 s.
        """
        self.appear(SMState.MASTER, 9)
        self.begin()
        self.managed.settle(10 * limits.SM_POLL_SECONDS)
        self.assertEqual(self.state, SMState.STANDBY)
        self.info = None
        self.managed.settle((limits.SM_POLLS - 1) * limits.SM_POLL_SECONDS)
        self.assertEqual(self.state, SMState.STANDBY)
        # Its port still says that it has one, and the request to that is given up first.
        self.managed.settle(limits.SM_POLL_SECONDS + 2)
        self.assertEqual((self.state, self.managed.notActive()), (SMState.MASTER, []))

    def test_standbyMoved(self) -> None:
        """
        A master whose port is gone is silent too.
        """
        self.appear(SMState.MASTER, 9)
        self.begin()
        self.managed.manager.model.guids.clear()
        self.info, self.other.capMask = None, 0
        self.managed.settle((limits.SM_POLLS + 1) * limits.SM_POLL_SECONDS)
        self.assertEqual((self.state, self.managed.notActive()), (SMState.MASTER, []))

    def test_handedOver(self) -> None:
        """
        A master that finds one that goes before it hands over to it, with the SM_Key; when that acknowledges
        it, it is a standby, and subnet administration forgets all.
        """
        self.begin()
        administration = self.managed.manager.administration = Administration()
        self.appear(SMState.STANDBY, OWN + 1)
        details = LocalChangeDetails(lid=self.other.lid, capMask=self.other.capMask)
        notice = Notice(noticeTrapNumber=Trap.CAPABILITY_CHANGED, details=details.pack())
        self.ask(Mad(**self.fields(TRAP, Notice.ID), data=notice.pack()))
        self.managed.subnet.manager.look()
        self.managed.settle(1.0)
        self.assertEqual(self.state, SMState.MASTER)
        ((control, info),) = self.controls
        self.assertEqual((control, info.smInfoKey, info.smPriority), (Control.HANDOVER, KEY, OWN))
        # Asked again as long as it is not acknowledged.
        self.managed.settle(limits.SM_SWEEP_SECONDS)
        self.assertEqual([each for each, _ in self.controls], [Control.HANDOVER] * 2)
        (response,) = self.control(Control.ACKNOWLEDGE)
        self.assertEqual((response.method, response.status), (GET_RESPONSE, 0))
        self.assertEqual((self.state, administration.calls[-1]), (SMState.STANDBY, "reset"))
        self.info = evolve(self.info, smState=SMState.MASTER)
        self.managed.settle(10 * limits.SM_POLL_SECONDS)
        self.assertEqual((self.state, len(self.controls)), (SMState.STANDBY, 2))

    def test_taken(self) -> None:
        """
        A standby to which the master hands over acknowledges that, and configures the subnet.
        """
        self.appear(SMState.MASTER, OWN - 1)
        self.begin()
        self.info = evolve(self.info, smState=SMState.STANDBY)
        # As by a directed route, whose way back is that of the ingress ports.
        header = DirectedHeader(returnPath=b"\0\2\1")
        response, acknowledgement = self.control(
            Control.HANDOVER, managementClass=SUBNET_DIRECTED, header=header, classSpecific=0x0302
        )
        self.assertEqual((response.method, response.status), (GET_RESPONSE, 0x8000))
        header = acknowledgement.header
        assert isinstance(header, DirectedHeader)
        self.assertEqual((acknowledgement.method, acknowledgement.modifier), (SET, Control.ACKNOWLEDGE))
        self.assertEqual((acknowledgement.classSpecific, header.initialPath[:3]), (2, b"\0\1\2"))
        self.managed.subnet.manager.look()
        self.managed.settle(1.0)
        self.assertEqual((self.state, self.managed.notActive()), (SMState.MASTER, []))

    def test_handedOverOften(self) -> None:
        """
        A master to which somebody hands over all the time has one acknowledgement on its way, and sweeps no
        sooner than ever.
        """
        self.begin()
        sent = [mad for _ in range(50) for mad in self.control(Control.HANDOVER)]
        self.assertEqual([mad.method for mad in sent].count(SET), 1)
        self.assertEqual([mad.status for mad in sent if mad.method == GET_RESPONSE], [0] * 50)
        self.managed.subnet.manager.look()
        self.managed.settle(2.0)
        self.assertEqual((self.state, self.managed.manager.sweeps), (SMState.MASTER, 2))
        self.assertEqual([mad.method for mad in self.control(Control.HANDOVER)].count(SET), 1)

    def test_look(self) -> None:
        """
        A subnet manager that has resigned does not look, and one that has begun does not begin again.
        """
        manager = Manager(Options(priority=OWN, key=KEY), 0, self.managed.count)
        manager.look(0.0)
        self.assertEqual(manager.outgoing(), [])
        manager.start(0.0)
        self.assertEqual(len(manager.outgoing()), 1)
        manager.start(0.0)
        self.assertEqual(manager.outgoing(), [])

    def test_handedOverEarly(self) -> None:
        """
        A handover that comes before it knows of the master does not keep it awake when it is a standby.
        """
        self.appear(SMState.MASTER, 9)
        own = self.managed.port("Hca1")
        manager = Manager(Options(priority=OWN, key=KEY), 0, self.managed.count)
        manager.start(0.0)
        data = SMInfo(smInfoGuid=self.other.guid, smInfoKey=KEY).pack()
        mad = Mad(**{**self.fields(SET, SMInfo.ID), "modifier": Control.HANDOVER, "data": data})
        manager.received(Packet(7, 1, 0, 0, bytearray(mad.pack())), 0.0)
        for now in range(20):
            while packets := manager.outgoing():
                for packet in packets:
                    response = self.managed.subnet.exchange(own, packet)
                    if response is not None:
                        manager.received(response, float(now))
            if manager.state is SMState.STANDBY:
                break
            manager.expired(now + 1.0)
        deadline = manager.deadline()
        assert deadline is not None
        self.assertEqual(manager.state, SMState.STANDBY)
        self.assertGreater(deadline, now + 1.0)

    def test_handedOverMeanwhile(self) -> None:
        """
        An acknowledgement that is given up with a light sweep is not the last.
        """
        self.begin()
        self.managed.settle(1.0)
        manager, own = self.managed.manager, self.managed.port("Hca1")
        self.managed.port("Switch1").node.switch.stateChange = True
        details = LinkStateDetails(lid=self.other.lid)
        notice = Notice(noticeTrapNumber=Trap.LINK_STATE_CHANGED, details=details.pack())
        mad = Mad(**self.fields(TRAP, Notice.ID), data=notice.pack())
        manager.received(Packet(self.other.lid, own.lid, 0, 0, bytearray(mad.pack())), 1.0)
        packets = manager.outgoing()
        for _ in range(2):
            self.assertEqual([each.method for each in self.control(Control.HANDOVER)].count(SET), 1)
            for packet in packets:
                response = self.managed.subnet.exchange(own, packet)
                if response is not None:
                    manager.received(response, 1.0)

    def test_disabled(self) -> None:
        """
        A standby that is disabled does nothing until it is made a standby again.
        """
        self.appear(SMState.MASTER, 9)
        self.begin()
        self.control(Control.DISABLE)
        self.managed.settle()
        self.info = None
        self.managed.settle(10 * limits.SM_POLL_SECONDS)
        self.assertEqual((self.state, self.managed.manager.sweeps), (SMState.NOT_ACTIVE, 1))
        self.control(Control.STANDBY)
        self.managed.subnet.manager.look()
        self.managed.settle((limits.SM_POLLS + 1) * limits.SM_POLL_SECONDS)
        self.assertEqual(self.state, SMState.MASTER)

    def test_refused(self) -> None:
        """
        A Set of SMInfo that is not valid in its state, or has another SM_Key, changes nothing.
        """
        self.begin()
        for control in (0, Control.ACKNOWLEDGE, Control.DISABLE, Control.STANDBY, Control.DISCOVER, 6):
            (response,) = self.control(control)
            self.assertEqual((response.status, response.modifier), (0x1C, control))
        (response,) = self.control(Control.HANDOVER, key=KEY + 1)
        self.assertEqual((response.status, self.state), (0x1C, SMState.MASTER))
        self.assertEqual(self.managed.lost["sm_not_permitted"], 7)
        self.assertEqual((self.managed.manager.sweeps, self.managed.manager._stages), (1, None))

    def test_information(self) -> None:
        """
        It tells what it is, but not its SM_Key, to whom it does not matter.
        """
        self.begin()
        (response,) = self.ask(Mad(**self.fields(GET, SMInfo.ID)))
        assert isinstance(response.data, bytes)
        info = SMInfo.parse(response.data)
        self.assertEqual((response.method, response.transaction), (GET_RESPONSE, 0x1234))
        self.assertEqual((info.smInfoGuid, info.smInfoKey), (self.managed.port("Hca1").guid, 0))
        self.assertEqual((info.smPriority, info.smState), (OWN, SMState.MASTER))
        self.assertGreater(info.smActivity, 10)


class UnaskedTests(OtherCase):
    """
    Traps and MADs of subnet administration, and garbage.
    """

    def trap(self, number: int, slid: int | None = None) -> list[Mad]:
        """
        @return: the packets of the manager when a trap of the other node has come.
        """
        details = LinkStateDetails(lid=self.other.lid)
        notice = Notice(noticeTrapNumber=number, details=details.pack())
        mad = Mad(**self.fields(TRAP, Notice.ID), data=notice.pack())
        packet = Packet(self.other.lid if slid is None else slid, 1, 0, 0, bytearray(mad.pack()))
        self.managed.manager.received(packet, self.managed.clock.seconds())
        return [decodeMAD(each.octets) for each in self.managed.manager.outgoing()]

    def test_repressed(self) -> None:
        """
        Each trap is repressed, with what it had, and told to subnet administration.
        """
        self.begin()
        administration = self.managed.manager.administration = Administration()
        for number in (Trap.LINK_STATE_CHANGED, Trap.CAPABILITY_CHANGED, Trap.BAD_MKEY, 999):
            (repress,) = self.trap(number)
            assert isinstance(repress.data, bytes)
            self.assertEqual((repress.method, repress.transaction), (TRAP_REPRESS, 0x1234))
            self.assertEqual(Notice.parse(repress.data).noticeTrapNumber, number)
            self.assertEqual(administration.calls.pop(), (number, 0xFE80 << 112 | self.other.guid))

    def test_meanwhile(self) -> None:
        """
        A node that reports a change while a light sweep is under way is asked by the next one.
        """
        self.begin()
        self.managed.settle(1.0)
        manager, own = self.managed.manager, self.managed.port("Hca1")
        details = LinkStateDetails(lid=self.other.lid)
        notice = Notice(noticeTrapNumber=Trap.CAPABILITY_CHANGED, details=details.pack())
        mad = Mad(**self.fields(TRAP, Notice.ID), data=notice.pack())
        lids = self.other.lid, self.managed.port("Hca3").lid
        asked = []
        for lid in lids:
            manager.received(Packet(lid, own.lid, 0, 0, bytearray(mad.pack())), 1.0)
            asked.append(manager.outgoing())
        # The SwitchInfo, and PortInfo of two; both traps are repressed.
        self.assertEqual([len(packets) for packets in asked], [4, 1])
        for packet in asked[0]:
            response = self.managed.subnet.exchange(own, packet)
            if response is not None:
                manager.received(response, 1.0)
        manager.expired(2.0)
        routes = {bytes(packet.octets[129:131]) for packet in manager.outgoing()}
        self.assertIn(b"\1\3", routes)
        # Once: those after it ask the switch and the own port only.
        self.managed.subnet.manager.look()
        self.managed.settle(limits.SM_SWEEP_SECONDS)
        manager.expired(100.0)
        self.assertEqual(len(manager.outgoing()), 2)

    def test_strangers(self) -> None:
        """
        A trap of a LID that nobody has is dropped, and so is any while it is no master.
        """
        self.begin()
        self.assertEqual(self.trap(Trap.LINK_STATE_CHANGED, slid=77), [])
        self.assertEqual(self.managed.lost["sm_unknown_sender"], 1)
        self.setUp()
        self.appear(SMState.MASTER, 9)
        self.begin()
        self.managed.manager.model.lids[9] = self.managed.manager.model.guids[self.other.guid]
        self.assertEqual(self.trap(Trap.LINK_STATE_CHANGED, slid=9), [])
        self.assertEqual(self.managed.lost["sm_unexpected"], 1)

    def test_storm(self) -> None:
        """
        However many traps come, no sweep begins sooner after another than the gap.
        """
        self.begin()
        manager = self.managed.manager
        sent = manager._requests.sent
        for _ in range(100):
            self.trap(Trap.LINK_STATE_CHANGED)
            self.managed.subnet.manager.look()
            self.managed.settle(limits.SM_SWEEP_GAP_SECONDS / 10)
        # The switch, and the own port.
        self.assertLessEqual(manager._requests.sent - sent, 2 * 11)

    def test_administration(self) -> None:
        """
        Subnet administration gets its MADs, its time and each sweep, while it is the master.
        """
        self.begin()
        manager, clock = self.managed.manager, self.managed.clock
        query = Mad(SUBNET_ADMINISTRATION, 2, GET, 1, 0x35)
        manager.administration = None
        self.ask(query)
        self.assertEqual(self.managed.lost["sm_unexpected"], 1)
        administration = manager.administration = Administration()
        self.ask(query)
        self.assertEqual(administration.calls, [("received", self.other.lid)])
        administration.wait = clock.seconds() + 1.5
        self.managed.subnet.manager.look()
        self.managed.settle(2.0)
        self.assertEqual(administration.calls[1:], [("expired", 1.5)])
        self.control(Control.HANDOVER)
        self.managed.subnet.manager.look()
        self.managed.settle(1.0)
        self.assertEqual(administration.calls[2:], ["swept"])

    def test_answers(self) -> None:
        """
        The queue of packets to send is bounded.
        """
        self.begin()
        self.patch(limits, "SM_ANSWERS", 3)
        for _ in range(5):
            self.managed.manager.send(Packet(0, 2, 1, 1, bytearray(256)))
        self.assertEqual(self.managed.lost["sm_overrun"], 2)
        self.assertEqual([packet.slid for packet in self.managed.manager.outgoing()], [1, 1, 1])

    def test_groups(self) -> None:
        """
        Multicast groups are bounded, and have multicast LIDs.
        """
        self.begin()
        self.patch(limits, "SM_GROUPS", 2)
        manager = self.managed.manager
        for mlid in (0xC000, 0xC001, 0xC002):
            manager.setGroup(mlid, [self.other.guid, 99])
        self.assertEqual(self.managed.lost["sm_too_many_groups"], 1)
        manager.setGroup(0xC000, [])
        manager.setGroup(0xC002, [self.other.guid])
        self.assertEqual(self.managed.lost["sm_too_many_groups"], 1)
        for mlid in (0xBFFF, 0xFFFF):
            self.assertRaises(ValueError, manager.setGroup, mlid, [])

    def test_garbage(self) -> None:
        """
        MADs that are nobody's are dropped and counted.
        """
        self.begin()
        for mad, name in (
            (Mad(0x04, 1, GET, 1, 0x12), "sm_unexpected"),
            (Mad(**self.fields(GET, 0x11)), "sm_unexpected"),
            (Mad(**self.fields(TRAP, SMInfo.ID)), "sm_unexpected"),
            (Mad(**{**self.fields(GET, SMInfo.ID), "classVersion": 2}), "sm_malformed"),
            (Mad(**self.fields(GET_RESPONSE, SMInfo.ID)), "sm_unasked"),
        ):
            self.managed.lost.clear()
            self.assertEqual(self.ask(mad), [])
            self.assertEqual(self.managed.lost, {name: 1})
        packet = Packet(1, 1, 0, 0, bytearray(b"\2\1\1\1" + bytes(252)))
        self.managed.manager.received(packet, 0.0)
        self.assertEqual(self.managed.lost["sm_malformed"], 1)

    def test_mutated(self) -> None:
        """
        Responses with bits that are wrong, which no link lets pass, do no harm that a heavy sweep does not
        mend.
        """
        random = Random(1)
        managed = Managed(TOPOLOGIES["fatTree"])
        inner = managed.subnet.exchange
        isBad = True

        def exchange(port: Any, packet: Packet) -> Packet | None:
            response = inner(port, packet)
            if isBad and response is not None and random.randrange(4) == 0:
                for _ in range(random.choice((1, 1, 8, 64))):
                    response.octets[random.randrange(256)] ^= 1 << random.randrange(8)
            return response

        self.patch(managed.subnet, "exchange", exchange)
        managed.subnet.manage(Options())
        managed.settle(30.0)
        self.assertLessEqual({"sm_unasked", "sm_foreign", "sm_malformed"}, set(managed.lost))
        isBad = False
        whole = parse(TOPOLOGIES["fatTree"], "whole")
        managed.load(unlinked(whole, "Hca8"))
        managed.load(whole)
        managed.settle(30.0)
        self.assertEqual((managed.notActive(), managed.manager.state), ([], SMState.MASTER))
        names = [name for name in managed.lids() if name.startswith("Hca")]
        for one in names:
            self.assertFalse([other for other in names if other != one and "..." in managed.way(one, other)])
