"""
The child that dies at the Nth store to shared memory.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from twisted.internet.task import deferLater

from tests.processes.programs.child import Line
from tests.processes.programs.peer import Peer
from tests.support.counting import CountingSegment, Stores
from twisted_ib.hca.fabric.shm.segment import Segment


def countStores() -> None:
    """
    From now on every segment of this process counts what is stored to it.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("twisted_ib.") and getattr(module, "Segment", None) is Segment:
            module.Segment = CountingSegment  # type: ignore[attr-defined]


class Doomed(Peer):
    """
    A L{Peer} whose stores are counted.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        No device is open yet.
        """
        super().__init__(reactor, line)
        import twisted_ib.sdp.port  # noqa: F401

        countStores()

    def do_doom(self, store: int) -> None:
        """
        Die before so many stores more.

        @param store: 1 is the next one; 0 is never.
        """
        Stores.killAt(store)

    def do_stores(self) -> int:
        """
        @return: the stores since C{doom}.
        """
        return Stores.count

    async def do_closeAndDie(self, wire: int, turns: int) -> None:
        """
        Close in an orderly way and die some turns later.

        @param wire: the connection.
        @param turns: how many turns of the reactor.
        """
        self.do_close(wire)
        for _ in range(turns):
            await deferLater(self.reactor, 0, lambda: None)
        os.kill(os.getpid(), signal.SIGKILL)
