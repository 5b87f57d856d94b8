"""
Tests of L{twisted_ib.hca.queues.requests}.
"""

from __future__ import annotations

from attrs import asdict
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.queues.requests import Attributes, SendOpcode, SendRequest


class DefaultTests(SynchronousTestCase):
    """
    What nobody has said.
    """

    def test_request(self) -> None:
        """
        It is 0 in a work request, as in a zeroed C{struct ibv_send_wr}; only the completion is asked for.
        """
        numbers = {
            name: value
            for name, value in asdict(SendRequest(7, SendOpcode.SEND)).items()
            if isinstance(value, int) and value
        }
        self.assertEqual(numbers, {"id": 7, "opcode": 2, "flags": 2})

    def test_attributes(self) -> None:
        """
        A queue pair has no rights to give and no retries before it is modified.
        """
        self.assertEqual(set(asdict(Attributes()).values()), {0})
