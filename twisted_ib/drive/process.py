"""
The steps of this process before a fork(2), after it in the parent and in the child, and when it ends.

A module says so once, by its name; its place is that of its layer. Before a fork, and at the end, the
highest come first: they use those below, and take their locks in this order. After a fork the lowest come
first: what is the parent's is let go before those above look at it. Within a layer the order of registration
goes the same way. An error of one of them is written to standard error, and the others have their turn.

Which processes it may have forked /proc shows: L{lineage}, L{isRelated}.  A program may close descriptors
that it knows nothing of: L{Descriptor}.  It may have the functions of C{time} stand still (freezegun,
C{mock.patch}), which changes none of the kernel's timeouts: the clocks here are none of those.

The end looks for some of a program's objects, which are nearly always new: L{Objects} has those that were
made since the package was imported, and the few of before that matter.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import _count as _threads
from _thread import get_ident
from _weakref import ref
from contextlib import suppress
from functools import partial
from importlib.machinery import BuiltinImporter
from typing import TYPE_CHECKING, Final, TypeVar

from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, ResourceLimitError

# Another module with the same functions: such a program looks for the first ones in all modules, and a
# wrapper of Python would be called in each turn that polls.
_spec = BuiltinImporter.find_spec("time")
_clocks = None if _spec is None else BuiltinImporter.create_module(_spec)
if _clocks is not None:
    BuiltinImporter.exec_module(_clocks)
sys.modules["_twisted_ib_time"] = _clocks or sys.modules["time"]
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableSet
    from time import monotonic as monotonic
    from time import perf_counter as perf_counter
    from time import sleep as sleep
    from time import time as time
    from time import time_ns as time_ns

    from typing_extensions import Never

    Call = Callable[[], object]
else:
    from _twisted_ib_time import monotonic as monotonic
    from _twisted_ib_time import perf_counter as perf_counter
    from _twisted_ib_time import sleep as sleep
    from _twisted_ib_time import time as time
    from _twisted_ib_time import time_ns as time_ns

del sys.modules["_twisted_ib_time"]

_One = TypeVar("_One")
# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_read, _close = os.read, os.close
#: Nanoseconds of a tick, in which /proc tells when a process began.
TICK: Final = 10**9 // os.sysconf("SC_CLK_TCK")
#: Errors of a look at another process; others are this one's own, such as EMFILE.
UNSHOWN: Final = (PermissionError, FileNotFoundError, ProcessLookupError)

#: The layers, the lowest first.  What only reports on others is below them.
LAYERS = (
    "twisted_ib.tools",
    "twisted_ib.hca.host",
    "twisted_ib.hca.fabric",
    "twisted_ib.hca.capture",
    "twisted_ib.hca.device",
    "twisted_ib.subnet",
    "twisted_ib.verbs",
    "twisted_ib.queues",
    "twisted_ib.switch",
    "twisted_ib.blocking",
    "twisted_ib.aio",
)
#: Where one is after a fork.
IN_PARENT, IN_CHILD = 1, 2


class _Handler:
    """
    The calls that a module has registered.
    """

    __slots__ = ("calls", "name", "place")

    def __init__(self, name: str, *calls: Call | None) -> None:
        places = [place for place, layer in enumerate(LAYERS) if f"{name}.".startswith(f"{layer}.")]
        if not places:
            raise ValueError(f"no layer has {name}")
        (self.place,) = places
        self.name = name
        self.calls = calls


def _added(handlers: tuple[_Handler, ...], new: _Handler) -> tuple[_Handler, ...]:
    others = [each for each in handlers if each.name != new.name]
    if len(others) >= limits.PROCESS_HANDLERS:
        raise ResourceLimitError(f"{new.name} is one module too many that follows what the process does")
    return tuple(sorted([*others, new], key=lambda each: each.place))


class Life:
    """
    The calls of all modules when the process forks or ends.
    """

    def __init__(self) -> None:
        # Replaced, not changed: others register meanwhile.
        self._forks: tuple[_Handler, ...] = ()
        self._ends: tuple[_Handler, ...] = ()
        # Those that were called before each fork that is under way, by thread: a signal's handler may fork
        # within a fork.  Nobody who registers meanwhile releases what it has not taken.
        self._forking: dict[int, list[tuple[_Handler, ...]]] = {}

    def atFork(
        self,
        name: str,
        before: Call | None = None,
        inParent: Call | None = None,
        inChild: Call | None = None,
    ) -> None:
        """
        Have something called at each fork.

        @param name: The module's; this takes the place of what it registered before.
        @param before: Called in the thread that forks.
        @param inParent: Called there afterwards, also if there is no child.
        @param inChild: Called in the child, which has no other thread.
        @raise ValueError: No layer has such a module.
        @raise ResourceLimitError: Too many modules have registered.
        """
        self._forks = _added(self._forks, _Handler(name, before, inParent, inChild))

    def atEnd(self, name: str, call: Call) -> None:
        """
        Have something called when the process ends, a forked child included, as C{atexit} has it.

        @param name: The module's; this takes the place of what it registered before.
        @raise ValueError: No layer has such a module.
        @raise ResourceLimitError: Too many modules have registered.
        """
        self._ends = _added(self._ends, _Handler(name, call))

    def forking(self) -> None:
        """
        A thread is about to fork.
        """
        handlers = self._forks
        self._forking.setdefault(get_ident(), []).append(handlers)
        callAll(each.calls[0] for each in reversed(handlers))

    def forked(self, which: int) -> None:
        """
        It has.

        @param which: L{IN_PARENT} or L{IN_CHILD}.
        """
        begun = self._forking.pop(get_ident(), [self._forks])
        handlers = begun.pop()
        if which == IN_CHILD:
            # The other threads are no more, nor are their forks.
            self._forking.clear()
        if begun:
            self._forking[get_ident()] = begun
        if which == IN_CHILD:
            # One that has registered meanwhile, and takes nothing before, has nothing to release that it has
            # not taken: it only forgets what is the parent's.
            names = {each.name for each in handlers}
            late = [each for each in self._forks if each.name not in names and each.calls[0] is None]
            handlers = tuple(sorted([*handlers, *late], key=lambda each: each.place))
        callAll(each.calls[which] for each in handlers)

    def end(self) -> None:
        """
        The process ends.
        """
        # No generator: nothing that has begun and not ended is seen by one of them.
        callAll([each.calls[0] for each in reversed(self._ends)])


def hasFinalizer(kind: type) -> bool:
    """
    @return: Whether objects of a class do something when they are gone: a program's C{__del__}, a file, a
        generator.
    """
    if not hasattr(kind, "__del__"):
        return False
    base = next(each for each in kind.__mro__ if "__del__" in vars(each))
    # The kernel closes the sockets that are left open.
    return not f"{base.__module__}.".startswith(("twisted_ib.", "_socket."))


class Objects:
    """
    The objects that the collector of garbage knows, without most of those that are old.

    Ten thousands of them are the package's. They are of its oldest generation once it is imported
    (L{settle}), to which those that are made later come after some collections only.
    """

    def __init__(self) -> None:
        # Objects with finalizers that were made before that.
        self._old: list[ref[object]] = []
        #: The numbers of collections until then; C{None} before.
        self._settled: tuple[int, int] | None = None

    def keep(self) -> None:
        """
        Much is about to be imported: remember what there is and has a finalizer.
        """
        made = self.made()
        kinds = {kind for kind in set(map(type, made)) if hasFinalizer(kind)}
        found = [each for each in made if type(each) in kinds]
        self._settled = None
        # Of what has no weak references, or is much, all is looked for; so it is if another thread makes some
        # meanwhile.
        with suppress(TypeError):
            if len(found) <= limits.KEPT_OBJECTS and not _threads():
                self._old = [ref(each) for each in found]
                self._settled = _collections()

    def settle(self) -> None:
        """
        That was imported: it counts as old, as after a full collection.
        """
        import gc

        # Else the program, or a reactor, keeps something frozen.
        isFree = not gc.get_freeze_count()
        if isFree:
            gc.freeze()
            gc.unfreeze()
        isKnown = isFree and self._settled is not None and not _threads()
        self._settled = _collections() if isKnown else None

    def made(self) -> list[object]:
        """
        @return: All that a program may have that is no module's; with some or all that is.
        """
        # Programs of C, which have this module too, have no use for it.
        import gc

        # Python 3.14 has other generations.
        if self._settled != _collections() or sys.version_info >= (3, 14):
            return gc.get_objects()
        # A list that is made before is found, and would have itself.
        made = gc.get_objects(0)
        made += gc.get_objects(1)
        made += [each for each in [each() for each in self._old] if each is not None]
        return made


def _collections() -> tuple[int, int]:
    import gc

    found: list[dict[str, int]] = gc.get_stats()
    _, middle, oldest = found
    return middle["collections"], oldest["collections"]


def callAll(calls: Iterable[Call | None]) -> None:
    """
    Call all of them: what one raises is written to standard error.
    """
    for call in calls:
        if call is not None:
            try:
                call()
            # As the interpreter does with its own: also what a signal's handler raises meanwhile.
            except BaseException:
                sys.__excepthook__(*sys.exc_info())


def members(found: MutableSet[_One]) -> list[_One]:
    """
    @param found: A set, also one of weak references, that other threads may change.
    @return: Its members at one time.
    """
    while True:
        try:
            return list(found)
        # A WeakSet's iterator runs code between two members, and other threads run between that.  Each time
        # one of them has added a member.
        except RuntimeError:
            pass


def forEach(found: MutableSet[_One], call: Callable[[_One], object]) -> Call:
    """
    @param found: The objects of a module that are its process's.
    @param call: Called with each; a method of their base class would pass over those of its subclasses.
    @return: A function that tells each of them, and forgets them.
    """

    def tellAll() -> None:
        callAll([partial(call, each) for each in members(found)])
        found.clear()

    return tellAll


class Descriptor:
    """
    Something that has a descriptor of its own.

    @ivar fd: the descriptor, -1 once closed, and if there is none.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """
        Close the descriptor; harmless when repeated, or if the program has closed it and has no file of its
        number.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


class Forked:
    """
    Stands in a forked child for a resource of its parent: a mapping, a socket, the other end of a path.
    """

    def _fail(self, *arguments: object) -> Never:
        raise DeviceClosedError("this device belongs to the process that this one was forked from")

    __call__ = __getattr__ = __getitem__ = __len__ = __setitem__ = _fail


#: Of this process.
life = Life()
objects = Objects()
atexit.register(life.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=life.forking,
        after_in_parent=partial(life.forked, IN_PARENT),
        after_in_child=partial(life.forked, IN_CHILD),
    )


def status(process: str) -> tuple[str, int]:
    """
    Return the parent of a process, and the tick at which it began (proc_pid_stat(5)).
    """
    descriptor = os.open(f"/proc/{process}/stat", os.O_RDONLY)
    try:
        fields = _read(descriptor, 4096).rpartition(b")")[2].split()
    finally:
        _close(descriptor)
    return fields[1].decode(), int(fields[19])


def lineage(process: str) -> dict[str, bool]:
    """
    Return a process and those above it, which adopt the orphans of those below; 0 is one that is not shown.
    """
    kin = {"0": True}
    with suppress(*UNSHOWN):
        while process not in kin:
            kin[process] = True
            process, _ = status(process)
    return kin


def isRelated(process: str, kin: dict[str, bool], since: int) -> bool:
    """
    Return whether those of L{lineage} may have forked a process, themselves or through others, since a tick.
    One that has ended may have been such a one.

    @param kin: The answers that are known, to which others are added.
    """
    line: list[str] = []
    isOne = True
    with suppress(*UNSHOWN):
        while process not in kin:
            line.append(process)
            # Until that is known: numbers that are given again may lead in a circle.
            kin[process] = False
            parent, began = status(process)
            if began >= since:
                process = parent
        isOne = kin[process]
    for each in line:
        kin[each] = isOne
    return isOne
