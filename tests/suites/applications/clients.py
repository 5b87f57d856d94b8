"""
Clients of other projects, which make one request after another: C{clients.py NAME PORT SECONDS PID}.

The last line of the output is a JSON object: C{rate}, requests a second, and C{cpu}, microseconds of the
processor that one took of both processes, the server being process C{PID}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

HOST = "127.0.0.1"
BODY = b"x" * 64
#: Requests before the measurement.
WARM = 20
CLIENTS: dict[str, Callable[[int], object]] = {}


def client(function: Callable[[int], object]) -> Callable[[int], object]:
    """
    Enter it, by its name.
    """
    CLIENTS[function.__name__] = function
    return function


def _used() -> float:
    # proc_pid_stat(5): utime and stime, after the name, which may have spaces.
    with open(f"/proc/{sys.argv[4]}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK") + time.process_time()


class Measured:
    """
    The time and the processor that requests take, from the first that counts.
    """

    def __init__(self) -> None:
        self.count = 0
        self._used, self._began = _used(), time.perf_counter()
        self._end = self._began + float(sys.argv[3])

    def more(self) -> bool:
        """
        @return: Whether another request is to be made; else the result was printed.
        """
        now = time.perf_counter()
        if now < self._end or not self.count:
            self.count += 1
            return True
        each = (_used() - self._used) / self.count
        print(json.dumps({"rate": self.count / (now - self._began), "cpu": each * 1e6}), flush=True)
        return False


def _repeated(act: Callable[[], object]) -> None:
    for _ in range(WARM):
        act()
    measured = Measured()
    while measured.more():
        act()


async def _awaited(act: Callable[[], Any]) -> None:
    for _ in range(WARM):
        await act()
    measured = Measured()
    while measured.more():
        await act()


@client
def urllib(port: int) -> None:
    """
    C{urllib.request}, a connection a request.
    """
    from urllib.request import urlopen

    _repeated(lambda: urlopen(f"http://{HOST}:{port}/").read())


@client
def httpclient(port: int) -> None:
    """
    C{http.client} on one connection.
    """
    from http.client import HTTPConnection

    connection = HTTPConnection(HOST, port)

    def act() -> None:
        connection.request("GET", "/")
        connection.getresponse().read()

    _repeated(act)


@client
def rpyc(port: int) -> None:
    """
    RPyC's connection.
    """
    import rpyc

    echo = rpyc.connect(HOST, port).root.echo
    _repeated(lambda: echo(BODY))


@client
def pyro(port: int) -> None:
    """
    Pyro5's proxy.
    """
    import Pyro5.api

    proxy = Pyro5.api.Proxy(f"PYRO:echo@{HOST}:{port}")
    _repeated(lambda: proxy.echo(BODY.decode()))


@client
def xmlrpc(port: int) -> None:
    """
    The standard library's proxy.
    """
    from xmlrpc.client import ServerProxy

    proxy = ServerProxy(f"http://{HOST}:{port}/")
    _repeated(lambda: proxy.echo(BODY.decode()))


@client
def httpx(port: int) -> None:
    """
    httpx on asyncio, with its pool.
    """
    import asyncio

    import httpx

    async def main() -> None:
        async with httpx.AsyncClient() as made:
            await _awaited(lambda: made.get(f"http://{HOST}:{port}/"))

    asyncio.run(main())


@client
def aiohttp(port: int) -> None:
    """
    aiohttp's session.
    """
    import asyncio

    import aiohttp

    async def main() -> None:
        async with aiohttp.ClientSession() as session:

            async def act() -> None:
                async with session.get(f"http://{HOST}:{port}/") as response:
                    await response.read()

            await _awaited(act)

    asyncio.run(main())


@client
def treq(port: int) -> None:
    """
    treq on Twisted's reactor, with its pool.
    """
    import treq
    from twisted.internet.defer import ensureDeferred
    from twisted.internet.task import react

    async def act() -> None:
        await treq.content(await treq.get(f"http://{HOST}:{port}/"))

    react(lambda reactor: ensureDeferred(_awaited(act)))


@client
def websocket(port: int) -> None:
    """
    The client of C{websockets} on asyncio.
    """
    import asyncio

    from websockets.asyncio.client import connect

    async def main() -> None:
        async with connect(f"ws://{HOST}:{port}") as connection:

            async def act() -> None:
                await connection.send(BODY)
                await connection.recv()

            await _awaited(act)

    asyncio.run(main())


@client
def websocketThreads(port: int) -> None:
    """
    The client of C{websockets} that blocks.
    """
    from websockets.sync.client import connect

    with connect(f"ws://{HOST}:{port}") as connection:

        def act() -> None:
            connection.send(BODY)
            connection.recv()

        _repeated(act)


@client
def redis(port: int) -> None:
    """
    Values that are set and got, on one connection.
    """
    from redis import Redis

    connection = Redis(HOST, port)
    connection.set("key", BODY)
    _repeated(lambda: connection.get("key"))


@client
def smtplib(port: int) -> None:
    """
    C{smtplib} on one connection.
    """
    from smtplib import SMTP

    with SMTP(HOST, port) as connection:
        _repeated(lambda: connection.sendmail("a@example.org", ["b@example.org"], BODY))


@client
def paramiko(port: int) -> None:
    """
    Paramiko, octets that a command sends back, on one channel.
    """
    from paramiko import Transport

    with Transport((HOST, port)) as transport:
        transport.start_client()
        transport.auth_none("user")
        channel = transport.open_session()
        channel.exec_command("echo")

        def act() -> None:
            channel.sendall(BODY)
            left = len(BODY)
            while left:
                data = channel.recv(left)
                if not data:
                    raise EOFError
                left -= len(data)

        _repeated(act)


@client
def manager(port: int) -> None:
    """
    A proxy of a manager of C{multiprocessing}.
    """
    from multiprocessing.managers import BaseManager

    class Manager(BaseManager):
        pass

    Manager.register("service")
    made: Any = Manager(address=(HOST, port), authkey=b"key")
    made.connect()
    service = made.service()
    _repeated(lambda: service.echo(BODY))


if __name__ == "__main__":
    CLIENTS[sys.argv[1]](int(sys.argv[2]))
