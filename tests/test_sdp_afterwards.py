"""
Tests of what is written when registered memory has been sent.
"""

from __future__ import annotations

from tests.sdp_pair import Pair, PairTestCase

#: Registered memory of this many bytes goes by zero copy.
_LONG = 1 << 20


class AfterwardsTests(PairTestCase):
    """
    C{write} after C{writeRegistered}.
    """

    def written(self, polled: bool, when: str) -> None:
        """
        Send registered memory, and then short writes of one turn.

        @param when: where they are written: C{"turn"}, C{"sent"}, C{"answer"}.
        """
        pair = Pair(polled)
        self.addCleanup(pair.close)
        one, two = pair.connected()
        region = one.registerMemory(_LONG)
        region.view[:] = bytes(range(256)) * (_LONG // 256)
        pieces = [b"%d;" % n for n in range(20)]

        def write(ignored: object = None) -> None:
            for piece in pieces:
                one.write(piece)

        sent = one.writeRegistered(region)
        if when == "sent":
            sent.addCallback(write)
        elif when == "answer":
            two.heard.hook = lambda data: len(two.heard.data) == _LONG and two.write(b"more")
            one.heard.hook = write
        pair.settle()
        if when == "turn":
            write()
            pair.settle()
        wanted = bytes(range(256)) * (_LONG // 256) + b"".join(pieces)
        self.assertEqual(two.heard.data, wanted, (polled, when))

    def test_moments(self) -> None:
        """
        All arrives behind the memory, whenever it is written.
        """
        for polled in (False, True):
            for when in ("turn", "sent", "answer"):
                self.written(polled, when)
