"""
What stands for the ends of an agent: L{tests.internet.remote.agent}.
"""

from __future__ import annotations

import marshal
import pickle
import socket
import struct
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SkipTest

from tests.internet.carriers import SDP
from tests.internet.remote.agent import METHOD, RAISED, UNSENT

_LENGTH = struct.Struct("!I")
#: How long an answer may take, in seconds.
SECONDS = 60.0


class Line:
    """
    Asks an agent, and waits for each answer.
    """

    def __init__(self, host: str, port: int) -> None:
        """
        Connect.
        """
        self._socket = socket.create_connection((host, port), SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask(self, *question: Any) -> tuple[int, Any]:
        """
        @return: the kind of the answer, and the answer.
        @raise SkipTest: the question cannot be sent.
        """
        try:
            data = pickle.dumps(question)
        except Exception as error:
            raise SkipTest("what is given to an end in another process cannot be sent there") from error
        self._socket.sendall(_LENGTH.pack(len(data)) + data)
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        kind, answer = pickle.loads(self._file.read(length))
        if kind == RAISED:
            raise answer
        return kind, answer


class Mirror:
    """
    An object there, or one that it has: an attribute is asked for, and a method called, there.
    """

    def __init__(self, line: Line, number: int, path: str = "") -> None:
        self._line, self._number, self._path = line, number, path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        path = f"{self._path}{name}"
        if name == "transport":
            return Mirror(self._line, self._number, "transport.")
        kind, answer = self._line.ask("get", self._number, path)
        if kind == METHOD:
            return lambda *arguments: self._line.ask("call", self._number, path, arguments)[1]
        if kind == UNSENT:
            raise SkipTest("an object of an end in another process cannot be sent here")
        return answer


class MirroredPort(Mirror):
    """
    A port there.

    @ivar host: its address.
    """

    def __init__(self, line: Line, number: int, host: Any) -> None:
        super().__init__(line, number)
        self._host = host

    def getHost(self) -> Any:
        """
        Return its address.
        """
        return self._host

    def stopListening(self) -> Deferred[None]:
        """
        Close it.
        """
        self._line.ask("call", self._number, "stopListening", ())
        return succeed(None)


def _described(call: Any) -> tuple[bytes, str]:
    if getattr(call, "__closure__", True) or call.__defaults__:
        raise SkipTest("what is done in a call of an end in another process belongs to the test's")
    return marshal.dumps(call.__code__), call.__module__


class RemoteSDP(SDP):
    """
    SDP whose servers are an agent's.
    """

    def __init__(self, device: str, here: str, host: str, line: Line) -> None:
        """
        @param device: the clients'.
        @param here: its address.
        @param host: the agent's.
        """
        super().__init__(device, host, device, here)
        self._line = line

    def listen(self, reactor: Any, factory: Any, port: int = 0, **options: Any) -> Any:
        if type(factory).__name__ != "Accepting" or port or options:
            raise SkipTest("a port in another process is any that is free, with protocols of the contract's")
        protocols = factory.protocols
        described = [
            (type(each).__name__, {name: _described(call) for name, call in each.on.items()})
            for each in protocols
        ]
        _, (numbers, number, host) = self._line.ask("listen", described)
        for each, there in zip(protocols, numbers, strict=True):
            # The test has it already.
            vars(each).clear()
            vars(each).update(vars(Mirror(self._line, there)))
            each.__class__ = Mirror
        return MirroredPort(self._line, number, host)

    def standing(self) -> list[str]:
        """
        @return: how things stand at the agent.
        """
        found: list[str] = self._line.ask("standing")[1]
        return found

    def server(self, reactor: Any) -> Any:
        raise SkipTest("an endpoint in another process cannot be sent here")
