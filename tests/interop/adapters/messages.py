"""
The contracts of messages and of streams, and Twisted's own tests of streams on C{ib:} and C{sdp:}, on the
guest's adapter, or between that and a software HCA or another adapter, both ends in one process; or the
contracts of streams with another guest: run by trial in the guest.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from twisted.internet.test.connectionmixins import ConnectableProtocol
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SkipTest

HAS_TLS = find_spec("OpenSSL") is not None
if not HAS_TLS:
    # The guest's image has none, and the transports of streams import this for C{startTLS} alone.
    sys.modules["twisted.internet._newtls"] = lacking = ModuleType("_newtls")
    vars(lacking)["startTLS"] = None

from tests.internet.carriers import SDP  # noqa: E402
from tests.internet.stream_suite import makeStreamTests  # noqa: E402
from tests.internet.test_stream_suite import IB_REACTORS, subjectFor  # noqa: E402
from tests.rdma.test_reactors import OF_ADAPTERS, RDMATestsMixin, streamTests  # noqa: E402
from twisted_ib.hca.device import device as devices  # noqa: E402
from twisted_ib.hca.device.registry import addressOf, kindOf, openFabric  # noqa: E402

#: That of software, where it is not this one.
NAMESPACE = os.environ["NAMESPACE_OF_SOFTWARE"]
#: Device, address, and address and port of the agent, where the servers are in another guest.
AGENT = os.environ.get("AGENT_OF_STREAMS", "")
_CLONE_NEWNET = 0x40000000


def _lacking(reason: str) -> Any:
    def test(self: object) -> None:
        raise SkipTest(reason)

    return test


def _openApart(name: str, *arguments: Any, **options: Any) -> Any:
    # Sockets belong to the network namespace in which they are made.
    if kindOf(name).name == "hardware":
        return openFabric(name, *arguments, **options)
    _enter(_THERE)
    try:
        return openFabric(name, *arguments, **options)
    finally:
        _enter(_HERE)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


if NAMESPACE:
    _HERE, _THERE = (
        os.open(each, os.O_RDONLY | os.O_CLOEXEC) for each in ("/proc/self/ns/net", f"/run/netns/{NAMESPACE}")
    )
    devices.openFabric = _openApart
    # For macOS alone: after a client has ended its server writes, which over RoCE may not be made
    # yet, as that waits for the answer to the reply (RTU).
    ConnectableProtocol.writeToDetectPeerDisconnection = lambda self: None


class Contracts:
    """
    A base of those of streams.
    """


def _contracts(device: str, host: str, client: str) -> dict[str, type]:
    # With the tests of TLS, which are among them.
    from tests.sdp.test_contract import IB, casesOf

    carrier = SDP(device, host, client, str(addressOf(client)) if client else "")
    found = casesOf(__name__, carrier, [IB], Contracts)
    if client and kindOf(device).name == "roce":
        absent = _lacking("where no process has software's address nobody refuses")
        for each in found.values():
            if hasattr(each, "test_refused"):
                setattr(each, "test_refused", absent)  # noqa: B010
    return found


def _make(device: str, host: str, kind: str, client: str = "") -> dict[str, type]:
    """
    @param device: the server's.
    @param host: its address.
    @param kind: that of the adapter, as C{rdma link add} has it.
    @param client: the client's device, where that is another.

    @return: the test cases, by name.
    """
    members: dict[str, Any] = {"device": device, "address": host}
    if kindOf(device).name == "hardware" and kind == "siw":
        # librdmacm's end has no private data, which would say that it is a failure; a server of software has
        # refused the request itself, and so does rxe, whose queue pair is in error then.
        members["failure"] = "ConnectionDone"
    if client and kind != "siw":
        members.update(test_numberTaken=_lacking("no port is both ends' where their addresses are apart"))
    members.update(clientDevice=client, _reactors=IB_REACTORS, __module__=__name__)
    found: dict[str, type] = {}
    skips = dict(OF_ADAPTERS)
    if kind == "siw" and client and kindOf(client).name != "hardware":
        # What TCP has not taken yet of a longer one, as the adapter ends the connection, goes on to nobody.
        skips["test_resumeProducingThrows"] = skips["test_fullWriteBuffer"]
    if kind == "siw":
        everything = _lacking("siw has no immediate data, and no atomics")
        members.update(test_everything=everything, isOverTCP=True)
    found.update(makeStreamTests(subjectFor(device, host, client), IB_REACTORS, __name__))
    case: Any = type("RDMATests", (RDMATestsMixin, ReactorBuilder), members)
    found.update(case.makeTestCaseClasses())
    found.update(streamTests(device, IB_REACTORS, __name__, host, skips, client))
    if HAS_TLS:
        return found | _contracts(device, host, client)
    return {name: each for name, each in found.items() if "TLS" not in name}


def _apart(device: str, host: str, there: str, port: str) -> dict[str, type]:
    """
    @param device: this guest's.
    @param host: its address.
    @param there: that of the other guest, whose agent has the servers, at C{port}.

    @return: the contracts of streams between the two.
    """
    from tests.internet.remote.cases import remoteCases

    return remoteCases(__name__, device, host, there, int(port))


if AGENT:
    globals().update(_apart(*AGENT.split()))
else:
    globals().update(_make(*os.environ["DEVICE_OF_MESSAGES"].split()))
