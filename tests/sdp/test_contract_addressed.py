"""
SDP over packets is TCP to applications: the tests of L{tests.sdp.test_contract}, on a device that has an
address, also in the form of its requests that an adapter's kernel knows.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.hca.addressed import onWire
from tests.internet.carriers import SDP, StreamContract
from tests.sdp.test_contract import EPOLL, IB, casesOf
from tests.support.waiting import becomes
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.cm.transitions import refuse
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.receives import sendsHello
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.hca.wire.cm.messages import REQ, MessageKind

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


class AsAdapter(OnWire):
    """
    The side that is asked knows no port space of SDP's, as Linux, and does not say that it is software.
    """

    def setUp(self) -> None:
        """
        Refuse what has it: all connections are made in the other form.
        """
        take = ConnectionTable._takeREQ

        def taken(table: ConnectionTable, source: Any, message: REQ, now: float) -> None:
            if sendsHello(message.serviceID):
                # With no word of software, as for another service.
                message.serviceID = 0
                refuse(table, source, message, MessageKind.REQ, RejectReason.INVALID_SERVICE_ID)
            else:
                take(table, source, message, now)

        test: Any = self
        test.patch(ConnectionTable, "_takeREQ", taken)
        super().setUp()


class LongestContract(StreamContract):
    """
    The longest messages that a peer may send.
    """

    def test_longest(self) -> None:
        """
        A stream that has READ registered memory takes them, too, though they come in packets: 64 KiB behind
        the header.
        """
        data = bytes(range(256)) * 4096

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            await client.transport.writeRegistered(client.transport.registerMemory(data))
            for one in (client, server):
                one.transport.longest = one.transport.messageBytes
                one.transport.write(data)
            await becomes(reactor, lambda: client.ended() or len(client.got()) == len(data))
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual((client.got(), server.got()), (data, data + data))

        self.drive(steps)


def made(module: str, isWhole: bool) -> dict[str, type]:
    """
    @param module: Whose they are.
    @param isWhole: Whether each contract is on each reactor, as in C{tests/soak}, or on one in turn.
    @return: The test cases, by name.
    """
    adapter = SDP("roce0")
    adapter.name = "SDPAdapter"
    found = casesOf(module, SDP("roce0"), [IB, EPOLL], OnWire, always=None if isWhole else [])
    if not isWhole:
        members = {"carrier": SDP("roce0"), "_reactors": [IB], "__module__": module}
        kind: Any = type("LongestTests", (OnWire, LongestContract, ReactorBuilder), members)
        found |= kind.makeTestCaseClasses()
    return found | casesOf(module, adapter, [IB], AsAdapter)


globals().update(made(__name__, isWhole=False))
