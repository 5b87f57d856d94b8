"""
The RTU of a connection is lost, late, or overtaken by data (IBTA vol. 1 12.9.8).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.hca.addressed import onWire
from tests.hca.memorylink import Datagram
from tests.verbs.pyverbs.cm.case import CMTestCase, Kind
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.hca.wire.cm.messages import DREQ, REJ, RTU
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.cm import identifier

#: Of a MAD in a datagram of RoCEv2, behind BTH and DETH: its attribute (IBTA vol. 1 13.4.3).
_ATTRIBUTE = slice(36, 38)
_UD_SEND_ONLY = 0x64


def attributeOf(octets: bytes) -> int:
    """
    @return: the attribute of a MAD in a datagram; 0 for another datagram.
    """
    return int.from_bytes(octets[_ATTRIBUTE], "big") if octets[0] == _UD_SEND_ONLY else 0


class OvertakenTests(CMTestCase):
    """
    A passive side that ends its connection at once, after the first message.
    """

    device = "roce0"

    def setUp(self) -> None:
        """
        A wire that holds back every RTU.
        """
        self.wire = onWire(self, {self.host: 4096})
        self.wire.log = []
        self.wire.pass_ = self.holdBack
        self.held: list[Datagram] = []
        addDevice("roce0", "roce", self.host)
        self.patch(identifier, "deviceFor", lambda *addresses: "roce0")
        super().setUp()

    def holdBack(self, datagram: Datagram) -> Iterable[Datagram]:
        """
        Keep an RTU, and let everything else pass.
        """
        if attributeOf(datagram[4]) == RTU.attribute:
            self.held.append(datagram)
            return ()
        return (datagram,)

    def late(self) -> None:
        """
        The RTUs that were kept arrive.
        """
        self.assertNotEqual(self.held, [])
        for datagram in self.held:
            self.wire.deliver(datagram)
        for _ in range(20):
            with hub:
                hub.drive()

    def sent(self, message: Any) -> int:
        """
        @return: how many of a message were sent.
        """
        log = self.wire.log or []
        return sum(attributeOf(datagram[4]) == message.attribute for datagram in log)

    def overtaken(self) -> Any:
        """
        Data arrives where the RTU did not: the connection is established.

        @return: the passive side.
        """
        listener = self.listening()
        active = self.calling(listener)
        passive = self.called(listener)
        passive.accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.quiet(self.far)
        self.talk(active, passive)
        self.assertEqual(len(self.far._reports), 1)
        self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        return passive

    def end(self, passive: Any) -> None:
        """
        The passive side disconnects: by a DREQ, not by a REJ.
        """
        passive.disconnect()
        for channel in (self.near, self.far):
            self.expect(channel, Kind.RDMA_CM_EVENT_DISCONNECTED)
        self.assertEqual((self.sent(DREQ), self.sent(REJ)), (1, 0))

    def test_lost(self) -> None:
        """
        The RTU is lost.
        """
        self.end(self.overtaken())

    def test_overtaken(self) -> None:
        """
        The RTU comes after the first message: it is nothing new.
        """
        passive = self.overtaken()
        self.late()
        self.quiet(self.near, self.far)
        self.end(passive)

    def test_late(self) -> None:
        """
        The RTU comes when all is over.
        """
        self.end(self.overtaken())
        self.late()
        self.assertEqual(self.sent(REJ), 0)
