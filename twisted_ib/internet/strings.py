"""
Endpoint strings: C{sdp:PORT}, C{ib:PORT} or C{rds:PORT} for servers, C{sdp:HOST:PORT} and so on for clients;
C{framing=sdp} behind one of C{ib:} makes it a stream of SDP between GIDs.

Twisted imports this module whenever it rebuilds its plugin cache, which is before a reactor is chosen.  So
the endpoints are imported only when a string is parsed, and no device is opened before they listen or
connect.

For each string of a plugin Twisted reads the folders of all plugins (L{twisted.plugin.getCache}), which
takes 0.6 ms and which a plugin cannot avoid.  So a parser that was found once enters itself in the tables
where Twisted has its own C{tcp:} and C{ssl:}.  They are not public: with a Twisted that has none the plugin
is found each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import (
    IReactorCore,
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted_ib.internet.addressing.endpoints import ClientEndpoint, ServerEndpoint

_HIGHEST_PORT = 65535


def _number(what: str, text: str, lowest: int, highest: int | None = None) -> int:
    span = f"{lowest} to {highest}" if highest is not None else f"{lowest} or more"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{what} {text!r} is not a number ({span})")
    # No valid number is longer.  int() refuses thousands of digits (sys.get_int_max_str_digits) with a text
    # of its own.
    number = int(digits) if len(digits) <= 18 else 10**18
    if digits != text or number < lowest or (highest is not None and number > highest):
        raise ValueError(f"{what} {text} is out of range ({span})")
    return number


def _seconds(what: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{what} {text!r} is not a number of seconds") from None
    # float() also accepts "nan" and "inf", which no delayed call can have.
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{what} {text} is out of range (0 seconds or more)")
    return seconds


def nearest(word: str, words: Iterable[str]) -> str:
    """
    Return the end of an error's text about a word that is none of these, but nearly one.

    @return: C{; did you mean WORD?}, or nothing if it is one of them or like none.
    """
    # Imported here: most strings are right.
    from difflib import get_close_matches

    known = list(words)
    near = [] if word in known else get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _named(parse: Callable[..., Any]) -> list[str]:
    return [f"{name}=" for name in signature(parse).parameters]


def _serverArguments(factory: object, /, *args: str, **kwargs: str) -> Any:
    # twisted.internet.endpoints.serverFromString drops the second argument.
    return (args, factory), {"named": kwargs}


def _clientArguments(*args: str, **kwargs: str) -> dict[str, Any]:
    return {"args": args, "named": kwargs}


def _rejoined(parse: Callable[..., Any]) -> Callable[..., Any]:
    # Until here as one argument each: a name in a string may be that of any parameter.
    return lambda reactor, args, named: parse(reactor, *args, **named)


def _enter(parser: EndpointParser | DelegatingParser) -> None:
    from twisted.internet import endpoints

    name = parser.prefix.upper()
    entries: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
        ("_serverParsers", "tcp", parser.prefix, _serverArguments),
        ("_endpointServerFactories", "TCP", name, _rejoined(parser.parseStreamServer)),
        ("_clientParsers", "TCP", name, _clientArguments),
        ("_endpointClientFactories", "TCP", name, _rejoined(parser.parseStreamClient)),
    )
    tables = [getattr(endpoints, table, {}) for table, _, _, _ in entries]
    if all(tcp in table for table, (_, tcp, _, _) in zip(tables, entries, strict=True)):
        for table, (_, _, key, entry) in zip(tables, entries, strict=True):
            table.setdefault(key, entry)


class _Parser:
    """
    A parser of endpoint strings, for servers and clients.

    @ivar prefix: the first word of the strings.
    """

    def __init__(self, prefix: str, load: Callable[[], Any], server: str, client: str) -> None:
        # C{load} imports and returns the package that has C{server} and C{client}.
        self.prefix = prefix
        self._load = load
        self._server = server
        self._client = client
        self._entered = False


@implementer(IPlugin, IStreamServerEndpointStringParser, IStreamClientEndpointStringParserWithReactor)
class EndpointParser(_Parser):
    """
    Parser of one protocol's endpoint strings, for servers and clients.
    """

    def parseStreamServer(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> ServerEndpoint:
        """
        Return a server endpoint; L{_parseServer} has the arguments.

        @raise ValueError: a number is malformed or out of range.
        @raise TypeError: an argument is missing or unknown.
        """
        found: ServerEndpoint = self._parse(self._parseServer, reactor, args, kwargs)
        return found

    def parseStreamClient(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> ClientEndpoint:
        """
        Return a client endpoint; L{_parseClient} has the arguments.

        @raise ValueError: a number is malformed or out of range.
        @raise TypeError: an argument is missing or unknown.
        """
        found: ClientEndpoint = self._parse(self._parseClient, reactor, args, kwargs)
        return found

    def _parse(
        self, parse: Callable[..., Any], reactor: object, args: Sequence[str], kwargs: Mapping[str, str]
    ) -> Any:
        if not self._entered:
            self._entered = True
            _enter(self)
        try:
            return parse(reactor, *args, **kwargs)
        except TypeError:
            # Twisted passes the parts of the string as arguments.  A wrong one is reported in terms of the
            # string and not of a private method.
            try:
                signature(parse).bind(reactor, *args, **kwargs)
            except TypeError as error:
                parts = [self.prefix, *args, *(f"{name}={value}" for name, value in kwargs.items())]
                hint = "".join(nearest(f"{name}=", _named(parse)) for name in kwargs)
                raise TypeError(f"{':'.join(parts)}: {error}{hint}") from None
            raise
        except ValueError as error:
            raise ValueError(f"{self.prefix}: {error}") from None

    def _parseServer(
        self,
        reactor: object,
        port: str,
        interface: str = "",
        backlog: str = "50",
        device: str | None = None,
    ) -> Any:
        # PORT[:interface=ADDR][:backlog=N][:device=NAME]; port 0 is any free one.
        number = _number("port", port, 0, _HIGHEST_PORT)
        waiting = _number("backlog", backlog, 0)
        make = getattr(self._load(), self._server)
        return make(reactor, number, backlog=waiting, interface=interface, device=device)

    def _parseClient(
        self,
        reactor: object,
        host: str,
        port: str,
        timeout: str = "30",
        bindAddress: str | None = None,
        device: str | None = None,
    ) -> Any:
        # HOST:PORT[:timeout=S][:bindAddress=ADDR][:device=NAME].
        if not host:
            raise ValueError(f"no host before port {port}")
        number = _number("port", port, 1, _HIGHEST_PORT)
        seconds = _seconds("timeout", timeout)
        bound = None if bindAddress is None else (bindAddress, 0)
        make = getattr(self._load(), self._client)
        return make(reactor, host, number, timeout=seconds, bindAddress=bound, device=device)


class FramedParser(EndpointParser):
    """
    Parser of strings that may choose another framing than messages: C{framing=NAME}.
    """

    def __init__(
        self, prefix: str, load: Callable[[], Any], server: str, client: str, **framings: Callable[[], Any]
    ) -> None:
        """
        @param framings: By name, imports and returns what has C{server} and C{client} of that framing.
        """
        super().__init__(prefix, load, server, client)
        self._framings = {
            "messages": EndpointParser(prefix, load, server, client),
            **{name: EndpointParser(prefix, other, server, client) for name, other in framings.items()},
        }

    def _framing(self, name: str) -> EndpointParser:
        found = self._framings.get(name)
        if found is None:
            known = ", ".join(self._framings)
            raise ValueError(f"framing {name!r} is none of {known}{nearest(name, self._framings)}")
        return found

    def _parseServer(
        self,
        reactor: object,
        port: str,
        interface: str = "",
        backlog: str = "50",
        device: str | None = None,
        *,
        framing: str = "messages",
    ) -> Any:
        # PORT[:interface=ADDR][:backlog=N][:device=NAME][:framing=NAME].
        return self._framing(framing)._parseServer(reactor, port, interface, backlog, device)

    def _parseClient(
        self,
        reactor: object,
        host: str,
        port: str,
        timeout: str = "30",
        bindAddress: str | None = None,
        device: str | None = None,
        *,
        framing: str = "messages",
    ) -> Any:
        # HOST:PORT[:timeout=S][:bindAddress=ADDR][:device=NAME][:framing=NAME].
        return self._framing(framing)._parseClient(reactor, host, port, timeout, bindAddress, device)


@implementer(IPlugin, IStreamServerEndpointStringParser, IStreamClientEndpointStringParserWithReactor)
class DelegatingParser(_Parser):
    """
    Parser of endpoint strings whose arguments two functions of another module read.
    """

    def parseStreamServer(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> Any:
        return self._made(self._server, reactor, args, kwargs)

    def parseStreamClient(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> Any:
        return self._made(self._client, reactor, args, kwargs)

    def _made(self, name: str, reactor: object, args: Sequence[str], kwargs: Mapping[str, str]) -> Any:
        if not self._entered:
            self._entered = True
            _enter(self)
        return getattr(self._load(), name)(reactor, *args, **kwargs)
