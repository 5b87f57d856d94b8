"""
Children that start processes and threads while connections are busy.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.error import ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.threads import blockingCallFromThread, deferToThread
from twisted.python.failure import Failure

from tests.processes.programs.peer import Peer


class Filter(ProcessProtocol):
    """
    Feeds a command and collects what it prints.
    """

    def __init__(self, content: bytes) -> None:
        """
        @param content: for its standard input.
        """
        self.done: Deferred[tuple[int, int]] = Deferred()
        self._content = content
        self._collected = 0

    def connectionMade(self) -> None:
        """
        It runs.
        """
        transport: Any = self.transport
        transport.write(self._content)
        transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        """
        It prints.
        """
        self._collected += len(data)

    def processEnded(self, reason: Failure) -> None:
        """
        It has ended.
        """
        status = reason.value.exitCode if isinstance(reason.value, ProcessTerminated) else 0
        self.done.callback((status or 0, self._collected))


def multiply(queue: Any, number: int) -> None:
    """
    The work of a C{multiprocessing} process.
    """
    queue.put(number * 2)


class Busy(Peer):
    """
    A L{Peer} that does other things besides.
    """

    def do_spawn(self, length: int) -> Deferred[tuple[int, int]]:
        """
        Run a command through C{spawnProcess}.

        @param length: of its input.

        @return: fires with its exit status and the length of its output.
        """
        process = Filter(bytes(length))
        self.reactor.spawnProcess(process, "/bin/sh", ["sh", "-c", "cat; exit 3"], env=dict(os.environ))
        return process.done

    def do_multiprocess(self, method: str) -> Deferred[int]:
        """
        Have another Python process multiply.

        @param method: C{fork} or C{spawn}.

        @return: fires with what it answered.
        """

        def run() -> int:
            """
            In a thread, for multiprocessing blocks.
            """
            context: Any = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            process = context.Process(target=multiply, args=(queue, 21))
            process.start()
            process.join()
            answer: int = queue.get()
            return answer

        return deferToThread(run)

    def do_threads(self, count: int) -> Deferred[list[int]]:
        """
        Call functions in threads, which call back into the reactor's.

        @param count: how many calls.

        @return: fires with their results.
        """
        here = threading.get_ident()

        def work(number: int) -> int:
            """
            In a thread.
            """
            assert threading.get_ident() != here
            answer: int = blockingCallFromThread(self.reactor, lambda: number * number)
            return answer

        return gatherResults([deferToThread(work, number) for number in range(count)])

    def do_wrongThread(self, wire: int, method: str) -> Deferred[str]:
        """
        Use a transport from a thread.

        @param wire: the connection.
        @param method: the name of one of its methods.

        @return: fires with the name of the error.
        """
        transport = self._wire(wire)[1]
        arguments = (b"x",) if method == "write" else ()
        return deferToThread(getattr(transport, method), *arguments).addCallbacks(
            lambda _: "", lambda failure: type(failure.value).__name__
        )

    def do_forked(self, wire: int) -> Deferred[str]:
        """
        Use a transport in a forked child.

        @param wire: the connection.

        @return: fires with the name of the error in the child.
        """
        transport = self._wire(wire)[1]

        def use() -> str:
            """
            In the child.
            """
            try:
                transport.write(b"from the child")
                transport.write(b"and again")
            except Exception as error:
                return type(error).__name__
            return ""

        reader, writer = os.pipe()
        if not os.fork():
            os.write(writer, use().encode())
            os._exit(0)
        os.close(writer)

        def collect() -> str:
            """
            In a thread: the child's answer.
            """
            with open(reader) as pipe:
                return pipe.read()

        return deferToThread(collect)
