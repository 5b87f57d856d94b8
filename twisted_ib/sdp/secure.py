"""
What differs on a transport once C{startTLS} was called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

#: How deep protocols are looked for in others.
_DEPTH = 16


def innermostTLS(protocol: Any) -> Any:
    """
    Find the protocol of TLS that is nearest to the application.

    @param protocol: What a transport has; any, or L{None}.
    @return: It; L{None} if there is none.
    """
    found = None
    tls: Any = sys.modules.get("twisted.protocols.tls")
    if tls is not None:
        for _ in range(_DEPTH):
            if isinstance(protocol, tls.TLSMemoryBIOProtocol):
                found = protocol
            inner = getattr(protocol, "wrappedProtocol", None)
            protocol = getattr(protocol, "_wrappedProtocol", None) if inner is None else inner
            if protocol is None:
                break
    return found


def wrapsTLS(protocol: Any) -> bool:
    """
    Whether a protocol is one of TLS, or has one in it.

    Such a one says in its C{abortConnection} that TLS is shut down, and then aborts, which
    discards over TCP what it said; the peer is not to see an end in order.

    @param protocol: Any, or L{None}.
    """
    return innermostTLS(protocol) is not None


class SecureMixin:
    """
    What differs once C{startTLS} was called: the application's calls go to the
    TLS protocol, which uses the plain methods.
    """

    __slots__ = ()

    connected: int
    disconnecting: int
    protocol: Any

    def write(self, data: bytes) -> None:
        """
        Send C{data} through TLS.
        """
        if self.connected:
            self.protocol.write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        Send pieces through TLS.

        @param data: the pieces, C{bytes}.
        """
        if self.connected:
            self.protocol.writeSequence(data)

    def loseConnection(self, _connDone: object = None) -> None:
        """
        Shut TLS down, then close.
        """
        if self.connected and not self.disconnecting:
            self.protocol.loseConnection()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Let the TLS protocol pace the producer.

        @param producer: who writes.
        @param streaming: whether it writes until it is paused.
        """
        self.protocol.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """
        Forget the producer.
        """
        self.protocol.unregisterProducer()


_secured: dict[type, type] = {}


def secured(plain: type) -> type:
    """
    @return: The class of C{plain} transports in TLS.
    """
    if issubclass(plain, SecureMixin):
        return plain
    found = _secured.get(plain)
    if found is None:
        found = _secured[plain] = type("Secure" + plain.__name__, (SecureMixin, plain), {"__slots__": ()})
    return found
