"""
The C libraries of this package for a program: its environment, and its start.

Modules that know devices, read binaries or build libraries are imported on demand: most programs are Python.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager

from twisted_ib.errors import DeviceError, LibraryBuildError, UnknownDeviceError
from twisted_ib.settings import DEVICE, DEVICES, RUN_CHILDREN
from twisted_ib.tools.run.native.again import SEARCHED, lacking, searchPath
from twisted_ib.tools.run.program import NOT_RUNNABLE, NotPython, StartError, isPython


def chooseDevice(name: str, address: str | None, environ: MutableMapping[str, str]) -> None:
    """
    Have the libraries show a program one device only, by its environment.

    @param address: its own, or L{None} if it has none, or one already.
    @raise StartError: there is no such device, or it cannot have that address.
    """
    from twisted_ib.hca.device.registry import addressOf, isPlacedByUser, kindOf, parseDevices

    try:
        kind = kindOf(name)
        if kind.locate is not None:
            raise DeviceError(
                f"device {name} is of fabric {kind.name}: libibverbs is twisted_ib's own here, which has no"
                " hardware: run the program without ib-run"
            )
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


def _findLibraries(program: NotPython, isViewed: bool, environment: dict[str, str]) -> str:
    # Returns what the program gets, for the user.
    from twisted_ib.tools.run.native.binary import UnfitBinaryError, begin
    from twisted_ib.tools.run.native.view import put, show

    try:
        folders, text, inFront = begin(program.path, program.binary, RUN_CHILDREN in environment)
        if isViewed:
            show(folders[-1], environment)
        put(inFront, environment)
    except (LibraryBuildError, UnfitBinaryError) as error:
        raise StartError(str(error), NOT_RUNNABLE) from None
    environment[SEARCHED] = searchPath(folders, os.environ)
    return text


def become(program: NotPython, words: list[str], isViewed: bool, say: Callable[[str], None]) -> None:
    """
    Run a program that is no Python in place of this one.

    @param words: its command line.
    @param isViewed: whether it finds the devices where Linux has them, too.
    @param say: called with what it gets, before it starts.
    @raise StartError: it would not get the libraries, or it cannot be started; the text says why.
    """
    environment = dict(os.environ)
    missing = lacking()
    if not missing:
        say(_findLibraries(program, isViewed, environment))
    else:
        install = f"{sys.executable} -m pip install 'twisted-ib[c]'"
        needed = f"the C libraries need {' and '.join(missing)}: {install}"
        if not (RUN_CHILDREN in environment and isPython(program.binary)):
            raise StartError(f"{program.path} is no Python program, and {needed}", NOT_RUNNABLE)
        say(f"gets SDP if it has twisted_ib; {needed}")
    try:
        with asStarted():
            os.execve(program.path, words, environment)
    except OSError as error:
        raise StartError(f"{program.path}: {error.strerror}", NOT_RUNNABLE) from None
