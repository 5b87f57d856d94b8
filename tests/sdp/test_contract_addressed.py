"""
SDP over packets is TCP to applications: the tests of L{tests.sdp.test_contract}, on a device that has an
address.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.connecting import AddressContract
from tests.hca.addressed import onWire
from tests.internet.carriers import SDP
from tests.sdp.test_contract import CONTRACTS, EPOLL, IB
from twisted_ib.hca.device.registry import addDevice

HERE = "127.0.0.1"


class OnWire:
    """
    Both ends are C{roce0}, which has one address.
    """

    def setUp(self) -> None:
        """
        Add it.
        """
        test: Any = self
        onWire(test, {HERE: 4096})
        addDevice("roce0", "roce", HERE)
        super().setUp()  # type: ignore[misc]


def _make() -> dict[str, type]:
    """
    @return: The test cases, by name.
    """
    made: dict[str, type] = {}
    carrier = SDP("roce0")
    for contract in CONTRACTS:
        if contract is AddressContract:
            continue  # It is about hosts with many addresses.
        name = f"{carrier.name}{contract.__name__.replace('Contract', 'Tests')}"
        members = {"carrier": carrier, "__module__": __name__, "_reactors": [IB, EPOLL], "timeout": 40}
        kind: Any = type(name, (OnWire, contract, ReactorBuilder), members)
        for case in kind.makeTestCaseClasses().values():
            case.__module__ = __name__
            made[case.__name__] = case
    return made


globals().update(_make())
