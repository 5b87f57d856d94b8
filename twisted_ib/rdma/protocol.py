"""
The base class of protocols of messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.protocol import Protocol

if TYPE_CHECKING:
    from twisted_ib.rdma.transport import RDMATransport


class RDMAProtocol(Protocol):
    """
    A protocol of which type checkers know that its transport has messages and RDMA, also those that know
    nothing of zope's interfaces.  Any other C{Protocol} has the same transport.

    @ivar transport: Provides L{IRDMATransport<twisted_ib.interfaces.IRDMATransport>}.
    """

    if TYPE_CHECKING:
        transport: RDMATransport
