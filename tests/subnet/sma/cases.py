"""
A small subnet, and SMPs to its nodes.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.wire.mad.classes import SUBNET, SUBNET_DIRECTED, ClassHeader, DirectedHeader, SubnetHeader
from twisted_ib.hca.wire.mad.mad import GET, SET, Mad, decodeMAD
from twisted_ib.subnet.network.graph import Node, Port, build
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sma.agent import SMA, Answer

#: The topology that the octets in these tests were captured with.
TOPOLOGY = """
Switch 8 "Switch1"
[1] "Hca1"[1]
[2] "Hca2"[1]
[5] "Switch2"[5]
[6] "Switch2"[6]

Switch 8 "Switch2"
[1] "Hca3"[1]
[5] "Switch1"[5]
[6] "Switch1"[6]

Hca 2 "Hca1"
[1] "Switch1"[1]

Hca 2 "Hca2"
[1] "Switch1"[2]

Hca 2 "Hca3"
[1] "Switch2"[1]
"""


def smp(
    method: int,
    attribute: int,
    modifier: int = 0,
    data: bytes = b"",
    key: int = 0,
    header: ClassHeader | None = None,
    version: int = 1,
) -> bytes:
    """
    @param header: instead of that of a LID-routed SMP.
    """
    header = SubnetHeader(key) if header is None else header
    class_ = SUBNET_DIRECTED if isinstance(header, DirectedHeader) else SUBNET
    return Mad(class_, version, method, 0x1234, attribute, data, modifier, header=header).pack()


class SMATestCase(SynchronousTestCase):
    """
    Agents of all nodes, and a clock.
    """

    def setUp(self) -> None:
        """
        Build them.
        """
        self.graph, self.nodes = build(parse(TOPOLOGY, "test"))
        self.sma = SMA()
        self.now = 0.0

    def port(self, name: str, number: int) -> Port:
        """
        @return: a port that is there.
        """
        port = self.nodes[name].port(number)
        assert port is not None
        return port

    def node(self, name: str) -> Node:
        """
        @return: one that is there.
        """
        return self.nodes[name]

    def respond(self, port: Port, data: bytes, slid: int = 0) -> Answer:
        """
        @return: the outcome of an SMP that came in by a port.
        """
        return self.sma.respond(port, data, self.now, slid)

    def get(self, port: Port, kind: type[Attribute], modifier: int = 0, key: int = 0) -> Mad:
        """
        @return: the response to a Get.
        """
        answer = self.respond(port, smp(GET, kind.ID, modifier, key=key))
        self.assertEqual((answer.changes, answer.rerouted, answer.notices), ((), False, ()))
        assert answer.octets is not None
        return decodeMAD(answer.octets)

    def set(self, port: Port, value: Attribute, modifier: int = 0, key: int = 0) -> tuple[int, Answer]:
        """
        @return: the status of the response to a Set, and what else it did.
        """
        answer = self.respond(port, smp(SET, value.ID, modifier, value.pack(), key))
        assert answer.octets is not None
        return decodeMAD(answer.octets).status, answer
