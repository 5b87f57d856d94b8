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
#: Reactors of each contract; of the others each contract has one in turn.
ALWAYS = {"TCP": [EPOLL], "SDPShm0": [IB], "SDPLo0": []}


def casesOf(
    module: str,
    carrier: Any,
    reactors: list[str],
    *bases: type,
    always: list[str] | None = None,
    contracts: tuple[type[StreamContract], ...] = CONTRACTS,
) -> dict[str, type]:
    """
    @param module: Where they are.
    @param bases: They come before each contract, on a host of one address.
    @param always: The reactors of each contract, which has one of the others in turn; L{None}: it has all.
    @return: The test cases of all contracts on a carrier, by name.
    """
    found: dict[str, type] = {}
    others = [each for each in reactors if each not in (always or ())]
    for number, contract in enumerate(contracts):
        if bases and contract is AddressContract:
            continue  # It is about hosts with many addresses.
        some = reactors if always is None else [*always, others[number % len(others)]]
        name = f"{carrier.name}{contract.__name__.replace('Contract', 'Tests')}"
        members = {"carrier": carrier, "__module__": module, "_reactors": some, "timeout": 40}
        kind: Any = type(name, (*bases, contract, ReactorBuilder), members)
        for case in kind.makeTestCaseClasses().values():
            case.__module__ = module
            found[case.__name__] = case
    return found


def made(module: str, isWhole: bool) -> dict[str, type]:
    """
    @param module: Whose they are.
    @param isWhole: Whether each contract is on each reactor, as in C{tests/soak}.
    @return: The test cases of all carriers, by name.
    """
    found: dict[str, type] = {}
    for carrier, reactors in CARRIERS:
        always = None if isWhole else ALWAYS[carrier.name]
        found.update(casesOf(module, carrier, reactors, always=always))
    return found


globals().update(made(__name__, isWhole=False))
