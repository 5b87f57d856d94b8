"""
Parameters of an C{ib-perf} test: the options given at both ends, and the terms agreed on.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from twisted_ib import limits
from twisted_ib.tools.program import ProgramError

#: Bound of queue pairs times message size: each end allocates that.
PERF_MEMORY = 1024 * 1024 * 1024

#: Version of the dialogue; another one is refused.
VERSION = 1

#: Defaults for what neither end was given.
SIZE = 64
SECONDS = 1.0
QUEUE_PAIRS = 1

#: The sizes of -a: powers of two, as in perftest.
ALL_SIZES = tuple(1 << power for power in range(1, limits.PERF_MESSAGE.bit_length()))

_NOT_OURS = "the other end asks for something that this version of ib-perf does not know"


@frozen
class Parameters:
    """
    The parameters of a test.

    @ivar test: The subcommand.
    @ivar sizes: Message sizes in bytes; each is measured separately.
    @ivar iterations: Messages per queue pair and measurement; L{None} if C{seconds} is given.
    @ivar seconds: Seconds per measurement; L{None} if C{iterations} is given.
    """

    test: str
    sizes: tuple[int, ...]
    iterations: int | None
    seconds: float | None
    queuePairs: int

    @property
    def largest(self) -> int:
        """
        The largest message size.
        """
        return max(self.sizes)

    def message(self) -> dict[str, Any]:
        """
        Return the parameters as a message of the dialogue.
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
        Check the memory that the test needs.

        @raise ProgramError: It is too much.
        """
        if self.largest * self.queuePairs > PERF_MEMORY:
            raise ProgramError(
                f"{self.queuePairs} queue pairs with messages of {self.largest} bytes take more"
                f" than {PERF_MEMORY >> 20} MiB"
            )


def parseTerms(message: Mapping[str, Any]) -> Parameters:
    """
    Parse the peer's parameters.

    @raise ProgramError: They are invalid, or too much.
    """
    version, test = message.get("ib-perf"), message.get("test")
    if version != VERSION:
        raise ProgramError(f"ib-perf of version {VERSION} of the talk, not {version!r}, is needed")
    sizes, count = message.get("sizes"), message.get("iterations")
    seconds, queuePairs = message.get("seconds"), message.get("queue_pairs")
    # Everything is checked here, before any of it sizes an allocation: the peer may be any program.
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
    # Not isinstance: JSON's true is a bool, which is an int to Python.
    return type(value) is int and 0 < value <= most


def _seconds(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= limits.PERF_SECONDS  # type: ignore[operator]


@frozen
class Given:
    """
    A user's options; L{None} for those left out.

    @ivar sizes: From -s or -a.
    @ivar iterations: From -n.
    @ivar seconds: From -D.
    @ivar queuePairs: From -q.
    """

    sizes: tuple[int, ...] | None
    iterations: int | None
    seconds: float | None
    queuePairs: int | None

    @classmethod
    def of(cls, options: Namespace, only: int | None) -> Given:
        """
        Take the options from a command line.

        @param only: The one size of the test, if there is only one.
        @raise ProgramError: The test does not have that size.
        """
        sizes = ALL_SIZES if options.all else None if options.size is None else (options.size,)
        if only is not None:
            if sizes not in (None, (only,)):
                raise ProgramError(f"{options.test} has messages of {only} bytes and no others: no -s or -a")
            sizes = (only,)
        return cls(sizes, options.iters, options.duration, options.qp)

    def terms(self, test: str) -> Parameters:
        """
        Return what a client with these options measures.

        @raise ProgramError: It is too much.
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
        Check that a client asks for what the server was started for.

        @raise ProgramError: An option differs.
        """
        if terms.test != test:
            raise ProgramError(f"the server runs ib-perf {test}, not {terms.test}")
        # perftest leaves it to the user to give both ends the same options; here the server refuses, and
        # names the option.
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
