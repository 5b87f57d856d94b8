"""
All kinds of survivors of all kinds of deaths.
"""

from __future__ import annotations

from tests.sdp import test_death


class AllDeathTests(test_death.DeathTests):
    """
    As there, with blocking sockets, Twisted and asyncio.
    """

    cases = tuple((each, how) for each in ("blocking", "twisted", "aio") for how in ("exit", "kill"))
