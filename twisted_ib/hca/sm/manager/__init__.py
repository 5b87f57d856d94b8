"""
The old name of L{twisted_ib.subnet.sm.manager}, which an earlier page of docs/ shows.
"""

from twisted_ib.subnet.sm.manager import *  # noqa: F403
