"""
Children with AMP, Perspective Broker and a chat of lines.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.protocols import amp
from twisted.protocols.basic import LineReceiver
from twisted.spread import pb

from tests.processes.programs.child import Line, Program


class TooLarge(Exception):
    """
    The exception that the AMP server raises, to be seen on the other side.
    """


class Sum(amp.Command):
    """
    Adds, and returns a large value besides.
    """

    arguments = [(b"a", amp.Integer()), (b"b", amp.Integer())]
    response = [(b"total", amp.Integer()), (b"blob", amp.String())]
    errors = {TooLarge: b"TOO_LARGE"}


class Calculator(amp.AMP):
    """
    The AMP server's side.
    """

    @Sum.responder
    def sum(self, a: int, b: int) -> dict[str, object]:
        """
        Add.
        """
        if a > 1000:
            raise TooLarge(str(a))
        return {"total": a + b, "blob": bytes([b % 256]) * 65000}


class Mirror(pb.Root):
    """
    The Perspective Broker server's root.
    """

    def remote_reverse(self, text: str) -> str:
        """
        @return: the text from its end.
        """
        return text[::-1]

    def remote_callBack(self, reference: Any, text: str) -> Deferred[Any]:
        """
        Call an object of the client, and add to its answer.
        """
        done: Deferred[Any] = reference.callRemote("shout", text)
        return done.addCallback(lambda answer: answer + "!")

    def remote_fail(self) -> None:
        raise pb.Error("as asked")


class Shouter(pb.Referenceable):
    """
    The client's object.
    """

    def remote_shout(self, text: str) -> str:
        """
        @return: the text in capitals.
        """
        return text.upper()


class Chatter(LineReceiver):
    """
    One guest of the chat, at the server: what it says goes to all others.
    """

    delimiter = b"\n"
    name = b""

    def lineReceived(self, line: bytes) -> None:
        """
        The first line is the guest's name.
        """
        guests: set[Chatter] = self.factory.guests
        if not self.name:
            self.name = line
            guests.add(self)
            self.sendLine(b"welcome " + line)
            return
        for guest in guests - {self}:
            guest.sendLine(self.name + b": " + line)

    def connectionLost(self, reason: object = None) -> None:
        """
        The guest has gone: tell the others.
        """
        guests: set[Chatter] = self.factory.guests
        guests.discard(self)
        for guest in guests:
            guest.sendLine(self.name + b" has gone")


class Guest(LineReceiver):
    """
    One guest of the chat, at the client.
    """

    delimiter = b"\n"

    def __init__(self, program: Talker) -> None:
        """
        @param program: told each line.
        """
        self._program = program

    def lineReceived(self, line: bytes) -> None:
        """
        Somebody has said something.
        """
        self._program.tell("line", text=line.decode())


class Talker(Program):
    """
    Server or client of any of them.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Nothing is open.
        """
        super().__init__(reactor, line)
        self._guest: Any = None

    async def do_listen(self, endpoint: str, kind: str) -> int:
        """
        Listen.

        @param endpoint: the server's endpoint string.
        @param kind: C{amp}, C{pb} or C{chat}.

        @return: the port.
        """
        factory: Any
        if kind == "amp":
            factory = Factory.forProtocol(Calculator)
        elif kind == "pb":
            factory = pb.PBServerFactory(Mirror())
        else:
            factory = Factory.forProtocol(Chatter)
            factory.guests = set()
        port: Any = await serverFromString(self.reactor, endpoint).listen(factory)
        return int(port.getHost().port)

    async def do_amp(self, endpoint: str) -> list[object]:
        """
        @return: the totals and the lengths of the values of 20 calls made at
            once, and the name of the error of another.
        """
        connected: Any = await clientFromString(self.reactor, endpoint).connect(Factory.forProtocol(amp.AMP))
        calls = [connected.callRemote(Sum, a=number, b=2) for number in range(20)]
        answers = [await call for call in calls]
        error = ""
        try:
            await connected.callRemote(Sum, a=2000, b=1)
        except TooLarge as large:
            error = type(large).__name__
        connected.transport.loseConnection()
        return [
            [answer["total"] for answer in answers],
            [len(answer["blob"]) for answer in answers],
            error,
        ]

    async def do_pb(self, endpoint: str) -> list[object]:
        """
        @return: a text from the other side, one that went through an object
            here, and what an error is called.
        """
        factory: Any = pb.PBClientFactory()
        await clientFromString(self.reactor, endpoint).connect(factory)
        root = await factory.getRootObject()
        answers = [
            await root.callRemote("reverse", "abc" * 1000),
            await root.callRemote("callBack", Shouter(), "hello"),
        ]
        try:
            await root.callRemote("fail")
        except pb.RemoteError as error:
            answers.append(str(error))
        factory.disconnect()
        return answers

    async def do_enter(self, endpoint: str, name: str) -> None:
        """
        Join the chat.

        @param endpoint: the client's endpoint string.
        @param name: our own name.
        """
        self._guest = await clientFromString(self.reactor, endpoint).connect(
            Factory.forProtocol(lambda: Guest(self))
        )
        self._guest.sendLine(name.encode())

    def do_say(self, text: str) -> None:
        """
        Say something to the others.
        """
        self._guest.sendLine(text.encode())

    def do_leave(self) -> None:
        """
        Leave the chat.
        """
        self._guest.transport.loseConnection()
