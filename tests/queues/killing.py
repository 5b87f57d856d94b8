"""
Processes that are killed at random moments while they use connections and queues, and what becomes of the
others.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from contextlib import suppress
from queue import Empty
from typing import Any

from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.queues import Broadcast, JoinableQueue, Pipe, Queue, SimpleQueue

#: Lengths of messages: in one record, in several, longer than the ring.
LENGTHS = (0, 64, 40000, limits.QUEUE_RECORD + 1, limits.QUEUE_RING + 1)
_fork = multiprocessing.get_context("fork")


def _message(number: int) -> tuple[int, bytes]:
    return number, bytes([number % 251]) * LENGTHS[number % len(LENGTHS)]


def _isWhole(message: tuple[int, bytes]) -> bool:
    return message == _message(message[0])


def _started(call: Any, *arguments: object) -> Any:
    process = _fork.Process(target=call, args=arguments, daemon=True)
    process.start()
    return process


def _killLater(process: Any, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    return timer


def _echo(mine: Any, theirs: Any) -> None:
    theirs.close()
    while True:
        mine.send(mine.recv())


def _send(mine: Any, theirs: Any) -> None:
    theirs.close()
    number = 0
    while True:
        mine.send(_message(number))
        number += 1


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
    timer = _killLater(process, seconds)
    number = 0
    try:
        while True:
            if call is _echo:
                mine.send(_message(number))
            if not _isWhole(mine.recv()):
                return "a message is not as it was"
            number += 1
    except (EOFError, OSError):
        # Of OSErrors only that of an end within a message can be.
        return "" if process.exitcode is None or process.exitcode < 0 else "it ended by itself"
    finally:
        timer.join()
        process.join(HANG_SECONDS)
        mine.close()


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


def ofQueue(seconds: float, kind: Any, victim: int, patience: float) -> str:
    """
    Have one of two producers or two consumers of a queue killed.

    @param seconds: after so many.
    @param kind: the queue's class.
    @param victim: which one.
    @param patience: seconds after which the others should have gone on.
    @return: What is wrong, or nothing.
    """
    queue, results = kind(), Queue()
    processes = [_started(_produce, queue, 1000 * number) for number in range(2)]
    processes += [_started(_consume, queue, results) for _ in range(2)]
    try:
        timer = _killLater(processes[victim], seconds)
        timer.join()
        processes[victim].join(HANG_SECONDS)
        # What was taken before; then the others go on.  The queue of results had a killed writer too.
        consumers = {processes[each].pid for each in (2, 3) if each != victim}
        seen: set[int] = set()
        end = time.monotonic() + HANG_SECONDS
        left = results.qsize() + 50
        while left > 0 or not seen & consumers:
            try:
                pid, isWhole = results.get(True, patience)
            except Empty:
                return f"nothing came for {patience} s"
            if not isWhole:
                return "an object is not as it was"
            seen.add(pid)
            left -= 1
            if time.monotonic() > end:
                return "the others do not go on"
        return ""
    finally:
        for each in processes:
            each.kill()
            each.join(HANG_SECONDS)


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


def ofBroadcast(seconds: float, victim: int, patience: float) -> str:
    """
    Have the writer of a broadcast, or one of its two readers, killed.

    @param seconds: after so many.
    @param victim: 0 for the writer.
    @param patience: seconds after which the other reader, this process, should have gone on.
    @return: What is wrong, or nothing.
    """
    writer = Broadcast(2, size=4 << 20)
    reader = writer.readers[1]
    processes = [_started(call, writer) for call in (_broadcast, _readAll)]
    writer.close()
    writer.readers[0].close()
    timer = _killLater(processes[victim], seconds)
    left = 50
    try:
        while left or not victim:
            if not reader.poll(patience):
                return f"nothing came for {patience} s"
            if not _isWhole(reader.recv()):
                return "a message is not as it was"
            left -= not timer.is_alive()
        return ""
    except EOFError:
        return "the writer has ended" if victim else ""
    finally:
        timer.join()
        reader.close()
        for each in processes:
            each.kill()
            each.join(HANG_SECONDS)


def _shared() -> set[str]:
    # Not the semaphores of multiprocessing, which other tests make meanwhile, and nothing here.
    return {each for each in os.listdir("/dev/shm") if not each.startswith("sem.")}


def story(seed: int, moments: int, patience: float = HANG_SECONDS) -> list[str]:
    """
    @param seed: of the moments.
    @param moments: how many.
    @param patience: seconds after which others should have gone on.
    @return: What was wrong, with the number of the moment.
    """
    random_ = random.Random(seed)
    before = _shared()
    found = []
    for number in range(moments):
        seconds = random_.random() * 0.02
        if number % 8 == 6:
            wrong = ofBroadcast(seconds, number // 8 % 2, patience)
        elif number % 2:
            kind = (Queue, SimpleQueue, JoinableQueue)[number // 2 % 3]
            wrong = ofQueue(seconds, kind, random_.randrange(4), patience)
        else:
            wrong = ofConnection(seconds, (_echo, _send)[number // 2 % 2])
        if wrong:
            found.append(f"seed {seed}, moment {number}: {wrong}")
    return found + [f"{each} is left" for each in sorted(_shared() - before)]


__all__ = ["ofBroadcast", "ofConnection", "ofQueue", "story"]
