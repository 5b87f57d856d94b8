"""
The two ends of a connection, as L{twisted.internet.tcp} has C{Server} and
C{Client}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.hca.endpoints.ends import CLIENT_FIELDS, SERVER_FIELDS, ClientEnd, End, ServerEnd
from twisted_ib.sdp.secure import innermostTLS
from twisted_ib.sdp.transport import SDPTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol

    from twisted_ib.sdp.exchange import Exchange


class _SDPEnd(End):
    """
    What both have that not every end has.
    """

    __slots__ = ()

    prompt: bool
    exchange: Exchange | None

    def begin(self, protocol: IProtocol | None) -> bool:
        """
        See L{End.begin}.
        """
        if innermostTLS(protocol) is not None:
            self.prompt = False
        return End.begin(self, protocol)

    def nextTurn(self, shared: dict[Any, Any]) -> None:
        """
        The next turn has come: what was offered to be read is read from now on.

        @param shared: As of L{End.nextTurn}.
        """
        if self._settling is not None and self.exchange is not None:
            self.cork()
        End.nextTurn(self, shared)


class SDPServer(_SDPEnd, ServerEnd, SDPTransport):
    """
    The transport of a passive side.
    """

    __slots__ = SERVER_FIELDS


class SDPClient(_SDPEnd, ClientEnd, SDPTransport):
    """
    The transport of an active side.
    """

    __slots__ = CLIENT_FIELDS
