"""
Processes that are killed at random moments while they use connections and queues, and what becomes of the
others.

    python -m tests.queues.killing [MOMENTS] [SEED]

A second is counted as a hundred sleeps of a hundredth: they take longer where the others get the processor
late, too.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from queue import Empty, Full
from typing import Any

from tests.queues.test_connection import openDescriptors
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.queues import Broadcast, Client, JoinableQueue, Listener, Pipe, Queue, SimpleQueue

#: Lengths of messages: in one record, in several, longer than the ring.
LENGTHS = (0, 64, 40000, limits.QUEUE_RECORD + 1, limits.QUEUE_RING + 1)
#: Sleeps of a hundredth of a second until the others have gone on.
TIMELY = 100
_fork = multiprocessing.get_context("fork")


def _message(number: int) -> tuple[int, bytes]:
    return number, bytes([number % 251]) * LENGTHS[number % len(LENGTHS)]


def _isWhole(message: tuple[int, bytes]) -> bool:
    return message == _message(message[0])


def _started(call: Any, *arguments: object) -> Any:
    process = _fork.Process(target=call, args=arguments, daemon=True)
    process.start()
    return process


class Killing(threading.Thread):
    """
    Kills a process, and counts the sleeps until the others have gone on.

    @ivar isOver: set once it is dead.
    @ivar most: the most sleeps of these.
    """

    def __init__(self, process: Any, seconds: float, release: Callable[[], object] = lambda: None) -> None:
        """
        Begin; no other process must be started before the end.

        @param seconds: after which it is killed.
        @param release: ends what waits here for ever.
        """
        super().__init__(daemon=True)
        self._process, self._seconds, self._release = process, seconds, release
        self._done = threading.Event()
        self.isOver = threading.Event()
        self._count = self.most = 0
        self.start()

    def run(self) -> None:
        """
        Do it.
        """
        time.sleep(self._seconds)
        self._process.kill()
        connection.wait([self._process.sentinel])
        self.isOver.set()
        end = time.monotonic() + HANG_SECONDS
        while not self._done.wait(0.01):
            self._count += 1
            self.most = max(self.most, self._count)
            if time.monotonic() > end:
                self._release()

    def wentOn(self) -> None:
        """
        Begin to count anew.
        """
        self._count = 0

    def end(self) -> str:
        """
        @return: What is wrong, or nothing.
        """
        self.isOver.wait(HANG_SECONDS)
        self._done.set()
        self.join(HANG_SECONDS)
        self._process.join(HANG_SECONDS)
        return "" if self.most <= TIMELY else f"the others took {self.most} sleeps of a hundredth of a second"


def _echo(mine: Any, theirs: Any = None) -> None:
    if theirs is not None:
        theirs.close()
    while True:
        mine.send(mine.recv())


def _send(mine: Any, theirs: Any) -> None:
    theirs.close()
    number = 0
    while True:
        mine.send(_message(number))
        number += 1


def _ignore(mine: Any, theirs: Any) -> None:
    theirs.close()
    time.sleep(HANG_SECONDS)


def _talk(mine: Any, call: Any, killing: Killing | None = None) -> str:
    # Until the end of the other side, which is killed.
    number = 0
    try:
        while True:
            if call is not _send:
                mine.send(_message(number))
            if call is not _ignore and not _isWhole(mine.recv()):
                return "a message is not as it was"
            number += 1
    except (EOFError, OSError):
        # Of OSErrors only that of an end within a message can be.
        return "" if killing is None or killing.isOver.wait(HANG_SECONDS) else "it ended by itself"


def _shutDown(mine: Any) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(mine.fileno())) as pair:
        pair.shutdown(socket.SHUT_RDWR)


def ofConnection(seconds: float, call: Any) -> str:
    """
    Have the process at the other end of a connection killed.

    @param seconds: after so many.
    @param call: what it does.
    @return: What is wrong, or nothing.
    """
    mine, theirs = Pipe()
    process = _started(call, theirs, mine)
    theirs.close()
    killing = Killing(process, seconds, lambda: _shutDown(mine))
    wrong = _talk(mine, call, killing)
    wrong = killing.end() or wrong
    mine.close()
    return wrong


def _listen(address: str, authkey: bytes | None) -> None:
    with Listener(address, authkey=authkey) as listener, listener.accept() as mine:
        _echo(mine)


def _call(address: str, authkey: bytes | None, count: int) -> None:
    with Client(address, authkey=authkey) as mine:
        mine.send(os.getpid())
        for number in range(count):
            mine.send(_message(number))


def ofListener(seconds: float, authkey: bytes | None) -> str:
    """
    Have a process killed that listens, or accepts, or serves this one.

    @param seconds: after so many.
    @param authkey: what both know.
    @return: What is wrong, or nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "listener"))
        process = _started(_listen, address, authkey)
        found: list[Any] = []
        killing = Killing(process, seconds, lambda: found and _shutDown(found[0]))
        wrong = ""
        # It may be killed before it listens, or while it asks for the secret.
        while not found and not killing.isOver.is_set():
            with suppress(OSError, EOFError):
                found.append(Client(address, authkey=authkey))
        for mine in found:
            wrong = _talk(mine, _echo, killing)
            mine.close()
        return killing.end() or wrong


def ofClient(seconds: float, authkey: bytes | None) -> str:
    """
    Have one of two processes killed that connect to this one.

    @param seconds: after so many.
    @param authkey: what both know.
    @return: What is wrong, or nothing.
    """
    count, wrong = 20, ""
    with Listener(backlog=2, authkey=authkey) as listener:
        victim, other = (_started(_call, listener.address, authkey, each) for each in (1 << 30, count))
        killing = Killing(victim, seconds)
        isServed = False
        while not wrong and not isServed:
            # In the handshake of the one that is killed.
            with suppress(OSError, EOFError), listener.accept() as mine:
                pid, number = mine.recv(), 0
                with suppress(OSError, EOFError):
                    while True:
                        if mine.recv() != _message(number):
                            wrong = "a message is not as it was"
                        number += 1
                        killing.wentOn()
                isServed = pid == other.pid
                if isServed and number != count:
                    wrong = f"{number} messages of {count} have come"
        wrong = killing.end() or wrong
        other.join(HANG_SECONDS)
    return wrong


def _produce(queue: Any, first: int) -> None:
    number = first
    while True:
        queue.put(_message(number))
        number += 1
        if number % 10 == 0:
            time.sleep(0.001)


def _consume(queue: Any, results: Any) -> None:
    while True:
        got = queue.get()
        results.put((os.getpid(), _isWhole(got)))
        if isinstance(queue, JoinableQueue):
            queue.task_done()


def ofQueue(seconds: float, kind: Any, victim: int, *arguments: int) -> str:
    """
    Have one of two producers or two consumers of a queue killed.

    @param seconds: after so many.
    @param kind: the queue's class, and its arguments.
    @param victim: which one.
    @return: What is wrong, or nothing.
    """
    queue, results = kind(*arguments), Queue()
    processes = [_started(_produce, queue, 1000 * number) for number in range(2)]
    processes += [_started(_consume, queue, results) for _ in range(2)]
    killing = Killing(processes[victim], seconds)
    try:
        killing.isOver.wait(HANG_SECONDS)
        # What was taken before; then the others go on.  The queue of results had a killed writer too.
        consumers = {processes[each].pid for each in (2, 3) if each != victim}
        seen: set[int] = set()
        end = time.monotonic() + HANG_SECONDS
        left = results.qsize() + 50
        while left > 0 or not seen & consumers:
            try:
                pid, isWhole = results.get(True, HANG_SECONDS)
            except Empty:
                return "nothing comes"
            killing.wentOn()
            if not isWhole:
                return "an object is not as it was"
            seen.add(pid)
            left -= 1
            if time.monotonic() > end:
                return "the others do not go on"
        return killing.end() or _roomAfter(queue, processes, *arguments)
    finally:
        killing.end()
        _kill(processes)


def _kill(processes: list[Any]) -> None:
    for each in processes:
        each.kill()
        each.join(HANG_SECONDS)


def _roomAfter(queue: Any, processes: list[Any], most: int = 0) -> str:
    # All of them are killed, and the queue has been empty since.
    _kill(processes)
    rooms = [roomOf(queue) for _ in range(2 if most else 0)]
    return "" if rooms[-1:] in ([], [most]) else f"a queue of {most} has room for {rooms}"


def roomOf(queue: Any) -> int:
    """
    @return: For how many objects a queue that nobody else has any more has room, once what is in it is taken.
    """
    # After an object that was put in part, which nobody ends.
    last = threading.Thread(target=queue.put, args=(None,), daemon=True)
    last.start()
    while queue.get(timeout=HANG_SECONDS) is not None:
        pass
    last.join(HANG_SECONDS)
    count = 0
    with suppress(Full):
        while True:
            queue.put(count, False)
            count += 1
    return count


def _broadcast(writer: Broadcast) -> None:
    for each in writer.readers:
        each.close()
    number = 0
    # The others may end first.
    with suppress(BrokenPipeError):
        while True:
            writer.send(_message(number))
            number += 1


def _readAll(writer: Broadcast) -> None:
    reader = writer.take(0)
    with suppress(EOFError):
        while True:
            reader.recv()


def ofBroadcast(seconds: float, victim: int) -> str:
    """
    Have the writer of a broadcast, or one of its two readers, killed.

    @param seconds: after so many.
    @param victim: 0 for the writer.
    @return: What is wrong, or nothing.
    """
    writer = Broadcast(2, size=4 << 20)
    reader = writer.readers[1]
    processes = [_started(call, writer) for call in (_broadcast, _readAll)]
    writer.close()
    writer.readers[0].close()
    killing = Killing(processes[victim], seconds)
    left = 50
    try:
        while left or not victim:
            if not reader.poll(HANG_SECONDS):
                return "nothing comes"
            if not _isWhole(reader.recv()):
                return "a message is not as it was"
            killing.wentOn()
            left -= killing.isOver.is_set()
        return killing.end()
    except EOFError:
        return "the writer has ended" if victim else killing.end()
    finally:
        killing.end()
        reader.close()
        for each in processes:
            each.kill()
            each.join(HANG_SECONDS)


#: What is killed, in turns.
KINDS: tuple[Callable[[float, random.Random], str], ...] = (
    lambda seconds, drawn: ofConnection(seconds, _echo),
    lambda seconds, drawn: ofQueue(seconds, Queue, drawn.randrange(4)),
    lambda seconds, drawn: ofConnection(seconds, _send),
    lambda seconds, drawn: ofQueue(seconds, SimpleQueue, drawn.randrange(4)),
    lambda seconds, drawn: ofBroadcast(seconds, 0),
    lambda seconds, drawn: ofQueue(seconds, JoinableQueue, drawn.randrange(4)),
    lambda seconds, drawn: ofListener(seconds, drawn.choice((None, b"secret"))),
    lambda seconds, drawn: ofConnection(seconds, _ignore),
    lambda seconds, drawn: ofBroadcast(seconds, 1),
    lambda seconds, drawn: ofQueue(seconds, Queue, drawn.randrange(4), drawn.randrange(1, 4)),
    lambda seconds, drawn: ofClient(seconds, drawn.choice((None, b"secret"))),
    lambda seconds, drawn: ofQueue(seconds, JoinableQueue, drawn.randrange(4), drawn.randrange(1, 4)),
)


def _shared() -> set[str]:
    # Others use the folder meanwhile: only names of this package, and of multiprocessing's memory.
    return {each for each in os.listdir("/dev/shm") if each.startswith(("twisted_ib", "pymp-", "psm_"))}


def _kept() -> int:
    gc.collect()
    return len(openDescriptors())


def story(seed: int, moments: int) -> list[str]:
    """
    @param seed: of the moments.
    @param moments: how many.
    @return: What was wrong, with the number of the moment.
    """
    drawn = random.Random(seed)
    before, kept = _shared(), _kept()
    found = []
    for number in range(moments):
        wrong = KINDS[number % len(KINDS)](drawn.random() * 0.02, drawn)
        if wrong:
            found.append(f"seed {seed}, moment {number}: {wrong}")
    found += [f"{each} is left" for each in sorted(_shared() - before)]
    return found + [f"{_kept() - kept} descriptors are left"] * (_kept() != kept)


def main(moments: int, seed: int) -> int:
    """
    Kill.

    @return: The process's exit status.
    """
    found = story(seed, moments)
    print(f"{moments} moments, seed {seed}: {len(found)} wrong", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(int((sys.argv[1:2] or [1000])[0]), int((sys.argv[2:3] or [random.randrange(1 << 30)])[0])))
