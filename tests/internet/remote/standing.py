"""
How things stand where a test waits in vain: what a hang that is rare leaves to read.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

from twisted_ib.internet.readers import channelsOf

_PLAIN = (bool, int, float, str, type(None))
#: The longest text of one value.
MOST = 200


def waitingAt(coroutine: Any) -> list[str]:
    """
    @return: the lines at which a coroutine waits, the outermost first, and the logs of what it has there.
    """
    found: list[str] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.append(f"at {frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}")
        for name, value in frame.f_locals.items():
            if name != "self" and (log := _logOf(value)):
                found.append(f"  {name}.log: {log}")
        coroutine = coroutine.cr_await
    return found


def _logOf(value: Any) -> str:
    # Of an end in another process it is asked for there, perhaps in vain.
    try:
        log = value.log
    except Exception:
        return ""
    return ", ".join(map(_shown, log[-20:])) if isinstance(log, list) else ""


def _shown(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)[:MOST]
    try:
        return f"{type(value).__name__}[{len(value)}]"
    except Exception:
        return type(value).__name__


def attributesOf(named: str, value: Any) -> str:
    """
    @return: a line of all attributes of an object, its methods and what its class has for all left out.
    """
    found = []
    for name in dir(value):
        if name.startswith("__") or name.isupper():
            continue
        try:
            one = getattr(value, name)
        except Exception:
            continue
        if not callable(one):
            found.append(f"{name}={_shown(one)}")
    return f"{named} {type(value).__name__}: {' '.join(found)}"


def standing(reactor: Any) -> list[str]:
    """
    @return: lines of a reactor's delayed calls, and of its devices with their connections.
    """
    now = reactor.seconds()
    found = [f"call in {each.getTime() - now:.3f} s: {each.func}" for each in reactor.getDelayedCalls()]
    for channel in channelsOf(reactor):
        fabric = channel.device.fabric
        found.append(attributesOf("fabric", fabric))
        found.append(
            f"  pending {fabric.pending()}, at {channel.now()}, deadline {channel.device.deadline()}"
        )
        found += [f"  socket {row}"[: 2 * MOST] for row in channel.socketRows() if row is not None]
        found += [f"  {line}" for each in channel.users for line in _parts("user", each)]
        streams = getattr(fabric, "streams", {})
        found += [f"  {line}" for each in streams.values() for line in _parts("stream", each)]
    return found


def _parts(named: str, value: Any) -> Iterator[str]:
    # What has the state of a connection, in those of all devices.
    yield attributesOf(named, value)
    for name in ("window", "connection", "queuePair", "stream", "_stream", "_producer"):
        part = getattr(value, name, None)
        if part is not None and not isinstance(part, _PLAIN):
            yield "  " + attributesOf(name, part)


def tried(looks: Callable[[], list[str]]) -> list[str]:
    """
    @return: what a look has found, or why it has not.
    """
    try:
        return looks()
    except Exception:
        return traceback.format_exc().splitlines()
