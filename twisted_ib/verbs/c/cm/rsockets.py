"""
rsockets by their descriptors: C{rsocket}, C{rsend}, C{rpoll} and the others.

A descriptor is that of the socket's event channel, so that it is no other file's.  Source: rdma-core 44,
C{librdmacm/man/rsocket.7.in}, C{rsocket.c}.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket as sockets
from collections.abc import Callable, Iterable
from typing import Final

from _twisted_ib_cm import ffi

from twisted_ib.verbs.c import attend, sockaddr
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.cm.polling import closeSet, forget
from twisted_ib.verbs.c.cm.structures import socketAddress
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, addressOf, given
from twisted_ib.verbs.c.rsocket.descriptors import Descriptor, descriptorOf, descriptors, insert
from twisted_ib.verbs.c.rsocket.protocol import MOST_MAPS, Way
from twisted_ib.verbs.c.rsocket.stream import Phase, RSocket
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

#: rdma-core rsocket.h: the level of its own options: queue sizes, inline data, entries of the I/O map.
_SOL_RDMA = 0x10000
_RDMA_OPTIONS = range(4)
_RDMA_IOMAPSIZE = 3
#: Options of sockets that are kept and read back; sizes of buffers and maps and C{IPV6_V6ONLY} do something.
_SOCKET_OPTIONS = {
    sockets.SOL_SOCKET: (
        *(
            sockets.SO_REUSEADDR,
            sockets.SO_SNDBUF,
            sockets.SO_RCVBUF,
            sockets.SO_LINGER,
            sockets.SO_KEEPALIVE,
        ),
        *(sockets.SO_OOBINLINE, sockets.SO_REUSEPORT),
    ),
    sockets.IPPROTO_TCP: (
        *(sockets.TCP_NODELAY, sockets.TCP_MAXSEG, sockets.TCP_KEEPIDLE, sockets.TCP_KEEPINTVL),
        sockets.TCP_KEEPCNT,
    ),
    sockets.IPPROTO_IPV6: (sockets.IPV6_V6ONLY,),
    sockets.IPPROTO_IP: (sockets.IP_TOS,),
    _SOL_RDMA: tuple(_RDMA_OPTIONS),
}
#: Octets of a buffer, at least and at most: halves of it are given to the peer, and a message has 29 bits.
_LEAST_BUFFER, _MOST_BUFFER = 1 << 12, 1 << 24
#: Linux limits.h, C{IOV_MAX}: parts of one call.
_MOST_PARTS = 1024
_F_GETFL, _F_SETFL = 3, 4
#: Linux asm-generic/ioctls.h, as an option of rdma-core's level: C{sockets.c} asks what can be read.
_FIONREAD = 0x541B
#: Of socket(2), which are in the type there.
_FLAGS = int(sockets.SOCK_NONBLOCK | sockets.SOCK_CLOEXEC)
#: mmap(2).
_PROT_WRITE = 2
# Numbers: of Python's flags each operator makes a new object.
_DONTWAIT: Final = int(sockets.MSG_DONTWAIT)
_PEEK: Final = int(sockets.MSG_PEEK)
_WAITALL: Final = int(sockets.MSG_WAITALL)


def _wait(one: Descriptor, ready: Callable[[], bool], flags: int = 0, again: int = errno.EAGAIN) -> None:
    """
    Wait for a condition of a socket.

    @param flags: of the call; C{MSG_DONTWAIT} does not wait.
    @param again: the error if it does not hold and the program does not wait.
    """

    def progressed() -> bool:
        one.socket.progress()
        return ready()

    immediately = one.isNonBlocking or flags & _DONTWAIT
    if not hub.wait(progressed, 0 if immediately else None):
        raise HandleError("The call would wait", again)


def _memory(pointer: CData, length: int) -> memoryview:
    if not length:
        return memoryview(b"")
    given(pointer)
    return memoryview(ffi.buffer(ffi.cast("char *", pointer), length))


# -- making and connecting


@handler
def rsocket(domain: int, type: int, protocol: int) -> int:
    if domain not in (sockets.AF_INET, sockets.AF_INET6, sockaddr.AF_IB):
        raise HandleError("There is no such family", errno.EAFNOSUPPORT)
    if type & ~_FLAGS != sockets.SOCK_STREAM or protocol not in (0, sockets.IPPROTO_TCP):
        raise HandleError("There are streams only", errno.EPROTONOSUPPORT)
    attend.begin()
    number = insert(RSocket(chosenDevice()), domain)
    descriptors[number].isNonBlocking = bool(type & sockets.SOCK_NONBLOCK)
    return number


@handler
def rbind(socket: int, addr: CData, length: int) -> int:
    one = descriptorOf(socket)
    address = socketAddress(addr).address
    with hub:
        one.socket.bind(address)
    return 0


@handler
def rlisten(socket: int, backlog: int) -> int:
    one = descriptorOf(socket)
    with hub:
        one.socket.listen(backlog)
    return 0


@handler
def raccept(socket: int, addr: CData, length: CData) -> int:
    one = descriptorOf(socket)
    if one.socket.phase is not Phase.LISTENING:
        raise HandleError("The socket does not listen")
    number = -1
    while number < 0:
        _wait(one, lambda: one.socket.canAccept)
        with hub:
            # Another thread may have taken it.
            if one.socket.canAccept:
                number = insert(one.socket.accept(), one.family)
    if addr and length:
        _tell(addr, length, descriptors[number].socket.cmid.peer_addr)
    return number


@handler
def rconnect(socket: int, addr: CData, length: int) -> int:
    one = descriptorOf(socket)
    destination = socketAddress(addr).address
    wildcard = Address("0.0.0.0" if destination.version == 4 else "::", 0)
    with hub:
        # Linux af_inet.c, __inet_stream_connect: the first call after it has ended tells how.
        if one.isUntold:
            one.socket.progress()
        if not one.isUntold or one.socket.phase is Phase.CONNECTING:
            one.socket.connect(wildcard, destination)
            one.isUntold = True
    _wait(one, lambda: one.socket.phase is not Phase.CONNECTING, again=errno.EINPROGRESS)
    one.isUntold = False
    if one.socket.error:
        raise HandleError("The connection failed", one.socket.error)
    return 0


_WAYS = {sockets.SHUT_RD: Way.READ, sockets.SHUT_WR: Way.WRITE, sockets.SHUT_RDWR: Way.READ | Way.WRITE}


@handler
def rshutdown(socket: int, how: int) -> int:
    """
    Close directions of a connection, once what was written has reached the peer.
    """
    one = descriptorOf(socket)
    if how not in _WAYS:
        raise HandleError("There is no such direction")
    with hub:
        one.socket.shutdown(_WAYS[how])
    one.socket.flush()
    return 0


@handler
def rclose(socket: int) -> int:
    with hub:
        if closeSet(socket):
            return 0
        one = descriptorOf(socket)
        del descriptors[socket]
        forget(socket)
    one.socket.finish()
    return 0


# -- data


_UNCONNECTED: Final = (Phase.NEW, Phase.BOUND, Phase.LISTENING)


def _checkConnected(one: Descriptor) -> None:
    if one.socket.phase in _UNCONNECTED:
        raise HandleError("The socket is not connected", errno.ENOTCONN)


def _receive(number: int, parts: Iterable[memoryview], flags: int) -> int:
    one = descriptorOf(number)
    socket, isPeek = one.socket, bool(flags & _PEEK)
    isPolled = one.isNonBlocking or flags & _DONTWAIT
    total = 0
    for part in parts:
        count, length = 0, len(part)
        while count < length:
            # The first octets are waited for, the rest only if the program says so.
            waits = not total or (flags & _WAITALL and not isPeek)
            taken = None
            with hub:
                _checkConnected(one)
                # As rdma-core's, it looks for what has come only if it has nothing.
                canRead = socket.canRead
                if not canRead and waits and isPolled:
                    socket.look()
                    canRead = socket.canRead
                if canRead:
                    taken = socket.read(part[count:] if count else part, isPeek)
            if taken is None:
                if not waits:
                    return total
                if isPolled:
                    # A program that polls gets it more often than octets: not by an exception.
                    ffi.errno = errno.EAGAIN
                    return total or -1
                try:
                    _wait(one, lambda: socket.canRead)
                except HandleError:
                    if total:
                        return total
                    raise
                continue
            if not taken and not total:
                # Some programs take errno for what has happened, as rdma-core's rstream: by the EAGAIN of an
                # earlier call they would ask for ever.
                ffi.errno = errno.ECONNRESET
            if not taken or isPeek:
                return total + taken
            count += taken
            total += taken
    return total


def _send(number: int, parts: Iterable[memoryview], flags: int) -> int:
    one = descriptorOf(number)
    # Else it would wait for ever.
    _checkConnected(one)
    socket, total = one.socket, 0
    for part in parts:
        count, length = 0, len(part)
        while count < length:
            try:
                with hub:
                    written = socket.write(part[count:] if count else part)
                if not written:
                    _wait(one, lambda: socket.canWrite, flags)
            except HandleError:
                if total:
                    return total
                raise
            count += written
            total += written
    return total


def _vector(vector: CData, count: int) -> list[memoryview]:
    if not 0 <= count <= _MOST_PARTS:
        raise HandleError(f"{count} parts")
    return [_memory(vector[i].iov_base, vector[i].iov_len) for i in range(count)]


@handler
def rrecv(socket: int, buffer: CData, length: int, flags: int) -> int:
    return _receive(socket, [_memory(buffer, length)], flags)


@handler
def rrecvfrom(socket: int, buffer: CData, length: int, flags: int, addr: CData, size: CData) -> int:
    count = _receive(socket, [_memory(buffer, length)], flags)
    if addr and size:
        _tell(addr, size, descriptorOf(socket).socket.cmid.peer_addr)
    return count


@handler
def rrecvmsg(socket: int, message: CData, flags: int) -> int:
    descriptorOf(socket)
    given(message)
    return _receive(socket, _vector(message.msg_iov, message.msg_iovlen), flags)


@handler
def rread(socket: int, buffer: CData, length: int) -> int:
    return _receive(socket, [_memory(buffer, length)], 0)


@handler
def rreadv(socket: int, vector: CData, count: int) -> int:
    return _receive(socket, _vector(vector, count), 0)


@handler
def rsend(socket: int, buffer: CData, length: int, flags: int) -> int:
    return _send(socket, [_memory(buffer, length)], flags)


@handler
def rsendto(socket: int, buffer: CData, length: int, flags: int, addr: CData, size: int) -> int:
    """
    Write octets; a stream has its destination.
    """
    descriptorOf(socket)
    if addr or size:
        raise HandleError("The socket is a stream", errno.EISCONN)
    return _send(socket, [_memory(buffer, length)], flags)


@handler
def rsendmsg(socket: int, message: CData, flags: int) -> int:
    descriptorOf(socket)
    given(message)
    return _send(socket, _vector(message.msg_iov, message.msg_iovlen), flags)


@handler
def rwrite(socket: int, buffer: CData, length: int) -> int:
    return _send(socket, [_memory(buffer, length)], 0)


@handler
def rwritev(socket: int, vector: CData, count: int) -> int:
    return _send(socket, _vector(vector, count), 0)


# -- names and options


def _tell(addr: CData, length: CData, found: tuple[str, int] | None) -> None:
    given(length)
    if found is None:
        raise HandleError("The socket is not connected", errno.ENOTCONN)
    packed = sockaddr.pack(Address(*found))
    count = min(len(packed), int(length[0]))
    # librspreload asks for the length alone.
    if count:
        given(addr)
        ffi.memmove(ffi.cast("char *", addr), packed, count)
    length[0] = len(packed)


@handler
def rgetpeername(socket: int, addr: CData, length: CData) -> int:
    _tell(addr, length, descriptorOf(socket).socket.cmid.peer_addr)
    return 0


@handler
def rgetsockname(socket: int, addr: CData, length: CData) -> int:
    one = descriptorOf(socket)
    _tell(
        addr,
        length,
        one.socket.cmid.local_addr or (("::" if one.family == sockets.AF_INET6 else "0.0.0.0"), 0),
    )
    return 0


def _octetsOf(level: int, name: int) -> int:
    # An C{int}, or C{struct linger}.
    return ffi.sizeof("int") * (2 if (level, name) == (sockets.SOL_SOCKET, sockets.SO_LINGER) else 1)


@handler
def rsetsockopt(socket: int, level: int, name: int, value: CData, length: int) -> int:
    one = descriptorOf(socket)
    if name not in _SOCKET_OPTIONS.get(level, ()):
        raise HandleError("There is no such option", errno.ENOPROTOOPT)
    size = _octetsOf(level, name)
    data = bytes(_memory(value, length))[:size]
    if len(data) < size:
        raise HandleError("The value is too short")
    number = int.from_bytes(data[: ffi.sizeof("int")], "little", signed=True)
    buffer = min(max(number, _LEAST_BUFFER), _MOST_BUFFER) & ~1
    with hub:
        if (level, name) == (sockets.SOL_SOCKET, sockets.SO_SNDBUF):
            one.socket.sendBytes, data = buffer, buffer.to_bytes(ffi.sizeof("int"), "little")
        elif (level, name) == (sockets.SOL_SOCKET, sockets.SO_RCVBUF):
            one.socket.receiveBytes, data = buffer, buffer.to_bytes(ffi.sizeof("int"), "little")
        elif (level, name) == (_SOL_RDMA, _RDMA_IOMAPSIZE):
            one.socket.maps = min(max(number, 0), MOST_MAPS)
            data = one.socket.maps.to_bytes(ffi.sizeof("int"), "little")
        elif (level, name) == (sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY):
            one.socket.cmid.set_ipv6_only(bool(number))
    one.options[level, name] = data
    return 0


@handler
def rgetsockopt(socket: int, level: int, name: int, value: CData, length: CData) -> int:
    one = descriptorOf(socket)
    given(value, length)
    if (level, name) == (sockets.SOL_SOCKET, sockets.SO_ERROR):
        with hub:
            number, one.socket.error = one.socket.error, 0
        data = number.to_bytes(ffi.sizeof("int"), "little")
    elif (level, name) == (_SOL_RDMA, _FIONREAD):
        with hub:
            data = one.socket.waiting.to_bytes(ffi.sizeof("int"), "little")
    elif name in _SOCKET_OPTIONS.get(level, ()):
        data = one.options.get((level, name), bytes(_octetsOf(level, name)))
    else:
        raise HandleError("There is no such option", errno.ENOPROTOOPT)
    count = min(len(data), int(length[0]))
    ffi.memmove(ffi.cast("char *", value), data, count)
    length[0] = count
    return 0


@handler
def rfcntl(socket: int, command: int, argument: int) -> int:
    one = descriptorOf(socket)
    if command == _F_GETFL:
        return os.O_NONBLOCK if one.isNonBlocking else 0
    if command in (fcntl.F_GETFD, fcntl.F_SETFD):
        return fcntl.fcntl(socket, command, argument)
    if command != _F_SETFL:
        raise HandleError("There is no such command", errno.EOPNOTSUPP)
    one.isNonBlocking = bool(argument & os.O_NONBLOCK)
    return 0


# -- direct writes


@handler
def riomap(socket: int, buffer: CData, length: int, protection: int, flags: int, offset: int) -> int:
    one = descriptorOf(socket)
    if protection & ~_PROT_WRITE:
        raise HandleError("Memory is mapped for writing, or for nothing")
    given(buffer)
    with hub:
        return one.socket.map(addressOf(buffer), length, bool(protection), offset)


@handler
def riounmap(socket: int, buffer: CData, length: int) -> int:
    one = descriptorOf(socket)
    with hub:
        one.socket.unmap(addressOf(buffer), length)
    return 0


@handler
def riowrite(socket: int, buffer: CData, length: int, offset: int, flags: int) -> int:
    """
    Write into memory that the peer has mapped.

    @return: octets written: as far as it is mapped.
    """
    one = descriptorOf(socket)
    _checkConnected(one)
    data, total = _memory(buffer, length), 0
    while total < length:
        try:
            with hub:
                written = one.socket.writeAt(data[total:], offset + total) if one.socket.canWriteAt else 0
            if written is None:
                break
            if not written:
                _wait(one, lambda: one.socket.canWriteAt, flags)
        except HandleError:
            if total:
                break
            raise
        total += written
    return total
