"""
The C libraries of this package for a program: whether they are here, its environment, and its start.

Modules that know devices, read binaries or build libraries are imported on demand: most programs are Python.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec

from twisted_ib.errors import DeviceError, LibraryBuildError, UnknownDeviceError
from twisted_ib.settings import DEVICE, DEVICES, RUN_AGAIN
from twisted_ib.tools.run.program import NOT_RUNNABLE, NotPython, StartError

#: The loader's variable (ld.so(8)): directories, with colons between.
SEARCHED = "LD_LIBRARY_PATH"
#: The modules of the extra [c], and the projects that have them.
_EXTRA = {"cffi": "cffi", "elftools": "pyelftools"}


def lacking() -> list[str]:
    """
    @return: the projects of the extra C{[c]} that are not installed.
    """
    return [project for module, project in _EXTRA.items() if find_spec(module) is None]


def chooseDevice(name: str, address: str | None, environ: MutableMapping[str, str]) -> None:
    """
    Have the libraries show a program one device only, by its environment.

    @param name: the device's.
    @param address: its own, or L{None} if it has none, or one already.
    @raise StartError: there is no such device, or it cannot have that address.
    """
    from twisted_ib.hca.device.registry import addressOf, isPlacedByUser, kindOf, parseDevices

    try:
        kind = kindOf(name)
        own = addressOf(name)
        if address is None and isPlacedByUser(name):
            raise DeviceError(f"device {name} has no address: say --address, too")
        if address is None:
            address = own
        item = f"{name}={kind.name}" + (f":{address}" if address is not None else "")
        # The same device in the variable gives way.
        others = [each for each in environ.get(DEVICES, "").split(",") if _named(each) not in ("", name)]
        text = ",".join([item, *others])
        parseDevices(text)
    except (DeviceError, UnknownDeviceError) as error:
        raise StartError(str(error), NOT_RUNNABLE) from None
    environ[DEVICES], environ[DEVICE] = text, name


def _named(item: str) -> str:
    return item.partition("=")[0].strip()


def searchPath(folders: list[str], environ: Mapping[str, str]) -> str:
    """
    @return: the value of C{LD_LIBRARY_PATH}: these, and what it had.
    """
    # An empty entry would be the current directory.
    return ":".join([*folders, *filter(None, [environ.get(SEARCHED, "")])])


@contextmanager
def asStarted() -> Iterator[None]:
    """
    Have the signals that Python ignores at its start as they were: a program that takes its place inherits
    them.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        yield
    finally:
        # It was not started.
        for number, handler in before.items():
            signal.signal(number, handler)


def become(program: NotPython, words: list[str], isViewed: bool, say: Callable[[str], None]) -> None:
    """
    Run a program that is no Python in place of this one.

    @param words: its command line.
    @param isViewed: whether it finds the devices where Linux has them, too.
    @param say: called with what it gets, before it starts.
    @raise StartError: it would not get the libraries, or it cannot be started; the text says why.
    """
    missing = lacking()
    if missing:
        raise StartError(
            f"{program.path} is no Python program, and the C libraries for it need {' and '.join(missing)}: "
            f"{sys.executable} -m pip install 'twisted-ib[c]'",
            NOT_RUNNABLE,
        )
    from twisted_ib.tools.run.native.binary import UnfitBinaryError, begin
    from twisted_ib.tools.run.native.view import show

    environment = dict(os.environ)
    try:
        folders, text = begin(program.path, program.binary)
        if isViewed:
            show(folders[-1], environment)
    except (LibraryBuildError, UnfitBinaryError) as error:
        raise StartError(str(error), NOT_RUNNABLE) from None
    environment[SEARCHED] = searchPath(folders, os.environ)
    say(text)
    try:
        with asStarted():
            os.execve(program.path, words, environment)
    except OSError as error:
        raise StartError(f"{program.path}: {error.strerror}", NOT_RUNNABLE) from None


def searchByPython(isViewed: bool) -> str:
    """
    Have this process find the libraries, if the extra C{[c]} is installed: it starts again, as the loader
    reads its variables only then.

    @param isViewed: as of L{become}.
    @return: why they are not there, for the user; C{""} if they are, or nobody has asked for them.
    """
    # It has started again, as the same process.
    if os.environ.pop(RUN_AGAIN, "") == str(os.getpid()) or lacking():
        return ""
    from twisted_ib.verbs.c.kept import isKept, keptFolder

    try:
        folder = keptFolder()
        if not isKept(folder):
            from twisted_ib.verbs.c.building.build import libraries

            libraries()
        if folder in os.environ.get(SEARCHED, "").split(":"):
            return ""
        environment = {**os.environ, SEARCHED: searchPath([folder], os.environ), RUN_AGAIN: str(os.getpid())}
        if isViewed:
            # Imported here: it knows devices.
            from twisted_ib.tools.run.native.view import show

            show(folder, environment)
    except LibraryBuildError as error:
        return f"no C libraries: {error}"
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
