"""
Tests of Twisted that look at something else than a reactor's or a transport's behaviour.

Each stands here with its reason, and for as few runs as possible.
"""

from __future__ import annotations

from twisted.python.reflect import namedAny

#: These recognise Twisted's own reactors by the name of the class.
BY_NAME = {
    "twisted.internet.test.test_fdset.ReactorFDSetTestsBuilder.test_lostFileDescriptor": (
        "recognises reactors that can not see a lost descriptor by the class's name; it never ends on other"
        " reactors with epoll"
    ),
}

#: The subject of these is a socket's descriptor.
SOCKETS = {
    "twisted.internet.test.test_tcp.StreamTransportTestsMixin.test_closePeerOnEMFILE": (
        "counts the descriptors that accept() uses"
    ),
    "twisted.internet.test.test_tcp.AdoptStreamConnectionTestsBuilder": (
        "takes the descriptor out of a connection and adopts it"
    ),
    "twisted.test.test_tcp.ProperlyCloseFilesTests.test_properlyCloseFiles": (
        "expects EBADF from the closed socket of a connection"
    ),
}


def leaveOut(names: dict[str, str]) -> None:
    """
    Have trial skip tests.

    @param names: A method or a class, and the reason.
    """
    for name, reason in names.items():
        namedAny(name).skip = reason
