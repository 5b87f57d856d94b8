"""
SDP over iWARP is TCP to applications: the tests of L{tests.sdp.test_contract}, on real TCP connections.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.connecting import AddressContract
from tests.hca.fabric.iwarp.test_contract import OwnDirectory
from tests.internet.carriers import SDP
from tests.sdp.test_contract import CONTRACTS, EPOLL, IB


def _make() -> dict[str, type]:
    """
    @return: The test cases, by name.
    """
    made: dict[str, type] = {}
    carrier = SDP("iwarp0")
    for contract in CONTRACTS:
        if contract is AddressContract:
            continue  # It is about hosts with many addresses.
        name = f"{carrier.name}{contract.__name__.replace('Contract', 'Tests')}"
        members = {"carrier": carrier, "__module__": __name__, "_reactors": [IB, EPOLL], "timeout": 40}
        kind: Any = type(name, (OwnDirectory, contract, ReactorBuilder), members)
        for case in kind.makeTestCaseClasses().values():
            case.__module__ = __name__
            made[case.__name__] = case
    return made


globals().update(_make())
