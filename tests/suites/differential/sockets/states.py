"""
Each operation of a socket in each state that it can have: what it returns or raises, and what is found then.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from typing import Any

from tests.suites.differential.sockets.ends import HOST, Ends, scenarios

_LINGER = struct.pack("ii", 1, 0)


def _unconnected(ends: Ends) -> Any:
    return ends.kept(socket.socket())


def _listening(ends: Ends) -> Any:
    return ends.server()


def _listenerWithClient(ends: Ends) -> Any:
    listener = ends.server()
    client = ends.kept(socket.socket())
    ends.inThread(client.connect, listener.getsockname()).result(5)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    ends.until(lambda: poll.poll(0))
    return listener


def _listenerShut(ends: Ends) -> Any:
    listener = ends.server()
    listener.shutdown(socket.SHUT_RDWR)
    return listener


def _closed(ends: Ends) -> Any:
    one, _ = ends.pair()
    one.close()
    return one


def _connected(ends: Ends) -> Any:
    return ends.pair()[0]


def _accepted(ends: Ends) -> Any:
    return ends.pair()[1]


def _withData(ends: Ends) -> Any:
    one, other = ends.pair()
    other.sendall(b"data")
    ends.arrived(one, 4)
    return one


def _shutRead(ends: Ends) -> Any:
    one, _ = ends.pair()
    one.shutdown(socket.SHUT_RD)
    return one


def _shutReadWithData(ends: Ends) -> Any:
    one = _withData(ends)
    one.shutdown(socket.SHUT_RD)
    return one


def _shutWrite(ends: Ends) -> Any:
    one, other = ends.pair()
    one.shutdown(socket.SHUT_WR)
    ends.ended(other)
    return one


def _shutBoth(ends: Ends) -> Any:
    one, other = ends.pair()
    one.shutdown(socket.SHUT_RDWR)
    ends.ended(other)
    return one


def _peerShut(ends: Ends) -> Any:
    one, other = ends.pair()
    other.shutdown(socket.SHUT_WR)
    ends.ended(one)
    return one


def _peerShutWithData(ends: Ends) -> Any:
    one, other = ends.pair()
    other.sendall(b"data")
    other.shutdown(socket.SHUT_WR)
    ends.ended(one)
    return one


def _peerClosed(ends: Ends) -> Any:
    one, other = ends.pair()
    other.close()
    ends.ended(one)
    return one


def _peerClosedWithData(ends: Ends) -> Any:
    one, other = ends.pair()
    other.sendall(b"data")
    other.close()
    ends.ended(one)
    return one


def _bothShut(ends: Ends) -> Any:
    one, other = ends.pair()
    one.shutdown(socket.SHUT_WR)
    ends.ended(other)
    other.shutdown(socket.SHUT_WR)
    ends.ended(one)
    return one


def _peerReset(ends: Ends) -> Any:
    one, other = ends.pair()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    other.close()
    ends.ended(one)
    return one


def _peerResetWithData(ends: Ends) -> Any:
    one, other = ends.pair()
    other.sendall(b"data")
    ends.arrived(one, 4)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    other.close()
    ends.ended(one)
    return one


def _peerClosedUnread(ends: Ends) -> Any:
    one, other = ends.pair()
    one.sendall(b"unread")
    ends.arrived(other, 6)
    other.close()
    ends.ended(one)
    return one


def _peerResetAfterEnd(ends: Ends) -> Any:
    one, other = ends.pair()
    other.close()
    ends.ended(one)
    one.sendall(b"x")
    ends.until(lambda: "POLLHUP" in ends.events(one))
    return one


def _dup(ends: Ends) -> Any:
    one, _ = ends.pair()
    made = ends.kept(one.dup())
    one.close()
    return made


STATES: tuple[Callable[[Ends], Any], ...] = (
    *(_unconnected, _listening, _listenerWithClient, _listenerShut, _closed, _connected, _accepted),
    *(_withData, _shutRead, _shutReadWithData, _shutWrite, _shutBoth, _peerShut, _peerShutWithData),
    *(_peerClosed, _peerClosedWithData, _bothShut, _peerReset, _peerResetWithData, _peerClosedUnread),
    *(_peerResetAfterEnd, _dup),
)


def _epoll(skt: Any) -> Any:
    with select.epoll() as made:
        made.register(skt, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
        return [events for _, events in made.poll(0)]


def _tcpState(skt: Any) -> Any:
    # FIN_WAIT1 becomes FIN_WAIT2 when the peer's kernel acknowledges: a matter of time.
    state = skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return 5 if state == 4 else state


#: The operations, that do not block: each on a socket of its own.
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "recv": lambda skt: skt.recv(10),
    "recv two": lambda skt: (skt.recv(2), skt.recv(10)),
    "recv nothing": lambda skt: skt.recv(0),
    "recv negative": lambda skt: skt.recv(-1),
    "recv peek": lambda skt: (skt.recv(10, socket.MSG_PEEK), skt.recv(10, socket.MSG_PEEK)),
    "recv_into": lambda skt: skt.recv_into(bytearray(10)),
    "recv_into no room": lambda skt: skt.recv_into(bytearray()),
    "recvfrom": lambda skt: skt.recvfrom(10),
    "recvfrom_into": lambda skt: skt.recvfrom_into(bytearray(3)),
    "recvmsg": lambda skt: skt.recvmsg(10),
    "recvmsg_into": lambda skt: skt.recvmsg_into([bytearray(1), bytearray(9)]),
    "send": lambda skt: skt.send(b"x"),
    "send nothing": lambda skt: skt.send(b""),
    "send twice": lambda skt: (skt.send(b"x"), skt.send(b"y")),
    "sendall": lambda skt: skt.sendall(b"xyz"),
    "sendmsg": lambda skt: skt.sendmsg([b"x", b"y"]),
    "sendto": lambda skt: skt.sendto(b"x", (HOST, 9)),
    "getsockname": lambda skt: skt.getsockname()[0],
    "getpeername": lambda skt: skt.getpeername()[0],
    "shutdown read": lambda skt: skt.shutdown(socket.SHUT_RD),
    "shutdown write": lambda skt: skt.shutdown(socket.SHUT_WR),
    "shutdown both": lambda skt: skt.shutdown(socket.SHUT_RDWR),
    "shutdown twice": lambda skt: (skt.shutdown(socket.SHUT_RDWR), skt.shutdown(socket.SHUT_RDWR)),
    "shutdown wrong": lambda skt: skt.shutdown(7),
    "accept": lambda skt: skt.accept()[0],
    "bind": lambda skt: skt.bind((HOST, 0)),
    "listen": lambda skt: skt.listen(),
    "connect": lambda skt: skt.connect((HOST, 9)),
    "connect_ex": lambda skt: skt.connect_ex((HOST, 9)),
    "SO_ERROR": lambda skt: [skt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)],
    "SO_ACCEPTCONN": lambda skt: skt.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN),
    "TCP_INFO": _tcpState,
    "fileno": lambda skt: skt.fileno() >= 0,
    "repr": lambda skt: repr(skt).split(",")[1:4],
    "select": lambda skt: [len(each) for each in select.select([skt], [skt], [skt], 0)],
    "epoll": _epoll,
    "makefile": lambda skt: skt.makefile("rb").read1(10),
    "detach": lambda skt: skt.detach() >= 0,
    "close": lambda skt: skt.close(),
    "nothing": lambda skt: None,
}


#: Their consequences are a matter of time: the kernel's or the peer's own answer comes later.
_ANSWERED = ("connect", "connect_ex", "accept")


def _played(ends: Ends, state: Callable[[Ends], Any]) -> None:
    # What is sent to a peer that has closed draws a reset, at once or a turn later.
    isGone = state in (_peerClosed, _peerClosedWithData)
    for name, operation in OPERATIONS.items():
        if isGone and name == "send twice":
            continue
        ends.part(name)
        skt = state(ends)
        if skt.fileno() >= 0:
            skt.settimeout(0.0)
        ends.call(name, operation, skt)
        isSent = isGone and name.startswith("send") and name != "send nothing"
        if name in _ANSWERED or isSent:
            continue
        # What another program would find.
        ends.call("events", ends.events, skt)
        ends.call("recv", skt.recv, 100)
        ends.call("send", skt.send, b"more")
        if not isGone:
            ends.call("error", skt.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)


for _state in STATES:
    scenarios.add(f"state-{_state.__name__.strip('_')}", lambda ends, state=_state: _played(ends, state))
