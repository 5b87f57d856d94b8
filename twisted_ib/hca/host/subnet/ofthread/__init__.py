"""
The old name of L{twisted_ib.subnet.hosting.ofthread}, which an earlier page of docs/ shows.
"""

from twisted_ib.subnet.hosting.ofthread import *  # noqa: F403
