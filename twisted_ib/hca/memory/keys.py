"""
Random numbers as names: keys of memory regions, queue pair numbers.

A key that a peer can guess gives a right away, so keys are random; a key that is reused soon after its
withdrawal lets a late request access other memory, so they are not reused soon.  A secret permutation of all
24-bit numbers gives both without memory: a counter, encrypted by a Feistel network whose round functions are
random tables.  An index returns after 2^24 others.

A key has 32 bits, the upper 24 of which are the index.  A region that is registered again gets another index,
so the lower 8 are random too, except in the keys of type 2 memory windows, where they belong to the program
(IBTA vol. 1 10.6.7.2).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container

from twisted_ib.errors import ResourceLimitError

#: Bits of an index, and of a queue pair number (IBTA vol. 1 9.2).
INDEX_BITS = 24

#: Bits of a memory key below its index.
KEY_BITS = 8

_INDEX_MASK = (1 << INDEX_BITS) - 1
_HALF_BITS = INDEX_BITS // 2
_HALF_MASK = (1 << _HALF_BITS) - 1
_ROUNDS = 4
#: Octets of the table of a round, and the bits of its values that are used, both in the order of an array.
_TABLE_BYTES = 2 << _HALF_BITS
_TABLE_MASK = int.from_bytes(array("H", [_HALF_MASK]) * (1 << _HALF_BITS), "little")


class DrawnAhead:
    """
    A source of entropy that draws many numbers of one width at a time: each draw is a system call.
    """

    __slots__ = ("_above", "_mask", "_numbers", "_randomBits", "_width")

    #: Numbers drawn at a time.
    _COUNT = 64

    def __init__(self, randomBits: Callable[[int], int], width: int) -> None:
        """
        @param randomBits: the source of entropy, as for L{RandomIndices}.
        @param width: bits of the numbers that are drawn ahead.
        """
        self._randomBits = randomBits
        self._width = width
        self._above, self._mask = 0, (1 << width) - 1
        # Elements of an array, since what is drawn becomes them in one step.
        self._numbers = array(next(code for code in "HIQ" if 8 * array(code).itemsize >= width))

    def begin(self, above: int, bits: int) -> None:
        """
        Have all numbers of the width begin with the same bits.

        @param above: those bits.
        @param bits: how many are left to be random.
        """
        self._above, self._mask = above << bits, (1 << bits) - 1

    def __call__(self, bits: int) -> int:
        """
        Return a random number of so many bits.
        """
        # Other widths are rare: no stock is kept for them.
        if bits != self._width:
            return self._randomBits(bits)
        numbers = self._numbers
        if not numbers:
            octets = numbers.itemsize * self._COUNT
            numbers.frombytes(self._randomBits(8 * octets).to_bytes(octets, "little"))
        return self._above | numbers.pop() & self._mask


class RandomIndices:
    """
    Draws 24-bit numbers in a secret order, none twice before all were drawn.

    @ivar first: the lowest number that is drawn; C{last} is the highest.
    """

    __slots__ = ("_counter", "_randomBits", "_tables", "first", "last")

    def __init__(
        self, randomBits: Callable[[int], int], first: int = 1, last: int = (1 << INDEX_BITS) - 1
    ) -> None:
        """
        @param randomBits: the source of entropy: C{randomBits(n)} returns an n-bit number, as
            L{random.SystemRandom.getrandbits} does.
        """
        self.first, self.last = first, last
        self._counter = 0
        self._randomBits = randomBits
        # Made on first use: a device without memory regions needs none.
        self._tables: tuple[array[int], ...] = ()

    def draw(self, inUse: Container[int]) -> int:
        """
        The next number that is not in use.

        @raise ResourceLimitError: every number is in use.
        """
        # Ends after one full cycle at the latest, when all numbers are in use.
        begun = counter = self._counter
        while True:
            index = self._permute(counter)
            self._counter = counter = (counter + 1) & _INDEX_MASK
            if self.first <= index <= self.last and index not in inUse:
                return index
            if counter == begun:
                raise ResourceLimitError("every number of 24 bits is in use")

    def _permute(self, number: int) -> int:
        # A balanced Feistel network is a permutation whatever its round functions are; four rounds of random
        # ones cannot be told from a random one (Luby and Rackoff).
        # Unrolled, two rounds exchange the halves twice, so that nothing is exchanged.
        first, second, third, fourth = self._tables or self._makeTables()
        left, right = number >> _HALF_BITS, number & _HALF_MASK
        left ^= first[right]
        right ^= second[left]
        left ^= third[right]
        return left << _HALF_BITS | right ^ fourth[left]

    def _makeTables(self) -> tuple[array[int], ...]:
        # All 4096 values of a round function as one number, so that they are masked in one step.
        values = [self._randomBits(8 * _TABLE_BYTES) & _TABLE_MASK for _ in range(_ROUNDS)]
        self._tables = tuple([array("H", each.to_bytes(_TABLE_BYTES, "little")) for each in values])
        return self._tables


class PrefixedIndices(RandomIndices):
    """
    The same for numbers of 24 bits of which the upper ones are given.
    """

    __slots__ = ("_above", "_half", "_mask")

    def __init__(self, randomBits: Callable[[int], int], above: int, bits: int, last: int) -> None:
        """
        @param above: the upper bits.
        @param bits: how many are below them, an even number.
        @param last: the highest number that is drawn.
        """
        super().__init__(randomBits, 1, last)
        self._above = above << bits
        self._half = bits // 2
        self._mask = (1 << self._half) - 1

    def _permute(self, number: int) -> int:
        half, mask = self._half, self._mask
        first, second, third, fourth = self._tables or self._makeTables()
        left, right = number >> half & mask, number & mask
        left ^= first[right] & mask
        right ^= second[left] & mask
        left ^= third[right] & mask
        return self._above | left << half | right ^ fourth[left] & mask


class MemoryKeys:
    """
    Issues the 32-bit keys of memory regions and windows.

    Two keys that are in use never share their index.
    """

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        self._randomBits = randomBits
        self._indices = RandomIndices(randomBits)
        self._inUse: set[int] = set()

    def issue(self) -> int:
        """
        Return a new key.
        """
        index = self._indices.draw(self._inUse)
        self._inUse.add(index)
        # IBTA vol. 1 10.6.3: the R_Key is all that protects memory from a peer of the same domain, so none of
        # its bits is wasted.
        return index << KEY_BITS | self._randomBits(KEY_BITS)

    def withdraw(self, key: int) -> None:
        """
        Release a key.
        """
        self._inUse.discard(key >> KEY_BITS)
