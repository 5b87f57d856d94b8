"""
Posting in C where there is no shared memory.
"""

from __future__ import annotations

from tests.verbs.c.posting import test_posting


class LoopbackPostingTests(test_posting.PostingTests):
    """
    The stories of C{posting.c} by the loopback.
    """

    device = "lo0"
