"""
What C{ib-perf} can measure: the table of its subcommands.
"""

from __future__ import annotations

from twisted_ib.tools.perfexchange import SDP, TCP, Send
from twisted_ib.tools.perfmemory import Atomic, Read, Write
from twisted_ib.tools.perfmethod import Test

TESTS: tuple[Test, ...] = (Send(), Write(), Read(), Atomic(), SDP(), TCP())
