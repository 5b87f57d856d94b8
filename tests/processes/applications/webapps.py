"""
Children with C{twisted.web}: a server of files, WSGI and resources, and an Agent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.task import deferLater
from twisted.python.threadpool import ThreadPool
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool, readBody
from twisted.web.iweb import IAgentEndpointFactory
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from twisted.web.static import File
from twisted.web.wsgi import WSGIResource
from zope.interface import implementer

from tests.processes.programs.child import Line, Program


class Slow(Resource):
    """
    A resource that answers in a later turn, in pieces.
    """

    isLeaf = True

    def __init__(self, reactor: Any) -> None:
        """
        @param reactor: has the later turns.
        """
        super().__init__()
        self._reactor = reactor

    def render_GET(self, request: Any) -> int:
        """
        Answer later.
        """

        def answer(left: int) -> None:
            """
            One piece.
            """
            if not left:
                request.finish()
                return
            request.write(b"piece %d\n" % left)
            self._reactor.callLater(0, answer, left - 1)

        answer(3)
        return NOT_DONE_YET

    def render_POST(self, request: Any) -> bytes:
        """
        Answer with what came: its hash.
        """
        return hashlib.sha256(request.content.read()).hexdigest().encode()


def application(environ: dict[str, Any], startResponse: Callable[..., object]) -> Iterable[bytes]:
    """
    A WSGI application: answers with method, path and the body's hash, then
    with the body.
    """
    body = environ["wsgi.input"].read()
    startResponse("200 OK", [("Content-Type", "application/octet-stream")])
    head = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {hashlib.sha256(body).hexdigest()}\n"
    return [head.encode(), body]


class WebServer(Program):
    """
    Serves C{/files}, C{/wsgi} and C{/slow}.
    """

    async def do_listen(self, endpoint: str, path: str) -> int:
        """
        Listen.

        @param endpoint: the server's endpoint string.
        @param path: the folder behind C{/files}.

        @return: the port.
        """
        pool = ThreadPool(minthreads=1, maxthreads=2)
        pool.start()
        self.reactor.addSystemEventTrigger("after", "shutdown", pool.stop)
        root = Resource()
        root.putChild(b"files", File(path))
        root.putChild(b"wsgi", WSGIResource(self.reactor, pool, application))
        root.putChild(b"slow", Slow(self.reactor))
        port: Any = await serverFromString(self.reactor, endpoint).listen(Site(root))
        return int(port.getHost().port)


@implementer(IAgentEndpointFactory)
class OneEndpoint:
    """
    Whatever the URI, the same endpoint.
    """

    def __init__(self, reactor: Any, endpoint: str) -> None:
        """
        @param endpoint: the client's endpoint string.
        """
        self._reactor = reactor
        self._endpoint = endpoint

    def endpointForURI(self, uri: Any) -> Any:
        """
        @return: the endpoint.
        """
        return clientFromString(self._reactor, self._endpoint)


class WebClient(Program):
    """
    Fetches over persistent connections.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Nothing is open.
        """
        super().__init__(reactor, line)
        self._pool = HTTPConnectionPool(reactor)

    async def do_fetch(
        self, endpoint: str, path: str, length: int = -1, headers: dict[str, str] | None = None
    ) -> dict[str, object]:
        """
        GET, or POST so many zero bytes.

        @param endpoint: the client's endpoint string.
        @param path: the path of the URL.
        @param length: how much to post; -1 is a GET.
        @param headers: what else to say.

        @return: status, length, hash and first line of the body.
        """
        from twisted.web.http_headers import Headers

        agent = Agent.usingEndpointFactory(self.reactor, OneEndpoint(self.reactor, endpoint), pool=self._pool)
        body = None if length < 0 else FileBodyProducer(BytesIO(bytes(length)))
        response: Any = await agent.request(
            b"GET" if body is None else b"POST",
            f"http://localhost{path}".encode(),
            Headers({name: [value] for name, value in (headers or {}).items()}),
            body,
        )
        content = await readBody(response)
        return {
            "status": response.code,
            "length": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "line": content[:200].partition(b"\n")[0].decode("latin-1"),
        }

    async def do_close(self) -> None:
        """
        Close the persistent connections.
        """
        await self._pool.closeCachedConnections()
        await deferLater(self.reactor, 0, lambda: None)
