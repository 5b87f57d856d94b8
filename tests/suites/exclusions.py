"""
Tests of Twisted that look at something else than a reactor's or a transport's behaviour.

Each stands here with its reason, and for as few runs as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.python.reflect import namedAny

#: These recognise Twisted's own reactors by the name of the class.
BY_NAME = {
    "twisted.internet.test.test_fdset.ReactorFDSetTestsBuilder_IBReactorTests.test_lostFileDescriptor": (
        "recognises reactors that cannot see a lost descriptor by the class's name; it never ends on other"
        " reactors with epoll"
    ),
}

#: The subject of these is a socket's descriptor.
SOCKETS = {
    "twisted.internet.test.test_tcp.AdoptStreamConnectionTestsBuilder_IBReactorTests": (
        "takes the descriptor out of a connection and adopts it"
    ),
}

_PLAIN = "connects a plain socket to a port, and the rules say that the port is one of SDP alone"
_EMFILE = "counts the descriptors that accept() uses"
#: Under C{use sdp}: the other end knows no SDP, or the test is about descriptors.
NO_TCP = {
    f"twisted.internet.test.test_tcp.TCPPortTestsBuilder_IBReactorTests.test_{test}": _PLAIN
    for test in (
        "buildProtocolIPv4Address",
        "buildProtocolIPv6Address",
        "serverGetHostOnIPv4",
        "serverGetHostOnIPv6",
        "serverGetPeerOnIPv4",
        "serverGetPeerOnIPv6",
    )
} | {
    f"twisted.internet.test.{builder}_IBReactorTests.test_closePeerOnEMFILE": _EMFILE
    for builder in (
        "test_tcp.TCPPortTestsBuilder",
        "test_tcp.TCPFDPortTestsBuilder",
        "test_tls.TLSPortTestsBuilder",
    )
}
for _class, _tests in (
    (
        "CmdLineClientTests",
        "exec localToRemoteForwarding remoteToLocalForwarding runWithCompressionSpecified runWithLogFile"
        " runWithNoHostAlgorithmsSpecified",
    ),
    (
        "OpenSSHClientForwardingTests",
        "exec localToRemoteForwarding localToRemoteForwardingV6 remoteToLocalForwarding",
    ),
    ("OpenSSHClientRekeyTests", "clientRekey"),
    (
        "OpenSSHKeyExchangeTests",
        "CURVE25519_SHA256 DH_GROUP14 DH_GROUP_EXCHANGE_SHA1 DH_GROUP_EXCHANGE_SHA256 ECDHSHA256 ECDHSHA384"
        " ECDHSHA521 MLKEM768X25519_SHA256",
    ),
):
    for _test in _tests.split():
        NO_TCP[f"twisted.conch.test.test_conch.{_class}.test_{_test}"] = (
            "runs a client without SDP in a process, and the rules say that the port is one of SDP alone"
        )
#: The sets, by name.
SETS = {"by name": BY_NAME, "sockets": SOCKETS, "no tcp": NO_TCP}
#: Where tests wait for what is of one of Twisted's classes, and mean any client: the class that they miss.
WIDER = {"treq.test.test_treq_integration.Client": "twisted_ib.switch.serverclient.RedirectedClient"}


def widen(names: dict[str, str]) -> None:
    """
    Have C{isinstance} accept another class.

    @param names: The name that tests use, and the other class.
    """
    for name, other in names.items():
        module, _, short = name.rpartition(".")
        setattr(namedAny(module), short, (namedAny(name), namedAny(other)))


def leaveOut(names: dict[str, str], loaded: Sequence[str]) -> None:
    """
    Have trial skip tests; of a test that other classes inherit from the same place, only the one named.

    @param names: A method or a class, and the reason.
    @param loaded: The names that trial loads: nothing else is looked at.
    """
    for name, reason in names.items():
        if not any(f"{name}.".startswith(f"{each}.") or each.startswith(f"{name}.") for each in loaded):
            continue
        found: Any = namedAny(name)
        if isinstance(found, type):
            found.skip = reason  # type: ignore[attr-defined]
            continue
        owner, _, method = name.rpartition(".")
        setattr(namedAny(owner), method, _skipped(reason))


def _skipped(reason: str) -> Any:
    """
    @return: A test that is skipped.
    """

    def test(self: Any) -> None:
        """
        Not run.
        """

    test.skip = reason  # type: ignore[attr-defined]
    return test
