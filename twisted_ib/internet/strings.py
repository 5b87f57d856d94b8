"""
Endpoint strings: C{sdp:PORT}, C{ib:PORT} or C{rds:PORT} for servers, C{sdp:HOST:PORT} and so on for
clients.

The plugin module imports this one whenever Twisted rebuilds its plugin cache,
before a reactor is chosen. So the endpoints themselves are imported only when
a string is parsed, and no device is opened before they listen or connect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
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
    from twisted_ib.internet.endpoints import ClientEndpoint, ServerEndpoint

_HIGHEST_PORT = 65535


def _number(what: str, text: str, lowest: int, highest: int | None = None) -> int:
    """
    Read a decimal number from an endpoint string.

    @param what: the argument's name, for the error text.
    @param text: the argument as the user wrote it.
    @param lowest: the lowest number allowed; not negative.
    @param highest: the highest number allowed, or L{None} for no bound.

    @return: the number.

    @raise ValueError: C{text} is no number, or out of bounds.
    """
    span = f"{lowest} to {highest}" if highest is not None else f"{lowest} or more"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{what} {text!r} is not a number ({span})")
    # No number in an endpoint is longer, and int() refuses thousands of digits in its own words.
    number = int(digits) if len(digits) <= 18 else 10**18
    if digits != text or number < lowest or (highest is not None and number > highest):
        raise ValueError(f"{what} {text} is out of range ({span})")
    return number


def _seconds(what: str, text: str) -> float:
    """
    Read a time in seconds, whole or decimal, from an endpoint string.

    @param what: the argument's name, for the error text.
    @param text: the argument as the user wrote it.

    @return: the seconds.

    @raise ValueError: C{text} is not a finite number of seconds from 0 up.
    """
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{what} {text!r} is not a number of seconds") from None
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{what} {text} is out of range (0 seconds or more)")
    return seconds


@implementer(IPlugin, IStreamServerEndpointStringParser, IStreamClientEndpointStringParserWithReactor)
class EndpointParser:
    """
    Parser of the endpoint strings of one protocol, for servers and clients.

    @ivar prefix: what the strings begin with.
    """

    def __init__(self, prefix: str, module: str, server: str, client: str) -> None:
        """
        @param prefix: what the strings begin with.
        @param module: the full name of the module with the endpoints.
        @param server: the name of the server endpoint's class there.
        @param client: the name of the client endpoint's class there.
        """
        self.prefix = prefix
        self._module = module
        self._server = server
        self._client = client

    def parseStreamServer(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> ServerEndpoint:
        """
        Make a server endpoint; see L{_parseServer} for the arguments.

        @param reactor: the reactor given to C{serverFromString}.
        @param args: the positional parts of the string.
        @param kwargs: the named parts of the string.

        @return: the endpoint.

        @raise ValueError: a number is none, or out of range.
        @raise TypeError: an argument is missing or unknown.
        """
        found: ServerEndpoint = self._parse(self._parseServer, reactor, args, kwargs)
        return found

    def parseStreamClient(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> ClientEndpoint:
        """
        Make a client endpoint; see L{_parseClient} for the arguments.

        @param reactor: the reactor given to C{clientFromString}.
        @param args: the positional parts of the string.
        @param kwargs: the named parts of the string.

        @return: the endpoint.

        @raise ValueError: a number is none, or out of range.
        @raise TypeError: an argument is missing or unknown.
        """
        found: ClientEndpoint = self._parse(self._parseClient, reactor, args, kwargs)
        return found

    def _parse(
        self, parse: Callable[..., Any], reactor: object, args: Sequence[str], kwargs: Mapping[str, str]
    ) -> Any:
        """
        Call a method with the parts of an endpoint string, if they fit its
        signature.

        @param parse: the method.
        @param reactor: its first argument.
        @param args: the positional parts of the string.
        @param kwargs: the named parts of the string.

        @return: what the method returns.

        @raise TypeError: an argument is missing, unknown or too many; the text
            speaks of the string and not of the method.
        @raise ValueError: an argument makes no sense.
        """
        try:
            bound = signature(parse).bind(reactor, *args, **kwargs)
        except TypeError as error:
            parts = [self.prefix, *args, *(f"{name}={value}" for name, value in kwargs.items())]
            raise TypeError(f"{':'.join(parts)}: {error}") from None
        try:
            return parse(*bound.args, **bound.kwargs)
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
        """
        Make the endpoint for C{PORT[:interface=ADDR][:backlog=N][:device=NAME]}.

        @param reactor: the reactor to listen with.
        @param port: the port; 0 asks for any free one.
        @param interface: the address to bind, all of the host's by default.
        @param backlog: how many connections may wait to be accepted.
        @param device: the HCA's name, the host's default by default.

        @return: the endpoint.
        """
        number = _number("port", port, 0, _HIGHEST_PORT)
        waiting = _number("backlog", backlog, 0)
        make = getattr(import_module(self._module), self._server)
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
        """
        Make the endpoint for C{HOST:PORT[:timeout=S][:bindAddress=ADDR][:device=NAME]}.

        @param reactor: the reactor to connect with.
        @param host: the peer's address or name.
        @param port: the peer's port.
        @param timeout: the seconds to wait for the connection.
        @param bindAddress: the local address to connect from.
        @param device: the HCA's name, the host's default by default.

        @return: the endpoint.
        """
        if not host:
            raise ValueError(f"no host before port {port}")
        number = _number("port", port, 1, _HIGHEST_PORT)
        seconds = _seconds("timeout", timeout)
        bound = None if bindAddress is None else (bindAddress, 0)
        make = getattr(import_module(self._module), self._client)
        return make(reactor, host, number, timeout=seconds, bindAddress=bound, device=device)


@implementer(IPlugin, IStreamServerEndpointStringParser, IStreamClientEndpointStringParserWithReactor)
class DelegatingParser:
    """
    Parser of endpoint strings whose arguments two functions read.

    @ivar prefix: what the strings begin with.
    """

    def __init__(self, prefix: str, module: str, server: str, client: str) -> None:
        """
        @param prefix: what the strings begin with.
        @param module: the full name of the module with the functions.
        @param server: the name of the function that makes server endpoints.
        @param client: the name of the function that makes client endpoints.
        """
        self.prefix = prefix
        self._module = module
        self._server = server
        self._client = client

    def parseStreamServer(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> Any:
        """
        Make a server endpoint.

        @param reactor: the reactor given to C{serverFromString}.
        @param args: the positional parts of the string.
        @param kwargs: the named parts of the string.
        """
        return getattr(import_module(self._module), self._server)(reactor, *args, **kwargs)

    def parseStreamClient(self, reactor: IReactorCore, *args: Any, **kwargs: Any) -> Any:
        """
        Make a client endpoint.

        @param reactor: the reactor given to C{clientFromString}.
        @param args: the positional parts of the string.
        @param kwargs: the named parts of the string.
        """
        return getattr(import_module(self._module), self._client)(reactor, *args, **kwargs)
