"""
The filters of C{ib-ss}, in the language of ss(8): C{sport = :80 and ( dst 10.0.0.0/8 or state listening )}.

Pure: words in, a test of rows out.
"""

from __future__ import annotations

import operator
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from twisted_ib.hca.base.socketrows import CONNECTING, LISTEN, TCP_STATES

#: Words of one expression.
WORDS = 256

Test = Callable[[dict[str, Any]], bool]

_ENDS = {"src": "local", "dst": "remote", "sport": "local", "dport": "remote"}
_OPERATORS: dict[str, Callable[[int, int], bool]] = {}
for _names, _compare in (
    ("= == eq", operator.eq),
    ("!= ne neq", operator.ne),
    ("< lt", operator.lt),
    ("<= le leq", operator.le),
    ("> gt", operator.gt),
    (">= ge geq", operator.ge),
):
    _OPERATORS.update(dict.fromkeys(_names.split(), _compare))
_AND, _OR, _NOT = ("and", "&", "&&"), ("or", "|", "||"), ("not", "!")
#: The names of states in ss(8).
_NAMES = (
    *("established", "syn-sent", "syn-recv", "fin-wait-1", "fin-wait-2", "time-wait", "closed", "close-wait"),
    *("last-ack", "listening", "closing", "all", "connected", "synchronized", "bucket", "big"),
)
_CLOSE, _BUCKET = "CLOSE", ("SYN_RECV", "TIME_WAIT")
#: The states of a name, which may be the kernel's too; and those that a name leaves out.
_STATES = {
    **{each: (each,) for each in (*TCP_STATES.values(), _CLOSE)},
    "LISTENING": (LISTEN,),
    "CLOSED": (_CLOSE,),
    "FIN_WAIT_1": ("FIN_WAIT1",),
    "FIN_WAIT_2": ("FIN_WAIT2",),
    "BUCKET": _BUCKET,
}
_OTHERS: dict[str, tuple[str, ...]] = {
    "ALL": (),
    "CONNECTED": (LISTEN, _CLOSE),
    "SYNCHRONIZED": (LISTEN, _CLOSE, CONNECTING),
    "BIG": _BUCKET,
}


class FilterError(ValueError):
    """
    An expression that is none.
    """


def inState(name: str) -> Test:
    """
    @param name: a state, or several, by the name of the kernel or of ss(8).
    @return: the test for it.
    @raise FilterError: there is no such state.
    """
    word = name.upper().replace("-", "_")
    others = _OTHERS.get(word)
    if others is not None:
        return lambda row: row["state"] not in others
    states = _STATES.get(word)
    if states is None:
        # Imported here: it needs Twisted, and most names are right.
        from twisted_ib.internet.strings import nearest

        raise FilterError(f"{name!r} is no state of ss(8){nearest(name.lower(), _NAMES)}")
    return lambda row: str(row["state"]).upper() in states


def expression(words: Sequence[str]) -> Test:
    """
    Parse an expression; its words may stand in one argument or in several.

    @raise FilterError: it is none.
    """
    text = " ".join(words)
    for mark in "()":
        text = text.replace(mark, f" {mark} ")
    tokens = text.split()
    if len(tokens) > WORDS:
        raise FilterError(f"a filter has at most {WORDS} words")
    parser = _Parser(tokens)
    test = parser.alternatives()
    if parser.left:
        raise FilterError(f"{parser.left[-1]!r} does not belong where it is")
    return test


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.left = tokens[::-1]

    def _next(self, what: str) -> str:
        if not self.left:
            raise FilterError(f"the filter ends where {what} should be")
        return self.left.pop()

    def _is(self, words: tuple[str, ...]) -> bool:
        return bool(self.left) and self.left[-1].lower() in words

    def alternatives(self) -> Test:
        tests = [self._all()]
        while self._is(_OR):
            self.left.pop()
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        # As in ss(8) "and" may be left out.
        while self.left and not self._is(_OR) and self.left[-1] != ")":
            if self._is(_AND):
                self.left.pop()
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _one(self) -> Test:
        word = self._next("a test")
        name = word.lower()
        if name in _NOT:
            test = self._one()
            return lambda row: not test(row)
        if word == "(":
            inner = self.alternatives()
            if self._next("')'") != ")":
                raise FilterError("a '(' is not closed")
            return inner
        if name == "state":
            return inState(self._next("a state"))
        if name in ("sport", "dport"):
            return self._port(_ENDS[name])
        if name in ("src", "dst"):
            return _host(_ENDS[name], self._next("an address"))
        raise FilterError(f"{word!r} is no test; there are sport, dport, src, dst and state")

    def _port(self, end: str) -> Test:
        word = self._next("a port")
        compare: Callable[[int, int], bool] = operator.eq
        if word.lower() in _OPERATORS:
            compare = _OPERATORS[word.lower()]
            word = self._next("a port")
        wanted = _number(word.lstrip(":"))

        def test(row: dict[str, Any]) -> bool:
            port = _split(row[end])[1]
            return port is not None and compare(port, wanted)

        return test


def _number(text: str) -> int:
    try:
        if text.isascii() and text.isdigit() and int(text) < 1 << 16:
            return int(text)
        return socket.getservbyname(text)
    # ValueError: thousands of digits, or bytes that are no UTF-8.
    except (OSError, ValueError):
        raise FilterError(f"{text!r} is no port and no service of services(5)") from None


def _split(place: str | None) -> tuple[str, int | None]:
    host, _, port = (place or "").rpartition(":")
    return host.strip("[]").partition("%")[0], int(port) if port.isascii() and port.isdigit() else None


def _host(end: str, text: str) -> Test:
    host, port = text, ""
    # HOST, [HOST]:PORT, HOST:PORT of IPv4, or :PORT.
    if text.startswith("[") or text.count(":") == 1:
        host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    wanted = _number(port) if port and port != "*" else None
    host = host.strip("[]")
    try:
        network = ip_network(host, strict=False) if host not in ("", "*") else None
    except ValueError:
        raise FilterError(f"{host!r} is no IP address or network") from None

    def test(row: dict[str, Any]) -> bool:
        there, number = _split(row[end])
        if row[end] is None or (wanted is not None and number != wanted):
            return False
        if network is None:
            return True
        try:
            found: IPv4Address | IPv6Address = ip_address(there)
        except ValueError:
            return False
        return found in network

    return test
