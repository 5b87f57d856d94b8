"""
The Sockets Direct Protocol (IBTA vol. 1, annex A4): byte streams as TCP's, over reliable
queue pairs.

L{listenSDP} and L{connectSDP} are C{listenTCP} and C{connectTCP}; the endpoints are
L{SDPServerEndpoint} and L{SDPClientEndpoint}, as strings C{sdp:PORT} and C{sdp:HOST:PORT}.

Inside: C{port} makes connections, C{transport} is what protocols write to.  A C{stream} moves bytes
between a transport and a queue pair, by its C{sender} and C{receiver}; C{extensions} adds zero copy
(C{zerocopysend}, C{zerocopyreceive}) and urgent data to a stream that uses them.  C{protocol} is pure:
what the messages say and in which order, without Twisted and without I/O.
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
    # Imported when used: whoever takes a codec or a machine from here does not load ports and reactors.
    if name in ("SDPClientEndpoint", "SDPServerEndpoint", "connectSDP", "listenSDP"):
        from twisted_ib.sdp import port

        return getattr(port, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
