"""
Loops that unchanged programs get, in place of those of Twisted and of the standard library.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from twisted_ib.tools.run.choice import AIO, BLOCKING, IB, IB_ASYNCIO, Choice


def _twisted(install: Callable[[], None]) -> None:
    from twisted.internet import asyncioreactor, epollreactor, pollreactor, selectreactor

    from twisted_ib.reactor import asyncioreactor as ours

    # `from twisted.internet import reactor` installs the default one (twisted.internet.reactor).
    default: Any = ModuleType("twisted.internet.default")
    default.install = install
    sys.modules["twisted.internet.default"] = default
    modules: tuple[Any, ...] = (epollreactor, pollreactor, selectreactor)
    for module in modules:
        module.install = install
    # Programs that mix Twisted and asyncio call the one and compare with the other, as Scrapy does.
    replaced: Any = asyncioreactor
    replaced.AsyncioSelectorReactor, replaced.install = ours.IBAsyncioReactor, ours.install


def _ib() -> None:
    from twisted_ib.reactor.ibreactor import install

    _twisted(install)


def _ibAsyncio() -> None:
    from twisted_ib.reactor.asyncioreactor import install

    _twisted(install)


def _aio() -> None:
    import asyncio
    import warnings

    from twisted_ib.aio import EventLoop

    with warnings.catch_warnings():
        # Policies are deprecated from 3.14 on, and still there.
        warnings.simplefilter("ignore", DeprecationWarning)
        policy: Any = type(asyncio.get_event_loop_policy())
    policy._loop_factory = EventLoop
    # Servers name the class, too (uvicorn's loop_factory).
    names: Any = asyncio
    for name in ("SelectorEventLoop", "EventLoop"):
        if hasattr(asyncio, name):
            setattr(names, name, EventLoop)


def _blocking() -> None:
    from twisted_ib.blocking.patch import patch

    patch()


_INSTALL = {IB: _ib, IB_ASYNCIO: _ibAsyncio, AIO: _aio, BLOCKING: _blocking}
_TEXT = {
    "": "runs as it is",
    IB: "on the ib reactor, or ib-asyncio where it asks for asyncio's",
    IB_ASYNCIO: "on the ib-asyncio reactor",
    AIO: "on the loop of twisted_ib.aio",
    BLOCKING: "on the sockets of twisted_ib.blocking",
}


def _load(roles: Sequence[str]) -> None:
    # Much to import.  Processes that the program forks, such as the workers of a server, get it with the
    # fork; each would need several times as long for it as for the rest of its start.
    from twisted_ib.reactor import socketreport  # noqa: F401
    from twisted_ib.switch.switch import Switch

    for role in roles:
        Switch.load(role)
    # Modules live as long as the process, and nothing of the program's is there yet: no collection of its
    # garbage need look at them, nor copy their pages in a process that it forks.
    gc.freeze()


def install(choice: Choice, roles: Sequence[str] = ()) -> str:
    """
    Have the program that is imported next get a loop.

    @param roles: those of C{listen} and C{connect} for which the rules do not leave everything to TCP.
    @return: what that is, for the user.
    """
    for name in choice.hidden:
        # PEP 328's statement of it: an import of such a name raises ModuleNotFoundError.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # Modules live as long as the process: to collect garbage among them finds none, and takes a sixth of the
    # time.
    isEnabled = gc.isenabled()
    gc.disable()
    try:
        if choice.loop:
            _INSTALL[choice.loop]()
        if roles and choice.loop in (IB, IB_ASYNCIO):
            _load(roles)
    finally:
        if isEnabled:
            gc.enable()
    return _TEXT[choice.loop]
