"""
SDP is TCP to applications: one set of tests, which both pass, on several reactors.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.closing import ClosingContract, ReentryContract
from tests.contracts.connecting import AddressContract, ConnectingContract
from tests.contracts.pacing import FacesContract, PacingContract
from tests.contracts.reactors import ReactorContract
from tests.contracts.secure import SecureContract
from tests.internet.carriers import SDP, TCP, StreamContract

IB = "twisted_ib.reactor.ibreactor.IBReactor"
EPOLL = "twisted.internet.epollreactor.EPollReactor"
ASYNCIO = "twisted.internet.test.reactormixins.AsyncioSelectorReactor"
IB_ASYNCIO = "twisted_ib.reactor.asyncioreactor.IBAsyncioReactor"

CONTRACTS: tuple[type[StreamContract], ...] = (
    ClosingContract,
    ReentryContract,
    PacingContract,
    FacesContract,
    ConnectingContract,
    AddressContract,
    SecureContract,
    ReactorContract,
)
CARRIERS: tuple[tuple[Any, list[str]], ...] = (
    (TCP(), [EPOLL, IB, ASYNCIO]),
    (SDP("shm0"), [IB, EPOLL, ASYNCIO, IB_ASYNCIO]),
    (SDP("lo0"), [IB, EPOLL, ASYNCIO]),
)


def casesOf(module: str, carrier: Any, reactors: list[str], *bases: type) -> dict[str, type]:
    """
    @param module: where they are.
    @param bases: what comes before each contract, on a host of one address.
    @return: the test cases of all contracts on a carrier, by name.
    """
    made: dict[str, type] = {}
    for contract in CONTRACTS:
        if bases and contract is AddressContract:
            continue  # It is about hosts with many addresses.
        name = f"{carrier.name}{contract.__name__.replace('Contract', 'Tests')}"
        members = {"carrier": carrier, "__module__": module, "_reactors": reactors, "timeout": 40}
        kind: Any = type(name, (*bases, contract, ReactorBuilder), members)
        for case in kind.makeTestCaseClasses().values():
            case.__module__ = module
            made[case.__name__] = case
    return made


for _carrier, _reactors in CARRIERS:
    globals().update(casesOf(__name__, _carrier, _reactors))
