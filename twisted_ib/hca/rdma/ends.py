"""
The two ends of a connection of messages.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.endpoints.ends import CLIENT_FIELDS, SERVER_FIELDS, ClientEnd, ServerEnd
from twisted_ib.hca.rdma.transport import RDMATransport


class RDMAServer(ServerEnd, RDMATransport):
    """
    The transport of a passive side.
    """

    __slots__ = SERVER_FIELDS

    @property
    def owner(self) -> Any:
        """
        The port.
        """
        return self.server


class RDMAClient(ClientEnd, RDMATransport):
    """
    The transport of an active side.
    """

    __slots__ = CLIENT_FIELDS

    @property
    def owner(self) -> Any:
        """
        The connector.
        """
        return self.connector
