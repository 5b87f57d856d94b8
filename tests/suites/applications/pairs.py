"""
The pairs of a server and a client.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Pair:
    """
    A pair.

    @ivar server: One of C{servers.SERVERS}; C{client}: one of C{clients.CLIENTS}.
    @ivar requirements: What is installed from PyPI.
    """

    server: str
    client: str
    requirements: tuple[str, ...] = ()


PAIRS = {
    "http.server + urllib": Pair("standard", "urllib"),
    "Flask + urllib": Pair("flask", "urllib", ("flask",)),
    "Django + urllib": Pair("django", "urllib", ("django",)),
    "waitress + http.client": Pair("waitress", "httpclient", ("waitress",)),
    "cheroot + http.client": Pair("cheroot", "httpclient", ("cheroot",)),
    "twisted.web + http.client": Pair("twistedWeb", "httpclient"),
    "fakeredis + redis": Pair("fakeredis", "redis", ("fakeredis", "redis")),
    "rpyc": Pair("rpyc", "rpyc", ("rpyc",)),
    "Pyro5": Pair("pyro", "pyro", ("Pyro5",)),
    "xmlrpc": Pair("xmlrpc", "xmlrpc"),
    "uvicorn + httpx": Pair("uvicorn", "httpx", ("uvicorn", "httpx")),
    "uvicorn + aiohttp": Pair("uvicorn", "aiohttp", ("uvicorn", "aiohttp")),
    "klein + treq": Pair("klein", "treq", ("klein", "treq")),
    "websockets": Pair("websocket", "websocket", ("websockets",)),
    "websockets, threads": Pair("websocketThreads", "websocketThreads", ("websockets",)),
    "autobahn + websockets": Pair("autobahn", "websocket", ("autobahn", "websockets")),
    "AsyncSSH + paramiko": Pair("asyncssh", "paramiko", ("asyncssh", "paramiko")),
    "aiosmtpd + smtplib": Pair("aiosmtpd", "smtplib", ("aiosmtpd",)),
    "multiprocessing's managers": Pair("manager", "manager"),
}
