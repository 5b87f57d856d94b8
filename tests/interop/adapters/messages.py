"""
The contract of messages, and Twisted's own tests of streams on C{ib:}, and on C{sdp:} over siw, on the
guest's adapter, or between that and a software HCA, both ends in one process: run by trial in the guest.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SkipTest

HAS_TLS = find_spec("OpenSSL") is not None
if not HAS_TLS:
    # The guest's image has none, and the transports of streams import this for C{startTLS} alone.
    sys.modules["twisted.internet._newtls"] = lacking = ModuleType("_newtls")
    vars(lacking)["startTLS"] = None

from tests.internet.stream_suite import makeStreamTests  # noqa: E402
from tests.internet.test_stream_suite import IB_REACTORS, subjectFor  # noqa: E402
from tests.rdma.test_reactors import OF_ADAPTERS, RDMATestsMixin, streamTests  # noqa: E402


def _lacking(test: object) -> None:
    raise SkipTest("siw has no immediate data, and no atomics")


def _make(device: str, host: str, kind: str, client: str = "") -> dict[str, type]:
    """
    @param device: the server's.
    @param host: its address.
    @param kind: that of the adapter, as C{rdma link add} has it.
    @param client: the client's device, where that is another.

    @return: the test cases, by name.
    """
    # librdmacm's end has no private data, which would say that it is a failure.
    members: dict[str, Any] = {"device": device, "address": host, "failure": "ConnectionDone"}
    members.update(clientDevice=client, _reactors=IB_REACTORS, __module__=__name__)
    found: dict[str, type] = {}
    if kind == "siw":
        members.update(test_everything=_lacking, isOverTCP=True)
        found.update(makeStreamTests(subjectFor(device, host, client), IB_REACTORS, __name__))
    case: Any = type("RDMATests", (RDMATestsMixin, ReactorBuilder), members)
    found.update(case.makeTestCaseClasses())
    found.update(streamTests(device, IB_REACTORS, __name__, host, OF_ADAPTERS, client))
    return {name: each for name, each in found.items() if HAS_TLS or "TLS" not in name}


globals().update(_make(*os.environ["DEVICE_OF_MESSAGES"].split()))
