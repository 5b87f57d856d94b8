"""
Servers of other projects, each with the smallest program that answers a request: C{servers.py NAME PORT}.

What each imports is its own: a program is measured with its imports.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

HOST = "127.0.0.1"
BODY = b"x" * 64
SERVERS: dict[str, Callable[[int], object]] = {}


def server(function: Callable[[int], object]) -> Callable[[int], object]:
    """
    Enter it, by its name.
    """
    SERVERS[function.__name__] = function
    return function


def _wsgi(environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))])
    return [BODY]


async def _asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-length", b"%d" % len(BODY))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})


@server
def standard(port: int) -> None:
    """
    C{http.server}, a connection a request.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)

        def log_message(self, *arguments: Any) -> None:
            pass

    ThreadingHTTPServer((HOST, port), Handler).serve_forever()


@server
def flask(port: int) -> None:
    """
    Flask's development server.
    """
    import logging

    from flask import Flask

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: BODY)
    app.run(HOST, port)


@server
def django(port: int) -> None:
    """
    Django's development server.
    """
    from django.conf import settings
    from django.core.management import execute_from_command_line
    from django.http import HttpResponse
    from django.urls import path

    urls = (path("", lambda request: HttpResponse(BODY)),)
    settings.configure(
        ALLOWED_HOSTS=[HOST], LOGGING_CONFIG=None, ROOT_URLCONF=urls, SECRET_KEY="key", USE_TZ=True
    )
    execute_from_command_line(["servers.py", "runserver", "--noreload", "--skip-checks", f"{HOST}:{port}"])


@server
def twistedWeb(port: int) -> None:
    """
    C{twisted.web} on Twisted's reactor.
    """
    from twisted.internet import reactor
    from twisted.web.resource import Resource
    from twisted.web.server import Site

    class Home(Resource):
        isLeaf = True

        def render_GET(self, request: Any) -> bytes:
            return BODY

    reactor.listenTCP(port, Site(Home()), interface=HOST)  # type: ignore[attr-defined]
    reactor.run()  # type: ignore[attr-defined]


@server
def waitress(port: int) -> None:
    """
    Waitress, with connections that stay.
    """
    import waitress

    waitress.serve(_wsgi, host=HOST, port=port, _quiet=True)


@server
def cheroot(port: int) -> None:
    """
    CherryPy's server, whose threads share connections that stay.
    """
    from cheroot.wsgi import Server

    Server((HOST, port), _wsgi, numthreads=4).start()


@server
def fakeredis(port: int) -> None:
    """
    fakeredis' server, a thread a connection.
    """
    from fakeredis import TcpFakeServer

    TcpFakeServer((HOST, port)).serve_forever()


@server
def rpyc(port: int) -> None:
    """
    RPyC's server of threads.
    """
    import rpyc
    from rpyc.utils.server import ThreadedServer

    class Service(rpyc.Service):  # type: ignore[misc, name-defined]
        def exposed_echo(self, data: bytes) -> bytes:
            return data

    ThreadedServer(Service, hostname=HOST, port=port).start()


@server
def pyro(port: int) -> None:
    """
    Pyro5's daemon.
    """
    import Pyro5.api

    @Pyro5.api.expose
    class Service:
        def echo(self, data: str) -> str:
            return data

    daemon = Pyro5.api.Daemon(host=HOST, port=port)
    daemon.register(Service, "echo")
    daemon.requestLoop()


@server
def xmlrpc(port: int) -> None:
    """
    The standard library's, a connection a request.
    """
    from xmlrpc.server import SimpleXMLRPCServer

    made = SimpleXMLRPCServer((HOST, port), logRequests=False)
    made.register_function(lambda text: text, "echo")
    made.serve_forever()


@server
def uvicorn(port: int) -> None:
    """
    Uvicorn on asyncio.
    """
    import uvicorn

    uvicorn.run(_asgi, host=HOST, port=port, log_level="critical", lifespan="off")


@server
def klein(port: int) -> None:
    """
    Klein on Twisted's reactor.
    """
    from klein import Klein

    app = Klein()

    @app.route("/")
    def home(request: Any) -> bytes:
        return BODY

    with open(os.devnull, "w") as nothing:
        app.run(HOST, port, logFile=nothing)


@server
def websocket(port: int) -> None:
    """
    The server of C{websockets} on asyncio.
    """
    import asyncio

    from websockets.asyncio.server import serve

    async def echo(connection: Any) -> None:
        async for message in connection:
            await connection.send(message)

    async def main() -> None:
        async with serve(echo, HOST, port):
            await asyncio.Event().wait()

    asyncio.run(main())


@server
def websocketThreads(port: int) -> None:
    """
    The server of C{websockets} on threads.
    """
    from websockets.sync.server import serve

    def echo(connection: Any) -> None:
        for message in connection:
            connection.send(message)

    with serve(echo, HOST, port) as made:
        made.serve_forever()


@server
def autobahn(port: int) -> None:
    """
    Autobahn on Twisted's reactor.
    """
    from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
    from twisted.internet import reactor

    class Echo(WebSocketServerProtocol):  # type: ignore[misc]
        def onMessage(self, payload: bytes, isBinary: bool) -> None:
            self.sendMessage(payload, isBinary)

    factory = WebSocketServerFactory()
    factory.protocol = Echo
    reactor.listenTCP(port, factory, interface=HOST)  # type: ignore[attr-defined]
    reactor.run()  # type: ignore[attr-defined]


@server
def aiosmtpd(port: int) -> None:
    """
    aiosmtpd's controller, whose loop has a thread.
    """
    import threading

    from aiosmtpd.controller import Controller
    from aiosmtpd.handlers import Sink

    Controller(Sink(), hostname=HOST, port=port).start()
    threading.Event().wait()


@server
def asyncssh(port: int) -> None:
    """
    AsyncSSH's server.
    """
    import asyncio

    import asyncssh

    class Open(asyncssh.SSHServer):  # type: ignore[misc, name-defined]
        def begin_auth(self, username: str) -> bool:
            return False

    async def echo(process: Any) -> None:
        while data := await process.stdin.read(1 << 16):
            process.stdout.write(data)

    async def main() -> None:
        keys = [asyncssh.generate_private_key("ssh-ed25519")]
        await asyncssh.create_server(
            Open, HOST, port, server_host_keys=keys, process_factory=echo, encoding=None
        )
        await asyncio.Event().wait()

    asyncio.run(main())


@server
def manager(port: int) -> None:
    """
    A manager of C{multiprocessing}.
    """
    from multiprocessing.managers import BaseManager

    class Service:
        def echo(self, data: bytes) -> bytes:
            return data

    class Manager(BaseManager):
        pass

    Manager.register("service", Service)
    Manager(address=(HOST, port), authkey=b"key").get_server().serve_forever()


if __name__ == "__main__":
    SERVERS[sys.argv[1]](int(sys.argv[2]))
