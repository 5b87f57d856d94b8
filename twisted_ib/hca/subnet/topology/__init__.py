"""
The old name of L{twisted_ib.subnet.network.topology}, which an earlier page of docs/ shows.
"""

from twisted_ib.subnet.network.topology import *  # noqa: F403
