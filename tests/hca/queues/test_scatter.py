"""
Tests of the order in which messages are copied to memory.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.queues.scatter import AT_ONCE, scatter, store


class Noting(bytearray):
    """
    Memory that notes what is stored where.
    """

    def __init__(self, size: int) -> None:
        """
        Nothing is stored yet.
        """
        super().__init__(size)
        self.stored: list[tuple[int, int]] = []

    def __setitem__(self, where: object, what: object) -> None:
        assert isinstance(where, slice)
        first, last, _ = where.indices(len(self))
        self.stored.append((first, last))
        super().__setitem__(where, what)  # type: ignore[call-overload]


class OrderTests(SynchronousTestCase):
    """
    A program may poll the last octet of what comes.
    """

    def test_tail(self) -> None:
        """
        The aligned word at the end, of at most 8 octets, is stored last, whatever the memory's place.
        """
        data = bytes(range(200))
        for end, tail in ((0x1000, 8), (0x1008, 8), (0x1004, 4), (0x1002, 2), (0x1001, 1), (0, 8)):
            memory = Noting(300)
            store(memory, 50, data, end)
            self.assertEqual(memory.stored, [(50, 250 - tail), (250 - tail, 250)])
            self.assertEqual(memory[50:250], data)
            self.assertEqual((any(memory[:50]), any(memory[250:])), (False, False))

    def test_scattered(self) -> None:
        """
        Of several pieces that holds for the last; a short message is stored as it is.
        """
        one, other = Noting(100), Noting(100)
        scatter([one, other], bytes(range(200)), 0x1000)  # type: ignore[list-item]
        self.assertEqual((one.stored, other.stored), ([(0, 100)], [(0, 92), (92, 100)]))
        self.assertEqual(one + other, bytes(range(200)))
        short = Noting(AT_ONCE)
        scatter([short], bytes(AT_ONCE), 0x1000)  # type: ignore[list-item]
        self.assertEqual(short.stored, [(0, AT_ONCE)])
