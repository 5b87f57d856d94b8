"""
A vendor class on queue pair 1: it gives back what it is asked.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.wire.mad.classes import VENDOR_CLASSES
from twisted_ib.hca.wire.mad.mad import SET, Mad

CLASS = VENDOR_CLASSES[-1]
VERSION = 1


class EchoAgent:
    """
    Answers Set with the octets backwards.
    """

    def __init__(self, device: Any) -> None:
        """
        Serve a device.
        """
        self.agent = device.mads.register(CLASS, VERSION, (SET,), self.received)

    def received(self, request: ReceivedMAD) -> None:
        """
        A peer asks.
        """
        mad = request.mad
        self.agent.reply(request, evolve(mad, data=bytes(mad.data)[::-1]))

    def question(self) -> Mad:
        """
        What a peer asks.
        """
        return Mad(CLASS, VERSION, SET, 0, 0x0020, bytes(range(232)))
