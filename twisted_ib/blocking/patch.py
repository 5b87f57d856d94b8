"""
Blocking sockets over SDP for programs that know nothing of it: the names of the standard library are
replaced.

L{patch} replaces them for good, before a program is imported; L{patched} for a while::

    with patched():
        ...
"""

from __future__ import annotations

import select
import selectors
import socket
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from twisted_ib.blocking import files
from twisted_ib.blocking import select as ourSelect
from twisted_ib.blocking import socket as ourSocket

# Before names are replaced: it keeps what they stand for.
from twisted_ib.hca.host import libc  # noqa: F401


def _reduce(skt: ourSocket.socket) -> Any:
    # For a process that is spawned, which gets the descriptor: what listens in both goes over TCP.
    skt.useTCP()
    if skt.sdp is not None and not skt.sdp.give():
        raise TypeError(
            f"{skt!r} is SDP's, and this process's alone: call useTCP() before connect() or listen()"
        )
    return _reducePlain(skt)


def _reducePlain(skt: socket.socket) -> Any:
    from multiprocessing import reduction

    return reduction._reduce_socket(skt)  # type: ignore[attr-defined]


# Its connections are descriptors, with os.read and os.write: they stay TCP.
_kernelSockets = ModuleType(socket.__name__, socket.__doc__)
vars(_kernelSockets).update(vars(socket), socket=socket.socket)

#: What is replaced: the module or class, the name, and its replacement.
_NAMES: tuple[tuple[Any, str, Any], ...] = (
    (socket, "socket", ourSocket.socket),
    (select, "select", ourSelect.select),
    (select, "poll", ourSelect.poll),
    (select, "epoll", ourSelect.epoll),
    (selectors, "SelectSelector", ourSelect.SelectSelector),
    (selectors, "PollSelector", ourSelect.PollSelector),
    (selectors, "EpollSelector", ourSelect.EpollSelector),
    (selectors, "DefaultSelector", ourSelect.DefaultSelector),
    *files.CALLS,
)


def _ofServers() -> Iterator[tuple[object, str, object]]:
    import socketserver

    def activateForking(server: Any) -> None:
        # RDMA connections do not cross a fork, and the children of this server use those of their parent.
        if hasattr(server.socket, "useTCP"):
            server.socket.useTCP()
        super(socketserver.ForkingMixIn, server).server_activate()

    yield socketserver, "_ServerSelector", ourSelect.PollSelector
    yield socketserver.ForkingMixIn, "server_activate", activateForking


def _ofProcesses() -> Iterator[tuple[object, str, object]]:
    from subprocess import Popen

    yield Popen, "_execute_child", files.executing(vars(Popen)["_execute_child"])


def _ofTLS() -> Iterator[tuple[object, str, object]]:
    import ssl

    from twisted_ib.blocking.tls import create

    yield ssl.SSLSocket, "_create", classmethod(create)


def _ofReduction() -> Iterator[tuple[object, str, object]]:
    from multiprocessing import reduction

    # It has registered what the name stood for when it was imported: earlier sockets are of another class.
    for owner, name, original in _before:
        if (owner, name) == (socket, "socket"):
            reduction.ForkingPickler.register(original, _reducePlain)
    reduction.ForkingPickler.register(ourSocket.socket, _reduce)
    for each in ourSocket.KernelSocket, ourSocket.MovedSocket:
        reduction.ForkingPickler.register(each, _reducePlain)
    yield from ()


def _ofConnection() -> Iterator[tuple[object, str, object]]:
    from multiprocessing import connection

    yield connection, "socket", _kernelSockets
    yield connection, "_WaitSelector", ourSelect.PollSelector


#: The same of modules that take long to import, and that most programs do not.
_LATER: dict[str, Callable[[], Iterator[tuple[object, str, object]]]] = {
    "socketserver": _ofServers,
    "subprocess": _ofProcesses,
    "ssl": _ofTLS,
    "multiprocessing.reduction": _ofReduction,
    "multiprocessing.connection": _ofConnection,
}

#: How many L{patched} contexts are open, and what the names stood for before.
_before: list[tuple[Any, str, Any]] = []
_depth = 0
_MISSING = object()


def patch(after: MutableMapping[str, Callable[[ModuleType], object]] | None = None) -> tuple[str, ...]:
    """
    Replace the names, until L{unpatch} was called as often.

    @param after: Functions that are called after the import of a module, by its name: those of modules that
        nobody has imported yet have their turn then, if they are given a place here, and else at once.
    @return: The modules that it changed.
    """
    global _depth
    _depth += 1
    if _depth == 1:
        if after is None:
            # Before names are replaced, which they may keep.
            import multiprocessing.connection  # noqa: F401
            import socketserver  # noqa: F401
            import ssl  # noqa: F401
            import subprocess  # noqa: F401
        for owner, name, replacement in _NAMES:
            _replace(owner, name, replacement)
        calls = {} if after is None else after
        for name in _LATER:
            calls[name] = partial(_replaceLater, calls.get(name))
            # Looked at after that: another thread may be importing it, which the first waits for.
            if name in sys.modules:
                tuple(_LATER[name]())
                call = calls.pop(name, None)
                if call is not None:
                    call(sys.modules[name])
    return tuple(dict.fromkeys(getattr(owner, "__module__", owner.__name__) for owner, _, _ in _before))


def _replace(owner: object, name: str, replacement: object) -> None:
    _before.append((owner, name, vars(owner).get(name, _MISSING)))
    setattr(owner, name, replacement)


def _replaceLater(before: Callable[[ModuleType], object] | None, module: ModuleType) -> None:
    if before is not None:
        before(module)
    if _depth:
        for each in _LATER[module.__name__]():
            _replace(*each)


def unpatch() -> None:
    """
    Take one L{patch} back.

    @raise RuntimeError: There was none.
    """
    global _depth
    if not _depth:
        raise RuntimeError("unpatch() without patch()")
    _depth -= 1
    if not _depth:
        for owner, name, original in reversed(_before):
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        _before.clear()


@contextmanager
def patched() -> Iterator[None]:
    """
    Within this context the names stand for sockets over SDP.
    """
    patch()
    try:
        yield
    finally:
        unpatch()
