"""
Scenarios of C{asyncio}.
"""

from tests.suites.differential.loops import buffers, ending, opening, servers, streams, walks, writing
from tests.suites.differential.loops.ends import scenarios

#: Imported for the scenarios that they add.
MODULES = (buffers, ending, opening, servers, streams, walks, writing)

__all__ = ["scenarios"]
