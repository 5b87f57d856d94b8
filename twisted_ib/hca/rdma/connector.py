"""
The active side of messages.
"""

from __future__ import annotations

from typing import Any

from twisted_ib import limits
from twisted_ib.hca.endpoints.connector import Connector
from twisted_ib.hca.rdma import handshake
from twisted_ib.hca.rdma.ends import RDMAClient
from twisted_ib.hca.wire.rdmacm import REQ_USER_BYTES


def checkPrivateData(privateData: bytes, most: int) -> bytes:
    """
    Refuse what has no place in a message of the CM.

    @param most: Bytes that it has.
    @raise TypeError: It is not bytes.
    @raise ValueError: It is too long.
    """
    if not isinstance(privateData, bytes):
        raise TypeError("privateData must be bytes")
    if len(privateData) > most:
        raise ValueError(f"privateData has at most {most} bytes here, not {len(privateData)}")
    return privateData


def checkMessageSize(maxMessageSize: int) -> int:
    """
    Refuse what can not be the size of a message.

    @raise ValueError: It is no number, or out of range.
    """
    if not isinstance(maxMessageSize, int) or not 0 < maxMessageSize <= limits.RDMA_MESSAGE_MOST:
        raise ValueError(f"maxMessageSize is 1 to {limits.RDMA_MESSAGE_MOST}, not {maxMessageSize!r}")
    return maxMessageSize


class RDMAConnector(Connector):
    """
    What C{connectRDMA} gives.

    @ivar privateData: What the peer is told in the REQ.
    @ivar maxMessageSize: The longest message, in bytes, each way.
    """

    handshake = handshake
    protocolName = "RDMA"
    transportClass = RDMAClient

    def __init__(self, *arguments: Any, privateData: bytes, maxMessageSize: int) -> None:
        """
        @param arguments: Those of L{Connector}.
        @raise ValueError: An argument makes no sense.
        """
        self.privateData = checkPrivateData(privateData, REQ_USER_BYTES)
        self.maxMessageSize = checkMessageSize(maxMessageSize)
        Connector.__init__(self, *arguments)
