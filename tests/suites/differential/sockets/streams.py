"""
Bytes through a connection: pieces, looks, waits for all, files, timeouts, and the end.
"""

from __future__ import annotations

import hashlib
import socket
import time
from struct import pack
from typing import Any

from tests.suites.differential.sockets.ends import Ends, scenarios

BULK = bytes(range(256)) * 4096 * 3


@scenarios.each(1, 3, 7, 8, 100)
def pieces(ends: Ends, size: int) -> None:
    """
    Several sends, received in pieces of one size.
    """
    one, other = ends.pair()
    for data in (b"one", b"two", b"three", b"", b"four"):
        one.sendall(data)
    ends.arrived(other, 15)
    ends.call("peek", other.recv, size, socket.MSG_PEEK)
    one.close()
    while ends.call("recv", other.recv, size):
        pass


@scenarios.each(1, 5, 6, 11, 12)
def waitAll(ends: Ends, size: int) -> None:
    """
    C{MSG_WAITALL} joins what was sent in pieces.
    """
    one, other = ends.pair()
    one.sendall(b"hello ")
    one.sendall(b"world")
    one.close()
    ends.call("recv", other.recv, size, socket.MSG_WAITALL)
    ends.call("again", other.recv, size, socket.MSG_WAITALL)
    ends.call("end", other.recv, size, socket.MSG_WAITALL)


@scenarios.each(0, 1, 1000, 1 << 16, len(BULK))
def bulk(ends: Ends, size: int) -> None:
    """
    So many octets both ways, while the other side reads.
    """
    one, other = ends.pair()
    for sender, receiver in ((one, other), (other, one)):
        drained = ends.inThread(ends.drained, receiver)
        ends.call("sendall", sender.sendall, BULK[:size])
        ends.call("shutdown", sender.shutdown, socket.SHUT_WR)
        data = drained.result(30)
        ends.say("received", len(data), hashlib.sha256(data).hexdigest())


@scenarios.each(0.0, 0.05)
def fill(ends: Ends, timeout: float) -> None:
    """
    A peer that does not read: send ends with the error, and all that was sent arrives.
    """
    one, other = ends.pair()
    one.settimeout(timeout)
    sent = 0
    try:
        while sent < 1 << 28:
            sent += one.send(BULK)
    except OSError as e:
        ends.say("send", e)
    ends.say("writable", "POLLOUT" in ends.events(one))
    drained = ends.inThread(ends.drained, other)
    one.settimeout(None)
    one.shutdown(socket.SHUT_WR)
    ends.say("all arrived", len(drained.result(30)) == sent)


@scenarios.each(0.0, 0.02)
def nothingArrives(ends: Ends, timeout: float) -> None:
    """
    Calls that receive, with nothing to receive.
    """
    one, _ = ends.pair(timeout)
    for name in ("recv", "recvfrom", "recvmsg"):
        ends.call(name, getattr(one, name), 10)
    ends.call("recv_into", one.recv_into, bytearray(1))
    ends.call("recvfrom_into", one.recvfrom_into, bytearray(1))
    ends.call("recvmsg_into", one.recvmsg_into, [bytearray(1)])
    ends.call("recv 0", one.recv, 0)
    ends.call("waitall", one.recv, 10, socket.MSG_WAITALL)
    ends.call("peek", one.recv, 10, socket.MSG_PEEK)


@scenarios.each("rb", "r", "rwb")
def makefile(ends: Ends, mode: str) -> None:
    """
    Files of both ends.
    """
    one, other = ends.pair()
    writing, reading = ends.kept(one.makefile("wb")), ends.kept(other.makefile(mode))
    writing.write(b"first line\nsecond\n\nlast")
    ends.call("flush", writing.flush)
    ends.call("fileno", lambda: writing.fileno() == one.fileno())
    ends.call("readline", reading.readline)
    ends.call("read", reading.read, 3)
    one.close()
    ends.call("close", writing.close)
    ends.call("lines", reading.readlines)
    ends.call("end", reading.read)
    ends.call("modes", lambda: (reading.readable(), reading.writable(), reading.seekable()))


@scenarios
def makefileTimeout(ends: Ends) -> None:
    """
    A file after a timeout cannot be read.
    """
    one, _ = ends.pair(0.02)
    file = ends.kept(one.makefile("rb"))
    ends.call("read", file.read, 1)
    ends.call("again", file.read, 1)


@scenarios
def sendfile(ends: Ends) -> None:
    """
    C{sendfile} with all that its parameters may be.
    """
    one, other = ends.pair()
    file = ends.file(b"0123456789" * 100)
    for offset, count in ((0, None), (990, None), (5, 5), (0, 0), (-1, 5), (0, -1), (0, 2.5), (2000, None)):
        ends.call(f"sendfile {offset} {count}", one.sendfile, file, offset, count)
        ends.say("tell", file.tell())
    file.seek(0, 2)
    ends.call("at its end", one.sendfile, file)
    with open(file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.fileno()}") as text:
        ends.call("text", one.sendfile, text)
    one.settimeout(0.0)
    ends.call("nothing, without blocking", one.sendfile, ends.file(b""))
    ends.call("without blocking", one.sendfile, file)
    one.close()
    ends.say("received", ends.drained(other))


@scenarios
def types(ends: Ends) -> None:
    """
    Arguments that are none, and buffers of every kind.
    """
    one, other = ends.pair(5)
    for data in ("text", None, 5, [b"x"], bytearray(b"ab"), memoryview(b"abcdef")[::2], memoryview(b"abcd")):
        for name in ("send", "sendall"):
            ends.call(f"{name} {type(data).__name__}", getattr(one, name), data)
    ends.call("sendmsg", one.sendmsg, b"xyz")
    ends.call("sendmsg ints", one.sendmsg, [1])
    ends.call("sendmsg nothing", one.sendmsg, [])
    ends.call("sendto", one.sendto, b"x", None)
    ends.call("sendto one", one.sendto, b"x")
    for size in (None, "1", 1.5, -1, True):
        ends.call(f"recv {size!r}", other.recv, size)
    ends.call("recv_into bytes", other.recv_into, b"abc")
    ends.call("recv_into small", other.recv_into, bytearray(2), 3)
    ends.call("recv_into negative", other.recv_into, bytearray(2), -1)
    ends.call("recvmsg_into bytes", other.recvmsg_into, [b"abc"])
    ends.call("recv flags", other.recv, 1, "x")
    one.close()
    ends.say("left", ends.drained(other))


@scenarios.each("MSG_DONTWAIT", "MSG_NOSIGNAL", "MSG_MORE", "MSG_EOR", "MSG_OOB", "MSG_ERRQUEUE", "MSG_TRUNC")
def flags(ends: Ends, name: str) -> None:
    """
    Flags of C{send} and C{recv}.
    """
    one, other = ends.pair(5)
    ends.call("send", one.send, b"abc", getattr(socket, name))
    one.sendall(b"def")
    other.settimeout(0.0)
    if name not in ("MSG_OOB", "MSG_TRUNC"):
        ends.arrived(other, 3)
        ends.call("recv", other.recv, 2, getattr(socket, name))


@scenarios
def blockedReceive(ends: Ends) -> None:
    """
    A thread that waits gets what comes: data, the end, a shutdown by another thread.
    """
    one, other = ends.pair()
    waiting = ends.inThread(one.recv, 10)
    time.sleep(0.02)
    other.sendall(b"now")
    ends.call("data", waiting.result, 10)
    waiting = ends.inThread(one.recv, 10)
    time.sleep(0.02)
    one.shutdown(socket.SHUT_RD)
    ends.call("shut by another thread", waiting.result, 10)
    waiting = ends.inThread(other.recv, 10)
    one.close()
    ends.call("closed by the peer", waiting.result, 10)


@scenarios
def timeouts(ends: Ends) -> None:
    """
    The values of timeouts.
    """
    one, _ = ends.pair()
    for value in (None, 0, 0.5, 3, -1, "x", True):
        ends.call(f"settimeout {value!r}", one.settimeout, value)
        ends.say("is", one.gettimeout(), one.getblocking())
    for value in (True, False):
        ends.call("setblocking", one.setblocking, value)
        ends.say("is", one.gettimeout())


def _fill(skt: socket.socket) -> None:
    # TCP's window may have grown since the last call, by as much as it will.
    while True:
        skt.send(b"octets")


@scenarios
def limits(ends: Ends) -> None:
    """
    SO_RCVTIMEO and SO_SNDTIMEO: a call of a socket that blocks ends in time.
    """
    one, other = ends.pair()
    for each in (one, other):
        each.setblocking(True)
    soon, never = pack("ll", 0, 40_000), pack("ll", 0, 0)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, soon)
    ends.say("is", one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)[:8], one.gettimeout())
    ends.call("nothing", one.recv, 10)
    ends.call("all of nothing", one.recv, 10, socket.MSG_WAITALL)
    other.sendall(b"some")
    ends.arrived(one, 4)
    ends.call("some of all", one.recv, 10, socket.MSG_WAITALL)
    ends.call("at once", one.recv, 10, socket.MSG_DONTWAIT)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, soon)
    ends.call("room", one.send, b"octets")
    ends.call("bulk", one.sendall, bytes(1 << 26))
    ends.call("no room", _fill, one)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, never)
    other.sendall(b"more")
    ends.call("as before", one.recv, 4, socket.MSG_WAITALL)


@scenarios
def copies(ends: Ends) -> None:
    """
    C{dup}, C{detach}, C{fromfd}: the connection lives until the last one closes.
    """
    one, other = ends.pair(5)
    copy = ends.kept(one.dup())
    ends.say("timeout", copy.gettimeout())
    one.close()
    ends.call("send", copy.sendall, b"by a copy")
    second: Any = ends.kept(socket.socket(fileno=copy.detach()))
    second.settimeout(5)
    ends.call("send", second.sendall, b" and another")
    ends.call("same", lambda: (second.family, second.type, second.getpeername() == other.getsockname()))
    third = ends.kept(socket.fromfd(second.fileno(), socket.AF_INET, socket.SOCK_STREAM))
    second.close()
    third.sendall(b" end")
    third.close()
    ends.say("received", ends.drained(other))


@scenarios
def shutBothThenData(ends: Ends) -> None:
    """
    Who has shut both directions down takes no more: data resets the connection (RFC 1122 section 4.2.2.13).
    """
    one, other = ends.pair()
    one.shutdown(socket.SHUT_RDWR)
    ends.ended(other)
    ends.call("send", other.send, b"data")
    ends.until(lambda: "POLLERR" in ends.events(one) and "POLLERR" in ends.events(other))
    for each in (one, other):
        each.settimeout(0.0)
        ends.say("events", ends.events(each))
        ends.call("recv", each.recv, 10)
        ends.call("send", each.send, b"more")
        ends.call("recv again", each.recv, 10)


@scenarios
def shutReadThenReset(ends: Ends) -> None:
    """
    Who has shut down what it receives hears of a reset.
    """
    one, other = ends.pair()
    one.shutdown(socket.SHUT_RD)
    one.sendall(b"unread")
    ends.arrived(other, 6)
    other.close()
    ends.until(lambda: "POLLHUP" in ends.events(one))
    one.settimeout(0.0)
    ends.say("events", ends.events(one))
    ends.call("recv", one.recv, 10)
    ends.call("recv again", one.recv, 10)
    ends.call("send", one.send, b"more")
