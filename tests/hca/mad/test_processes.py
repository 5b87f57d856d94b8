"""
Management between two processes.
"""

from __future__ import annotations

from pathlib import Path
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import turn
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.mad.toys.table import TableAgent, table
from tests.support.commands import running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host import libc
from twisted_ib.hca.mad.dispatch import MAD_TIMEOUT_SECONDS
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import guidGID

MISSING = libc.available()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class ProcessTests(SynchronousTestCase):
    """
    C{shm0}, with L{tests.hca.mad.responder} in a child.
    """

    def test_response(self) -> None:
        """
        The agents of another process answer, with one MAD and with many.
        """
        ownRunDirectory(self)
        child = running(self, "-m", "tests.hca.mad.responder", cwd=Path(__file__).resolve().parents[3])
        assert child.stdout is not None
        guid = int(child.stdout.readline())
        device = Device("shm0")
        self.addCleanup(device.close)
        echo = EchoAgent(device)
        tables = TableAgent(device)
        for agent, question, answer in (
            (echo.agent, echo.question(), bytes(range(232))[::-1]),
            (tables.agent, tables.question(5000), table(5000)),
            (tables.agent, tables.exchange(table(5000)), table(5000)),
        ):
            responses: list[ReceivedMAD | None] = []
            agent.send(AddressVector(guidGID(guid)), question, responses.append, MAD_TIMEOUT_SECONDS)
            waitUntil(lambda: responses, lambda: turn(device))  # noqa: B023
            (response,) = responses
            assert response is not None
            self.assertTrue(response.mad.data == answer)
            self.assertEqual(response.path.peer.pid, child.pid)
