"""
Scenarios of C{socket}, C{select} and C{ssl}: two ends in one process.
"""

from tests.suites.differential.sockets import opening, states, streams, tls, waiting, walks
from tests.suites.differential.sockets.ends import scenarios

#: What is imported adds its scenarios.
MODULES = (opening, states, streams, tls, waiting, walks)

__all__ = ["MODULES", "scenarios"]
