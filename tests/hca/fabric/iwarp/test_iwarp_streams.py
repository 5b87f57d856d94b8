"""
Messages, and streams, over iWARP on real reactors: the contracts that every device keeps.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.closing import ClosingContract
from tests.internet.carriers import SDP
from tests.rdma.test_reactors import RDMATestsMixin
from tests.sdp.test_contract import IB
from tests.support.rundirectory import ownRunDirectory


class OwnDirectory:
    """
    A run directory for one test.
    """

    def setUp(self: Any) -> None:
        """
        Make it.
        """
        super().setUp()
        ownRunDirectory(self)


def _make() -> dict[str, type]:
    """
    @return: The test cases, by name.
    """
    found: dict[str, type] = {}
    for name, contract in (("Closing", ClosingContract), ("RDMA", RDMATestsMixin)):
        members = {"carrier": SDP("iwarp0"), "device": "iwarp0", "_reactors": [IB], "__module__": __name__}
        kind: Any = type(f"{name}Tests", (OwnDirectory, contract, ReactorBuilder), members)
        found.update(kind.makeTestCaseClasses())
    return found


globals().update(_make())
