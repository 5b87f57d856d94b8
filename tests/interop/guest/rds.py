"""
RDS sockets of the kernel, through libc: C{socket} knows no RDS addresses of IPv6.

C{rds.py TRANSPORT COMMAND OWN-ADDRESS ...}, where the transport is C{tcp} or C{ib}, and the command:

  - C{echo PORT COUNT [SECONDS]}: answer as many messages with themselves; take none for so long at first.
  - C{ask PEER PORT SIZES [COUNT]}: send so many messages of each size (C{1,100}), each when the echo of the
    one before is there.
  - C{send PEER PORT COUNT SIZE [SECONDS]}: send numbered messages, so long after each other.
  - C{take PORT COUNT [SECONDS]}: print the numbers of as many messages; take none for so long at first.
  - C{ping PEER COUNT}: have the peer's kernel answer.

Each message is checked; the exit status is 0 only if all came.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

_FAMILY = 21
_SOL_RDS, _SO_RDS_TRANSPORT = 276, 8
_TRANSPORTS = {"ib": 0, "tcp": 2}
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _BUFFER_BYTES = 32, 33, 4 << 20
_MOST = 1 << 20
#: The file that exists when the socket is bound.
BOUND = Path("/tmp/bound")
#: How long to wait for a message, seconds.
PATIENCE = 60


def _checked(result: int) -> int:
    """
    @raise OSError: the system call has failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _packed(address: str, port: int) -> bytes:
    """
    @return: C{struct sockaddr_in}, or C{sockaddr_in6}.
    """
    if ":" in address:
        head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0)
        return head + socket.inet_pton(socket.AF_INET6, address) + bytes(4)
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8)


def _unpacked(octets: bytes) -> tuple[str, int]:
    """
    @return: the address and the port that a C{struct sockaddr} has.
    """
    port = int.from_bytes(octets[2:4], "big")
    if struct.unpack_from("=H", octets)[0] == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, octets[8:24]), port
    return socket.inet_ntoa(octets[4:8]), port


class Socket:
    """
    One RDS socket.
    """

    def __init__(self, transport: str, address: str, port: int) -> None:
        """
        Bind it.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(self._libc.socket(_FAMILY, socket.SOCK_SEQPACKET, 0))
        self._set(_SOL_RDS, _SO_RDS_TRANSPORT, _TRANSPORTS[transport])
        self._set(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        packed = _packed(address, port)
        _checked(self._libc.bind(self._descriptor, packed, len(packed)))

    def _set(self, level: int, option: int, value: int) -> None:
        """
        Set an option.
        """
        _checked(self._libc.setsockopt(self._descriptor, level, option, ctypes.byref(ctypes.c_int(value)), 4))

    def send(self, data: bytes, peer: tuple[str, int]) -> None:
        """
        Send a message; blocks while the peer is congested.
        """
        packed = _packed(*peer)
        _checked(self._libc.sendto(self._descriptor, data, len(data), 0, packed, len(packed)))

    def receive(self) -> tuple[bytes, tuple[str, int]]:
        """
        @return: a message, and who has sent it.
        @raise TimeoutError: none comes.
        """
        if not select.select([self._descriptor], [], [], PATIENCE)[0]:
            raise TimeoutError("nothing comes")
        data, address = ctypes.create_string_buffer(_MOST), ctypes.create_string_buffer(64)
        size = ctypes.c_int(64)
        found = self._libc.recvfrom(self._descriptor, data, _MOST, 0, address, ctypes.byref(size))
        return data.raw[: _checked(found)], _unpacked(address.raw)


def content(number: int, size: int) -> bytes:
    """
    @return: a message: its number, and what follows from that.
    """
    return (
        number.to_bytes(4, "big") + bytes((number + each) & 255 for each in range(256)) * (size // 256 + 1)
    )[:size]


def _echo(one: Socket, count: int) -> None:
    for _ in range(count):
        data, peer = one.receive()
        print(len(data), "from", *peer, flush=True)
        one.send(data, peer)
    time.sleep(1)  # The last is on its way; a socket that is closed takes its messages with it.


def _ask(one: Socket, peer: tuple[str, int], sizes: list[int], count: int) -> None:
    for size in sizes:
        for number in range(count):
            sent = content(number, size)
            one.send(sent, peer)
            data, source = one.receive()
            assert data == sent and source == peer, f"{len(data)} octets from {source}, not {size}"
        print(size, flush=True)


def _send(one: Socket, peer: tuple[str, int], count: int, size: int, seconds: float) -> None:
    for number in range(count):
        one.send(content(number, size), peer)
        time.sleep(seconds)
    time.sleep(2)


def _take(one: Socket, count: int) -> None:
    for _ in range(count):
        data, _peer = one.receive()
        number = int.from_bytes(data[:4], "big")
        assert data == content(number, len(data)), f"{len(data)} octets are not those of message {number}"
        print(number, flush=True)


def main() -> None:
    """
    Do what the arguments say.
    """
    transport, command, own, *rest = sys.argv[1:]
    if command in ("echo", "take"):
        one = Socket(transport, own, int(rest[0]))
        print("bound", flush=True)
        BOUND.touch()
        time.sleep(float(rest[2]) if len(rest) > 2 else 0)
        (_echo if command == "echo" else _take)(one, int(rest[1]))
        return
    one = Socket(transport, own, 0)
    if command == "ping":
        _ask(one, (rest[0], 0), [0], int(rest[1]))
    elif command == "ask":
        count = int(rest[3]) if len(rest) > 3 else 1
        _ask(one, (rest[0], int(rest[1])), [int(size) for size in rest[2].split(",")], count)
    else:
        seconds = float(rest[4]) if len(rest) > 4 else 0
        _send(one, (rest[0], int(rest[1])), int(rest[2]), int(rest[3]), seconds)


if __name__ == "__main__":
    main()
