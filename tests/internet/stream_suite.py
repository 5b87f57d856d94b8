"""
Run Twisted's own stream-transport tests against any stream transport.

Twisted keeps most of its transport tests in mixins which ask a subclass how to
listen and how to connect.  This module supplies those subclasses for a
L{StreamSubject}, so that a transport such as SDP can be held to exactly what
TCP is held to.  Use it from a test module::

    from tests.internet.stream_suite import StreamSubject, makeStreamTests
    globals().update(makeStreamTests(mySubject, ["package.module.MyReactor"]))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet import interfaces
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.test import test_newtls, test_tcp
from twisted.internet.test.connectionmixins import (
    ConnectionTestsMixin,
    EndpointCreator,
    StreamClientTestsMixin,
)
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.internet.test.test_tcp import (
    AbortConnectionMixin,
    MyClientFactory,
    MyServerFactory,
    StreamTransportTestsMixin,
    TCPConnectionTestsBuilder,
    WriteSequenceTestsMixin,
)
from twisted.internet.test.test_tls import (
    ContextGeneratingMixin,
    StartTLSClientEndpoint,
    TLSMixin,
)
from zope.interface import implementer

from tests.internet.stream_extra import ExtraStreamTestsMixin
from tests.support.waiting import HANG_SECONDS


@dataclass
class StreamSubject:
    """
    A stream transport's properties that the suite needs.

    @ivar name: A word which goes into the names of the test cases.
    @ivar endpoints: Makes connected pairs of endpoints.
    @ivar listen: C{(reactor, factory) -> IListeningPort}, the classic call.
    @ivar connect: C{(reactor, address, factory) -> IConnector}, likewise;
        C{address} is the port's C{getHost()}, or L{None} for one on which
        nobody listens.
    @ivar startMessage: C{(port, prefix) -> str}, what is logged at the start.
    @ivar stopMessage: C{(port) -> str}, what is logged at the end.
    @ivar requiredInterfaces: Interfaces that the reactor must provide.
    @ivar skips: Test name to reason, for what this transport cannot do.
    """

    name: str
    endpoints: EndpointCreator
    listen: Callable[[Any, Any], Any] | None = None
    connect: Callable[[Any, Any, Any], Any] | None = None
    startMessage: Callable[[Any, str], str] | None = None
    stopMessage: Callable[[Any], str] | None = None
    requiredInterfaces: Iterable[Any] = ()
    skips: dict[str, str] = field(default_factory=dict)


class _TLSCreator(EndpointCreator, ContextGeneratingMixin):
    """
    The subject's endpoints with TLS wrapped around them.

    @ivar start: If true the client side uses C{startTLS} on the bare
        transport, otherwise the wrapping endpoint; the server side wraps the
        factory in both cases.
    """

    def __init__(self, inner: EndpointCreator, start: bool):
        self.inner = inner
        self.start = start

    def server(self, reactor: Any) -> Any:
        from twisted.protocols.tls import TLSMemoryBIOFactory

        inner, context = self.inner.server(reactor), self.getServerContext()

        @implementer(interfaces.IStreamServerEndpoint)
        class Wrapped:
            def listen(self, factory: Any) -> Any:
                return inner.listen(TLSMemoryBIOFactory(context, False, factory))

        return Wrapped()

    def client(self, reactor: Any, serverAddress: Any) -> Any:
        inner = self.inner.client(reactor, serverAddress)
        if self.start:
            return StartTLSClientEndpoint(inner, self.getClientContext())
        from twisted.internet.ssl import CertificateOptions

        return wrapClientTLS(_Insecure(CertificateOptions()), inner)


@implementer(interfaces.IOpenSSLClientConnectionCreator)
class _Insecure:
    """
    Make TLS client connections which check nothing.
    """

    def __init__(self, options: Any):
        self.options = options

    def clientConnectionForTLS(self, tlsProtocol: Any) -> Any:
        from OpenSSL import SSL

        return SSL.Connection(self.options.getContext(), None)


def _builders(subject: StreamSubject) -> Iterable[type]:
    """
    Make the builder classes for a subject.
    """
    required = tuple(subject.requiredInterfaces)

    class Subject(ReactorBuilder):
        requiredInterfaces = required
        endpoints = subject.endpoints
        timeout = HANG_SECONDS

        def setUp(self) -> None:
            ReactorBuilder.setUp(self)
            reason = subject.skips.get(self._testMethodName)
            if reason:
                self.skipTest(reason)

    class Connection(ConnectionTestsMixin, Subject):
        """3 tests."""

        # Twisted's mixin has this attribute too, hence in every class.
        endpoints = subject.endpoints

    class Abort(AbortConnectionMixin, Subject):
        """11 tests."""

        endpoints = subject.endpoints

    class Extra(ExtraStreamTestsMixin, Subject):
        """5 tests."""

    class Transport(Subject):
        """
        TCP's connection tests: their endpoints are named in the code, so they
        are replaced while a test runs.
        """

        def setUp(self) -> None:
            super().setUp()
            self.patch(test_tcp, "TCPCreator", lambda: subject.endpoints)

    for name in (
        "test_resumeProducing",
        "test_resumeProducingWhileDisconnecting",
        "test_resumeProducingWhileDisconnected",
        "test_connectionLostAfterPausedTransport",
        "test_doubleHalfClose",
    ):
        setattr(Transport, name, getattr(TCPConnectionTestsBuilder, name))

    class WriteSequence(WriteSequenceTestsMixin, Subject):
        """4 tests."""

        requiredInterfaces = required

        def getConnectedClientAndServer(self, reactor: Any, interface: str, family: int) -> Deferred[Any]:
            server, client = MyServerFactory(), MyClientFactory()
            for factory in (server, client):
                factory.protocolConnectionMade = Deferred()
                factory.protocolConnectionLost = Deferred()
            result: Deferred[Any] = Deferred()
            lost = gatherResults([client.protocolConnectionLost, server.protocolConnectionLost])
            lost.addBoth(lambda ignored: reactor.stop())

            async def steps() -> None:
                port = await subject.endpoints.server(reactor).listen(server)
                subject.endpoints.client(reactor, port.getHost()).connect(client)
                protocols = await gatherResults(
                    [client.protocolConnectionMade, server.protocolConnectionMade]
                )
                result.callback((*protocols, port))

            reactor.callWhenRunning(lambda: Deferred.fromCoroutine(steps()))
            return result

    kinds = [Connection, Abort, Extra, Transport, WriteSequence]

    if subject.listen is not None and subject.connect is not None:

        class Client(StreamClientTestsMixin, Subject):
            """5 tests."""

            _address = None

            def listen(self, reactor: Any, factory: Any) -> Any:
                port = subject.listen(reactor, factory)
                self._address = port.getHost()
                return port

            def connect(self, reactor: Any, factory: Any) -> Any:
                return subject.connect(reactor, self._address, factory)

        kinds.append(Client)

        if subject.startMessage is not None and subject.stopMessage is not None:

            class Port(StreamTransportTestsMixin, Subject):
                """3 tests."""

                def getListeningPort(self, reactor: Any, factory: Any) -> Any:
                    return subject.listen(reactor, factory)

                def connectToListener(self, reactor: Any, address: Any, factory: Any) -> Any:
                    return subject.connect(reactor, address, factory)

                def getExpectedStartListeningLogMessage(self, port: Any, prefix: str) -> str:
                    return subject.startMessage(port, prefix)

                def getExpectedConnectionLostLogMsg(self, port: Any) -> str:
                    return subject.stopMessage(port)

            kinds.append(Port)

    for start, label in ((True, "StartTLS"), (False, "WrapTLS")):
        creator = _TLSCreator(subject.endpoints, start)

        class TLSConnection(ConnectionTestsMixin, Subject):
            endpoints = creator

        class TLSAbort(AbortConnectionMixin, Subject):
            endpoints = creator

        TLSConnection.__name__ = label + "Connection"
        TLSAbort.__name__ = label + "Abort"
        kinds += [TLSConnection, TLSAbort]

    class TLSProducer(Subject, TLSMixin, ContextGeneratingMixin):
        """
        3 tests: C{startTLS} on the subject's own transports.

        C{test_producerSSLFromStart} is left out: it looks for the structure
        which C{connectSSL} builds, and endpoints add a layer to that.
        """

        requiredInterfaces = required
        startTLSAfterRegisterProducer = test_newtls.ProducerTestsMixin.startTLSAfterRegisterProducer

        def setUp(self) -> None:
            super().setUp()
            self.patch(test_newtls, "TCPCreator", lambda: subject.endpoints)
            creator = _TLSCreator(subject.endpoints, True)
            self.patch(test_newtls, "StartTLSClientCreator", lambda: creator)

    for name in (
        "test_producerAfterStartTLS",
        "test_startTLSAfterRegisterProducerStreaming",
        "test_startTLSAfterRegisterProducerNonStreaming",
    ):
        setattr(TLSProducer, name, getattr(test_newtls.ProducerTestsMixin, name))

    kinds.append(TLSProducer)
    return kinds


def makeStreamTests(
    subject: StreamSubject, reactors: Iterable[str] | None = None, module: str = __name__
) -> dict[str, type]:
    """
    Make the test cases for a subject under each of some reactors.

    @param subject: The transport under test.
    @param reactors: Dotted names of reactor classes; by default those which
        Twisted would use.
    @param module: The module whose globals they are for; trial finds them there by name.
    @return: Test case classes by name, for a test module's globals.
    """
    made: dict[str, type] = {}
    for kind in _builders(subject):
        kind.__name__ = f"{subject.name}{kind.__name__}Tests"
        kind.__qualname__ = kind.__name__
        if reactors is not None:
            kind._reactors = list(reactors)
        for name, case in kind.makeTestCaseClasses().items():
            case.__module__ = module
            case.__name__ = case.__qualname__ = re.sub(r"\W", "_", name)
            made[case.__name__] = case
    return made


__all__ = ["StreamSubject", "makeStreamTests"]
