"""
The TLS side of an SDP transport, after C{startTLS} (as in C{twisted.internet._newtls}).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

#: How many wrapped protocols are searched.
_DEPTH = 16


def innermostTLS(protocol: Any) -> Any:
    """
    Return the TLS protocol nearest to the application in a chain of wrapped protocols, or L{None}.

    @param protocol: A transport's protocol; any, or L{None}.
    """
    found = None
    # Not imported: pyOpenSSL is optional, and while the module is not loaded no protocol can be one of its.
    tls: Any = sys.modules.get("twisted.protocols.tls")
    if tls is not None:
        for _ in range(_DEPTH):
            if isinstance(protocol, tls.TLSMemoryBIOProtocol):
                found = protocol
            # The attributes of ProtocolWrapper (twisted.protocols.policies) and of endpoints'
            # _WrappingProtocol.
            inner = getattr(protocol, "wrappedProtocol", None)
            protocol = getattr(protocol, "_wrappedProtocol", None) if inner is None else inner
            if protocol is None:
                break
    return found


def wrapsTLS(protocol: object) -> bool:
    """
    Return whether a protocol is, or contains, a TLS protocol.

    @param protocol: Any, or L{None}.
    """
    # TLS sends close_notify in its C{abortConnection} and then aborts.  Over TCP the abort discards that
    # alert; here too the peer must see a loss, not an orderly end.
    return innermostTLS(protocol) is not None


class SecureMixin:
    """
    The application's calls, once C{startTLS} was called: they go to the TLS protocol, which uses the plain
    methods.
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
        Send pieces of L{bytes} through TLS.
        """
        if self.connected:
            self.protocol.writeSequence(data)

    def loseConnection(self, _connDone: object = None) -> None:
        """
        Shut TLS down, then close.
        """
        if self.connected and not self.disconnecting:
            self.protocol.loseConnection()

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """
        Register the producer with the TLS protocol, which paces it.
        """
        self.protocol.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """
        Unregister the producer.
        """
        self.protocol.unregisterProducer()


_secured: dict[type, type] = {}


def secured(plain: type) -> type:
    """
    Return the TLS variant of a transport class.
    """
    if issubclass(plain, SecureMixin):
        return plain
    # One class per plain class: an assignment to __class__ needs the same layout, hence the empty __slots__.
    found = _secured.get(plain)
    if found is None:
        found = _secured[plain] = type("Secure" + plain.__name__, (SecureMixin, plain), {"__slots__": ()})
    return found
