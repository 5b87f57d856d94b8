"""
C{ib-run --check}: what is here, what a program would see, and what is missing, with what brings it.

Each thing is tried, and nothing is guessed from versions or names: a container may filter any call.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator

import attrs

from twisted_ib import limits
from twisted_ib.errors import DeviceError, HCAError, LibraryBuildError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import (
    addressOf,
    deviceNames,
    kindOf,
    readConfiguration,
    readEnvironment,
)
from twisted_ib.hca.host import libc
from twisted_ib.settings import unknown
from twisted_ib.tools.program import printable, write
from twisted_ib.tools.run.hosts import refusal
from twisted_ib.tools.run.native.again import lacking
from twisted_ib.tools.run.program import NotPython, OtherInterpreter, StartError, find
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.kept import isCarried, isKept, keptFolder, sharedPython

#: States: it is here; it is not, and programs run with less; it is not, and programs do not run.
OK, LESS, MISSING = "ok", "less", "missing"
#: The exit status where something is missing.
NOT_READY = 1
#: POSIX shared memory, which programs use, not devices; and the least that is enough of it, bytes: twice
#: what Docker gives a container.
_SHM, _SHM_BYTES = "/dev/shm", 128 << 20
#: Calls of the kernel that devices make, and that a container's filter (seccomp(2)) may refuse by these.
_FILTERED = (errno.EPERM, errno.ENOSYS)
_CALLS = {
    "memfd_create": lambda: os.close(libc.memfdCreate("twisted_ib")),
    "eventfd": lambda: os.close(libc.eventfd()),
    "epoll_create1": lambda: libc.KernelEpoll().close(),
}


@attrs.frozen
class Finding:
    """
    One thing that was looked at.

    @ivar name: what it is.
    @ivar state: L{OK}, L{LESS} or L{MISSING}.
    @ivar text: what was found; if it is missing, what brings it.
    """

    name: str
    state: str
    text: str


def _devices() -> Iterator[Finding]:
    try:
        readEnvironment()
        readConfiguration()
    except DeviceError as error:
        yield Finding("devices", MISSING, str(error))
    chosen = chosenDevice()
    for name in [chosen] if chosen else deviceNames():
        title, address = f"device {name}", addressOf(name)
        where = f"{kindOf(name).name}, at {address}" if address else kindOf(name).name
        try:
            Device(name).close()
        except (HCAError, OSError) as error:
            yield Finding(title, MISSING, f"{where}: {error}")
        else:
            yield Finding(title, OK, where)


def _environment() -> Iterator[Finding]:
    for name in unknown(os.environ):
        yield Finding(name, LESS, "nothing reads a variable of this name")


def _memory() -> Finding:
    missing = libc.available(limits.RING)
    if missing:
        text = f"no {', no '.join(missing)}: processes of this host exchange messages by sockets, slower"
        return Finding("shared memory", LESS, text)
    return Finding("shared memory", OK, "sealed memory files and eventfd")


def _calls() -> Iterator[Finding]:
    # A program that lacks a call says "Operation not permitted", and does not name the call.
    for name, call in _CALLS.items():
        try:
            call()
        except OSError as error:
            why = "a limit of this process or host, see ulimit -a"
            if error.errno in _FILTERED:
                why = "a filter of calls refuses it; Docker takes another by --security-opt seccomp=FILE"
            yield Finding(name, LESS, f"{error.strerror}: {why}")


def _posixMemory() -> Finding:
    try:
        free = os.statvfs(_SHM).f_bavail * os.statvfs(_SHM).f_frsize if os.access(_SHM, os.W_OK) else -1
    except OSError:
        free = -1
    if free >= _SHM_BYTES:
        return Finding(_SHM, OK, f"{free // 10**6} MB for programs, as MPI's; the devices need none")
    text = "nothing can be made there" if free < 0 else f"{free // 10**6} MB"
    return Finding(_SHM, LESS, f"{text}; the devices need none, MPI's programs do: docker run --shm-size=1g")


def _libraries(isNative: bool) -> Iterator[Finding]:
    title, absent = "C libraries", lacking()
    # A program of Python may use them by ctypes or pyverbs, and most do not.
    state = MISSING if isNative else LESS
    if absent:
        text = f"{' and '.join(absent)} not installed: {sys.executable} -m pip install 'twisted-ib[c]'"
        yield Finding(title, state, text)
        return
    # Much to import, and it imports cffi.
    from twisted_ib.verbs.c.building.build import wanting

    try:
        folder = keptFolder()
        if isKept(folder):
            whose = "the wheel's" if isCarried() else "built"
            yield Finding(title, OK, f"{whose}, in {folder}, with {sharedPython()}")
            return
    except LibraryBuildError as error:
        yield Finding(title, state, str(error))
        return
    clauses = list(wanting())
    yield from (Finding(title, state, clause) for clause in clauses)
    if not clauses:
        when = "the wheel's" if isCarried() else "built when they are first needed"
        yield Finding(title, OK, f"{when}, with {sharedPython()}")


def _namespaces() -> Finding:
    refused = refusal()
    if refused:
        return Finding("network namespaces", LESS, f"{refused}: hosts are addresses of loopback only")
    return Finding("network namespaces", OK, "hosts of tests, by ib-run --hosts, without rights")


def _program(name: str) -> tuple[bool, Finding]:
    # Whether it needs the C libraries, and whether it can be started.
    try:
        find(name)
    except NotPython as other:
        if lacking():
            return True, Finding(name, MISSING, "no program of Python: it needs the C libraries")
        # Imported here: it reads binaries.
        from twisted_ib.tools.run.native.binary import UnfitBinaryError, begin

        try:
            return True, Finding(name, OK, begin(other.path, other.binary)[1])
        except UnfitBinaryError as error:
            return True, Finding(name, MISSING, str(error))
    except OtherInterpreter as other:
        return False, Finding(name, OK, f"a program of Python, {other.executable}")
    except StartError as error:
        return True, Finding(name, MISSING, str(error))
    return False, Finding(name, OK, f"a program of Python, {sys.executable}")


def check(program: str, isJSON: bool) -> int:
    """
    Look at everything, and say it on standard output.

    @param program: the file or command that is to be started, or C{""}.
    @param isJSON: whether it is one JSON list of objects with C{name}, C{state} and C{text}.
    @return: the exit status: 0, or L{NOT_READY} if something is missing.
    """
    isNative, its = _program(program) if program else (True, None)
    findings = [*_calls(), _memory(), _posixMemory(), *_environment(), *_devices()]
    findings += [*_libraries(isNative), _namespaces()]
    if its is not None:
        findings.append(its)
    if isJSON:
        write(json.dumps([attrs.asdict(each) for each in findings], indent=2))
    else:
        width = max(len(each.name) for each in findings)
        for each in findings:
            write(printable(f"{each.state:7}  {each.name:{width}}  {each.text}"))
    return NOT_READY if any(each.state == MISSING for each in findings) else 0
