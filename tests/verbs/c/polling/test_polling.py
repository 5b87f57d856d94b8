"""
Tests of polling in C: completions come from a ring without Python's lock, in order, each once.
"""

from __future__ import annotations

from pathlib import Path

import twisted_ib
from benchmarks import polling
from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase

SOURCE = Path(__file__).with_name("polling.c")
DESTROYED, RING = SOURCE.with_name("destroyed.c"), SOURCE.with_name("ring.c")
#: The package's C sources, wherever it is installed.
BUILDING = Path(twisted_ib.__file__).parent / "verbs/c/building"
OPTIONS = ("-rdynamic", "-ldl", "-O1", f"-I{BUILDING}")


class PollingTestCase(ProgramTestCase):
    """
    The stories of C{polling.c}.
    """

    def story(self, *words: object, source: Path = SOURCE, seconds: float = HANG_SECONDS) -> None:
        """
        Run one.

        @param words: its name, and how much of it.
        @param source: the program.
        @param seconds: after which it hangs.
        """
        program = self.compiled(source, *OPTIONS)
        result = run(program, *map(str, words), seconds=seconds, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))


class PollingTests(PollingTestCase):
    """
    Each once, with small numbers.
    """

    def test_empty(self) -> None:
        """
        Of 100,000 polls in vain less than a fiftieth enters Python, but for one a tick of the clock, and at
        least each 4,096th.
        """
        self.story("empty", 100_000)

    def test_quiet(self) -> None:
        """
        Polls in vain behind a message do not enter Python while the rings tell that nothing has come.
        """
        self.story("quiet", 1)

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

    def test_destroyed(self) -> None:
        """
        Queue pairs are destroyed amid traffic, each end of a connection first, and queues resized, while a
        thread polls: each completion comes once, in order, and all of the end that is left.
        """
        self.story(20, source=DESTROYED)

    def test_fire(self) -> None:
        """
        Eight threads poll eight queues, of eight senders: each message comes once, with its octets, in order.
        """
        self.story("fire", 2000, 8, 8)

    def test_ring(self) -> None:
        """
        Four threads take from one ring while another adds, and takes back, for a second at most: each
        completion once, whole.
        """
        self.story(1_000_000, 4, 1, source=RING)

    def test_looks(self) -> None:
        """
        C{yields.c}: a thread whose peer answers behind a yield of the processor yields sooner, and one that
        posts after a pause does behind its post, while others want the processor, and not too often.
        """
        self.story(source=SOURCE.with_name("yields.c"))

    def test_holding(self) -> None:
        """
        C{holding.c}: polls in vain stand back for a thread that is in Python, and not if the caller has
        Python's lock, which that thread waits for.
        """
        self.story(source=SOURCE.with_name("holding.c"))

    def test_together(self) -> None:
        """
        Four threads poll one extended queue: each completion is one thread's, and stays it to the batch's
        end.
        """
        self.story("together", 30, 4)

    def test_killed(self) -> None:
        """
        Three peers are killed amid polling.  Each is a Python that begins, and gone a second later: its ACKs
        time out.
        """
        self.story("killed", 3)

    def test_memory(self) -> None:
        """
        A program that only looks at its memory sees each RDMA WRITE, as the thread that serves peers watches
        the rings in C.
        """
        self.story("memory", 50, 8)

    def test_idle(self) -> None:
        """
        A program that is connected and does nothing takes a fiftieth of a processor at most.
        """
        self.story("idle", 2)

    def test_beside(self) -> None:
        """
        Beside two threads that poll in vain a thread of Python has nine tenths of the time in Python at
        least, as most of their polls do not enter it.
        """
        found = polling.measured(self.compiled(polling.SOURCE, *OPTIONS))["beside"]
        self.assertGreater(found.entries, 0)
        self.assertLess(2 * found.entries, found.polls)
        self.assertGreater(found.kept, 0.9)
