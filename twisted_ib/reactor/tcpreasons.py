"""
The reasons of a process's TCP ports and clients in its socket page.

The kernel tells C{ib-ss} the rest of them, also while the process is busy.
"""

from __future__ import annotations

from copy import copy
from typing import Any
from weakref import ref

from attrs import frozen
from twisted.internet import tcp

from twisted_ib import limits
from twisted_ib.hca.base.socketrows import ANY
from twisted_ib.hca.host.socketpage.page import SocketPage
from twisted_ib.reactor.tcprows import hasSocket
from twisted_ib.switch.reason import Reason


@frozen
class _Entry:
    why: Reason | None
    provider: str = "tcp"


class TCPReasons:
    """
    The rows of one socket page that are about TCP.  A row goes with its port or client.
    """

    def __init__(self, page: SocketPage, why: Reason | None) -> None:
        """
        @param page: The socket page.
        @param why: The reason of TCP sockets that no other row is about.
        """
        self._page = page
        self._offsets: dict[ref[Any], int] = {}
        #: Rows that are about all connections to a peer: the reason of each, and where it is.
        self._peers: dict[tuple[str, int], tuple[str, int]] = {}
        page.add(None, [(_Entry(why), *ANY, *ANY)])

    def show(self, user: object, why: Reason | None) -> None:
        """
        Write the reason of a port or client; harmless when repeated, and for anything else.

        Connections that a port has accepted have the port's reason and need no row.
        """
        if ref(user) in self._offsets or not hasSocket(user) or isinstance(user, tcp.Server):
            return
        try:
            here = user.socket.getsockname()
            there = user.socket.getpeername() if isinstance(user, tcp.Connection) else ("", 0)
        except OSError:
            # Closed, or not connected yet.
            return
        [offset] = self._page.add(None, [(_Entry(why), *here[:2], *there[:2])])
        if offset is not None:
            self._offsets[ref(user, self._gone)] = offset

    def showPeer(self, host: str, port: int, why: Reason) -> None:
        """
        Write the reason of the connections to a peer that no other row is about, once for each reason.
        """
        peers, key, text = self._peers, (host, port), str(why)
        known, gone = peers.get(key), []
        if known is not None and known[0] == text:
            return
        if known is not None or len(peers) >= limits.PEERS_SHOWN:
            gone.append(peers.pop(key if known is not None else next(iter(peers)))[1])
        # Of all of them: not when one was asked.
        whole = copy(why)
        whole.asked = whole.decided = None
        [offset] = self._page.add(None, [(_Entry(whole), *ANY, *key)], gone)
        if offset is not None:
            peers[key] = text, offset

    def _gone(self, user: ref[Any]) -> None:
        self._page.remove(self._offsets.pop(user))
