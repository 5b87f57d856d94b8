"""
The send side of a socket: datagrams added to an open bundle.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.rds.protocol.bundle import MOST, Bundle
from twisted_ib.rds.protocol.machine import RDSMessage

_OVERHEAD: Final = limits.RDS_DATAGRAM_OVERHEAD

#: Stands for no open bundle: it has no room, and nobody's address.
NO_BUNDLE: Final = Bundle(None, None, object(), 0)
NO_BUNDLE.room = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class SendQueue:
    """
    The send side of a L{RDSPort<twisted_ib.rds.port.RDSPort>}.

    @ivar _queued: the bytes that peers have not acknowledged, with overhead; an open bundle's whole room.
    @ivar _bundles: open bundles, by the address that was given to C{write}.
    @ivar _bundle: the one that was written to last, or L{NO_BUNDLE}.
    """

    def __init__(self) -> None:
        self._realPort = 0
        self._queued = 0
        self._bundles: dict[Any, Bundle] = {}
        self._bundle = NO_BUNDLE

    def write(self, datagram: Any, addr: Any = None) -> Deferred[None] | None:
        """
        See L{IRDSTransport.write<twisted_ib.interfaces.IRDSTransport.write>}.
        """
        # The fast path: the bundle was opened after all checks, and its room is part of the send budget.
        bundle = self._bundle
        # Mostly the address is the same object, which saves computing its hash.
        if bundle.address is not addr and self._bundles:
            bundle = self._bundles.get(addr, NO_BUNDLE)
        room = bundle.room
        if room >= 0 and datagram.__class__ is bytes:
            room -= len(datagram) + _OVERHEAD
            if room >= 0:
                bundle.room = room
                bundle.pieces.append(datagram)
                return None
        return self._writeSlowly(datagram, addr)

    def _writeSlowly(self, datagram: Any, addr: Any) -> Deferred[None] | None:
        raise NotImplementedError

    def _openBundle(self, path: Any, given: Any, port: int, data: bytes) -> None:
        bundle: Bundle = path.openBundle(self, given, port)
        self._bundles[given] = self._bundle = bundle
        # Reserve the whole bundle; bundleClosed() returns the rest.
        self._queued += MOST
        bundle.room -= len(data) + _OVERHEAD
        bundle.pieces.append(data)

    def bundleClosed(self, bundle: Bundle) -> RDSMessage:
        """
        A bundle is complete.

        @return: the message to send.
        """
        del self._bundles[bundle.address]
        if self._bundle is bundle:
            self._bundle = NO_BUNDLE
        message = bundle.message(self._realPort)
        # Account for the bundle's real size instead of its reserved one: one object, and so one overhead,
        # however many datagrams it has.
        self._queued += message.size + _OVERHEAD - MOST
        return message

    def closeBundles(self) -> None:
        """
        Send all open bundles.
        """
        for bundle in list(self._bundles.values()):
            bundle.path.closeBundle()
