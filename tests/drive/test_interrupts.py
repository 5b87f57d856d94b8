"""
Handlers of signals that raise amid a call of a blocking socket: what was sent arrives in its order, up to
some octet, nothing twice, and the socket works on.

A handler is run before one line of the call after another, each time in a call of its own.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from tests.blocking.case import BlockingTestCase
from tests.support.calls import PACKAGE
from tests.support.descriptors import exactly
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import socket as offloading
from twisted_ib.drive.waiter import Handlers
from twisted_ib.hca.device.form import compiledModules

#: Octets of a message: all of them differ from those of its neighbours.
SIZE = 97
#: Of calls that each need a connection, one line in so many is enough.
STRIDE = 11
#: Behind each message.
END = b"\xff"
#: Gives the lock back for a call.  Behind this line it takes it again, in one step of the interpreter, which
#: calls no handler before; but it calls a trace function.
RELEASED = Handlers.aside
RETAKEN = RELEASED.__code__.co_firstlineno + inspect.getsource(RELEASED).splitlines().index(
    "        finally:"
)


class Interrupted(BaseException):
    """
    What the handler raises, as that of Ctrl+C does.
    """


def interrupt(number: int, frame: FrameType | None) -> None:
    """
    The handler.
    """
    raise Interrupted


def interrupted(line: int, call: Callable[[], object]) -> bool | None:
    """
    Call something, and have a signal come before a line of this package.

    @param line: Its number among those that are run.
    @return: Whether the handler's error came out; L{None} if so many lines were not run.
    """
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        # What is raised amid a finalizer the interpreter says, and goes on.
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None
        isRetaking = frame.f_code is RELEASED.__code__ and frame.f_lineno > RETAKEN
        if event == "line" and not isRetaking:
            seen += 1
            if seen == line:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False if seen >= line else None


class InterruptTests(BlockingTestCase):
    """
    Both ends in the main thread, where handlers run.
    """

    def setUp(self) -> None:
        """
        Set the handler.
        """
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, interrupt))

    def lines(self, call: Callable[[int], object], after: Callable[[int, bool], object]) -> None:
        """
        Interrupt a call at each of its lines.

        @param call: Called with the number of the line.
        @param after: Called after each, also with whether the handler's error came out.
        """
        count = 0
        for line in range(1, sys.maxsize):
            found = interrupted(line, partial(call, line))
            if found is None:
                break
            count += found
            after(line, found)
        self.assertGreater(count, 0 if compiledModules() else 3)

    def message(self, line: int) -> bytes:
        """
        @return: The octets of a message, of which none is L{END}.
        """
        return bytes((line + each) % 251 for each in range(SIZE))

    def arrives(self, one: Any, other: Any, line: int, isInterrupted: bool) -> None:
        """
        Of the message a beginning has arrived, all of it if nobody was interrupted, and what follows it does.
        """
        one.sendall(END)
        data = b""
        while not data.endswith(END):
            data += other.recv(2 * SIZE)
        wanted = self.message(line)
        self.assertTrue(wanted.startswith(data[:-1]), f"line {line}")
        if not isInterrupted:
            self.assertEqual(data[:-1], wanted)

    def sending(self, send: Callable[[Any, bytes], object], timeout: float | None) -> None:
        """
        Interrupt calls that send.
        """
        one, other = self.pair()
        one.settimeout(timeout)
        self.lines(
            lambda line: send(one, self.message(line)),
            lambda line, isInterrupted: self.arrives(one, other, line, isInterrupted),
        )

    def test_sendall(self) -> None:
        """
        C{sendall} of a socket that blocks.
        """
        self.sending(lambda one, data: one.sendall(data), None)

    def test_send(self) -> None:
        """
        C{send}, with a timeout.
        """
        self.sending(lambda one, data: one.send(data), HANG_SECONDS)

    def test_sendView(self) -> None:
        """
        C{sendall} of what is no bytes, which goes the longer way.
        """
        self.sending(lambda one, data: one.sendall(memoryview(data)), None)

    def test_sendNonBlocking(self) -> None:
        """
        C{send} of a socket that does not block.
        """
        self.sending(lambda one, data: one.send(data), 0.0)

    def test_recv(self) -> None:
        """
        C{recv} takes what it returns, and nothing else, be it all that there is or not.
        """
        one, other = self.pair()
        for size in (SIZE, SIZE // 2):
            count = len(list(self.received(one, other, size)))
            # Of compiled modules no line is seen.
            self.assertGreater(count, 0 if compiledModules() else 10)

    def received(self, one: Any, other: Any, size: int) -> Iterator[int]:
        """
        Interrupt C{recv} of so many octets at each line: each message arrives once, whole.
        """
        for line in range(1, sys.maxsize):
            data = b""
            one.sendall(self.message(line))

            def receive() -> None:
                nonlocal data
                data = other.recv(size)

            found = interrupted(line, receive)
            data += exactly(other, SIZE - len(data))
            self.assertEqual(data, self.message(line), f"line {line}")
            if found is None:
                return
            yield line

    def test_recvNothing(self) -> None:
        """
        A C{recv} that finds nothing is left by the handler's error, and what comes later is there.
        """
        one, other = self.pair()
        other.settimeout(None)

        heard: list[int] = []

        def interruptOnce(number: int, frame: FrameType | None) -> None:
            if not heard:
                heard.append(number)
                raise Interrupted

        def kill() -> None:
            waitUntil(lambda: self.loop.sleeping)
            # A signal between the interpreter's last look for one and the system call does not end that.
            waitUntil(lambda: heard or os.kill(os.getpid(), signal.SIGUSR1))

        signal.signal(signal.SIGUSR1, interruptOnce)
        for _ in range(20):
            heard.clear()
            killed = self.inThread(kill)
            self.assertRaises(Interrupted, other.recv, 1)
            killed.result(HANG_SECONDS)
        one.sendall(END)
        self.assertEqual(other.recv(1), END)

    def test_close(self) -> None:
        """
        A C{close} that was interrupted can be called again, and the peer finds the end.
        """
        for line in range(1, sys.maxsize, STRIDE):
            one, other = self.pair()
            found = interrupted(line, one.close)
            one.close()
            del one
            self.assertEqual(other.recv(1), b"", f"line {line}")
            if found is None:
                break

    def test_connect(self) -> None:
        """
        A C{connect} that was interrupted leaves no connection that nobody has.
        """
        # Ports whose connections all end at once are not to be left to TCP.
        self.rules(
            f"timeout sdp {HANG_SECONDS:g}\ntimeout short 0\nuse both listen * *:*\nuse both connect * *:*\n"
        )
        for line in range(1, sys.maxsize, STRIDE):
            listener = self.server()
            one = offloading.socket()
            one.settimeout(HANG_SECONDS)
            accepting = self.inThread(listener.accept)
            found = interrupted(line, partial(one.connect, listener.getsockname()))
            isOffloaded = one.sdp is not None
            one.close()
            del one
            if not accepting.done():
                # One too many if it is about to be: it ends with the listener.
                offloading.create_connection(listener.getsockname(), HANG_SECONDS).close()
            other = accepting.result(HANG_SECONDS)[0]
            other.settimeout(HANG_SECONDS)
            try:
                self.assertEqual(other.recv(1), b"", f"line {line}")
            except ConnectionResetError:
                self.assertTrue(found)
            other.close()
            listener.close()
            if found is None:
                self.assertTrue(isOffloaded)
                break
