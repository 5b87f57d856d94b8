"""
Ends of a connection, one of which dies.

C{python -m tests.sdp.dying END ...}: C{blocking}, C{twisted} and C{aio} listen, print their
port, send C{data} for C{hello}, and print how the connection ended.  C{late} is as C{blocking}, sends more
when a line of its input says that the peer is gone, and prints how that ends; C{plain} does so over TCP;
C{early} sends first.
C{dead PORT HOW WHAT} connects, does WHAT, prints a line, and ends: by C{os._exit}, in order, or when it is
killed.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from typing import Any

from tests.support.waiting import HANG_SECONDS

HOST = "127.0.0.1"


def blocking() -> None:
    """
    A socket: b"" or the error's number.
    """
    from twisted_ib import socket

    with socket.create_server((HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    count, said = 0, ""
    while not said:
        try:
            data = connection.recv(1 << 20)
        except OSError as error:
            said = type(error).__name__
            break
        count += len(data)
        if data == b"hello":
            connection.sendall(b"data")
        said = "" if data else "end"
    print(count, said, flush=True)


def early(module: str = "twisted_ib.socket") -> None:
    """
    A socket that sends before its peer does anything, and says when it has.
    """
    socket: Any = importlib.import_module(module)
    with socket.create_server((HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    connection.sendall(b"data")
    print("sent", flush=True)
    print(said(connection.recv, 9), flush=True)


def said(call: Any, *arguments: Any) -> str:
    """
    Return what a call returns, or the name of its error.
    """
    try:
        return repr(call(*arguments))
    except OSError as error:
        return type(error).__name__


def late(module: str = "twisted_ib.socket") -> None:
    """
    A socket that sends behind the end of its peer's process.
    """
    socket: Any = importlib.import_module(module)
    with socket.create_server((HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    count = 0
    while data := connection.recv(1 << 20):
        count += len(data)
    # Who asks for nothing drives nothing: what the end of the process leaves is known when all is asked for.
    input()
    ended = [said(connection.recv, 9), said(connection.send, b"more")]
    while (again := said(connection.send, b"x")) == "1" and module == "socket":
        # The answer of TCP may be on its way.
        pass
    print(count, *ended, again, said(connection.recv, 9), said(connection.send, b"x"), flush=True)


def plain() -> None:
    """
    As L{late}, over TCP.
    """
    late("socket")


def twisted() -> None:
    """
    A protocol: C{ConnectionDone} or C{ConnectionLost}.
    """
    from twisted.application.reactors import installReactor

    installReactor("ib")
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import serverFromString
    from twisted.internet.protocol import Factory, Protocol

    reactor: Any = installed

    class Survivor(Protocol):
        count = 0

        def dataReceived(self, data: bytes) -> None:
            self.count += len(data)
            if data == b"hello":
                self.transport.write(b"data")

        def connectionLost(self, reason: Any = None) -> None:
            print(self.count, {"ConnectionDone": "end"}.get(reason.type.__name__, "ConnectionResetError"))
            reactor.stop()

    listening = serverFromString(reactor, f"sdp:0:interface={HOST}").listen(Factory.forProtocol(Survivor))
    listening.addCallback(lambda port: print(port.getHost().port, flush=True))
    reactor.run()


def aio() -> None:
    """
    A protocol: an exception or none.
    """
    from twisted_ib.aio import new_event_loop

    loop = new_event_loop()
    over = loop.create_future()

    class Survivor(asyncio.Protocol):
        count = 0

        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.count += len(data)
            if data == b"hello":
                self.transport.write(b"data")

        def connection_lost(self, error: Exception | None) -> None:
            over.set_result(f"{self.count} {'ConnectionResetError' if error else 'end'}")

    async def main() -> None:
        server = await loop.create_server(Survivor, HOST, 0, provider="sdp")
        print(server.sockets[0].getsockname()[1], flush=True)
        print(await over, flush=True)

    loop.run_until_complete(main())
    loop.close()


def halfOpen(provider: str) -> None:
    """
    A protocol that stays open behind the end and writes, first once, and then again.
    """
    from twisted_ib.aio import new_event_loop

    loop = new_event_loop()
    ended, over = loop.create_future(), loop.create_future()

    class Survivor(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def eof_received(self) -> bool:
            ended.set_result(self.transport)
            return True

        def connection_lost(self, error: Exception | None) -> None:
            over.set_result(type(error).__name__)

    async def main() -> None:
        server = await loop.create_server(Survivor, HOST, 0, provider=provider)
        print(server.sockets[0].getsockname()[1], flush=True)
        transport = await ended
        # The other process has ended then, of which the device may not know yet.
        await loop.run_in_executor(None, input)
        while provider == "sdp" and transport._stream.queuePair.path is not None:
            await asyncio.sleep(0.001)
        transport.write(b"more")
        for _ in range(100):
            await asyncio.sleep(0)
        said = over.done(), transport.is_closing()
        transport.write(b"x")
        print(*said, await over, flush=True)

    loop.run_until_complete(main())
    loop.close()


def dead(port: str, how: str, what: str, module: str = "twisted_ib.socket") -> None:
    """
    The end that dies.
    """
    socket: Any = importlib.import_module(module)
    connection = socket.create_connection((HOST, int(port)))
    if what == "pending":
        connection.setblocking(False)
        count = 0
        try:
            while True:
                count += connection.send(bytes(1 << 16))
        except BlockingIOError:
            print(count, flush=True)
    else:
        if what == "early":
            # All is there before this end looks for the first time.
            input()
            connection.settimeout(HANG_SECONDS)
            assert connection.recv(2) == b"da"
        else:
            connection.sendall(b"x" if what == "idle" else b"hello")
        if what == "read":
            assert connection.recv(100) == b"data"
        elif what == "unread":
            assert connection.recv(2) == b"da"
        elif what == "closed":
            connection.close()
        elif what == "shut":
            connection.shutdown(socket.SHUT_WR)
        print("done", flush=True)
    if how == "exit":
        os._exit(0)
    if how != "order":
        signal.pause()


def callback(port: str, how: str, what: str) -> None:
    """
    One that dies in C{dataReceived}: C{read}, or C{written} behind a write.
    """
    from twisted.application.reactors import installReactor

    installReactor("ib")
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import clientFromString
    from twisted.internet.protocol import Factory, Protocol

    reactor: Any = installed

    class Dying(Protocol):
        def connectionMade(self) -> None:
            self.transport.write(b"hello")

        def dataReceived(self, data: bytes) -> None:
            if what == "written":
                self.transport.write(b"never leaves")
            print("done", flush=True)
            if how == "exit":
                os._exit(0)
            signal.pause()

    clientFromString(reactor, f"sdp:{HOST}:{port}").connect(Factory.forProtocol(Dying))
    reactor.run()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
