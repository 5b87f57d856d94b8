"""
The listeners and connections of a process, one row for each, for C{ib-ss}.

A user of a device (a port, a connection) describes itself by a L{Row}; with the reason for its transport it
becomes a list of values in the order of L{COLUMNS}, for JSON.

Pure: objects in, lists of plain values out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from twisted_ib import limits
from twisted_ib.layouts import Shown
from twisted_ib.records import define

#: The longest text of a row, in characters, except a rule's place.
SOCKET_TEXT = 256

#: The names of a row's values, in order.  Times are those of C{time.time()}.
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
    "messages_sent",
    "messages_received",
    "bytes_sent",
    "bytes_received",
    "round_trip",
    "rule",
    "fallback",
    "asked",
    "decided",
    "connected",
)

LISTENER, CONNECTION = "listener", "connection"

#: States, named as those of TCP (RFC 9293 section 3.3.2; C{netstat(8)}), also while closing.
LISTEN, CONNECTING, ESTABLISHED, CLOSING = "LISTEN", "SYN_SENT", "ESTABLISHED", "FIN_WAIT1"

#: The same for the kernel's numbers (include/net/tcp_states.h); CLOSE, also of a socket that is only bound,
#: is left out.
TCP_STATES = {
    1: ESTABLISHED,
    2: CONNECTING,
    3: "SYN_RECV",
    4: CLOSING,
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: LISTEN,
    11: "CLOSING",
}

#: The rule of a transport that was chosen explicitly, or made without the switch.
EXPLICIT = "explicit"

#: The host and port, on either side, of the row of a socket page whose reason is that of any TCP socket that
#: no other row is about.
ANY = ("*", 0)

#: The attribute of a reactor that holds the sources of rows of sockets that use no device.  A table here
#: would keep the reactor alive.
_SOURCES = "_hcaSocketRows"


@define(repr=False)
class Row(Shown):
    """
    One listener or connection.
    """

    #: L{LISTENER} or L{CONNECTION}.
    kind: str
    #: Its transport: C{sdp}, C{rdma}, C{rds} or C{tcp}.
    provider: str
    #: The local address, C{HOST:PORT}, or L{None} if there is none yet.
    local: str | None
    #: The peer's address, or L{None}.
    remote: str | None
    #: In capital letters.
    state: str
    #: Messages that the peer can receive now; L{None} without flow control by credits.
    credits: int | None = None
    #: Bytes written and not yet delivered to the peer, or L{None}.
    inFlight: int | None = None
    #: Retransmissions, or L{None}.
    retransmits: int | None = None
    #: Messages sent and received, those without data included; L{None} of what has none.
    messagesSent: int | None = None
    messagesReceived: int | None = None
    #: Bytes that the peer has acknowledged, and received ones, where the kernel counts them, or L{None}.
    bytesSent: int | None = None
    bytesReceived: int | None = None
    #: An estimate of the round trip, in seconds, or L{None}.
    roundTrip: float | None = None


def addSource(reactor: Any, rows: Callable[[], Iterable[Row]]) -> None:
    """
    Have rows reported of sockets that use no device, such as those over TCP.

    @param reactor: The reactor that serves them.
    @param rows: Returns them, as they are now.
    """
    vars(reactor).setdefault(_SOURCES, []).append(rows)


def sourcesOf(reactor: Any) -> list[Callable[[], Iterable[Row]]]:
    """
    Return what L{addSource} was given for a reactor.
    """
    found: list[Callable[[], Iterable[Row]]] = getattr(reactor, _SOURCES, [])
    return found


class Decision(Protocol):
    """
    Why a transport was chosen, and when.
    """

    @property
    def rule(self) -> object:
        """
        The rule that has decided.
        """

    @property
    def fallback(self) -> object:
        """
        Why it was not what the rule wants.
        """

    asked: float | None
    decided: float | None
    connected: float | None


#: Returns the L{Decision} about an object, or L{None}.
WhyOf = Callable[[Any], Decision | None]


def noWhy(user: object) -> None:
    """
    Return L{None}: without the switch every transport was chosen explicitly.
    """


def values(row: Row, device: str | None, why: Decision | None) -> list[object]:
    """
    @param why: its L{Decision}, or L{None} if its transport was chosen explicitly.
    @return: the values of L{COLUMNS}.
    """
    rule, fallback = EXPLICIT, None
    times: list[float | None] = [None, None, None]
    if why is not None:
        # The end of a long rule: the line number stands there.
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
        row.messagesSent,
        row.messagesReceived,
        row.bytesSent,
        row.bytesReceived,
        row.roundTrip,
        rule,
        fallback,
        *times,
    ]


def _text(value: object) -> str | None:
    # Bounded: a row must fit into one answer (limits.ANSWER_BYTES), whatever an application returns.
    return None if value is None else str(value)[:SOCKET_TEXT]


def usersRows(users: Iterable[object], device: str, whyOf: WhyOf) -> Iterator[list[object] | None]:
    """
    Yield the rows of a device's users; L{None} for each that has none (any more).

    @param users: ports and connections have C{socketRow()}; a user with many of them has C{socketRows()}.
    @param whyOf: returns their L{Decision}.
    """
    for user in users:
        describe = getattr(user, "socketRows", None)
        if describe is None:
            yield rowOf(user, device, whyOf)
            continue
        for row in describe():
            yield values(row, device, None)


def rowOf(user: object, device: str | None, whyOf: WhyOf) -> list[object] | None:
    """
    The row of one user, or L{None}.

    @param user: a port or connection, perhaps of an application's class.
    @param whyOf: returns its L{Decision}.
    """
    describe = getattr(user, "socketRow", None)
    if describe is None:
        return None
    try:
        row = describe()
        return None if row is None else values(row, device, whyOf(user))
    except Exception:
        # The method is the application's: a query must never break it, or be broken by it.
        return None
