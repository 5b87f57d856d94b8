"""
Tests for the table of who takes a management datagram.
"""

from __future__ import annotations

from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.mad.takers import Taker, isResponse, queuePairOf, takerOf

_ALL = frozenset(range(256))
#: With the bit, and TrapRepress.
_RESPONSES = frozenset((*range(0x80, 0x100), 0x07))
_REQUESTS = _ALL - _RESPONSES
#: ClassPortInfo, Notice and SMInfo; some others.
_ATTRIBUTES = frozenset((0x01, 0x02, 0x20, 0x00, 0x11, 0x12, 0x35, 0xFFFF))
_SUBNET = frozenset((0x01, 0x81))
_VENDOR = frozenset((*range(0x09, 0x10), *range(0x30, 0x50)))

#: Classes, methods, attributes, and the taker.
_DECISIONS = (
    (_ALL - {0x07}, _RESPONSES, _ATTRIBUTES, Taker.REQUESTER),
    ({0x07}, _RESPONSES, {0x01}, Taker.REQUESTER),
    ({0x07}, _RESPONSES, _ATTRIBUTES - {0x01}, Taker.NOBODY),
    ({0x07}, {0x03}, _ATTRIBUTES, Taker.AGENT),
    ({0x07}, _REQUESTS - {0x03}, {0x01}, Taker.AGENT),
    ({0x07}, _REQUESTS - {0x03}, _ATTRIBUTES - {0x01}, Taker.NOBODY),
    (_SUBNET, _REQUESTS, {0x20}, Taker.MANAGER),
    (_SUBNET, {0x05}, {0x02}, Taker.MANAGER),
    (_SUBNET, _REQUESTS - {0x05}, {0x02}, Taker.NODE),
    (_SUBNET, _REQUESTS, _ATTRIBUTES - {0x02, 0x20}, Taker.NODE),
    ({0x03}, {0x06}, _ATTRIBUTES, Taker.AGENT),
    ({0x03}, _REQUESTS - {0x06}, _ATTRIBUTES, Taker.MANAGER),
    (_VENDOR, _REQUESTS, _ATTRIBUTES, Taker.PROGRAM),
    (_ALL - _SUBNET - _VENDOR - {0x03, 0x07}, _REQUESTS, _ATTRIBUTES, Taker.AGENT),
)


class TakerTests(SynchronousTestCase):
    """
    L{takerOf}.
    """

    def test_all(self) -> None:
        """
        Each class, with each method, with and without the response bit, is decided, and once.
        """
        decided: dict[tuple[int, int, int], Taker] = {}
        for classes, methods, attributes, taker in _DECISIONS:
            for key in product(classes, methods, attributes):
                self.assertNotIn(key, decided)
                decided[key] = taker
        self.assertEqual(len(decided), len(_ALL) ** 2 * len(_ATTRIBUTES))
        self.assertEqual([key for key, taker in decided.items() if takerOf(*key) is not taker], [])

    def test_responses(self) -> None:
        """
        L{isResponse} has the methods of responses, L{queuePairOf} the classes of queue pair 0.
        """
        self.assertEqual(set(filter(isResponse, _ALL)), _RESPONSES)
        self.assertEqual({each for each in _ALL if not queuePairOf(each)}, _SUBNET)
        self.assertEqual(set(map(queuePairOf, _ALL)), {0, 1})
