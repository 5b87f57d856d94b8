"""
What C{ib-perf} measures: what a user gave, and what both ends then agree on.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from twisted_ib import limits
from twisted_ib.tools.program import ProgramError

#: Bytes that all its queue pairs have for one message each.
PERF_MEMORY = 1024 * 1024 * 1024

#: Of the talk between both ends; another one is refused.
VERSION = 1

#: Where neither a user nor his server say anything.
SIZE = 64
SECONDS = 1.0
QUEUE_PAIRS = 1

#: What -a measures: perftest's powers of two.
ALL_SIZES = tuple(1 << power for power in range(1, limits.PERF_MESSAGE.bit_length()))

_NOT_OURS = "the other end asks for something that this version of ib-perf does not know"


@frozen
class Parameters:
    """
    What is measured.

    @ivar test: the subcommand.
    @ivar sizes: the messages' bytes; each size is measured by itself.
    @ivar iterations: how many messages each queue pair sends in a measurement; L{None} if it
        takes a time.
    @ivar seconds: how long a measurement takes; L{None} if it has a number of messages.
    @ivar queuePairs: how many there are.
    """

    test: str
    sizes: tuple[int, ...]
    iterations: int | None
    seconds: float | None
    queuePairs: int

    @property
    def largest(self) -> int:
        """
        The bytes of the longest message.
        """
        return max(self.sizes)

    def message(self) -> dict[str, Any]:
        """
        @return: the same for the other end.
        """
        return {
            "ib-perf": VERSION,
            "test": self.test,
            "sizes": self.sizes,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "queue_pairs": self.queuePairs,
        }

    def check(self) -> None:
        """
        @raise ProgramError: that is too much.
        """
        if self.largest * self.queuePairs > PERF_MEMORY:
            raise ProgramError(
                f"{self.queuePairs} queue pairs with messages of {self.largest} bytes take more"
                f" than {PERF_MEMORY >> 20} MiB"
            )


def parseTerms(message: Mapping[str, Any]) -> Parameters:
    """
    @param message: what the other end said.

    @return: the terms in it.

    @raise ProgramError: there are none, or they are too much.
    """
    version, test = message.get("ib-perf"), message.get("test")
    if version != VERSION:
        raise ProgramError(f"ib-perf of version {VERSION} of the talk, not {version!r}, is needed")
    sizes, count = message.get("sizes"), message.get("iterations")
    seconds, queuePairs = message.get("seconds"), message.get("queue_pairs")
    good = (
        isinstance(test, str)
        and isinstance(sizes, list)
        and 0 < len(sizes) <= len(ALL_SIZES)
        and all(_within(size, limits.PERF_MESSAGE) for size in sizes)
        and (count is None) != (seconds is None)
        and (count is None or _within(count, limits.PERF_ITERATIONS))
        and (seconds is None or _seconds(seconds))
        and _within(queuePairs, limits.PERF_QUEUE_PAIRS)
    )
    if not good:
        raise ProgramError(_NOT_OURS)
    terms = Parameters(str(test), tuple(sizes or ()), count, seconds, queuePairs or 0)
    terms.check()
    return terms


def _within(value: object, most: int) -> bool:
    """
    @param value: what JSON had.
    @param most: a bound.

    @return: whether it is an integer from 1 to the bound.
    """
    return type(value) is int and 0 < value <= most


def _seconds(value: object) -> bool:
    """
    @param value: what JSON had.

    @return: whether it is a time that a measurement can take.
    """
    return type(value) in (int, float) and 0 < value <= limits.PERF_SECONDS  # type: ignore[operator]


@frozen
class Given:
    """
    The options of a user; L{None} for what he left out.

    @ivar sizes: from -s or -a.
    @ivar iterations: from -n.
    @ivar seconds: from -D.
    @ivar queuePairs: from -q.
    """

    sizes: tuple[int, ...] | None
    iterations: int | None
    seconds: float | None
    queuePairs: int | None

    @classmethod
    def of(cls, options: Namespace, only: int | None) -> Given:
        """
        @param options: the command line.
        @param only: the one size that the test knows, if there is only one.

        @return: what it says about the test.

        @raise ProgramError: the test has no such size.
        """
        sizes = ALL_SIZES if options.all else None if options.size is None else (options.size,)
        if only is not None:
            if sizes not in (None, (only,)):
                raise ProgramError(f"{options.test} has messages of {only} bytes and no others: no -s or -a")
            sizes = (only,)
        return cls(sizes, options.iters, options.duration, options.qp)

    def terms(self, test: str) -> Parameters:
        """
        @param test: the subcommand.

        @return: what a client with these options measures.

        @raise ProgramError: that is too much.
        """
        seconds = self.seconds
        if seconds is None and self.iterations is None:
            seconds = SECONDS
        terms = Parameters(
            test, self.sizes or (SIZE,), self.iterations, seconds, self.queuePairs or QUEUE_PAIRS
        )
        terms.check()
        return terms

    def compare(self, test: str, terms: Parameters) -> None:
        """
        See whether a client asks for what the server was started for.

        @param test: the server's subcommand.
        @param terms: what the client asks for.

        @raise ProgramError: it is something else.
        """
        if terms.test != test:
            raise ProgramError(f"the server runs ib-perf {test}, not {terms.test}")
        for letter, mine, asked in (
            ("s", self.sizes, terms.sizes),
            ("n", self.iterations, terms.iterations),
            ("D", self.seconds, terms.seconds),
            ("q", self.queuePairs, terms.queuePairs),
        ):
            if mine is None or mine == asked:
                continue
            option = f"-{letter} {mine}"
            if isinstance(mine, tuple):
                option = f"-s {mine[0]}" if len(mine) == 1 else "-a"
            raise ProgramError(f"the server was started with {option}, and the client was not")
