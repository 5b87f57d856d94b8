"""
Loops that unchanged programs get, in place of those of Twisted and of the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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


def install(choice: Choice) -> str:
    """
    Have the program that is imported next get a loop.

    @return: what that is, for the user.
    """
    for name in choice.hidden:
        # PEP 328's statement of it: an import of such a name raises ModuleNotFoundError.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    if choice.loop:
        _INSTALL[choice.loop]()
    return _TEXT[choice.loop]
