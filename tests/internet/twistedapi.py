"""
What only newer releases of Twisted have, for tests that run on the oldest one that is allowed.
"""

from __future__ import annotations

import inspect
from typing import Any

from twisted.internet import tcp
from twisted.internet.test import connectionmixins

#: C{twisted.internet.tcp.makeBinding}; L{None} before C{IReactorTCP2}.
makeBinding: Any = getattr(tcp, "makeBinding", None)

NO_BINDINGS = "this release of Twisted has no Binding"

_QUIET = "writeToPeerAfterAbort"


def runProtocolsQuietly(test: Any, server: Any, client: Any) -> None:
    """
    Connect two protocols over a test's endpoints, in a new reactor, until both have disconnected.

    The end which still is open is not written to, as newer releases do by default: over TCP that provokes a
    reset, and a reset discards what the receiver has not read yet.
    """
    run: Any = connectionmixins.runProtocolsWithReactor
    options = {_QUIET: False} if _QUIET in inspect.signature(run).parameters else {}
    run(test, server, client, test.endpoints, **options)
