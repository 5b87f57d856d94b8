"""
The old name of L{twisted_ib.verbs.pyverbs}: programs that were written by an earlier README import it.
"""

from twisted_ib.verbs.pyverbs import *  # noqa: F403
from twisted_ib.verbs.pyverbs import enums as enums
