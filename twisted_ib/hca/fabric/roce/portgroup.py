"""
The processes of one user that share UDP port 4791 of an address.

The first one makes the sockets of all L{slots<twisted_ib.hca.fabric.roce.slots>}, and a Unix socket
C{roce-UID-NAMESPACE-ADDRESS} in the run directory, where it gives all of them to each process that comes
(SCM_RIGHTS, unix(7)), that Unix socket included.  So any of them can end: the kernel numbers the sockets in
the order of their bind(2), and keeps the numbers as long as one process has them open.

A slot is taken by a lock on an octet of a memory file (F_OFD_SETLK, fcntl(2)): it ends with its owner,
however that ends.  The file has the group's secret and the table of its services.

Processes of one user trust each other: each of them can read and send whatever another can.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import select
import socket
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from twisted_ib.errors import DeviceError, HCAError
from twisted_ib.hca.fabric.roce.slots import SECRET_BYTES, SLOTS, TABLE_BYTES, Handed, ServiceTable, packed
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.addresses import namespaceInode
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.liveness import peerCredentials
from twisted_ib.hca.host.rundirectory import RunDirectory, openDirectories

#: How long a process waits for the descriptors, in seconds: a thread of any process of the group gives them.
#: A reactor may wait, too, so it is short.
JOIN_SECONDS = 1.0
#: The pauses before a process looks for a group again, in seconds: the port is that of a process that is
#: being killed, or of one that looks in other directories.
JOIN_PAUSES = 0.001, 0.002, 0.004, 0.008
#: Datagrams for the last owner of a slot that the next one drops, more than a buffer has.
DRAINED_DATAGRAMS = 65536

#: Linux asm-generic/socket.h.
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
#: C{struct sock_fprog} (linux/filter.h).
_PROGRAM: Final = struct.Struct("@HP")
# Linux asm-generic/fcntl.h; Python has them from 3.9.
_F_OFD_GETLK, _F_OFD_SETLK, _F_OFD_SETLKW = 36, 37, 38
#: C{struct flock}.
_FLOCK: Final = struct.Struct("@hhqqi4x")
#: The octet whose lock is that of the table; below it those of the slots.
_TABLE_LOCK: Final = SLOTS
#: What comes with the descriptors, with the number of this form.
_GREETING: Final = b"twisted_ib RoCE port group 1"
_BACKLOG: Final = 128


def _lock(fd: int, command: int, kind: int, place: int) -> int:
    """
    @return: the kind of a lock that prevents this one, for F_OFD_GETLK.
    """
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
    return int(_FLOCK.unpack(answer)[0])


def _serve(listener: socket.socket, wake: int, sockets: Sequence[socket.socket], memory: int) -> None:
    """
    Give the descriptors to each process of this user that comes, until C{wake} is readable.

    In a thread of its own: a process that computes, or waits for another one, must not keep that from
    joining.
    """
    uid = os.geteuid()
    passed = [*(each.fileno() for each in sockets), listener.fileno(), memory]
    ending, poll = select.poll(), select.poll()
    for each in ending, poll:
        each.register(wake, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while True:
        if any(fd == wake for fd, _ in poll.poll()):
            return
        try:
            pair, _ = listener.accept()
        except BlockingIOError:
            continue  # Another process of the group was faster.
        except OSError:
            # No descriptor is free, and the caller still waits.
            if ending.poll(100):
                return
            continue
        with pair, suppress(HCAError):
            if peerCredentials(pair).uid == uid:
                sendWithDescriptors(pair, _GREETING, passed)


class PortGroup:
    """
    One process's place in the group of an address.

    @ivar sockets: of all slots, in order.
    @ivar slot: the one of this process.
    @ivar services: the service ids that the processes listen for; within L{locked}.
    @ivar isHandling: whether what is processed was handed on to this process.
    """

    def __init__(
        self, sockets: list[socket.socket], listener: socket.socket | None, memory: int, name: str
    ) -> None:
        """
        Take the lowest free slot.

        @param listener: where processes come for the descriptors, L{None} if they cannot.
        @param memory: a descriptor of the memory file.
        @param name: of the group.
        @raise DeviceError: none is free.
        @raise OSError: no descriptor is free.
        """
        # All descriptors are closed by close().
        self.sockets = sockets
        self._listener = listener
        self._memory = memory
        self._name = name
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._map: mmap.mmap | None = None
        self._own = self._wake = -1
        self.isHandling = False
        self.slot = 0
        try:
            # Locks belong to an open file description, and the group has one of this: hence another.
            self._own = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_CLOEXEC)
            # The lowest: a process that is started again has the slot that it had, so that its peers'
            # messages for their old connections are answered.
            self.slot = next(filter(self._take, range(1, SLOTS)), 0)
            if not self.slot:
                raise DeviceError(f"{SLOTS - 1} processes share this address, and no more can")
            self._map = mmap.mmap(self._own, TABLE_BYTES)
            self.secret = self._map[:SECRET_BYTES]
            with self.locked():
                self.services = ServiceTable(self._map, self.slot, self.isTaken)
            self._drain()
            if listener is not None:
                self._wake = libc.eventfd()
                arguments = listener, self._wake, sockets, memory
                self._thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
                self._thread.start()
        except BaseException:
            self.close()
            raise

    def _take(self, slot: int) -> bool:
        try:
            _lock(self._own, _F_OFD_SETLK, fcntl.F_WRLCK, slot)
        except BlockingIOError:
            return False
        return True

    def isTaken(self, slot: int) -> bool:
        """
        @return: whether a living process owns a slot.
        """
        return slot == self.slot or _lock(self._own, _F_OFD_GETLK, fcntl.F_WRLCK, slot) != fcntl.F_UNLCK

    def isAlone(self) -> bool:
        """
        @return: whether no other process shares the address now.
        """
        return not any(self.isTaken(slot) for slot in range(1, SLOTS) if slot != self.slot)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """
        Hold the lock of the table of services.
        """
        _lock(self._own, _F_OFD_SETLKW, fcntl.F_WRLCK, _TABLE_LOCK)
        try:
            yield
        finally:
            _lock(self._own, _F_OFD_SETLK, fcntl.F_UNLCK, _TABLE_LOCK)

    @property
    def main(self) -> socket.socket:
        """
        The socket of this process's slot.
        """
        return self.sockets[self.slot]

    def _drain(self) -> None:
        main = self.main
        with suppress(OSError):
            for _ in range(DRAINED_DATAGRAMS):
                main.recv(1, socket.MSG_DONTWAIT)

    def handOn(self, slot: int, handed: Handed) -> bool:
        """
        Hand a datagram on to the process of another slot.

        @return: False if it is not to be handed on.
        """
        # Once only: two processes that take each other for the right one must not play ball.
        if self.isHandling or not self.isTaken(slot):
            return False
        with suppress(OSError):  # No room: it is lost, as on a wire.
            self.main.sendto(handed.pack(slot, self.secret), self.main.getsockname())
        return True

    def close(self) -> None:
        """
        Give the slot back and close everything; in a forked child close its descriptors only.
        """
        if self._thread is not None and self._pid == os.getpid():
            os.write(self._wake, (1).to_bytes(8, "little"))
            self._thread.join()
            # Of a free slot nobody reads: it must not fill more than a socket's usual buffer.
            with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as usual:
                size = usual.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
                self.main.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            with suppress(HCAError, OSError), _directories() as directories:
                if self.isAlone():
                    for directory in directories:
                        directory.remove(self._name)
                # Meanwhile nobody looks, who would find the port taken, and no group.
                self._release()
        self._release()

    def _release(self) -> None:
        self._thread = None
        if self._map is not None:
            self._map.close()
            self._map = None
        # The slot last: its next owner must find nothing of ours.
        made, self.sockets = self.sockets, []
        for each in (*made, *([self._listener] if self._listener is not None else ())):
            each.close()
        for name in "_memory", "_wake", "_own":
            fd = getattr(self, name)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)


@contextmanager
def _directories() -> Iterator[list[RunDirectory]]:
    """
    All run directories, locked: two processes must not both begin a group, and none ends while one joins.
    """
    found, _ = openDirectories(os.environ, os.geteuid(), True)
    with ExitStack() as stack:
        for directory in found:
            stack.callback(directory.close)
        for directory in found:
            stack.enter_context(directory.locked())
        yield found


def joinGroup(address: str, make: Callable[[bool], socket.socket]) -> PortGroup:
    """
    Join the processes that share the port of an address; be the first if there are none.

    @param address: as text, with its scope.
    @param make: makes the socket of a slot, bound; given whether it is the first, which must be the only one
        then.
    @raise DeviceError: they do not answer, or are too many.
    @raise OSError: the sockets cannot be made; EADDRINUSE if a process has the port that does not share it.
    """
    # The user, too: several may share a run directory.
    name = f"roce-{os.geteuid()}-{namespaceInode()}-{address}"
    for pause in (*JOIN_PAUSES, 0.0):
        with _directories() as directories:
            for directory in directories:
                group = _ask(directory, name, address)
                if group is not None:
                    return group
            try:
                return _begin(directories, name, make)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not pause:
                    raise
        time.sleep(pause)
    raise AssertionError("unreachable")


def _ask(directory: RunDirectory, name: str, address: str) -> PortGroup | None:
    try:
        pair = connect(directory, name, socket.SOCK_SEQPACKET)
    except OSError:
        return None  # Nobody has it open.
    with pair:
        uid = peerCredentials(pair).uid
        if uid != os.geteuid():
            raise DeviceError(f"the port of {address} is shared by processes of user {uid} only")
        poll = select.poll()
        poll.register(pair, select.POLLIN)
        if not poll.poll(JOIN_SECONDS * 1000):
            raise DeviceError(f"the processes that share {address} did not answer within {JOIN_SECONDS:g} s")
        try:
            received = receiveWithDescriptors(pair, len(_GREETING), SLOTS + 2)
        except HCAError as error:
            raise DeviceError(f"the processes that share {address} cannot be joined: {error}") from error
    data, descriptors = received or (b"", [])
    if not data:
        return None  # They have just ended.
    if data != _GREETING or len(descriptors) != SLOTS + 2:
        closeAll(descriptors)
        raise DeviceError(f"the processes that share {address} are of another version")
    *ports, listener, memory = descriptors
    return PortGroup([socket.socket(fileno=fd) for fd in ports], socket.socket(fileno=listener), memory, name)


def _begin(directories: list[RunDirectory], name: str, make: Callable[[bool], socket.socket]) -> PortGroup:
    sockets: list[socket.socket] = []
    listener: socket.socket | None = None
    memory = -1
    try:
        for slot in range(SLOTS):
            sockets.append(make(not slot))
        _attach(sockets[0])
        memory = libc.memfdCreate("twisted_ib-roce")
        os.ftruncate(memory, TABLE_BYTES)
        os.pwrite(memory, secrets.token_bytes(SECRET_BYTES), 0)
        if directories:
            home = directories[0]
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            listener = socket.socket(socket.AF_UNIX, kind)
            for directory in directories:
                directory.remove(name)
            listener.bind(home.socketPath(name))
            listener.listen(_BACKLOG)
            os.chmod(name, 0o600, dir_fd=home.fd)
    except BaseException:
        for each in (*sockets, *([listener] if listener is not None else ())):
            each.close()
        closeAll([memory] if memory >= 0 else [])
        raise
    return PortGroup(sockets, listener, memory, name)


def _attach(first: socket.socket) -> None:
    instructions = array("B", packed())
    address, size = instructions.buffer_info()
    program = _PROGRAM.pack(size // 8, address)
    first.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


__all__ = ["PortGroup", "joinGroup"]
