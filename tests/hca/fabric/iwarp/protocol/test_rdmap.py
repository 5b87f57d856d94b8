"""
RDMAP in both directions: random records through random splits, and mutated streams.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.rdmap import Story
from twisted_ib.hca.base.operation import SOLICITED

#: Seeds of the README command; tests.soak has more.
SEEDS = 20


class StoryTests(SynchronousTestCase):
    """
    Random sequences of records.
    """

    seeds = range(SEEDS)

    def test_records(self) -> None:
        """
        Whatever two ends post, with CRCs or markers or neither, in ULPDUs of any length and however TCP cuts
        them, arrives: messages, memory, responses.
        """
        for seed in self.seeds:
            story = Story(seed)
            story.run(200)
            for index, end in enumerate(story.ends):
                self.assertEqual(end.memory, story.memories[index], seed)
                self.assertEqual(end.responses, story.responses[index], seed)
                found = [(opcode & SOLICITED, key, octets) for opcode, key, octets in end.messages]
                self.assertEqual(found, story.messages[index], seed)
                self.assertFalse(end.buffer, seed)
                self.assertFalse(end.bookkeeping.outstanding, seed)
                self.assertFalse(end.bookkeeping.inbound, seed)
