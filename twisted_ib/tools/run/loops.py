"""
Loops, reactors and sockets that unchanged programs get, in place of those of Twisted and of the standard
library: when a program first uses one, not when it imports it.

A process may have several kinds.  Loops of asyncio and Twisted's reactors have devices of their own; once
there is one of either, blocking sockets that connect or listen stay with the kernel
(L{twisted_ib.tools.run.sockets}).
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twisted_ib.tools.run.hooks import Hooks, importTwisted, quickly, specBeside

if TYPE_CHECKING:
    from asyncio import SelectorEventLoop
    from importlib.abc import Loader

    from twisted_ib.aio import EventLoop

_Loaded = TypeVar("_Loaded")
IB, IB_ASYNCIO, AIO, BLOCKING = "ib", "ib-asyncio", "aio", "blocking"
#: The loops by name, as C{--reactor} takes them.
LOOPS = (IB, IB_ASYNCIO, AIO, BLOCKING)
_TEXT = {
    "": "has SDP from its first loop, reactor or socket on",
    IB: "on the ib reactor, or ib-asyncio where it asks for asyncio's",
    IB_ASYNCIO: "on the ib-asyncio reactor",
    AIO: "on the loop of twisted_ib.aio",
    BLOCKING: "on the sockets of twisted_ib.blocking",
}
#: What asyncio calls the class of its loops.
_LOOP_CLASSES = ("SelectorEventLoop", *(("EventLoop",) if sys.version_info >= (3, 13) else ()))
_OURS = "twisted_ib.reactor.asyncioreactor"
#: Modules that connect in their own way, and how.
_FOREIGN = {
    **dict.fromkeys(("gunicorn", "websockify"), "forks after it listens, and RDMA does not cross a fork"),
    "grpc": "connects by its own core",
    **dict.fromkeys(("psycopg", "psycopg2"), "connects by libpq, in C"),
}
#: Loops of other kinds, which libraries import for programs that have another one (httpx): the module and its
#: name that is called when one is run first, and how it connects.
_RUN = {
    "trio": ("trio._core._run", "setup_runner", "has a loop of its own"),
    "curio": ("curio.kernel", "Kernel", "has a loop of its own"),
    "gevent": ("gevent.hub", "Hub", "replaces sockets itself"),
    "eventlet": ("eventlet.hubs", "use_hub", "replaces sockets itself"),
}
_SELECT = "twisted_ib.blocking.select"
#: What waits for sockets, too.
_WAITING = {
    "select": ("select", "poll", "epoll"),
    "selectors": ("SelectSelector", "PollSelector", "EpollSelector", "DefaultSelector"),
}
#: That of C{multiprocessing}, and of packages that were made of it, whose connections are descriptors.
_CONNECTIONS = ("multiprocessing.connection", "multiprocess.connection", "billiard.connection")
#: Modules of C{multiprocessing} that get connections and queues through shared memory.
_QUEUES = ("multiprocessing.connection", "multiprocessing.queues")
#: Modules whose queues are of C{multiprocessing}'s own, by their insides.
_LOKY = ("loky.backend.queues", "joblib.externals.loky.backend.queues")
#: The classes that stood where those of L{twisted_ib.queues} do.
_plainQueues: dict[object, type] = {}
#: What the switch counts, once there is something to count.
counted: list[Mapping[tuple[str, str, str], int]] = []
#: Why nothing can be loaded that carries connections, once that has failed.
unloadable: list[str] = []
#: Errors of an import that has failed, those of the operating system with these numbers.
_UNLOADABLE = (
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_UNREADABLE = (errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: What the end of a run says besides, by what it is about.
notes: dict[str, str] = {}


# -- Twisted


def _install(name: str) -> None:
    with quickly():
        if name == IB:
            from twisted_ib.reactor.ibreactor import install
        else:
            from twisted_ib.reactor.asyncioreactor import install
        install()
        _loadSides()


def _loadSides() -> None:
    # Much to import.  Processes that the program forks, such as the workers of a server, get it with the
    # fork; each would need several times as long for it as for the rest of its start.
    from twisted_ib.configuration.words import ROLES
    from twisted_ib.reactor import socketreport  # noqa: F401
    from twisted_ib.switch.rules.configuration import Configuration
    from twisted_ib.switch.switch import Switch

    configuration = Configuration()
    roles = [each for each in ROLES if not configuration.tcpOnly(each)]
    for role in roles:
        Switch.load(role)
    if roles:
        # No collection of the program's garbage need look at modules, nor copy their pages in a process that
        # it forks.
        gc.freeze()


class _Default:
    # `from twisted.internet import reactor` installs the default one (twisted.internet.reactor).

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "twisted.internet.default":
            return None
        return ModuleSpec(name, cast("Loader", self))

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["install"] = lambda: _install(self._name)


def _main(hooks: Hooks, module: ModuleType) -> None:
    # Each reactor is installed by this.
    install: Callable[[object], None] = vars(module)["installReactor"]

    def installReactor(reactor: object) -> None:
        install(reactor)
        kind = type(reactor)
        if any(each.__module__.startswith("twisted_ib.") for each in kind.__mro__):
            hooks.reactors.append(kind.__name__)
        else:
            notes[kind.__name__] = "a reactor that the program chose itself: its connections are TCP's"

    vars(module)["installReactor"] = installReactor


def _hookTwisted(hooks: Hooks, default: str) -> None:
    sys.meta_path.insert(0, _Default(default))
    hooks.after["twisted.internet.main"] = partial(_main, hooks)
    for name in ("epollreactor", "pollreactor", "selectreactor"):
        hooks.after[f"twisted.internet.{name}"] = lambda module: setattr(
            module, "install", lambda: _install(default)
        )

    # Programs that mix Twisted and asyncio call the one and compare with the other, as Scrapy does.
    def theirs(_: Any) -> None:
        if _OURS not in sys.modules:
            from twisted_ib.reactor import asyncioreactor  # noqa: F401

    def ours(module: ModuleType) -> None:
        names = vars(module)
        vars(sys.modules["twisted.internet.asyncioreactor"]).update(
            AsyncioSelectorReactor=names["IBAsyncioReactor"], install=names["install"]
        )

    hooks.after["twisted.internet.asyncioreactor"] = theirs
    hooks.after[_OURS] = ours


# -- asyncio


def _eventLoop() -> type[SelectorEventLoop]:
    # What it is derived from is asyncio's own.
    names = vars(sys.modules["asyncio"])
    plain: type[SelectorEventLoop] = vars(sys.modules["asyncio.unix_events"])["SelectorEventLoop"]
    names.setdefault("SelectorEventLoop", plain)
    found = attempt(_loadLoop) or plain
    # Servers name the class, too (uvicorn's loop_factory).
    names.update(dict.fromkeys(_LOOP_CLASSES, found))
    return found


def _loadLoop() -> type[EventLoop]:
    with quickly():
        importTwisted()
        from twisted_ib.aio import EventLoop
    return EventLoop


def _newLoop() -> SelectorEventLoop:
    return _eventLoop()()


def _asyncio(module: ModuleType) -> None:
    import warnings

    with warnings.catch_warnings():
        # Policies are deprecated from 3.14 on, and still there.
        warnings.simplefilter("ignore", DeprecationWarning)
        policy: Any = type(module.get_event_loop_policy())
    policy._loop_factory = staticmethod(_newLoop)
    before: Callable[[str], object] | None = vars(module).pop("__getattr__", None)
    for name in _LOOP_CLASSES:
        vars(module).pop(name, None)

    def find(name: str) -> object:
        if name in _LOOP_CLASSES:
            return _eventLoop()
        if before is not None:
            return before(name)
        raise AttributeError(f"module 'asyncio' has no attribute {name!r}")

    vars(module)["__getattr__"] = find


def _aio(hooks: Hooks, module: ModuleType) -> None:
    from twisted_ib.aio.reactor import sendWritten
    from twisted_ib.drive.process import callAll

    hooks.openLoops = vars(module)["openLoops"]
    # After these nothing has a turn.
    for name in ("_exit", "execv", "execve"):
        setattr(os, name, _after(partial(callAll, [sendWritten]), getattr(os, name)))


class _Uvloop:
    # What is faster than asyncio's is slower than this loop, and cannot look at devices.

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "uvloop" or specBeside(self, name, path, target) is None:
            return None
        return ModuleSpec(name, cast("Loader", self))

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        import asyncio

        note("uvloop", "cannot look at devices: the loop of twisted_ib.aio stands in its place")
        vars(module).update(
            new_event_loop=_newLoop,
            install=lambda: None,
            run=asyncio.run,
            EventLoopPolicy=asyncio.DefaultEventLoopPolicy,
            __getattr__=_loopOnly,
        )


def _loopOnly(name: str) -> object:
    if name == "Loop":
        return _eventLoop()
    raise AttributeError(f"module 'uvloop' has no attribute {name!r} under ib-run")


# -- blocking sockets


def _socket(hooks: Hooks, module: ModuleType) -> None:
    from twisted_ib.tools.run.sockets import replaceSocket

    replaceSocket(hooks)


def _tls(module: ModuleType) -> None:
    from twisted_ib.tools.run.sockets import replaceTLS

    replaceTLS(module)


def _select(module: ModuleType) -> None:
    selectors = sys.modules.get("selectors")
    # That one may be about to import the other; and so may be what is replaced.
    if _SELECT not in sys.modules and (selectors is None or hasattr(selectors, "DefaultSelector")):
        attempt(_importSelect)


def _importSelect() -> None:
    from twisted_ib.blocking import select  # noqa: F401


def _replaceSelect(hooks: Hooks, module: ModuleType) -> None:
    for owner, names in _WAITING.items():
        for name in names:
            hooks.replace(sys.modules[owner], name, getattr(module, name))


def _leaveForking(name: str, method: str, module: ModuleType) -> None:
    kind: Any = vars(module).get(name)
    if kind is None:
        return

    # RDMA connections do not cross a fork, and the children of this server use those of their parent.
    def listen(server: Any, *arguments: object) -> object:
        if hasattr(server.socket, "useTCP"):
            server.socket.useTCP()
        found: object = getattr(super(kind, server), method)(*arguments)
        return found

    setattr(kind, method, listen)


def _socketserver(module: ModuleType) -> None:
    _leaveForking("ForkingMixIn", "server_activate", module)
    plain: Any = vars(module)["TCPServer"]
    begin: Callable[[object], None] = plain.server_activate

    # A process of its own has the connection as its standard output; of `-m http.server` that is __main__'s.
    def activateCGI(server: Any) -> None:
        handler = server.RequestHandlerClass
        # With a folder of its own it is a functools.partial.
        kinds = getattr(getattr(handler, "func", handler), "__mro__", ())
        leave: Callable[[], object] | None = getattr(server.socket, "useTCP", None)
        if leave is not None and any(each.__name__ == "CGIHTTPRequestHandler" for each in kinds):
            leave()
        begin(server)

    plain.server_activate = activateCGI


def _connection(hooks: Hooks, module: ModuleType) -> None:
    from twisted_ib.tools.run.sockets import countDescriptor

    # Its connections are descriptors, with os.read and os.write: they stay TCP.
    names = vars(module)
    names["socket"] = hooks.kernelOf("socket")
    listener, connect = names["SocketListener"], names["SocketClient"]
    accept: Callable[[object], object] = listener.accept

    def accepting(self: object) -> object:
        made = accept(self)
        countDescriptor(getattr(self, "_address", None))
        return made

    def connecting(address: object) -> object:
        made: object = connect(address)
        countDescriptor(address)
        return made

    listener.accept = accepting
    names["SocketClient"] = connecting


def _openSSL(module: ModuleType) -> None:
    from twisted_ib.tools.run.sockets import replaceOpenSSL

    replaceOpenSSL(module)


class _Real(set[object]):
    # Modules that keep the files of this host: they carry connections, which the program does not replace.
    def __contains__(self, module: object) -> bool:
        name = str(getattr(module, "__name__", ""))
        return name.partition(".")[0] in ("twisted_ib", "twisted") or super().__contains__(module)


def _pyfakefs(module: ModuleType) -> None:
    patcher: Any = vars(module)["Patcher"]
    patcher.SKIPMODULES = _Real(patcher.SKIPMODULES)


def _hookSockets(hooks: Hooks) -> None:
    hooks.hasSockets = True
    hooks.after["socket"] = partial(_socket, hooks)
    hooks.after["ssl"] = _tls
    hooks.after["select"] = hooks.after["selectors"] = _select
    hooks.after[_SELECT] = partial(_replaceSelect, hooks)
    hooks.after["socketserver"] = _socketserver
    hooks.after["pyftpdlib.servers"] = partial(_leaveForking, "MultiprocessFTPServer", "listen")
    hooks.after.update(dict.fromkeys(_CONNECTIONS, partial(_connection, hooks)))
    hooks.after["OpenSSL.SSL"] = _openSSL
    hooks.after["pyfakefs.fake_filesystem_unittest"] = _pyfakefs


# -- queues


def _replaceQueues(before: Callable[[ModuleType], object] | None, module: ModuleType) -> None:
    # Contexts look here for what they make.  Not Listener and Client: a peer may not run under ib-run.
    if before is not None:
        before(module)
    # Not of the package, which may be what imports the module.
    from twisted_ib.queues import connection, queue, waiting

    if lacking := connection.missing():
        note("multiprocessing", f"keeps its pipes and queues: others need {', '.join(lacking)}")
        return
    names = vars(module)
    if module.__name__ == "multiprocessing.connection":
        names.update(Pipe=connection.Pipe, wait=waiting.wait)
    else:
        for each in (queue.Queue, queue.JoinableQueue, queue.SimpleQueue):
            _plainQueues[each] = names[each.__name__]
            names[each.__name__] = each


def _keepQueues(module: ModuleType) -> None:
    # Its classes are of multiprocessing's, and know what is within.
    kinds = [(name, kind) for name, kind in vars(module).items() if isinstance(kind, type)]
    for name, kind in kinds:
        if kind in _plainQueues:
            setattr(module, name, _plainQueues[kind])
        elif kind.__bases__[:1] and kind.__bases__[0] in _plainQueues:
            kind.__bases__ = (_plainQueues[kind.__bases__[0]],)


def _hookQueues(hooks: Hooks) -> None:
    for name in _QUEUES:
        hooks.after[name] = partial(_replaceQueues, hooks.after.get(name))
    for name in _LOKY:
        hooks.after[name] = _keepQueues


# -- all


def note(name: str, text: str) -> None:
    """
    Say what is out of reach, now and at the end of the run.

    @param name: what it is about.
    """
    if _say is not None:
        _say(f"{name} {text}")
    notes[name] = text


def attempt(load: Callable[[], _Loaded]) -> _Loaded | None:
    """
    Load what carries connections.  Where that fails, since the installation is damaged, the process has no
    descriptor or memory left, or the folder of the program has a module of a name that Twisted or attrs
    imports, the program goes on over TCP.

    @param load: imports it.
    @return: what it returns; L{None} if it has failed, now or before.
    """
    if unloadable:
        return None
    try:
        return load()
    # An import may fail so; a signal's handler of the program's raises other ones.
    except _UNLOADABLE as e:
        if isinstance(e, OSError) and e.errno not in _UNREADABLE:
            # That of a handler.
            raise
        unloadable.append(f"{type(e).__name__}: {e}")
        note("SDP", f"cannot be loaded: {unloadable[0]}")
        return None


def _foreign(text: str, module: ModuleType) -> None:
    note(module.__name__, text)


def _ofRun(name: str, called: str, text: str, module: ModuleType) -> None:
    # First: what the program imports gets its sockets from a module that imports it.
    import socket  # noqa: F401

    from twisted_ib.tools.run.sockets import foreign, leaveTo

    def first() -> None:
        if name not in foreign:
            note(name, text)
            leaveTo(name)

    found: object = vars(module).get(called)
    if found is None:
        # Another version: it may run at any time.
        first()
        return
    owner, called = (found, "__init__") if isinstance(found, type) else (module, called)
    setattr(owner, called, _after(first, getattr(owner, called)))


def _after(first: Callable[[], object], call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def both(*arguments: Any, **named: Any) -> Any:
        first()
        return call(*arguments, **named)

    return both


_say: Callable[[str], object] | None = None


def install(loop: str, say: Callable[[str], object] | None = None, queues: bool = False) -> str:
    """
    Have the program that is run next get loops, reactors and sockets where it uses some.

    @param loop: the only kind, one of L{LOOPS}; C{""} for what it uses.
    @param say: called with what is out of reach, when that is imported.
    @param queues: whether it gets those of L{twisted_ib.queues} in place of C{multiprocessing}'s.
    @return: what that is, for the user.
    """
    # Its call at the end is the last then: what a program has registered for its own may still send.
    import twisted_ib.drive.process  # noqa: F401

    global _say
    _say = say
    hooks = Hooks()
    hooks.after["twisted_ib.switch.reason"] = lambda module: counted.append(vars(module)["outcomes"])
    if loop in ("", IB, IB_ASYNCIO):
        _hookTwisted(hooks, loop or IB)
    if loop in ("", AIO):
        hooks.after["asyncio"] = _asyncio
        hooks.after["twisted_ib.aio.loop"] = partial(_aio, hooks)
        sys.meta_path.insert(0, _Uvloop())
    if not loop:
        _hookSockets(hooks)
        for name, text in _FOREIGN.items():
            hooks.after[name] = partial(_foreign, text)
        for name, (where, called, text) in _RUN.items():
            hooks.after[where] = partial(_ofRun, name, called, text)
    if queues:
        _hookQueues(hooks)
    hooks.install()
    if loop == BLOCKING:
        from twisted_ib.blocking.patch import patch

        patch()
    return _TEXT[loop]


__all__ = ["AIO", "BLOCKING", "IB", "IB_ASYNCIO", "LOOPS", "counted", "install", "note", "notes"]
