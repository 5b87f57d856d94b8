"""
How connections come up, or do not.
"""

from __future__ import annotations

import select
import socket
from typing import Any

from tests.suites.differential.sockets.ends import HOST, Ends, scenarios


def _free(ends: Ends) -> Any:
    # An address at which nobody listens.
    with socket.socket() as made:
        made.bind((HOST, 0))
        return made.getsockname()


@scenarios.each(None, 5.0, 0.0)
def refused(ends: Ends, timeout: float | None) -> None:
    """
    Nobody listens.
    """
    for name in ("connect", "connect_ex"):
        one = ends.kept(socket.socket())
        one.settimeout(timeout)
        ends.call(name, getattr(one, name), _free(ends))
        if timeout == 0.0:
            ends.until(lambda one=one: "POLLHUP" in ends.events(one))
            ends.say("events", ends.events(one))
            ends.say("error", [one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)])
        ends.call("getpeername", one.getpeername)
        ends.call("send", one.send, b"x")


@scenarios.each("connect", "connect_ex")
def nonBlocking(ends: Ends, name: str) -> None:
    """
    A connect in progress, found to be over by C{select}.
    """
    listener = ends.server()
    one = ends.kept(socket.socket())
    one.setblocking(False)
    ends.call(name, getattr(one, name), listener.getsockname())
    ends.say("writable", len(select.select([], [one], [], 20)[1]))
    ends.call("error", one.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
    ends.call("twice", one.connect_ex, listener.getsockname())
    ends.say("again", one.connect_ex(listener.getsockname()))
    other, _ = listener.accept()
    ends.kept(other)
    ends.call("send", one.send, b"x")
    ends.call("recv", other.recv, 1)
    ends.call("peer", lambda: one.getpeername() == other.getsockname())


@scenarios
def addresses(ends: Ends) -> None:
    """
    Addresses that are none.
    """
    wrong: tuple[Any, ...] = (
        None,
        "x",
        (HOST,),
        (HOST, "9"),
        (HOST, -1),
        (HOST, 70000),
        (5, 5),
        (HOST, 9, 9),
    )
    for address in wrong:
        for name in ("connect", "connect_ex", "bind"):
            ends.call(f"{name} {address!r}", getattr(ends.kept(socket.socket()), name), address)


@scenarios
def bound(ends: Ends) -> None:
    """
    A client with a port of its own; its address is taken then.
    """
    listener = ends.server()
    one = ends.kept(socket.socket())
    one.bind((HOST, 0))
    before = one.getsockname()
    one.connect(listener.getsockname())
    other, peer = listener.accept()
    ends.kept(other)
    ends.say("same", before == one.getsockname() == peer == other.getpeername())
    ends.call("bind again", one.bind, (HOST, 0))
    ends.call("taken", ends.kept(socket.socket()).bind, before)


@scenarios.each(0.0, 0.02)
def nobodyConnects(ends: Ends, timeout: float) -> None:
    """
    C{accept} without a client.
    """
    listener = ends.server()
    listener.settimeout(timeout)
    ends.call("accept", listener.accept)
    ends.call("again", listener.accept)


@scenarios.each(None, 3.0, 0.0)
def accepted(ends: Ends, timeout: float | None) -> None:
    """
    What an accepted socket has of its listener.
    """
    listener = ends.server()
    one = ends.kept(socket.socket())
    one.connect(listener.getsockname())
    ends.until(lambda: select.select([listener], [], [], 0)[0])
    listener.settimeout(timeout)
    other, peer = listener.accept()
    ends.kept(other)
    ends.say("timeout", other.gettimeout(), other.getblocking(), other.get_inheritable())
    ends.say("kind", other.family, other.type, other.proto)
    ends.say("names", peer == one.getsockname(), other.getsockname() == listener.getsockname())


@scenarios
def helpers(ends: Ends) -> None:
    """
    C{create_server} and C{create_connection}.
    """
    listener = ends.kept(socket.create_server((HOST, 0)))
    one = ends.kept(socket.create_connection(listener.getsockname(), timeout=7, source_address=(HOST, 0)))
    ends.say("timeout", one.gettimeout())
    ends.call("taken", socket.create_server, listener.getsockname())
    ends.call("refused", socket.create_connection, _free(ends))
    ends.call("all errors", socket.create_connection, _free(ends), all_errors=False)


@scenarios
def sixes(ends: Ends) -> None:
    """
    IPv6.
    """
    listener = ends.server(socket.AF_INET6, "::1")
    one = ends.kept(socket.socket(socket.AF_INET6))
    one.connect(listener.getsockname())
    other, peer = listener.accept()
    ends.kept(other)
    ends.say("names", one.getpeername()[0], len(peer), peer == one.getsockname())
    ends.call("wrong family", ends.kept(socket.socket(socket.AF_INET6)).connect, (HOST, 9))


@scenarios
def clientsGone(ends: Ends) -> None:
    """
    A client that sends and closes before it is accepted.
    """
    listener = ends.server()
    one = ends.kept(socket.socket())
    one.connect(listener.getsockname())
    one.sendall(b"left early")
    one.close()
    other, _ = listener.accept()
    ends.say("received", ends.drained(ends.kept(other)))
