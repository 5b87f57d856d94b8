"""
What the shared-memory fabric needs from Linux, also where Python lacks it.

Some Pythons were built against an old C library and miss C{memfd_create},
C{eventfd} or C{pidfd_open}, and none before 3.13 names the seal that this
fabric stands on.  The calls are made through C{os} where it has them and
through C{ctypes} where it has not.  Importing this module is safe everywhere;
L{available} says what is missing here.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from functools import cache

try:
    import ctypes
except ImportError:  # pragma: no cover - a Python built without libffi
    ctypes = None  # type: ignore[assignment]

if sys.platform != "win32":
    import fcntl

F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 0x01
F_SEAL_SHRINK = 0x02
F_SEAL_GROW = 0x04
F_SEAL_FUTURE_WRITE = 0x10
MFD_CLOEXEC = 0x1
MFD_ALLOW_SEALING = 0x2
MADV_DONTFORK = 10

_SYSTEM_CALLS = {
    "x86_64": {"memfd_create": 319, "eventfd": 290, "pidfd_open": 434},
    "aarch64": {"memfd_create": 279, "eventfd": 19, "pidfd_open": 434},
}
_EVENTFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0) if hasattr(os, "O_NONBLOCK") else 0


def _systemCall(name: str, *arguments: object) -> int:
    """
    A system call by number, for a Python and a C library that both lack it.

    @raise OSError: the kernel refuses, or nothing here can make the call.
    """
    number = _SYSTEM_CALLS.get(platform.machine(), {}).get(name)
    if ctypes is None or number is None or sys.platform != "linux":
        raise OSError(38, f"no way to call {name} from this Python")
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(call(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def memfdCreate(name: str) -> int:
    """
    A new memory file that can be sealed, not inherited by programs we start.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
    return _systemCall("memfd_create", os.fsencode(name), MFD_CLOEXEC | MFD_ALLOW_SEALING)


def eventfd() -> int:
    """
    A new event counter, non-blocking, not inherited by programs we start.
    """
    if hasattr(os, "eventfd"):
        return os.eventfd(0, _EVENTFD_FLAGS)
    return _systemCall("eventfd", 0, _EVENTFD_FLAGS)


def pidfdOpen(pid: int) -> int:
    """
    A descriptor that becomes readable when process C{pid} is dead.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _systemCall("pidfd_open", pid, 0)


def addSeals(fd: int, seals: int) -> None:
    """
    Forbid for ever what C{seals} says, for every holder of this memory file.
    """
    fcntl.fcntl(fd, F_ADD_SEALS, seals)


def getSeals(fd: int) -> int:
    """
    The seals of a memory file.

    @raise OSError: it is something that has no seals.
    """
    return fcntl.fcntl(fd, F_GET_SEALS)


def isNonBlocking(fd: int) -> bool:
    """
    Whether the open file behind a descriptor has O_NONBLOCK at this moment.
    """
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK)


def tryLock(fd: int, shared: bool = False) -> bool:
    """
    Take C{flock} on a descriptor if nobody holds it; never wait.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def immortal(thing: object) -> None:
    """
    Never let Python free C{thing}.

    A forked child has Python objects of mappings that it did not inherit.  If
    it freed one it would unmap whatever the kernel has put there since.
    """
    if ctypes is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _probe() -> None:
    """
    Do once what each ring does.

    @raise OSError: it cannot be done here.
    """
    size = mmap.PAGESIZE
    fd = memfdCreate("twisted_ib")
    try:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as mapped:
            mapped.madvise(MADV_DONTFORK)
            seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL
            addSeals(fd, seals)
            if getSeals(fd) & seals != seals:
                raise OSError("memory files cannot be sealed")
    finally:
        os.close(fd)
    os.close(eventfd())


@cache
def available() -> tuple[str, ...]:
    """
    What shared-memory rings need and this machine has not, one clause each;
    empty if all is there.

    Where it is not empty the fabric carries its records over the socket.
    """
    if sys.platform != "linux":
        return ("Linux (memory files and eventfd)",)
    missing = []
    if platform.machine() not in ("x86_64", "AMD64"):
        # Nothing here orders the payload before the tail on other processors.
        missing.append("an x86-64 processor")
    if sys.byteorder != "little" or sys.maxsize < 1 << 32:
        missing.append("a 64-bit Python")
    try:
        _probe()
    except (OSError, ValueError, AttributeError) as error:
        missing.append(f"sealed memory files and eventfd ({error})")
    return tuple(missing)


__all__ = [
    "addSeals",
    "available",
    "eventfd",
    "getSeals",
    "immortal",
    "isNonBlocking",
    "memfdCreate",
    "pidfdOpen",
    "tryLock",
]
