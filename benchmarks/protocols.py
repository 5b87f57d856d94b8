"""
The application that only benchmarks have; the others are those of C{ib-perf compare}.
"""

from __future__ import annotations

from twisted.internet.protocol import Protocol
from twisted.internet.threads import deferToThread


class ThreadEcho(Protocol):
    """
    Send back what comes after a thread has looked at it, as WSGI does.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """
        deferToThread(bytes, data).addCallback(self.transport.write)  # type: ignore[union-attr]
