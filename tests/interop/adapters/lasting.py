"""
Sides of connections that last, on either side of the lab, until something ends them.

C{lasting.py echo|rounds DEVICE OWN-ADDRESS PEER PORT}: a server that sends back what comes, and a client
that sends again and again; each prints C{goes on} once and C{lost}, with the reason, at the end.
C{sdp-echo|sdp-rounds ...}: the same over C{sdp:}, not in messages.
C{serve ...}: a server of many.  C{leave DEVICE OWN-ADDRESS PEER PORT ROUNDS}: a client that connects so
often, and goes at once each time.  C{hasty OWN-ADDRESS PEER PORT ROUNDS}: the same by bare TCP.
C{vanish DEVICE ADAPTER PEER PORT ROUNDS}: a client whose adapter, one of the kernel's, it deletes and adds
again, so often.
C{slots DEVICE OWN-ADDRESS PEER PORT}: a server of L{KILLS} streams, which then prints how many slots its
device has, how many of them are free, and how many the adapter has given back unfilled.  C{amid ...}: as
many clients of it, one after the other, each of which is killed behind the first packet of a message.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

#: A message, and how many make a connection that goes on.
MESSAGE = b"m" * 1000
ENOUGH = 3
#: How long a program may take altogether, and so each connect, within which a guest imports; and an adapter
#: to be gone or back, in seconds.
PATIENCE = 900.0
ADAPTER_SECONDS = 60.0
#: Clients that are killed amid a message, and how long that is: 64 packets with Ethernet's MTU.
KILLS = 20
LONG = 64 << 10
#: How often an adapter is looked at, in seconds.
_LOOK_SECONDS = 0.1


def say(*words: object) -> None:
    """
    Print a line.
    """
    print(*words, flush=True)


def install() -> Any:
    """
    @return: a reactor whose TCP goes through the switch.
    """
    from twisted_ib.reactor import ibreactor

    ibreactor.install()
    from twisted.internet import reactor

    return reactor


class Side(Protocol):
    """
    One end: C{lost} fires at its end with the reason, C{answered} when a message has come.
    """

    transport: Any
    doesAsk = False
    count = 0

    def __init__(self) -> None:
        self.lost: Deferred[Any] = Deferred()
        self.answered: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        """
        The client begins.
        """
        if self.doesAsk:
            self.transport.write(MESSAGE)

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        self.count += 1
        if not self.answered.called:
            self.answered.callback(None)
        if self.count == ENOUGH:
            say("goes on")
        self.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        """
        Tell.
        """
        self.lost.callback(reason.value)


class Asking(Side):
    """
    The client's end.
    """

    doesAsk = True


def endpoint(reactor: Any, host: str, port: str, device: str, isStream: bool = False) -> Any:
    """
    @return: an endpoint of messages, or of a stream.
    """
    from twisted_ib.rdma import RDMAClientEndpoint
    from twisted_ib.sdp import SDPClientEndpoint

    made = SDPClientEndpoint if isStream else RDMAClientEndpoint
    return made(reactor, host, int(port), timeout=PATIENCE, device=device)


def ended(reactor: Any, side: Side) -> None:
    """
    Print the end of a connection, and end the program.
    """

    def tell(reason: Exception) -> None:
        say("lost", type(reason).__name__, reason)
        reactor.stop()

    side.lost.addCallback(tell)


def echo(isStream: bool, reactor: Any, device: str, here: str, there: str, port: str) -> None:
    """
    The server.
    """
    from twisted_ib.rdma import listenRDMA
    from twisted_ib.sdp import listenSDP

    class Sides(Factory):
        def buildProtocol(self, addr: Any) -> Side:
            side = Side()
            ended(reactor, side)
            return side

    listen = listenSDP if isStream else listenRDMA
    listen(reactor, int(port), Sides(), interface=here, device=device)
    say("listens")


def serve(reactor: Any, device: str, here: str, there: str, port: str) -> None:
    """
    A server of many connections, whose end it does not tell, and of the switch's at the next port: messages
    of iWARP have this one of TCP.
    """
    from twisted_ib.rdma import listenRDMA

    listenRDMA(reactor, int(port), Factory.forProtocol(Side), interface=here, device=device)
    reactor.listenTCP(int(port) + 1, Factory.forProtocol(Side), interface=here)
    say("listens")


def rounds(isStream: bool, reactor: Any, device: str, here: str, there: str, port: str) -> None:
    """
    The client.
    """
    side = Asking()
    ended(reactor, side)
    made = connectProtocol(endpoint(reactor, there, port, device, isStream), side)
    made.addErrback(lambda failure: (say("failed", failure.value), reactor.stop()))


def slots(reactor: Any, device: str, here: str, there: str, port: str) -> None:
    """
    The server of streams, whose slots are counted.
    """
    from twisted_ib.hca.fabric.hardware import slots as module
    from twisted_ib.sdp import listenSDP

    lost, flushed = [], []
    found = module.StreamSlots.found

    def counted(self: Any, completions: Any) -> None:
        flushed.extend(each for each in completions if each.wr_id >= module.SHARED_RECEIVE and each.status)
        found(self, completions)

    module.StreamSlots.found = counted  # type: ignore[method-assign]

    def tell(shared: Any) -> None:
        say("slots", shared.count, "free", shared.posted + len(shared._given), "unfilled", len(flushed))
        reactor.stop()

    class Stream(Protocol):
        transport: Any

        def connectionMade(self) -> None:
            self.shared = self.transport.queuePair.path.fabric.slots.shared

        def connectionLost(self, reason: Any = None) -> None:
            lost.append(reason)
            if len(lost) == KILLS:
                reactor.callLater(2 * module.RETIRED_SECONDS, tell, self.shared)

    listenSDP(reactor, int(port), Factory.forProtocol(Stream), interface=here, device=device)
    say("listens")


class Long(Protocol):
    """
    A client's end that begins a message of many packets.
    """

    transport: Any

    def connectionMade(self) -> None:
        """
        Begin.
        """
        self.transport.write(bytes(4 * LONG))


def amid(device: str, here: str, there: str, port: str) -> None:
    """
    The clients: a process each.
    """
    for _ in range(KILLS):
        child = os.fork()
        if not child:
            _amid(device, there, port)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    say("killed", KILLS)


def _amid(device: str, there: str, port: str) -> None:
    from twisted_ib.hca.fabric.roce.transmit import PacketTransmitter
    from twisted_ib.hca.wire.opcodes import SEND_FIRST

    sendOne = PacketTransmitter.sendOne

    def cut(self: Any, path: Any, packets: list[Any]) -> None:
        for each in packets:
            cutOne(self, path, each)

    def cutOne(self: Any, path: Any, packet: Any) -> None:
        sendOne(self, path, packet)
        if packet[0] == SEND_FIRST:
            os.kill(os.getpid(), signal.SIGKILL)

    PacketTransmitter.send, PacketTransmitter.sendOne = cut, cutOne  # type: ignore[method-assign]
    reactor = install()
    made = connectProtocol(endpoint(reactor, there, port, device, True), Long())
    made.addErrback(lambda failure: (say("failed", failure.value), reactor.stop()))
    reactor.callLater(PATIENCE, reactor.stop)
    reactor.run()


class Leaving(Protocol):
    """
    A client's end that goes as soon as it is connected: every other one without the rest of what it sends.
    """

    transport: Any

    def __init__(self, number: int) -> None:
        self.number = number
        self.lost: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        """
        Go.
        """
        if self.number % 2:
            self.transport.abortConnection()
        else:
            self.transport.loseConnection()

    def connectionLost(self, reason: Any = None) -> None:
        """
        Tell.
        """
        self.lost.callback(None)


@inlineCallbacks
def leave(reactor: Any, device: str, here: str, there: str, port: str, rounds: str) -> Any:
    """
    A client that goes at once, and at last one that is answered.
    """
    try:
        for number in range(int(rounds)):
            side = Leaving(number)
            yield connectProtocol(endpoint(reactor, there, port, device), side)
            yield side.lost
        last = yield connectProtocol(endpoint(reactor, there, port, device), Asking())
        yield last.answered
        say("left", rounds)
    except Exception as error:
        say("failed", type(error).__name__, error)
    reactor.stop()


def hasty(here: str, there: str, port: str, rounds: str) -> None:
    """
    A client of TCP that has iWARP's Request, and ends with the answer, every other one by RST.
    """
    import socket
    import struct

    from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame

    request = StartupFrame(False, depths=Depths(4, 4)).pack()
    answers = 0
    for number in range(int(rounds)):
        with socket.create_connection((there, int(port)), source_address=(here, 0)) as made:
            made.sendall(request)
            answers += made.recv(1000).startswith(b"MPA ID Rep Frame")
            if number % 2:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    say("answers", answers)


class Vanishing:
    """
    A client, whose adapter disappears.
    """

    def __init__(self, reactor: Any, device: str, adapter: str, there: str, port: str) -> None:
        self.reactor, self.device, self.adapter = reactor, device, adapter
        self.there, self.port = there, port

    def connect(self) -> Any:
        """
        @return: a Deferred of a connection of the device.
        """
        return connectProtocol(endpoint(self.reactor, self.there, self.port, self.device), Asking())

    @inlineCallbacks
    def until(self, process: Any) -> Any:
        """
        Wait until a command has ended, well.
        """
        end = self.reactor.seconds() + ADAPTER_SECONDS
        while process.poll() is None:
            if self.reactor.seconds() > end:
                raise TimeoutError(f"{process.args} does not end")
            yield deferLater(self.reactor, _LOOK_SECONDS)
        if process.returncode:
            raise OSError(f"{process.args}: {process.returncode}")

    @inlineCallbacks
    def untilBack(self) -> Any:
        """
        @return: a Deferred of a connection, once the adapter that was added has its address.
        """
        end = self.reactor.seconds() + ADAPTER_SECONDS
        while True:
            try:
                side = yield self.connect()
            except Exception as error:
                if self.reactor.seconds() > end:
                    raise
                self.errors.append(str(error))
                yield deferLater(self.reactor, _LOOK_SECONDS)
            else:
                return side

    @inlineCallbacks
    def round(self) -> Any:
        """
        The adapter goes while a connection is in use, and comes again.
        """
        self.errors: list[str] = []
        side = yield self.untilBack()
        yield side.answered
        began = time.monotonic()
        deleting = subprocess.Popen(["rdma", "link", "delete", self.adapter])
        reason = yield side.lost
        seconds = time.monotonic() - began
        yield self.until(deleting)
        try:
            yield self.connect()
        except Exception as error:
            missing = str(error)
        else:
            missing = "connected"
        # The switch goes on to the next device of the route.
        where = TCP4ClientEndpoint(self.reactor, self.there, int(self.port) + 1, timeout=int(PATIENCE))
        other = yield connectProtocol(where, Asking())
        yield other.answered
        from twisted_ib.reactor import explain

        way = str(explain(other.transport))
        other.transport.abortConnection()
        yield other.lost
        kind = "siw" if self.adapter.startswith("siw") else "rxe"
        yield self.until(
            subprocess.Popen(["rdma", "link", "add", self.adapter, "type", kind, "netdev", "eth0"])
        )
        # What Twisted says before it, and the rule, are not looked at.
        said = (str(reason).partition("fashion: ")[2], missing.partition(f":{self.port}: ")[2])
        say("round", " | ".join((*(each.rstrip(".") for each in said), way.partition(",")[0])))
        print(f"{seconds:.2f} s", *self.errors[-1:], file=sys.stderr, flush=True)

    @inlineCallbacks
    def run(self, rounds: int) -> Any:
        """
        Do so often.
        """
        try:
            for _ in range(rounds):
                yield self.round()
        except Exception as error:
            say("failed", type(error).__name__, error)
            traceback.print_exc()
        self.reactor.stop()


def main(kind: str, *rest: str) -> None:
    """
    Run a side.
    """
    if kind == "hasty":
        hasty(*rest)
        return
    if kind == "amid":
        amid(*rest)
        return
    reactor = install()
    if kind == "vanish":
        *given, rounds_ = rest
        reactor.callWhenRunning(Vanishing(reactor, *given).run, int(rounds_))
    elif kind == "leave":
        reactor.callWhenRunning(leave, reactor, *rest)
    elif kind in ("serve", "slots"):
        {"serve": serve, "slots": slots}[kind](reactor, *rest)
    else:
        name = kind.removeprefix("sdp-")
        {"echo": echo, "rounds": rounds}[name](name != kind, reactor, *rest)
    reactor.callLater(PATIENCE, reactor.stop)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
