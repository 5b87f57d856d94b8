"""
Diagnostics follow the redirection of a class to another queue pair.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.lab import lab
from tests.opensm.topologies import TOPOLOGIES
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.mad.pma import EXTENDED_WIDTH
from twisted_ib.hca.mad.requests import redirecting
from twisted_ib.hca.wire.headers import QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import PERFORMANCE
from twisted_ib.hca.wire.mad.mad import CLASS_AT, GET_RESPONSE, decodeMAD

#: Serves performance management.
NUMBER = 0x123456
ROUNDS = 10


class RedirectionTests(SynchronousTestCase):
    """
    C{perfquery}.
    """

    def test_perfquery(self) -> None:
        """
        It asks queue pair 1, is redirected, and gets the counters of each port from the other queue pair.
        """
        asked: list[int] = []
        with lab(TOPOLOGIES["star2"], Path(self.mktemp()).resolve()) as made:
            answer = made.subnet.answer

            def answered(port: Any, packet: Any) -> bytes | None:
                octets = bytes(packet.octets)
                if octets[CLASS_AT] == PERFORMANCE:
                    asked.append(packet.destination)
                    if packet.destination == GSI_QPN:
                        queuePair = SimpleNamespace(
                            number=NUMBER, partition=0xFFFF, attributes={"qkey": QUEUE_KEY}
                        )
                        device = SimpleNamespace(gid=0, port=port)
                        mad = redirecting(decodeMAD(octets), device, queuePair, EXTENDED_WIDTH)
                        return evolve(mad, method=GET_RESPONSE).pack()
                return answer(port, packet)

            self.patch(made.subnet, "answer", answered)
            made.opensm()
            made.until((made.directory / "opensm-subnet.lst").exists)
            ports = [node.ports[1] for node in made.subnet.graph.nodes.values() if node.switch is None]
            for _ in range(ROUNDS // len(ports)):
                for port in ports:
                    asked.clear()
                    status, output = made.run("Hca1", "perfquery", str(port.lid), "1")
                    self.assertEqual((status, asked[0], asked[-1]), (0, GSI_QPN, NUMBER), output)
                    self.assertIn("PortRcvPkts", output)
