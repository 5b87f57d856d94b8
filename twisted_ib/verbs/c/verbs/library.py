"""
The start of libibverbs in its process.
"""

from __future__ import annotations

from _twisted_ib_verbs import ffi

from twisted_ib.verbs.c.library import connect
from twisted_ib.verbs.c.verbs import address, completion, device, extended, memory, queues, text, work
from twisted_ib.verbs.c.verbs.table import TABLE
from twisted_ib.verbs.c.waiting import Arrivals
from twisted_ib.verbs.core.hub import hub

#: The modules with handlers.
MODULES = (address, completion, device, extended, memory, queues, text, work)

connect(ffi, "verbs", TABLE)
_arrivals = Arrivals()
hub.watch, hub.unwatch = _arrivals.watch, _arrivals.forget
