"""
The Linux calls that fabrics need, also where Python lacks them, and the kernel's sockets whatever
C{socket.socket} stands for in the program.

Some Pythons were built against an old C library and miss C{memfd_create}, C{eventfd} or C{pidfd_open}; none
before 3.13 names F_SEAL_FUTURE_WRITE.  The calls go through C{os} where it has them, else through
C{ctypes}.  Importing this module is safe everywhere; L{available} reports what is missing.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from time import CLOCK_MONOTONIC
from typing import TYPE_CHECKING, Protocol, cast

try:
    # Also for who needs it beside this module.
    import ctypes as ctypes
except ImportError:  # pragma: no cover - a Python built without libffi
    ctypes = None  # type: ignore[assignment]

if sys.platform != "win32":
    import fcntl
    import resource

from twisted_ib import limits
from twisted_ib.drive.process import life

if TYPE_CHECKING:

    class _Accepting(Protocol):
        def _accept(self) -> tuple[int, object]: ...


#: Octets of freed memory that the C library keeps, see L{keepFreed}.
_FREED_KEPT = 4 << 20

#: More than struct sigaction of any C library has.
_SIGACTION_BYTES = 1024
#: Seconds and nanoseconds of the interval of L{Alarm}s, a hundred years: no timer of the program's has it.
_INTERVAL = 1 << 32, 271828182

# Now: later its name may stand for what asks the devices (L{twisted_ib.blocking.patch}), as that of sockets.
KernelEpoll = cast("type[select.epoll]", getattr(select, "epoll", None))


class KernelSocket(socket.socket):
    """
    A socket of the package's own: it, and what it accepts, is the kernel's.
    """

    __slots__ = ()

    def accept(self) -> tuple[KernelSocket, object]:
        """
        Accept a connection, whose calls do not block.
        """
        # socket.socket.accept() makes what that name stands for.
        descriptor, address = cast("_Accepting", self)._accept()
        made = KernelSocket(self.family, self.type, self.proto, descriptor)
        made.setblocking(False)
        return made, address

    def close(self) -> None:
        """
        Close it; harmless if the program has closed its descriptor.
        """
        with suppress(OSError):
            super().close()


# Linux include/uapi/linux/fcntl.h, memfd.h and include/uapi/asm-generic/mman-common.h.
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 0x01
F_SEAL_SHRINK = 0x02
F_SEAL_GROW = 0x04
F_SEAL_FUTURE_WRITE = 0x10
MFD_CLOEXEC = 0x1
MFD_ALLOW_SEALING = 0x2
MADV_DONTFORK = 10
# Linux include/uapi/linux/inotify.h; IN_UNMOUNT and IN_IGNORED are reported unasked.
IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_MOVE_SELF = 0x800
# Linux include/uapi/linux/prctl.h.
PR_SET_PDEATHSIG = 1

# syscalls(2): numbers differ by architecture; those of calls added since 2019, like pidfd_open, do not.
_SYSTEM_CALLS = {
    "x86_64": {"memfd_create": 319, "eventfd": 290, "pidfd_open": 434},
    "aarch64": {"memfd_create": 279, "eventfd": 19, "pidfd_open": 434},
}
#: Of each descriptor of inotify(7) that is in use, and those that wait for their next use.
_watches: dict[int, list[int]] = {}
_spare: list[int] = []
_EVENTFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0) if hasattr(os, "O_NONBLOCK") else 0


def _systemCall(name: str, *arguments: object) -> int:
    """
    Make a system call by number, for a Python and a C library that both lack it.

    @raise OSError: the kernel refuses, or the call cannot be made from here.
    """
    isLinux = ctypes is not None and sys.platform == "linux"
    number = _SYSTEM_CALLS.get(os.uname().machine, {}).get(name) if isLinux else None
    if number is None:
        raise OSError(38, f"no way to call {name} from this Python")
    call = ctypes.CDLL(None, use_errno=True).syscall
    # syscall(2): arguments and result are long; ctypes would cut them to int.
    call.restype = ctypes.c_long
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(call(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def memfdCreate(name: str) -> int:
    """
    Make a memory file that can be sealed, closed on exec (memfd_create(2)).
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
    return _systemCall("memfd_create", os.fsencode(name), MFD_CLOEXEC | MFD_ALLOW_SEALING)


def eventfd() -> int:
    """
    Make an event counter, non-blocking, closed on exec (eventfd(2)).
    """
    if hasattr(os, "eventfd"):
        return os.eventfd(0, _EVENTFD_FLAGS)
    return _systemCall("eventfd", 0, _EVENTFD_FLAGS)


def _write(fd: int, value: int) -> None:
    os.write(fd, value.to_bytes(8, "little"))


#: Add to an event counter.  Not C{os.write}, whose name may stand for that of blocking sockets
#: (L{twisted_ib.blocking.patch}), which looks at each descriptor.
eventfdWrite = getattr(os, "eventfd_write", _write)


def pidfdOpen(pid: int) -> int:
    """
    Open a descriptor that becomes readable when process C{pid} ends (pidfd_open(2)).
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _systemCall("pidfd_open", pid, 0)


class Alarm:
    """
    A descriptor that becomes readable at a time (timerfd_create(2)): it ends the sleep of another thread that
    has begun already.  Non-blocking, closed on exec.
    """

    __slots__ = ("_settime", "_value", "descriptor")

    def __init__(self) -> None:
        """
        @raise OSError: There are none here, or no descriptor is free.
        """
        if ctypes is None or sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) < 8:
            raise OSError(38, "no way to call timerfd_create from this Python")
        # With the interpreter's lock held: neither call sleeps.
        library = ctypes.PyDLL(None, use_errno=True)
        self.descriptor = int(library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self.descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_create: {os.strerror(code)}")
        self._settime = library.timerfd_settime
        # struct itimerspec: seconds and nanoseconds of the interval, and of the first time.
        self._value = (ctypes.c_long * 4)(*_INTERVAL)
        self._settime(self.descriptor, 0, self._value, None)

    def set(self, seconds: float) -> bool:
        """
        Choose the time anew; until then it is not readable.

        @param seconds: From now; 0 for never.
        @return: False if the descriptor is no alarm any more: others have closed it.
        """
        value = self._value
        value[:] = [*_INTERVAL, *divmod(int(seconds * 1e9), 1_000_000_000)]
        isRefused = bool(self._settime(self.descriptor, 0, value, value))
        if isRefused or tuple(value[:2]) == _INTERVAL:
            return not isRefused
        # A timer of the program's, as it was.
        self._settime(self.descriptor, 0, value, None)
        return False


def inotify(watches: Iterable[tuple[str, int]]) -> int:
    """
    Open a descriptor that becomes readable when something happens to files (inotify(7)); non-blocking, closed
    on exec.  L{endInotify} closes it.

    @param watches: paths, each with the events that count.
    @raise OSError: there is no inotify here, or no watch is free.
    """
    if ctypes is None or sys.platform != "linux":
        raise OSError(38, "no way to call inotify_init1 from this Python")
    library = ctypes.CDLL(None, use_errno=True)
    try:
        fd = _spare.pop()
    except IndexError:
        fd = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    added, held = fd, list[int]()
    for path, events in watches if fd >= 0 else ():
        added = int(library.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(events)))
        if added < 0:
            break
        held.append(added)
    if added < 0:
        code = ctypes.get_errno()
        if fd >= 0:
            os.close(fd)
        raise OSError(code, f"inotify: {os.strerror(code)}")
    _watches[fd] = held
    return fd


def endInotify(fd: int) -> None:
    """
    Close a descriptor of L{inotify}; in a forked child it is only closed, as its watches are the parent's.
    Harmless if the program has closed it, or has a file of another kind of its number; one of its own that
    watches files is taken for it, and where there is no /proc each is.

    No poller may have it any more.
    """
    held = _watches.pop(fd, None)
    try:
        # Linux fs/notify/inotify/inotify_user.c gives them all this name.
        if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:inotify":
            return
    except OSError:
        # Closed, or there is no /proc, and nobody can tell.
        held = None
    # Linux fs/notify/mark.c, fsnotify_wait_marks_destroyed: a close(2) sleeps for a grace period, many
    # milliseconds.  So one is kept for whoever watches next.
    if held is None or len(_spare) >= limits.SPARE_WATCHES:
        with suppress(OSError):
            os.close(fd)
        return
    library = ctypes.CDLL(None)
    for each in held:
        # One that the kernel has ended, with its file, is no error.
        library.inotify_rm_watch(fd, each)
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        _spare.append(fd)


def forgetWatches() -> None:
    """
    Close those descriptors of L{inotify} that wait for their next use.
    """
    while _spare:
        # A program that closes all there are may have been there before.
        with suppress(OSError):
            os.close(_spare.pop())


def _forked() -> None:
    # The open files are the parent's.
    forgetWatches()
    _watches.clear()


life.atFork(__name__, inChild=_forked)


def addSeals(fd: int, seals: int) -> None:
    """
    Add seals to a memory file, for ever and for every holder of it (fcntl(2), F_ADD_SEALS).
    """
    fcntl.fcntl(fd, F_ADD_SEALS, seals)


def getSeals(fd: int) -> int:
    """
    @return: The seals of a memory file.
    @raise OSError: it is something that has no seals.
    """
    return fcntl.fcntl(fd, F_GET_SEALS)


def endWithParent(parent: int, number: int) -> None:
    """
    Have the kernel send this process a signal when its parent ends, however that ends (prctl(2),
    PR_SET_PDEATHSIG).  Where it cannot, nothing changes.

    @param parent: the parent's process number: if it has ended already, the signal comes at once.
    @param number: the signal.
    """
    if ctypes is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number))
        if os.getppid() != parent:
            os.kill(os.getpid(), number)


@contextmanager
def sameAction(number: int) -> Iterator[None]:
    """
    At the end of this context the kernel has the handler of a signal, and the flags of that, which it had at
    its beginning (sigaction(2)).
    """
    if ctypes is None:
        yield
        return
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    sigaction = ctypes.CDLL(None).sigaction
    sigaction(number, None, action)
    try:
        yield
    finally:
        sigaction(number, action, None)


def isNonBlocking(fd: int) -> bool:
    """
    Whether the open file behind a descriptor has O_NONBLOCK at this moment; every holder can change it.
    """
    return not os.get_blocking(fd)


def tryLock(fd: int, shared: bool = False) -> bool:
    """
    Take a C{flock(2)} lock without waiting; return whether it was free.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """
    Release a C{flock(2)} lock, also if a child that was forked meanwhile has the open file too.
    """
    fcntl.flock(fd, fcntl.LOCK_UN)


def immortal(thing: object) -> None:
    """
    Never let Python free C{thing}.
    """
    # A forked child has mmap objects for mappings that it did not inherit (MADV_DONTFORK).  Freeing one
    # would unmap whatever the kernel has put at that address since.
    if ctypes is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@cache
def keepFreed() -> None:
    """
    Have the C library keep some of the memory that is freed, for all that are allocated later.

    glibc gives what is free at the end of the heap back to the kernel, beyond 128 KiB: where messages of
    64 KiB come and go, each of their pages is faulted in anew.  When a mapped block is freed, it keeps twice
    the size of that from then on (mallopt(3), M_MMAP_THRESHOLD).  The environment's settings hold.
    """
    bytes(_FREED_KEPT // 2)


def _probe() -> None:
    """
    Do once what each ring needs.

    @raise OSError: it cannot be done here.
    """
    size = mmap.PAGESIZE
    fd = memfdCreate("twisted_ib")
    try:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as mapped:
            # Containers may filter calls by seccomp(2), so each is tried: their presence in Python says
            # little.
            mapped.madvise(MADV_DONTFORK)
            seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL
            addSeals(fd, seals)
            if getSeals(fd) & seals != seals:
                raise OSError("memory files cannot be sealed")
    finally:
        os.close(fd)
    os.close(eventfd())


@cache
def available(size: int = mmap.PAGESIZE) -> tuple[str, ...]:
    """
    Report what this machine lacks for shared-memory rings, one clause each.

    @param size: of one segment, in bytes.
    @return: empty if nothing is missing; else the fabric carries its records over sockets.
    """
    if sys.platform != "linux":
        return ("Linux (memory files and eventfd)",)
    missing = []
    if os.uname().machine != "x86_64":
        # The ring relies on x86's order of stores (Intel SDM vol. 3, "Memory Ordering"); on Arm the tail
        # could become visible before the payload.
        missing.append("an x86-64 processor")
    if sys.byteorder != "little" or sys.maxsize < 1 << 32:
        missing.append("a 64-bit Python")
    # Asked, not tried: in a program that is not Python SIGXFSZ would end the process.
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < size:
        missing.append(f"files of {size} bytes (ulimit -f)")
    try:
        _probe()
    except (OSError, ValueError, AttributeError) as error:
        missing.append(f"sealed memory files and eventfd ({error})")
    return tuple(missing)
