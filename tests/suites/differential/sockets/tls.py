"""
C{ssl} over a connection.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from functools import cache
from typing import Any

from twisted.internet.ssl import Certificate

from tests.suites.differential.sockets.ends import Ends, scenarios
from tests.support.certificates import certificate


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    made = certificate("localhost")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pem")
        with open(path, "wb") as file:
            file.write(made.dumpPEM())
        server.load_cert_chain(path)
    client.load_verify_locations(cadata=Certificate.dumpPEM(made).decode())
    return server, client


def _secured(ends: Ends) -> tuple[Any, Any]:
    # The client, and the server's end.
    one, other = ends.pair(20)
    server, client = contexts()
    wrapping = ends.inThread(lambda: server.wrap_socket(other, server_side=True))
    made = ends.kept(client.wrap_socket(one, server_hostname="localhost"))
    return made, ends.kept(wrapping.result(20))


@scenarios
def tlsBytes(ends: Ends) -> None:
    """
    Bytes both ways, and the orderly end.
    """
    one, other = _secured(ends)
    ends.say("version", one.version(), one.cipher() == other.cipher(), one.server_hostname)
    ends.call("send", one.send, b"hello")
    ends.call("recv", other.recv, 3)
    ends.call("pending", other.pending)
    ends.call("read", other.read, 10)
    ends.call("sendall", other.sendall, b"x" * 100000)
    ends.say("received", len(one.recv(10, 0)))
    one.settimeout(0.0)
    unwrapping = ends.inThread(other.unwrap)
    one.settimeout(20)
    while one.recv(65536):
        pass
    ends.call("unwrap", lambda: type(one.unwrap()).__name__)
    ends.call("unwrapped", unwrapping.result, 20)


@scenarios.each(
    "recvmsg", "sendmsg", "recvfrom", "recvfrom_into", "sendto", "recv_into", "recv", "dup", "makefile"
)
def tlsCalls(ends: Ends, name: str) -> None:
    """
    Calls of a secured socket with plain arguments, with none, and with flags.
    """
    one, other = _secured(ends)
    other.sendall(b"data")
    plain = {"recv_into": bytearray(3), "recvfrom_into": bytearray(3), "sendmsg": [b"x"], "sendto": b"x"}
    if name not in ("dup", "makefile"):
        ends.call(name, getattr(one, name), plain.get(name, 3))
        ends.call("flags", getattr(one, name), plain.get(name, 3), socket.MSG_PEEK)
    ends.call("nothing", lambda: type(getattr(one, name)()).__name__)


@scenarios.each(True, False)
def tlsRagged(ends: Ends, isSuppressed: bool) -> None:
    """
    An end without TLS's own.
    """
    one, other = _secured(ends)
    one.suppress_ragged_eofs = isSuppressed
    other.shutdown(socket.SHUT_WR)
    ends.call("recv", one.recv, 1)


@scenarios.each("wrong.example", None, "")
def tlsNames(ends: Ends, name: str | None) -> None:
    """
    A certificate for another name, or no name.
    """
    one, other = ends.pair(20)
    server, client = contexts()
    wrapping = ends.inThread(lambda: server.wrap_socket(other, server_side=True))
    ends.call("client", client.wrap_socket, one, server_hostname=name)
    one.close()
    ends.say("server", type(wrapping.exception(20)).__name__)


@scenarios
def tlsLater(ends: Ends) -> None:
    """
    The handshake on demand, with sockets that do not block.
    """
    one, other = ends.pair(0.0)
    server, client = contexts()
    named = {"do_handshake_on_connect": False}
    secured = ends.kept(client.wrap_socket(one, server_hostname="localhost", **named))
    ends.call("handshake", secured.do_handshake)
    ends.call("certificate", secured.getpeercert)
    ends.call("recv", secured.recv, 1)
    answering = ends.kept(server.wrap_socket(other, server_side=True, **named))
    shaken: set[int] = set()

    def shake() -> bool:
        for index, each in enumerate((secured, answering)):
            try:
                each.do_handshake()
                shaken.add(index)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
        return len(shaken) == 2

    ends.until(shake)
    ends.call("subject", lambda: secured.getpeercert()["subject"])
    ends.call("no data", secured.recv, 1)
    ends.call("closed", secured.close)
    ends.call("send", secured.send, b"x")


@scenarios
def tlsPlain(ends: Ends) -> None:
    """
    A client without TLS at a server with it.
    """
    one, other = ends.pair(20)
    server, _ = contexts()
    one.sendall(b"GET / HTTP/1.0\r\n\r\n")
    ends.call("server", server.wrap_socket, other, server_side=True)
