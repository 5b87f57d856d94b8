"""
SDP on an RNIC of a host in memory: its contract.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.closing import ClosingContract
from tests.contracts.pacing import PacingContract
from tests.hca.fabric.hardware.test_contract import HardwareRow
from tests.hca.fabric.hardware.world import Host
from tests.internet.carriers import SDP, StreamContract
from tests.sdp.test_contract import IB
from twisted_ib.hca.fabric.hardware.window import COUNT
from twisted_ib.hca.memory.access import REMOTE


class RNICRow(HardwareRow):
    """
    The adapter is one.
    """

    isRNIC = True

    def tearDown(self: Any) -> None:
        """
        Each SEND has found a receive.
        """
        super().tearDown()
        self.assertEqual(self.host.overruns, 0)


class RegisteredContract(StreamContract):
    """
    Memory that the application has registered.
    """

    host: Host

    def test_copied(self) -> None:
        """
        It is sent as any other: the adapter's queue pair was made before it, and gives no peer a key for it.
        """
        data = bytes(range(256)) * 1000

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = client.transport.registerMemory(bytearray(data))
            # The regions of which a peer has a key are the numbers of receives.
            shown = [each for each in self.host.regions.values() if each.access & REMOTE]
            self.assertEqual([each.length for each in shown], [COUNT.size] * 2)
            self.assertEqual(len({id(each.domain) for each in shown}), 2)
            done = client.transport.writeRegistered(region)
            client.transport.write(b"behind")
            await done
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got(), data + b"behind")

        self.drive(steps)


def _make() -> dict[str, type]:
    """
    @return: the test cases, by name.
    """
    found: dict[str, type] = {}
    contracts = (("Closing", ClosingContract), ("Pacing", PacingContract), ("Registered", RegisteredContract))
    for name, contract in contracts:
        members = {"carrier": SDP("hw0"), "_reactors": [IB], "__module__": __name__, "timeout": 40}
        kind: Any = type(f"SDPHw0{name}Tests", (RNICRow, contract, ReactorBuilder), members)
        found.update(kind.makeTestCaseClasses())
    return found


globals().update(_make())
