"""
More of L{tests.configuration.test_parser}.
"""

from __future__ import annotations

from tests.configuration import test_parser


class AnyTextTests(test_parser.AnyTextTests):
    """
    Any text of a file.
    """

    examples = 800
