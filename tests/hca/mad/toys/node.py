"""
A subnet management class on queue pair 0: it tells the description of its node.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.wire.mad.classes import SUBNET
from twisted_ib.hca.wire.mad.mad import GET, UNSUPPORTED_METHOD_ATTRIBUTE, Mad

VERSION = 1
#: IBTA vol. 1 14.2.5.2.
NODE_DESCRIPTION = 0x0010


class NodeAgent:
    """
    Answers Get(NodeDescription).
    """

    def __init__(self, device: Any) -> None:
        """
        Serve a device.
        """
        self.text = b"toy %016x" % device.guid
        self.agent = device.mads.register(SUBNET, VERSION, (GET,), self.received)

    def received(self, request: ReceivedMAD) -> None:
        """
        A peer asks.
        """
        mad = request.mad
        if mad.attribute == NODE_DESCRIPTION:
            self.agent.reply(request, evolve(mad, data=self.text))
        else:
            self.agent.reply(request, evolve(mad, status=UNSUPPORTED_METHOD_ATTRIBUTE))

    def question(self) -> Mad:
        """
        What a peer asks.
        """
        return Mad(SUBNET, VERSION, GET, 0, NODE_DESCRIPTION)
