"""
Scenarios of Twisted's reactors.
"""

from tests.suites.differential.reactors import ending, factories, opening, producing, walks, writing
from tests.suites.differential.reactors.ends import scenarios

#: Imported for the scenarios that they add.
MODULES = (ending, factories, opening, producing, walks, writing)

__all__ = ["scenarios"]
