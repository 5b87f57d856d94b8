"""
Test that both ends of a connection sleep: nothing runs while nothing comes.
"""

from __future__ import annotations

from tests.queues.idle import PAIR, WAITING, IdleTestCase


class IdleTests(IdleTestCase):
    """
    By the kernel's count of their threads' context switches and CPU time; L{tests.soak} has queues,
    broadcasts, loops and the other waits.
    """

    def test_connection(self) -> None:
        """
        Both ends of a connection that wait for each other sleep.
        """
        self.assertIdle(PAIR.format(child=WAITING) + "here.recv()\n")
