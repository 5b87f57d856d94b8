"""
SDP over iWARP is TCP to applications: the tests of L{tests.sdp.test_contract}, on real TCP connections.
"""

from __future__ import annotations

from tests.internet.carriers import SDP
from tests.sdp.test_contract import EPOLL, IB, casesOf
from tests.support.rundirectory import OwnDirectory

globals().update(casesOf(__name__, SDP("iwarp0"), [IB, EPOLL], OwnDirectory))
