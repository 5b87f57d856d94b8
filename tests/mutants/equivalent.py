"""
Mutants that behave as the module does: no test can tell them, and none is asked to.

An entry is found by its module and the text of its line, not the line's number: it moves with its line, and
one that matches nothing any more is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from tests.mutants.mutations import Mutation, mutations


@frozen
class Equivalent:
    """
    One mutant that cannot be told from its module.

    @ivar path: The module's, below the root.
    @ivar line: The line on which the change begins, without the blanks around it.
    @ivar before: What is changed.
    @ivar after: What comes there.
    @ivar reason: Why nobody can see it.
    """

    path: str
    line: str
    before: str
    after: str
    reason: str

    def matches(self, path: str, source: str, mutation: Mutation) -> bool:
        """
        @return: Whether this is that mutant of a module.
        """
        return (
            self.path == path
            and self.line == source.splitlines()[mutation.line - 1].strip()
            and (self.before, self.after) == (mutation.before, mutation.after)
        )


EQUIVALENT: tuple[Equivalent, ...] = ()


def without(
    modules: Mapping[str, str], known: Iterable[Equivalent] = EQUIVALENT
) -> list[tuple[str, Mutation]]:
    """
    @param modules: Sources by path.

    @return: All mutations of modules but those that are known to be equivalent, each with its path.

    @raise LookupError: An entry for one of these modules matches no mutant, or several.
    """
    every = [(path, each) for path, source in modules.items() for each in mutations(source)]
    for entry in known:
        if entry.path in modules:
            found = [pair for pair in every if entry.matches(pair[0], modules[pair[0]], pair[1])]
            if len(found) != 1:
                raise LookupError(f"{len(found)} mutants match {entry}")
            every.remove(found[0])
    return every
