"""
Calls that avoid the switch: the operating system's own TCP.

L{direct} returns a reactor's calls as they are without the switch; endpoint strings C{direct:}, with the
arguments of C{tcp:}, use it.  In Intel's Offload Protocol Switch this is AF_INET_DIRECT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.endpoints import clientFromString, quoteStringArgument, serverFromString
from twisted.internet.posixbase import PosixReactorBase
from zope.interface import directlyProvides, providedBy

from twisted_ib.configuration.words import TCP
from twisted_ib.switch.reason import EXPLICIT, Reason, carried

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime


class Direct:
    """
    A reactor whose TCP is the operating system's; everything else is the reactor's.  See
    L{IReactorTCP<twisted.internet.interfaces.IReactorTCP>},
    L{IReactorSSL<twisted.internet.interfaces.IReactorSSL>} and
    L{IReactorSocket<twisted.internet.interfaces.IReactorSocket>}.
    """

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def _own(self, name: str) -> Any:
        reactor = self._reactor
        # An IBReactor overrides the method, so its base class's is called; another reactor's own may be a
        # test's fake.
        if isinstance(reactor, PosixReactorBase) and hasattr(type(reactor), "switch"):
            return getattr(PosixReactorBase, name).__get__(reactor)
        return getattr(reactor, name)

    def _why(self) -> Reason:
        return Reason(EXPLICIT, TCP, TCP, asked=self._reactor.seconds(), decided=self._reactor.seconds())

    def listenTCP(self, port: Any, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        made = self._own("listenTCP")(port, factory, backlog, interface)
        made.why = self._why()
        return made

    def adoptStreamPort(self, fileDescriptor: int, addressFamily: Any, factory: Any) -> Any:
        made = self._own("adoptStreamPort")(fileDescriptor, addressFamily, factory)
        made.why = self._why()
        return made

    def connectTCP(
        self, host: Any, port: Any, factory: Any, timeout: float | None = 30, bindAddress: Any = None
    ) -> Any:
        why = self._why()
        made = self._own("connectTCP")(host, port, factory, timeout, bindAddress)
        made.why = why
        carried(TCP, why)
        return made

    def listenSSL(
        self, port: Any, factory: Any, contextFactory: Any, backlog: int = 50, interface: str = ""
    ) -> Any:
        # PosixReactorBase.listenSSL calls listenTCP() of its self, which has to be this object's.
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
        this: Any = self
        return PosixReactorBase.connectSSL(this, host, port, factory, contextFactory, timeout, bindAddress)


def direct(reactor: IReactorTime) -> Direct:
    """
    Return a reactor without the switch, for calls and for endpoints.

    @param reactor: Provides C{IReactorTCP}.
    """
    return reactor if isinstance(reactor, Direct) else Direct(reactor)


def _string(args: tuple[str, ...], kwargs: dict[str, str]) -> str:
    parts = [quoteStringArgument(each) for each in args]
    parts += [f"{name}={quoteStringArgument(value)}" for name, value in kwargs.items()]
    return ":".join(["tcp", *parts])


def serverEndpoint(reactor: IReactorTime, *args: str, **kwargs: str) -> Any:
    """
    Return the endpoint of C{direct:PORT...}, with the arguments of C{tcp:}.
    """
    return serverFromString(direct(reactor), _string(args, kwargs))


def clientEndpoint(reactor: IReactorTime, *args: str, **kwargs: str) -> Any:
    """
    Return the endpoint of C{direct:HOST:PORT...}, with the arguments of C{tcp:}.
    """
    return clientFromString(direct(reactor), _string(args, kwargs))
