"""
Why Python's own verbs take completions from the queue, and not from a ring as C programs do: bytecodes.
"""

from __future__ import annotations

from importlib import import_module

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.counting import steps
from tests.verbs.c.posting.declared import useDeclared
from tests.verbs.pyverbs.pair import End, VerbsTestCase
from twisted_ib.hca.queues.completion import CompletionQueue, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.verbs.core.hub import hub


class CountTests(VerbsTestCase, SynchronousTestCase):
    """
    Completions of a queue of Python's verbs, beside those of a ring.
    """

    def test_ring(self) -> None:
        """
        To put completions into a ring, and to forget them once they are taken, takes more bytecodes than to
        fetch them from the queue: Python has made them, and a ring wants them packed.
        """
        useDeclared(self)
        rings = import_module("twisted_ib.verbs.c.rings")
        structure = import_module("_twisted_ib_verbs").ffi.new("struct twisted_ib_cq *")
        end, queue = End(self), CompletionQueue(64)
        ring = rings.CompletionRing(end.cq._device, queue, structure)
        self.addCleanup(ring.close)
        done = [WorkCompletion(1, WCStatus.SUCCESS, WCOpcode.RECV, 7, 64)] * 16
        device, own = end.cq._device, end.cq._core

        def fetch() -> None:
            hub.poll(device, own, len(done))

        def mirror() -> None:
            ring.show()
            structure.ring.head = structure.ring.tail
            ring.settle()

        for size in (1, 16):
            del done[size:]
            found = []
            for act, completions in ((fetch, own.completions), (mirror, queue.completions)):
                # What is looked up once is found.
                for _ in range(2):
                    completions.extend(done)
                    count = steps(act)["bytecodes"]
                found.append(count)
            self.assertLess(*found, f"{size} completions")
            done *= 16
