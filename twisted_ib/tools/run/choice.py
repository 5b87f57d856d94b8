"""
The choice of a loop for a program, by what it imports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from twisted_ib.tools.run.imports import Import, Reading

IB, IB_ASYNCIO, AIO, BLOCKING = "ib", "ib-asyncio", "aio", "blocking"
#: The loops by name, as C{--reactor} takes them.
LOOPS = (IB, IB_ASYNCIO, AIO, BLOCKING)

#: Modules of Twisted that programs without a reactor have, too.
_WITHOUT_REACTOR = (
    "twisted.python",
    "twisted.logger",
    "twisted.plugin",
    "twisted.version",
    "twisted.copyright",
)
#: Modules of the standard library that connect or listen by blocking sockets.
_SOCKETS = (
    *("socket", "socketserver", "http.server", "http.client", "urllib.request", "xmlrpc", "wsgiref"),
    *("ftplib", "smtplib", "poplib", "imaplib", "nntplib", "telnetlib", "asyncore", "asynchat", "smtpd"),
)
#: Modules that connect in their own way, and why no loop of ours fits.
_UNFIT = {
    "uvloop": "uvloop's loop cannot look at devices",
    "trio": "trio has a loop of its own",
    "curio": "curio has a loop of its own",
    "gevent": "gevent replaces sockets itself",
    "eventlet": "eventlet replaces sockets itself",
    "gunicorn": "gunicorn forks after it listens, and RDMA does not cross a fork",
}
#: Frameworks that import more than they run on.
_FRAMEWORKS = {"django": BLOCKING}


class Choice(NamedTuple):
    """
    A loop for a program.

    @ivar loop: one of L{LOOPS}; C{""} if the program runs as it is.
    @ivar reason: why, for the user.
    @ivar hidden: modules that the program can do without, and should here.
    """

    loop: str
    reason: str
    hidden: tuple[str, ...] = ()


class Unfit(NamedTuple):
    """
    No loop fits.

    @ivar reason: why, for the user.
    """

    reason: str


def _isBelow(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def loopOf(name: str) -> str:
    """
    The loop that the import of one module asks for; C{""} for none.
    """
    if name.startswith("twisted."):
        if name.startswith("twisted.internet.asyncioreactor"):
            return IB_ASYNCIO
        return "" if _isBelow(name, _WITHOUT_REACTOR) else IB
    if _isBelow(name, ("asyncio",)):
        return AIO
    if _isBelow(name, _SOCKETS):
        return BLOCKING
    return _FRAMEWORKS.get(name.partition(".")[0], "")


#: If the imports of one round ask for several: the first of these.
_ORDER = (IB_ASYNCIO, IB, AIO, BLOCKING)


def choose(module: str, own: list[Import], loop: str = "") -> Choice | Unfit:
    """
    Choose the loop of a program.

    @param module: the module that is the program (C{-m}), or C{""}.
    @param own: the program's own imports.
    @param loop: the loop that the user has chosen, or C{""}.
    """
    itself = [Import(module, "the command line")] if module else []
    for each in (*itself, *own):
        reason = _UNFIT.get(each.name.partition(".")[0])
        if reason is not None and each.isNeeded and (not loop or (loop, each.name) == (AIO, "uvloop")):
            return Unfit(f"no loop fits, as it needs {each.name.partition('.')[0]}: {reason}")
    if loop:
        return Choice(loop, "so says --reactor", _hidden(loop))
    for found in Reading([*itself, *own]).rounds():
        asked = {kind: each for each in reversed(found) if each.isNeeded and (kind := loopOf(each.name))}
        for kind in _ORDER:
            if kind in asked:
                return Choice(kind, _because(asked[kind], module), _hidden(kind))
    return Choice("", "nothing that it imports connects")


def _because(found: Import, module: str) -> str:
    return "so named" if found.name == module else f"as {found.where} imports {found.name}"


def _hidden(loop: str) -> tuple[str, ...]:
    # Servers prefer it where there is one, and asyncio's loop else.
    return ("uvloop",) if loop == AIO else ()
