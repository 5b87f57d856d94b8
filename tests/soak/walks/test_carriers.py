"""
Streams on each reactor and each carrier: the tests of C{tests} have some of the pairs.
"""

from __future__ import annotations

from tests.internet.stream_suite import makeStreamTests
from tests.internet.test_stream_suite import IB_REACTORS, OTHER_REACTORS, subjectFor
from tests.sdp import test_contract
from tests.sdp.zerocopy import test_reactors

_LOOPBACK = [*IB_REACTORS, *OTHER_REACTORS]

globals().update(test_contract.made(__name__, isWhole=True))
globals().update(makeStreamTests(subjectFor("lo0"), _LOOPBACK, __name__))
globals().update(test_reactors.made(__name__, "lo0", _LOOPBACK))
