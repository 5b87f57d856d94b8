"""
The standard library and Twisted as a program under C{ib-run} finds them, from when it first imports them.

A finder in front of C{sys.meta_path} has a function called after the import of a module, once.  Nothing is
imported that the program does not import itself.
"""

from __future__ import annotations

import gc
import os
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from itertools import takewhile
from threading import RLock, get_ident
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

#: Where the modules of a package are found; L{None} for one that is in none.
Path: TypeAlias = "Sequence[str] | None"

#: Packages whose modules have the kernel's sockets: faces of their own carry their connections.
_LOOPS = ("asyncio.", "twisted.internet.")
#: The module that all of those are there with that connect over SDP.
_DEVICES = "twisted_ib.hca.device.device"
#: Modules that are executed with the kernel's names: they derive classes from these, or keep them.
_PLAIN = ("ssl", "asyncio", "twisted", "twisted_ib")
#: The finders before the program has changed them.
_first: list[Any] = [*sys.meta_path]
#: Modules of the standard library whose classes others are derived from that implement interfaces.
_BASES = ("abc", "asyncio.transports", "typing")
#: An attribute of such a class, as zope.interface makes it.
_PROVIDED = "__provides__"
#: What a name stands for that its module has no more.
ABSENT = object()


class _Standard:
    """
    The standard library, in a program whose folder has modules of the same names (C{random.py}): what imports
    this package finds that library's, and the program its own, before and after.
    """

    #: Where it is: modules in these, packages in folders of these.
    _FOLDERS = (os.path.dirname(os.__file__), os.path.join(os.path.dirname(os.__file__), "lib-dynload"))

    def __init__(self) -> None:
        self._lock = RLock()
        #: The library's names in folders that come before it; the threads within; and the program's names.
        self._seen: dict[str, frozenset[str]] = {}
        self._within: list[int] = []
        self._names: frozenset[str] = frozenset()
        #: These modules meanwhile, and the library's that were imported so.
        self._own, self._found = self._moved(), self._moved()

    def __enter__(self) -> None:
        with self._lock:
            self._within.append(get_ident())
            if len(self._within) == 1:
                for folder in takewhile(lambda each: each not in self._FOLDERS, sys.path):
                    if folder not in self._seen:
                        with suppress(OSError):
                            names = {each.partition(".")[0] for each in os.listdir(folder or os.curdir)}
                            self._seen[folder] = sys.stdlib_module_names & names
                    self._names |= self._seen.get(folder, frozenset())
                self._names = frozenset(name for name in self._names if not self._isFound(name))
                self._own = self._moved()
                if self._names:
                    sys.modules.update(self._found)
                    sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within.remove(get_ident())
            if self._names and not self._within:
                # Another thread may have imported one of the program's.
                self._names = frozenset(filter(self._isFound, self._names))
                self._found = self._moved()
                sys.modules.update({**self._own, **sys.modules})
                sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
                self._names = frozenset()

    def find_spec(self, name: str, path: Path = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in self._names and get_ident() in self._within:
            return PathFinder.find_spec(name, self._FOLDERS, target)
        return None

    def _isFound(self, name: str) -> bool:
        # What is built in has no file.
        file: str | None = getattr(sys.modules[name], "__file__", None) if name in sys.modules else ""
        return file is None or os.path.dirname(file.removesuffix("/__init__.py")) in self._FOLDERS

    def _moved(self) -> dict[str, ModuleType]:
        # With the modules of packages.
        return {each: sys.modules.pop(each) for each in [*sys.modules] if each.split(".")[0] in self._names}


_standard = _Standard()


class _Loader:
    """
    Executes a module, and calls what was asked for.
    """

    def __init__(self, loader: Loader, hooks: Hooks) -> None:
        self._loader = loader
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name, spec = module.__name__, module.__spec__
        # Who asks for the loader is to get its own.
        vars(module)["__loader__"] = self._loader
        if spec is not None:
            spec.loader = self._loader
        if name.partition(".")[0] in _PLAIN:
            with self._hooks.plain(), _standard:
                self._loader.exec_module(module)
        else:
            self._loader.exec_module(module)
        self._hooks.imported(name, module)


class Replaced:
    """
    A name that stands for something else in programs.

    @ivar module: the module that has it.
    @ivar kernels: what it stood for.
    @ivar ours: what it stands for.
    """

    __slots__ = ("kernels", "module", "name", "ours")

    def __init__(self, module: ModuleType, name: str, kernels: object, ours: object) -> None:
        self.module, self.name, self.kernels, self.ours = module, name, kernels, ours

    def now(self) -> object:
        """
        @return: what it stands for at the moment; L{ABSENT} if the program has taken it out, as gevent does.
        """
        # Not as an attribute, which is the kernel's within plain().
        value: object = vars(self.module).get(self.name, ABSENT)
        return value

    def put(self, value: object) -> None:
        """
        Have it stand for that, or be as absent as it was.
        """
        if value is not ABSENT:
            setattr(self.module, self.name, value)
        elif self.now() is not ABSENT:
            delattr(self.module, self.name)


class Hooks:
    """
    The finder.

    @ivar after: what is called after the import of a module, by its name, with the module.
    @ivar replaced: the names that stand for something of ours.
    @ivar reactors: Twisted's, of this package, that the program has installed.
    @ivar openLoops: those of asyncio.
    @ivar hasSockets: whether the kernel's are replaced.
    @ivar kernels: the modules of which loops have the kernel's names.
    """

    def __init__(self) -> None:
        self.after: dict[str, Callable[[ModuleType], object]] = {}
        self.replaced: list[Replaced] = []
        self.reactors: list[str] = []
        self.openLoops: Collection[object] = ()
        self.hasSockets = False
        self.kernels: tuple[str, ...] = ("socket", "select", "selectors")
        self._copies: dict[str, ModuleType] = {}
        self._lock = RLock()
        #: The threads that find the kernel's names.
        self._plain: list[int] = []
        #: The classes of modules that are divided, by those that they have else.
        self._divided: dict[type[ModuleType], type[ModuleType]] = {}

    def install(self) -> None:
        """
        Have the functions called, also for what is imported already.
        """
        sys.meta_path.insert(0, self)
        _first[:] = sys.meta_path
        for name in list(self.after):
            module = sys.modules.get(name)
            if module is not None:
                self.imported(name, module)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """
        See C{importlib.abc.MetaPathFinder.find_spec}.
        """
        if name not in self.after:
            if not (self.hasSockets and name.partition(".")[0] in _PLAIN):
                return None
            # While one of these is imported, all that it imports sees the kernel's names, too.
            if get_ident() in self._plain and not f"{name}.".startswith(_LOOPS):
                return None
        spec = specBeside(self, name, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast("Loader", _Loader(spec.loader, self))
        return spec

    def imported(self, name: str, module: ModuleType) -> None:
        """
        A module was imported.
        """
        if self.hasSockets and f"{name}.".startswith(_LOOPS):
            for each in self.kernels:
                if vars(module).get(each) is sys.modules.get(each, self):
                    setattr(module, each, self.kernelOf(each))
        call = self.after.pop(name, None)
        if call is not None:
            call(module)

    def replace(self, module: ModuleType, name: str, ours: object) -> None:
        """
        Have a name of a module stand for something of ours.
        """
        with self._lock:
            self.replaced.append(Replaced(module, name, getattr(module, name), ours))
            setattr(module, name, ours)
            if self._plain:
                self._divide()

    @contextmanager
    def plain(self) -> Iterator[None]:
        """
        Within this context the calling thread finds the kernel's in the modules, by C{import} and as their
        attributes.  Others, and functions of these modules, have ours: no thread that makes its sockets
        meanwhile gets one that never goes over SDP.
        """
        # Not held while modules are imported: another thread may have what they wait for.
        with self._lock:
            self._plain.append(get_ident())
            self._divide()
        try:
            yield
        finally:
            with self._lock:
                self._plain.remove(get_ident())
                if not self._plain:
                    self._unite()

    def _divide(self) -> None:
        for each in self.replaced:
            kind = type(each.module)
            if kind not in self._divided.values():
                if kind not in self._divided:
                    self._divided[kind] = self._dividedOf(kind)
                each.module.__class__ = self._divided[kind]

    def _unite(self) -> None:
        for each in self.replaced:
            for kind, divided in self._divided.items():
                if type(each.module) is divided:
                    each.module.__class__ = kind

    def _dividedOf(self, kind: type[ModuleType]) -> type[ModuleType]:
        # A program may have given a module a class of its own, as one that is loaded when it is used.
        def find(module: ModuleType, name: str) -> object:
            if get_ident() in self._plain:
                for each in self.replaced:
                    if each.name == name and each.module is module:
                        return each.kernels
            if kind.__getattribute__ is ModuleType.__getattribute__:
                return ModuleType.__getattribute__(module, name)
            # It looks at the module's class, from Python 3.12 on, and gives it another one
            # (importlib.util._LazyModule).
            module.__class__ = kind
            try:
                return getattr(module, name)
            finally:
                with self._lock:
                    if self._plain:
                        self._divide()

        return type(kind.__name__, (kind,), {"__getattribute__": find, "__slots__": ()})

    def kernelOf(self, name: str) -> ModuleType:
        """
        @return: a module like one of the standard library, in which our names are the kernel's.
        """
        if name not in self._copies:
            module = sys.modules[name]

            def find(attribute: str) -> object:
                value: object = getattr(module, attribute)
                for each in self.replaced:
                    if each.module is module and each.name == attribute and isOurs(value):
                        return each.kernels
                return value

            copy = self._copies[name] = ModuleType(name, module.__doc__)
            # Constants.  Functions may be replaced by the program.
            vars(copy).update((each, value) for each, value in vars(module).items() if each.isupper())
            vars(copy)["__getattr__"] = find
        return self._copies[name]


def specBeside(own: object, name: str, path: Path, target: ModuleType | None = None) -> ModuleSpec | None:
    """
    @param own: a finder of ours.
    @return: what the others find.
    """
    # Else one of the others has it within: programs wrap all that are there (Mercurial).
    for finder in sys.meta_path if own in sys.meta_path else _first:
        if finder is not own and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def restoreClasses() -> None:
    """
    Classes of the standard library from which Twisted derives some of its own (C{abc.ABC}) are as they were.

    Where an interface is declared of a class, zope.interface gives each of its bases a C{__provides__}, which
    C{dir} lists and no object has: a program that looks at all attributes of its own objects fails.  It still
    knows the declarations of a base, and does not do so again.
    """
    from zope.interface.declarations import Implements, implementedBy

    implementing: list[Any] = [implementedBy(object)]
    seen = set(implementing)
    for each in implementing:
        # Beside classes' specifications there are those of what classes provide themselves.
        if isinstance(each, Implements):
            found = set(each.dependents) - seen
            seen |= found
            implementing += found
            kind: Any = each.inherit
            if isinstance(kind, type) and kind.__module__ in _BASES and _PROVIDED in vars(kind):
                delattr(kind, _PROVIDED)


def isOurs(value: object) -> bool:
    """
    @return: whether something is of this package.
    """
    return str(getattr(value, "__module__", "")).startswith("twisted_ib.")


class quickly:
    """
    Within this context modules are imported, which live as long as the process: to collect garbage among them
    finds none, and takes a sixth of the time.  Nor is there a collection of all that is new at its end: it
    counts as old, as after a full one.  Finders that the program has put around those from before it find
    nothing of them: a module that is loaded when it is used (Mercurial's) would be another one by then.
    """

    def __enter__(self) -> None:
        self._isEnabled = gc.isenabled()
        gc.disable()
        from twisted_ib.drive.process import objects

        objects.keep()
        self._finders = sys.meta_path[:]
        if not all(each in self._finders for each in _first):
            sys.meta_path[:] = _first
        _standard.__enter__()

    def __exit__(self, *_: object) -> None:
        _standard.__exit__()
        if sys.meta_path == _first:
            sys.meta_path[:] = self._finders
        # They have imported it.
        from twisted_ib.drive.process import life, objects

        if "zope.interface.declarations" in sys.modules:
            restoreClasses()
        objects.settle()
        if self._isEnabled:
            gc.enable()
        life.atEnd(__name__, endQuickly)


def needsCollections(objects: Sequence[object]) -> bool:
    """
    @param objects: those that the collector of garbage knows.
    @return: whether a process that ends would lose something if cycles of them were not collected: a
        finalizer (C{__del__}) that the program has, a file, or a generator that was not exhausted.
    """
    from twisted_ib.drive.process import hasFinalizer

    kinds = {kind for kind in set(map(type, objects)) if hasFinalizer(kind)}
    # The interpreter flushes its own files.
    own: set[int] = set()
    for each in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        file: object = each
        while file is not None:
            own.add(id(file))
            file = getattr(file, "buffer", None) or getattr(file, "raw", None)
    return any(type(each) in kinds and id(each) not in own for each in objects) if kinds else False


def endQuickly() -> None:
    """
    The process ends: have the interpreter leave alone what is there.

    It takes its modules apart, and collects garbage among them several times.  With those that connect over
    SDP that is a quarter of the CPU time of a short program; it is for finalizers only, of which most have
    none.  A program that watches the collector has it all.
    """
    from twisted_ib.drive.process import objects

    if _DEVICES in sys.modules and not (gc.callbacks or gc.get_debug()):
        if not needsCollections(objects.made()):
            gc.freeze()


class Later(ModuleType):
    """
    Stands for a module in what Twisted imports: it is imported when something of it is used.
    """

    def __init__(self, name: str, *functions: str, **known: object) -> None:
        # C{functions} are imported by their names, C{known} is used while Twisted is imported.
        super().__init__(name)
        vars(self).update((each, partial(self._call, each)) for each in functions)
        vars(self).update(known)
        self._thread = get_ident()

    def __getattr__(self, name: str) -> Any:
        # A package, to another thread that imports a module of it meanwhile.
        if name.startswith("__") and not (name == "__path__" and get_ident() != self._thread):
            raise AttributeError(name)
        # Other threads import meanwhile, also while items are made of it one by one.
        _take({each: stub for each, stub in sys.modules.copy().items() if stub is self})
        return getattr(import_module(self.__name__), name)

    def _call(self, function: str, *arguments: Any, **named: Any) -> Any:
        return self.__getattr__(function)(*arguments, **named)


class _Annotation:
    """
    Stands for a class that L{twisted.internet.defer} has in annotations only.
    """

    def __class_getitem__(cls, item: object) -> type:
        return cls


class _LaterAsyncio(Later):
    """
    Stands for C{asyncio} in L{twisted.internet.defer}.
    """

    AbstractEventLoop = Future = _Annotation

    def iscoroutine(self, candidate: object) -> bool:
        # See asyncio.iscoroutine, which defer has from the first call on.
        names = ("AbstractEventLoop", "Future", "iscoroutine")
        found: Any = import_module(self.__name__)
        vars(sys.modules["twisted.internet.defer"]).update({name: getattr(found, name) for name in names})
        is_: bool = found.iscoroutine(candidate)
        return is_


class _LaterInspect(Later):
    """
    Stands for C{inspect} in Twisted and attrs.
    """

    def signature(self, *arguments: Any, **named: Any) -> Any:
        # attrs asks for annotations of converters, which those of Twisted need not have.  Who else asks, as
        # typing_extensions does, which an older Twisted imports, wants an answer.
        asks: str = sys._getframe(1).f_globals.get("__name__", "")
        isOurs = sys.modules.get(self.__name__) is self and get_ident() == self._thread
        if isOurs and asks.partition(".")[0] in ("attr", "attrs"):
            raise ValueError("there is no signature")
        return self._call("signature", *arguments, **named)


def _take(modules: dict[str, ModuleType]) -> None:
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


#: Modules that those of Twisted, and of the standard library that it imports, use within functions only, with
#: the functions that they import by their names.
_UNUSED: tuple[tuple[str, ...], ...] = (
    ("html", "escape"),
    ("http",),
    ("http.cookiejar",),
    ("ntpath",),
    ("pickle",),
    ("textwrap",),
    ("urllib.parse", "quote", "quote_from_bytes", "unquote"),
    ("attrs.validators",),
    ("dis", "findlinestarts"),
    *((f"twisted.internet.{each}",) for each in ("process", "udp", "unix")),
)
#: The levels of C{logging} by their numbers: Twisted has a table of them.
_LEVELS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}
#: The same of TLS.
_TLS = (("twisted.protocols.tls", "TLSMemoryBIOFactory"), ("twisted.internet.ssl",))


#: Functions of C{inspect} that Twisted calls while it is imported, or later.
_INSPECT: dict[str, Callable[..., object]] = {
    "currentframe": sys._getframe,
    # Of dataclasses, from Python 3.12 on.
    "get_annotations": lambda kind: dict(vars(kind).get("__annotations__") or ()),
    "getmro": lambda kind: kind.__mro__,
    "isclass": lambda value: isinstance(value, type),
    "isfunction": lambda value: isinstance(value, FunctionType),
    "isgenerator": lambda value: isinstance(value, GeneratorType),
    "ismethod": lambda value: isinstance(value, MethodType),
}
#: Names of C{typing_extensions} that Twisted uses; from Python 3.11 on they are in C{typing}.
_TYPES = ("Concatenate", "Literal", "NoReturn", "ParamSpec", "Self", "TypeAlias", "TypedDict")


def _variable(name: str, *constraints: Any, default: object = None, **options: Any) -> object:
    # See typing_extensions.TypeVar: its default is for whoever checks types.
    return typing.TypeVar(name, *constraints, **options)


class _Among:
    """
    See C{attrs.validators.in_}, which says what is wrong.
    """

    def __init__(self, options: Collection[object]) -> None:
        self._options = options

    def __call__(self, instance: object, attribute: Any, value: object) -> None:
        if value not in self._options:
            from attrs import validators

            validators.in_(self._options)(instance, attribute, value)

    def __repr__(self) -> str:
        return f"<in_ validator with options {self._options!r}>"


def _implementation() -> str:
    # See platform.python_implementation.
    return "PyPy" if sys.implementation.name == "pypy" else "CPython"


def importTwisted() -> None:
    """
    Import Twisted's sockets and base of reactors without TLS, which takes as long; without asyncio, of which
    L{twisted.internet.defer} asks what a coroutine is; and without what Twisted and attrs import for few of
    its functions: cookies, which bring C{urllib.request} and C{email}, pickle, processes, other sockets of a
    reactor.  A program that has neither a reactor nor Twisted uses none of it.
    """
    stubs: list[ModuleType] = [Later(*each) for each in _UNUSED]
    # Both compile patterns.  Of the first attrs asks whether this is PyPy, and uuid for the system.
    asked = {"python_implementation": _implementation, "system": lambda: os.uname().sysname}
    stubs.append(Later("platform", **asked))
    stubs.append(Later("logging", getLevelName=_LEVELS.get, **{name: n for n, name in _LEVELS.items()}))
    # These bring parsers of Python, and make many classes.
    stubs.append(_LaterInspect("inspect", **_INSPECT))
    stubs.append(Later("attr.validators", in_=_Among))
    if all(hasattr(typing, each) for each in _TYPES):
        types = {each: getattr(typing, each) for each in _TYPES}
        stubs.append(Later("typing_extensions", TypeVar=_variable, **types))
    if "twisted.internet.defer" not in sys.modules:
        stubs.append(_LaterAsyncio("asyncio"))
    needs = ("twisted.internet._newtls", "twisted.internet.posixbase", *(name for name, *_ in _TLS))
    # Without pyOpenSSL Twisted says that there is no TLS.
    if not any(name in sys.modules for name in needs) and find_spec("OpenSSL") is not None:
        stubs += [Later(*each) for each in _TLS]
    found = {each.__name__: each for each in stubs if each.__name__ not in sys.modules}
    for name, each in found.items():
        package, _, last = name.rpartition(".")
        if package in found:
            setattr(found[package], last, each)
    sys.modules.update(found)
    try:
        from twisted.internet import posixbase  # noqa: F401
    finally:
        _take(found)
