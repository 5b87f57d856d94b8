"""
Which tests of the contracts a fabric's traits leave out.

A test that relies on a fact is decorated with L{needs}. Where a test case has C{traits}
(L{Traits<twisted_ib.hca.base.traits.Traits>}), tests whose fact is not among them are skipped with that
reason; other cases run everything.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any
from unittest import SkipTest

from twisted_ib.hca.base.traits import Completion, Proof, Traits, TransportType
from twisted_ib.hca.queues.requests import SendOpcode


def hasOperation(case: Any, opcode: SendOpcode) -> bool:
    """
    @return: Whether the fabric of a test case has an operation; without traits it has all.
    """
    traits = getattr(case, "traits", None)
    return traits is None or traits.operations is None or opcode in traits.operations


class Need(Enum):
    """
    The facts, each with what it asks of the traits.
    """

    #: C{operations}.
    ATOMICS = 1
    #: C{completion}: the success of a SEND or WRITE tells that the peer has taken it.
    TAKEN = 2
    #: C{transport}: a message without a receive, or for nobody, is refused and repeated (RNR NAK, retries).
    RETRIES = 3
    #: C{proof}: services are found, or are not, before anything is asked for.
    DIRECTORY = 4
    #: C{proof}: the queue pairs of two HCAs share a path, which carries records by their numbers, and
    #: management among them; else each has a connection of its own.
    SHARED_PATH = 5

    def holds(self, traits: Traits) -> bool:
        """
        @return: Whether a fabric with these traits has it.
        """
        if self is Need.ATOMICS:
            return traits.operations is None or SendOpcode.ATOMIC_FETCH_AND_ADD in traits.operations
        if self is Need.TAKEN:
            return traits.completion is Completion.TAKEN
        if self is Need.DIRECTORY:
            return traits.proof is Proof.DIRECTORY
        if self is Need.SHARED_PATH:
            return traits.proof is not Proof.CONNECTION
        # An adapter refuses and repeats by itself.
        return traits.transport is TransportType.IB and traits.proof is not Proof.CONNECTION


def needs(need: Need) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """
    @return: A decorator of tests that rely on a fact.
    """

    def decorate(test: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(test)
        def run(self: Any) -> None:
            traits = getattr(self, "traits", None)
            if traits is not None and not need.holds(traits):
                raise SkipTest(f"the fabric's traits do not have {need.name}")
            test(self)

        return run

    return decorate
