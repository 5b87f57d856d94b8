"""
Producers and consumers.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from twisted.internet.interfaces import IPullProducer, IPushProducer
from twisted.protocols.basic import FileSender
from zope.interface import implementer

from tests.suites.differential.reactors.ends import Ends, scenarios
from tests.suites.differential.reactors.writing import MANY


@implementer(IPushProducer, IPullProducer)
class Producer:
    """
    Notes its calls, and does what the scenario wants in them.
    """

    def __init__(self, ends: Ends, transport: Any, resume: Any = None) -> None:
        """
        @param resume: Called when it is to go on.
        """
        self.name, self.log, self.transport, self.resume = "producer", [], transport, resume  # type: ignore[var-annotated]
        self.does: dict[str, Any] = {}
        ends.noting.append(self)

    def has(self, name: str) -> bool:
        """
        @return: Whether it was called.
        """
        return [name] in self.log

    def pauseProducing(self) -> None:
        self.log.append(["pause"])

    def resumeProducing(self) -> None:
        """
        Note, and go on.
        """
        if self.resume is None:
            self.log.append(["resume"])
        else:
            self.resume(self)

    def stopProducing(self) -> None:
        self.log.append(["stop"])


@scenarios
async def push(ends: Ends) -> None:
    """
    A push producer is paused by more than goes into the medium, and resumed when the peer reads.
    """
    client, server = await ends.pair()
    producer = Producer(ends, client.transport)
    server.transport.pauseProducing()
    ends.call("register", client.transport.registerProducer, producer, True)
    ends.call("again", client.transport.registerProducer, producer, True)
    client.transport.write(b"little")
    ends.say("after little", producer.has("pause"))
    client.transport.write(MANY)
    ends.say("after much", producer.has("pause"))
    server.transport.resumeProducing()
    await ends.until(lambda: producer.has("resume"))
    await ends.until(lambda: len(server.data) == len(MANY) + 6)
    client.transport.loseConnection()
    for _ in range(5):
        await ends.turn()
    ends.call("unregister", client.transport.unregisterProducer)
    await ends.have("lost", client, server)
    ends.say("has one", bool(client.transport.producer))


@scenarios
async def pushBehind(ends: Ends) -> None:
    """
    A push producer that is registered when more waits than it may write is paused by its first write.
    """
    client, server = await ends.pair()
    server.transport.pauseProducing()
    client.transport.write(MANY)
    producer = Producer(ends, client.transport)
    client.transport.registerProducer(producer, True)
    ends.say("registered", producer.has("pause"))
    client.transport.write(b"x")
    ends.say("written", producer.has("pause"))
    server.transport.resumeProducing()
    await ends.until(lambda: producer.has("resume"))
    client.transport.unregisterProducer()
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def pull(ends: Ends) -> None:
    """
    A pull producer is asked for a piece at a time.
    """
    client, server = await ends.pair()
    pieces = [b"one ", b"two ", b"three"]

    def resume(it: Producer) -> None:
        it.transport.write(pieces.pop(0))
        if not pieces:
            it.transport.unregisterProducer()
            it.transport.loseConnection()

    ends.call("register", client.transport.registerProducer, Producer(ends, client.transport, resume), False)
    await ends.have("lost", client, server)


@scenarios
async def file(ends: Ends) -> None:
    """
    A file, by Twisted's C{FileSender}.
    """
    client, server = await ends.pair()
    sent = FileSender().beginFileTransfer(BytesIO(MANY), client.transport)
    await ends.wait("sent", lambda: sent)
    await ends.until(lambda: len(server.data) == len(MANY))
    ends.say("all", server.data == MANY)
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios.each("loseConnection", "abortConnection")
async def stopped(ends: Ends, ending: str) -> None:
    """
    The peer ends while a producer is registered: it is stopped.
    """
    client, server = await ends.pair()
    producer = Producer(ends, client.transport)
    client.transport.registerProducer(producer, True)
    getattr(server.transport, ending)()
    await ends.have("lost", client, server)
    ends.say("stopped", producer.has("stop"))


@scenarios.each(True, False)
async def late(ends: Ends, isPush: bool) -> None:
    """
    A producer that is registered when the connection is over, or closing.
    """
    client, server = await ends.pair()
    client.transport.loseConnection()
    first = Producer(ends, client.transport)
    ends.call("closing", client.transport.registerProducer, first, isPush)
    ends.say("stopped", first.has("stop"))
    ends.call("unregister", client.transport.unregisterProducer)
    await ends.have("lost", client, server)
    second = Producer(ends, client.transport)
    ends.call("lost", client.transport.registerProducer, second, isPush)
    ends.say("stopped", second.has("stop"))
    for each in (first, second):
        ends.noting.remove(each)


@scenarios
async def stop(ends: Ends) -> None:
    """
    C{stopProducing} closes.
    """
    client, server = await ends.pair()
    client.transport.write(b"last")
    client.transport.stopProducing()
    await ends.have("lost", client, server)


@scenarios
async def pausing(ends: Ends) -> None:
    """
    Nothing is delivered between C{pauseProducing} and C{resumeProducing}; each may be called again.
    """

    def data(it: Any, octets: bytes) -> None:
        it.transport.pauseProducing()

    client, server = await ends.pair(server={"data": data})
    for number in range(5):
        client.transport.write(b"%d" % number)
        await ends.until(lambda number=number: len(server.data) > number)
        client.transport.write(b"")
        server.transport.pauseProducing()
        for _ in range(3):
            await ends.turn()
        server.transport.resumeProducing()
        server.transport.resumeProducing()
    client.transport.loseConnection()
    await ends.have("lost", client, server)
