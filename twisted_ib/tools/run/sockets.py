"""
The C{socket} of a program under C{ib-run}, until one of them connects or listens: it costs nothing before.

The first that may go over SDP (L{twisted_ib.tools.run.offers}) has L{twisted_ib.blocking} imported, and is
one of its sockets from then on; so are all that are made later.
"""

from __future__ import annotations

import os
import socket as kernel
import sys
from contextlib import suppress
from errno import EINPROGRESS
from functools import partial, wraps
from threading import RLock
from types import FunctionType, MethodDescriptorType
from typing import TYPE_CHECKING, Any, cast

from twisted_ib.tools.run.hooks import ABSENT, Hooks, importTwisted, quickly
from twisted_ib.tools.run.loops import attempt, unloadable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from OpenSSL.SSL import Connection, Context

    from twisted_ib.blocking.socket import socket as Carried
    from twisted_ib.switch.reason import Fallback, Reason

_Plain = kernel.socket
#: Loops that the program has run, and that wait for descriptors in their own way, with sockets that do not
#: block.
foreign: list[str] = []
#: Servers that fork after they listen: RDMA does not cross a fork.
FORKING = ("gunicorn", "websockify")
_full: type[Carried] | None = None
_hooks: Hooks | None = None
_loading = RLock()
#: Seconds for which a fork waits for another thread that loads: a child finds no half of a module. But that
#: thread may wait for a module which the one that forks imports.
FORK_SECONDS = 5.0
#: Methods of L{_full} before the program has replaced any, and those that follow them: see L{_Sockets}.
_methods: dict[str, Callable[..., Any]] = {}
_follow: dict[str, Callable[..., object]] = {}
#: Sockets that the kernel has connected or accepted amid an import, and that are not counted yet.
_uncounted: list[kernel.socket] = []


def stays(skt: kernel.socket) -> Fallback | None:
    """
    @return: why a socket stays with the kernel, whatever the rules say; L{None} if it does not.
    """
    hooks = _hooks
    assert hooks is not None
    if unloadable:
        from twisted_ib.switch.reason import Fallback

        return Fallback("unloadable", unloadable[0])
    # Nearly always: it is asked for each connect.
    if not (hooks.reactors or hooks.openLoops or foreign) and sys.modules.keys().isdisjoint(FORKING):
        return None
    isBeside = bool(hooks.reactors or hooks.openLoops)
    forking = next((name for name in FORKING if name in sys.modules), "")
    if not (isBeside or forking or (foreign and not _isBlocking(skt))):
        return None
    from twisted_ib.switch.reason import SOCKET, Fallback

    if isBeside:
        # One may be given to the loop, which waits for the kernel's only.
        name = hooks.reactors[0] if hooks.reactors else "a loop of asyncio"
        if _isBlocking(skt):
            return Fallback("beside", f"blocking sockets stay TCP beside {name}")
        return Fallback(SOCKET, f"sockets that the program connects or accepts itself stay TCP beside {name}")
    if forking:
        return Fallback("forking", f"{forking} forks after it listens")
    return Fallback("foreign", f"{foreign[0]} waits for descriptors in its own way")


def _isBlocking(skt: kernel.socket) -> bool:
    # One made of a descriptor does not say whether that blocks.
    timeout = skt.gettimeout()
    return os.get_blocking(skt.fileno()) if timeout is None else timeout != 0.0


class _Sockets(type):
    """
    Every socket of the standard library is an instance of L{socket}; and methods that a program replaces in
    it (pytest-socket, mocks, tracers) are those of L{twisted_ib.blocking.socket.socket}, too.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Plain) if cls is socket else super().__instancecheck__(instance)

    def __getattribute__(cls, name: str) -> Any:
        value: Any = type.__getattribute__(cls, name)
        if name.startswith("__") or cls is not socket or name in vars(cls):
            return value
        return _following(name, value) if isinstance(value, (FunctionType, MethodDescriptorType)) else value

    def __setattr__(cls, name: str, value: object) -> None:
        if cls is socket and value is _follow.get(name):
            # It takes back its own.
            if name in vars(cls):
                delattr(cls, name)
            return
        super().__setattr__(name, value)
        if cls is socket and _full is not None:
            _put(_full, name)

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        if cls is socket and _full is not None:
            _put(_full, name)


def _following(name: str, plain: Callable[..., object]) -> Callable[..., object]:
    # A method of the standard library's that a program keeps, and may call with a socket that SDP carries by
    # then.
    if name not in _follow:

        @wraps(plain)
        def call(self: kernel.socket, *arguments: object, **named: object) -> object:
            method = plain if _carried(self) is None else _methods.get(name, plain)
            return method(self, *arguments, **named)

        _follow[name] = call
    return _follow[name]


def _put(full: type[Carried], name: str) -> None:
    # Have the class of sockets over SDP follow this one.
    value: object = vars(socket).get(name, ABSENT)
    if value is _own.get(name, ABSENT):
        value = _methods.get(name, ABSENT)
    if value is not ABSENT:
        setattr(full, name, value)
    elif name in vars(full):
        delattr(full, name)


class socket(kernel.socket, metaclass=_Sockets):
    """
    See C{socket.socket}.  The slots are those of L{twisted_ib.blocking.socket.socket}, which it becomes.
    """

    __slots__ = ("_connecting", "_names", "_sdp", "isDirect")

    def __new__(cls, *arguments: Any, **named: Any) -> socket:
        """
        Make a socket: one of SDP's, if there are some already.
        """
        if _full is None or cls is not socket:
            return _Plain.__new__(cls)
        made: object = _full(*arguments, **named)
        return cast("socket", made)

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        this = _carried(self)
        if this is not None:
            # A class that was derived from this one calls it by the name that it had (PySocks).
            _methods["__init__"](this, family, type, proto, fileno)
            return
        self._sdp = self._connecting = None
        self.isDirect = False
        super().__init__(family, type, proto, fileno)

    def useTCP(self) -> None:
        """
        See L{twisted_ib.blocking.socket.socket.useTCP}.
        """
        self.isDirect = True

    def connect(self, address: Any, /) -> None:
        this, why = _becomeFor(self, address)
        if this is not None:
            _methods["connect"](this, address)
        else:
            try:
                _Plain.connect(self, address)
            except BlockingIOError:
                _count(self, self, why)
                raise
            _count(self, self, why)

    def connect_ex(self, address: Any, /) -> int:
        this, why = _becomeFor(self, address)
        if this is not None:
            found: int = _methods["connect_ex"](this, address)
            return found
        number = _Plain.connect_ex(self, address)
        if number in (0, EINPROGRESS):
            _count(self, self, why)
        return number

    def listen(self, *arguments: int) -> None:
        this = _become(self)
        if this is not None:
            _methods["listen"](this, *arguments)
        else:
            _Plain.listen(self, *arguments)

    def accept(self) -> tuple[kernel.socket, Any]:
        this = _carried(self)
        if this is not None:
            return cast("tuple[kernel.socket, Any]", _methods["accept"](this))
        found = _Plain.accept(self)
        _count(self, found[0])
        return found


#: The names of L{socket} before the program has replaced anything.
_own = {**vars(socket)}


def _carried(skt: kernel.socket) -> Carried | None:
    # The same, if it is one of SDP's class: a program may have kept methods of this one (trio does).
    return cast("Carried", skt) if _full in type(skt).__mro__ else None


def _become(skt: kernel.socket) -> Carried | None:
    # The same, if it may go over SDP.
    this = _carried(skt)
    if this is None and _isOpen(skt):
        full = attempt(load)
        if full is not None and type(skt) is socket:
            cast("Carried", skt).__class__ = full
        return _carried(skt)
    return this


def _isOpen(skt: kernel.socket) -> bool:
    # Not isinstance(), which holds for all.
    isOurs = not {socket, _full}.isdisjoint(type(skt).__mro__) and not cast("socket", skt).isDirect
    return isOurs and _isTCP(skt) and not _isAmidImport() and stays(skt) is None


def _isAmidImport() -> bool:
    """
    Return whether the caller, as a signal's handler, has interrupted the import of a module of the package,
    half of which it would find: what it connects, or has listen, is the kernel's.  Those of the class that
    L{load} returns wait for it (L{twisted_ib.drive.waiter.Handlers.keep}).
    """
    frame = None if _full is not None else sys._getframe(1)
    while frame is not None:
        # Of importlib.
        if frame.f_code.co_name == "_find_and_load":
            name: object = frame.f_locals.get("name")
            if isinstance(name, str) and name.startswith("twisted_ib."):
                return True
        frame = frame.f_back
    return False


def _becomeFor(skt: kernel.socket, address: object) -> tuple[Carried | None, Reason | None]:
    # The same for a connect; or why the kernel has it, if that is certain.
    if _full is None and _isOpen(skt):
        from twisted_ib.tools.run.offers import whyTCP

        why = attempt(partial(whyTCP, skt, address))
        if why is not None:
            return None, why
    return _become(skt), None


def _count(skt: kernel.socket, made: kernel.socket, why: Reason | None = None) -> None:
    # A loop counts what it connects and accepts itself.
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    if not _isTCP(skt) or caller.partition(".")[0] in ("asyncio", "twisted"):
        return
    if _isAmidImport():
        _uncounted.append(made)
        return
    from twisted_ib.switch.reason import EXPLICIT, LISTENED, SOCKET, Fallback, Reason, carried, kept, stayed

    while _uncounted:
        stayed(
            _uncounted.pop(), Fallback(SOCKET, "a signal's handler had it amid the first connect or listen")
        )
    fallback = stays(skt)
    if unloadable:
        # Nor could what writes the log.
        why = Reason("default", "both", "tcp", fallback=fallback)
    if why is not None:
        kept[made] = why
        carried("tcp", why)
    elif fallback is None and made is not skt and not getattr(skt, "isDirect", False):
        # It was never told to: another program has, which has given it (LISTEN_FDS).
        why = kept[skt] = kept[made] = Reason("default", "both", "tcp", fallback=LISTENED)
        carried("tcp", why)
    elif fallback is None:
        carried("tcp", Reason(EXPLICIT, "tcp"))
    else:
        stayed(made, fallback)


def countDescriptor(address: object) -> None:
    """
    C{multiprocessing} has connected to an address, or accepted there: those of TCP are counted.
    """
    if isinstance(address, tuple):
        from twisted_ib.switch.reason import Fallback, Reason, carried

        why = Fallback("descriptor", "multiprocessing's connections are descriptors")
        carried("tcp", Reason("default", "both", "tcp", fallback=why))


def _setBlocking(self: Carried, flag: bool, /) -> None:
    _Plain.setblocking(self, flag)
    if not flag and foreign:
        # A port that such a loop takes over.
        self.useTCP()


def _isTCP(skt: kernel.socket) -> bool:
    return skt.family in (kernel.AF_INET, kernel.AF_INET6) and skt.type == kernel.SOCK_STREAM


def load() -> type[Carried]:
    """
    Have the sockets of the process go over SDP where they can.

    @return: their class.
    """
    return _full or _load()


def _load() -> type[Carried]:
    global _full
    with quickly():
        from twisted_ib.drive.process import life
        from twisted_ib.drive.waiter import handlers
        from twisted_ib.hca.host.libc import sameAction
    life.atFork(__name__, _forking, _forked, _forkedChild)
    # A signal's handler that needs them, too, is called once they are there, and finds no half of a module.
    handlers.install(sameAction)
    with handlers.keep(), _loading:
        if _full is None:
            assert _hooks is not None
            _full = _loaded(_hooks)
    return _full


def _forking() -> None:
    _loading.acquire(True, FORK_SECONDS)


def _forked() -> None:
    # It may have waited in vain.
    with suppress(RuntimeError):
        _loading.release()


def _forkedChild() -> None:
    # Another thread may have had it.
    global _loading
    _loading = RLock()


def _loaded(hooks: Hooks) -> type[Carried]:
    with quickly():
        importTwisted()
        from twisted_ib.blocking import patch
        from twisted_ib.blocking.socket import socket as full
        from twisted_ib.drive.waiter import NoLock
    NoLock.refusing = staticmethod(_sayForked)
    # The program's own replacements stay as they are.
    own = [(each, each.now()) for each in hooks.replaced if each.now() is not each.ours]
    full.stays = staticmethod(stays)
    type.__setattr__(full, "setblocking", _setBlocking)
    if foreign:
        full.kernelKind = full
    patch.patch(hooks.after)
    for each, value in own:
        each.put(value)
    # A loop that is made now may get one of them.
    hooks.kernels = ("socket", "select")
    events = sys.modules.get("asyncio.selector_events")
    if events is not None:
        vars(events)["selectors"] = sys.modules["selectors"]
    _rebase(socket, full)
    _methods.update(vars(full))
    for name, value in vars(socket).items():
        if value is not _own.get(name, ABSENT):
            _put(full, name)
    return full


def _sayForked() -> None:
    from twisted_ib.tools.run.loops import note, notes

    if "fork" not in notes:
        text = "is not crossed by SDP, and a process uses what its parent has: `use tcp listen` for that port"
        note("fork", text)


def _rebase(old: Any, new: type) -> None:
    # Classes of the program's that are derived from this one.
    for each in old.__subclasses__():
        try:
            each.__bases__ = tuple(new if base is old else base for base in each.__bases__)
        except TypeError:
            # Another layout: the sockets of that class stay with the kernel.
            continue


# -- the modules that programs import


def leaveTo(name: str) -> None:
    """
    A loop of another kind runs: leave it the sockets that do not block.

    @param name: the module's that has it.
    """
    foreign.append(name)
    if _full is not None:
        from twisted_ib.blocking.descriptors import offloaded

        # It is to get sockets of the class that it finds as socket.socket (trio).
        _full.kernelKind = _full
        for each in list(offloaded.values()):
            if not _isBlocking(each):
                # Ports, which it may wait for: connections stay.
                each.useTCP()


def replaceTLS(module: ModuleType) -> None:
    """
    C{ssl} was imported: have sockets that TLS gets before they connect or listen be of SDP's class first.
    """
    kind: type = vars(module)["SSLSocket"]
    plain: Callable[..., object] = vars(kind)["_create"].__func__

    def create(cls: type, /, sock: kernel.socket, **options: object) -> object:
        if _carried(sock) is None and _becomeFirst(sock) is not None:
            # It has replaced this.
            ours: Callable[..., object] = vars(kind)["_create"].__func__
            return ours(cls, sock, **options)
        return plain(cls, sock, **options)

    type.__setattr__(kind, "_create", classmethod(create))


def _becomeFirst(skt: kernel.socket) -> Carried | None:
    # The same, if it may go over SDP and has no connection of the kernel's.
    from twisted_ib.switch.reason import isConnected

    this = _carried(skt)
    if this is not None and this.sdp is not None:
        return this
    return None if not _isOpen(skt) or isConnected(skt) else _become(skt)


def replaceOpenSSL(module: ModuleType) -> None:
    """
    C{OpenSSL.SSL} was imported: have its connections of sockets that SDP may carry work in memory.
    """
    kind: type[Connection] = vars(module)["Connection"]
    plain = kind.__init__

    def begin(self: Connection, context: Context, socket: kernel.socket | None = None) -> None:
        this = None if socket is None else _becomeFirst(socket)
        if this is not None and this.sdp is not None:
            from twisted_ib.blocking.connecting import secured

            # Whether it is the client or the server of TLS is said later: mostly that of the connection.
            secured(this, True)
            if this.sdp is None:
                # The kernel carries it: OpenSSL has the descriptor.
                this = None
        plain(self, context, socket if this is None else None)
        if this is not None:
            # First: what it has replaced then is of that module.
            import ssl  # noqa: F401

            from twisted_ib.blocking.tls import carryOpenSSL

            carryOpenSSL(self, this)

    type.__setattr__(kind, "__init__", begin)


def replaceSocket(hooks: Hooks) -> None:
    """
    Have the program's sockets be these.
    """
    global _hooks
    _hooks = hooks
    hooks.replace(kernel, "socket", socket)
