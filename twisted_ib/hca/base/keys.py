"""
Random numbers that name things: keys of memory regions, numbers of queue pairs.

A key that a peer may guess is a right given away, so keys are random; one that comes back
soon after it was taken away lets a late request hit new memory, so they do not come back
soon.  Both hold without remembering anything: a counter is sent through a secret
permutation of all 24-bit numbers (a Feistel network whose rounds are tables made by SHAKE-128
of a secret), so an index comes again only after 2^24 others.

A key has 32 bits: the upper 24 are the index.  A region that is registered anew gets
another index, so the lower 8 are more of the same, except in the keys of memory windows
of type 2, where they belong to the program (IBTA vol. 1 10.6.7.2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from hashlib import shake_128

from twisted_ib.errors import ResourceLimitError

INDEX_BITS = 24
"""
Bits of an index, and of a queue pair's number.
"""

KEY_BITS = 8
"""
Bits of a memory key below its index.
"""

_INDEX_MASK = (1 << INDEX_BITS) - 1
_HALF_BITS = INDEX_BITS // 2
_HALF_MASK = (1 << _HALF_BITS) - 1
_ROUNDS = 4
_SECRET_BITS = 128


class DrawnAhead:
    """
    A source of entropy that draws numbers of one width many at a time: each draw is a system call.
    """

    __slots__ = ("_numbers", "_randomBits", "_width")

    #: Numbers of one draw.
    _COUNT = 64

    def __init__(self, randomBits: Callable[[int], int], width: int) -> None:
        """
        @param randomBits: the source of entropy, as for L{RandomIndices}.
        @param width: the bits of a number that are asked for often.
        """
        self._randomBits = randomBits
        self._width = width
        self._numbers: list[int] = []

    def __call__(self, bits: int) -> int:
        """
        @return: a number of so many bits.
        """
        if bits != self._width:
            return self._randomBits(bits)
        if not self._numbers:
            drawn, mask = self._randomBits(bits * self._COUNT), (1 << bits) - 1
            self._numbers = [drawn >> bits * place & mask for place in range(self._COUNT)]
        return self._numbers.pop()


class RandomIndices:
    """
    Draws 24-bit numbers in a secret order, none twice before all were drawn.

    @ivar first: no number below this one is drawn.
    @ivar last: no number above this one is drawn.
    """

    __slots__ = ("_counter", "_secret", "_tables", "first", "last")

    def __init__(
        self, randomBits: Callable[[int], int], first: int = 1, last: int = (1 << INDEX_BITS) - 1
    ) -> None:
        """
        @param randomBits: the source of entropy: C{randomBits(n)} gives an n-bit number,
            as L{random.SystemRandom.getrandbits} does.
        @param first: the lowest number that may be drawn.
        @param last: the highest.
        """
        self.first, self.last = first, last
        self._counter = 0
        self._secret = randomBits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        self._tables: tuple[memoryview, ...] = ()

    def draw(self, inUse: Container[int]) -> int:
        """
        The next number that is not in use.

        @param inUse: the numbers that must not be drawn.

        @raise ResourceLimitError: every number is in use.
        """
        begun = counter = self._counter
        while True:
            index = self._permute(counter)
            self._counter = counter = (counter + 1) & _INDEX_MASK
            if self.first <= index <= self.last and index not in inUse:
                return index
            if counter == begun:
                raise ResourceLimitError("every number of 24 bits is in use")

    def _permute(self, number: int) -> int:
        """
        One place of the permutation: a balanced Feistel network.
        """
        left, right = number >> _HALF_BITS, number & _HALF_MASK
        for table in self._tables or self._makeTables():
            left, right = right, left ^ (table[right] & _HALF_MASK)
        return left << _HALF_BITS | right

    def _makeTables(self) -> tuple[memoryview, ...]:
        """
        Make the function of each round, all its values: a draw then hashes nothing.
        """
        self._tables = tuple(
            memoryview(shake_128(bytes((turn,)) + self._secret).digest(2 << _HALF_BITS)).cast("H")
            for turn in range(_ROUNDS)
        )
        return self._tables


class MemoryKeys:
    """
    Issues the 32-bit keys of memory regions and windows.

    Two keys that are in use never share their index.
    """

    __slots__ = ("_inUse", "_indices", "_randomBits")

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: the source of entropy, as for L{RandomIndices}.
        """
        self._randomBits = randomBits
        self._indices = RandomIndices(randomBits)
        self._inUse: set[int] = set()

    def issue(self) -> int:
        """
        A new key.
        """
        index = self._indices.draw(self._inUse)
        self._inUse.add(index)
        return index << KEY_BITS | self._randomBits(KEY_BITS)

    def withdraw(self, key: int) -> None:
        """
        This key is no longer in use.
        """
        self._inUse.discard(key >> KEY_BITS)
