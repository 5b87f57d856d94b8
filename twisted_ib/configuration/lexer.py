"""
The lexer of a line of rules, and the texts of its errors.

Source: libsdp C{config_scanner.l}.
"""

from __future__ import annotations

from attrs import define

#: Punctuation that libsdp accepts with blanks around it, within C{ADDRESS/LENGTH:PORTS}.
_GLUE = ("/", ":", "-", ".")
#: Characters of a wrong word that an error shows.
_SHOWN = 40


class SyntaxMismatch(Exception):
    """
    A word is not what the grammar expects; the parser turns it into an error of the file.

    @ivar column: Its first column, from 1.
    @ivar expected: The text for what the grammar expects.
    @ivar word: The word; L{None} if it is missing.
    """

    def __init__(self, column: int, expected: str, word: str | None) -> None:
        super().__init__(expected)
        self.column = column
        self.expected = expected
        self.word = word

    def __str__(self) -> str:
        if self.word is None:
            return f"expected {self.expected}"
        # Cut and escaped: the file may be binary, and the text goes to a terminal or a log.
        word = self.word if len(self.word) <= _SHOWN else self.word[:_SHOWN] + "..."
        return f"expected {self.expected}, not {word!a}"


@define
class Token:
    """
    A word of a line.

    @ivar column: Its first column, from 1.
    """

    text: str
    column: int

    def wrong(self, expected: str) -> SyntaxMismatch:
        """
        Return the error that something else was expected.
        """
        return SyntaxMismatch(self.column, expected, self.text)


class Line:
    """
    One line, read word by word.

    @ivar where: C{FILE:LINE}.
    """

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self._text = text
        self._at = 0
        # The end of the last word: the column of one that is missing.
        self._end = 0

    def next(self, name: bool = False) -> Token | None:
        """
        Return the next word; L{None} at the end or before a comment.

        @param name: Whether C{#} may be within the word.
        """
        text = self._text
        at = self._at
        while text[at : at + 1] in (" ", "\t"):
            at += 1
        end = at
        # libsdp reads the name of a program or file up to the next blank, so # may be within one.
        while end < len(text) and text[end] not in " \t" and (text[end] != "#" or (name and end > at)):
            end += 1
        self._at = end
        if at == end:
            return None
        self._end = end
        return Token(text[at:end], at + 1)

    def take(self, expected: str, name: bool = False) -> Token:
        """
        Return the next word, which must be there.

        @raise Wrong: the line ends.
        """
        word = self.next(name)
        if word is None:
            raise self.missing(expected)
        return word

    def missing(self, expected: str) -> SyntaxMismatch:
        """
        Return the error for a line that ends too early.
        """
        return SyntaxMismatch(self._end + 1, expected, None)

    def choose(self, *choices: str) -> Token:
        """
        Return the next word, which must be one of C{choices}.

        @raise Wrong: it is another, or the line ends.
        """
        expected = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
        word = self.take(expected)
        if word.text not in choices:
            raise word.wrong(expected)
        return word

    def end(self) -> None:
        """
        Check that the line ends.

        @raise Wrong: there is another word.
        """
        word = self.next()
        if word is not None:
            raise word.wrong("the end of the line")

    def takeGlued(self, expected: str) -> Token:
        """
        Return the next word without the blanks around its punctuation.

        @raise Wrong: the line ends.
        """
        glued = self.take(expected)
        while True:
            at, end = self._at, self._end
            word = self.next()
            if word is None:
                return glued
            # libsdp's scanner returns addresses and punctuation as tokens of their own, so "10.0.0.0 / 8 :
            # 80" is one address.
            if not glued.text.endswith(_GLUE) and not word.text.startswith(_GLUE):
                self._at, self._end = at, end
                return glued
            glued.text += word.text
