"""
The start of libibverbs in its process.
"""

from __future__ import annotations

import ctypes
from threading import get_native_id

from _twisted_ib_verbs import ffi, lib

from twisted_ib.drive.process import life, monotonic, sleep
from twisted_ib.verbs.c import attend, postings, rings
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.library import connect
from twisted_ib.verbs.c.verbs import address, completion, device, extended, memory, queues, text, work
from twisted_ib.verbs.c.verbs.table import TABLE
from twisted_ib.verbs.c.waiting import Arrivals, destroying
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.mem_alloc import askBy

#: How long calls of other threads have when Python ends, and how often that is looked at.
_OUT_SECONDS, _LOOK_SECONDS = 0.1, 0.001
#: The modules with handlers.
MODULES = (address, completion, device, extended, memory, queues, text, work)

connect(ffi, "verbs", TABLE, destroying)


def _watch() -> None:
    arrivals = Arrivals()
    hub.watch, hub.unwatch = arrivals.watch, arrivals.forget


_watch()
askBy(ctypes.cast(lib.twisted_ib_asker(), ctypes.py_object).value)


def _cut() -> None:
    # Those that are in Python for a call come out.  One that waits there as long ends as it ever did.
    lib.twisted_ib_over = get_native_id()
    until = monotonic() + _OUT_SECONDS
    while lib.twisted_ib_busy and monotonic() < until:
        sleep(_LOOK_SECONDS)


if lib.twisted_ib_in_python:
    attend.atLeave(_cut)


def _forked() -> None:
    # In a program that is Python, by os.fork(): the child begins anew, and what the parent had is not there.
    handles.forked()
    handles.lock.release()
    rings.polled.clear()
    attend.forked()
    lib.twisted_ib_forget()
    _watch()
    hub.settle = postings.settle
    lib.twisted_ib_renew()


# After the hub's own.  No other thread has the table amid a change, of which the child would have a half.
life.atFork(__name__, handles.lock.acquire, handles.lock.release, _forked)
