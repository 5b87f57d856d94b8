"""
Shell patterns for program names, as the C library's C{fnmatch} with no flags matches them.

Python's module C{fnmatch} differs: in C a backslash quotes, C{[^a]} is C{[!a]}, and C{[[:digit:]]} is a
class.  A match takes at most the product of both lengths in steps, whatever the pattern.

Source: POSIX.1-2017 XCU 2.13; where it leaves a choice, glibc.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from twisted_ib.layouts import Shown

#: The classes of the C locale.
_CLASSES: dict[str, Callable[[str], bool]] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "blank": lambda c: c in " \t",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": lambda c: c.isascii() and c.isdigit(),
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: c.isascii() and c.islower(),
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in " \t\n\v\f\r",
    "upper": lambda c: c.isascii() and c.isupper(),
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}


@frozen(repr=False)
class _Bracket(Shown):
    """
    A bracket expression.

    @ivar negated: Whether it matches all other characters.
    @ivar ranges: Pairs of the first and the last character.
    @ivar classes: Tests for a character class.
    """

    # Ranges compare code points, as in the C locale: POSIX leaves other locales undefined (XBD 9.3.5).
    negated: bool
    ranges: tuple[tuple[str, str], ...]
    classes: tuple[Callable[[str], bool], ...]

    def __call__(self, character: str) -> bool:
        found = any(first <= character <= last for first, last in self.ranges)
        return (found or any(test(character) for test in self.classes)) is not self.negated


def _any(character: str) -> bool:
    return True


def _none(character: str) -> bool:
    return False


#: One element: a character, a test of one, or L{None} for C{*}.
_Element = str | Callable[[str], bool] | None


def _member(pattern: str, at: int) -> tuple[str | Callable[[str], bool], int] | None:
    """
    Read one member of a bracket expression, which is not a range.

    @return: the character, or the test of a class, and the index after it; L{None} if the pattern ends first.
    """
    kind = pattern[at : at + 2]
    if kind in ("[:", "[.", "[="):
        end = pattern.find(kind[1] + "]", at + 2)
        if end >= 0:
            name = pattern[at + 2 : end]
            if kind == "[:":
                # An unknown class matches no character; for glibc the whole pattern matches nothing then.
                return _CLASSES.get(name, _none), end + 2
            return (name if len(name) == 1 else _none), end + 2
    if kind[:1] == "\\":
        return (kind[1], at + 2) if len(kind) == 2 else None
    return (kind[0], at + 1) if kind else None


def _bracket(pattern: str, at: int) -> tuple[_Element, int] | None:
    """
    Read a bracket expression.

    @param at: the index after C{[}.
    @return: its test, and the index after it; L{None} if no C{]} ends it, so that C{[} stands for itself.
    """
    negated = pattern[at : at + 1] in ("!", "^") and at < len(pattern)
    at += negated
    ranges: list[tuple[str, str]] = []
    classes: list[Callable[[str], bool]] = []
    first = True
    # POSIX.1-2017 XBD 9.3.5: a ] that comes first is a member.
    while first or pattern[at : at + 1] != "]":
        first = False
        read = _member(pattern, at)
        if read is None:
            return None
        member, at = read
        if callable(member):
            classes.append(member)
            continue
        last: str | Callable[[str], bool] = member
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("]", ""):
            read = _member(pattern, at + 1)
            if read is None:
                return None
            last, at = read
        if not callable(last):
            ranges.append((member, last))
    return _Bracket(negated, tuple(ranges), tuple(classes)), at + 1


@frozen(repr=False)
class Pattern(Shown):
    """
    A parsed pattern.

    @ivar text: The text as written.
    """

    text: str
    elements: tuple[_Element, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """
        Parse a pattern; any text is one.
        """
        elements: list[_Element] = []
        at = 0
        while at < len(text):
            character = text[at]
            at += 1
            if character == "*":
                # Several * in a row match what one does.
                if not elements or elements[-1] is not None:
                    elements.append(None)
            elif character == "?":
                elements.append(_any)
            elif character == "\\":
                # glibc: a backslash at the end matches nothing.
                elements.append(text[at] if at < len(text) else _none)
                at += 1
            elif character == "[" and (read := _bracket(text, at)) is not None:
                element, at = read
                elements.append(element)
            else:
                elements.append(character)
        return cls(text, tuple(elements))

    def matches(self, name: str) -> bool:
        """
        Return whether all of a program's name matches.
        """
        elements = self.elements
        here = at = 0
        # If what follows the last * does not match, it is tried one character further.  Earlier ones need no
        # second try: this bounds the steps, where trying all of them would be exponential.
        star = -1
        resume = 0
        while at < len(name):
            element = elements[here] if here < len(elements) else _none
            if element is None:
                here += 1
                star, resume = here, at
            elif element == name[at] if isinstance(element, str) else element(name[at]):
                here += 1
                at += 1
            elif star >= 0:
                resume += 1
                here, at = star, resume
            else:
                return False
        return all(element is None for element in elements[here:])
