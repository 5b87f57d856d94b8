"""
The decision about a connection or a listener, and its reason.
"""

from __future__ import annotations

from socket import socket
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from twisted_ib import limits
from twisted_ib.drive.process import life

if TYPE_CHECKING:
    from collections import Counter

#: Fallbacks where nobody would expect SDP: neither error texts nor the log mention them.
UNASKED = frozenset(("mapped", "remote", "no_port"))

#: Outcomes of connections over TCP that no fallback names: a rule wants TCP; a client has come by TCP; the
#: program has made the socket by itself; and all that are beyond the bound.
RULE, CLIENT, SOCKET, OTHERS = "rule", "client", "socket", "others"

#: C{rule} of connections and ports that the program asked for by name: C{sdp:}, C{ib:} and C{direct:}.
EXPLICIT = "explicit"


class Fallback(NamedTuple):
    """
    The reason why SDP does not carry a connection that it could have carried.

    @ivar kind: One word, the counter's name.
    @ivar text: Details on one line.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


#: That of blocking sockets on one CPU, where a wait for an answer takes the CPU from the answer.
ONE_CPU = Fallback("one_cpu", "blocking on one CPU: SDP gains nothing here")

#: That of blocking TLS: OpenSSL does with its own descriptor what takes some hundred functions of Python in
#: memory.
TLS = Fallback("tls", "blocking TLS: SDP gains nothing here")

#: That of a connection whose descriptor another process is given, and of the next ones to its port.
GIVEN = Fallback("given", "given to other processes: SDP is one process's")

#: That of a connection whose client has moved it, seen by its server.
MOVED = Fallback("moved", "its client blocks and gains nothing over SDP, and has moved it")

#: That of a port which another program has told to listen (LISTEN_FDS).
LISTENED = Fallback("listen", "it listened when it was given")


def remote(host: str) -> Fallback:
    """
    @return: why a connection to another host goes over TCP without a rule.
    """
    return Fallback("remote", f"{host} is not an address of this host")


def noListener(where: str) -> Fallback:
    """
    @param where: a host and port.
    @return: why a connection goes over TCP where nobody offers SDP.
    """
    return Fallback("no_listener", f"nobody offers SDP on {where}")


# Written out, without attrs: programs that only go over TCP have these classes, too, and start with them.
class Reason:
    """
    The decision about one connection or listener; times are the reactor's, in seconds.

    @ivar rule: C{FILE:LINE} of the rule, C{default}, or C{explicit}.
    @ivar verdict: The rule's: C{sdp}, C{tcp} or C{both}; of an adopted socket never C{sdp}.
    @ivar provider: C{sdp}, C{tcp} or C{rdma}; C{both} for a listener on both; C{""} before the decision.
    @ivar device: The name of the HCA, or L{None}.
    @ivar fallback: Why SDP does not carry it though it may, or L{None}.
    @ivar asked: When the application called.
    @ivar decided: When the provider was chosen, or L{None}.
    @ivar connected: When the connection was established, or L{None}.
    """

    __slots__ = (
        "__weakref__",
        "asked",
        "connected",
        "decided",
        "device",
        "fallback",
        "provider",
        "rule",
        "verdict",
    )

    def __init__(
        self,
        rule: str,
        verdict: str,
        provider: str = "",
        device: str | None = None,
        fallback: Fallback | None = None,
        asked: float | None = None,
        decided: float | None = None,
        connected: float | None = None,
    ) -> None:
        self.rule, self.verdict, self.provider = rule, verdict, provider
        self.device, self.fallback = device, fallback
        self.asked, self.decided, self.connected = asked, decided, connected

    def __str__(self) -> str:
        carried = self.provider or "undecided"
        if self.device is not None:
            carried += f" on {self.device}"
        text = f"{carried}, by rule {self.rule} ({self.verdict})"
        return text if self.fallback is None else f"{text}: {self.fallback}"


class Decision(NamedTuple):
    """
    One for TCP that would be made again for the next connection to a port.

    @ivar since: When it began to hold, by the reactor's clock; C{until} likewise.
    @ivar counters: Those of the switch, of which it increases C{rule} and C{kind}; C{outcome}: the one of
        L{outcomes}.
    """

    why: Reason
    since: float
    until: float
    counters: Counter[str]
    rule: str
    kind: str
    outcome: tuple[str, str, str]


#: Those of this process's blocking sockets to leave ports to TCP that gain nothing from SDP
#: (L{twisted_ib.switch.gainless}), by port: until that is known no more, or other rules hold.
decisions: Final[dict[tuple[str, int], Decision]] = {}
life.atFork(__name__, inChild=decisions.clear)

#: How many connections of this process have had each outcome: by provider, reason and, if that is a rule, its
#: place.
outcomes: dict[tuple[str, str, str], int] = {}
# A child counts its own connections only.
life.atFork(__name__, inChild=outcomes.clear)


def carried(provider: str, why: Reason | None) -> tuple[str, str, str]:
    """
    Count a connection that the program has asked of TCP, once it is established.

    @param provider: The transport that carries it.
    @param why: The decision about it, or about the port that has accepted it; L{None} if the program has made
        its socket by itself.
    @return: The one of L{outcomes} that counts it.
    """
    if provider != "tcp":
        key = provider, "", ""
    elif why is None:
        key = provider, SOCKET, ""
    elif why.fallback is not None:
        key = provider, why.fallback.kind, ""
    elif why.rule == EXPLICIT:
        key = provider, EXPLICIT, ""
    else:
        key = (provider, RULE, why.rule) if why.verdict == "tcp" else (provider, CLIENT, "")
    # No call between a look and what is written: blocking sockets come here from several threads.
    if key in outcomes:
        outcomes[key] += 1
    elif len(outcomes) < limits.OUTCOMES:
        outcomes[key] = 1
    else:
        key = provider, OTHERS, ""
        outcomes[key] = outcomes[key] + 1 if key in outcomes else 1
    return key


def withdrawn(why: Reason | None = None) -> None:
    """
    Count a connection over SDP as one over TCP.

    @param why: As of L{carried}: the decision by which it has moved, or L{None} if the program uses its
        socket by itself.
    """
    outcomes["sdp", "", ""] -= 1
    carried("tcp", why)


#: Why the kernel has sockets of the program that could have had SDP.
kept: WeakKeyDictionary[socket, Reason] = WeakKeyDictionary()
#: Its dict, whose entries go without a function of Python.
_reasons: Final[dict[ref[socket], Reason]] = vars(kept)["data"]
_forget: Final = _reasons.pop


def keep(skt: socket, why: Reason) -> None:
    """
    Enter one of these.
    """
    _reasons[ref(skt, _forget)] = why


def keptReasons() -> list[tuple[socket, Reason]]:
    """
    Return all of these, whatever other threads do meanwhile.
    """
    return [(skt, why) for each, why in tuple(_reasons.items()) if (skt := each()) is not None]


def isConnected(skt: socket) -> bool:
    """
    @return: whether a socket has a peer already: what it is then, it stays.
    """
    try:
        skt.getpeername()
    except OSError:
        return False
    return True


def stayed(skt: socket, fallback: Fallback) -> None:
    """
    Count a connection that stays with the kernel beside what else the process has; log the first of a kind.
    """
    isFirst = ("tcp", fallback.kind, "") not in outcomes
    why = kept[skt] = Reason("default", "both", "tcp", fallback=fallback)
    carried("tcp", why)
    if isFirst:
        # Imported here: a process may have neither loop nor reactor.
        from twisted.logger import Logger

        Logger().info("{reason}", reason=fallback.text)
