"""
Streams on each reactor and each carrier: the tests of C{tests} have some of the pairs.
"""

from __future__ import annotations

from tests.hca.fabric.hardware import test_sdp
from tests.internet.stream_suite import makeStreamTests
from tests.internet.test_stream_suite import IB_REACTORS, OTHER_REACTORS, subjectFor
from tests.sdp import test_contract, test_contract_addressed
from tests.sdp.zerocopy import test_reactors

_ALL = [*IB_REACTORS, *OTHER_REACTORS]

globals().update(test_contract.made(__name__, isWhole=True))
globals().update(test_contract_addressed.made(__name__, isWhole=True))
globals().update(test_sdp.made(__name__, isWhole=True))
for _device in "shm0", "lo0":
    globals().update(makeStreamTests(subjectFor(_device), _ALL, __name__))
    globals().update(test_reactors.made(__name__, _device, _ALL))
