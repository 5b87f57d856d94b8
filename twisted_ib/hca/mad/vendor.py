"""
The vendor class of OpenIB's ping: whether a port's QP1 answers (infiniband-diags C{ibping}).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import evolve

from twisted_ib.errors import WireError
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.wire.mad.classes import OrganizationHeader
from twisted_ib.hca.wire.mad.mad import (
    GET,
    GET_RESPONSE,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
    decodeMAD,
)

if TYPE_CHECKING:
    from twisted_ib.hca.mad.agents import IManagedDevice

#: rdma-core C{libibmad/mad.h}: IB_VENDOR_OPENIB_PING_CLASS, IB_OPENIB_OUI.
PING: Final = 0x32
OPENIB: Final = 0x001405
VERSION: Final = 1
_TEXT_BYTES: Final = 216


def answer(mad: Mad, text: bytes) -> Mad:
    """
    Answer a Get.

    @param text: the name of this node, of which 216 octets are sent.
    @return: the response, but for its method.
    """
    header = mad.header
    if not isinstance(header, OrganizationHeader) or header.organization != OPENIB or mad.attribute:
        return evolve(mad, status=UNSUPPORTED_METHOD_ATTRIBUTE)
    return evolve(mad, data=text[:_TEXT_BYTES], status=0)


def respond(octets: bytes, text: bytes) -> bytes | None:
    """
    Answer a MAD of 256 octets.

    @return: the response; L{None} if it is none that is answered.
    """
    try:
        mad = decodeMAD(octets)
    except WireError:
        return None
    if (mad.managementClass, mad.classVersion, mad.method) != (PING, VERSION, GET):
        return None
    return evolve(answer(mad, text), method=GET_RESPONSE).pack()


class PingAgent:
    """
    Answers pings.
    """

    def __init__(self, device: IManagedDevice) -> None:
        self._text = device.name.encode()
        # To programs that answer by themselves, as C{ibping -S}.
        self.agent = device.mads.register(PING, VERSION, (GET,), self.received, yields=True)

    def received(self, request: ReceivedMAD) -> None:
        """
        A peer asks.
        """
        self.agent.reply(request, answer(request.mad, self._text))
