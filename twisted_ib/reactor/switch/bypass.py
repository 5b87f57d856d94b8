"""
The way around the switch: the operating system's own TCP.

L{direct} gives an object with a reactor's calls as they are without the switch; C{direct:} endpoint
strings, with the arguments of C{tcp:}, use it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.endpoints import clientFromString, quoteStringArgument, serverFromString
from twisted.internet.posixbase import PosixReactorBase
from zope.interface import directlyProvides, providedBy

from twisted_ib.reactor.rules.parser import TCP
from twisted_ib.reactor.switch.reason import EXPLICIT, Reason


class Direct:
    """
    A reactor whose TCP is the operating system's; all else is the reactor's.
    """

    def __init__(self, reactor: Any) -> None:
        """
        @param reactor: The reactor.
        """
        self._reactor = reactor
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name: str) -> Any:
        """
        @return: What the reactor has.
        """
        return getattr(self._reactor, name)

    def _own(self, name: str) -> Any:
        """
        @return: The reactor's call, before the switch if it has one.
        """
        reactor = self._reactor
        if isinstance(reactor, PosixReactorBase) and hasattr(type(reactor), "switch"):
            return getattr(PosixReactorBase, name).__get__(reactor)
        return getattr(reactor, name)

    def _why(self) -> Reason:
        return Reason(EXPLICIT, TCP, TCP, asked=self._reactor.seconds(), decided=self._reactor.seconds())

    def listenTCP(self, port: Any, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        """
        See C{IReactorTCP}.
        """
        made = self._own("listenTCP")(port, factory, backlog, interface)
        made.why = self._why()
        return made

    def connectTCP(
        self, host: Any, port: Any, factory: Any, timeout: float | None = 30, bindAddress: Any = None
    ) -> Any:
        """
        See C{IReactorTCP}.
        """
        why = self._why()
        made = self._own("connectTCP")(host, port, factory, timeout, bindAddress)
        made.why = why
        return made

    def listenSSL(
        self, port: Any, factory: Any, contextFactory: Any, backlog: int = 50, interface: str = ""
    ) -> Any:
        """
        See C{IReactorSSL}.
        """
        this: Any = self
        return PosixReactorBase.listenSSL(this, port, factory, contextFactory, backlog, interface)

    def connectSSL(
        self,
        host: Any,
        port: Any,
        factory: Any,
        contextFactory: Any,
        timeout: float | None = 30,
        bindAddress: Any = None,
    ) -> Any:
        """
        See C{IReactorSSL}.
        """
        this: Any = self
        return PosixReactorBase.connectSSL(this, host, port, factory, contextFactory, timeout, bindAddress)


def direct(reactor: Any) -> Direct:
    """
    Go around the switch.

    @param reactor: Any reactor with C{IReactorTCP}.
    @return: The same with the operating system's C{listenTCP} and C{connectTCP}, C{listenSSL} and
        C{connectSSL}, for calls and for endpoints.
    """
    return reactor if isinstance(reactor, Direct) else Direct(reactor)


def _string(args: tuple[str, ...], kwargs: dict[str, str]) -> str:
    """
    @return: The endpoint string of C{tcp:} with the same arguments.
    """
    parts = [quoteStringArgument(each) for each in args]
    parts += [f"{name}={quoteStringArgument(value)}" for name, value in kwargs.items()]
    return ":".join(["tcp", *parts])


def serverEndpoint(reactor: Any, *args: str, **kwargs: str) -> Any:
    """
    Make the endpoint of C{direct:PORT...}.

    @param reactor: The reactor.
    @param args: What C{tcp:} takes.
    @param kwargs: What C{tcp:} takes by name.
    """
    return serverFromString(direct(reactor), _string(args, kwargs))


def clientEndpoint(reactor: Any, *args: str, **kwargs: str) -> Any:
    """
    Make the endpoint of C{direct:HOST:PORT...}.

    @param reactor: The reactor.
    @param args: What C{tcp:} takes.
    @param kwargs: What C{tcp:} takes by name.
    """
    return clientFromString(direct(reactor), _string(args, kwargs))


__all__ = ["Direct", "clientEndpoint", "direct", "serverEndpoint"]
