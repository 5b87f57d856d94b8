"""
What a process tells an asker of its listeners and connections: one row for each.

Who uses a device (a port, a connection) describes itself by a L{Row}; what it says, and why it is
as it is, becomes a list of values in the order of L{COLUMNS}, for JSON.

Pure: objects in, lists of plain values out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import define

from twisted_ib import limits

#: The longest text of a row, in characters, that of a rule's place excepted.
SOCKET_TEXT = 256

#: What the values of a row are called, in order.  The times are those of C{time.time()}.
COLUMNS = (
    "kind",
    "provider",
    "device",
    "local",
    "remote",
    "state",
    "credits",
    "in_flight",
    "retransmits",
    "rule",
    "fallback",
    "asked",
    "decided",
    "connected",
)

LISTENER, CONNECTION = "listener", "connection"

#: States; those of connections that are going are named as TCP's.
LISTEN, CONNECTING, ESTABLISHED, CLOSING = "LISTEN", "SYN_SENT", "ESTABLISHED", "FIN_WAIT1"

#: The rule of what was asked for by name, or made without the switch.
EXPLICIT = "explicit"

#: Gives an object's C{Why} (C{rule}, C{fallback}, C{asked}, C{decided}, C{connected}), or L{None}.
WhyOf = Callable[[Any], Any]


@define
class Row:
    """
    One listener or connection.

    @ivar kind: L{LISTENER} or L{CONNECTION}.
    @ivar provider: What carries it: C{sdp}, C{rdma}, C{rds} or C{tcp}.
    @ivar local: The address of this end, C{HOST:PORT}, or L{None} if it has none yet.
    @ivar remote: That of the other end, or L{None}.
    @ivar state: In capital letters.
    @ivar credits: Messages that the peer takes now; L{None} where there are no credits.
    @ivar inFlight: Bytes that were written and are not with the peer, or L{None}.
    @ivar retransmits: What was sent again, or L{None}.
    """

    kind: str
    provider: str
    local: str | None
    remote: str | None
    state: str
    credits: int | None = None
    inFlight: int | None = None
    retransmits: int | None = None


def noWhy(user: Any) -> None:
    """
    Without a switch everything was asked for by name.
    """


def values(row: Row, device: str | None, why: Any) -> list[Any]:
    """
    @param row: A listener or connection.
    @param device: The name of its HCA, or L{None}.
    @param why: Its C{Why}, or L{None} if it was asked for by name.
    @return: The values of L{COLUMNS}.
    """
    rule, fallback, times = EXPLICIT, None, [None, None, None]
    if why is not None:
        rule = str(why.rule)[-limits.SOCKET_RULE :]
        fallback = _text(why.fallback)
        times = [why.asked, why.decided, why.connected]
    return [
        row.kind,
        row.provider,
        device,
        _text(row.local),
        _text(row.remote),
        row.state,
        row.credits,
        row.inFlight,
        row.retransmits,
        rule,
        fallback,
        *times,
    ]


def _text(value: object) -> str | None:
    """
    @return: A text that is not too long, or L{None}.
    """
    return None if value is None else str(value)[:SOCKET_TEXT]


def usersRows(users: Iterable[Any], device: str, whyOf: WhyOf) -> Iterator[list[Any] | None]:
    """
    @param users: Of a device in a reactor: ports and connections have C{socketRow()}, who has many of
        them C{socketRows()}.
    @param device: The device's name.
    @param whyOf: Gives their C{Why}.
    @return: Their rows; L{None} for each that has none (any more).
    """
    for user in users:
        describe = getattr(user, "socketRows", None)
        if describe is None:
            yield rowOf(user, device, whyOf)
            continue
        for row in describe():
            yield values(row, device, None)


def rowOf(user: Any, device: str | None, whyOf: WhyOf) -> list[Any] | None:
    """
    @param user: A port or connection, perhaps of a class that an application has made.
    @param device: The name of its HCA, or L{None}.
    @param whyOf: Gives its C{Why}.
    @return: Its row, or L{None}.
    """
    describe = getattr(user, "socketRow", None)
    if describe is None:
        return None
    try:
        row = describe()
        return None if row is None else values(row, device, whyOf(user))
    except Exception:
        return None  # It is the application's: a question may not break anything.


__all__ = [
    "CLOSING",
    "COLUMNS",
    "CONNECTING",
    "CONNECTION",
    "ESTABLISHED",
    "EXPLICIT",
    "LISTEN",
    "LISTENER",
    "Row",
    "WhyOf",
    "noWhy",
    "rowOf",
    "usersRows",
    "values",
]
