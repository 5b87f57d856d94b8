"""
The users of queue pairs, who are told what arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import Interface

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer


class IConsumer(Interface):
    """
    The user of a queue pair.  It may post from within any of these calls.
    """

    # No copy here: SDP parses the header in place and copies the data once, to where it belongs.
    def received(buffer: Buffer, start: int, stop: int) -> None:
        """
        A message arrived.  C{buffer} is the medium's own: what is kept must be copied, as slicing does.
        """

    def resume() -> None:
        """
        The medium has accepted everything that was posted.
        """

    def failed(reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """

    def forked() -> None:
        """
        This is a forked child, and the queue pair is the parent's: make every use a named error.
        """


class IDatagramConsumer(Interface):
    """
    The user of a UD queue pair without work requests: see
    L{InlineDatagrams<twisted_ib.hca.services.datagramconsumer.InlineDatagrams>}.  It may post from within any
    of these calls.
    """

    def datagramReceived(source: Any, buffer: bytes, start: int, stop: int) -> None:
        """
        A datagram arrived.

        @param source: the L{DatagramSource<twisted_ib.hca.services.datagramconsumer.DatagramSource>}.
        @param buffer: bytes, the payload from C{start} to C{stop} behind the headers, the immediate the last.
        """

    def failed(reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """

    def forked() -> None:
        """
        This is a forked child, and the queue pair is the parent's.
        """
