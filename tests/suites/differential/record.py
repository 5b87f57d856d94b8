"""
What a scenario says, in the form in which it is compared; the scenarios by their names.
"""

from __future__ import annotations

import asyncio
import enum
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from difflib import ndiff
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

from attrs import define, field, frozen
from twisted.trial.unittest import SynchronousTestCase

from tests.support import collectDescriptors

#: Longer data is said by its length and its digest.
MOST_OCTETS = 64

_PLACES = re.compile(r" object at 0x[0-9a-f]+|0x[0-9a-f]{8,}")
_Function = TypeVar("_Function", bound=Callable[..., Any])


@define
class Record:
    """
    What a scenario has said.

    @ivar parts: The lines, by the parts of the scenario that L{part} began.
    @ivar names: Numbers that are different in each run, ports for example, and what stands for them.
    """

    parts: dict[str, list[str]] = field(factory=lambda: {"": []})
    names: dict[int, str] = field(factory=dict)

    def part(self, name: str) -> None:
        """
        Begin a part of the scenario, which is compared and known by a name of its own.
        """
        self.parts[name] = []

    def say(self, what: str, *values: Any) -> None:
        """
        Say something.
        """
        next(reversed(self.parts.values())).append(" ".join([what, *map(self.form, values)]))

    def call(self, what: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """
        Call, and say what came of it.

        @return: The result; L{None} after an error.
        """
        try:
            result = call(*arguments, **named)
        except Exception as e:
            self.say(f"{what}:", e)
            return None
        self.say(f"{what}:", result)
        return result

    def form(self, value: Any) -> str:
        """
        @return: A value in the form that is compared.
        """
        if isinstance(value, BaseException):
            number = f" {value.errno}" if isinstance(value, OSError) else ""
            # Classes that are more exact than what a program catches are as good.
            return f"{_published(type(value)).__name__}{number}"
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            if len(data) > MOST_OCTETS:
                return f"{len(data)} octets {sha256(data).hexdigest()[:12]}"
            return repr(data)
        if isinstance(value, socket.socket):
            return "socket"
        if isinstance(value, asyncio.BaseTransport):
            return "transport"
        if isinstance(value, enum.Enum) or value is None or isinstance(value, bool | str | float):
            return _PLACES.sub("", repr(value))
        if isinstance(value, int):
            return self.names.get(value, repr(value))
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self.form(k)}: {self.form(v)}" for k, v in value.items()) + "}"
        if isinstance(value, Iterable) and not isinstance(value, type):
            return f"({', '.join(map(self.form, value))})"
        return type(value).__name__


def _published(kind: type) -> type:
    # A class of the package's own counts as the nearest one that is not.
    return next(each for each in kind.__mro__ if not each.__module__.startswith("twisted_ib"))


@frozen
class Difference:
    """
    A scenario that says something else over SDP.

    @ivar name: The scenario, with its part.
    @ivar lines: What both said: those of TCP with C{-}, those of SDP with C{+} before them.
    """

    name: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n    ".join([self.name, *self.lines])


@define
class Scenarios:
    """
    The scenarios of one program.

    @ivar play: Plays one, over SDP or over TCP.
    @ivar known: What stays different, by the scenarios' names, and why.
    """

    play: Callable[[Callable[..., None], bool], Record]
    known: Mapping[str, str]
    named: dict[str, Callable[..., None]] = field(factory=dict)

    def add(self, name: str, function: Callable[..., None]) -> None:
        """
        Add a scenario.
        """
        if name in self.named:
            raise ValueError(f"two scenarios are called {name}")
        self.named[name] = function

    def __call__(self, function: _Function) -> _Function:
        """
        Add a scenario, which is called as its function (a decorator).
        """
        self.add(function.__name__.strip("_"), function)
        return function

    def each(self, *values: Any) -> Callable[[_Function], _Function]:
        """
        Add a scenario for each of some values, which the function gets (a decorator).
        """

        def decorate(function: _Function) -> _Function:
            for value in values:
                name = f"{function.__name__.strip('_')}-{getattr(value, '__name__', value)}"
                self.add(name, lambda ends, value=value: function(ends, value))
            return function

        return decorate

    def addTests(self, case: type[SynchronousTestCase]) -> None:
        """
        Give a class a test for each scenario.
        """
        for name in self.named:

            def test(self: SynchronousTestCase, its: Scenarios = self, name: str = name) -> None:
                self.addCleanup(collectDescriptors)
                self.assertEqual([], its.faults(name, its.compared(name)))

            test.__doc__ = f"{name}: what a program sees is the same, but for what is known."
            setattr(case, "test_" + re.sub("[-. ]", "_", name), test)

    def compared(self, name: str) -> list[Difference]:
        """
        Play a scenario over both.

        @return: What is different, by parts.
        """
        function = self.named[name]
        tcp, sdp = (self.play(function, isSDP).parts for isSDP in (False, True))
        found = []
        for part in {**tcp, **sdp}:
            said = tcp.get(part, []), sdp.get(part, [])
            if said[0] != said[1]:
                found.append(Difference(f"{name}/{part}" if part else name, tuple(_merged(*said))))
        return found

    def faults(self, name: str, found: Iterable[Difference]) -> list[str]:
        """
        @param found: What L{compared} has found in a scenario.

        @return: What of it is not known, and what is known and was not found.
        """
        names = {each.name: each for each in found}
        new = [str(each) for each in names.values() if each.name not in self.known]
        known = [each for each in self.known if each == name or each.startswith(f"{name}/")]
        gone = [f"{each}: it differs no longer, and known.py says that it does" for each in known]
        return new + [line for each, line in zip(known, gone, strict=True) if each not in names]


@define
class Telling:
    """
    The base of what a scenario gets.

    @ivar record: Where it says what it sees.
    @ivar isSDP: Which of both carries it; scenarios do not ask, but what is made for them is checked by it.
    """

    record: Record
    isSDP: bool

    def say(self, what: str, *values: Any) -> None:
        self.record.say(what, *values)

    def call(self, what: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return self.record.call(what, call, *arguments, **named)


class Noting:
    """
    Notes its calls, and does what the scenario wants in them.

    @ivar log: The calls, with what was given; data in one piece.
    """

    def __init__(self, name: str, does: dict[str, Callable[..., Any]]) -> None:
        """
        @param does: By names of calls: what is called with this object, and with what was given.
        """
        self.name, self.does = name, does
        self.log: list[list[Any]] = []

    def note(self, what: str, *values: Any) -> Any:
        """
        Note a call.

        @return: What the scenario wants it to return.
        """
        if what == "data" and self.log and self.log[-1][0] == "data":
            self.log[-1][1] += values[0]
        elif what == "data":
            # In place: bytes would be copied whole for each piece, of which a long file has over a thousand.
            self.log.append([what, bytearray(values[0])])
        else:
            self.log.append([what, *values])
        action = self.does.get(what)
        return None if action is None else action(self, *values)

    def has(self, *names: str) -> bool:
        """
        @return: Whether all of these were called.
        """
        return {each[0] for each in self.log}.issuperset(names)

    @property
    def data(self) -> bytes:
        """
        All that has arrived.
        """
        return b"".join(each[1] for each in self.log if each[0] == "data")


@define
class Recording(Telling):
    """
    The base of what a scenario of protocols gets.

    @cvar kind: The class of its protocols.
    @ivar noting: What notes its calls, which are said when the scenario is over.
    """

    kind: ClassVar[type[Any]]
    noting: list[Any] = field(factory=list, init=False)

    async def have(self, name: str, *noting: Any) -> None:
        """
        Wait until these had a call.
        """
        await self.until(lambda: all(each.has(name) for each in noting))  # type: ignore[attr-defined]

    def recorder(self, name: str, does: dict[str, Any] | None = None, kind: Any = None) -> Any:
        """
        @return: A protocol, whose calls are said when the scenario is over.
        """
        same = sum(each.name.split(" ")[0] == name for each in self.noting)
        # Each has a part of its own, also of a second pair.
        made = (kind or self.kind)(f"{name} {same + 1}" if same else name, does or {})
        self.noting.append(made)
        return made

    def tell(self) -> None:
        """
        Say what was noted.
        """
        for each in self.noting:
            self.record.part(each.name)
            for what, *values in tuple(each.log):
                self.say(what, *values)


def _merged(tcp: list[str], sdp: list[str]) -> list[str]:
    # As a diff: the lines that both have stand once.
    return [line for line in ndiff(tcp, sdp) if not line.startswith("?")]
