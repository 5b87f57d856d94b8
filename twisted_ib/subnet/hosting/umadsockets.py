"""
The sockets of ibsim's protocol: abstract datagram sockets of the network namespace.

The server has C{NAME:ctl}, and C{NAME:outI} for client I, connected with the client's C{NAME:inID}: from then
on the kernel takes messages from that client alone.  Anybody in the network namespace may send to an abstract
socket, so each message is taken with its sender's credentials.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from twisted_ib.hca.host import libc
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.subnet.hosting.descriptors import Descriptor
from twisted_ib.subnet.network.umad import CONTROL, MESSAGE, ISubnet, UmadServer

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Messages read from one socket before others have their turn.
_MESSAGES_PER_TURN: Final = 64
#: unix(7), struct ucred: process, user, group.
_CREDENTIALS: Final[Packed[tuple[int, int, int]]] = Struct("=iII")
_ROOM: Final = socket.CMSG_SPACE(_CREDENTIALS.size)
#: A connected datagram socket whose peer is gone (unix(7), connect(2)).
_GONE: Final = (errno.ECONNREFUSED, errno.ENOTCONN, errno.EPIPE)


def _name(base: str, rest: str) -> bytes:
    # ibsim's addresses are one octet longer than the name: the zero behind it counts.
    return b"\0" + f"{base}:{rest}".encode() + b"\0"


def _bound(name: bytes) -> socket.socket:
    sock = KernelSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        # Before it has a name: no message comes without credentials.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(name)
    except OSError:
        sock.close()
        raise
    return sock


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pidfd = -1
        self._readers: list[Descriptor] = []

    def watch(self, add: Callable[[Descriptor], object], fd: int, read: Callable[[], None]) -> None:
        reader = Descriptor(fd, read)
        self._readers.append(reader)
        add(reader)

    def close(self, remove: Callable[[Descriptor], object]) -> None:
        for reader in self._readers:
            remove(reader)
        self.sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


class UmadSockets:
    """
    Serves a subnet over ibsim's protocol: see L{IWire<twisted_ib.subnet.network.umad.IWire>}.

    Messages of another user are dropped and counted as C{umad_other_user}.
    """

    def __init__(
        self,
        subnet: ISubnet,
        name: str,
        addReader: Callable[[Descriptor], object],
        removeReader: Callable[[Descriptor], object],
        count: Callable[[str], object],
        allows: Callable[[int], bool],
    ) -> None:
        """
        Bind the sockets and begin to read.

        @param name: C{IBSIM_SOCKNAME} of the clients.
        @param addReader: the reactor's.
        @param removeReader: likewise.
        @param count: called with the name of each loss.
        @param allows: whether a user may attach.
        @raise OSError: the name is taken, or too long.
        """
        self._name = name
        self._add, self._remove = addReader, removeReader
        self._count = count
        self._allows = allows
        self._connections: dict[int, _Connection] = {}
        self._process = 0
        self.server = UmadServer(subnet, self, count)
        self._control = _bound(_name(name, "ctl"))
        self._reader = Descriptor(self._control.fileno(), self._controlReadable)
        addReader(self._reader)

    def close(self) -> None:
        """
        Close all sockets.  Idempotent.
        """
        for number in self.server.clients:
            self.server.gone(number)
        if self._control.fileno() >= 0:
            self._remove(self._reader)
            self._control.close()

    # -- IWire

    def attach(self, number: int, identity: int) -> bool:
        try:
            sock = _bound(_name(self._name, f"out{number}"))
        except OSError:
            return False
        try:
            sock.connect(_name(self._name, f"in{identity}"))
        except OSError:
            sock.close()
            return False
        connection = self._connections[number] = _Connection(sock)
        connection.watch(self._add, sock.fileno(), lambda: self._readable(number, sock))
        # A client that is killed does not disconnect; a pid is 0 if it is outside our pid namespace.
        if self._process > 0:
            try:
                pidfd = libc.pidfdOpen(self._process)
            except OSError:
                return True
            connection.pidfd = pidfd
            connection.watch(self._add, pidfd, lambda: self.server.gone(number))
        return True

    def detach(self, number: int) -> None:
        self._connections.pop(number).close(self._remove)

    def send(self, number: int, message: bytes) -> bool:
        connection = self._connections.get(number)
        if connection is None:
            # An earlier message has found it gone.
            return False
        try:
            connection.sock.send(message)
        except OSError as error:
            if error.errno in _GONE:
                self.server.gone(number)
            return False
        return True

    # -- readers

    def _controlReadable(self) -> None:
        control = self._control
        for _ in range(_MESSAGES_PER_TURN):
            received = self._receive(control, CONTROL.size)
            if received is None:
                return
            octets, process, address = received
            if not address:
                # A socket without a name could not have the reply, nor be told from others.
                self._count("umad_malformed")
                continue
            self._process = process
            reply = self.server.control(address, octets)
            if reply is not None:
                try:
                    control.sendto(reply, address)
                except OSError:
                    # It is gone, or does not read its replies.
                    self._count("umad_overrun")

    def _readable(self, number: int, sock: socket.socket) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            # The last message may have ended the client.
            if sock.fileno() < 0:
                return
            received = self._receive(sock, MESSAGE.size)
            if received is None:
                return
            self.server.received(number, received[0])

    def _receive(self, sock: socket.socket, size: int) -> tuple[bytes, int, bytes] | None:
        for _ in range(_MESSAGES_PER_TURN):
            try:
                # One octet more, so that a longer message is not taken for one of this size.
                octets, ancillary, _, address = sock.recvmsg(size + 1, _ROOM)
            except OSError:
                # Nothing is there; or the peer is gone, which its process or the next send reports.
                return None
            process, user = _sender(ancillary)
            if self._allows(user):
                return octets, process, address or b""
            self._count("umad_other_user")
        return None


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
            process, user, _ = _CREDENTIALS.unpack(data)
            return process, user
    return 0, -1
