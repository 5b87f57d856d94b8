"""
The place of a subnet in a run directory: a socket, by which devices attach, and a lock, which makes one
process the host.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from twisted_ib.errors import DeviceError
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.fdpassing import closeAll
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.hca.host.liveness import peerCredentials
from twisted_ib.hca.host.rundirectory import RunDirectory, openDirectories
from twisted_ib.settings import DEFAULT_SUBNET, SUBNET

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}").fullmatch
_BACKLOG: Final = 128


def isName(text: str) -> bool:
    """
    @return: whether a subnet may have this name.
    """
    return _NAME(text) is not None


def subnetName(environment: Mapping[str, str]) -> str:
    """
    @return: the name of the subnet of a process's devices.
    @raise DeviceError: it is not valid.
    """
    name = environment.get(SUBNET, "") or DEFAULT_SUBNET
    if not isName(name):
        raise DeviceError(f"{SUBNET}={name!r} is no name of a subnet: letters, digits, '_', '-', '.'")
    return name


def entryOf(name: str) -> str:
    """
    @return: the entry of a subnet's socket in the run directory.
    """
    return f"subnet-{name}"


def hostOf(directory: RunDirectory, name: str) -> int:
    """
    @return: the process that hosts a subnet; 0 if none does, or it is outside this pid namespace.
    """
    with suppress(OSError), connect(directory, entryOf(name), socket.SOCK_SEQPACKET) as pair:
        return peerCredentials(pair).pid
    return 0


@contextmanager
def runDirectories(environment: Mapping[str, str]) -> Iterator[list[RunDirectory]]:
    """
    @return: the run directories in which there may be subnets; one is hosted in the first.
    @raise RunDirectoryError: none can be used.
    """
    directories, refused = openDirectories(environment, os.geteuid(), True)
    if not directories:
        raise refused[0]
    try:
        yield directories
    finally:
        closeAll(directory.fd for directory in directories)


class Place:
    """
    The place of a subnet that this process hosts.

    @ivar name: the entry of its socket.
    @ivar listener: the socket.
    """

    def __init__(self, directory: RunDirectory, name: str, lock: int) -> None:
        """
        Listen; use L{take}.

        @raise OSError: the socket cannot be made.
        """
        self._directory, self.name, self._lock = directory, name, lock
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self.listener = KernelSocket(socket.AF_UNIX, kind)
        try:
            # An earlier host may have left its socket there.
            directory.remove(name)
            self.listener.bind(directory.socketPath(name))
            os.chmod(name, 0o666 if directory.shared else 0o600, dir_fd=directory.fd)
            self.listener.listen(_BACKLOG)
        except BaseException:
            self.listener.close()
            raise

    @classmethod
    def take(cls, directory: RunDirectory, name: str) -> Place | None:
        """
        @param directory: where; it stays the caller's.
        @param name: of the subnet.
        @return: L{None} if another process hosts it.
        @raise OSError: the lock cannot be used, or the socket cannot be made.
        """
        entry, own = entryOf(name), -1
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(f"{entry}.lock", flags, 0o600, dir_fd=directory.fd)
        try:
            if not libc.tryLock(lock):
                return None
            own = os.dup(directory.fd)
            found = cls(RunDirectory(directory.path, own, directory.shared), entry, lock)
            lock = own = -1
            return found
        finally:
            closeAll(fd for fd in (lock, own) if fd >= 0)

    def close(self) -> None:
        """
        Leave the place to another process.
        """
        # In this order: who finds no socket may become the host, as soon as the lock is free.
        self._directory.remove(self.name)
        self.forget()

    def forget(self) -> None:
        """
        In a forked child: the place is the parent's.
        """
        self.listener.close()
        os.close(self._lock)
        self._directory.close()
