"""
A child with a device of a subnet, and a queue pair that is connected by LIDs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from attrs import evolve
from twisted.internet.task import LoopingCall, deferLater

from tests.hca.hcas import turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.processes.programs.child import Line, Program
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad.attributes.node import LIDS_PER_BLOCK, LinearForwardingTable
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.classes import SUBNET
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, Mad

#: Receives that a new queue pair has.
RECEIVES = 32
_SECONDS = 0.001


class End(Program):
    """
    One end of a reliable connection.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Open the device.
        """
        super().__init__(reactor, line)
        self.device = Device("ib0")
        self._agent = self.device.mads.register(SUBNET, 1, (GET_RESPONSE,), lambda request: None)
        self._turns = LoopingCall(self._turn)
        self._turns.start(_SECONDS)

    def _turn(self) -> None:
        self.device.tick(time.monotonic())
        turn(self.device)

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            await deferLater(self.reactor, _SECONDS)

    async def do_active(self) -> dict[str, object]:
        """
        Wait until the port is Active, under a new host too.

        @return: its LID, and the name of its node.
        """
        port, fabric = self.device.port, self.device.fabric
        await self._until(
            lambda: port.state is PortState.ACTIVE and fabric.route(port.lid) and not fabric.port._isComing
        )
        return {"lid": port.lid, "name": fabric.port._description}

    async def do_state(self, name: str) -> None:
        """
        Wait for a state of the port.
        """
        await self._until(lambda: self.device.port.state.name == name)

    async def do_reaches(self, lid: int, isReached: bool = True) -> None:
        """
        Wait until a port is reached, and reaches this one, or no longer.
        """
        fabric = self.device.fabric
        await self._until(lambda: fabric.port.connects(fabric.route(lid), 0xFFFF) is isReached)

    def do_create(self, lid: int) -> int:
        """
        @param lid: of the peer's port.

        @return: the number of a new queue pair.
        """
        self.side = side = DeviceSide(self.device, AddressVector(0, lid=lid, isGlobal=False))
        return int(side.qp.number)

    def do_connect(self, number: int) -> None:
        """
        Connect it, with attempts of 0.13 s in all: a busy machine may take that long until the peer is.
        """
        self.side.to(QPState.RTS, number, timeout=13, retry_cnt=3)
        for id in range(RECEIVES):
            self.side.receive(id, piece(self.side.register(8)))

    async def do_send(self) -> str:
        """
        @return: the status of a send.
        """
        self.side.send(1, SendOpcode.SEND, piece(self.side.register(b"said")))
        statuses: list[Any] = []

        def isDone() -> bool:
            statuses.extend(self.side.statuses())
            return bool(statuses)

        await self._until(isDone)
        return str(statuses[0][1].name)

    def do_counters(self) -> dict[str, int]:
        """
        @return: the device's counters.
        """
        return dict(self.device.statistics())

    async def do_route(self, switch: int, lid: int, number: int) -> int:
        """
        Set an entry of the forwarding table of a switch by SMPs.

        @param switch: its LID.

        @return: the port that it was.
        """
        block, index = divmod(lid, LIDS_PER_BLOCK)
        ports = (
            await self._ask(switch, Mad(SUBNET, 1, GET, 0, LinearForwardingTable.ID, modifier=block))
        ).ports
        new = LinearForwardingTable(ports=(*ports[:index], number, *ports[index + 1 :]))
        question = Mad(SUBNET, 1, SET, 0, LinearForwardingTable.ID, new.pack(), modifier=block)
        found = await self._ask(switch, question)
        assert found.ports[index] == number
        return int(ports[index])

    async def _ask(self, switch: int, question: Mad) -> LinearForwardingTable:
        responses: list[Any] = []
        self._agent.send(AddressVector(0, lid=switch, isGlobal=False), evolve(question), responses.append)
        await self._until(lambda: responses)
        return LinearForwardingTable.parse(bytes(responses[0].mad.data))
