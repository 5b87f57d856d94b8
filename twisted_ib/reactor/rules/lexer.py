"""
The words of a line of rules, and what is said of a wrong one.

Source: libsdp C{config_scanner.l}.
"""

from __future__ import annotations

from attrs import define

#: What may have blanks around it, in libsdp's reading, within C{ADDRESS/LENGTH:PORTS}.
_GLUE = ("/", ":", "-", ".")
#: Characters of a wrong word that an error shows.
_SHOWN = 40


class Wrong(Exception):
    """
    A word is not what it should be; never leaves this module.
    """

    def __init__(self, column: int, expected: str, word: str | None) -> None:
        """
        @param column: where it begins, from 1.
        @param expected: what should be there.
        @param word: the word; L{None} where it is missing.
        """
        super().__init__(expected)
        self.column = column
        self.expected = expected
        self.word = word

    def __str__(self) -> str:
        """
        @return: what the user is told.
        """
        if self.word is None:
            return f"expected {self.expected}"
        word = self.word if len(self.word) <= _SHOWN else self.word[:_SHOWN] + "..."
        return f"expected {self.expected}, not {word!a}"


@define
class Token:
    """
    A word of a line.

    @ivar text: it.
    @ivar column: where it begins, from 1.
    """

    text: str
    column: int

    def wrong(self, expected: str) -> Wrong:
        """
        @param expected: what should be in its place.

        @return: the error to raise.
        """
        return Wrong(self.column, expected, self.text)


class Line:
    """
    One line, taken word by word.

    @ivar where: C{FILE:LINE}.
    """

    def __init__(self, text: str, where: str) -> None:
        """
        @param text: the line, without its end.
        @param where: C{FILE:LINE}.
        """
        self.where = where
        self._text = text
        self._at = 0
        self._end = 0  # of the last word

    def next(self, name: bool = False) -> Token | None:
        """
        Take a word.

        @param name: whether C{#} may be within it.

        @return: it; L{None} at the end or where a comment begins.
        """
        text = self._text
        at = self._at
        while text[at : at + 1] in (" ", "\t"):
            at += 1
        end = at
        while end < len(text) and text[end] not in " \t" and (text[end] != "#" or (name and end > at)):
            end += 1
        self._at = end
        if at == end:
            return None
        self._end = end
        return Token(text[at:end], at + 1)

    def take(self, expected: str, name: bool = False) -> Token:
        """
        Take a word that must be there.

        @param expected: what it is.
        @param name: whether C{#} may be within it.

        @return: it.

        @raise Wrong: the line ends.
        """
        word = self.next(name)
        if word is None:
            raise self.missing(expected)
        return word

    def missing(self, expected: str) -> Wrong:
        """
        @param expected: what should follow where the line ends.

        @return: the error to raise.
        """
        return Wrong(self._end + 1, expected, None)

    def choose(self, *choices: str) -> Token:
        """
        Take one of some words.

        @param choices: them.

        @return: it.

        @raise Wrong: it is another, or the line ends.
        """
        expected = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
        word = self.take(expected)
        if word.text not in choices:
            raise word.wrong(expected)
        return word

    def end(self) -> None:
        """
        Check that there is no more.

        @raise Wrong: there is.
        """
        word = self.next()
        if word is not None:
            raise word.wrong("the end of the line")

    def takeGlued(self, expected: str) -> Token:
        """
        Take a word that may have blanks around its punctuation.

        @param expected: what it is.

        @return: it, without the blanks.

        @raise Wrong: the line ends.
        """
        glued = self.take(expected)
        while True:
            at, end = self._at, self._end
            word = self.next()
            if word is None:
                return glued
            if not glued.text.endswith(_GLUE) and not word.text.startswith(_GLUE):
                self._at, self._end = at, end
                return glued
            glued.text += word.text
