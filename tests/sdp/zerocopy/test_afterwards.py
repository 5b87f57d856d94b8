"""
Tests of what happens when registered memory has been sent, or will not be.
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from tests.sdp.pair import Pair, PairTestCase, Recorder
from twisted_ib.interfaces import ISDPBufferedProtocol

#: Registered memory of this many bytes goes by zero copy.
_LONG = 1 << 20
#: Of this many several are read before the sender hears of it.
_SHORT = 1 << 14


@implementer(ISDPBufferedProtocol)
class Placing(Recorder):
    """
    Has places for what comes.
    """

    def getBuffer(self) -> Any:
        """
        Always the same.
        """
        if not hasattr(self, "region"):
            transport: Any = self.transport
            self.region = transport.registerMemory(_LONG)
        return self.region, 0, _LONG

    def bufferFilled(self, region: Any, offset: int, count: int) -> None:
        """
        It is there.
        """


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


class AbortTests(PairTestCase):
    """
    C{abortConnection} while registered memory is on its way.
    """

    def aborted(self, polled: bool, first: int, places: bool) -> None:
        """
        Abort when one of several pieces has been sent, in the middle of the peer's answers.

        @param first: which one.
        @param places: the peer has places of its own, where the memory is written to.
        """
        pair = Pair(polled)
        self.addCleanup(pair.close)
        one, two = pair.connected(second=Placing() if places else None)
        one.setZeroCopyThresholds(registered=1)
        region = one.registerMemory(8 * _SHORT)
        for n in range(8 if places else 0):
            one.writeRegistered(region, n * _SHORT, _SHORT)  # Several offers change the mode.
        pair.settle()
        sent = [one.writeRegistered(region, n * _SHORT, _SHORT) for n in range(8)]
        ends: list[str] = []
        sent[first].addCallback(lambda ignored: one.abortConnection())
        for each in sent:
            each.addCallbacks(lambda ignored: ends.append("sent"), lambda why: ends.append(why.type.__name__))
        pair.settle()
        pair.advance(0)
        pair.settle()
        self.assertEqual(two.heard.calls[-1:], ["ConnectionLost"])
        self.assertEqual(ends, ["sent"] * (first + 1) + ["ConnectionAborted"] * (7 - first))

    def test_answersComeLate(self) -> None:
        """
        Bytes that the peer has read or written meanwhile have no effect any more.
        """
        for polled in (False, True):
            for first in range(7):
                for places in (False, True):
                    self.aborted(polled, first, places)
