"""
Tests for L{twisted_ib.sdp.pendingsends}.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import called
from tests.support.generated import given, settings
from twisted_ib import limits
from twisted_ib.sdp.pendingsends import _JOIN, _SMALL, SendBuffer


def joined(payload: Any) -> bytes:
    """
    @return: The bytes of what C{take} gave.
    """
    return b"".join(payload) if isinstance(payload, list) else bytes(payload)


def pieces(payload: Any) -> list[bytes | memoryview]:
    """
    @return: Its pieces.
    """
    return payload if isinstance(payload, list) else [payload]


def owner(piece: bytes | memoryview) -> object:
    """
    @return: The object whose bytes these are.
    """
    return piece.obj if isinstance(piece, memoryview) else piece


#: Appends (their lengths) and takes (how many bytes at most, negative).
STEPS = st.lists(
    st.one_of(
        st.integers(1, 40),
        st.sampled_from([_SMALL - 1, _SMALL, _SMALL + 1, 3 * _SMALL, 65535, 65536, 65537, 200000]),
        st.integers(-70000, -1),
        st.integers(-40, -1),
    ),
    max_size=60,
)
STREAM = bytes(i * 7 & 0xFF for i in range(256)) * 50000


class SendBufferTests(SynchronousTestCase):
    """
    L{SendBuffer}.
    """

    @settings(max_examples=300, deadline=None)
    @given(STEPS)
    def test_stream(self, steps: list[int]) -> None:
        """
        For any sequence of appends and takes the bytes come out in order and whole, no more at a time than
        asked for, never none, and C{size} is the number left.
        """
        buffer = SendBuffer()
        at = taken = 0
        for n in [*steps, *[-65536] * (max(sum(n for n in steps if n > 0), 0) // 60000 + 2)]:
            if n > 0:
                buffer.append(STREAM[at : at + n])
                at += n
            elif buffer.size:
                payload, length = buffer.take(-n)
                self.assertTrue(0 < length <= -n)
                self.assertEqual(joined(payload), STREAM[taken : taken + length])
                taken += length
            self.assertEqual(buffer.size, at - taken)
            self.assertEqual(sum(map(len, buffer.pieces)) - buffer._offset, buffer.size)
        while buffer.size:
            payload, length = buffer.take()
            self.assertLessEqual(length, limits.INLINE_MESSAGE)
            self.assertEqual(joined(payload), STREAM[taken : taken + length])
            taken += length
        self.assertEqual((taken, len(buffer.pieces), buffer._offset), (at, 0, 0))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.integers(1, 150000), min_size=1, max_size=8), st.integers(_SMALL, 65536))
    def test_noCopyOfBigPieces(self, lengths: list[int], most: int) -> None:
        """
        No piece is joined to another while there are few: what is taken are
        the appended objects themselves, or views of them.
        """
        buffer = SendBuffer()
        given = [bytes(n) for n in lengths]
        for data in given:
            buffer.append(data)
        known = {id(data) for data in given}
        while buffer.size:
            payload, _ = buffer.take(most)
            for piece in pieces(payload):
                self.assertIn(id(owner(piece)), known)

    def test_onePiece(self) -> None:
        """
        A piece that fits is given as it is, without a view or a list.
        """
        buffer = SendBuffer()
        data = bytes(1000)
        buffer.append(data)
        payload, n = buffer.take()
        self.assertIs(payload, data)
        self.assertEqual((n, buffer.size), (1000, 0))
        buffer.append(data)
        buffer.append(data)
        self.assertIs(buffer.take(1000)[0], data)

    def test_join(self) -> None:
        """
        Up to sixteen pieces stay a list; more are joined, also when they are
        taken in part.
        """
        for extra in (b"", bytes(70000)):
            for count in (_JOIN, _JOIN + 1):
                buffer = SendBuffer()
                for _ in range(count):
                    buffer.append(b"ab")
                if extra:
                    buffer.append(extra)
                payload, n = buffer.take(2 * count)
                self.assertEqual(n, 2 * count)
                self.assertIs(type(payload), list if count == _JOIN else bytes)
                self.assertEqual(joined(payload), b"ab" * count)

    def test_joinedOnce(self) -> None:
        """
        Many small pieces of up to two messages are joined once, and not taken one by one; a longer queue is
        not copied whole.
        """
        for count, most in ((1025, 65536), (2048, 65536), (2049, 65536), (1025, 40000)):
            buffer = SendBuffer()
            for number in range(count):
                buffer.append(number.to_bytes(2, "big") * 32)
            taken: list[Any] = []
            calls = called(lambda buffer=buffer, taken=taken, most=most: taken.append(buffer.take(most)))
            self.assertEqual((taken[0][1], calls["_slice"]), (most, int(count * 64 <= 2 * most)))
            self.assertEqual(buffer.size, count * 64 - most)

    def test_noSmallSlices(self) -> None:
        """
        A slice of less than four kilobytes does not fill a message's end, nor does one of a piece that fits
        into a message: the next message begins with the whole piece.
        """
        buffer = SendBuffer()
        for first, second, taken in (
            (65536 - _SMALL + 1, 65537, 65536 - _SMALL + 1),
            (65536 - _SMALL, 65537, 65536),
            (65536 - _SMALL, 65536, 65536 - _SMALL),
        ):
            buffer.append(bytes(first))
            buffer.append(bytes(second))
            self.assertEqual(buffer.take()[1], taken)
            buffer.clear()
        # A small piece that fits whole does.
        buffer.append(bytes(65530))
        buffer.append(bytes(6))
        buffer.append(bytes(65536))
        self.assertEqual(buffer.take()[1], 65536)

    def test_clear(self) -> None:
        """
        Nothing is left, not even the place in the first piece.
        """
        buffer = SendBuffer()
        buffer.append(b"abc" * 30000)
        buffer.take(10)
        buffer.clear()
        self.assertEqual((buffer.size, len(buffer.pieces)), (0, 0))
        buffer.append(b"xyz")
        self.assertEqual(buffer.take(), (b"xyz", 3))

    def test_viewsLeaveTheFirstPiece(self) -> None:
        """
        A piece is let go of when its last byte is taken.
        """
        buffer = SendBuffer()
        buffer.append(bytes(20))
        self.assertEqual(len(buffer.take(15)[0]), 15)
        self.assertEqual(len(buffer.pieces), 1)
        payload, n = buffer.take(15)
        self.assertEqual((len(payload), n, len(buffer.pieces)), (5, 5, 0))
