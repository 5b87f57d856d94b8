"""
Tests for the shell patterns of rules.
"""

from __future__ import annotations

import ctypes

from hypothesis import strategies as st
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.generated import given, settings
from twisted_ib.configuration.patterns import Pattern

# Pattern, names that match, names that do not.
CASES = (
    ("twistd", ("twistd",), ("Twistd", "twist", "twistd3", "")),
    ("ttcp*", ("ttcp", "ttcpd", "ttcp.x/y"), ("TTCP", "attcp")),
    ("t?cp", ("ttcp", "t/cp", "t.cp"), ("tcp", "tttcp")),
    ("*", ("", "a", ".a"), ()),
    ("**b*", ("b", "abc", "bb"), ("", "a")),
    ("*a*b", ("ab", "aab", "axbxb"), ("ba", "abx")),
    ("?", ("a", "*"), ("", "ab")),
    ("[ab]c", ("ac", "bc"), ("cc", "c", "[ab]c")),
    ("[!ab]c", ("cc", "!c"), ("ac", "c")),
    ("[^ab]c", ("cc", "^c"), ("ac",)),
    ("[a-c]", ("a", "b", "c"), ("d", "-")),
    ("[c-a]", (), ("a", "b", "c")),
    ("[]a]", ("]", "a"), ("b",)),
    ("[!]a]", ("b",), ("]", "a")),
    ("[a-]", ("a", "-"), ("b",)),
    ("[-a]", ("a", "-"), ("b",)),
    ("[a", ("[a",), ("a", "[")),
    ("[", ("[",), ("",)),
    ("[!", ("[!",), ("[",)),
    ("[[:digit:]x]", ("0", "9", "x"), ("a", ":", "\u0663")),
    ("[![:alpha:]]", ("0",), ("a", "Z")),
    ("[[:none:]]", (), ("n", ":")),
    ("[[.-.]]", ("-",), (".",)),
    ("[[=a=]]", ("a",), ("=",)),
    (r"a\*", ("a*",), ("ab", r"a\*")),
    (r"a\b", ("ab",), (r"a\b",)),
    (r"[\]]", ("]",), ("\\",)),
    ("a\\", (), ("a", "a\\")),
    ("\udcff*", ("\udcffx",), ("x",)),
)

_PARTS = st.sampled_from([*"abc-![]^*?\\.", "[:alpha:]", "[:digit:]", "[ab]", "[!a]"])


class PatternTests(SynchronousTestCase):
    """
    Patterns match as C's fnmatch() without flags has it.
    """

    def test_cases(self) -> None:
        """
        Each kind of element matches what it should and nothing else.
        """
        for text, yes, no in CASES:
            pattern = Pattern.parse(text)
            for name in yes:
                self.assertTrue(pattern.matches(name), (text, name))
            for name in no:
                self.assertFalse(pattern.matches(name), (text, name))

    def test_cLibrary(self) -> None:
        """
        The C library agrees about the same cases.
        """
        match = self.cLibrary()
        for text, yes, no in CASES:
            for name in (*yes, *no):
                if (text + name).isascii():
                    self.assertEqual(match(text, name), name in yes, (text, name))

    def test_cLibraryAnything(self) -> None:
        """
        It agrees about any pattern whose brackets glibc does not read in a way of its own.
        """
        match = self.cLibrary()

        @settings(max_examples=1000, deadline=None)
        @given(st.lists(_PARTS, max_size=7).map("".join), st.text("abc-[]!\\", max_size=5))
        def agrees(text: str, name: str) -> None:
            # A [ within brackets that nothing ends, a class that is the end of a range, and what POSIX calls
            # collating symbols and equivalence classes.
            rest = text.replace("[:alpha:]", "").replace("[:digit:]", "")
            if "[" in rest and any(each in text for each in ("[:", "[.", "[=", "\\")):
                return
            self.assertEqual(Pattern.parse(text).matches(name), match(text, name), (text, name))

        agrees()

    def test_anyText(self) -> None:
        """
        Any text is a pattern.
        """

        @given(st.text(), st.text())
        def harmless(text: str, name: str) -> None:
            Pattern.parse(text).matches(name)

        harmless()

    def test_manyStars(self) -> None:
        """
        A pattern that makes regular expressions take for ever ends.
        """
        self.assertFalse(Pattern.parse("*a" * 200 + "b").matches("a" * 1000))

    def cLibrary(self):  # type: ignore[no-untyped-def]
        """
        @return: glibc's fnmatch() as a function of pattern and name.
        """
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version"):
            raise SkipTest("another C library, whose patterns differ where POSIX leaves a choice")
        return lambda text, name: library.fnmatch(text.encode(), name.encode(), 0) == 0
