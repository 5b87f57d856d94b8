"""
The cases, for C{unittest}: with the start method of the environment's C{METHOD}, and, if C{QUEUES} is set,
with the classes of L{twisted_ib.queues} in place of C{multiprocessing}'s.  Processes that are started import
it too.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import connection
from types import SimpleNamespace

from test import _test_multiprocessing as cases

from twisted_ib import queues

#: The interpreter's classes that are about these.
NAMES = (
    "WithProcessesTestConnection",
    "WithProcessesTestListener",
    "WithProcessesTestListenerClient",
    "WithProcessesTestPicklingConnections",
    "WithProcessesTestPoll",
    "WithProcessesTestPollEintr",
    "WithProcessesTestQueue",
    "TestIgnoreEINTR",
    "TestSimpleQueue",
    "TestWait",
)

if os.environ.get("QUEUES"):
    for name in ("Pipe", "Queue", "JoinableQueue", "SimpleQueue"):
        setattr(multiprocessing, name, getattr(queues, name))
        if name != "SimpleQueue":
            setattr(cases.ProcessesMixin, name, staticmethod(getattr(queues, name)))
    ours = {name: getattr(queues, name) for name in ("Listener", "Client", "Pipe")}
    cases.ProcessesMixin.connection = SimpleNamespace(**{**vars(connection), **ours})

_found: dict[str, object] = {"__name__": __name__}
cases.install_tests_in_module_dict(_found, os.environ["METHOD"])
globals().update({name: _found[name] for name in (*NAMES, "setUpModule", "tearDownModule")})
