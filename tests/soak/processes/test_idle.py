"""
Tests that those who wait for connections, queues and broadcasts sleep: nothing runs while nothing comes.
"""

from __future__ import annotations

from tests.queues.idle import PAIR, WAITING, IdleTestCase

_RECEIVING = PAIR.format(child=WAITING)
_QUEUE = """
import os
from multiprocessing import Process
from twisted_ib.queues import {queue}

def wait(requests, results):
    results.put(os.getpid())
    while True:
        requests.get()

requests, results = {queue}(), {queue}()
Process(target=wait, args=(requests, results), daemon=True).start()
other = results.get()
requests.put(bytes(1 << 20))
print(os.getpid(), other, flush=True)
results.get()
"""
_BROADCAST = """
import os
from twisted_ib.queues import Broadcast, Pipe

writer = Broadcast(2)
here, there = Pipe()
processes = [os.getpid()]
for number in range(2):
    if not os.fork():
        reader = writer.take(number)
        try:
            while True:
                reader.recv()
                there.send(os.getpid())
        except EOFError:
            os._exit(0)
for each in writer.readers:
    each.close()
writer.send(b"x")
processes += [here.recv(), here.recv()]
print(*processes, flush=True)
here.recv()
"""
_LOOP = """
    import asyncio
    async def main():
        async with connection.onLoop() as queue:
            await queue.send(os.getpid())
            while True:
                await queue.recv()
    asyncio.run(main())
"""
_REACTOR = """
    from twisted.internet.defer import Deferred
    from twisted.internet import reactor
    async def main():
        async with connection.onReactor(reactor) as queue:
            await queue.send(os.getpid())
            while True:
                await queue.recv()
    Deferred.fromCoroutine(main())
    reactor.run()
"""


class IdleTests(IdleTestCase):
    """
    The long form of L{tests.queues.test_idle}.
    """

    def test_poll(self) -> None:
        """
        An end of a connection sleeps that polls with a timeout, which looks now and then.
        """
        self.assertIdle(_RECEIVING + "here.poll(100)\n", 1)

    def test_wait(self) -> None:
        """
        So does one that waits for several connections.
        """
        wait = "from multiprocessing.connection import wait\nmore = Pipe()\nwait([here, more[0]])\n"
        self.assertIdle(_RECEIVING + wait)

    def test_queues(self) -> None:
        """
        So do producers and consumers of queues, which look now and then whether a producer was killed.
        """
        for queue in ("Queue", "SimpleQueue", "JoinableQueue"):
            self.assertIdle(_QUEUE.format(queue=queue), 2)

    def test_broadcast(self) -> None:
        """
        So do the readers of a broadcast.
        """
        self.assertIdle(_BROADCAST)

    def test_loops(self) -> None:
        """
        So does a connection on asyncio's event loop, or on Twisted's reactor.
        """
        for child in (_LOOP, _REACTOR):
            self.assertIdle(PAIR.format(child=child.strip()) + "here.recv()\n")
