"""
A subnet that was discovered, and its administration, for tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.port import DEFAULT_PREFIX, PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.node import NodeDescription, NodeInfo, SMInfo, SwitchInfo
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.administration import GET_TABLE, SA_VERSION, SAStatus
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION, AdministrationHeader
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, Mad, decodeMAD
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.sa.agent import Administration
from twisted_ib.subnet.sm.model import Model, Node, Port, Switch
from twisted_ib.subnet.sm.partitions import DEFAULT

#: The SM_Key, and the M_Key of all ports.
KEY = 0x5EC2E7
MKEY = 0x1234
FULL, LIMITED = 0xFFFF, 0x7FFF
#: The switch's LID, and its node GUID.
SWITCH_LID, SWITCH = 0x40, 0x2000
_AT = 56
#: Of a port with a link of 4 lanes and 2.5 Gb/s each.
INFO = PortInfo(
    mkey=MKEY,
    gidPrefix=DEFAULT_PREFIX,
    smLID=1,
    capMask=0x50C048,
    linkWidthActive=2,
    linkSpeedActive=1,
    linkState=PortState.ACTIVE,
    neighborMTU=4,
    mtuCap=4,
    guidCap=16,
)


def guidOf(lid: int) -> int:
    """
    @return: the port GUID of a CA.
    """
    return 0x1001 + (lid - 1) * 0x10


def gidOf(lid: int) -> int:
    """
    @return: the GID of a CA.
    """
    return DEFAULT_PREFIX << 64 | guidOf(lid)


def star(adapters: int = 3) -> dict[int, Node]:
    """
    @return: the nodes of a switch whose port I{n} has the link of the CA with LID I{n}.
    """
    switch = Node(
        NodeInfo(nodeType=NodeType.SWITCH, numPorts=adapters, guid=SWITCH, portGuid=SWITCH, partCap=8),
        NodeDescription(description=b"Switch1"),
        switch=Switch(SwitchInfo(linearFdbCap=64, mcastFdbCap=1024)),
    )
    linear = bytearray([NO_PORT]) * (SWITCH_LID + 1)
    linear[SWITCH_LID] = 0
    own = evolve(INFO, lid=SWITCH_LID, neighborMTU=1, mtuCap=3)
    switch.ports[0] = Port(switch, 0, SWITCH, own, (FULL,))
    nodes = {SWITCH: switch}
    for lid in range(1, adapters + 1):
        guid = guidOf(lid)
        info = NodeInfo(nodeType=NodeType.CA, numPorts=2, guid=guid - 1, portGuid=guid, partCap=64)
        node = nodes[guid - 1] = Node(info, NodeDescription(description=f"Hca{lid}".encode()))
        port = node.ports[1] = Port(node, 1, guid, evolve(INFO, lid=lid, localPort=1), (FULL, 0))
        end = switch.ports[lid] = Port(switch, lid, info=evolve(INFO, mkey=0, localPort=lid), peer=port)
        port.peer = end
        linear[lid] = lid
    assert switch.switch is not None
    switch.switch.linear = bytes(linear)
    return nodes


class StandIn:
    """
    In the place of the subnet manager.

    @ivar sent: the packets that it was given.
    @ivar groups: the receiving members of each multicast LID; C{senders} those that only send.
    """

    def __init__(self) -> None:
        self.model = Model(partitions=DEFAULT)
        self.key = KEY
        self.sent: list[Packet] = []
        self.groups: dict[int, frozenset[int]] = {}
        self.senders: dict[int, frozenset[int]] = {}

    def setGroup(self, mlid: int, members: Iterable[int], senders: Iterable[int] = ()) -> None:
        """
        Remember the members.
        """
        self.senders[mlid] = frozenset(senders)
        self.groups[mlid] = frozenset(members)
        if not self.groups[mlid]:
            del self.groups[mlid]

    def send(self, packet: Packet) -> None:
        """
        Keep a packet.
        """
        self.sent.append(packet)


class AdministrationTestCase(SynchronousTestCase):
    """
    Administration of L{star}, whose CA with LID 1 is the subnet manager's.
    """

    adapters = 3

    def setUp(self) -> None:
        """
        Sweep.
        """
        self.manager = StandIn()
        self.model = self.manager.model
        self.lost: Counter[str] = Counter()
        self.now = 0.0
        numbers = count(0x7000)
        self._transactions = count(1)
        self.administration = Administration(self.manager, lambda bits: next(numbers), self._count)
        self.sweep(star(self.adapters))

    def _count(self, name: str) -> None:
        self.lost[name] += 1

    def sweep(self, nodes: dict[int, Node]) -> None:
        """
        The manager has found these nodes.
        """
        own = nodes[guidOf(1) - 1].ports[1]
        self.model.replace(nodes, own)
        self.model.managers = {own.guid: SMInfo(smInfoGuid=own.guid, smInfoKey=KEY, smPriority=3, smState=3)}
        self.administration.swept(self.now)

    def port(self, lid: int) -> Port:
        """
        @return: a CA's port.
        """
        return self.model.lids[lid]

    def give(self, lid: int, mad: Mad | bytes, source: int = 1, room: int = MAD_BYTES) -> None:
        """
        A port sends a MAD.

        @param room: see L{Packet}.
        """
        octets = mad.pack() if isinstance(mad, Mad) else mad
        packet = Packet(lid, 1, source, 1, bytearray(octets), MAD_BYTES, room)
        self.administration.received(packet, self.now)

    def request(self, method: int, record: Attribute, *names: str, **changes: Any) -> Mad:
        """
        @param names: of the components, or C{"*"} for a mask of all that there can be.
        @param changes: SM_Key C{key}, attribute C{modifier}, C{version}.
        """
        bits = layoutOf(type(record)).bits
        mask = (1 << 64) - 1 if names == ("*",) else 0
        for name in names if not mask else ():
            mask |= bits[name]
        return Mad(
            *(SUBNET_ADMINISTRATION, changes.get("version", SA_VERSION), method, next(self._transactions)),
            *(record.ID, record.pack(), changes.get("modifier", 0)),
            header=AdministrationHeader(key=changes.get("key", 0), componentMask=mask),
        )

    def ask(self, method: int, record: Attribute, *names: str, lid: int = 2, **changes: Any) -> Mad:
        """
        @return: the response.
        """
        mad = self.request(method, record, *names, **changes)
        self.give(lid, mad)
        (packet,) = self.manager.sent
        self.manager.sent.clear()
        self.assertEqual((packet.dlid, packet.source, packet.destination), (lid, 1, 1))
        response = decodeMAD(bytes(packet.octets))
        expected = GET_RESPONSE if method in (GET, SET) else method | 0x80
        self.assertEqual((response.method, response.transaction), (expected, mad.transaction))
        self._length = packet.length
        return response

    def status(self, method: int, record: Attribute, *names: str, **changes: Any) -> SAStatus:
        """
        @return: the status of the response.
        """
        return SAStatus(self.ask(method, record, *names, **changes).status)

    def get(self, record: Any, *names: str, **changes: Any) -> Any:
        """
        @return: the record that a Get is answered with.
        """
        mad = self.ask(GET, record, *names, **changes)
        self.assertEqual(SAStatus(mad.status), SAStatus.SUCCESS)
        return type(record).parse(mad.data)

    def table(self, record: Any, *names: str, **changes: Any) -> list[Any]:
        """
        @return: the records that a GetTable is answered with.
        """
        mad = self.ask(GET_TABLE, record, *names, **changes)
        self.assertEqual(SAStatus(mad.status), SAStatus.SUCCESS)
        distance = mad.header.attributeOffset * 8
        return [type(record).parse(mad.data[start:]) for start in range(0, self._length - _AT, distance)]

    def set(self, record: Any, *names: str, **changes: Any) -> Any:
        """
        @return: the record that a Set is answered with.
        """
        mad = self.ask(SET, record, *names, **changes)
        self.assertEqual(SAStatus(mad.status), SAStatus.SUCCESS)
        return type(record).parse(mad.data)

    def wait(self, seconds: float) -> None:
        """
        Time passes; each deadline is met.
        """
        end = self.now + seconds
        while (deadline := self.administration.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.administration.expired(self.now)
        self.now = end
