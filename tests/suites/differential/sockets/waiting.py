"""
C{select}, C{poll}, C{epoll} and C{selectors} with sockets.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
from typing import Any

from tests.suites.differential.sockets.ends import Ends, scenarios

_SELECTORS = ("SelectSelector", "PollSelector", "EpollSelector", "DefaultSelector")


@scenarios.each(*_SELECTORS)
def selector(ends: Ends, kind: str) -> None:
    """
    A selector through a connection's life.
    """
    one, other = ends.pair(0.0)

    def found(timeout: float = 0) -> Any:
        return [(key.data, events) for key, events in made.select(timeout)]

    with getattr(selectors, kind)() as made:
        made.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE, "one")
        ends.call("twice", made.register, one, selectors.EVENT_READ)
        ends.call("none", made.register, other, 0)
        ends.say("idle", found())
        made.modify(one, selectors.EVENT_READ, "reader")
        ends.say("reader", found())
        other.sendall(b"x")
        ends.say("data", found(20))
        ends.say("data stays", found())
        one.recv(1)
        ends.say("nothing", found())
        other.shutdown(socket.SHUT_WR)
        ends.say("end", found(20))
        ends.call("key", lambda: made.get_key(one).data)
        ends.call("unregister", lambda: made.unregister(one).data)
        ends.call("again", made.unregister, one)
        ends.say("map", len(made.get_map()))


@scenarios
def mixed(ends: Ends) -> None:
    """
    Sockets and pipes in one wait.
    """
    one, other = ends.pair()
    reader, writer = os.pipe()
    try:
        ends.say("idle", [len(each) for each in select.select([one, reader], [one, writer], [one], 0)])
        os.write(writer, b"x")
        ends.say("pipe", [each == reader for each in select.select([one, reader], [], [], 20)[0]])
        os.read(reader, 1)
        other.sendall(b"y")
        ends.say("socket", [each is one for each in select.select([one, reader], [], [], 20)[0]])
    finally:
        os.close(reader)
        os.close(writer)


@scenarios.each(*_SELECTORS)
def woken(ends: Ends, kind: str) -> None:
    """
    A thread that waits is woken by another one.
    """
    one, other = ends.pair()
    with getattr(selectors, kind)() as made:
        made.register(one, selectors.EVENT_READ)
        timer = threading.Timer(0.02, other.sendall, (b"x",))
        timer.start()
        ends.say("woken", [events for _, events in made.select(20)])
        timer.join()


@scenarios
def poll(ends: Ends) -> None:
    """
    C{select.poll}: its own rules.
    """
    one, other = ends.pair()
    made = select.poll()
    ends.call("register", made.register, one)
    ends.call("again", made.register, one, select.POLLIN)
    ends.say("idle", [events for _, events in made.poll(0)])
    ends.call("modify", made.modify, one, select.POLLOUT)
    ends.say("out", [events for _, events in made.poll(0)])
    ends.call("modify unknown", made.modify, other, select.POLLIN)
    ends.call("unregister unknown", made.unregister, other)
    ends.call("wrong", made.register, "x")
    ends.call("timeout", made.poll, "x")
    one.close()
    ends.call("closed", made.register, one)


@scenarios.each("EPOLLONESHOT", "EPOLLEXCLUSIVE", "EPOLLRDHUP", "EPOLLPRI")
def epoll(ends: Ends, flag: str) -> None:
    """
    C{select.epoll} with a flag.
    """
    one, other = ends.pair()
    with select.epoll() as made:
        made.register(one, select.EPOLLIN | getattr(select, flag))
        ends.call("twice", made.register, one, select.EPOLLIN)
        other.sendall(b"x")
        ends.say("data", [events for _, events in made.poll(20)])
        ends.say("again", [events for _, events in made.poll(0)])
        if flag == "EPOLLONESHOT":
            made.modify(one, select.EPOLLIN)
            ends.say("armed again", [events for _, events in made.poll(20)])
        ends.call("unregister", made.unregister, one)
        ends.call("unknown", made.unregister, one)
        ends.call("modify unknown", made.modify, one, select.EPOLLIN)
        ends.call("no room", made.poll, 0, 0)
    ends.call("closed", made.poll, 0)


@scenarios
def arguments(ends: Ends) -> None:
    """
    C{select.select}: its own rules.
    """
    one, _ = ends.pair()
    ends.call("negative", select.select, [one], [], [], -1)
    ends.call("no list", select.select, one, [], [], 0)
    ends.call("no descriptor", select.select, ["x"], [], [], 0)
    ends.call("generator", lambda: len(select.select((each for each in [one]), (), (), 0)[0]))
    ends.call("twice", lambda: len(select.select([], [one, one], [], 0)[1]))
    ends.call("number", lambda: len(select.select([], [one.fileno()], [], 0)[1]))
    one.close()
    ends.call("closed", select.select, [one], [], [], 0)


@scenarios
def normal(ends: Ends) -> None:
    """
    The names of poll(2) for normal data, which a program may ask for alone.
    """
    one, other = ends.pair()
    masks = select.POLLRDNORM, select.POLLWRNORM, select.POLLRDNORM | select.POLLIN, select.POLLRDBAND

    def found() -> Any:
        polled = []
        for mask in masks:
            poll = select.poll()
            poll.register(one, mask)
            polled.append([events for _, events in poll.poll(0)])
            with select.epoll() as made:
                made.register(one, mask | select.EPOLLET)
                polled.append([events for _, events in made.poll(0)])
        return polled

    ends.say("idle", found())
    other.sendall(b"x")
    ends.arrived(one)
    ends.say("data", found())
