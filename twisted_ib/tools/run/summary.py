"""
The end of a run: how many connections of the program went over SDP, and why the others went over TCP.

It reads what the switch has counted (L{twisted_ib.switch.reason.outcomes}).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypedDict

from twisted_ib.drive.process import life
from twisted_ib.tools.program import printable
from twisted_ib.tools.run.loops import counted, notes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

#: Said of connections over TCP, by the kind of reason.
_WORDS = {
    "asleep": "by blocking sockets to ports whose connections mostly sleep",
    "beside": "by blocking sockets beside a loop or reactor",
    "client": "from clients that came over TCP",
    "connect": "without a device",
    "descriptor": "that multiprocessing has as descriptors",
    "explicit": "asked for TCP by name",
    "failed": "whose SDP failed",
    "foreign": "by sockets of a loop of another kind",
    "forking": "by a server that forks after it listens",
    "given": "whose sockets the program gives to other processes",
    "listen": "to ports without SDP",
    "mapped": "to IPv4 addresses in IPv6",
    "no_device": "without a device",
    "no_listener": "whose server offers no SDP",
    "no_port": "to port 0",
    "one_cpu": "by blocking sockets on one CPU",
    "other_listener": "whose port another program has on SDP",
    "others": "for other reasons",
    "refused": "whose server refused SDP",
    "remembered": "whose server has failed on SDP before",
    "remote": "to other hosts",
    "run_directory": "without a run directory",
    "short_lived": "by blocking sockets to ports of short-lived connections",
    "socket": "on sockets that the program made itself",
    "thread": "from another thread than the device's",
    "tls": "with TLS of blocking sockets",
    "timeout": "whose server did not answer on SDP in time",
    "unknown_listener": "whose server is not known",
    "unloadable": "as SDP could not be loaded",
}

#: Signals that end a program which does not handle them, and by which one ends itself that they have stopped.
_ENDS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class Cause(TypedDict):
    """
    Why TCP carried so many connections: C{kind} is a word, and C{text} the same for a reader.
    """

    kind: str
    text: str
    connections: int


class Summary(TypedDict):
    """
    The JSON: all connections, those of each provider, and the reasons for TCP, the most frequent first; and
    what is out of reach, by its name.
    """

    connections: int
    sdp: int
    tcp: int
    reasons: list[Cause]
    notes: dict[str, str]


def summary(counted: Mapping[tuple[str, str, str], int]) -> Summary:
    """
    @param counted: How many connections have had each, as the switch counts them.
    """
    overTCP = [(count, kind, rule) for (provider, kind, rule), count in counted.items() if provider == "tcp"]
    tcp = sum(count for count, _, _ in overTCP)
    every = sum(counted.values())
    reasons: list[Cause] = []
    for count, kind, rule in sorted(overTCP, key=lambda each: (-each[0], *each[1:])):
        text = f"by rule {rule}" if kind == "rule" else _WORDS.get(kind, kind)
        reasons.append({"kind": kind, "text": text, "connections": count})
    return {"connections": every, "sdp": every - tcp, "tcp": tcp, "reasons": reasons, "notes": dict(notes)}


def sentence(found: Summary) -> str:
    """
    @return: The same in one line.
    """
    every, tcp = found["connections"], found["tcp"]
    beside = "".join(f"; {name}: {note}" for name, note in found["notes"].items())
    if not every:
        return f"there were no connections{beside}"
    text = f"{found['sdp']} of {every} connection{'' if every == 1 else 's'} went over SDP"
    if tcp:
        reasons = ", ".join(f"{each['connections']} {each['text']}" for each in found["reasons"])
        text += f"; {tcp} over TCP: {reasons}"
    return text + beside


def sayAtExit(program: str, isAsked: bool, isJSON: bool, isFirst: bool) -> None:
    """
    Have the summary written to standard error when this process ends, after all else that it does then.

    @param program: The name that begins the line.
    @param isAsked: Whether it is written if there were no connections, too.
    @param isJSON: Whether it is one JSON object.
    @param isFirst: Whether the line of this process, and not of its children alone, is without its number.
    """
    pid = os.getpid() if isFirst else 0
    say = partial(_say, program, isAsked, isJSON, pid)
    life.atEnd(__name__, say)
    # The interpreter calls nothing where a process ends by a signal that it sends itself, as twistd and
    # uvicorn do that one has stopped, or by os._exit(), as children that multiprocessing forks.
    _sayBefore(os, "kill", lambda pid, number: pid == os.getpid() and _isEnd(number), say)
    _sayBefore(signal, "raise_signal", _isEnd, say)
    ending = partial(_say, program, False, isJSON, pid)
    _sayBefore(os, "_exit", lambda status: True, ending)


def _sayBefore(module: ModuleType, name: str, ends: Callable[..., bool], say: Callable[[], None]) -> None:
    plain = getattr(module, name)

    @wraps(plain)
    def saying(*arguments: Any, **named: Any) -> Any:
        if ends(*arguments, **named):
            say()
        return plain(*arguments, **named)

    vars(module)[name] = saying


def _isEnd(number: int) -> bool:
    return number in _ENDS and signal.getsignal(number) == signal.SIG_DFL


def _say(program: str, isAsked: bool, isJSON: bool, pid: int) -> None:
    found = summary(counted[0] if counted else {})
    if not found["connections"] and not isAsked:
        return
    if isJSON:
        import json

        text = json.dumps({"pid": os.getpid(), **found})
    else:
        # Of a process that the program has started.
        worker = "" if os.getpid() == pid else f" {os.getpid()}"
        text = f"{program}{worker}: {printable(sentence(found))}"
    # The program may have put something else in the place of sys.stderr, or closed it.
    if sys.__stderr__ is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.__stderr__, flush=True)
