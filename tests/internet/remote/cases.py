"""
The contracts of streams, with their servers in an agent's process: L{tests.internet.remote.agent}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SkipTest

from tests.contracts.closing import ClosingContract, ReentryContract
from tests.contracts.connecting import ConnectingContract
from tests.contracts.pacing import FacesContract, PacingContract
from tests.internet.remote.mirrors import Line, RemoteSDP
from tests.sdp.test_contract import IB, casesOf

#: Those whose ends can be apart.
CONTRACTS = ClosingContract, ReentryContract, PacingContract, FacesContract, ConnectingContract
#: Tests that look at more of the server than what is sent here, and why they are left out.
_LOGS = "what the server's process logs is not in this one's log"
LOOKS = {
    "test_errorInConnectionLost": _LOGS,
    "test_errorInConnectionMadeOfServer": _LOGS,
    "test_errorInDataReceived": _LOGS,
    "test_interfaces": "a transport in another process is none here",
    "test_reconnect": "the protocols that a factory makes by itself are not sent here",
    "test_stopListeningMeanwhile": "what a factory in another process is told is not sent here",
    "test_writeToClosedPeer": "between a call in another process and the next question there are turns",
}


class Apart:
    """
    A base of the contracts.
    """


def _lacking(reason: str) -> Any:
    def test(self: object) -> None:
        raise SkipTest(reason)

    return test


def remoteCases(module: str, device: str, here: str, host: str, port: int) -> dict[str, type]:
    """
    @param module: where they are.
    @param device: the clients'.
    @param here: its address.
    @param host: the address of the agent, and of its device.
    @param port: of the agent.
    @return: the test cases, by name.
    """
    carrier = RemoteSDP(device, here, host, Line(host, port))
    carrier.name = "SDPApart"
    found = casesOf(module, carrier, [IB], Apart, contracts=CONTRACTS)
    for case in found.values():
        for name, reason in LOOKS.items():
            if hasattr(case, name):
                setattr(case, name, _lacking(reason))
    return found
