"""
The processes of one user that share UDP port 4791 of an address.

The first one makes the sockets of all L{slots<twisted_ib.hca.fabric.roce.slots>}, and a Unix socket
C{roce-UID-NAMESPACE-ADDRESS} in the run directory, where it gives all of them to each process that comes
(SCM_RIGHTS, unix(7)), that Unix socket included.  So any of them can end: the kernel numbers the sockets in
the order of their bind(2), and keeps the numbers as long as one process has them open.

A slot is taken by a lock on an octet of a file (F_OFD_SETLK, fcntl(2)): it ends with its owner, however that
ends.  The file has the group's secret, the table of its services, and the connections of each process.  Where
one has died with some, the next that sees it takes the slot and ends them
(L{twisted_ib.hca.fabric.roce.orphans}): one of those left, whom inotify(7) tells that the file was closed, or
the first that opens the address again, as the file has a name in the run directory.  Of groups that have all
died the latest keep their files there; who begins another one removes the rest.

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
import stat
import struct
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Final

from twisted_ib import limits
from twisted_ib.drive import threads
from twisted_ib.drive.process import monotonic, sleep, time
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.errors import DeviceError, HCAError
from twisted_ib.hca.fabric.roce.orphans import (
    DATAGRAM_BYTES,
    MEMORY_BYTES,
    ConnectionRegister,
    DeathLooks,
    Orphans,
    connectionsOf,
    hasConnections,
)
from twisted_ib.hca.fabric.roce.slots import (
    HEAD_BYTES,
    SECRET_BYTES,
    SLOTS,
    Handed,
    ServiceTable,
    packed,
    program,
    servicesOf,
)
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.addresses import namespaceInode
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.hca.host.liveness import peerCredentials
from twisted_ib.hca.host.rundirectory import RunDirectory, openDirectories

#: How long a process waits for the descriptors, in seconds: a thread of any process of the group gives them.
#: A reactor may wait, too, so it is short; but those that poll in C give it late on a loaded machine.
JOIN_SECONDS = 5.0
#: The pauses before a process looks for a group again, in seconds: the port is that of a process that is
#: being killed, or of one that looks in other directories.
JOIN_PAUSES = 0.001, 0.002, 0.004, 0.008
#: Groups whose processes have all died and that keep their files, so that who opens their address again ends
#: their connections; and how many entries of a run directory are looked at for more.
DEAD_GROUPS = 8
SWEPT_ENTRIES = 1024
#: Datagrams for a dead process that are read before the other descriptors are looked at.
ORPHANED_DATAGRAMS = 64
#: Datagrams for the last owner of a slot that the next one drops, more than a buffer has.
DRAINED_DATAGRAMS = 65536

#: Linux asm-generic/socket.h.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 26, 27, 51
#: C{struct sock_fprog} (linux/filter.h).
_PROGRAM: Final = struct.Struct("@HP")
#: C{struct flock}.
_FLOCK: Final = struct.Struct("@hhqqi4x")
#: The octet whose lock is that of the table; below it those of the slots.
_TABLE_LOCK: Final = SLOTS
#: What comes with the descriptors, with the number of this form.
_GREETING: Final = b"twisted_ib RoCE port group 3"
#: What follows the name of a group in that of its file, with the same number.
_FILE: Final = ".3"
_BACKLOG: Final = 128
#: The longest datagrams that UDP_GRO joins.
_LONGEST: Final = 65536


def _lock(fd: int, command: int, kind: int, place: int, places: int = 1) -> int:
    # The kind of a lock that prevents this one, for F_OFD_GETLK.
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, place, places, 0))
    return int(_FLOCK.unpack(answer)[0])


class PortGroup:
    """
    One process's place in the group of an address.

    @ivar sockets: of all slots, in order.
    @ivar slot: the one of this process.
    @ivar services: the service ids that the processes listen for; within L{locked}.
    @ivar connections: their open connections.
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
        self._own = self._wake = self._watch = -1
        #: Slots of processes that have died.
        self._orphans: dict[int, Orphans] = {}
        self.isHandling = False
        self.slot = 0
        try:
            # Locks belong to an open file description, and the group has one of this: hence another.
            self._own = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_CLOEXEC)
            self._map = mmap.mmap(self._own, MEMORY_BYTES)
            self.secret = self._map[:SECRET_BYTES]
            # The lowest: a process that is started again has the slot that it had, so that its peers'
            # messages for their old connections are answered.  But the slot of one that has died is taken
            # until these are ended.
            left = [slot for slot in range(1, SLOTS) if hasConnections(self._map, slot)]
            order = [*(slot for slot in range(1, SLOTS) if slot not in left), *left]
            self.slot = next(filter(self._take, order), 0)
            if not self.slot:
                raise DeviceError(f"{SLOTS - 1} processes share this address, and no more can")
            _allocate(self._own, *servicesOf(self.slot, limits.PACKET_SERVICES))
            self.connections = ConnectionRegister(self._map, self.slot, self._reserve)
            with self.locked():
                self.services = ServiceTable(self._map, self.slot, self.isTaken)
            self._drain()
            if listener is not None:
                self._wake = libc.eventfd()
                with suppress(OSError):  # No more are free.
                    watched = f"/proc/self/fd/{memory}", libc.IN_CLOSE_WRITE
                    self._watch = libc.inotify([watched])
                self._thread = threads.begin(self._serve, listener, name=name)
        except BaseException:
            self.close()
            raise

    def _take(self, slot: int) -> bool:
        try:
            _lock(self._own, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, slot)
        except BlockingIOError:
            return False
        return True

    def _reserve(self, offset: int, length: int) -> bool:
        try:
            _allocate(self._own, offset, length)
        except DeviceError:
            return False
        return True

    def isTaken(self, slot: int) -> bool:
        """
        @return: whether a living process owns a slot.
        """
        return slot == self.slot or _lock(self._own, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, slot) != fcntl.F_UNLCK

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
        _lock(self._own, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _TABLE_LOCK)
        try:
            yield
        finally:
            _lock(self._own, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _TABLE_LOCK)

    @property
    def _memoryMap(self) -> mmap.mmap:
        assert self._map is not None
        return self._map

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

    # -- the thread

    def _serve(self, listener: socket.socket) -> None:
        # Give the descriptors to each process of this user that comes, and end the connections of those that
        # die, until _wake is readable. In a thread of its own: a process that computes, or waits for another
        # one, must not keep that from joining.
        poll = select.poll()
        for each in self._wake, listener.fileno(), self._watch:
            if each >= 0:
                poll.register(each, select.POLLIN)
        looks = DeathLooks(monotonic(), self._watch >= 0)
        while True:
            now, look = monotonic(), looks.deadline()
            if look is not None and now >= look:
                looks.looked(now, self._adopt(poll, now))
            self._endOrphans(poll, now)
            due = [looks.deadline(), *(each.deadline() for each in self._orphans.values())]
            soonest = min([each for each in due if each is not None], default=None)
            timeout = None if soonest is None else max(0.0, soonest - now) * 1000
            ready = [fd for fd, _ in poll.poll(timeout)]
            now = monotonic()
            for fd in ready:
                if fd == self._wake:
                    return
                if fd == self._watch:
                    with suppress(OSError):
                        os.read(fd, 4096)
                    looks.closed(now)
                    # It would have been ended by the one that has died.
                    filterDatagrams(self.sockets[0], b"")
                elif fd != listener.fileno():
                    self._receiveOrphaned(fd, now)
                elif not self._give(listener):
                    return

    def _give(self, listener: socket.socket) -> bool:
        try:
            pair, _ = listener.accept()
        except BlockingIOError:
            return True  # Another process of the group was faster.
        except OSError:
            # No descriptor is free, and the caller still waits.
            return not awaitReady(self._wake, 0.1)
        passed = [*(each.fileno() for each in self.sockets), listener.fileno(), self._memory]
        with pair, suppress(HCAError):
            if peerCredentials(pair).uid == os.geteuid():
                sendWithDescriptors(pair, _GREETING, passed)
        return True

    def _adopt(self, poll: select.poll, now: float) -> bool:
        # Whether somebody seems to live who has connections.
        isLeft = False
        for slot in range(1, SLOTS):
            # The lock is free if the process is dead; then no other adopts them, nor joins here.
            if slot == self.slot or slot in self._orphans or not hasConnections(self._memoryMap, slot):
                continue
            if not self._take(slot):
                isLeft = True
                continue
            ServiceTable(self._memoryMap, slot, self.isTaken)  # It listens no longer.
            here = self.main.getsockname()[0].partition("%")[0]
            self._orphans[slot] = Orphans(here, self.connections.of(slot), now)
            poll.register(self.sockets[slot], select.POLLIN)
        return isLeft

    def _endOrphans(self, poll: select.poll, now: float) -> None:
        for slot, orphans in list(self._orphans.items()):
            made = self.sockets[slot]
            for address, datagram in orphans.outputs(now):
                # The scope of a link-local address is that of ours.
                where = (address, *made.getsockname()[1:])
                with suppress(OSError):  # Lost, as on a wire.
                    made.sendto(datagram, where)
            if orphans.isDone:
                poll.unregister(made)
                del self._orphans[slot]
                self.connections.clear(slot)
                _lock(self._own, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, slot)

    def _receiveOrphaned(self, fd: int, now: float) -> None:
        slot = next(slot for slot in self._orphans if self.sockets[slot].fileno() == fd)
        for _ in range(ORPHANED_DATAGRAMS):
            try:
                data, where = self.sockets[slot].recvfrom(_LONGEST)
            except OSError:
                return
            # UDP_GRO joins datagrams of one size.
            for at in range(0, len(data), DATAGRAM_BYTES):
                source = where[0].partition("%")[0]
                self._orphans[slot].receive(source, where[1], data[at : at + DATAGRAM_BYTES], now)

    # -- the end

    def close(self) -> None:
        """
        Give the slot back and close everything; in a forked child close its descriptors only.
        """
        if self._thread is not None and self._pid == os.getpid():
            with suppress(HCAError, OSError), _directories() as directories:
                # Not before: who holds the lock may wait for an answer of the thread.
                self._end(self._thread)
                self.connections.clear(self.slot)
                if self.isAlone():
                    for directory in directories:
                        directory.remove(self._name)
                        if not any(hasConnections(self._memoryMap, slot) for slot in range(1, SLOTS)):
                            directory.remove(self._name + _FILE)
                # Meanwhile nobody looks, who would find the port taken, and no group.
                self._release()
            if self._thread is not None:
                self._end(self._thread)
        self._release()

    def _end(self, thread: threading.Thread) -> None:
        os.write(self._wake, (1).to_bytes(8, "little"))
        thread.join()
        # Of a free slot nobody reads: it must not fill more than a socket's usual buffer.
        with suppress(OSError), KernelSocket(socket.AF_INET, socket.SOCK_DGRAM) as usual:
            size = usual.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
            self.main.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def _release(self) -> None:
        self._thread = None
        if self._map is not None:
            self._map.close()
            self._map = None
        # The slot last: its next owner must find nothing of ours.
        made, self.sockets = self.sockets, []
        for each in (*made, *([self._listener] if self._listener is not None else ())):
            each.close()
        for name in "_memory", "_wake", "_watch", "_own":
            fd = getattr(self, name)
            setattr(self, name, -1)
            if fd >= 0:
                (libc.endInotify if name == "_watch" else os.close)(fd)


@contextmanager
def _directories() -> Iterator[list[RunDirectory]]:
    # All run directories, locked: two processes must not both begin a group, and none ends while one joins.
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
                group = _begin(directories, name, make)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not pause:
                    raise
            else:
                # Here, as only this makes files; they are made and taken under the directories' locks.
                for directory in directories:
                    _sweep(directory)
                return group
        sleep(pause)
    raise AssertionError("unreachable")


def whyApart() -> str:
    """
    @return: why this process meets none of those that share an address; empty if it does.
    """
    found, refused = openDirectories(os.environ, os.geteuid(), False)
    for each in found:
        each.close()
    return "" if found or not refused else str(refused[0])


def _ask(directory: RunDirectory, name: str, address: str) -> PortGroup | None:
    try:
        pair = connect(directory, name, socket.SOCK_SEQPACKET)
    except OSError:
        return None  # Nobody has it open.
    with pair:
        uid = peerCredentials(pair).uid
        if uid != os.geteuid():
            raise DeviceError(f"the port of {address} is shared by processes of user {uid} only")
        if not awaitReady(pair, JOIN_SECONDS):
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
    return PortGroup([KernelSocket(fileno=fd) for fd in ports], KernelSocket(fileno=listener), memory, name)


def _begin(directories: list[RunDirectory], name: str, make: Callable[[bool], socket.socket]) -> PortGroup:
    sockets: list[socket.socket] = []
    listener: socket.socket | None = None
    memory = -1
    try:
        for slot in range(SLOTS):
            sockets.append(make(not slot))
        attachProgram(sockets[0], _SO_ATTACH_REUSEPORT_CBPF, packed(program()))
        memory = _openFile(directories, name + _FILE)
        _allocateHeads(memory)
        os.pwrite(memory, secrets.token_bytes(SECRET_BYTES), 0)
        if directories:
            home = directories[0]
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            listener = KernelSocket(socket.AF_UNIX, kind)
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


def _openFile(directories: list[RunDirectory], name: str) -> int:
    # The file of a group that has ended may have connections of processes that have died; nobody has it open.
    for directory in directories:
        with suppress(OSError):
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory.fd)
            if _isOurs(os.fstat(fd)):
                return fd
            os.close(fd)
    memory = -1
    for directory in directories[:1]:
        directory.remove(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # Another user has made it; then nobody ends connections later.
            memory = os.open(name, flags, 0o600, dir_fd=directory.fd)
    if memory < 0:
        memory = libc.memfdCreate("twisted_ib-roce")
    try:
        os.ftruncate(memory, MEMORY_BYTES)
    except BaseException:
        os.close(memory)
        raise
    return memory


def _sweep(directory: RunDirectory) -> None:
    # Groups whose last process was killed leave files: all but those of the latest go.
    start, dead = f"roce-{os.geteuid()}-", []
    with suppress(OSError), os.scandir(directory.fd) as entries:
        names = (each.name for each in entries if each.name.startswith(start) and each.name.endswith(_FILE))
        for name in islice(names, SWEPT_ENTRIES):
            began = _beginOfDead(directory, name)
            if began:
                dead.append((began, name))
    for _, name in sorted(dead, reverse=True)[DEAD_GROUPS:]:
        directory.remove(name.removesuffix(_FILE))
        directory.remove(name)


def _beginOfDead(directory: RunDirectory, name: str) -> float:
    # When a group began of which nobody lives; 0 if somebody does, or this is none's file: the socket of
    # 127.0.0.2 has such a name, too, and where users share a directory what another one has made may.
    try:
        # For reading: closed after writing, it would wake those that watch it.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory.fd)
    except OSError:
        return 0.0
    try:
        status = os.fstat(fd)
        isLeft = _lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, SLOTS + 1) == fcntl.F_UNLCK
        return status.st_mtime if isLeft and _isOwn(status) else 0.0
    finally:
        os.close(fd)


def _allocate(memory: int, offset: int, length: int) -> None:
    # Where the directory is full, an octet in a hole of the file is SIGBUS (mmap(2)), also one that is only
    # read.
    try:
        os.posix_fallocate(memory, offset, length)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return  # Of such a file system nothing is known.
        raise DeviceError(
            f"no memory for what the processes of an address share: {error.strerror} in the run directory"
        ) from None


def _allocateHeads(memory: int) -> None:
    _allocate(memory, 0, HEAD_BYTES)
    for slot in range(SLOTS):
        _allocate(memory, *servicesOf(slot, 0))
        _allocate(memory, *connectionsOf(slot, 0))


def _isOwn(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _isOurs(status: os.stat_result) -> bool:
    if not _isOwn(status):
        return False
    # Since the host was started: before, its peers were told by their own timeouts.
    began = time() - clock_gettime(CLOCK_BOOTTIME)
    return status.st_size == MEMORY_BYTES and status.st_mtime >= began


def attachProgram(made: socket.socket, option: int, program: bytes) -> None:
    """
    Give a socket a program of classic BPF (socket(7)).

    @param program: an array of C{struct sock_filter}.
    """
    instructions = array("B", program)
    address, size = instructions.buffer_info()
    made.setsockopt(socket.SOL_SOCKET, option, _PROGRAM.pack(size // 8, address))


def filterDatagrams(made: socket.socket, program: bytes) -> None:
    """
    Let the kernel drop datagrams before they are in a socket's buffer, if it can.

    @param program: as of L{attachProgram}; empty: it does so no longer.
    """
    with suppress(OSError):  # ENOENT: it did not.
        if program:
            attachProgram(made, _SO_ATTACH_FILTER, program)
        else:
            made.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
