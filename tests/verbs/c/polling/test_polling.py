"""
Tests of polling in C: completions come from a ring without Python's lock, in order, each once.
"""

from __future__ import annotations

from pathlib import Path

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase

SOURCE = Path(__file__).with_name("polling.c")


class PollingTestCase(ProgramTestCase):
    """
    The stories of C{polling.c}.
    """

    def story(self, *words: object) -> None:
        """
        Run one.

        @param words: its name, and how much of it.
        """
        program = self.compiled(SOURCE, "-rdynamic", "-ldl", "-O1")
        result = run(program, *map(str, words), TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))


class PollingTests(PollingTestCase):
    """
    Each once, with small numbers.
    """

    def test_empty(self) -> None:
        """
        Of a million polls in vain less than a fiftieth enters Python, and at least each 4,096th.
        """
        self.story("empty", 1_000_000)

    def test_order(self) -> None:
        """
        Completions are taken from the ring without Python, those beyond its room follow in their order, and a
        program that always finds some makes progress all the same.
        """
        self.story("order", 1)

    def test_bounds(self) -> None:
        """
        The bound of a queue, its resize, the reset and the destruction of a queue pair, and the queue's own:
        what the program has taken no longer counts, and what is in the ring does.
        """
        self.story("bounds", 1)

    def test_events(self) -> None:
        """
        A completion is there when its event is.
        """
        self.story("events", 200)

    def test_changes(self) -> None:
        """
        A thread polls while queue pairs are destroyed and the queue is resized.
        """
        self.story("changes", 30)

    def test_fire(self) -> None:
        """
        Four threads poll four queues, of four senders: each message comes once, with its octets, in order.
        """
        self.story("fire", 300, 4, 4)

    def test_together(self) -> None:
        """
        Four threads poll one extended queue: each completion is one thread's, and stays it to the batch's
        end.
        """
        self.story("together", 30, 4)

    def test_killed(self) -> None:
        """
        A peer is killed amid polling.
        """
        self.story("killed", 2)

    def test_memory(self) -> None:
        """
        A program that only looks at its memory sees each RDMA WRITE, as the thread that serves peers watches
        the rings in C.
        """
        self.story("memory", 50)

    def test_idle(self) -> None:
        """
        A program that is connected and does nothing takes a fiftieth of a processor at most.
        """
        self.story("idle", 3)
