"""
The Sockets Direct Protocol (IBTA vol. 1 annex A4): byte streams like TCP's, over reliable connected queue
pairs.

L{listenSDP} and L{connectSDP} correspond to C{listenTCP} and C{connectTCP}; the endpoints are
L{SDPServerEndpoint} and L{SDPClientEndpoint}, as strings C{sdp:PORT} and C{sdp:HOST:PORT}.

Inside: C{port} opens connections, C{transport} is what protocols write to, C{stream} moves bytes between a
transport and a queue pair. C{pendingsends} holds sends that wait. C{handlers} has one function for each
message that is not plain Data; a new message is its class in C{protocol.wire} and one more of these.
C{extensions} adds zero copy (C{zerocopysend}, C{zerocopyreceive}, C{streamrdma}) and urgent data to a stream
that uses them. C{inbox} keeps bytes for a user who takes them piece by piece. C{handshake} is Hello and
HelloAck, C{secure} what differs under TLS. C{protocol} is the core: message formats and rules, without
Twisted or I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.sdp.port import SDPClientEndpoint, SDPServerEndpoint, connectSDP, listenSDP

__all__ = [
    "SDPClientEndpoint",
    "SDPServerEndpoint",
    "connectSDP",
    "listenSDP",
]


def __getattr__(name: str) -> object:
    # PEP 562: ports and reactors are imported on first use, so that importing a codec or the machine from
    # this package does not load them.
    if name in ("SDPClientEndpoint", "SDPServerEndpoint", "connectSDP", "listenSDP"):
        from twisted_ib.sdp import port

        return getattr(port, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
