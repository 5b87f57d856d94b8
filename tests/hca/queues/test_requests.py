"""
Tests of L{twisted_ib.hca.queues.requests}.
"""

from __future__ import annotations

from attrs import asdict
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import Attributes, SendOpcode, SendRequest
from twisted_ib.hca.wire.cm.messages import DREP, RTU


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


class TextTests(SynchronousTestCase):
    """
    The text of a record.
    """

    def test_fields(self) -> None:
        """
        It has the fields, as that of any class of attrs, also in a subclass that attrs has not seen.
        """
        self.assertEqual(repr(SGE(1, 2, 3)), "SGE(address=1, length=2, key=3)")
        self.assertEqual(
            repr(DREP(4, 5, b"x")),
            "DREP(localCommunicationID=4, remoteCommunicationID=5, privateData=b'x')",
        )

    def test_equal(self) -> None:
        """
        Those of one class with the same fields are equal.
        """
        self.assertEqual(SGE(1, 2, 3), SGE(1, 2, 3))
        self.assertNotEqual(SGE(1, 2, 3), SGE(1, 2, 4))
        self.assertEqual(DREP(4, 5, b"x"), DREP(4, 5, b"x"))
        self.assertNotEqual(DREP(4, 5, b"x"), RTU(4, 5, b"x"))
        self.assertNotEqual(SGE(1, 2, 3), (1, 2, 3))
