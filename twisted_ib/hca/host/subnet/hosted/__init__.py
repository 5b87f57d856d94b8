"""
The old name of L{twisted_ib.subnet.hosting.hosted}, which an earlier page of docs/ shows.
"""

from twisted_ib.subnet.hosting.hosted import *  # noqa: F403
