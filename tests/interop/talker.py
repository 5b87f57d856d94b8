"""
A program with one RDS socket of this package, which does what C{guest/rds.py} does with the kernel's.

C{python -m tests.interop.talker DEVICE OWN-ADDRESS PORT COMMAND ...}:

  - C{echo COUNT [SECONDS]}: answer as many messages with themselves; take none for so long at first.
  - C{take COUNT}: print the numbers of as many messages.
  - C{talk PEER PORT}: do what lines from standard input say, and print C{done} after each: C{ask COUNT SIZE},
    C{send COUNT SIZE}, C{ping}.  It ends when they do.  Of a message that is no answer it prints the number.

It also prints C{congested} and C{cleared} when it is told so.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.stdio import StandardIO
from twisted.protocols.basic import LineReceiver
from zope.interface import implementer

from twisted_ib.interfaces import IRDSProtocol
from twisted_ib.rds import listenRDS

#: How long it may take until all that was asked for is there, seconds.
PATIENCE = 600


def content(number: int, size: int) -> bytes:
    """
    @return: a message: its number, and what follows from that.
    """
    pattern = bytes((number + each) & 255 for each in range(256))
    return (number.to_bytes(4, "big") + pattern * (size // 256 + 1))[:size]


def say(*words: Any) -> None:
    """
    Print a line.
    """
    print(*words, flush=True)


@implementer(IRDSProtocol)
class Socket(DatagramProtocol):
    """
    A socket.

    @ivar expects: how many messages are to come, and C{all} fires then.
    """

    transport: Any

    def __init__(self, count: int, echoes: bool) -> None:
        """
        Nothing has come.
        """
        self.expects = count
        self.echoes = echoes
        self.all: Deferred[None] = Deferred()

    def datagramReceived(self, data: bytes, addr: Any) -> None:
        """
        One comes.
        """
        self.expects -= 1
        if self.echoes:
            say(len(data), "from", *addr)
            self.transport.write(data, addr)
        else:
            number = int.from_bytes(data[:4], "big")
            assert data == content(number, len(data)), f"{len(data)} octets are not message {number}"
            say(number)
        if not self.expects:
            self.all.callback(None)

    def destinationCongested(self, addr: Any) -> None:
        """
        The peer's port is congested.
        """
        say("congested")

    def destinationCleared(self, addr: Any) -> None:
        """
        The peer's port is no longer congested.
        """
        say("cleared")

    def peerGone(self, host: str, reason: Exception) -> None:
        """
        There is no way at the moment.
        """
        say("gone", reason)


class Talk(Socket):
    """
    A socket that talks with one peer.
    """

    def __init__(self, peer: tuple[str, int]) -> None:
        """
        @param peer: address and port.
        """
        super().__init__(0, False)
        self._peer = peer
        self._sent = 0
        self._waits: list[tuple[bytes, Deferred[None]]] = []

    def datagramReceived(self, data: bytes, addr: Any) -> None:
        """
        The peer answers, with what it was sent; or it sends a message of its own.
        """
        if not self._waits:
            say("got", int.from_bytes(data[:4], "big"))
            return
        sent, waiter = self._waits.pop(0)
        assert data == sent and addr[:2] == self._peer, f"{len(data)} octets come from {addr}"
        waiter.callback(None)

    @inlineCallbacks
    def command(self, line: str) -> Any:
        """
        Do what a line says.
        """
        what, *numbers = line.split()
        if what == "ping":
            seconds = yield self.transport.ping(self._peer[0])
            say("ping", seconds)
        else:
            count, size = map(int, numbers)
            for _ in range(count):
                data = content(self._sent, size)
                self._sent += 1
                if what == "ask":
                    waiter: Deferred[None] = Deferred()
                    self._waits.append((data, waiter))
                room = self.transport.write(data, self._peer)
                if room is not None:
                    yield room
                if what == "ask":
                    yield waiter
        say("done")


class Lines(LineReceiver):
    """
    Standard input.
    """

    delimiter = b"\n"

    def __init__(self, talk: Talk) -> None:
        """
        @param talk: who does what it says.
        """
        self._talk = talk
        self.end: Deferred[None] = Deferred()

    def lineReceived(self, line: bytes) -> None:
        """
        Do it.
        """
        self._talk.command(line.decode()).addErrback(self.end.errback)

    def connectionLost(self, reason: Any = None) -> None:
        """
        There is no more.
        """
        if not self.end.called:
            self.end.callback(None)


@inlineCallbacks
def run(reactor: Any, device: str, own: str, port: str, command: str, *rest: str) -> Any:
    """
    Do what the arguments say.
    """
    if command == "talk":
        talk = Talk((rest[0], int(rest[1])))
        listening = listenRDS(reactor, int(port), talk, own, device=device)
        say("bound", listening.getHost().port)
        lines = Lines(talk)
        StandardIO(lines, reactor=reactor)
        yield lines.end
    else:
        one = Socket(int(rest[0]), command == "echo")
        listening = listenRDS(reactor, int(port), one, own, device=device)
        say("bound", listening.getHost().port)
        if len(rest) > 1:
            one.transport.pauseProducing()
            reactor.callLater(float(rest[1]), one.transport.resumeProducing)
        yield one.all.addTimeout(PATIENCE, reactor)
        yield task.deferLater(reactor, 1, lambda: None)
    yield listening.stopListening()


def main() -> None:
    """
    Run C{run}.
    """
    task.react(run, sys.argv[1:])


if __name__ == "__main__":
    main()
